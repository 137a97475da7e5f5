# Everything runs from a fresh clone: each target sets up what it needs and reuses it the second time.
# Needed on the machine: make, Python 3.11 to 3.13, Java 17 or 21.

PY := .venv/bin/python
export PYTHONUNBUFFERED := 1
# Without stored bytecode, every Python that a test starts compiles Airflow again: 5 s of processor time instead of 2.
unexport PYTHONDONTWRITEBYTECODE
# Spark's workers and driver run on the same Python, whatever `python3` is on the machine.
export PYSPARK_PYTHON := $(CURDIR)/.venv/bin/python
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/.venv/bin/python
# Servers on this machine are asked without a proxy.
export no_proxy := $(or $(no_proxy),$(NO_PROXY),localhost),127.0.0.1,localhost
export NO_PROXY := $(no_proxy)
# Airflow picks up the checkout's own settings only; see dev/run_airflow.py.
export AIRFLOW_HOME := $(CURDIR)/.cache/airflow
# Tests at a time: two more than there are cores, since the workers of Spark, Airflow and Kafka wait for these.
export PYTEST_XDIST_AUTO_NUM_WORKERS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 2 )))
# Temporary files in memory where there is room.
TESTS := dev/in-memory.sh $(PY) -m pytest
# More arguments for pytest, as in: make test ARGS="-k restore -x"
ARGS ?=

.PHONY: help venv java jars jars-s3a demo demo-upgrade record-demo test-fast test test-packs lint lint-workflows release-check docs format lock sbom fake-databricks soak seal-soak rewind-soak change-soak reset-soak contract slow slow-all stores s3a doctor browser matrix measure-newcomer samples bench bench-page bench-latency airflow env compose-check clean
.DEFAULT_GOAL := help

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' Makefile

demo: java venv jars ## Back up a live stream, lose its checkpoint, restore it, compare row by row
	@$(PY) -m demo.main $(ARGS)

demo-upgrade: java venv jars ## Upgrade a live stream with the DAG safe_upgrade, once well and once badly (BAD=kind)
	@$(PY) -m demo.upgrade.main $(if $(BAD),--bad $(BAD)) $(ARGS)

record-demo: java venv jars ## Record `make demo` and `make demo-upgrade` as pictures that move: docs/images/demo*.svg
	@dev/record-demo.sh

test-fast: venv ## Run the tests of the core, which need neither Java nor Airflow, in about a minute
	@$(TESTS) -n auto --dist worksteal --timeout-method signal -m "not (thorough or slow or other_spark)" \
		tests/unit @tests/unit/without-airflow.txt $(ARGS)

test: java venv jars ## Run the tests, a file on each core (ARGS="..." goes to pytest)
	@$(TESTS) -n auto --dist loadfile --no-loadscope-reorder $(ARGS)

test-packs: java venv jars ## The tests of stores and repositories with packs (format 2), and with repositories of both formats
	@$(TESTS) -n auto --dist loadfile --repository-format 2 tests/unit tests/component $(ARGS)
	@$(TESTS) -n auto --dist loadfile --repository-format mixed tests/unit tests/component $(ARGS)

lint: venv ## Check style, types and language
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) dev/check_prose.py
	@$(PY) -m mypy

lint-workflows: ## Check .github/workflows with actionlint (fetched on first use, needs Go)
	@dev/actionlint.sh

release-check: venv ## Build and check the package for a tag: make release-check TAG=v0.2.0
	@dev/release-check.sh $(TAG)

docs: venv ## Build the documentation into .cache/docs/html; a broken link or a warning is an error
	@$(PY) -m sphinx --quiet --fail-on-warning --keep-going -d .cache/docs/doctrees docs .cache/docs/html
	@echo .cache/docs/html/index.html

format: venv ## Write the code in the project's style
	@$(PY) -m ruff check --fix --exit-zero --quiet .
	@$(PY) -m ruff format .

airflow: java venv jars ## Start Airflow's web interface with the example DAGs and a running stream
	@$(PY) -m dev.run_airflow

contract: ## Ask a real workspace what the tests rely on: HOST=… PIPELINE=<name that it makes and deletes> [SCHEMA=, WAREHOUSE=]
	@test -n "$(HOST)" -a -n "$(PIPELINE)" || { echo "give HOST=<address of the workspace> PIPELINE=<name of a pipeline that does not exist>"; exit 2; }
	@dev/venv.sh
	@CONTRACT_HOST="$(HOST)" CONTRACT_PIPELINE="$(PIPELINE)" CONTRACT_SCHEMA="$(SCHEMA)" CONTRACT_WAREHOUSE="$(WAREHOUSE)" \
		CONTRACT_PROFILE="$(PROFILE)" CONTRACT_RECORDING="$(RECORDING)" $(PY) -m pytest -s -p no:xdist --timeout=7200 tests/contract/test_workspace.py $(ARGS)

sbom: ## A CycloneDX bill of materials of the lock, in dist/sbom.json
	@mkdir -p dist
	@dev/uv.sh tool run --quiet --from cyclonedx-bom==7.1.0 cyclonedx-py requirements requirements.lock --of JSON --output-reproducible -o dist/sbom.json
	@echo dist/sbom.json

fake-databricks: venv ## A Databricks workspace on this machine, with pipelines that need recovery, for trying the DAGs
	@$(PY) -m tests.fake_databricks $(ARGS)

soak: java venv jars ## At least 100 backups of live streams, each restored and run on
	@$(PY) -m pytest -m soak -s $(ARGS)

seal-soak: java venv jars jars-s3a ## Seal running streams at 50 random moments
	@$(PY) -m pytest -m seal_soak -s $(ARGS)

rewind-soak: java venv jars ## 100 random histories of streams that are rewound, undone and run on
	@$(PY) -m pytest -m rewind_soak -s $(ARGS)

change-soak: venv ## 300 random histories of changes that are paused, taken over, and wake up: local disk and S3
	@$(PY) -m pytest -m change_soak -s $(ARGS)

reset-soak: venv ## 1,000 runs of pipeline operators with faults, retries and kills: none resets twice
	@$(PY) -m pytest -m slow tests/component/lakeflow/test_no_double_reset.py $(ARGS)

slow: java venv jars ## The proofs that take minutes, in parts: PART=doctor; without it, which there are
	@$(PY) -m dev.slow_tests $(or $(PART),--help) $(ARGS)

slow-all: java venv jars ## All parts of `make slow` at once (two and a half hours)
	@$(PY) -m dev.slow_tests all $(ARGS)

stores: java venv ## Stores against emulators of Azure and Google, an HDFS, a FUSE mount; a REST catalog: fetched on first use
	@$(PY) -m pytest -m stores $(ARGS)

s3a: java venv jars jars-s3a ## Streams whose checkpoint lies on s3a:// of a real S3 server
	@$(PY) -m pytest -m s3a $(ARGS)

doctor: java venv jars ## Show real Spark every kind of damage the doctor knows, and every repair
	@$(PY) -m dev.slow_tests doctor $(ARGS)

browser: venv ## The page in a real Airflow and headless Chromium; makes the pictures of its how-to
	@$(PY) -m pytest -m browser tests/browser $(ARGS)

matrix: venv ## Try Airflow 3.1, 3.2 and 3.3: import all, parse every DAG, run one (CONSTRAINTS=URL for their constraint files)
	@$(PY) -m pytest -m slow tests/system/test_airflow_versions.py $(ARGS)

measure-newcomer: ## Time a newcomer's first steps in a fresh clone with an empty home (ARGS=--full runs all tests too)
	@dev/venv.sh && $(PY) -m dev.measure_newcomer $(ARGS)

samples: java venv jars ## Test closures and the seal on Spark 3.5.9, 4.1.4, 4.2.1 and 4.3.0, which it installs
	@$(PY) -m pytest -m other_spark $(ARGS)

bench: venv ## Measure backups against s5cmd, rclone, aws s3 sync, restic and s3fs (hours; ARGS="--rounds 1" for less; ARGS=--anew after a change of code)
	@$(PY) -m benchmarks.main --files 500 5000 50000 $(ARGS)
	@$(PY) -m benchmarks.main --files 5000 --snapshots $(ARGS)
	@$(PY) -m benchmarks.requests --files 500 5000
	@$(PY) -m benchmarks.requests --files 50000 --only "in process" s5cmd restic
	@$(PY) -m benchmarks.requests --files 5000 --snapshots
	@$(PY) -m benchmarks.growth $(filter --anew,$(ARGS))
	@$(PY) -m benchmarks.growth --kinds files --files 500000
	@$(PY) -m benchmarks.memory
	@$(MAKE) --no-print-directory bench-page

bench-page: venv ## Write docs/benchmarks.md and its pictures again from the committed figures
	@$(PY) -m benchmarks.report
	@$(PY) -m benchmarks.pictures

bench-latency: venv ## Measure inspect, guard and sensors on a store that is 20, 50 and 100 ms away
	@$(PY) -m benchmarks.latency $(ARGS)

venv: ## Make .venv as requirements.lock says
	@dev/venv.sh

java:
	@dev/check-java.sh

jars: java venv ## Fetch the jars that Spark and the tests' Kafka broker need into .cache/ivy
	@$(PY) -m dev.fetch_jars dev/spark-jars.txt
	@$(PY) -m dev.fetch_jars dev/kafka-jars.txt
	@$(PY) -m dev.fetch_jars dev/iceberg-jars.txt
	@$(PY) -m dev.class_archive

jars-s3a: java venv
	@$(PY) -m dev.fetch_jars dev/s3a-jars.txt

lock: ## Resolve pyproject.toml again into requirements.lock
	@dev/lock.sh

env: ## Make the secrets of docker-compose.yml, in .env
	@$$(dev/find-python.sh) dev/make_env.py

compose-check: ## Check docker-compose.yml
	@dev/compose-check.sh

clean: ## Remove all that these targets made
	rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-output dist build spark-warehouse metastore_db derby.log
