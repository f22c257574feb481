/**
 * Connections to allowed addresses only. The rule of address-rules.ts is applied to the address that is really
 * connected to: a name that passed when the resource was accepted may resolve to another address today.
 */
import { lookup as systemLookup, type LookupAddress, type LookupOptions } from 'node:dns';
import { buildConnector } from 'undici';
import { refuseAddress, refuseUrl, type AddressPolicy } from '../api/address-rules.ts';

export class AddressRefused extends Error {
  readonly code = 'AddressRefused';
  constructor(message: string) {
    super(message);
    this.name = 'AddressRefused';
  }
}

type LookupCallback = (
  error: NodeJS.ErrnoException | null,
  address: string | LookupAddress[],
  family?: number,
) => void;
export type Lookup = (host: string, options: LookupOptions, callback: LookupCallback) => void;

/** A lookup that fails when any address of the name is one Tidegate does not talk to. */
export function guardedLookup(policy: AddressPolicy, lookup: Lookup = systemLookup): Lookup {
  return (host, options, callback) => {
    lookup(host, options, (error, address, family) => {
      const addresses = Array.isArray(address) ? address.map((each) => each.address) : [address];
      const refusal =
        error === null ? addresses.map((each) => refuseAddress(each, policy)).find(Boolean) : undefined;
      if (refusal === undefined) callback(error, address, family);
      else
        callback(new AddressRefused(`${host}: ${refusal.message}`), Array.isArray(address) ? [] : '', family);
    });
  };
}

export interface ConnectorSettings extends AddressPolicy {
  connectTimeoutMilliseconds: number;
  lookup?: Lookup | undefined;
}

/**
 * @param address base address of a replica; its literal address is judged here, since `lookup` is not asked for one.
 * @throws AddressRefused
 */
export function guardedConnector(address: string, settings: ConnectorSettings): buildConnector.connector {
  const refusal = refuseUrl(address, settings);
  if (refusal !== undefined) throw new AddressRefused(refusal.message);
  const options: buildConnector.BuildOptions & { lookup: Lookup } = {
    timeout: settings.connectTimeoutMilliseconds,
    // One request a socket: over HTTP/2 an abort would only reset a stream and leave the socket open.
    allowH2: false,
    lookup: guardedLookup(settings, settings.lookup),
  };
  return buildConnector(options);
}
