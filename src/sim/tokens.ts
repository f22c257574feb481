/**
 * A tokenizer and a writer without a model: a token is four bytes, and its id is those bytes, so that ids can be
 * turned back into text and a prompt has the same ids however it was sent. Pure and deterministic.
 */

export const BYTES_PER_TOKEN = 4;

export const countTokens = (text: string): number => Math.ceil(Buffer.byteLength(text) / BYTES_PER_TOKEN);

export function tokenize(text: string): number[] {
  const bytes = Buffer.from(text);
  const ids: number[] = [];
  for (let at = 0; at < bytes.length; at += BYTES_PER_TOKEN) {
    ids.push(bytes.readUIntLE(at, Math.min(BYTES_PER_TOKEN, bytes.length - at)));
  }
  return ids;
}

export function detokenize(ids: readonly number[]): string {
  const bytes = Buffer.alloc(ids.length * BYTES_PER_TOKEN);
  ids.forEach((id, index) => bytes.writeUInt32LE(id >>> 0, index * BYTES_PER_TOKEN));
  return bytes.toString().replaceAll('\0', '');
}

/** Each is one token: four bytes with its space. */
const WORDS =
  'sea low far sun ebb run dry wet bay tow net oar sky fog ice fin cod eel ray the and its set day'.split(
    ' ',
  );

/** FNV-1a, 32 bits: where determinism is wanted and nobody attacks. */
export function hashText(text: string, seed = 0): number {
  let hash = (0x811c9dc5 ^ seed) >>> 0;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  return hash >>> 0;
}

/** Words that depend only on the seed. */
export function proseTokens(seed: number, count: number): string[] {
  const tokens: string[] = [];
  let state = seed >>> 0;
  for (let i = 0; i < count; i++) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    tokens.push(`${WORDS[(state >>> 16) % WORDS.length] ?? 'sea'} `);
  }
  return tokens;
}

/** Cuts a text into tokens without tearing a character apart. */
export function textTokens(text: string): string[] {
  const tokens: string[] = [];
  let token = '';
  let bytes = 0;
  for (const character of text) {
    const size = Buffer.byteLength(character);
    if (bytes + size > BYTES_PER_TOKEN && token !== '') {
      tokens.push(token);
      token = '';
      bytes = 0;
    }
    token += character;
    bytes += size;
  }
  if (token !== '') tokens.push(token);
  return tokens;
}

/** What tests put into a prompt to find it again in the answer and in the log of calls. */
export const MARKER = /marker:[A-Za-z0-9_-]+/;
export const markerIn = (text: string): string | undefined => MARKER.exec(text)?.[0];
