#!/usr/bin/env bash
# All tests, in two processes at a time: those of Spark's stages share one JVM; the others start what they need. Some of Spark's,
# those that kill a run between two commits among them, go last in the second, so that both take about as long. With arguments
# (`bash infra/test.sh -k name`) one process runs what they choose.
set -uo pipefail
cd "$(dirname "$0")/.."
export LATECOMER_LANDING= AIRFLOW__CORE__LOAD_EXAMPLES=False
# jobs this small take a third less CPU without the JVM's second compiler; alone, the first one would have a fifth of the room for code
export SPARK_SUBMIT_OPTS="${SPARK_SUBMIT_OPTS:-} -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
pytest=(.venv/bin/pytest -q -p no:cacheprovider --durations=15)
if [ $# -gt 0 ]; then
  exec "${pytest[@]}" tests/core tests/contracts tests/benchmarks tests/spark tests/dags tests/end_to_end "$@"
fi
mkdir -p build
other=build/tests_of_processes.txt
moved=(tests/spark/test_{crash,crash_kinds,membership,membership_shards}.py)
"${pytest[@]}" tests/core tests/contracts tests/benchmarks tests/dags tests/end_to_end "${moved[@]}" >"$other" 2>&1 &
beside=$!
trap 'kill "$beside" 2>/dev/null' EXIT
"${pytest[@]}" tests/spark "${moved[@]/#/--ignore=}"
spark=$?
wait "$beside"
rest=$?
echo "core, contracts, benchmarks, DAGs, end to end, and of Spark: crashes and membership:"
cat "$other"
exit $((spark > rest ? spark : rest))
