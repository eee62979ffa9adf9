# Everything installs from this project's own files: Python packages from requirements.lock (hashes pinned), jars by
# hashes pinned in jars.lock. `make demo` and `make test` are all a new machine needs.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
ENGINE := pipelines/latecomer/spark/engine
SETUP := pyproject.toml requirements.lock infra/setup.sh infra/spark_properties.py $(addprefix $(ENGINE)/,jars.lock jars.py class_archive.py session.py)
STAMP := .venv/.setup-$(shell cat $(SETUP) 2>/dev/null | cksum | cut -d' ' -f1)
TEST_STAMP := .venv/.tests-$(shell cat infra/kafka_jars.txt infra/hdfs_jars.txt infra/fetch_servers.py infra/setup.sh 2>/dev/null | cksum | cut -d' ' -f1)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-long lint docs sbom audit hooks up down airflow lock lock-jars clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 16

setup: $(STAMP) ## virtual environment, jars, class archive (once)

$(STAMP): $(SETUP)
	@PYTHON="$(PYTHON)" bash infra/setup.sh
	@rm -f .venv/.setup-* && touch $@

$(TEST_STAMP): $(STAMP) infra/kafka_jars.txt infra/hdfs_jars.txt infra/fetch_servers.py
	@PYTHON="$(PYTHON)" bash infra/setup.sh tests
	@rm -f .venv/.tests-* && touch $@

.PHONY: servers
servers:
	@bash infra/store_servers.sh start

demo: setup ## run the main job on a year of New York flights, through Airflow
	@$(BIN)/python -m latecomer.jobs.demo

test: servers setup $(TEST_STAMP) lint docs ## everything that must pass
	@bash infra/test.sh

test-fast: setup ## tests that start no JVM and no Airflow
	@bash infra/test.sh fast

test-long: servers setup $(TEST_STAMP) lint docs ## also every DAG of every kind, a scheduler's backfill, a browser (half an hour more)
	@LATECOMER_LONG_TESTS=1 bash infra/test.sh

lint: setup ## ruff, codespell and mypy
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/codespell && $(BIN)/mypy

docs: setup ## the documentation, in build/docs/index.html; a warning is an error
	@$(BIN)/sphinx-build -W --keep-going -q -j 2 -d build/doctrees docs build/docs

sbom: setup ## the locked Python packages as CycloneDX JSON, in build/sbom.json
	@mkdir -p build && .tools/bin/uv tool run --quiet --from cyclonedx-bom==7.5.0 cyclonedx-py requirements \
	  requirements.lock --of JSON -o build/sbom.json

audit: setup ## known vulnerabilities of the locked packages; one that cannot be looked up is an error
	@.tools/bin/uv tool run --quiet pip-audit==2.10.1 -r requirements.lock --require-hashes --disable-pip --strict

hooks: setup ## run these checks before each commit (git hooks, by pre-commit, from this project's environment)
	@$(BIN)/pre-commit install

up: setup ## Airflow with its UI on localhost
	@bash infra/airflow.sh up

airflow: setup ## Airflow's own command on it: make airflow ARGS="dags list"
	@bash infra/airflow.sh run $(ARGS)

down: ## stop what `make up` started
	@bash infra/airflow.sh down

lock-jars: ## renew jars.lock from jars.txt
	@$(BIN)/python infra/lock_jars.py

lock: ## renew requirements.lock from pyproject.toml
	@.tools/bin/uv pip compile pyproject.toml --extra dev --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --quiet -o requirements.lock

clean: ## remove what the demo, benchmarks and tests made, but not what was fetched, nor the lake, landing folder and reports of `make up`
	@rm -rf build/docs build/doctrees build/demo build/bench build/logs build/screens build/*.txt .pytest_cache .ruff_cache .mypy_cache
