#!/usr/bin/env bash
# scripts/gpt.sh SIZE [options of train_gpt]: trains one of the published models with its published batch and
# learning rate (Radford et al. 2019; Brown et al. 2020, table 2.1) on as many GPUs as the table says, or --ranks N,
# or RANKS. Options behind SIZE win over the table, a --config file among them too; only the number of ranks to launch is
# taken from --ranks here or RANKS, not from a file.
#   scripts/gpt.sh 124M --train 'data/*_train_*.bin' --val 'data/*_val_*.bin' --out runs/124M
#   scripts/gpt.sh 175B-64xA100 --plan                what it would need and how long it would take
# On a cluster: sbatch -N 8 --ntasks-per-node 8 --wrap "LAUNCH=srun scripts/gpt.sh 13B --ranks 64 ..."
set -euo pipefail
export LC_ALL=C
# Micro-batch and recomputation are the fastest of --plan that leave 1 GiB of the GPU, mostly 3 or more.
# size            model        T    ranks  B  tokens a step  lr      recompute  planned for  and
table='
124M              gpt2:d12     1024     8 64        524288   6e-4    none       a100-80gb
350M              gpt2:d24     1024     8 64        524288   3e-4    none       a100-80gb
774M              gpt2:d36     1024     8 32        524288   2.5e-4  none       a100-80gb
1558M             gpt2:d48     1024     8 32        524288   2e-4    gelu       h100-sxm
125M              gpt3:c768    2048     8 32        524288   6e-4    none       a100-80gb
760M              gpt3:c1536   2048     8 32        524288   2.5e-4  gelu       a100-80gb
1.3B              gpt3:c2048   2048     8 16       1048576   2e-4    none       a100-80gb
2.7B              gpt3:c2560   2048    16 16       1048576   1.6e-4  gelu       a100-80gb
6.7B              gpt3:c4096   2048    32  8       2097152   1.2e-4  none       a100-80gb
13B               gpt3:c5120   2048    64  4       2097152   1e-4    none       h100-sxm
175B              gpt3:c12288  2048   256  6       3145728   6e-5    layer      h100-sxm
175B-64xA100      gpt3:c12288  2048    64  1       3145728   6e-5    layer      a100-80gb    --moment-dtype fp64 --unit matrix --grad-buffers 1
175B-64xA100-bf16 gpt3:c12288  2048    64  3       3145728   6e-5    layer      a100-80gb    --unit half
175B-128xA100     gpt3:c12288  2048   128  4       3145728   6e-5    layer      a100-80gb
175B-64xH100      gpt3:c12288  2048    64  3       3145728   6e-5    layer      h100-sxm     --unit half
175B-512xH100     gpt3:c12288  2048   512  3       3145728   6e-5    layer      h100-sxm
'
sizes=$(awk 'NF {printf " %s", $1}' <<<"$table")
size=${1:-}
row=$(awk -v size="$size" '$1 == size' <<<"$table")
[ -n "$row" ] || { echo "scripts/gpt.sh: ${size:-no size}: expected one of$sizes, then options of train_gpt" >&2; exit 1; }
shift
read -r _ model T ranks batch tokens lr recompute gpu more <<<"$row"
ranks=${RANKS:-$ranks} plan=false last=
for word in "$@"; do
    case $word in
    --plan | --plan=1 | --plan=yes | --plan=best) plan=true ;;
    --plan=*) plan=false ;;
    --ranks=*) ranks=${word#*=} ;;
    esac
    case "$last $word" in
    "--ranks "*) ranks=$word ;;
    "--plan 0" | "--plan no") plan=false ;;
    esac
    last=$word
done
[[ $ranks =~ ^[1-9][0-9]{0,4}$ ]] || { echo "scripts/gpt.sh: --ranks $ranks: expected a number of ranks" >&2; exit 1; }
# The published step on more ranks: a smaller micro-batch, where the table's does not divide it.
for ((smaller = batch; smaller > 0; smaller--)); do
    [ $((tokens % (smaller * T * ranks))) = 0 ] && batch=$smaller && break
done

program=$(dirname "$(realpath "$0")")/../train_gpt
command=("$program" --model "$model" --batch "$batch" --tokens-per-step "$tokens" --lr "$lr" --warmup 700
    --final-lr 0.1 --weight-decay 0.1 --recompute "$recompute" --precision bf16 --reduce fast $more)
if [ $plan = true ]; then
    # Another cluster's file says which GPU it has.
    [[ " $* " == *" --cluster"* ]] || command+=(--gpu "$gpu")
    exec "${command[@]}" --ranks "$ranks" "$@"
fi
# Without standard input, which mpirun would read to its end: a loop that feeds this script goes on.
exec ${LAUNCH:-mpirun -n "$ranks"} "${command[@]}" "$@" </dev/null
