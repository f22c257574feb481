/**
 * HTTP agents that connect to allowed addresses only. The rule is applied to the address that is really connected
 * to: a name that passed an earlier check may resolve to another address the next time.
 *
 * The connect timeout lives here too and not in the SDK's handler, whose timer also runs while a request waits for
 * a free socket, so that a busy client would report healthy endpoints as unreachable.
 */
import { lookup as systemLookup, type LookupAddress, type LookupOptions } from 'node:dns';
import { Agent as HttpAgent, type AgentOptions, type ClientRequestArgs } from 'node:http';
import { Agent as HttpsAgent } from 'node:https';
import { isIP, Socket } from 'node:net';
import { refuseAddress, type AddressPolicy } from '../api/address-rules.ts';

/** The connection was refused by the rule of address-rules.ts, before any packet was sent. */
export class AddressRefused extends Error {
  readonly code = 'AddressRefused';
  constructor(host: string, why: string) {
    super(`${host}: ${why}`);
    this.name = 'AddressRefused';
  }
}

type LookupCallback = (
  error: NodeJS.ErrnoException | null,
  address: string | LookupAddress[],
  family?: number,
) => void;
export type Lookup = (host: string, options: LookupOptions, callback: LookupCallback) => void;

export interface GuardOptions extends AddressPolicy {
  maxSockets: number;
  connectTimeoutMilliseconds: number;
  /** PEM; replaces the system's certificate authorities. */
  ca?: string | undefined;
  lookup?: Lookup;
}

/** A `lookup` for net.connect that fails when any address of the name is refused. */
export function guardedLookup(policy: AddressPolicy, lookup: Lookup = systemLookup): Lookup {
  return (host, options, callback) => {
    lookup(host, options, (error, address, family) => {
      if (error !== null) {
        callback(error, address, family);
        return;
      }
      const addresses = typeof address === 'string' ? [address] : address.map((each) => each.address);
      for (const each of addresses) {
        const refusal = refuseAddress(each, policy);
        if (refusal !== undefined) {
          callback(new AddressRefused(host, refusal.message), typeof address === 'string' ? '' : [], family);
          return;
        }
      }
      callback(null, address, family);
    });
  };
}

/** Both agents of one client; `destroy` closes their sockets. */
export function guardedAgents(options: GuardOptions): { http: HttpAgent; https: HttpsAgent } {
  const agentOptions: AgentOptions = {
    keepAlive: true,
    maxSockets: options.maxSockets,
    lookup: guardedLookup(options, options.lookup),
  };
  const http = new HttpAgent(agentOptions);
  const https = new HttpsAgent(options.ca === undefined ? agentOptions : { ...agentOptions, ca: options.ca });
  for (const agent of [http, https]) {
    const createConnection: HttpAgent['createConnection'] = agent.createConnection.bind(agent);
    agent.createConnection = (connect, callback) => {
      refuseLiteral(connect, options);
      const socket = createConnection(connect, callback);
      if (socket instanceof Socket) limitConnect(socket, options.connectTimeoutMilliseconds);
      return socket;
    };
  }
  return { http, https };
}

/** `lookup` is not asked when the host is an address already. */
function refuseLiteral(connect: ClientRequestArgs, policy: AddressPolicy): void {
  const host = connect.host ?? '';
  if (isIP(host) === 0) return;
  const refusal = refuseAddress(host, policy);
  if (refusal !== undefined) throw new AddressRefused(host, refusal.message);
}

function limitConnect(socket: Socket, milliseconds: number): void {
  const timer = setTimeout(() => {
    const error = new Error(`no connection within ${milliseconds} ms`);
    socket.destroy(Object.assign(error, { code: 'ETIMEDOUT' }));
  }, milliseconds);
  const clear = (): void => clearTimeout(timer);
  socket.once('connect', clear);
  socket.once('close', clear);
}
