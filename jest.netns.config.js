/** Tests of `target.service` (`make e2e-service`, part of `make test`): they run in a network namespace of their own. */
import base from './jest.config.js';

const { globalSetup: _setUp, globalTeardown: _tearDown, testMatch: _match, ...shared } = base.projects[1];

export default {
  projects: [
    {
      ...shared,
      displayName: 'netns',
      testMatch: ['<rootDir>/e2e/netns/*.test.ts'],
      globalSetup: '<rootDir>/e2e/netns/netns-setup.mts',
      globalTeardown: '<rootDir>/e2e/stack-teardown.mts',
    },
  ],
};
