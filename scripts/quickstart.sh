#!/usr/bin/env bash
# scripts/quickstart.sh [--text FILE] [--steps N]: from a bare Debian or Ubuntu machine to a GPT that has
# learned English, in a few minutes on two cores. Installs what is missing, builds, trains on two ranks (each
# holds half of the parameters, gradients and AdamW states), samples, plots. Everything it makes besides the
# program is in data/quickstart/.
set -euo pipefail
cd "$(dirname "$0")/.."
text= steps=900 ranks=2
work=data/quickstart
while [ $# -gt 0 ]; do
    case $1 in
    --text) text=${2:?--text needs a file} ;;
    --steps) steps=${2:?--steps needs a number} ;;
    *) echo "usage: scripts/quickstart.sh [--text FILE] [--steps N]" >&2; exit 1 ;;
    esac
    shift 2
done
[ -z "$text" ] || [ -s "$text" ] || { echo "quickstart: --text $text: expected a file that is not empty" >&2; exit 1; }

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

say "1. What is needed"
packages=(g++ make openmpi-bin libopenmpi-dev libdnnl-dev gnuplot-nox)
[ -n "$text" ] || packages+=(bible-kjv)
if command -v apt-get >/dev/null; then
    missing=()
    for p in "${packages[@]}"; do
        dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q "ok installed" || missing+=("$p")
    done
    if [ ${#missing[@]} -gt 0 ]; then
        echo "installing ${missing[*]}"
        sudo=$([ "$(id -u)" = 0 ] || echo sudo)
        $sudo apt-get update -q >/dev/null
        $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
    fi
    echo "here: ${packages[*]}"
else
    echo "not a Debian or Ubuntu: going on with the compiler and libraries that are here"
fi

say "2. Build"
make DEVICE=cpu

say "3. Text"
mkdir -p "$work"
if [ -z "$text" ]; then
    text=$work/bible.txt
    # The whole King James Bible, a verse a line.
    bible -l 10000 "Gen1:1-Rev22:21" >"$text"
fi
# Blocks of 100 lines; the 20th of every 40 is kept for validation.
awk -v train="$work/train.txt" -v val="$work/val.txt" \
    'BEGIN {printf "" >train; printf "" >val} {print >(int((NR - 1) / 100) % 40 == 19 ? val : train)}' "$text"
if [ "$(stat -c %s "$work/val.txt")" -lt 2000 ]; then  # few or long lines: the last tenth instead
    size=$(stat -c %s "$text")
    head -c $((size - size / 10)) "$text" >"$work/train.txt"
    tail -c $((size / 10)) "$text" >"$work/val.txt"
fi
echo "$text: $(stat -c %s "$work/train.txt") bytes to train on, $(stat -c %s "$work/val.txt") to validate with"
# Bits a byte of a model that knows how often each byte follows each other byte.
bigram=$(awk '
    FNR == NR { if (NR > 1) { pairs[previous, $1]++; firsts[previous]++ } previous = $1; next }
    FNR > 1 { bits -= log((pairs[previous, $1] + 0.1) / (firsts[previous] + 25.6)) / log(2) }
    { previous = $1 }
    END { printf "%.3f", bits / (FNR - 1) }' \
    <(od -An -v -tu1 -w1 "$work/train.txt") <(od -An -v -tu1 -w1 "$work/val.txt"))
echo "a bigram model of it needs $bigram bits a byte"

say "4. Train"
# bf16 where the processor multiplies it
precision=$(grep -qE 'avx512_bf16|amx_bf16' /proc/cpuinfo && echo bf16 || echo fp32)
command=(./train_gpt --ranks $ranks --model gpt2:L=4,C=256,NH=4,T=256 --precision "$precision"
    --train "$work/train.txt" --val "$work/val.txt" --out "$work/run" --batch 4 --steps "$steps"
    --lr 2e-3 --warmup 50 --val-every $((steps < 8 ? 1 : steps / 8)) --val-batches 1000
    --sample-every "$steps" --sample-tokens 400 --export-model "$work/model.bin")
echo "${command[*]}"
started=$SECONDS
# One of 20 step lines is enough to watch; main.log has them all.
"${command[@]}" | awk '{split($2, at, "/")} !/^step [0-9]+\/[0-9]+ \|/ || at[1] % 20 == 0 {print; fflush()}'
echo "trained in $((SECONDS - started)) seconds"

say "5. What it has learned"
scripts/plot "$work/run"
ours=$(awk -F '[: ]' '$3 == "tel" {loss = $4} END {printf "%.3f", loss / log(2)}' "$work/run/main.log")
echo "validation: $ours bits a byte; the bigram model: $bigram"
awk -v ours="$ours" -v bigram="$bigram" 'BEGIN {exit !(ours < bigram - 0.3)}' ||
    { echo "quickstart: expected a validation loss clearly below the bigram model's; more --steps or more text?" >&2; exit 1; }

say "What next"
cat <<NEXT
  scripts/quickstart.sh --text FILE          train on a text of your own
  scripts/quickstart.sh --steps 5000         train for longer: the loss still falls
  mpirun -n 2 ./train_gpt ...                the same ranks under MPI, on one machine or several
  ./train_gpt --model $work/model.bin --train ... --lr 1e-4    go on from the model just written
  ./train_gpt --help                         every option; $work/run/options.cfg holds this run's
  make test                                  the tests
NEXT
