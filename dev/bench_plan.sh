#!/usr/bin/env bash
# dev/bench_plan.sh: the planned time of a step on this CPU beside the measured one, for three sizes on one rank and
# on two: the fastest of some plans and of some steps, as others may use the machine. Prints a Markdown table; the
# ratio should be from 0.75 to 1.25. Everything it makes is in build/bench/.
#
#   dev/bench_plan.sh [options of train_gpt]        say --precision bf16
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
work=build/bench
mkdir -p $work
train=${TRAIN:-./train_gpt}
[ -n "${TRAIN:-}" ] || make -s DEVICE=cpu >/dev/null
tokens=$work/tokens_8000.bin
dev/random_shard.sh 8000 $tokens

fastest() { sort -g | head -1; }
planned() { for i in 1 2 3; do "$train" --plan "$@" | grep -o '"step": {"seconds": [0-9.e+-]*' | awk '{ print 1e3 * $3 }'; done | fastest; }
# All but the first two steps, which plan the products.
measured() { "$train" "$@" --steps 6 | tail -n +3 | grep -o '"ms":[0-9.e+-]*' | cut -d: -f2 | fastest; }

echo "| model | ranks | planned ms | measured ms | ratio |"
echo "|---|---|---|---|---|"
for size in L=4,C=256,NH=4,T=256 L=6,C=512,NH=8,T=256 L=8,C=768,NH=12,T=256; do
    for ranks in 1 2; do
        options=(--model "gpt2:$size,V=8000" --batch 2 --ranks $ranks --train $tokens --json "$@")
        awk -v m="$size" -v r=$ranks -v p="$(planned "${options[@]}")" -v t="$(measured "${options[@]}")" \
            'BEGIN { printf "| %s | %d | %.1f | %.1f | %.2f |\n", m, r, p, t, p / t }'
    done
done
