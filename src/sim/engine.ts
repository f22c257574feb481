/** Starts a look-alike: the parts put together, and the port opened, closed and opened again. */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { systemClock } from '../observability/clock.ts';
import type { Clock } from '../observability/contract.ts';
import { EngineMetrics } from './engine-metrics.ts';
import { CallLog, type Call, type CallCounts } from './http/call-log.ts';
import { apply, control, type ControlRequest, type Controlled } from './http/control.ts';
import { FaultTable } from './http/faults.ts';
import { Listener } from './http/listener.ts';
import { createFace } from './http/server.ts';
import { likeUvicorn, readBody, sendJson } from './http/wire.ts';
import { createInstantInference, type Inference } from './inference.ts';
import { createPacedInference } from './paced-inference.ts';
import { PROFILES, type ProfileName } from './profiles.ts';
import { seededRandom } from './random.ts';
import type { SchedulerLimits } from './scheduler.ts';

export interface EngineSettings {
  host: string;
  /** 0 picks a free one. */
  port: number;
  /** A second port for the control API, which stays open while the engine refuses; 0 picks one. */
  controlPort: number | undefined;
  models: readonly string[];
  apiKey: string | undefined;
  profile: ProfileName;
  maxNumSeqs: number | undefined;
  maxNumBatchedTokens: number | undefined;
  kvTokens: number | undefined;
  maxModelLength: number;
  schedulingPolicy: 'fcfs' | 'priority';
  /** 10 plays ten times as fast as the hardware would. */
  timeScale: number;
  /** Answers say what the prompt said. */
  echo: boolean;
  callLog: string | undefined;
  seed: number;
  /** Whether the fault `die` may kill this process. */
  mayDie: boolean;
}

export const defaultEngineSettings: EngineSettings = {
  host: '127.0.0.1',
  port: 0,
  controlPort: undefined,
  models: ['tiny'],
  apiKey: undefined,
  profile: 'instant',
  maxNumSeqs: undefined,
  maxNumBatchedTokens: undefined,
  kvTokens: undefined,
  maxModelLength: 32_768,
  schedulingPolicy: 'priority',
  timeScale: 1,
  echo: false,
  callLog: undefined,
  seed: 1,
  mayDie: false,
};

export interface Engine {
  readonly url: string;
  readonly port: number;
  /** undefined where there is no second port. */
  readonly controlUrl: string | undefined;
  readonly inference: Inference;
  calls(since?: number): readonly Call[];
  counts(): CallCounts;
  /** The same as POST /_control. @throws Error with what is wrong */
  control(request: ControlRequest): Promise<void>;
  stop(): Promise<void>;
}

const MAX_BODY_BYTES = 128 * 1024 * 1024;
const MAX_CONTROL_BYTES = 1024 * 1024;

export async function startEngine(
  given: Partial<EngineSettings> = {},
  clock: Clock = systemClock,
): Promise<Engine> {
  const settings = withRoomForOne({ ...defaultEngineSettings, ...given });
  const inference = createInference(settings, clock);
  const calls = new CallLog(() => clock.now(), settings.callLog);
  const faults = new FaultTable();
  const face = createFace({
    settings: {
      models: settings.models,
      apiKey: settings.apiKey,
      maxModelLength: settings.maxModelLength,
      echo: settings.echo,
      maxBodyBytes: MAX_BODY_BYTES,
      die: () => {
        if (settings.mayDie) process.kill(process.pid, 'SIGKILL');
      },
    },
    inference,
    faults,
    calls,
    clock,
  });

  const listener = new Listener(
    likeUvicorn(createServer((request, response) => void answer(request, response))),
    settings.host,
    settings.port,
  );
  const controlListener =
    settings.controlPort === undefined
      ? undefined
      : new Listener(
          createServer((request, response) => void answerControl(request, response, true)),
          settings.host,
          settings.controlPort,
        );

  let listenAgain: NodeJS.Timeout | undefined;
  const controlled: Controlled = {
    faults,
    calls,
    async listen() {
      clearTimeout(listenAgain);
      await listener.open();
    },
    async refuse(milliseconds) {
      clearTimeout(listenAgain);
      await listener.close();
      if (milliseconds !== undefined) listenAgain = setTimeout(() => void listener.open(), milliseconds);
    },
  };

  const answer = (request: IncomingMessage, response: ServerResponse): Promise<void> =>
    request.url?.startsWith('/_control') === true
      ? answerControl(request, response, controlListener !== undefined)
      : face(request, response);

  async function answerControl(
    request: IncomingMessage,
    response: ServerResponse,
    safe: boolean,
  ): Promise<void> {
    const body = await readBody(request, MAX_CONTROL_BYTES);
    const said = await control(request.method ?? 'GET', request.url ?? '/', body, controlled, safe);
    response.once('finish', () => void said.afterwards?.());
    sendJson(response, said.status, said.body);
  }

  await listener.open();
  await controlListener?.open();
  return {
    get url() {
      return listener.url;
    },
    get port() {
      return listener.port;
    },
    controlUrl: controlListener?.url,
    inference,
    calls: (since) => calls.calls(since),
    counts: () => calls.counts(),
    async control(request) {
      const done = await apply(request, controlled, true);
      if (done.status !== 200) throw new Error(JSON.stringify(done.body));
      await done.afterwards?.();
    },
    async stop() {
      clearTimeout(listenAgain);
      inference.stop();
      await Promise.all([listener.close(), controlListener?.close()]);
      calls.close();
    },
  };
}

/** One request of the greatest length must fit into the KV cache, or it would wait for ever; vLLM refuses to start. */
function withRoomForOne(settings: EngineSettings): EngineSettings {
  const { kvTokens, blockSize } = PROFILES[settings.profile];
  const room = Math.floor((settings.kvTokens ?? kvTokens) / blockSize) * blockSize;
  return { ...settings, maxModelLength: Math.min(settings.maxModelLength, room) };
}

function createInference(settings: EngineSettings, clock: Clock): Inference {
  const profile = PROFILES[settings.profile];
  const limits: SchedulerLimits = {
    maxNumBatchedTokens: settings.maxNumBatchedTokens ?? profile.maxNumBatchedTokens,
    maxNumSeqs: settings.maxNumSeqs ?? profile.maxNumSeqs,
    kvTokens: settings.kvTokens ?? profile.kvTokens,
    blockSize: profile.blockSize,
    policy: settings.schedulingPolicy,
  };
  const kvCache = { blockSize: limits.blockSize, tokens: limits.kvTokens };
  const metrics = new EngineMetrics(kvCache, settings.maxModelLength);
  if (settings.profile === 'instant') return createInstantInference(metrics);
  const random = seededRandom(settings.seed);
  return createPacedInference({ profile, limits, metrics, random }, clock, settings.timeScale);
}
