/** Input files for benchmarks: chat lines of a chosen length, ids as people make them. */
import { createWriteStream } from 'node:fs';
import { once } from 'node:events';

export interface Corpus {
  lines: number;
  /** Bytes of a line with its line break; the last argument of each is a prompt filled up to it. */
  lineBytes: number;
}

/** Prose with what prompts have: quotes, line breaks, characters beyond ASCII. */
const PROSE =
  'Summarise the claim below in two sentences. She said: "the café was closed"\\n— and left. ' +
  'Réponds en français si le texte est en français. \\u00e9\\t1,234.50 € ';

export const BENCH_MODEL = 'llama-3-8b';

function line(number: number, lineBytes: number): string {
  const head = `{"custom_id":"request-${number}","method":"POST","url":"/v1/chat/completions","body":{"model":"${BENCH_MODEL}","messages":[{"role":"user","content":"`;
  const tail = '"}],"max_tokens":64}}\n';
  const room = lineBytes - head.length - tail.length;
  if (room < 0)
    throw new Error(`A line needs at least ${head.length + tail.length} bytes; asked for ${lineBytes}`);
  // ASCII only where there is no room for whole phrases, so that no escape is cut.
  const phrases = Math.floor(room / Buffer.byteLength(PROSE.replaceAll('"', '\\"')));
  const text = PROSE.replaceAll('"', '\\"').repeat(phrases);
  return head + text + 'x'.repeat(room - Buffer.byteLength(text)) + tail;
}

/** Writes the file; returns its size in bytes. */
export async function writeCorpus(path: string, { lines, lineBytes }: Corpus): Promise<number> {
  const out = createWriteStream(path);
  let bytes = 0;
  let block: string[] = [];
  let blockBytes = 0;
  for (let number = 0; number < lines; number++) {
    const text = line(number, lineBytes);
    block.push(text);
    blockBytes += lineBytes;
    if (blockBytes >= 1024 * 1024 || number === lines - 1) {
      bytes += blockBytes;
      if (!out.write(block.join(''))) await once(out, 'drain');
      block = [];
      blockBytes = 0;
    }
  }
  out.end();
  await once(out, 'close');
  return bytes;
}
