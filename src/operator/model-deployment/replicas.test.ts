import { describe, expect, test } from '@jest/globals';
import type { ModelDeployment } from '../../api/model-deployment.ts';
import { resolveTarget, type EndpointSlice, type Service } from './replicas.ts';

const deploymentOf = (target: ModelDeployment['spec']['target']): ModelDeployment => ({
  apiVersion: 'tidegate.dev/v1alpha1',
  kind: 'ModelDeployment',
  metadata: { name: 'llama', namespace: 'serving' },
  spec: {
    model: 'm',
    allowedNamespaces: 'Same',
    engine: 'vLLM',
    target,
    headroom: { maxAsyncInFlightPerReplica: 64 },
  },
});
const service = (spec: Service['spec']): Service => ({
  apiVersion: 'v1',
  kind: 'Service',
  metadata: { name: 'vllm', namespace: 'serving' },
  spec: { ...spec },
});
const slice = (change: Partial<EndpointSlice>): EndpointSlice => ({
  apiVersion: 'discovery.k8s.io/v1',
  kind: 'EndpointSlice',
  metadata: { name: 'vllm-x', namespace: 'serving' },
  addressType: 'IPv4',
  ports: [{ name: 'http', port: 8080 }],
  ...change,
});
const ports = [
  { name: 'http', port: 8000 },
  { name: 'metrics', port: 9000 },
];
const ready = (...addresses: string[]) => ({ addresses, conditions: { ready: true } });
const addresses = { allowLoopback: false };

function ofService(
  slices: EndpointSlice[],
  theService: Service | undefined = service({ ports, ipFamilies: ['IPv4'] }),
  port = 8000,
) {
  const deployment = deploymentOf({ service: { name: 'vllm', port } });
  return resolveTarget({ deployment, service: theService, slices, addresses });
}
const listed = (slices: EndpointSlice[], theService?: Service) =>
  ofService(slices, theService).replicas.map(({ address, ready }) => `${address} ${ready ? 'ready' : 'not'}`);

describe('the replicas of a Service', () => {
  test.each<[string, EndpointSlice[], string[]]>([
    ['are none without slices', [], []],
    [
      'are all ready endpoints, on the port of the pods',
      [slice({ endpoints: [ready('10.0.0.7'), ready('10.0.0.8')] })],
      ['http://10.0.0.7:8080 ready', 'http://10.0.0.8:8080 ready'],
    ],
    [
      'may listen on different ports, one slice each',
      [
        slice({ endpoints: [ready('10.0.0.7')], ports: [{ name: 'http', port: 1 }] }),
        slice({ endpoints: [ready('10.0.0.7')], ports: [{ name: 'http', port: 2 }] }),
      ],
      ['http://10.0.0.7:1 ready', 'http://10.0.0.7:2 ready'],
    ],
    [
      'are every address of an endpoint',
      [slice({ endpoints: [ready('10.0.0.7', '10.0.0.8')] })],
      ['http://10.0.0.7:8080 ready', 'http://10.0.0.8:8080 ready'],
    ],
    [
      'that are not ready are known but get nothing',
      [slice({ endpoints: [{ addresses: ['10.0.0.7'], conditions: { ready: false, serving: false } }] })],
      ['http://10.0.0.7:8080 not'],
    ],
    [
      'that terminate get nothing new, also while they still serve',
      [
        slice({
          endpoints: [
            { addresses: ['10.0.0.7'], conditions: { ready: true, serving: true, terminating: true } },
          ],
        }),
      ],
      ['http://10.0.0.7:8080 not'],
    ],
    [
      'are ready where the slice does not say',
      [slice({ endpoints: [{ addresses: ['10.0.0.7'] }, { addresses: ['10.0.0.8'], conditions: {} }] })],
      ['http://10.0.0.7:8080 ready', 'http://10.0.0.8:8080 ready'],
    ],
    [
      'count once when they stand in two slices, ready when one says so',
      [
        slice({ endpoints: [{ addresses: ['10.0.0.7'], conditions: { ready: false } }] }),
        slice({ endpoints: [ready('10.0.0.7')] }),
      ],
      ['http://10.0.0.7:8080 ready'],
    ],
    [
      'count once in a dual-stack Service: its first family',
      [
        slice({ endpoints: [ready('10.0.0.7')] }),
        slice({ addressType: 'IPv6', endpoints: [ready('fd00::7')] }),
      ],
      ['http://10.0.0.7:8080 ready'],
    ],
    [
      'leave out slices without the port, and of host names',
      [
        slice({ endpoints: [ready('10.0.0.7')], ports: [{ name: 'metrics', port: 9090 }] }),
        slice({ endpoints: [ready('10.0.0.8')], ports: [] }),
        slice({ addressType: 'FQDN', endpoints: [ready('vllm.example.com')] }),
      ],
      [],
    ],
    [
      'leave out addresses that nobody may be sent to',
      [slice({ endpoints: [ready('169.254.169.254'), ready('10.0.0.8')] })],
      ['http://10.0.0.8:8080 ready'],
    ],
  ])('%s', (_name, slices, expected) => {
    expect(listed(slices)).toEqual(expected);
  });

  test('of IPv6 stand in brackets', () => {
    const slices = [slice({ addressType: 'IPv6', endpoints: [ready('fd00::7')] })];
    expect(listed(slices, service({ ports, ipFamilies: ['IPv6'] }))).toEqual(['http://[fd00::7]:8080 ready']);
    expect(listed(slices, service({ ports }))).toEqual(['http://[fd00::7]:8080 ready']);
  });

  test('are matched by the empty name where the only port has none', () => {
    const unnamed = service({ ports: [{ port: 8000 }] });
    expect(listed([slice({ endpoints: [ready('10.0.0.7')], ports: [{ port: 8080 }] })], unnamed)).toEqual([
      'http://10.0.0.7:8080 ready',
    ]);
    expect(
      listed([slice({ endpoints: [ready('10.0.0.7')], ports: [{ name: '', port: 8080 }] })], unnamed),
    ).toEqual(['http://10.0.0.7:8080 ready']);
  });

  test('speak https where the port says so', () => {
    const secure = service({ ports: [{ name: 'http', port: 8000, appProtocol: 'https' }] });
    expect(listed([slice({ endpoints: [ready('10.0.0.7')] })], secure)).toEqual([
      'https://10.0.0.7:8080 ready',
    ]);
  });

  test('are unknown, with the reason, while the Service is missing', () => {
    const input = { deployment: deploymentOf({ service: { name: 'vllm', port: 8000 } }), addresses };
    expect(
      resolveTarget({ ...input, service: undefined, slices: [slice({ endpoints: [ready('10.0.0.7')] })] }),
    ).toMatchObject({ replicas: [], problem: { reason: 'ServiceNotFound' } });
  });

  test('are unknown, naming the ports there are, when the port is wrong', () => {
    expect(ofService([], undefined, 8001).problem).toEqual({
      reason: 'PortNotFound',
      message: 'Service vllm has no port 8001; it has 8000, 9000',
    });
  });
});

describe('replicas by url', () => {
  const ofUrls = (urls: string[], allowLoopback = false) =>
    resolveTarget({
      deployment: deploymentOf({ urls }),
      service: undefined,
      slices: [],
      addresses: { allowLoopback },
    });

  test('are ready, once each, without a slash at the end', () => {
    expect(ofUrls(['http://b:1/', 'http://a:1/base', 'http://b:1'])).toEqual({
      replicas: [
        { address: 'http://a:1/base', ready: true },
        { address: 'http://b:1', ready: true },
      ],
      problem: undefined,
    });
  });

  test('leave out an address that is refused, and say why', () => {
    const target = ofUrls(['http://169.254.169.254', 'http://a:1']);
    expect(target.replicas.map((each) => each.address)).toEqual(['http://a:1']);
    expect(target.problem).toMatchObject({ reason: 'AddressRefused' });
    expect(target.problem?.message).toContain('http://169.254.169.254');
  });

  test('of this machine only work where trials are allowed', () => {
    expect(ofUrls(['http://127.0.0.1:8000']).replicas).toEqual([]);
    expect(ofUrls(['http://127.0.0.1:8000'], true).replicas).toHaveLength(1);
  });
});
