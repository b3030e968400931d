#!/usr/bin/env bash
# Checks the CUDA program on a machine with a GPU, in under five minutes: every kernel against double precision, a few
# steps of training against the CPU device and PyTorch's values, the time of each kernel against its bound, and
# the MFU of a step. Without a GPU it builds all of it and says that it skips the rest.
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
if [ -z "$gpu" ]; then
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

for dtype in bf16 fp32; do
    "$out/cuda/bench_kernels_$dtype" | tee -a "$table"
done

# A step of GPT-2 124M as scripts/gpt.sh runs it; a text long enough for a few of them.
text="$out/text.txt"
for i in $(seq 80); do cat doc/*.md README.md; done > "$text"
"$out/cuda/train_gpt" --model gpt2:d12 --train "$text" --batch 64 --seq 1024 --steps 12 --precision bf16 \
    --logits-rows 16384 --ranks 1 > "$out/step.log" 2>&1 || { tail -1 "$out/step.log"; failed=1; }
row "step of gpt2:d12, B 64, T 1024" bf16 "$(grep '^step' "$out/step.log" | tail -1)"

echo
echo "$gpu, $(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -1): all of it is in $table"
exit $failed
