/**
 * SDK clients, one per endpoint, region, credentials and CA, shared by every store that uses them and closed when
 * idle: a worker serves many namespaces, and each client keeps its own sockets and its own view of the clock.
 */
import { S3Client } from '@aws-sdk/client-s3';
import { NodeHttpHandler } from '@smithy/node-http-handler';
import { createHash } from 'node:crypto';
import type { S3Connection } from './contract.ts';
import { guardedAgents, type Lookup } from './guarded-agent.ts';
import type { StoreSettings } from './settings.ts';

export interface ConditionSupport {
  put: boolean;
  complete: boolean;
}

/** What was learned of one bucket through one client. */
export interface BucketFacts {
  /** Some call succeeded: a 404 is then about the key. */
  exists: boolean;
  conditions: Promise<ConditionSupport> | undefined;
}

interface Entry {
  client: S3Client;
  active: number;
  usedAt: number;
  buckets: Map<string, BucketFacts>;
}

/** A client in use; it is not closed before `release`. */
export interface ClientLease {
  client: S3Client;
  facts: BucketFacts;
  release(): void;
}

export interface ClientDependencies {
  settings: StoreSettings;
  monotonic: () => number;
  lookup?: Lookup | undefined;
}

export class Clients {
  readonly #deps: ClientDependencies;
  readonly #entries = new Map<string, Entry>();
  #sweep: NodeJS.Timeout | undefined;

  constructor(deps: ClientDependencies) {
    this.#deps = deps;
  }

  /** Number of open clients, for tests and metrics. */
  get open(): number {
    return this.#entries.size;
  }

  lease(connection: S3Connection, id: string = clientId(connection)): ClientLease {
    let entry = this.#entries.get(id);
    if (entry === undefined) {
      entry = { client: this.#create(connection), active: 0, usedAt: 0, buckets: new Map() };
      this.#entries.set(id, entry);
      this.#sweep ??= setInterval(
        () => this.closeIdle(),
        this.#deps.settings.clientIdleMilliseconds / 2,
      ).unref();
    }
    const held = entry;
    held.active += 1;
    let facts = held.buckets.get(connection.bucket);
    if (facts === undefined) {
      facts = { exists: false, conditions: undefined };
      held.buckets.set(connection.bucket, facts);
    }
    let released = false;
    return {
      client: held.client,
      facts,
      release: () => {
        if (released) return;
        released = true;
        held.active -= 1;
        held.usedAt = this.#deps.monotonic();
      },
    };
  }

  /** Closes clients that nobody uses and nobody used for `clientIdleMilliseconds`. */
  closeIdle(): void {
    const horizon = this.#deps.monotonic() - this.#deps.settings.clientIdleMilliseconds;
    for (const [id, entry] of this.#entries) {
      if (entry.active === 0 && entry.usedAt <= horizon) this.#drop(id, entry);
    }
  }

  /** Closes all, also those in use: their calls fail. */
  close(): void {
    for (const [id, entry] of this.#entries) this.#drop(id, entry);
  }

  #drop(id: string, entry: Entry): void {
    this.#entries.delete(id);
    entry.client.destroy();
    if (this.#entries.size === 0) {
      clearInterval(this.#sweep);
      this.#sweep = undefined;
    }
  }

  #create(connection: S3Connection): S3Client {
    const { settings } = this.#deps;
    const agents = guardedAgents({
      allowLoopback: settings.allowLoopback,
      maxSockets: settings.maxSockets,
      connectTimeoutMilliseconds: settings.connectTimeoutMilliseconds,
      ca: connection.caBundle,
      ...(this.#deps.lookup === undefined ? {} : { lookup: this.#deps.lookup }),
    });
    const custom = connection.endpoint !== undefined;
    const client = new S3Client({
      region: connection.region ?? settings.defaultRegion,
      ...(custom ? { endpoint: connection.endpoint as string } : { followRegionRedirects: true }),
      forcePathStyle: connection.forcePathStyle ?? custom,
      ...(connection.credentials === undefined
        ? {}
        : { credentials: withoutUndefined(connection.credentials) }),
      // Stores other than AWS refuse the SDK's newer checksums, or worse, store their framing (mechanics: R2, RGW, s3rver).
      ...(custom
        ? {
            requestChecksumCalculation: 'WHEN_REQUIRED' as const,
            responseChecksumValidation: 'WHEN_REQUIRED' as const,
          }
        : {}),
      // Waiting for "100 Continue" costs a round trip, and seconds on servers that never send it.
      expectContinueHeader: false,
      requestHandler: new NodeHttpHandler({
        httpAgent: agents.http,
        httpsAgent: agents.https,
        socketTimeout: settings.idleTimeoutMilliseconds,
        // The SDK would warn on the console; requests that wait for a socket are normal here.
        socketAcquisitionWarningTimeout: 2 ** 31 - 1,
      }),
    });
    // Attempts are counted, measured and spaced by retry.ts alone. The name stays: signing is placed behind it.
    const { middlewareStack } = client;
    middlewareStack.remove('retryMiddleware');
    middlewareStack.add((next) => next, {
      name: 'retryMiddleware',
      step: 'finalizeRequest',
      priority: 'high',
    });
    return client;
  }
}

/** Names a client without holding the secret in the clear. */
export function clientId(connection: S3Connection): string {
  const { endpoint, region, forcePathStyle, caBundle, credentials } = connection;
  const parts = [endpoint, region, forcePathStyle, caBundle];
  const secret = [credentials?.accessKeyId, credentials?.secretAccessKey, credentials?.sessionToken];
  return createHash('sha256')
    .update(JSON.stringify([parts, secret].map((list) => list.map((each) => each ?? null))))
    .digest('hex');
}

function withoutUndefined(credentials: NonNullable<S3Connection['credentials']>) {
  const { accessKeyId, secretAccessKey, sessionToken } = credentials;
  return { accessKeyId, secretAccessKey, ...(sessionToken === undefined ? {} : { sessionToken }) };
}
