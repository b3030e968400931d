#!/usr/bin/env bash
# dev/bench_checkpoint.sh: what checkpoints cost: the loop with and without saving, and the rates of writing and
# loading beside those of dd on the same disk, the variants in turn. Prints a Markdown table of medians.
#
#   dev/bench_checkpoint.sh [--rounds N] [--model MODEL] [--folder FOLDER]
#   default: 3 rounds, gpt2:d12 (1.5 GB a checkpoint), build/bench; TRAIN=./train_gpt is the program
#
# Goals: a save costs the loop at most one copy of the state in memory (dd from file to file in /dev/shm);
# writing and loading reach 80 % of dd's rate. Files are out of the page cache before they are read. The loop computes
# with one thread and wants a second core for the writing.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
rounds=3 model=gpt2:d12 work=build/bench
while [ $# -gt 0 ]; do
    case $1 in
    --rounds) rounds=$2 ;;
    --model) model=$2 ;;
    --folder) work=$2 ;;
    *) echo "dev/bench_checkpoint.sh: unknown option $1; the head of the file names them" >&2 && exit 2 ;;
    esac
    shift 2
done
mkdir -p "$work"
work=$(mktemp -d "$work/checkpoint.XXXXXX")
trap 'rm -rf "$work" /dev/shm/bench_checkpoint.$$.*' EXIT
train=${TRAIN:-./train_gpt}
[ -n "${TRAIN:-}" ] || make -s DEVICE=cpu >/dev/null
dev/random_shard.sh 50257 "$work/tokens.bin"

program() { "$train" --model "$model" --ranks 1 --threads 1 --train "$work/tokens.bin" --batch 1 --seq 256 "$@"; }
now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { print b - a }'; }
median() { sort -g "$1" | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'; }
forget() { for f in "$@"; do dd if="$f" iflag=nocache count=0 status=none; done; }

# Seconds from the end of the second step to the end of the last, what is saved between them included.
loop() { # NAME OPTIONS
    local name=$1 && shift
    program --steps 13 --json "$@" --out "$work/loop" |
        perl -MTime::HiRes=time -ne '$| = 1; next unless /"loss":/; $n++; $from = time if $n == 2; $to = time;
            END { printf "%.6f\n", $to - $from }' >>"$work/$name"
    rm -rf "$work/loop"
}

# A checkpoint begins with model.bin and ends with the folder's name.
write_checkpoint() {
    rm -rf "$work/run"
    program --steps 0 --checkpoint-every 1 --out "$work/run" >/dev/null
    local step=$work/run/checkpoints/step_00000000
    local began ended
    began=$(date -d "$(stat -c %w $step/model.bin)" +%s.%N)
    ended=$(date -d "$(stat -c %y "$work/run/checkpoints")" +%s.%N)
    awk -v a="$began" -v b="$ended" 'BEGIN { print b - a }' >>"$work/write"
}

write_dd() {
    local t && t=$(now)
    dd if=/dev/zero of="$work/dd" bs=4M count="$bytes" iflag=count_bytes conv=fsync status=none
    since "$t" >>"$work/write_dd"
}

# By the program's own clock: memory for the model and the compute of the step that follow are not the disk's.
load() {
    forget "$work"/run/checkpoints/*/*
    program --resume "$work/run" --steps 1 | sed -n 's/^loaded .* in \(.*\) s$/\1/p' >>"$work/load"
}

load_dd() {
    forget "$work/dd"
    local t && t=$(now)
    dd if="$work/dd" of=/dev/null bs=4M status=none
    since "$t" >>"$work/load_dd"
}

copy_in_memory() {
    local t && t=$(now)
    dd if=/dev/shm/bench_checkpoint.$$.from of=/dev/shm/bench_checkpoint.$$.to conv=notrunc bs=1M status=none
    since "$t" >>"$work/copy"
}

write_checkpoint
bytes=$(cat "$work"/run/checkpoints/*/* | wc -c)
rm "$work/write"
for f in from to; do
    dd if=/dev/zero of=/dev/shm/bench_checkpoint.$$.$f bs=4M count="$bytes" iflag=count_bytes status=none
done
for ((i = 0; i < rounds; i++)); do
    loop none
    loop every5 --checkpoint-every 5 # two saves, of which the last is under way at the end
    write_checkpoint
    write_dd
    load
    load_dd
    copy_in_memory
done
echo "| $model, $((bytes / 1000000)) MB a checkpoint | | goal |"
echo "|---|---|---|"
awk -v none="$(median "$work/none")" -v every="$(median "$work/every5")" -v copy="$(median "$work/copy")" 'BEGIN {
    printf "| 11 steps without and with 2 saves | %.0f and %.0f ms | |\n", 1e3 * none, 1e3 * every
    printf "| a save costs the loop, a copy in memory | %.0f and %.0f ms: %.2f | 1.00 |\n",
        500 * (every - none), 1e3 * copy, (every - none) / 2 / copy }'
for what in write load; do
    awk -v what=$what -v bytes="$bytes" -v own="$(median "$work/$what")" -v dd="$(median "$work/${what}_dd")" 'BEGIN {
        printf "| %s, dd | %.0f and %.0f MB/s: %.2f | 0.80 |\n", what, 1e-6 * bytes / own, 1e-6 * bytes / dd, dd / own }'
done
