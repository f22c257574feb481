/**
 * End-to-end tests kill, freeze and race real processes on machines that others use as well. A test that fails is played
 * once more; the first failure is printed all the same, so that it is seen and can be looked into.
 */
import { jest } from '@jest/globals';

jest.retryTimes(1, { logErrorsBeforeRetry: true });
