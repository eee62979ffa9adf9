#!/usr/bin/env bash
# `airflow.sh up`: Airflow with its UI on localhost, in the background; `airflow.sh down`: stop it.
set -euo pipefail
cd "$(dirname "$0")/.."
ROOT=$PWD
export PATH=$ROOT/.venv/bin:$PATH
while IFS= read -r line; do
  case $line in ''|\#*) continue ;; esac
  export "${line%%=*}=${line#*=}"
done < <(sed "s#\$ROOT#$ROOT#g" infra/airflow.env)
pids=$AIRFLOW_HOME/pids

down() {
  [ -f "$pids" ] || return 0
  while read -r pid; do kill -- "-$pid" 2>/dev/null || true; done <"$pids"
  rm -f "$pids"
}

case ${1:-} in
up)
  mkdir -p "$AIRFLOW_HOME/logs"
  down
  airflow db migrate >"$AIRFLOW_HOME/logs/migrate.log" 2>&1 || { tail -n 5 "$AIRFLOW_HOME/logs/migrate.log" >&2; exit 1; }
  [ -f "$AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE" ] || echo '{"admin": "admin"}' >"$AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"
  for part in dag-processor scheduler triggerer api-server; do
    setsid airflow "$part" >"$AIRFLOW_HOME/logs/$part.log" 2>&1 </dev/null &
    echo $! >>"$pids"
  done
  for _ in $(seq 1 120); do
    if curl -fs "http://127.0.0.1:$AIRFLOW__API__PORT/api/v2/monitor/health" >/dev/null 2>&1; then
      echo "Airflow: http://127.0.0.1:$AIRFLOW__API__PORT  (user admin, password admin); stop it with: make down"
      exit 0
    fi
    sleep 1
  done
  tail -n 5 "$AIRFLOW_HOME/logs/api-server.log" >&2
  down
  echo "Airflow did not answer on port $AIRFLOW__API__PORT within 120 s (logs in build/airflow/logs)" >&2
  exit 1
  ;;
down) down && echo "Airflow is stopped" ;;
*) echo "usage: airflow.sh up|down" >&2; exit 2 ;;
esac
