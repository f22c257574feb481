/**
 * The controller runtime put together: one transport, and reflectors, queues, an elector and a recorder on it, all
 * with the same clock, randomness and logger.
 */
import type { Clock, Logger } from '../observability/contract.ts';
import type { KubeCall } from './connection.ts';
import type { Elector, KubeClient, KubeObject, Recorder, Reflector, WorkQueue } from './contract.ts';
import type { Credentials } from './credentials.ts';
import { LeaseElector, type ElectorObservation, type ElectorOptions } from './elector.ts';
import { EventRecorder, type RecorderObservation, type RecorderOptions } from './recorder.ts';
import { KindReflector, type ReflectorObservation, type ReflectorOptions } from './reflector.ts';
import { systemTimers, type Runtime, type Timers } from './timers.ts';
import { KubeTransport, type TransportOptions } from './transport.ts';
import { KeyQueue, type WorkQueueObservation, type WorkQueueOptions } from './workqueue.ts';

/** Where metrics listen; each is called synchronously and must not throw. */
export interface KubeObservers {
  onCall?: (call: KubeCall) => void;
  onReflector?: (observation: ReflectorObservation) => void;
  onQueue?: (observation: WorkQueueObservation) => void;
  onElector?: (observation: ElectorObservation) => void;
  onRecorder?: (observation: RecorderObservation) => void;
}

export interface KubeRuntimeOptions extends KubeObservers {
  credentials: Credentials;
  clock: Clock;
  random: () => number;
  logger: Logger;
  timers?: Timers;
  transport?: Omit<TransportOptions, 'credentials' | 'runtime' | 'onCall'>;
}

type Given = 'client' | 'runtime' | 'observe';

export interface KubeRuntime {
  readonly client: KubeClient;
  reflector<T extends KubeObject>(options: Omit<ReflectorOptions<T>, Given>): Reflector<T>;
  queue(options: Omit<WorkQueueOptions, Given>): WorkQueue;
  elector(options: Omit<ElectorOptions, Given>): Elector;
  recorder(options: Omit<RecorderOptions, Given>): Recorder;
  /** Closes the connections. What was made here is stopped by whoever asked for it, before. */
  close(): Promise<void>;
}

export function createKubeRuntime(options: KubeRuntimeOptions): KubeRuntime {
  const { credentials, clock, random, logger, timers = systemTimers } = options;
  const runtime: Runtime = { clock, timers, random, logger };
  const { onCall, onReflector, onQueue, onElector, onRecorder } = options;
  const client = new KubeTransport({
    ...options.transport,
    credentials,
    runtime,
    ...(onCall && { onCall }),
  });
  return {
    client,
    reflector: (wanted) =>
      new KindReflector({ ...wanted, client, runtime, ...(onReflector && { observe: onReflector }) }),
    queue: (wanted) => new KeyQueue({ ...wanted, runtime, ...(onQueue && { observe: onQueue }) }),
    elector: (wanted) =>
      new LeaseElector({ ...wanted, client, runtime, ...(onElector && { observe: onElector }) }),
    recorder: (wanted) =>
      new EventRecorder({ ...wanted, client, runtime, ...(onRecorder && { observe: onRecorder }) }),
    close: () => client.close(),
  };
}
