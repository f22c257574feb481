# What a person runs. Everything is local to this folder; long steps say what they do and for how long.
.DEFAULT_GOAL := help
SHELL := /bin/sh

NODE := node_modules/.bin/node --disable-warning=ExperimentalWarning
JEST := NODE_OPTIONS="--experimental-vm-modules --disable-warning=ExperimentalWarning" node_modules/.bin/node node_modules/jest/bin/jest.js
INSTALLED := node_modules/.package-lock.json

export ENGINE_URL

.PHONY: help
help: ## Show this help
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(INSTALLED): package-lock.json
	@hack/install.sh

.PHONY: install
install: $(INSTALLED)

.PHONY: demo
demo: install ## See one batch job go through real Kubernetes, Redis and S3 on this machine
	@$(NODE) hack/demo/demo.ts

.PHONY: stack
stack: install ## Start the same parts and keep them running (ENGINE_URL=http://… for an engine of your own)
	@$(NODE) hack/commands/stack.ts

.PHONY: stack-down
stack-down: install ## Stop what "make stack" started
	@$(NODE) hack/commands/stack-down.ts

.PHONY: parts
parts: install ## Build the local Kubernetes, etcd and S3 server into .cache/bin
	@$(NODE) hack/build-parts.ts

.PHONY: test
test: parts ## Run all tests, unit to end-to-end
	@mkdir -p .cache
	@$(JEST) --selectProjects unit e2e --json --outputFile=.cache/test-results.json; tests=$$?; \
	$(MAKE) --no-print-directory e2e-service || tests=$$?; exit $$tests

.PHONY: e2e-service
e2e-service: parts ## Run the tests of target.service alone, in a network namespace
	@e2e/netns/in-namespace.sh env $(JEST) --config jest.netns.config.js --json --outputFile=.cache/service-test-results.json

.PHONY: unit
unit: install ## Run the tests that need no cluster
	@$(JEST) --selectProjects unit

.PHONY: types
types: install ## Check types
	@$(NODE) node_modules/typescript/bin/tsc --noEmit

.PHONY: lint
lint: install ## Check style and formatting
	@$(NODE) node_modules/eslint/bin/eslint.js .
	@$(NODE) node_modules/prettier/bin/prettier.cjs --check --log-level warn .

.PHONY: floors
floors: install ## Check that no file imports from a floor above it
	@$(NODE) node_modules/dependency-cruiser/bin/dependency-cruiser.mjs --config .dependency-cruiser.cjs src e2e hack

.PHONY: verify
verify: install ## Check that generated files are what the sources generate
	@$(NODE) hack/verify-generated.ts

.PHONY: faults
faults: parts ## Break everything at every moment (about an hour) and write the table of docs/reliability.md
	@TIDEGATE_FAULTS=full $(JEST) --selectProjects e2e --testPathPatterns e2e/faults.test.ts
	@$(NODE) hack/commands/reliability-table.ts

.PHONY: bench
bench: parts ## Run every benchmark in short and print the table (docs/benchmarks.md has the long runs)
	@$(NODE) hack/bench/short.ts

.PHONY: kind
kind: ## Run Tidegate in a kind cluster (needs Docker)
	@hack/kind.sh

.PHONY: e2e-vllm
e2e-vllm: parts ## Acceptance on a real vLLM for the CPU (installs 6 GB under .cache)
	@$(JEST) --config jest.vllm.config.js --runInBand
