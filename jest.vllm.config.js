/** Acceptance on a real vLLM (`make e2e-vllm`): 6 GB of disk and some minutes, hence not part of `make test`. */
import base from './jest.config.js';

const { globalSetup: _setUp, globalTeardown: _tearDown, testMatch: _match, ...shared } = base.projects[1];

export default {
  projects: [
    {
      ...shared,
      displayName: 'vllm',
      testMatch: ['<rootDir>/e2e/vllm/*.test.ts'],
      globalSetup: '<rootDir>/e2e/vllm/vllm-setup.ts',
      globalTeardown: '<rootDir>/e2e/vllm/vllm-teardown.ts',
    },
  ],
};
