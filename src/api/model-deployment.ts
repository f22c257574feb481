/** ModelDeployment: one model, the servers that run it, and who may send waiting work there. */
import { z } from 'zod';
import { ENGINE_REASONS } from './engine-reasons.ts';
import { modelDeployments } from './group.ts';
import {
  baseUrl,
  conditions,
  count,
  int32,
  object,
  objectName,
  secretRef,
  set,
  text,
  type Condition,
} from './fields.ts';
import type { KindDefinition } from './kind.ts';
import { labelSelector } from './label-selector.ts';
import type { ObjectMeta } from './object.ts';
import { withRules } from './rules.ts';

export const ENGINES = ['vLLM', 'OpenAICompatible'] as const;
export type Engine = (typeof ENGINES)[number];

/** The key of the Secret named by `authSecretRef`. */
export const AUTH_SECRET_KEY = 'api-key';

const target = withRules(
  object({
    service: object({
      name: objectName().describe('Name of the Service, in the namespace of this object.'),
      port: int32(1, 65535).describe('Port number of the Service, as in its spec.ports[].port.'),
    })
      .optional()
      .describe(
        'A Service of this namespace: every ready endpoint of it (EndpointSlices) is a replica and is addressed directly, not through the Service.',
      ),
    urls: set(baseUrl().describe('Base address of one replica, without the /v1 of its API.'), 64, 1)
      .optional()
      .describe(
        'Base addresses of fixed replicas, also outside the cluster, such as http://10.0.0.7:8000. Link-local addresses are refused when they are used, loopback addresses unless the operator was started with a flag for local trials.',
      ),
  }),
  [
    {
      cel: 'has(self.service) != has(self.urls)',
      holds: (self) => (self.service !== undefined) !== (self.urls !== undefined),
      message: 'exactly one of service and urls must be set',
    },
  ],
);

const spec = withRules(
  object({
    model: text(256, { min: 1 }).describe(
      'The name of the model as the engine knows it. Lines of a batch job name it, or one of the aliases, in body.model.',
    ),
    aliases: set(text(256, { min: 1 }).describe('Another name of the model.'), 32)
      .optional()
      .describe(
        'Other names that clients may use in body.model. They are replaced by the name of the model before a line is sent; nothing else of a line is ever changed.',
      ),
    allowedNamespaces: z
      .enum(['Same', 'All', 'Selector'])
      .default('Same')
      .describe(
        'Which namespaces may send jobs here: Same (only the one of this object), All, or Selector (those that namespaceSelector selects, and the one of this object).',
      ),
    namespaceSelector: labelSelector()
      .optional()
      .describe(
        'Labels of the namespaces that may send jobs here. Required with allowedNamespaces Selector and only allowed there.',
      ),
    engine: z
      .enum(ENGINES)
      .default('vLLM')
      .describe(
        'What runs behind the target: vLLM, or any server with the same HTTP API (OpenAICompatible).',
      ),
    target: target.describe('Where the replicas are. Exactly one of service and urls.'),
    authSecretRef: secretRef()
      .optional()
      .describe(
        `A Secret of this namespace whose key ${AUTH_SECRET_KEY} is sent to the engine as a bearer token. Workers need the right to read it: see docs/tasks/give-workers-credentials.md. Read again when it changes.`,
      ),
    headroom: object({
      maxAsyncInFlightPerReplica: int32(1, 10_000)
        .default(256)
        .describe(
          'The most requests of waiting work in flight on one replica at any time, over all workers.',
        ),
    })
      .prefault({})
      .describe('How much waiting work a replica may get.'),
  }),
  [
    {
      cel: "(self.allowedNamespaces == 'Selector') == has(self.namespaceSelector)",
      holds: (self) => (self.allowedNamespaces === 'Selector') === (self.namespaceSelector !== undefined),
      message:
        'namespaceSelector is required with allowedNamespaces Selector, and not allowed with Same and All',
    },
  ],
).meta({ mutability: 'Mutable' });

const status = object({
  observedGeneration: count().optional().describe('metadata.generation that this status was made from.'),
  conditions: conditions()
    .optional()
    .describe('Ready, and for tools that know them Reconciling and Stalled.'),
  replicas: int32(0, 100_000).optional().describe('Replicas that the target names, ready or not.'),
  readyReplicas: int32(0, 100_000).optional().describe('Replicas that get work: ready and not on hold.'),
  headroom: object({
    inFlight: int32(0, 2_147_483_647)
      .optional()
      .describe('Requests of waiting work in flight on all replicas, rounded and at most every 10 s.'),
    limit: int32(0, 2_147_483_647)
      .optional()
      .describe('How many may be in flight on all ready replicas together.'),
  })
    .optional()
    .describe('How much waiting work the replicas have and may have. Live numbers are metrics.'),
});

export type ModelDeploymentSpec = z.output<typeof spec>;
export type ModelDeploymentStatus = z.output<typeof status>;
export interface ModelDeployment {
  apiVersion: string;
  kind: string;
  metadata: ObjectMeta;
  spec: ModelDeploymentSpec;
  status?: ModelDeploymentStatus;
}

export const MODEL_DEPLOYMENT_CONDITIONS = {
  Ready: 'At least one replica can take waiting work.',
  Reconciling: 'The operator is still working towards the spec (kstatus).',
  Stalled: 'The operator cannot go on without a change by a person (kstatus).',
} as const satisfies Record<string, string>;
export type ModelDeploymentConditionType = keyof typeof MODEL_DEPLOYMENT_CONDITIONS;

/** Every reason of every condition of a ModelDeployment. */
export const MODEL_DEPLOYMENT_REASONS = {
  Pending: 'The operator has not seen the object yet.',
  Ready: 'At least one replica takes work.',
  Progressing: 'Replicas are not all ready, or the spec has just changed.',
  Settled: 'Nothing is left to do.',
  NoReadyReplicas: 'The target has no ready replica: its endpoints are empty or not ready.',
  ServiceNotFound: 'target.service names a Service that does not exist in this namespace.',
  PortNotFound: 'target.service.port is not a port of the Service.',
  AddressRefused: 'A url is a link-local address, or a loopback address without the flag for local trials.',
  ...ENGINE_REASONS,
  SecretAccessMissing:
    'Workers may not read the Secret of authSecretRef: the RoleBinding of this namespace is missing.',
  CredentialsNotFound: 'The Secret of authSecretRef does not exist.',
  CredentialsInvalid: `The Secret of authSecretRef has no key ${AUTH_SECRET_KEY}, or an empty one.`,
} as const satisfies Record<string, string>;
export type ModelDeploymentReason = keyof typeof MODEL_DEPLOYMENT_REASONS;

const unknownReady: Condition = {
  type: 'Ready',
  status: 'Unknown',
  reason: 'Pending',
  message: 'Waiting for the operator',
  lastTransitionTime: '1970-01-01T00:00:00Z',
};

export const modelDeploymentKind = {
  resource: modelDeployments,
  singular: 'modeldeployment',
  shortName: 'mdep',
  description:
    'ModelDeployment names a model, the inference servers that run it, and how much waiting work they may get beside their interactive users.',
  spec,
  status,
  statusDefault: { observedGeneration: 0, conditions: [unknownReady] },
  columns: [
    {
      name: 'Model',
      type: 'string',
      jsonPath: '.spec.model',
      description: 'Name of the model at the engine',
    },
    {
      name: 'Replicas',
      type: 'integer',
      jsonPath: '.status.replicas',
      description: 'Replicas of the target',
    },
    {
      name: 'Ready',
      type: 'integer',
      jsonPath: '.status.readyReplicas',
      description: 'Replicas that take waiting work',
    },
    {
      name: 'In flight',
      type: 'integer',
      jsonPath: '.status.headroom.inFlight',
      description: 'Requests of waiting work in flight',
    },
    {
      name: 'Limit',
      type: 'integer',
      jsonPath: '.status.headroom.limit',
      description: 'How many may be in flight',
    },
    {
      name: 'Age',
      type: 'date',
      jsonPath: '.metadata.creationTimestamp',
      description: 'Time since creation',
    },
  ],
  conditions: MODEL_DEPLOYMENT_CONDITIONS,
  reasons: MODEL_DEPLOYMENT_REASONS,
  transitions: [],
} satisfies KindDefinition<typeof spec, typeof status>;
