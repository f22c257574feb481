/** Unit tests stand beside their file in src/ and hack/; tests of several rooms stand in e2e/. */
const shared = {
  testEnvironment: 'node',
  extensionsToTreatAsEsm: ['.ts'],
  transform: {
    '\\.ts$': [
      '@swc/jest',
      {
        jsc: { parser: { syntax: 'typescript' }, target: 'es2024' },
        module: { type: 'es6' },
        sourceMaps: 'inline',
      },
    ],
  },
  modulePathIgnorePatterns: ['<rootDir>/dist/', '<rootDir>/.cache/'],
};

export default {
  projects: [
    {
      ...shared,
      displayName: 'unit',
      testMatch: ['<rootDir>/{src,hack}/**/*.test.ts', '<rootDir>/e2e/{checker,harness}/**/*.test.ts'],
    },
    {
      ...shared,
      displayName: 'e2e',
      setupFilesAfterEnv: ['<rootDir>/e2e/harness/retry.ts'],
      testMatch: ['<rootDir>/e2e/*.test.ts'],
      globalSetup: '<rootDir>/e2e/stack-setup.mts',
      globalTeardown: '<rootDir>/e2e/stack-teardown.mts',
    },
  ],
};
