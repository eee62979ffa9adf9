#!/usr/bin/env bash
# Servers of stores that only tests need, each in a folder .tools/SERVER:
#   minio    MinIO, built from its sources: its publisher has withdrawn the binaries and images of the community edition
#   azurite  Azurite, the emulator of Azure's store, installed by npm
#   fake-gcs-server  an emulator of Google's store, built from its sources
# `store_servers.sh start`: make those that are missing, in the background of the tests, since they take minutes.
# `store_servers.sh stop`: end what is being made. What an unfinished build has compiled is kept in Go's cache.
# Where one cannot be made, .tools/SERVER/missing says why, and its tests are skipped with that line.
set -euo pipefail
cd "$(dirname "$0")/.."
declare -A versions=(
  [minio]=github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c # the last commit of the community edition
  [azurite]=azurite@3.35.0                                          # the newest that runs on Node.js 20
  [fake-gcs-server]=github.com/fsouza/fake-gcs-server@v1.56.1       # earlier ones ignore preconditions of some writes
)
export PATH=$PATH:/usr/local/go/bin

by_go() { # VERSION FOLDER
  command -v go >/dev/null || { echo "Go is missing (1.21 or later; it fetches the version that it needs)"; return 1; }
  GOBIN=$2 GOFLAGS='-p=1 -trimpath -buildvcs=false' CGO_ENABLED=0 nice -n 19 go install -ldflags '-s -w' "$1"
}

by_npm() { # VERSION FOLDER
  command -v npm >/dev/null || { echo "npm is missing"; return 1; }
  nice -n 19 npm install --prefix "$2" --ignore-scripts --no-audit --no-fund --no-save "$1"
}

building() { [ -f "$1/building" ] && ps -o args= -p "$(cat "$1/building")" 2>/dev/null | grep -q store_servers.sh; }

case ${1:-} in
start)
  for server in "${!versions[@]}"; do
    folder=$PWD/.tools/$server
    if [ "$(cat "$folder/version" 2>/dev/null)" = "${versions[$server]}" ] || building "$folder"; then continue; fi
    rm -rf "$folder"
    mkdir -p "$folder"
    setsid bash infra/store_servers.sh build "$server" </dev/null >"$folder/build.log" 2>&1 &
    echo $! >"$folder/building"
  done
  ;;
build)
  folder=$PWD/.tools/$2
  trap 'rm -f "$folder/building"' EXIT
  case $2 in azurite) how=by_npm ;; *) how=by_go ;; esac
  if "$how" "${versions[$2]}" "$folder"; then
    echo "${versions[$2]}" >"$folder/version"
  else
    echo "$2 could not be made: $(tail -n 1 "$folder/build.log") (see .tools/$2/build.log)" >"$folder/missing"
  fi
  ;;
stop)
  for server in "${!versions[@]}"; do
    if building ".tools/$server"; then kill -- "-$(cat ".tools/$server/building")"; fi
  done
  ;;
*) echo "usage: store_servers.sh start|stop" >&2; exit 2 ;;
esac
