#!/usr/bin/env bash
# `airflow.sh up [SETTINGS]`: Airflow with its UI on localhost and a Spark server for its tasks, in the background.
# `airflow.sh down [SETTINGS]`: stop both.
# `airflow.sh run COMMAND...`: Airflow's own command with the same settings.
# SETTINGS is a file like airflow.env whose lines win over its: another home, another port, another lake.
set -euo pipefail
given=
case ${1:-} in up|down) given=${2:+$(realpath -- "$2")} ;; esac
cd "$(dirname "$0")/.."
ROOT=$PWD
export PATH=$ROOT/.venv/bin:$PATH
read_settings() {
  local line
  while IFS= read -r line || [ -n "$line" ]; do
    case $line in ''|\#*) continue ;; esac
    line=${line//'$ROOT'/$ROOT}
    export "${line%%=*}=${line#*=}"
  done <"$1"
}
read_settings infra/airflow.env
submitting=$AIRFLOW_CONN_LATECOMER_SPARK
export AIRFLOW__LOGGING__LOGGING_LEVEL=INFO # the logs in the UI show what a task said
[ -z "$given" ] || read_settings "$given"
url=http://127.0.0.1:$AIRFLOW__API__PORT
# tasks report to the API server, wherever it listens
export AIRFLOW__CORE__EXECUTION_API_SERVER_URL=$url/execution/
# Tasks go to a Spark server that has started once, unless SETTINGS or the environment say where Spark runs.
if [ "${1:-}" != run ] && [ -z "${LATECOMER_SPARK:-}" ] && [ "$AIRFLOW_CONN_LATECOMER_SPARK" = "$submitting" ]; then
  unset AIRFLOW_CONN_LATECOMER_SPARK
  export LATECOMER_SPARK=warm
fi
logs=$AIRFLOW_HOME/logs
spark_log=$logs/spark.log # of the server that `up` has started; else there is none
pids=$AIRFLOW_HOME/pids
parts="api-server dag-processor scheduler triggerer"

fail() { printf '%s\n' "$*" >&2; exit 1; }
healthy() { curl -fs --max-time 5 "$url/api/v2/monitor/health" 2>/dev/null; }
# a process group that is ours: a number in an old file may by now be somebody else's
ours() { ps -o args= -g "$1" 2>/dev/null | grep -q airflow; }

down() {
  local pid left turn signal
  if [ -f "$spark_log" ]; then
    latecomer spark stop >/dev/null
    rm -f "$spark_log"
  fi
  [ -f "$pids" ] || return 0
  for signal in TERM KILL; do
    for turn in $(seq 1 24); do
      left=
      while read -r pid; do
        if ours "$pid"; then
          left=yes
          [ "$turn" != 1 ] || kill "-$signal" -- "-$pid" 2>/dev/null || true
        fi
      done <"$pids"
      [ -n "$left" ] || break 2
      sleep 0.5
    done
  done
  rm -f "$pids"
}

case ${1:-} in
up)
  mkdir -p "$logs" "${LATECOMER_REPORTS:-build/reports}"
  case ${LATECOMER_LANDING:=build/landing} in *://*) ;; *) mkdir -p "$LATECOMER_LANDING" ;; esac
  down
  if (exec 3<>"/dev/tcp/127.0.0.1/$AIRFLOW__API__PORT") 2>/dev/null; then
    fail "port $AIRFLOW__API__PORT is taken by another program: stop it, or change AIRFLOW__API__PORT in infra/airflow.env"
  fi
  spark=
  if [ "${LATECOMER_SPARK:-}" = warm ] && ! latecomer spark status >/dev/null; then
    latecomer spark start >"$spark_log" 2>&1 &
    spark=$!
  fi
  airflow db migrate >"$logs/migrate.log" 2>&1 || { tail -n 5 "$logs/migrate.log" >&2; exit 1; }
  passwords=$AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE
  [ -s "$passwords" ] || echo '{"admin": "admin"}' >"$passwords"
  if [ -n "$spark" ] && ! wait "$spark"; then tail -n 5 "$spark_log" >&2; rm -f "$spark_log"; exit 1; fi
  for part in $parts; do
    # the API server reads logs where they lie; other servers of them listen on every address, whatever the settings
    case $part in scheduler|triggerer) alone=--skip-serve-logs ;; *) alone= ;; esac
    setsid airflow "$part" $alone >"$logs/$part.log" 2>&1 </dev/null &
    echo $! >>"$pids"
  done
  for _ in $(seq 1 180); do
    found=$(healthy || true)
    # DAGs are there once the DAG processor has reported, and run once the scheduler has
    if [ "$(grep -o '"status": *"healthy"' <<<"$found" | wc -l)" -ge 4 ]; then
      echo "Airflow: $url  (user admin, password admin); stop it with: make down"
      exit 0
    fi
    while read -r pid; do
      ours "$pid" || { tail -n 5 "$logs"/*.log >&2; down; fail "a part of Airflow stopped at once (logs in $logs)"; }
    done <"$pids"
    sleep 1
  done
  tail -n 5 "$logs/api-server.log" >&2
  down
  fail "Airflow was not healthy on port $AIRFLOW__API__PORT within 180 s (logs in $logs)"
  ;;
down) down && echo "Airflow is stopped" ;;
run) shift && exec airflow "$@" ;;
*) echo "usage: airflow.sh up|down [SETTINGS], or airflow.sh run COMMAND..." >&2; exit 2 ;;
esac
