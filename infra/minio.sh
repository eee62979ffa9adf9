#!/usr/bin/env bash
# `minio.sh start`: build MinIO for the tests from its sources into .tools/minio, in the background.
# `minio.sh stop`: end that build.
# Its publisher has withdrawn the binaries and the images of the community edition. The build takes minutes, so
# `make test` runs it behind the other tests. Where it fails, .tools/minio/missing says why, and the tests of MinIO are
# skipped with that line. What an unfinished build has compiled is kept in Go's cache.
set -euo pipefail
cd "$(dirname "$0")/.."
module=github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c # the last commit of the community edition
folder=$PWD/.tools/minio
building() { [ -f "$folder/building" ] && ps -o args= -p "$(cat "$folder/building")" 2>/dev/null | grep -q minio.sh; }

case ${1:-} in
start)
  if [ -x "$folder/minio" ] && [ "$(cat "$folder/version" 2>/dev/null)" = "$module" ] || building; then exit 0; fi
  mkdir -p "$folder"
  rm -f "$folder/minio" "$folder/missing"
  setsid bash infra/minio.sh build </dev/null >"$folder/build.log" 2>&1 &
  echo $! >"$folder/building"
  ;;
build)
  trap 'rm -f "$folder/building"' EXIT
  PATH=$PATH:/usr/local/go/bin
  if ! command -v go >/dev/null; then
    echo "MinIO is not built: Go is missing (1.21 or later; it fetches the version that it needs)" >"$folder/missing"
  elif GOBIN=$folder/part GOFLAGS='-p=1 -trimpath -buildvcs=false' CGO_ENABLED=0 nice -n 19 go install -ldflags '-s -w' "$module"; then
    echo "$module" >"$folder/version"
    mv "$folder/part/minio" "$folder/minio"
    rm -rf "$folder/part"
  else
    echo "MinIO is not built: $(tail -n 1 "$folder/build.log") (see .tools/minio/build.log)" >"$folder/missing"
  fi
  ;;
stop) ! building || kill -- "-$(cat "$folder/building")" ;;
*) echo "usage: minio.sh start|stop" >&2; exit 2 ;;
esac
