/** The demo's input: requests as a claims department might send them, a few of them wrong. */

/** Lines that get an error record, to show that nothing else stops. */
export const BAD_LINES = 3;

/** `lines` JSON lines in the format of the OpenAI Batch API; the last quarter has `BAD_LINES` bad ones. */
export function demoInput(lines: number, model: string): string {
  const rows: string[] = [];
  for (let n = 1; n <= lines; n++) rows.push(row(n, model));
  const from = Math.floor(lines * 0.75);
  rows[from] = rows[from]!.replace('"custom_id"', '"custom-id"');
  rows[from + 1] = rows[from + 1]!.replace('/v1/chat/completions', '/v1/embeddings');
  rows[from + 2] = rows[from + 2]!.slice(0, -2);
  return `${rows.join('\n')}\n`;
}

const DAMAGES = [
  'hail on the roof',
  'a burst pipe',
  'a broken windscreen',
  'a fallen tree',
  'a stolen bicycle',
];

function row(n: number, model: string): string {
  const damage = DAMAGES[n % DAMAGES.length];
  return JSON.stringify({
    custom_id: `claim-${String(n).padStart(5, '0')}`,
    method: 'POST',
    url: '/v1/chat/completions',
    body: {
      model,
      max_tokens: 48,
      messages: [
        { role: 'system', content: 'You sum up insurance claims in one sentence.' },
        { role: 'user', content: `Claim ${n}: the insured reports ${damage}. Sum it up.` },
      ],
    },
  });
}
