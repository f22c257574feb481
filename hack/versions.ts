/** The versions of the real parts that the local stack is built from. Binaries in .cache/bin carry them in their names. */
export const VERSIONS = {
  /** kube-apiserver, kube-controller-manager and kubectl; hack/local-cluster/go.mod requires the same. */
  kubernetes: '1.36.3',
  /** hack/local-etcd/go.mod requires the same. */
  etcd: '3.6.15',
  versitygw: '1.8.0',
} as const;
