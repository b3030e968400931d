#!/usr/bin/env bash
# scripts/install.sh PACKAGE...: installs the Debian or Ubuntu packages that are missing; elsewhere it says
# so and goes on with what is there. Packages of another architecture are called NAME:arm64.
set -euo pipefail
if ! command -v apt-get >/dev/null; then
    echo "not a Debian or Ubuntu: going on without installing $*"
    exit 0
fi
missing=()
for p in "$@"; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q "ok installed" || missing+=("$p")
done
[ ${#missing[@]} -gt 0 ] || exit 0
echo "installing ${missing[*]}"
sudo=$([ "$(id -u)" = 0 ] || echo sudo)
other=$(printf '%s\n' "${missing[@]}" | sed -n 's/.*://p' | sort -u)
[ -z "$other" ] || $sudo dpkg --add-architecture "$other"
if ! $sudo apt-get update -q >/dev/null; then
    [ -z "$other" ] || $sudo dpkg --remove-architecture "$other"  # Ubuntu has it on other servers
    exit 1
fi
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
