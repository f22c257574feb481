/** How a person likes to see a job run: bar, counts, rate, time left, state and reason. Pure: text out. */

export interface ProgressView {
  state: string;
  message: string;
  total: number;
  completed: number;
  /** Lines with an error record: failed, expired and cancelled. */
  failed: number;
  linesPerSecond: number | undefined;
  secondsLeft: number | undefined;
}

const EIGHTHS = ['', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/** A bar of `width` cells, drawn in eighths of a cell. */
export function bar(share: number, width: number): string {
  const eighths = Math.round(Math.min(1, Math.max(0, share)) * width * 8);
  const full = '█'.repeat(Math.floor(eighths / 8));
  const rest = EIGHTHS[eighths % 8] ?? '';
  return (full + rest).padEnd(width, '░');
}

export function progressLine(view: ProgressView, barWidth: number): string {
  const { total, completed, failed } = view;
  const ended = completed + failed;
  const share = total === 0 ? 0 : ended / total;
  const parts = [
    `${bar(share, barWidth)} ${String(Math.floor(share * 100)).padStart(3)} %`,
    total === 0 ? '–' : `${grouped(ended)}/${grouped(total)} lines`,
    ...(failed > 0 ? [`${grouped(failed)} in errors`] : []),
    ...(view.linesPerSecond === undefined ? [] : [`${grouped(Math.round(view.linesPerSecond))} lines/s`]),
    ...(view.secondsLeft === undefined ? [] : [`${inWords(view.secondsLeft)} left`]),
  ];
  return parts.join('  ');
}

/** The state with its reason, cut to one line of `width` columns. */
export function stateLine(view: ProgressView, width: number): string {
  const text = view.message === '' ? view.state : `${view.state}: ${view.message}`;
  return text.length <= width ? text : `${text.slice(0, width - 1)}…`;
}

export const grouped = (n: number): string => n.toLocaleString('en-US');

export function inWords(seconds: number): string {
  const whole = Math.max(0, Math.ceil(seconds));
  if (whole < 60) return `${whole} s`;
  return `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

/** Rate over the last samples, so that one late reading does not make it jump. */
export class Rate {
  readonly #samples: { at: number; value: number }[] = [];
  readonly #windowMilliseconds: number;

  constructor(windowMilliseconds: number) {
    this.#windowMilliseconds = windowMilliseconds;
  }

  /** Units a second, or undefined while there is nothing to compare with. */
  add(at: number, value: number): number | undefined {
    const last = this.#samples.at(-1);
    // Time that passed before the first step says nothing about how fast the steps come.
    if (last !== undefined && this.#samples.length === 1 && value === last.value) last.at = at;
    else if (last === undefined || value !== last.value) this.#samples.push({ at, value });
    while (this.#samples.length > 2 && at - this.#samples[1]!.at > this.#windowMilliseconds) {
      this.#samples.shift();
    }
    const [first] = this.#samples;
    const newest = this.#samples.at(-1);
    if (first === undefined || newest === undefined || newest.at === first.at) return undefined;
    return ((newest.value - first.value) / (newest.at - first.at)) * 1000;
  }
}
