/** CRC-32 (IEEE), and the CRC of joined parts from the CRCs of the parts, so that no byte is read twice. */
import { crc32 as zlibCrc32 } from 'node:zlib';

/** CRC-32 of the bytes; `before` continues an earlier one. */
export const crc32 = (bytes: Uint8Array, before = 0): number => zlibCrc32(bytes, before);

const POLYNOMIAL = 0xedb88320;

/** Product of two polynomials modulo the CRC polynomial, bits reflected (as zlib's multmodp). */
function multiply(a: number, b: number): number {
  let product = 0;
  let factor = b;
  for (let bit = 0x80000000; bit !== 0; bit >>>= 1) {
    if ((a & bit) !== 0) product ^= factor;
    factor = (factor & 1) !== 0 ? (factor >>> 1) ^ POLYNOMIAL : factor >>> 1;
  }
  return product >>> 0;
}

/** x to the power of 8·bytes, modulo the CRC polynomial. */
function shiftBy(bytes: number): number {
  let result = 0x80000000; // x⁰
  let square = 0x00800000; // x⁸
  for (let rest = bytes; rest > 0; rest = Math.floor(rest / 2)) {
    if (rest % 2 === 1) result = multiply(square, result);
    square = multiply(square, square);
  }
  return result;
}

/** CRC-32 of A followed by B, from both CRCs and the length of B in bytes. */
export const combineCrc32 = (crcA: number, crcB: number, lengthB: number): number =>
  (multiply(shiftBy(lengthB), crcA) ^ crcB) >>> 0;

/** As it stands in manifests: eight lower-case hex digits. */
export const crc32Text = (crc: number): string => crc.toString(16).padStart(8, '0');
