/**
 * What the input says, read without any of Tidegate's code: an oracle that shares a bug with what it judges is none.
 */

export interface InputObject {
  /** The key as the user named it. */
  key: string;
  /** Unpacked. */
  bytes: Buffer;
}

export interface InputLine {
  /** Over the whole job, from 0. */
  ordinal: number;
  key: string;
  /** Physical, from 1, blank lines counted. */
  line: number;
  /** undefined where the line has none that can be read. */
  customId: string | undefined;
  /** True for the second and later lines with one custom_id. */
  duplicate: boolean;
  /** Text of the prompt that the answer must repeat; see `markerOf`. */
  marker: string | undefined;
}

/** Test inputs put one of these into each prompt; the echoing engine repeats it. */
export const markerOf = (job: string, line: number | string): string => `marker:${job}_${line}`;
const MARKER = /marker:[A-Za-z0-9_-]+/g;

/** All markers in a text, in order. */
export const markersIn = (text: string): string[] => text.match(MARKER) ?? [];

/** The non-blank lines of all objects, in order. */
export function inputLines(objects: readonly InputObject[]): InputLine[] {
  const lines: InputLine[] = [];
  const seen = new Set<string>();
  for (const { key, bytes } of objects) {
    let start = 0;
    for (let line = 1; start < bytes.length; line++) {
      const feed = bytes.indexOf(0x0a, start);
      const end = feed === -1 ? bytes.length : feed;
      const text = decode(bytes.subarray(start, end), line === 1);
      start = end + 1;
      if (text !== undefined && /^[\t\r ]*$/.test(text)) continue;
      const customId = text === undefined ? undefined : customIdOf(text);
      // An empty one is refused for being empty, each time.
      const duplicate = customId !== undefined && customId !== '' && seen.has(customId);
      if (customId !== undefined) seen.add(customId);
      const marker = text === undefined ? undefined : markersIn(text)[0];
      lines.push({ ordinal: lines.length, key, line, customId, duplicate, marker });
    }
  }
  return lines;
}

/** undefined: not UTF-8. One BOM at the start of an object is no content. */
function decode(bytes: Uint8Array, first: boolean): string | undefined {
  try {
    const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
    return first ? text.replace(/^\uFEFF/, '') : text;
  } catch {
    return undefined;
  }
}

function customIdOf(text: string): string | undefined {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return undefined;
    const id: unknown = (value as Record<string, unknown>)['custom_id'];
    return typeof id === 'string' ? id : undefined;
  } catch {
    return undefined;
  }
}
