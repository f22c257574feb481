import { expect, test } from '@jest/globals';
import { requiredVersion } from './build-parts.ts';
import { VERSIONS } from './versions.ts';

test.each([
  ['hack/local-cluster', 'k8s.io/kubernetes', VERSIONS.kubernetes],
  ['hack/local-etcd', 'go.etcd.io/etcd/server/v3', VERSIONS.etcd],
  ['hack/local-s3', 'github.com/versity/versitygw', VERSIONS.versitygw],
])('%s builds the version of %s that versions.ts names', (folder, module, version) => {
  expect(requiredVersion(folder, module)).toBe(version);
});
