#!/usr/bin/env bash
# Tests in order of speed: core needs no JVM, end to end needs everything.
set -uo pipefail
cd "$(dirname "$0")/.."
export LATECOMER_LANDING= AIRFLOW__CORE__LOAD_EXAMPLES=False
exec .venv/bin/pytest -q -p no:cacheprovider tests/core tests/contracts tests/spark tests/dags tests/end_to_end "$@"
