#!/usr/bin/env bash
# dev/random_shard.sh: V FILE: 200,000 random tokens below V as a token shard: 256 words of header, then uint16.
# Always the same; a file that is there already stays.
set -euo pipefail
[ -e "$2" ] || perl -e 'my ($n, $V) = (200000, shift); srand 1;
    print pack("l<3 x1012", 20240520, 1, $n), pack("S<*", map { int rand $V } 1 .. $n)' "$1" >"$2"
