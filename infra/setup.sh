#!/usr/bin/env bash
# Set the project up in its own folder: .tools (uv), .venv (Python packages), .jvm (jars and a class archive).
# With the word `tests`, also what only they need (infra/store_servers.sh makes servers of stores behind them). What is
# there already is not fetched again; a step that fails leaves nothing half done.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/logs
log=build/logs/setup.log
: >"$log"

say() { printf 'setup: %s\n' "$*"; }
stop() { printf 'setup: %s\n' "$*" >&2; exit 2; }
step() { "$@" >>"$log" 2>&1 || { tail -n 5 "$log" >&2; stop "failed: $* (see $log)"; }; }

case $PWD in *[[:space:]]*) stop "$PWD: Spark's scripts cannot start from a path with a space; move the project" ;; esac
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null ||
  stop "needs Python 3.11 to 3.13 ($python is $("$python" -V 2>&1 || true)); install it and say make PYTHON=python3.11 ..."
java=${JAVA_HOME:+$JAVA_HOME/bin/}java
version=$("$java" -version 2>&1 | sed -nE '1s/.*"([0-9]+).*/\1/p' || true)
[ "$version" = 17 ] || stop "needs Java 17 (found: ${version:-none}); install it, or point JAVA_HOME at it"
free=$(df -Pk . | awk 'NR==2 {print int($4 / 1048576)}')
[ "$free" -ge 5 ] || stop "needs 5 GiB of free disk (found $free GiB); make room"

export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}" # trust what the machine trusts: a proxy's own certificate too
if [ ! -x .tools/bin/uv ]; then
  say "fetching uv"
  rm -rf .tools/bin .tools/include .tools/lib .tools/lib64 .tools/pyvenv.cfg # servers of tests may be on their way into it
  step "$python" -m venv .tools
  step .tools/bin/pip install --quiet --disable-pip-version-check uv==0.13.8
fi
say "Python packages"
[ -x .venv/bin/python ] || step .tools/bin/uv venv --quiet --python "$python" .venv
export VIRTUAL_ENV=$PWD/.venv
step .tools/bin/uv pip sync --quiet --require-hashes requirements.lock
step .tools/bin/uv pip install --quiet --no-deps --no-build-isolation --editable .
# Where Python is told to write no bytecode, every process would compile what it imports anew: seconds each. Meanwhile, the jars.
.venv/bin/python -m compileall -q -j 0 .venv/lib pipelines dags plugins >>"$log" 2>&1 &
compiling=$!
trap 'kill "$compiling" 2>/dev/null || true' EXIT

say "jars, and a class archive (Spark starts about three times faster with it)"
rm -f .jvm/latecomer.jsa # of earlier versions
.venv/bin/latecomer jars fetch --to .jvm/jars >>"$log" 2>&1 || { grep -v '^Traceback' "$log" | tail -n 3 >&2; stop "no jars (see $log)"; }
if [ "${1:-}" = tests ]; then
  say "Kafka broker and HDFS of the tests"
  .venv/bin/python infra/fetch_servers.py .jvm >>"$log" 2>&1 ||
    { tail -n 1 "$log" >&2; stop "the tests' servers could not be fetched (see $log); is the package registry reachable?"; }
fi
wait "$compiling" || true # files that are no Python of this version stay as they are
.venv/bin/python infra/spark_properties.py .jvm/spark.properties >>"$log" 2>&1 || stop "failed: properties of Spark (see $log)"
say "ready"
