# Every duty of the project, one short target each. CI calls the same ones (.ci/run).

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -q
# Two workers where tests are many and each is alone; `make JOBS=8 test` on a larger machine.
JOBS ?= 2

PEERS ?= cluster/three.toml
SEEDS ?= 10000
START ?= 0
CODE := qmq tests benchmarks

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: venv
venv: $(VENV)/.installed ## Make .venv with everything that tests need

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "QMQ needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments here. Install its venv package (Debian, Ubuntu: apt install python3-venv) and try again." >&2; exit 1; }
	@echo "making $(VENV) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

.PHONY: mesh
mesh: venv ## Start three nodes here, show their live state; Ctrl-C stops all (PEERS=file)
	@$(BIN)/qmq mesh up $(PEERS)

.PHONY: test
test: style types unit simulation cluster-test ## Check and test everything

.PHONY: unit
unit: venv ## Tests of every module, without processes and long simulations
	@$(PYTEST) -n $(JOBS) --ignore=tests/simulation --ignore=tests/cluster tests

.PHONY: simulation
simulation: venv ## Whole nodes on a virtual clock, the seeds of every commit
	@$(PYTEST) -n $(JOBS) tests/simulation

.PHONY: cluster-test
cluster-test: venv ## Real processes on loopback, stock clients, kills and cuts
	@$(PYTEST) tests/cluster

.PHONY: simulate
simulate: venv ## Many seeds, for the night (SEEDS=10000 START=0)
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --start $(START) --jobs $(JOBS)

.PHONY: bench
bench: venv ## Measure a node on this machine, write docs/benchmarks.md (several minutes)
	@$(BIN)/python -m benchmarks.run

.PHONY: style
style: venv ## Lint and format check
	@$(BIN)/ruff check --quiet $(CODE)
	@$(BIN)/ruff format --quiet --check $(CODE)

.PHONY: types
types: venv ## Strict mypy on the package
	@$(BIN)/mypy --no-error-summary qmq

.PHONY: coverage
coverage: venv ## Line and branch coverage of the unit tests
	@$(BIN)/python -m pip install --quiet 'coverage[toml]>=7'
	@$(BIN)/python -m coverage run --branch --source=qmq -m pytest -q --ignore=tests/simulation --ignore=tests/cluster tests
	@$(BIN)/python -m coverage report --skip-covered --show-missing

.PHONY: clean
clean: ## Remove what the targets above made
	@rm -rf $(VENV) .mesh .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage build dist
	@find qmq tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
