#!/usr/bin/env bash
# dev/bench.sh: speed of training steps on two cores as a share of what they could do, which is measured in the
# same run, and next to PyTorch. Prints a Markdown table. Everything it makes is in build/bench/.
#
#   dev/bench.sh [--only PATTERN] [--dtypes "fp32 bf16"] [--quick] [--fastest]
#     --only      rows whose name (124M-64 124M-256 124M-1024 small-65 small-50304) matches the regular expression
#     --quick     one round of few steps, without 124M-1024 unless --only asks for it
#     --fastest   the fastest step instead of the median, for a machine that others use at the same time
#   TORCH_PYTHON=/venv/bin/python   a Python that has torch (default python3); rows without PyTorch if it has none
#   TORCH_COMPILE=1                 PyTorch with torch.compile
#   TRAIN=./train_gpt               the program; default: built here
#
# The floor of a step of N = B*T tokens, with X bytes a floatX and P parameters, is the sum of
#   products   6 (12 L C^2 + Vp C) flops a token, at the multiply-add peak of the dtype
#   attention  7 products (2 forward, 5 backward) of 2 C flops for each of T (T+1) / 2 pairs, at the same peak
#   AdamW      28 P bytes (p, m, v read and written, g read), at the speed of memory traffic in place
#   passes     33 L C + 3 Vp floatX a token, at that same speed: in a layer both residual sums and LayerNorms 8 C,
#              their backward 8 C, bias gradients 9 C, GELU 4 C out and 4 C in; of the logits three passes
#   exps       20 flops (ten multiply-adds) for each of 8 L C (GELU), L NH T (attention) and 2 Vp (classifier) a
#              token, at the fp32 peak
# Share = floor / measured. Where the processor has AMX, bf16 is held against its peak, and in the next column
# against that of its vector units.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
only= dtypes="fp32 bf16" quick= fastest=
while [ $# -gt 0 ]; do
    case $1 in
    --only) only=$2 && shift ;;
    --dtypes) dtypes=$2 && shift ;;
    --quick) quick=1 ;;
    --fastest) fastest=1 ;;
    *) echo "dev/bench.sh: unknown option $1; the head of the file names them" >&2 && exit 2 ;;
    esac
    shift
done
work=build/bench
mkdir -p $work
python=${TORCH_PYTHON:-python3}
torch=$("$python" -c 'import torch; print(torch.__version__)' 2>/dev/null || true)
tcmalloc=$(ldconfig -p | awk '/libtcmalloc_minimal\.so/ { print $NF; exit }')
[ -z "$torch" ] || [ -n "$tcmalloc" ] || echo "PyTorch runs without tcmalloc: install libtcmalloc-minimal4" >&2
train=${TRAIN:-./train_gpt}
[ -n "${TRAIN:-}" ] || make -s DEVICE=cpu >/dev/null
level=$(grep -qw avx512bw /proc/cpuinfo && echo avx512 || { grep -qw avx2 /proc/cpuinfo && echo avx2 || echo generic; })
make -s DEVICE=cpu $work/bench_ops --eval "$work/bench_ops: dev/bench_ops.cpp \$(HEADERS) \$(wildcard cpu/*.h); \
    \$(CXX) \$(CPU_FLAGS) \$(LEVEL_$level) \$< -o \$@ \$(CPU_LIBS)"

# ---- the machine ----

# The machine's speed may change while this runs, so its figures are taken between the runs of a row, and the row is
# held against their median, or the fastest.
measure_peak() { OMP_PROC_BIND=true $work/bench_ops --peak --threads 2 >>$work/peak; }
peak() { awk -v name="$1" '$1 == name { print $2 }' $work/peak | middle; }
# Without AMX, bf16 may be multiplied as such or widened to fp32.
vector() { printf '%s\n' "$(peak fp32_gflops)" "$(peak bf16_avx512_gflops)" | sort -g | tail -1; }

# Of the numbers on stdin the median or, for --fastest, the largest.
middle() {
    sort -g | awk -v fastest=$fastest '{ x[NR] = $1 }
        END { print fastest ? x[NR] : (x[int((NR + 1) / 2)] + x[int(NR / 2) + 1]) / 2 }'
}

# ---- steps: each prints the ms of a process's steps without the first, which plan and allocate ----

step_times() {
    awk -v warm=$warm 'match($0, /"ms": ?[0-9.e+]+/) { if (n++ >= warm) print substr($0, RSTART + 5, RLENGTH - 5) + 0; next }
        { said = said $0 "\n" } END { if (n <= warm) { printf "%s", said >"/dev/stderr"; exit 1 } }'
}

ours() { # RANKS THREADS
    "$train" --model "gpt2:L=$L,C=$C,NH=$NH,T=$T,V=$V" --train "$work/tokens_$V.bin" --batch $((B / $1)) --ranks "$1" \
        --threads "$2" --precision "$dtype" --steps $((steps + warm)) --json 2>&1 | step_times
}

pytorch() {
    LD_PRELOAD=$tcmalloc OMP_NUM_THREADS=2 OMP_PROC_BIND=true "$python" dev/bench_torch.py $L $C $NH $V $B $T "$dtype" \
        $((steps + warm)) ${TORCH_COMPILE:+compile} 2>&1 | step_times
}

# Tokens a second from the step times on stdin.
speed() { awk -v N=$((B * T)) '{ print 1e3 * N / $1 }' | middle; }

# Tokens a second at the floor, given the peak in GF/s.
floor() {
    awk -v L=$L -v C=$C -v NH=$NH -v V=$V -v B=$B -v T=$T -v X=$([ "$dtype" = bf16 ] && echo 2 || echo 4) -v peak="$1" \
        -v fp32="$(peak fp32_gflops)" -v memory="$(peak memory_gbs)" 'BEGIN {
        Vp = int((V + 63) / 64) * 64; N = B * T; P = 12 * L * C * C + 13 * L * C + (V + T + 2) * C
        products = 6 * N * (12 * L * C * C + Vp * C)
        attention = 7 * L * B * T * (T + 1) / 2 * 2 * C
        passes = N * X * (33 * L * C + 3 * Vp)
        exps = 20 * N * (8 * L * C + L * NH * T + 2 * Vp)
        print 1e9 * N / ((products + attention) / peak + (28 * P + passes) / memory + exps / fp32) }'
}

# ---- rows ----

row() { # NAME L C NH V B T STEPS, of each of two rounds
    [[ $1 =~ $only ]] || return 0
    local name=$1 rounds=2 steps=$8 warm=1 dtype one two theirs=0 second=0
    L=$2 C=$3 NH=$4 V=$5 B=$6 T=$7
    [ -z "$quick" ] || rounds=1
    dev/random_shard.sh "$V" "$work/tokens_$V.bin"
    for dtype in $dtypes; do
        rm -f $work/ms_* $work/peak
        for ((i = 0; i < rounds; i++)); do
            measure_peak
            ours 1 2 >>$work/ms_one
            measure_peak
            [ -z "$torch" ] || pytorch >>$work/ms_torch
            measure_peak
            ours 2 1 >>$work/ms_two
        done
        one=$(speed <$work/ms_one) two=$(speed <$work/ms_two)
        [ -z "$torch" ] || theirs=$(speed <$work/ms_torch)
        [ "$dtype" = fp32 ] || second=$(floor "$(vector)")
        awk -v name="$name $dtype" -v floor="$(floor "$(peak "${dtype}_gflops")")" -v second="$second" -v one="$one" \
            -v two="$two" -v theirs="$theirs" 'BEGIN {
            vector = (second > 0 && second < floor) ? sprintf("%.0f %%", 100 * one / second) : ""
            torch = (theirs > 0) ? sprintf("%.0f | %.2f", theirs, one / theirs) : " | "
            printf "| %s | %.0f | %.0f | %.0f %% | %s | %.0f | %.2f | %s |\n", name, floor, one, 100 * one / floor,
                vector, two, two / one, torch }'
    done
}

awk '/model name/ { sub(/.*: /, ""); print; exit }' /proc/cpuinfo
rm -f $work/peak
measure_peak
paste -sd , $work/peak
how=median
[ -z "$fastest" ] || how=fastest
echo "PyTorch ${torch:-not installed}${TORCH_COMPILE:+, compiled}; tokens a second, $how step"
echo
echo "| model-T or V, dtype | floor | 1 rank x 2 threads | share | of vector peak | 2 ranks x 1 thread | ratio | PyTorch | ours / PyTorch |"
echo "|---|---|---|---|---|---|---|---|---|"
row 124M-64 12 768 12 50257 4 64 6
row 124M-256 12 768 12 50257 4 256 3
[ -n "$quick" ] && [ -z "$only" ] || row 124M-1024 12 768 12 50257 4 1024 2
row small-65 6 384 6 65 8 256 8
row small-50304 6 384 6 50304 8 256 4
