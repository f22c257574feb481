#!/bin/sh
# Installs the npm packages, and npm itself where it is missing and may be installed.
set -eu
cd "$(dirname "$0")/.."

if ! command -v npm >/dev/null 2>&1; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo 'Installing nodejs and npm from the system packages'
    apt-get update -q >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends nodejs npm >/dev/null
  else
    echo 'npm is needed and not on PATH. Install Node.js 20 or newer with npm, then run this again.' >&2
    exit 1
  fi
fi

echo 'Installing npm packages (about half a minute)'
# The packages ask for a newer Node than the system may have; they run on the one that is among them.
npm ci --no-audit --no-fund --loglevel=error
touch node_modules/.package-lock.json
