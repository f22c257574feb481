/** Where stores come from: one provider a process, which owns the clients behind all stores it opened. */
import { refuseUrl } from '../api/address-rules.ts';
import type { Logger } from '../observability/contract.ts';
import { Clients } from './clients.ts';
import { StoreError, type ObjectStore, type S3Connection } from './contract.ts';
import type { Lookup } from './guarded-agent.ts';
import type { CallDependencies } from './retry.ts';
import { S3Store } from './s3-store.ts';
import { defaultStoreSettings, type StoreSettings } from './settings.ts';

export interface StoreDependencies {
  logger: Logger;
  settings?: Partial<StoreSettings>;
  /** Told of every attempt, retries included; `code` is `ok` or one of a bounded set. */
  onCall?: CallDependencies['onCall'];
  random?: () => number;
  monotonic?: () => number;
  /** Name resolution, for tests. */
  lookup?: Lookup;
}

export class StoreProvider {
  readonly #clients: Clients;
  readonly #calls: CallDependencies;

  constructor(deps: StoreDependencies) {
    const settings = { ...defaultStoreSettings, ...deps.settings };
    const monotonic = deps.monotonic ?? (() => performance.now());
    const onCall = deps.onCall ?? (() => undefined);
    this.#calls = {
      settings,
      monotonic,
      random: deps.random ?? Math.random,
      onCall: (operation, code, seconds) => {
        if (code !== 'ok') deps.logger.debug('object store call failed', { operation, code, seconds });
        onCall(operation, code, seconds);
      },
    };
    this.#clients = new Clients({ settings, monotonic, lookup: deps.lookup });
  }

  /** Opens no connection yet. Stores of equal connections share sockets; a store stays usable for ever. */
  open(connection: S3Connection): ObjectStore {
    if (connection.endpoint !== undefined) {
      const refusal = refuseUrl(connection.endpoint, this.#calls.settings);
      if (refusal !== undefined) {
        const message = `endpoint of bucket ${connection.bucket}: ${refusal.message}`;
        throw new StoreError('InvalidRequest', connection.bucket, undefined, message);
      }
    }
    return new S3Store(connection, this.#clients, this.#calls);
  }

  /** Clients with sockets now. */
  get openClients(): number {
    return this.#clients.open;
  }

  closeIdle(): void {
    this.#clients.closeIdle();
  }

  close(): void {
    this.#clients.close();
  }
}

/** A store with clients of its own, for one-off use. */
export function createS3Store(connection: S3Connection, deps: StoreDependencies): ObjectStore {
  return new StoreProvider(deps).open(connection);
}
