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
# Meshes of real processes at once. More than processors may be faster, and then nodes can seem silent to each other.
CLUSTER_JOBS ?= $(JOBS)
# Tests that start processes, and have targets of their own.
APART := $(addprefix --ignore=tests/,browser cluster console simulation spark)
# Otherwise a worker is given an eighth of all tests at first, which are the longest (tests/conftest.py).
CHUNKS := --maxschedchunk 16
# Where tests with a seeded bug are. They test the tests: CI and the night run them, `make test` does not.
BUGS := $(addprefix tests/,simulation broker/takeover admin settings/definitions)
NO_BUGS := -m 'not seeded_bug'
# The slowest tests are listed, so that a new slow one is seen.
DURATIONS := --durations 10 --durations-min 5

PEERS ?= cluster/three.toml
SEEDS ?= 10000
# How often each thing of the pipeline is killed by its tests, at moments drawn from SEED; 20 for the night.
KILLS ?= 1
# Seeds on the compiled build, others than the pure one has.
COMPILED_SEEDS ?= 5
START ?= 0
# The order in which trio runs tasks of unit tests, any number (tests/conftest.py), and how many orders `make orders` tries.
ORDER ?= 0
ORDERS ?= 10
MUTANTS ?= 100
SEED ?= 1
MINUTES ?= 30
NODES ?= 3
PAGE ?= nemesis.html
# Any text: `make console-test` writes the pictures in docs/images.
PICTURES ?=
# Parts of the benchmarks; none means all. `python -m benchmarks.run --list` names them.
PART ?=
WORKLOAD ?= queue
# Any text: install the newest versions that pyproject.toml allows, not those of .ci/pins.
NEWEST ?=
# Where packages for publishing are put.
DIST ?= dist
# Any text: `make release` tags and pushes.
PUBLISH ?=
# Extras of pyproject.toml that the tests use.
FOR_TESTS := dev,postgres,tokens,avro,cert,django,dramatiq,opentelemetry
CODE := qmq pyspark_qmq tests benchmarks native.py hatch_build.py
# A copy of the checkout in which the hot modules are compiled: in the checkout itself edits would be lost on them.
COMPILED := build/compiled
DIGESTS := -m tests.simulation --seeds 4 --digests | grep -E '^[0-9]+ [0-9a-f]{32}$$'
IN_COMPILED := cd $(COMPILED) && QMQ_FIRST_SEED=300 QMQ_SEEDS=$(COMPILED_SEEDS) $(abspath $(BIN))/python
OBSTACLE := $(BIN)/python -c 'import native; print(native.obstacle() or "")'
# Folders of tests whose modules are compiled or stand on them (native.py), and the one chapter that uses most of these.
OF_COMPILED := model wire broker gateways replication $(addprefix storage/,format log checkpoints fanouts) \
$(addprefix protocols/,$(addsuffix /gateway,amqp beanstalk http) http/websocket) \
cluster/faults/test_ten_thousand_under_kills.py simulation/test_seeds.py
# Tests that are the same run on both builds: of files that are no program, of work counted in steps of the interpreter
# or with smaller constants, and of rules and codecs that are not compiled (native.py), nor use what is.
OF_TEXT := configuration.py docs.py imports.py migration.py path_of_send.py pins.py recipes.py vocabulary.py weight.py \
wiring.py
INTERPRETED := tests/broker/test_growth.py tests/wire/test_fuzz.py tests/broker/queues/dispatch/test_expiry.py \
$(addprefix tests/broker/takeover/test_leases.py::test_,two_nodes_never_serve nothing_forbidden long_histories \
a_rule_that_is_broken)
# First in a recipe: says at its end how long it took.
TIMED = trap 'echo "$@: $$SECONDS s"' EXIT;
BEGAN := $(shell date +%s)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where it is set, each worker, and each of some hundred nodes that tests start, compiles all its modules again: minutes.
unexport PYTHONDONTWRITEBYTECODE
# With both, a unit test does the same thing each time. Other stages keep the random order of sets.
unit quick bugs-test: export QMQ_ORDER := $(ORDER)
unit quick bugs-test: export PYTHONHASHSEED := $(ORDER)

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: venv
venv: $(VENV)/.installed ## Make .venv with everything that tests need

# What nodes need, and no more: `make mesh` is the first command of a newcomer. Whatever is installed is printed.
# $(call install,LEVELS,EXTRAS): the versions of .ci/pins, which were tested together, by their hashes; with NEWEST=1 the
# newest that pyproject.toml allows.
PIP := $(BIN)/python -m pip install --progress-bar off
pinned = $(PIP) --require-hashes $(patsubst %,--requirement .ci/pins/%.txt,$(1)) && QMQ_BUILD=pure $(PIP) --no-deps --no-build-isolation --editable .
newest = QMQ_BUILD=pure $(PIP) --upgrade --editable '.$(2)'
install = { $(if $(NEWEST),$(newest),$(pinned)); }
SHOWN = sed -n 's/^Collecting \([A-Za-z0-9_.-]*\).*/  \1/p'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "QMQ needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments here. Install its venv package (Debian, Ubuntu: apt install python3-venv) and try again." >&2; exit 1; }
	@echo "making $(VENV) …"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.mesh: pyproject.toml .ci/pins/node.txt | $(BIN)/python
	@echo "installing what a node needs in $(VENV): about 30 packages, less than a minute …"
	@$(call install,node,) | $(SHOWN)
	@touch $@

$(VENV)/.installed: pyproject.toml .ci/pins/node.txt .ci/pins/tests.txt | $(BIN)/python
	@echo "installing what tests need in $(VENV): about 100 packages, a few minutes …"
	@$(call install,node tests,[$(FOR_TESTS)]) | $(SHOWN)
	@touch $(VENV)/.mesh $@

.PHONY: mesh
mesh: $(VENV)/.mesh ## Start three nodes here, show their live state; Ctrl-C stops all (PEERS=file)
	@$(BIN)/qmq mesh up $(PEERS)

.PHONY: test
test: ## Check and test everything, on the pure build; prints what each stage takes
	@$(MAKE) --no-print-directory style unit
	@$(MAKE) --no-print-directory --jobs 2 cluster-test beside-cluster
	@echo "$@: $$(($$(date +%s) - $(BEGAN))) s"

.PHONY: check
check: ## Before a commit: style, types, names, imports, and the unit tests that are quick
	@$(MAKE) --no-print-directory --jobs 2 style types quick
	@echo "$@: $$(($$(date +%s) - $(BEGAN))) s"

.PHONY: quick
quick: venv
	@$(TIMED) $(PYTEST) -n $(JOBS) $(CHUNKS) $(DURATIONS) $(NO_BUGS) --quick tests

.PHONY: unit
unit: venv ## Tests of every module, without processes and long simulations
	@$(TIMED) $(PYTEST) -n $(JOBS) $(CHUNKS) $(DURATIONS) $(NO_BUGS) $(APART) tests

.PHONY: orders
orders: ## The unit tests in the ORDERS orders of tasks that follow START; `make unit ORDER=N` runs one of them again
	@failed=; for order in $$(seq $$(($(START) + 1)) $$(($(START) + $(ORDERS)))); do \
		echo "order $$order"; $(MAKE) --no-print-directory unit ORDER=$$order || failed+=" $$order"; \
	done; [ -z "$$failed" ] || { echo "failed in orders$$failed"; exit 1; }

.PHONY: simulation
simulation: venv ## Whole nodes on a virtual clock, the seeds of every commit
	@$(TIMED) $(PYTEST) -n $(JOBS) --maxschedchunk 1 $(DURATIONS) $(NO_BUGS) tests/simulation

.PHONY: bugs-test
bugs-test: venv ## Seeded bugs: each must be found by a seed, or by the test that it names
	@$(TIMED) $(PYTEST) -n $(JOBS) --maxschedchunk 1 $(DURATIONS) -m seeded_bug $(BUGS)

# A file is a chapter with a mesh of its own, so each is run by one worker.
.PHONY: cluster-test
cluster-test: venv ## Real processes on loopback with stock clients, kills and network faults
	@$(TIMED) $(PYTEST) -n $(CLUSTER_JOBS) --dist loadfile --no-loadscope-reorder $(DURATIONS) tests/cluster

$(VENV)/.spark: $(VENV)/.installed .ci/pins/spark.txt
	@echo "adding Spark to $(VENV) (about 1 GB) …"
	@$(call install,node tests spark,[$(FOR_TESTS),archive,iceberg,protobuf,spark,readers]) >/dev/null
	@touch $@

.PHONY: spark-test
spark-test: $(VENV)/.spark ## The data pipeline, on a Spark of its own (KILLS=1 SEED=1; needs Java 17 or newer)
	@command -v java >/dev/null || { echo "Spark needs a Java runtime, 17 or newer (Debian, Ubuntu: apt install default-jre-headless)." >&2; exit 1; }
	@KILLS=$(KILLS) SEED=$(SEED) $(PYTEST) --timeout 600 tests/spark

# Chromium is a package of the system; what its pages load is in build/browser.
$(VENV)/.browser: $(VENV)/.installed .ci/pins/browser.txt tests/browser/package-lock.json
	@command -v chromium >/dev/null || [ "$$(id -u)" != 0 ] || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; }
	@$(call install,node tests browser,[$(FOR_TESTS),browser]) >/dev/null
	@mkdir -p build/browser && cp tests/browser/package*.json build/browser
	@npm ci --prefix build/browser --silent --ignore-scripts --omit=optional || echo "npm has not brought the STOMP clients of browsers: their tests are skipped."
	@touch $@

.PHONY: browser-test
browser-test: $(VENV)/.browser ## Pages in Chromium against real nodes (installs Chromium if run as root; needs npm)
	@$(TIMED) $(PYTEST) $(DURATIONS) tests/browser

# axe-core looks for what keeps people with a screen reader or a keyboard out; it is a package of npm.
$(VENV)/.console: $(VENV)/.browser tests/console/package.json
	@npm install --silent --no-audit --no-fund --no-package-lock --prefix tests/console || echo "npm has not brought axe-core: its test is skipped."
	@touch $@

.PHONY: console-test
console-test: $(VENV)/.console ## The console in a real browser, on real nodes (needs Chromium and npm; PICTURES=1 writes those of the docs)
	@$(TIMED) QMQ_PICTURES=$(PICTURES) $(PYTEST) --timeout 300 $(DURATIONS) tests/console

.PHONY: simulate
simulate: venv ## Many seeds, for hours (SEEDS=10000 START=0 KEEP=file)
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --start $(START) --jobs $(JOBS) $(if $(KEEP),--keep $(KEEP))

.PHONY: plants
plants: venv ## Check that tests find every seeded bug, for hours
	@$(BIN)/python -m tests.simulation --plants --seeds 500

.PHONY: mutants
mutants: venv ## Draw small changes of the product and list those that no test notices, for hours (MUTANTS=100 SEED=1)
	@$(BIN)/python -m tests.mutation --count $(MUTANTS) --seed $(SEED) --jobs $(JOBS)

.PHONY: nemesis
nemesis: venv ## Run real nodes under faults and write a report (MINUTES=30 NODES=3 PAGE=nemesis.html)
	@$(BIN)/python -m tests.nemesis --minutes $(MINUTES) --nodes $(NODES) --page $(PAGE)

.PHONY: bench
bench: venv ## Measure on this machine, write docs/benchmarks.md and growth.md (PART="topic queue"; all: an hour)
	@$(BIN)/python -m benchmarks.run $(PART)

# Not made anew when only the pages are younger than the copy: each part writes them.
.PHONY: bench-compiled
bench-compiled: venv ## The same on the compiled build, for the same pages
	@test -e $(COMPILED)/.made || $(MAKE) --no-print-directory compiled
	@cd $(COMPILED) && QMQ_BENCH_DOCS=$(CURDIR)/docs $(abspath $(BIN))/python -m benchmarks.run $(PART)

.PHONY: profile
profile: venv ## Where a node's time goes under one workload of qmq bench (WORKLOAD="queue --memory")
	@$(BIN)/python -m benchmarks.profile $(WORKLOAD)

$(VENV)/.docs: $(VENV)/.installed .ci/pins/docs.txt
	@echo "adding Sphinx to $(VENV) …"
	@$(call install,node tests docs,[$(FOR_TESTS),docs]) >/dev/null
	@touch $@

.PHONY: docs
docs: $(VENV)/.docs ## Build a site of the pages in build/docs; a warning is an error
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -c docs -d build/doctrees . build/docs
	@echo "build/docs/index.html"

.PHONY: style
style: venv ## Lint and format check
	@$(TIMED) $(BIN)/ruff check --quiet $(CODE) docs/*.py; $(BIN)/ruff format --quiet --check $(CODE) docs/*.py

.PHONY: weigh
weigh: venv ## What each room of the product weighs, and what it may
	@$(BIN)/python -m tests.test_weight

.PHONY: types
types: venv ## Strict mypy on the package and the benchmarks
	@$(TIMED) $(BIN)/mypy --no-error-summary qmq benchmarks

$(VENV)/.pyright: $(VENV)/.installed .ci/pins/pyright.txt
	@echo "adding pyright to $(VENV) (80 MB, 280 MB unpacked) …"
	@$(call install,node tests pyright,[$(FOR_TESTS),pyright]) >/dev/null
	@touch $@

.PHONY: pyright
pyright: $(VENV)/.pyright ## What pyright says of the types of the Python client, and of the programs of its page
	@$(TIMED) $(PYTEST) tests/client/test_pyright.py

# Only the package and native.py decide what is compiled; a change of a test or a page does not compile it again.
$(COMPILED)/.compiled: native.py $(shell find qmq -type f -not -name '*.pyc') $(VENV)/.installed
	@echo "compiling the hot modules in $(COMPILED) (minutes) …"
	@rm -rf $(COMPILED) && mkdir -p $(COMPILED)
	@cp -a qmq $(COMPILED)
	@$(BIN)/python native.py $(COMPILED) >$(COMPILED)/compile.log 2>&1 || { tail -n 20 $(COMPILED)/compile.log >&2; exit 1; }
	@touch $@

BESIDE_QMQ := $(filter-out qmq,$(CODE)) docs cluster README.md CHANGELOG.md Makefile pyproject.toml
$(COMPILED)/.made: $(COMPILED)/.compiled $(shell find $(BESIDE_QMQ) -type f -not -name '*.pyc')
	@rm -rf $(addprefix $(COMPILED)/,$(BESIDE_QMQ))
	@cp -a $(BESIDE_QMQ) $(COMPILED)
	@touch $@

.PHONY: compiled
compiled: $(COMPILED)/.made ## Compile the hot modules in build/compiled, and say how to run that
	@$(IN_COMPILED) -m qmq --version
	@echo "for example: cd $(COMPILED) && $(abspath $(BIN))/python -m qmq serve"

.PHONY: compiled-test
compiled-test: venv ## The tests of what is compiled, on the compiled build; says so where it cannot be made
	@why=$$($(OBSTACLE)); \
	if [ "$$why" ]; then echo "the compiled build is not tested: $$why" >&2; else $(MAKE) --no-print-directory compiled-checks; fi

# Nodes of the cluster tests wait for each other much of the time, and real time means nothing to what runs here.
.PHONY: beside-cluster
beside-cluster: venv
	@nice -n 19 $(MAKE) --no-print-directory types simulation

TEST_COMPILED = $(IN_COMPILED) -m pytest -q -n $(JOBS) $(DURATIONS) -k 'not postgres' $(addprefix --deselect ,$(INTERPRETED)) \
$(wildcard tests/storage/test_*.py) $(addprefix tests/,$(OF_COMPILED))

# The package is an installed wheel, in the environment of BIN (.ci/wheels); COMPILED is a folder without it.
.PHONY: wheel-checks
wheel-checks:
	@rm -rf $(COMPILED) && mkdir -p $(COMPILED) && cp -a $(BESIDE_QMQ) $(COMPILED)
	@$(IN_COMPILED) -c 'from qmq.build import BUILD; assert BUILD == "compiled"'
	@$(TIMED) $(TEST_COMPILED)

.PHONY: compiled-checks
compiled-checks: $(COMPILED)/.made
	@$(IN_COMPILED) -c 'from qmq.build import BUILD; assert BUILD == "compiled"'
	@$(TIMED) $(TEST_COMPILED) $(filter-out $(addprefix tests/test_,$(OF_TEXT)),$(wildcard tests/test_*.py))
	@(trap 'echo "traces: $$SECONDS s"' EXIT; ($(IN_COMPILED) $(DIGESTS)) >$(COMPILED).digests & compiled=$$!; \
	$(BIN)/python $(DIGESTS) >$(COMPILED).pure-digests; wait $$compiled; \
	cmp --silent $(COMPILED).digests $(COMPILED).pure-digests || { echo "the two builds leave different traces" >&2; exit 1; })

$(VENV)/.manifests: $(VENV)/.installed .ci/pins/manifests.txt
	@{ command -v haproxy && command -v promtool; } >/dev/null || [ "$$(id -u)" != 0 ] || { apt-get update -qq && apt-get install -y -qq --no-install-recommends haproxy prometheus >/dev/null; }
	@$(call install,node tests manifests,[$(FOR_TESTS),manifests]) >/dev/null
	@touch $@

.PHONY: deploy-test
deploy-test: $(VENV)/.manifests ## Files that `qmq init` writes, with the schemas of compose and Kubernetes, systemd-analyze, HAProxy and Prometheus
	@$(PYTEST) tests/deploy tests/cluster/pages/test_operators_hour.py

.PHONY: pins
pins: ## Raise the versions in .ci/pins to the newest that pyproject.toml allows, with their hashes
	@$(PYTHON) -m venv build/pin && build/pin/bin/python -m pip install --quiet uv && PATH=$(CURDIR)/build/pin/bin:$$PATH .ci/pin

.PHONY: release
release: ## Build and check a release in dist/, and say what publishing it would do (PUBLISH=1 does it: tag and push)
	@.ci/release $(if $(PUBLISH),--publish)

.PHONY: npm-package
npm-package: ## Pack the client for browsers and Node.js (needs npm; DIST=folder)
	@mkdir -p build/npm $(DIST) && cp LICENSE qmq/protocols/http/qmq.js qmq/protocols/http/npm/* build/npm
	@npm pack --silent --pack-destination $(DIST) ./build/npm

.PHONY: wheels
wheels: ## Build the wheels of a release in dist/ and try each on every Python here (minutes)
	@.ci/wheels

.PHONY: onefile
onefile: venv ## Build dist/qmq.pyz, one executable file for any Python of VERSIONS here, and try it (minutes)
	@PYTHON=$(BIN)/python .ci/onefile

.PHONY: deb
deb: venv ## Build dist/qmq_*.deb for the Python of this Debian, check it with lintian, and as root install and remove it in a copy
	@PYTHON=$(BIN)/python .ci/deb

.PHONY: coverage
coverage: venv ## Line and branch coverage of the unit tests
	@$(BIN)/python -m pip install --quiet 'coverage[toml]>=7'
	@$(BIN)/python -m coverage run --branch --source=qmq -m pytest -q $(APART) tests
	@$(BIN)/python -m coverage report --skip-covered --show-missing

.PHONY: clean
clean: ## Remove what the targets above made
	@rm -rf $(VENV) .mesh .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage build dist
	@find qmq tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
