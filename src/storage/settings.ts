/** Limits and waits of the object store client. */
export interface StoreSettings {
  /** Sockets per endpoint and set of credentials. */
  maxSockets: number;
  connectTimeoutMilliseconds: number;
  /** A call or a body on which no byte moves this long is given up and tried again. */
  idleTimeoutMilliseconds: number;
  /** Calls made for one request, the first included; bodies: cuts in a row without one new byte. */
  maxAttempts: number;
  /** The n-th pause is random between 0 and min(initial · 2ⁿ, max). */
  initialBackoffMilliseconds: number;
  maxBackoffMilliseconds: number;
  /** Clients not used this long are closed. */
  clientIdleMilliseconds: number;
  /** Where a connection names no region. */
  defaultRegion: string;
  /** Whether endpoints on this machine are allowed: for the local stack only. */
  allowLoopback: boolean;
}

export const defaultStoreSettings: StoreSettings = {
  maxSockets: 200,
  connectTimeoutMilliseconds: 5_000,
  idleTimeoutMilliseconds: 60_000,
  maxAttempts: 5,
  initialBackoffMilliseconds: 100,
  maxBackoffMilliseconds: 5_000,
  clientIdleMilliseconds: 10 * 60_000,
  defaultRegion: 'us-east-1',
  allowLoopback: false,
};
