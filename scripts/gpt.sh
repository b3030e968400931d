#!/usr/bin/env bash
# scripts/gpt.sh SIZE [options of train_gpt]: trains one of the published models with its published batch and
# learning rate (Radford et al. 2019; Brown et al. 2020, table 2.1) on as many GPUs as the table says, or RANKS.
#   scripts/gpt.sh 124M --train 'data/*_train_*.bin' --val 'data/*_val_*.bin' --out runs/124M
#   RANKS=64 scripts/gpt.sh 175B --dry-run            what it would need, without doing it
# On a cluster: sbatch -N 8 --ntasks-per-node 8 --wrap "LAUNCH=srun scripts/gpt.sh 13B ..."
set -euo pipefail
cd "$(dirname "$0")/.."
size=${1:?usage: scripts/gpt.sh SIZE [options], with SIZE one of 124M 350M 774M 1558M 125M 760M 1.3B 2.7B 6.7B 13B 175B}
shift
# size   model         ranks  B  tokens a step  lr      recompute
table='
124M     gpt2:d12          8 64        524288   6e-4    none
350M     gpt2:d24          8 32        524288   3e-4    none
774M     gpt2:d36          8 16        524288   2.5e-4  none
1558M    gpt2:d48          8 16        524288   2e-4    gelu
125M     gpt3:c768         8 32        524288   6e-4    none
760M     gpt3:c1536        8  8        524288   2.5e-4  none
1.3B     gpt3:c2048        8  8       1048576   2e-4    gelu
2.7B     gpt3:c2560       16  8       1048576   1.6e-4  norm
6.7B     gpt3:c4096       32  4       2097152   1.2e-4  norm
13B      gpt3:c5120       64  4       2097152   1e-4    norm
175B     gpt3:c12288     256  1       3145728   6e-5    layer
'
row=$(awk -v size="$size" '$1 == size' <<<"$table")
[ -n "$row" ] || { echo "scripts/gpt.sh: size $size: expected one of$(awk 'NF {printf " %s", $1}' <<<"$table")" >&2; exit 1; }
read -r _ model ranks batch tokens lr recompute <<<"$row"
ranks=${RANKS:-$ranks}
options=(--model "$model" --batch "$batch" --tokens-per-step "$tokens" --lr "$lr" --warmup 700 --final-lr 0.1
    --weight-decay 0.1 --recompute "$recompute" --precision bf16 --reduce fast)
if [[ " $* " == *" --dry-run "* ]]; then
    exec ./train_gpt "${options[@]}" --ranks "$ranks" "$@"
fi
${LAUNCH:-mpirun -n "$ranks"} ./train_gpt "${options[@]}" "$@"
