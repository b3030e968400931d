#!/usr/bin/env bash
# scripts/gpt.sh SIZE [options of train_gpt]: trains one of the published models with its published batch and
# learning rate (Radford et al. 2019; Brown et al. 2020, table 2.1) on as many GPUs as the table says, or --ranks N,
# or RANKS. Options behind SIZE win over the table, a --config file among them too.
#   scripts/gpt.sh 124M --train 'data/*_train_*.bin' --val 'data/*_val_*.bin' --out runs/124M
#   scripts/gpt.sh 175B --ranks 64 --dry-run          what it would need, without doing it
# On a cluster: sbatch -N 8 --ntasks-per-node 8 --wrap "LAUNCH=srun scripts/gpt.sh 13B --ranks 64 ..."
set -euo pipefail
export LC_ALL=C
# size   model         T     ranks  B  tokens a step  lr      recompute
table='
124M     gpt2:d12      1024      8 64        524288   6e-4    none
350M     gpt2:d24      1024      8 32        524288   3e-4    none
774M     gpt2:d36      1024      8 16        524288   2.5e-4  none
1558M    gpt2:d48      1024      8 16        524288   2e-4    none
125M     gpt3:c768     2048      8 32        524288   6e-4    none
760M     gpt3:c1536    2048      8  8        524288   2.5e-4  none
1.3B     gpt3:c2048    2048      8  8       1048576   2e-4    gelu
2.7B     gpt3:c2560    2048     16  8       1048576   1.6e-4  norm
6.7B     gpt3:c4096    2048     32  4       2097152   1.2e-4  norm
13B      gpt3:c5120    2048     64  4       2097152   1e-4    norm
175B     gpt3:c12288   2048    256  3       3145728   6e-5    layer
'
sizes=$(awk 'NF {printf " %s", $1}' <<<"$table")
size=${1:-}
row=$(awk -v size="$size" '$1 == size' <<<"$table")
[ -n "$row" ] || { echo "scripts/gpt.sh: ${size:-no size}: expected one of$sizes, then options of train_gpt" >&2; exit 1; }
shift
read -r _ model T ranks batch tokens lr recompute <<<"$row"
ranks=${RANKS:-$ranks} dry=false last=
for word in "$@"; do
    case $word in
    --dry-run | --dry-run=1 | --dry-run=yes | --dry-run=true | --dry-run=on) dry=true ;;
    --dry-run=*) dry=false ;;
    --ranks=*) ranks=${word#*=} ;;
    esac
    case "$last $word" in
    "--ranks "*) ranks=$word ;;
    "--dry-run "[0nf]* | "--dry-run off") dry=false ;;
    esac
    last=$word
done
[[ $ranks =~ ^[1-9][0-9]{0,4}$ ]] || { echo "scripts/gpt.sh: --ranks $ranks: expected a number of ranks" >&2; exit 1; }
# The published step on more ranks: a smaller micro-batch, where the table's does not divide it.
for ((smaller = batch; smaller > 0; smaller--)); do
    [ $((tokens % (smaller * T * ranks))) = 0 ] && batch=$smaller && break
done

program=$(dirname "$0")/../train_gpt
command=("$program" --model "$model" --batch "$batch" --tokens-per-step "$tokens" --lr "$lr" --warmup 700
    --final-lr 0.1 --weight-decay 0.1 --recompute "$recompute" --precision bf16 --reduce fast
    --logits-rows 16384)
[ $dry = false ] || exec "${command[@]}" --ranks "$ranks" "$@"
# Without standard input, which mpirun would read to its end: a loop that feeds this script goes on.
exec ${LAUNCH:-mpirun -n "$ranks"} "${command[@]}" "$@" </dev/null
