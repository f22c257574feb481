/** Why an engine takes no work, as workers find it; shown by the ModelDeployment and by every job that waits for it. */
export const ENGINE_REASONS = {
  ConnectionRefused: 'The replicas refuse connections; they are probed with back-off.',
  ConnectionLost: 'The replicas drop connections; they are probed with back-off.',
  Timeout: 'The replicas do not answer in time; they are probed with back-off.',
  NotReady: 'The replicas answer that they are not ready yet; they are probed with back-off.',
  ServerError: 'The replicas answer with server errors; they are probed with back-off.',
  InvalidAnswer:
    'The replicas answer something that no inference server says; they are probed with back-off.',
  Unauthorized: 'The engine refuses the key of authSecretRef (401 or 403), or wants one and none is named.',
  RouteNotFound: 'The engine does not serve this endpoint (404).',
  ModelNotFound: 'The engine does not know spec.model of the ModelDeployment (404).',
} as const satisfies Record<string, string>;
