/** The replicas that a ModelDeployment's target names, from Services and EndpointSlices as they are. Pure. */
import { refuseUrl, type AddressPolicy } from '../../api/address-rules.ts';
import type { ModelDeployment, ModelDeploymentReason } from '../../api/model-deployment.ts';
import type { KubeObject } from '../../kube/contract.ts';

export interface Service extends KubeObject {
  spec?: {
    ipFamilies?: string[];
    ports?: { name?: string; port: number; appProtocol?: string }[];
  };
}

export interface EndpointSlice extends KubeObject {
  addressType?: string;
  endpoints?: {
    addresses: string[];
    conditions?: { ready?: boolean | null; serving?: boolean | null; terminating?: boolean | null };
  }[];
  ports?: { name?: string | null; port?: number | null; appProtocol?: string | null }[];
}

/** Label of EndpointSlices that names their Service. */
export const SERVICE_NAME_LABEL = 'kubernetes.io/service-name';

export interface Replica {
  /** Base address, such as `http://10.0.0.7:8000`: names the replica in plans, holds and requests. */
  address: string;
  /** May get new work. One that is not may still finish what it has. */
  ready: boolean;
}

export interface TargetProblem {
  reason: ModelDeploymentReason;
  message: string;
}

export interface ResolvedTarget {
  /** Ordered by address, each once. */
  replicas: Replica[];
  problem: TargetProblem | undefined;
}

export interface TargetInput {
  deployment: ModelDeployment;
  /** The Service that the target names, and the slices that carry its label. */
  service: Service | undefined;
  slices: readonly EndpointSlice[];
  addresses: AddressPolicy;
}

export function resolveTarget(input: TargetInput): ResolvedTarget {
  const { urls, service } = input.deployment.spec.target;
  if (urls !== undefined) return fromUrls(urls, input.addresses);
  if (service !== undefined) return fromService(service, input);
  return { replicas: [], problem: undefined };
}

function fromUrls(urls: readonly string[], policy: AddressPolicy): ResolvedTarget {
  const refused = urls.flatMap((url) => {
    const refusal = refuseUrl(url, policy);
    return refusal === undefined ? [] : [{ url, message: refusal.message }];
  });
  const good = urls.filter((url) => !refused.some((each) => each.url === url));
  const first = refused[0];
  return {
    replicas: unique(good.map((url) => ({ address: url.replace(/\/+$/, ''), ready: true }))),
    problem:
      first === undefined
        ? undefined
        : { reason: 'AddressRefused', message: `${first.url}: ${first.message}` },
  };
}

function fromService(wanted: { name: string; port: number }, input: TargetInput): ResolvedTarget {
  const { service } = input;
  if (service === undefined) {
    return none('ServiceNotFound', `Service ${wanted.name} does not exist in this namespace`);
  }
  const ports = service.spec?.ports ?? [];
  const servicePort = ports.find((port) => port.port === wanted.port);
  if (servicePort === undefined) {
    const found = ports.map((port) => port.port).join(', ') || 'no port';
    return none('PortNotFound', `Service ${wanted.name} has no port ${wanted.port}; it has ${found}`);
  }
  const family = addressFamily(service, input.slices);
  const replicas = input.slices
    .filter((slice) => slice.addressType === family)
    .flatMap((slice) => {
      // Slices carry the ports of the pods; they are matched to those of the Service by name alone.
      const port = slice.ports?.find((each) => (each.name ?? '') === (servicePort.name ?? ''));
      if (port?.port === undefined || port.port === null) return [];
      const protocol = port.appProtocol ?? servicePort.appProtocol;
      const scheme = protocol === 'https' ? 'https' : 'http';
      return (slice.endpoints ?? []).flatMap((endpoint) =>
        endpoint.addresses.map((address) => ({
          address: `${scheme}://${address.includes(':') ? `[${address}]` : address}:${port.port}`,
          // Absent means ready, as the API defines it.
          ready: (endpoint.conditions?.ready ?? true) && endpoint.conditions?.terminating !== true,
        })),
      );
    })
    .filter((replica) => refuseUrl(replica.address, input.addresses) === undefined);
  return { replicas: unique(replicas), problem: undefined };
}

const none = (reason: ModelDeploymentReason, message: string): ResolvedTarget => ({
  replicas: [],
  problem: { reason, message },
});

/** A dual-stack Service has a slice of each family for the same pods: only its first family counts. */
function addressFamily(service: Service, slices: readonly EndpointSlice[]): string {
  const first = service.spec?.ipFamilies?.[0];
  if (first !== undefined) return first;
  return slices.some((slice) => slice.addressType === 'IPv4') ? 'IPv4' : 'IPv6';
}

/** An endpoint may stand in two slices while it moves; it is ready when one of them says so. */
function unique(replicas: readonly Replica[]): Replica[] {
  const byAddress = new Map<string, Replica>();
  for (const replica of replicas) {
    const known = byAddress.get(replica.address);
    byAddress.set(replica.address, { ...replica, ready: replica.ready || known?.ready === true });
  }
  return [...byAddress.values()].sort((a, b) => (a.address < b.address ? -1 : 1));
}
