/** Durations that the end-to-end tests shorten, so that waiting out a lease takes seconds. */
import type { Settings } from '../../hack/stack/tidegate.ts';

export const testSettings: Settings = {};
