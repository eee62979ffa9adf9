#!/usr/bin/env bash
# All tests, in processes that share the test files between them: a file's tests run in one process, so that they share
# its JVM, and whichever process is free takes the next file. Tests wait often: two processes leave a quarter of two cores
# idle.
#   bash infra/test.sh                  everything
#   bash infra/test.sh fast             tests that start no JVM and no Airflow, without slow ones
#   bash infra/test.sh -k NAME ...      one process, with pytest's own arguments
set -euo pipefail
cd "$(dirname "$0")/.."
export LATECOMER_LANDING= AIRFLOW__CORE__LOAD_EXAMPLES=False
# Jobs this small take a third less CPU without the JVM's second compiler. Without a size, the first compiler would have
# a fifth of the room for its code.
export SPARK_SUBMIT_OPTS="${SPARK_SUBMIT_OPTS:-} -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
# Twenty failures say as much as all of them, and each may have waited for its time to be up.
pytest=(.venv/bin/pytest -q -p no:cacheprovider --durations=60 --maxfail=20)
shared=(-n 3 --dist loadfile --no-loadscope-reorder)
# Files that take long come first: at the end they would leave one process without work. The tests of MinIO come when
# it has had the time to be built behind the others.
folders=(tests/end_to_end tests/dags tests/spark tests/docs tests/benchmarks tests/stores tests/core tests/contracts)

[ "${1:-}" = fast ] || { bash infra/store_servers.sh start && trap 'bash infra/store_servers.sh stop' EXIT; }

case ${1:-} in
'') "${pytest[@]}" "${shared[@]}" "${folders[@]}" ;;
fast) exec "${pytest[@]}" "${shared[@]}" -m "not slow" tests/core tests/contracts tests/docs ;;
*) "${pytest[@]}" "${folders[@]}" "$@" ;;
esac
