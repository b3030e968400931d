#!/usr/bin/env bash
# dev/bench_generate.sh: tokens a second of --generate against what the memory allows, with transformers beside it if
# PYTHON has it. A token reads every parameter once: the bound is the bandwidth of a copy over the bytes of the
# parameters that compute. Prints a Markdown table. Everything it makes is in build/bench/.
#
#   dev/bench_generate.sh [MODEL]              default gpt2:d12, with random weights
#   TOKENS=100 THREADS=2 PYTHON=~/fsdp-venv/bin/python PRECISIONS="fp32 bf16"
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
model=${1:-gpt2:d12} tokens=${TOKENS:-100} threads=${THREADS:-$(nproc)} python=${PYTHON:-$HOME/fsdp-venv/bin/python}
work=build/bench
mkdir -p $work
make -s DEVICE=cpu train_gpt >/dev/null

# A vocabulary of GPT-2's size: only the number of its tokens matters here.
perl -e 'print pack("L<4 x1008", 20240328, 2, 50257, 50256), map { pack("C/a*", sprintf(" %x", $_)) } 1 .. 50257' \
    >$work/tokenizer.bin
rm -rf $work/generate.bin $work/generate.hf
./train_gpt --model "$model" --steps 0 --export-model $work/generate.bin --export-hf $work/generate.hf >$work/generate.log
parameters=$(sed -n 's/.*, \([0-9]*\) parameters$/\1/p' $work/generate.log)

make -s DEVICE=cpu $work/bench_ops --eval "$work/bench_ops: dev/bench_ops.cpp \$(HEADERS) \$(wildcard cpu/*.h); \
    \$(CXX) \$(CPU_FLAGS) -march=native -DPRECISION_BF16=0 \$< -o \$@ \$(CPU_LIBS)"
bandwidth=$(OMP_PROC_BIND=true $work/bench_ops --peak --threads "$threads" | sed -n 's/^memory_copy_gbs //p')

ours() { # PRECISION
    ./train_gpt --model $work/generate.bin --tokenizer $work/tokenizer.bin --precision "$1" --threads "$threads" \
        --generate "$tokens" --samples 2 --json |
        awk -F'"ms":' '{ split($0, t, "\"tokens\":"); n = t[2] + 0; rate = 1e3 * (n - 1) / ($2 + 0)
            if (rate > best) best = rate } END { printf "%.1f", best }'
}

theirs() { # PRECISION
    "$python" - "$1" "$tokens" "$threads" $work/generate.hf <<'P' 2>/dev/null || echo "-"
import sys
import time

import torch
from transformers import GPT2LMHeadModel

precision, tokens, threads, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
torch.set_num_threads(threads)
model = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32 if precision == "fp32" else torch.bfloat16)
start, best = torch.tensor([[50256]]), 0.0
with torch.inference_mode():
    for _ in range(3):
        began = time.perf_counter()
        out = model.generate(start, min_new_tokens=tokens, max_new_tokens=tokens, do_sample=True, temperature=0.8,
                             top_k=0, pad_token_id=50256)
        best = max(best, (out.shape[1] - 1) / (time.perf_counter() - began))
print(f"{best:.1f}")
P
}

echo "$model, $parameters parameters, $threads threads, $tokens tokens; a copy moves $bandwidth GB/s"
echo
echo "| precision | bound, tokens/s | tokens/s | of the bound | transformers |"
echo "|---|---|---|---|---|"
for precision in ${PRECISIONS:-fp32 bf16}; do
    bytes=$((parameters * $([ "$precision" = fp32 ] && echo 4 || echo 2)))
    bound=$(awk -v b="$bandwidth" -v n="$bytes" 'BEGIN { printf "%.1f", 1e9 * b / n }')
    rate=$(ours "$precision")
    share=$(awk -v a="$rate" -v b="$bound" 'BEGIN { printf "%.0f %%", 100 * a / b }')
    echo "| $precision | $bound | $rate | $share | $(theirs "$precision") |"
done
