/** Runs `act` on up to `width` items at a time and gives their results in the order of the items. */
export async function* inOrder<A, B>(
  items: Iterable<A>,
  width: number,
  act: (item: A) => Promise<B>,
): AsyncGenerator<B> {
  const running: Promise<B>[] = [];
  for (const item of items) {
    const next = act(item);
    // It may fail long before its turn comes, or its turn never comes; either is not an unhandled rejection.
    next.catch(() => undefined);
    running.push(next);
    if (running.length < width) continue;
    yield await (running.shift() as Promise<B>);
  }
  for (const rest of running) yield await rest;
}
