import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { refuseAddress, refuseUrl } from './address-rules.ts';

const strict = { allowLoopback: false };
const local = { allowLoopback: true };

describe('refuses, in whatever spelling,', () => {
  test.each([
    ['the metadata address', 'http://169.254.169.254/', 'LinkLocal'],
    ['its decimal form', 'http://2852039166/', 'LinkLocal'],
    ['its hexadecimal form', 'http://0xa9fea9fe/', 'LinkLocal'],
    ['its octal form', 'http://0251.0376.0251.0376/', 'LinkLocal'],
    ['its short form', 'http://169.16689662/', 'LinkLocal'],
    ['its full-width form', 'http://１６９.254.169.254/', 'LinkLocal'],
    ['the container credentials address', 'http://169.254.170.2/', 'LinkLocal'],
    ['its IPv4-mapped form', 'http://[::ffff:169.254.169.254]/', 'LinkLocal'],
    ['its IPv4-mapped form in hexadecimal', 'http://[::ffff:a9fe:a9fe]/', 'LinkLocal'],
    ['its IPv4-translated form', 'http://[::ffff:0:a9fe:a9fe]/', 'LinkLocal'],
    ['its IPv4-compatible form', 'http://[::169.254.169.254]/', 'LinkLocal'],
    ['its NAT64 form', 'http://[64:ff9b::169.254.169.254]/', 'LinkLocal'],
    ['its 6to4 form', 'http://[2002:a9fe:a9fe::1]/', 'LinkLocal'],
    ['a link-local IPv6 address', 'http://[fe80::1]:9000/', 'LinkLocal'],
    ['the end of the link-local IPv6 range', 'http://[febf::1]/', 'LinkLocal'],
    ['the metadata address of AWS over IPv6', 'http://[fd00:ec2::254]/', 'Metadata'],
    ['the pod identity address of AWS over IPv6', 'http://[fd00:ec2::23]/', 'Metadata'],
    ['the metadata address of GCP over IPv6', 'http://[fd20:ce::254]/', 'Metadata'],
    ['the metadata address of Alibaba Cloud', 'http://100.100.100.200/', 'Metadata'],
    ['the wire server of Azure', 'http://168.63.129.16/', 'Metadata'],
    ['the unspecified address', 'http://0.0.0.0:9000/', 'Unspecified'],
    ['the unspecified address as one zero', 'http://0/', 'Unspecified'],
    ['the unspecified IPv6 address', 'http://[::]:9000/', 'Unspecified'],
    ['a multicast address', 'http://224.0.0.1/', 'Multicast'],
    ['the broadcast address', 'http://255.255.255.255/', 'Multicast'],
    ['a multicast IPv6 address', 'http://[ff02::1]/', 'Multicast'],
    ['another scheme', 'file:///etc/passwd', 'InvalidUrl'],
    ['no scheme', 's3.example.com', 'InvalidUrl'],
    ['nothing', '', 'InvalidUrl'],
    ['credentials in the url', 'https://user:secret@s3.example.com', 'InvalidUrl'],
  ] as const)('%s', (_name, url, code) => {
    const refusal = refuseUrl(url, local);
    expect(refusal?.code).toBe(code);
    expect(refusal?.message).not.toContain('secret@');
  });
});

const LOOPBACK = [
  'http://127.0.0.1:9000',
  'http://127.1',
  'http://0x7f000001',
  'http://127.255.255.254',
  'http://localhost:9000',
  'http://LOCALHOST.',
  'http://s3.localhost',
  'http://[::1]:9000',
  'http://[::ffff:127.0.0.1]',
];

test.each(LOOPBACK)('allows loopback %s only with the flag', (url) => {
  expect(refuseUrl(url, strict)?.code).toBe('Loopback');
  expect(refuseUrl(url, strict)?.message).toContain('--allow-loopback');
  expect(refuseUrl(url, local)).toBeUndefined();
});

test.each([
  'https://s3.eu-west-1.amazonaws.com',
  'http://minio.storage.svc:9000',
  'http://10.0.0.7:8000',
  'http://192.168.1.1',
  'http://172.16.0.1',
  'http://192.0.2.10:8000',
  'http://169.253.255.255',
  'http://169.255.0.0',
  'http://[fd12:3456::1]:9000',
  'http://[2001:db8::1]',
  'http://[fec0::1]',
  'http://[::ffff:10.0.0.1]',
  'http://169.254.169.254.example.com',
])('allows %s', (url) => {
  expect(refuseUrl(url, strict)).toBeUndefined();
});

test.each([
  ['fe80::1%eth0', 'LinkLocal'],
  ['169.254.169.254', 'LinkLocal'],
  ['::ffff:169.254.169.254', 'LinkLocal'],
  ['::1', 'Loopback'],
  ['not-an-address', 'InvalidUrl'],
  ['', 'InvalidUrl'],
] as const)('judges the answer %s of DNS', (address, code) => {
  expect(refuseAddress(address, strict)?.code).toBe(code);
});

test('refuses exactly 169.254.0.0/16 as link-local among all IPv4 addresses, in each of its spellings', () => {
  fc.assert(
    fc.property(fc.ipV4(), (address) => {
      const linkLocal = address.startsWith('169.254.');
      const number = address.split('.').reduce((sum, part) => sum * 256 + Number(part), 0);
      for (const spelling of [address, String(number), `0x${number.toString(16)}`, `[::ffff:${address}]`]) {
        expect(refuseUrl(`http://${spelling}/`, local)?.code === 'LinkLocal').toBe(linkLocal);
      }
    }),
    { examples: [['169.254.0.0'], ['169.254.255.255'], ['169.253.255.255'], ['169.255.0.0']] },
  );
});

test('never throws, whatever the text', () => {
  fc.assert(
    fc.property(fc.oneof(fc.string(), fc.ipV6(), fc.webUrl()), (text) => {
      refuseUrl(text, strict);
      refuseAddress(text, strict);
    }),
  );
});
