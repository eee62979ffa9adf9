#!/usr/bin/env bash
# A headless Chromium for the browser test: `browser.sh` prints the program to start, and fetches it once into
# .tools/browser. It is the one that the npm package named here carries, so nothing is downloaded but that package,
# pinned by its digest.
# A Chromium that the machine has already (or BROWSER_BINARY) is taken as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
package=@sparticuz/chromium@153.0.0
digest=jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA==
folder=$PWD/.tools/browser

for name in "${BROWSER_BINARY:-}" chromium chromium-browser google-chrome; do
  if [ -n "$name" ] && command -v "$name"; then exit 0; fi
done
if [ ! -x "$folder/start" ]; then
  for tool in npm node tar openssl; do
    command -v "$tool" >/dev/null || { echo "no browser: $tool is missing, and so is chromium; install one" >&2; exit 2; }
  done
  rm -rf "$folder" && mkdir -p "$folder/part"
  cd "$folder/part"
  npm pack --silent "$package" >/dev/null 2>&1 || { echo "no browser: npm could not fetch $package" >&2; exit 2; }
  [ "$(openssl dgst -sha512 -binary ./*.tgz | openssl base64 -A)" = "$digest" ] ||
    { echo "no browser: $package is not what it was when it was pinned" >&2; exit 2; }
  tar -xzf ./*.tgz
  for name in chromium al2023.tar fonts.tar; do
    node -e 'const fs = require("fs"); fs.writeFileSync(process.argv[2],
      require("zlib").brotliDecompressSync(fs.readFileSync(process.argv[1])))' "package/bin/$name.br" "$folder/$name"
  done
  cd "$folder"
  tar -xf al2023.tar && tar -xf fonts.tar
  chmod +x chromium
  rm -rf part al2023.tar fonts.tar
  sed -i "s#<dir>/opt/fonts</dir>#<dir>$folder/fonts</dir>#; s#/tmp/fonts-cache/#$folder/cache#" fonts.conf
  # libraries that the machine lacks come from the package, and so do fonts
  cat >start.part <<'START'
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
if ldd "$here/chromium" | grep -q 'not found'; then export LD_LIBRARY_PATH="$here/lib"; fi
command -v fc-list >/dev/null 2>&1 && [ -n "$(fc-list | head -n 1)" ] || export FONTCONFIG_PATH="$here"
exec "$here/chromium" "$@"
START
  chmod +x start.part && mv start.part start
fi
echo "$folder/start"
