/** `make stack-down`: stops what `make stack` started. Its files stay until the next start. */
import { join } from 'node:path';
import { endStack } from '../stack/launch.ts';
import { CACHE } from '../stack/paths.ts';

const ended = await endStack(join(CACHE, 'stack'));
console.log(ended ? 'The stack is stopped.' : 'No stack is running.');
