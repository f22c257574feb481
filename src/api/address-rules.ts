/**
 * Which network addresses users may make Tidegate talk to. An S3 endpoint and an engine url come from people who
 * may not read the machine's own credentials, so the places where clouds hand those out are refused, in whatever
 * way they are written: dotted, decimal, hexadecimal, or inside an IPv6 address. Names are checked a second time
 * by the adapters, at the moment they resolve, since an answer of DNS may change after any earlier check.
 *
 * Private ranges (10/8, 192.168/16, fc00::/7, …) stay allowed: that is where in-cluster stores and engines live.
 */

export interface AddressPolicy {
  /** Allow 127.0.0.0/8, ::1 and localhost; set for the local stack only. */
  allowLoopback: boolean;
}

export interface AddressRefusal {
  code: 'InvalidUrl' | 'LinkLocal' | 'Metadata' | 'Loopback' | 'Unspecified' | 'Multicast';
  /** What was found and what is allowed. */
  message: string;
}

/** Metadata services outside the link-local ranges: AWS over IPv6, GCP over IPv6, Alibaba, Azure, Oracle. */
const METADATA_V4 = ['100.100.100.200', '168.63.129.16', '192.0.0.192'];
const METADATA_V6: readonly (readonly [network: string, bits: number])[] = [
  ['fd00:ec2::', 32],
  ['fd20:ce::254', 128],
];

/** Prefixes of IPv6 that carry an IPv4 address, and at which byte. */
const EMBEDDED_V4: readonly (readonly [network: string, bits: number, at: number])[] = [
  ['::ffff:0:0', 96, 12],
  ['::ffff:0:0:0', 96, 12],
  ['64:ff9b::', 96, 12],
  ['64:ff9b:1::', 48, 12],
  ['2002::', 16, 2],
  ['::', 96, 12],
];

/**
 * Judges a whole URL, as far as its text tells. A host name passes here and must be judged again by
 * `refuseAddress` once it is resolved.
 * @returns undefined when it is allowed.
 */
export function refuseUrl(url: string, policy: AddressPolicy): AddressRefusal | undefined {
  // The WHATWG parser turns every spelling of an IPv4 address (0x7f.1, 2852039166, 0251.…) into the dotted one.
  const parsed = URL.parse(url);
  if (parsed === null) return invalidUrl('is not a URL; allowed: http:// or https:// with a host');
  if (parsed.protocol !== 'http:' && parsed.protocol !== 'https:')
    return invalidUrl(`has scheme ${parsed.protocol}//; allowed: http:// and https://`);
  if (parsed.username !== '' || parsed.password !== '')
    return invalidUrl('carries a user name or password; credentials belong in a Secret');
  const host = parsed.hostname.replace(/\.$/, '').toLowerCase();
  if (host === 'localhost' || host.endsWith('.localhost')) return loopback(host, policy);
  return isAddress(host) ? refuseAddress(host, policy) : undefined;
}

/**
 * Judges one numeric address, as DNS or a URL gave it (IPv6 with or without brackets and zone).
 * @returns undefined when it is allowed. An address that cannot be read is refused.
 */
export function refuseAddress(address: string, policy: AddressPolicy): AddressRefusal | undefined {
  const bytes = addressBytes(address);
  if (bytes === undefined) return invalidUrl(`names ${JSON.stringify(address)}, which is no IP address`);
  return bytes.length === 4 ? refuseV4(bytes, address, policy) : refuseV6(bytes, address, policy);
}

function refuseV4(bytes: Uint8Array, shown: string, policy: AddressPolicy): AddressRefusal | undefined {
  const [first = 0, second = 0] = bytes;
  if (first === 0) return refusal('Unspecified', `${shown} means "this host"`);
  if (first === 127) return loopback(shown, policy);
  if (first === 169 && second === 254) return refusal('LinkLocal', `${shown} is link-local (169.254.0.0/16)`);
  if (METADATA_V4.includes(bytes.join('.')))
    return refusal('Metadata', `${shown} is a cloud metadata service`);
  if (first >= 224) return refusal('Multicast', `${shown} is a multicast or reserved address`);
  return undefined;
}

function refuseV6(bytes: Uint8Array, shown: string, policy: AddressPolicy): AddressRefusal | undefined {
  if (within(bytes, '::', 128)) return refusal('Unspecified', `${shown} means "this host"`);
  if (within(bytes, '::1', 128)) return loopback(shown, policy);
  if (within(bytes, 'fe80::', 10)) return refusal('LinkLocal', `${shown} is link-local (fe80::/10)`);
  if (within(bytes, 'ff00::', 8)) return refusal('Multicast', `${shown} is a multicast address`);
  for (const [network, bits] of METADATA_V6) {
    if (within(bytes, network, bits)) return refusal('Metadata', `${shown} is a cloud metadata service`);
  }
  for (const [network, bits, at] of EMBEDDED_V4) {
    if (within(bytes, network, bits)) return refuseV4(bytes.subarray(at, at + 4), shown, policy);
  }
  return undefined;
}

const refusal = (code: AddressRefusal['code'], what: string): AddressRefusal => ({
  code,
  message: `address ${what}, which Tidegate never talks to`,
});

const invalidUrl = (what: string): AddressRefusal => ({ code: 'InvalidUrl', message: `the address ${what}` });

function loopback(shown: string, policy: AddressPolicy): AddressRefusal | undefined {
  if (policy.allowLoopback) return undefined;
  return {
    code: 'Loopback',
    message: `address ${shown} is this machine itself, which is allowed only with --allow-loopback`,
  };
}

const isAddress = (host: string): boolean => host.startsWith('[') || /^\d+(\.\d+){3}$/.test(host);

function within(bytes: Uint8Array, network: string, bits: number): boolean {
  const expected = addressBytes(network);
  if (expected === undefined) throw new Error(`not an address: ${network}`);
  for (let bit = 0; bit < bits; bit += 8) {
    const mask = bits - bit >= 8 ? 0xff : 0xff & (0xff << (8 - (bits - bit)));
    const at = bit / 8;
    if (((bytes[at] ?? 0) & mask) !== ((expected[at] ?? 0) & mask)) return false;
  }
  return true;
}

/** 4 or 16 bytes in network order; undefined for anything that is no numeric address. */
function addressBytes(address: string): Uint8Array | undefined {
  const bare = address.replace(/^\[|\]$/g, '').replace(/%.*$/, '');
  // The URL parser knows every valid spelling and writes one; only its canonical forms are read below.
  const host = URL.parse(`http://${bare.includes(':') ? `[${bare}]` : bare}/`)?.hostname;
  if (host === undefined) return undefined;
  if (!host.startsWith('[')) {
    return /^\d+(\.\d+){3}$/.test(host) ? Uint8Array.from(host.split('.'), Number) : undefined;
  }
  const [head = '', tail] = host.slice(1, -1).split('::');
  const left = groups(head);
  const right = tail === undefined ? [] : groups(tail);
  const zeros = new Array<number>(8 - left.length - right.length).fill(0);
  return Uint8Array.from([...left, ...zeros, ...right].flatMap((group) => [group >> 8, group & 0xff]));
}

const groups = (text: string): number[] =>
  text === '' ? [] : text.split(':').map((group) => Number.parseInt(group, 16));
