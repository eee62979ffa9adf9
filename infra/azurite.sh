#!/usr/bin/env bash
# `azurite.sh start`: install Azurite, the emulator of Azure's store, for the tests into .tools/azurite, in the background.
# `azurite.sh stop`: end that. Where it fails, .tools/azurite/missing says why, and its tests are skipped with that line.
set -euo pipefail
cd "$(dirname "$0")/.."
package=azurite@3.35.0 # the newest that runs on Node.js 20
folder=$PWD/.tools/azurite
building() { [ -f "$folder/building" ] && ps -o args= -p "$(cat "$folder/building")" 2>/dev/null | grep -q azurite.sh; }

case ${1:-} in
start)
  if [ "$(cat "$folder/version" 2>/dev/null)" = "$package" ] || building; then exit 0; fi
  rm -rf "$folder"
  mkdir -p "$folder"
  setsid bash infra/azurite.sh build </dev/null >"$folder/build.log" 2>&1 &
  echo $! >"$folder/building"
  ;;
build)
  trap 'rm -f "$folder/building"' EXIT
  if ! command -v npm >/dev/null; then
    echo "Azurite is not installed: npm is missing" >"$folder/missing"
  elif nice -n 19 npm install --prefix "$folder" --ignore-scripts --no-audit --no-fund --no-save "$package"; then
    echo "$package" >"$folder/version"
  else
    echo "Azurite is not installed: $(tail -n 1 "$folder/build.log") (see .tools/azurite/build.log)" >"$folder/missing"
  fi
  ;;
stop) ! building || kill -- "-$(cat "$folder/building")" ;;
*) echo "usage: azurite.sh start|stop" >&2; exit 2 ;;
esac
