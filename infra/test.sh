#!/usr/bin/env bash
# All tests, in two processes at a time. The tests of Spark's stages share one JVM in the first; all others run in the
# second, with some of Spark's own that mostly start processes, so that both take about as long.
#   bash infra/test.sh                  everything
#   bash infra/test.sh fast             tests that start no JVM and no Airflow, without slow ones
#   bash infra/test.sh -k NAME ...      one process, with pytest's own arguments
set -uo pipefail
cd "$(dirname "$0")/.."
export LATECOMER_LANDING= AIRFLOW__CORE__LOAD_EXAMPLES=False
# Jobs this small take a third less CPU without the JVM's second compiler. Without a size, the first compiler would have
# a fifth of the room for its code.
export SPARK_SUBMIT_OPTS="${SPARK_SUBMIT_OPTS:-} -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
pytest=(.venv/bin/pytest -q -p no:cacheprovider --durations=15)

# both FIRST -- SECOND: two processes at a time, each with its pytest arguments; the worse exit code of the two
both() {
  local first=() output=build/tests_second_process.txt codes=(0 0) second
  while [ "$1" != -- ]; do first+=("$1") && shift; done
  shift
  mkdir -p build
  "${pytest[@]}" "$@" >"$output" 2>&1 &
  second=$!
  trap 'kill "$second" 2>/dev/null' EXIT
  "${pytest[@]}" "${first[@]}" || codes[0]=$?
  wait "$second" || codes[1]=$?
  echo "the second process: $*"
  cat "$output"
  exit $((codes[0] > codes[1] ? codes[0] : codes[1]))
}

case ${1:-} in
'')
  moved=(tests/spark/test_{crash,crash_kinds,membership,membership_shards}.py)
  both tests/spark "${moved[@]/#/--ignore=}" -- \
    tests/core tests/contracts tests/docs tests/benchmarks tests/dags tests/end_to_end "${moved[@]}"
  ;;
fast) both -m "not slow" tests/core -- -m "not slow" tests/contracts tests/docs ;;
*) exec "${pytest[@]}" tests/core tests/contracts tests/docs tests/benchmarks tests/spark tests/dags tests/end_to_end "$@" ;;
esac
