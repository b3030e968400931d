#!/usr/bin/env bash
# Checks the CUDA program on a machine with a GPU, in under five minutes: every kernel against double precision, a few
# steps of training against the CPU device and PyTorch's values, the time of each kernel against its bound, the MFU of
# a step, and one table of the times that doc/gpu-speed.md's model predicts beside those measured. Without a GPU it
# builds all of it, prints what is predicted for an H100, and says that it skips the rest.
#
#   dev/gpu_check.sh            needs what `make DEVICE=cuda` and `make test` need
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
out=build/gpu_check
mkdir -p "$out"

gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1 || true)
arch=${ARCH:-$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d . || true)}
programs=(train_gpt test_kernels_fp32 test_kernels_bf16 bench_kernels_fp32 bench_kernels_bf16)
echo "building for ${gpu:-no GPU} (sm_${arch:-80})"
make -s -j"${JOBS:-$(nproc)}" DEVICE=cuda ARCH="${arch:-80}" O="$out/cuda" "${programs[@]/#/$out/cuda/}"

# A step of GPT-2 124M as scripts/gpt.sh runs it.
step=(--model gpt2:d12 --batch 64 --seq 1024 --precision bf16 --ranks 1)
step_row() { printf '%-28s %-5s %9.3f ms\n' "step of gpt2:d12, B 64, T 1024" bf16 "$1"; }

# How long kernels and the step should take on a GPU of plan/gpus.h in the first minutes, to $predicted.
predicted="$out/predicted.txt"
predict() {
    local milliseconds
    printf 'gpu = %s\nsustained = 1\n' "$1" > "$out/cluster.cfg"
    make -s -j"${JOBS:-$(nproc)}" DEVICE=cpu build/cpu/predict_kernels &&
        build/cpu/predict_kernels "$1" > "$predicted" &&
        milliseconds=$("$out/cuda/train_gpt" --plan --json --cluster "$out/cluster.cfg" "${step[@]}" |
            python3 -c 'import json, sys; print(1e3 * json.load(sys.stdin)["step"]["seconds"])') &&
        step_row "$milliseconds" >> "$predicted"
}

known=h100-sxm
[ -z "$gpu" ] || known=$(awk -F'"' -v gpu="${gpu#NVIDIA }" '/^ *{"/ && index("|" $4 "|", "|" gpu "|") { print $2; exit }' \
    plan/gpus.h)
rm -f "$predicted"
if [ -z "$known" ]; then
    echo "skipped: predicted times, as plan/gpus.h has no $gpu"
elif [ ! -f "${CUDA_HOME:-/usr/local/cuda}/include/cuda_runtime.h" ]; then
    echo "skipped: predicted times, which need the toolkit's headers in CUDA_HOME (/usr/local/cuda)"
elif ! predict "$known" 2> "$out/predict.log"; then
    rm -f "$predicted"
    echo "skipped: predicted times: $(tail -1 "$out/predict.log") (all of it is in $out/predict.log)"
fi

if [ -z "$gpu" ]; then
    [ ! -f "$predicted" ] || python3 dev/compare_times.py "$predicted"
    echo "skipped: no GPU answers; everything was built"
    exit 0
fi
make -s -j"${JOBS:-$(nproc)}" DEVICE=cpu O="$out/cpu" "$out/cpu/train_gpt"

failed=0
table="$out/table.txt"
: > "$table"
row() { printf '%-28s %-5s %s\n' "$@" | tee -a "$table"; }

for dtype in fp32 bf16; do
    log="$out/test_kernels_$dtype.log"
    if "$out/cuda/test_kernels_$dtype" > "$log" 2>&1; then
        row "kernels" $dtype "$(grep -c '       OK ' "$log") tests pass"
    else
        row "kernels" $dtype "FAILED, see $log"
        grep -A3 -E 'ERROR|FAILED' "$log" || tail -3 "$log"
        failed=1
    fi
done

# compare_losses NAME DTYPE LOG LOG ALLOWED: the largest difference of the losses (trl, tel) of two main.log
compare_losses() {
    local difference
    difference=$(awk '
        { split($0, field, /[: ]/); loss = field[4]; key = field[2] field[3] }
        NR == FNR { expected[key] = loss; n++; next }
        key in expected { d = loss - expected[key]; if (d < 0) d = -d; if (d > most) most = d; both++ }
        END { print (both == n && n > 0) ? most + 0 : "inf" }' "$3" "$4")
    if awk -v d="$difference" -v allowed="$5" 'BEGIN { exit !(d != "inf" && d <= allowed) }'; then
        row "$1" "$2" "20 steps: losses within $difference (allowed $5)"
    else
        row "$1" "$2" "FAILED: losses differ by $difference (allowed $5): $3 $4"
        failed=1
    fi
}

# bf16 is rounded at other places by the CPU's products, cuBLASLt's and PyTorch's.
for dtype in fp32 bf16; do
    allowed=$([ $dtype = fp32 ] && echo 0.00002 || echo 0.01)
    for model in tiny small; do
        for device in cuda cpu; do
            rm -rf "$out/$model.$dtype.$device"
            "$out/$device/train_gpt" --config test/reference/$model/options.cfg --precision $dtype --ranks 1 \
                --out "$out/$model.$dtype.$device" > "$out/$model.$dtype.$device.log" 2>&1 || {
                row "training $model on $device" $dtype "FAILED: $(tail -1 "$out/$model.$dtype.$device.log")"
                failed=1
            }
        done
        log="$out/$model.$dtype.cuda/main.log"
        [ -f "$log" ] || continue
        compare_losses "$model against the CPU" $dtype "$out/$model.$dtype.cpu/main.log" "$log" $allowed
        reference=test/reference/$model/main_$dtype.log
        if python3 -c 'import torch' 2>/dev/null; then  # else PyTorch's values as they are in the repository
            mkdir -p "$out/torch.$model"
            python3 dev/reference.py test/reference/$model/options.cfg --precision $dtype --out "$out/torch.$model"
            reference="$out/torch.$model/main_$dtype.log"
        fi
        compare_losses "$model against PyTorch" $dtype "$reference" "$log" $allowed
    done
done

measured="$out/measured.txt"
for dtype in bf16 fp32; do
    "$out/cuda/bench_kernels_$dtype" | tee -a "$table" "$out/bench_$dtype.txt"
done
cp "$out/bench_bf16.txt" "$measured"

# A text long enough for a few steps.
text="$out/text.txt"
for i in $(seq 80); do cat doc/*.md README.md; done > "$text"
"$out/cuda/train_gpt" "${step[@]}" --train "$text" --steps 12 > "$out/step.log" 2>&1 ||
    { tail -1 "$out/step.log"; failed=1; }
last=$(grep '^step' "$out/step.log" | tail -1 || true)
row "step of gpt2:d12, B 64, T 1024" bf16 "$last"
[ -z "$last" ] || step_row "$(sed 's/.*| \([0-9]*\) ms |.*/\1/' <<< "$last")" >> "$measured"
if [ -f "$predicted" ]; then
    python3 dev/compare_times.py "$predicted" "$measured" | tee -a "$table"
fi

echo
echo "$gpu, $(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -1): all of it is in $table"
exit $failed
