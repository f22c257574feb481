/**
 * A Service over engines of the stack and its EndpointSlices, written by the test in place of the cluster's
 * controllers. One slice a replica, so that each may have a port of its own.
 */
import type { KubeAnswer } from '../../hack/stack/kube-request.ts';
import { engineCalls } from '../harness/engine-log.ts';
import type { EngineCall } from '../checker/check.ts';
import { API_VERSION, DEPLOYMENT } from '../harness/objects.ts';
import type { Scenario } from '../harness/scenario.ts';
import { until } from '../harness/until.ts';

export const SERVICE = 'engines';

/** The Service has two ports, as those of vLLM often do; what the test targets is the second, by its number. */
export const SERVICE_PORT = 80;
const PORTS = [
  { name: 'metrics', port: 9090 },
  { name: 'http', port: SERVICE_PORT },
];

/** Nothing listens there. */
const DEAD_PORT = 9;

export interface EndpointConditions {
  ready?: boolean;
  serving?: boolean;
  terminating?: boolean;
}

export interface DeploymentStatus {
  replicas?: number;
  readyReplicas?: number;
  conditions?: { type: string; status: string; reason: string; message: string }[];
}

export interface TestService {
  /** Creates the Service, or gives it these ports. */
  put(ports?: readonly { name: string; port: number }[]): Promise<void>;
  /** Creates the slice of an engine, or changes what it says of it. */
  putReplica(engine: number, conditions?: EndpointConditions, slice?: string): Promise<void>;
  removeReplica(engine: number): Promise<void>;
  /** A slice as somebody else might write it; the API server's answer, whatever it is. */
  writeSlice(
    name: string,
    address: string,
    port: number,
    conditions?: EndpointConditions,
  ): Promise<KubeAnswer>;
  /** What this engine was asked for the scenario's lines. */
  calls(engine: number): EngineCall[];
  /** Waits until the status of the ModelDeployment looks like this. */
  untilDeployment(what: string, holds: (status: DeploymentStatus) => boolean): Promise<DeploymentStatus>;
  removeDeployment(): Promise<void>;
}

export function testService(s: Scenario): TestService {
  const { kube, description } = s.stack;
  const slices = `/apis/discovery.k8s.io/v1/namespaces/${s.namespace}/endpointslices`;
  const deployment = `/apis/${API_VERSION}/namespaces/${s.namespace}/modeldeployments/${DEPLOYMENT}`;
  const apply = (path: string, object: object): Promise<KubeAnswer> =>
    kube('PATCH', `${path}?fieldManager=e2e&force=true`, object, 'application/apply-patch+yaml');
  const engineAt = (engine: number) => {
    const found = description.engines[engine];
    if (found === undefined) throw new Error(`the stack has no engine ${engine}`);
    return found;
  };

  const service: TestService = {
    put: async (ports = PORTS) =>
      mustSucceed(
        await apply(`/api/v1/namespaces/${s.namespace}/services/${SERVICE}`, {
          apiVersion: 'v1',
          kind: 'Service',
          metadata: { name: SERVICE },
          spec: { ports },
        }),
      ),
    putReplica: async (engine, conditions, slice = `${SERVICE}-${engine}`) => {
      const { hostname, port } = new URL(engineAt(engine).url);
      mustSucceed(await service.writeSlice(slice, hostname, Number(port), conditions));
    },
    removeReplica: async (engine) => mustSucceed(await kube('DELETE', `${slices}/${SERVICE}-${engine}`)),
    writeSlice: (name, address, port, conditions = { ready: true }) =>
      apply(`${slices}/${name}`, {
        apiVersion: 'discovery.k8s.io/v1',
        kind: 'EndpointSlice',
        metadata: { name, labels: { 'kubernetes.io/service-name': SERVICE } },
        addressType: address.includes(':') ? 'IPv6' : 'IPv4',
        endpoints: [{ addresses: [address], conditions }],
        ports: [
          { name: 'metrics', port: DEAD_PORT },
          { name: 'http', port },
        ],
      }),
    calls: (engine) => engineCalls([engineAt(engine).callLog], s.namespace),
    untilDeployment: (what, holds) =>
      until(
        `ModelDeployment ${s.namespace}/${DEPLOYMENT} ${what}`,
        async () => {
          const { body } = await kube('GET', deployment);
          return (body as { status?: DeploymentStatus }).status ?? {};
        },
        holds,
        { withinSeconds: 30, explain: () => s.explain() },
      ),
    removeDeployment: async () => void (await kube('DELETE', deployment)),
  };
  return service;
}

function mustSucceed({ status, body }: KubeAnswer): void {
  if (status >= 300) throw new Error(`the API server answers ${status}: ${JSON.stringify(body)}`);
}
