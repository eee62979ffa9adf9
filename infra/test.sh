#!/usr/bin/env bash
# All tests, in two processes at a time: Spark's tests keep one JVM busy for most of the time, the others mostly wait for
# themselves. With arguments (`bash infra/test.sh -k name`) one process runs what they choose.
set -uo pipefail
cd "$(dirname "$0")/.."
export LATECOMER_LANDING= AIRFLOW__CORE__LOAD_EXAMPLES=False
pytest=(.venv/bin/pytest -q -p no:cacheprovider)
if [ $# -gt 0 ]; then
  exec "${pytest[@]}" tests/core tests/contracts tests/spark tests/dags tests/end_to_end "$@"
fi
mkdir -p build
other=build/tests_without_spark.txt
"${pytest[@]}" tests/core tests/contracts tests/dags >"$other" 2>&1 &
beside=$!
trap 'kill "$beside" 2>/dev/null' EXIT
"${pytest[@]}" tests/spark tests/end_to_end
spark=$?
wait "$beside"
rest=$?
echo "tests of the core, the contracts and the DAGs:"
cat "$other"
exit $((spark > rest ? spark : rest))
