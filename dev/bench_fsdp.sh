#!/usr/bin/env bash
# dev/bench_fsdp.sh: what sharding and ordered sums cost: steps of 124M on 2 ranks x 1 thread, B=4 T=256 on each,
# the variants in turn. Prints a Markdown table. Everything it makes is in build/bench/.
#
#   dev/bench_fsdp.sh [--rounds N] [--fastest]     default 3 rounds and the median step
#   TRAIN=./train_gpt PRECISIONS="fp32 bf16"       the program and what it computes in
#
# Goals: --shard full at most 1.15 times --shard none, --reduce ordered at most 1.10 times --reduce fast. `comm` is
# the share of a step inside collectives, waiting for the other rank included.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
rounds=3 column=median
while [ $# -gt 0 ]; do
    case $1 in
    --rounds) rounds=$2 && shift ;;
    --fastest) column=fastest ;;
    *) echo "dev/bench_fsdp.sh: unknown option $1; the head of the file names them" >&2 && exit 2 ;;
    esac
    shift
done
work=build/bench
mkdir -p $work
rm -f $work/fsdp_*
train=${TRAIN:-./train_gpt}
[ -n "${TRAIN:-}" ] || make -s DEVICE=cpu >/dev/null
tokens=$work/tokens_50257.bin
dev/random_shard.sh 50257 $tokens

# "ms comm" of every step but the first, which plans the products
run() { # PRECISION SHARD REDUCE
    "$train" --model gpt2:d12 --seq 256 --batch 4 --ranks 2 --threads 1 --train $tokens --steps 4 --json \
        --precision "$1" --shard "$2" --reduce "$3" |
        awk '{ match($0, /"ms":[0-9.e+-]+/); ms = substr($0, RSTART + 5, RLENGTH - 5)
            match($0, /"comm_share":[0-9.e+-]+/); if (n++) print ms, substr($0, RSTART + 13, RLENGTH - 13) }' \
            >>"$work/fsdp_$1_$2_$3"
}

middle() { sort -g "$1" | awk -v column=$column '{ line[NR] = $0 } END { print line[column == "median" ? int((NR + 1) / 2) : 1] }'; }

echo "| 124M, 2 ranks, B=4 T=256 each | ms, $column | comm | of --shard none | of --reduce fast |"
echo "|---|---|---|---|---|"
for precision in ${PRECISIONS:-fp32 bf16}; do
    for ((i = 0; i < rounds; i++)); do
        for reduce in fast ordered; do for shard in none full; do run "$precision" $shard $reduce; done; done
    done
    for reduce in fast ordered; do
        for shard in none full; do
            read -r none _ <<<"$(middle "$work/fsdp_${precision}_none_$reduce")"
            read -r fast _ <<<"$(middle "$work/fsdp_${precision}_${shard}_fast")"
            middle "$work/fsdp_${precision}_${shard}_$reduce" | awk -v name="$precision --shard $shard --reduce $reduce" \
                -v none="$none" -v fast="$fast" '{ printf "| %s | %.0f | %.0f %% | %.2f | %.2f |\n", name, $1, 100 * $2, $1 / none, $1 / fast }'
        done
    done
done
