/**
 * The floors, bottom to top: api → pure (priority headroom routing batch) → adapters (kube queue storage
 * engine observability) → roles (operator worker gateway sim) → main.
 * A file imports only from its own room and from floors below; adapters do not import each other, except
 * observability; pure rooms do no I/O.
 */
const pure = '(priority|headroom|routing|batch)';
const adapters = '(kube|queue|storage|engine|observability)';
const roles = '(operator|worker|gateway|sim)';

/** @type {import('dependency-cruiser').IConfiguration} */
module.exports = {
  forbidden: [
    { name: 'no-circular', severity: 'error', from: {}, to: { circular: true } },
    { name: 'no-unresolvable', severity: 'error', from: {}, to: { couldNotResolve: true } },
    {
      name: 'api-is-the-ground',
      severity: 'error',
      from: { path: '^src/api/' },
      to: { path: '^src/(?!api/)' },
    },
    {
      name: 'pure-above-api-only',
      severity: 'error',
      from: { path: `^src/${pure}/` },
      to: { path: '^src/', pathNot: ['^src/api/', `^src/$1/`] },
    },
    {
      name: 'pure-does-no-io',
      severity: 'error',
      from: { path: `^src/(api|priority|headroom|routing|batch)/`, pathNot: '\\.test\\.ts$' },
      to: {
        dependencyTypes: ['core'],
        pathNot: '^(node:)?(buffer|crypto|zlib|stream|util|string_decoder)(/|$)',
      },
    },
    {
      name: 'pure-has-no-clients',
      severity: 'error',
      from: { path: `^src/(api|priority|headroom|routing|batch)/`, pathNot: '\\.test\\.ts$' },
      to: { path: 'node_modules/(undici|ioredis|bullmq|@aws-sdk|@kubernetes|winston|prom-client)' },
    },
    {
      name: 'adapters-stay-apart',
      severity: 'error',
      from: { path: `^src/${adapters}/` },
      to: { path: '^src/', pathNot: [`^src/(api|observability)/`, `^src/${pure}/`, `^src/$1/`] },
    },
    {
      name: 'roles-stay-apart',
      severity: 'error',
      from: { path: `^src/${roles}/` },
      to: { path: [`^src/${roles}/`, '^src/main'], pathNot: `^src/$1/` },
    },
    {
      name: 'client-node-behind-kube',
      severity: 'error',
      from: { path: '^src/', pathNot: '^src/kube/' },
      to: { path: 'node_modules/@kubernetes' },
    },
    {
      name: 'src-knows-no-tests',
      severity: 'error',
      from: { path: '^src/', pathNot: '\\.test\\.ts$' },
      to: { path: '^(e2e|hack)/|\\.test\\.ts$' },
    },
    {
      name: 'nothing-undeclared',
      severity: 'error',
      from: { path: '^src/', pathNot: '\\.test\\.ts$' },
      to: { dependencyTypes: ['npm-dev', 'npm-no-pkg', 'npm-unknown'] },
    },
  ],
  options: {
    doNotFollow: { path: 'node_modules' },
    tsConfig: { fileName: 'tsconfig.json' },
    tsPreCompilationDeps: true,
    enhancedResolveOptions: {
      exportsFields: ['exports'],
      conditionNames: ['import', 'require', 'node', 'default', 'types'],
      extensions: ['.ts', '.js', '.json'],
    },
  },
};
