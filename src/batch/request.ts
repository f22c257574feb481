/** What is sent to the engine: the body as it stands in the line; only an alias in `model` is replaced, in place. */
import { BatchError } from './errors.ts';
import { FieldScanner, textOf } from './json.ts';

const BODY = 0;
const MODEL = 1;

export interface BodySpan {
  /** The value of `body` lies in [start, end) of the line. */
  start: number;
  end: number;
  /** The value of `body.model`; −1 where it is absent. */
  modelStart: number;
  modelEnd: number;
}

/** Where the body of a valid line lies; of duplicate keys the last counts. Undefined where it has none that is an object. */
export function locateBody(line: Uint8Array): BodySpan | undefined {
  const scanner = new FieldScanner([{ key: 'body', slot: BODY, inside: [{ key: 'model', slot: MODEL }] }]);
  const { starts, ends } = scanner;
  if (scanner.scan(line, 0, line.length) < 0) return undefined;
  const start = starts[BODY]!;
  if (start < 0 || line[start] !== 0x7b) return undefined;
  return { start, end: ends[BODY]!, modelStart: starts[MODEL]!, modelEnd: ends[MODEL]! };
}

/**
 * The bytes to send for one line (without its line break), as views to be written one after another.
 * Throws CorruptObject for a line that has no body: the index keeps such lines from running.
 */
export function requestBody(
  line: Uint8Array,
  names: { model: string; aliases: readonly string[] },
): Uint8Array[] {
  const span = locateBody(line);
  if (span === undefined) {
    throw new BatchError('CorruptObject', 'The line that the index names holds no body.');
  }
  const { start, end, modelStart, modelEnd } = span;
  if (modelStart >= 0 && line[modelStart] === 0x22 && names.aliases.length > 0) {
    const model = textOf(line, modelStart, modelEnd);
    if (model !== names.model && names.aliases.includes(model)) {
      return [
        line.subarray(start, modelStart),
        Buffer.from(JSON.stringify(names.model)),
        line.subarray(modelEnd, end),
      ];
    }
  }
  return [line.subarray(start, end)];
}
