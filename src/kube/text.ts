/** Longest message kept in a condition or an event. */
export const longestMessageBytes = 1024;

const ellipsis = '…';

/**
 * `text` in at most `limitBytes` of UTF-8, cut between characters and ended with `…` where cut.
 * Truncating twice changes nothing more, so texts that pass through several hands stay equal.
 */
export function truncateUtf8(text: string, limitBytes: number = longestMessageBytes): string {
  if (Buffer.byteLength(text) <= limitBytes) return text;
  const room = limitBytes - Buffer.byteLength(ellipsis);
  // A code unit takes at least one byte, so only this much needs encoding, however long the text is.
  const bytes = Buffer.from(text.slice(0, limitBytes + 1));
  let end = room;
  while (end > 0 && ((bytes[end] ?? 0) & 0xc0) === 0x80) end -= 1;
  return bytes.toString('utf8', 0, end) + ellipsis;
}
