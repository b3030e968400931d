// ops.h: what every op computes, for both devices. cpu/NAME.h is the plain C form, kernels/NAME.cuh
// the CUDA form; both define the static functions declared here with these very signatures. A third
// form, in plan/ops.h, only counts the work, for --plan.
//
// Contract of all ops
//   - Row-major, contiguous. floatX is fp32 or bf16 (device.h); sums are taken in fp32 or wider.
//   - A result depends on its inputs only: not on the number of threads, not on the run. No float
//     atomics.
//   - Asynchronous on `stream`; nothing is allocated: an op that needs room takes it from the
//     workspace given to ops_init (owned by the compute stream), so these ops run on the compute
//     stream only. The shard ops at the end use no workspace and run on any stream.
//   - Any size is correct, down to C=1, T=1, V=1, and on GPUs up to C=16384; speed is asked of
//     C % 64 == 0, head size 64..128.
//   - `rows` = B*T. Element indices are computed in size_t: rows*C and rows*V pass 2^31.
//   - Gradients of parameters are fp32 (they go to the gradient slot before reduction).
//   - accumulate=false overwrites the destination, accumulate=true adds to it: `x = 0; x += op` and
//     `x = op` are the same number.
#pragma once

#include "adamw.cuh"
#include "config.h"
#include "device.h"

// Largest sizes the ops will meet; fixes the workspace. head_rows: rows of one classifier chunk.
// tf32: matrix products of fp32 round their operands to TF32 (GPUs).
typedef struct {
    int B, T, C, NH, V, head_rows;
    bool tf32;
} OpsDims;

static size_t ops_workspace_bytes(const OpsDims *d);
// Creates library handles. The workspace stays the caller's and must outlive the ops.
static void ops_init(const OpsDims *d, void *workspace, size_t workspace_bytes,
                     cudaStream_t stream);
static void ops_destroy(void);

// ---- encoder: out[b,t,:] = wte[tokens[b,t],:] + wpe[t,:] ---------------------------------------
static void encoder_forward(floatX *out, const int *tokens, const floatX *wte, const floatX *wpe,
                            int B, int T, int C, cudaStream_t stream);
// dwte[v,:] += sum of dout[i,:] over positions i (ascending) with tokens[i] == v; dwpe[t,:] += sum
// over b of dout[b,t,:]. The inner sum is complete before its one addition to dwte / dwpe.
// Other rows are untouched.
static void encoder_backward(float *dwte, float *dwpe, const floatX *dout, const int *tokens, int B,
                             int T, int C, cudaStream_t stream);

// ---- layernorm; mean and rstd (rows) are kept for the backward ---------------------------------
#define LAYERNORM_EPS 1e-5f
static void layernorm_forward(floatX *out, float *mean, float *rstd, const floatX *inp,
                              const floatX *weight, const floatX *bias, int rows, int C,
                              cudaStream_t stream);
// residual = inp1 + inp2; out = layernorm(residual). Statistics are taken from the residual as
// stored (rounded to floatX), so layernorm_forward(residual) gives the same bits.
// residual may be inp1.
static void residual_layernorm_forward(floatX *residual, floatX *out, float *mean, float *rstd,
                                       const floatX *inp1, const floatX *inp2, const floatX *weight,
                                       const floatX *bias, int rows, int C, cudaStream_t stream);
// dinp += gradient if accumulate_dinp, else dinp = gradient. dweight, dbias (C): overwritten, and
// dinp_sums (C), unless NULL, by the column sums of dinp as it is then.
static void layernorm_backward(floatX *dinp, float *dweight, float *dbias, float *dinp_sums,
                               const floatX *dout, const floatX *inp, const floatX *weight,
                               const float *mean, const float *rstd, int rows, int C,
                               bool accumulate_dinp, cudaStream_t stream);

// ---- matmul: weight is (Cout, Cin), as in torch's Linear ---------------------------------------
// out (rows, Cout) = inp (rows, Cin) @ weight^T + bias. bias may be NULL.
static void matmul_forward(floatX *out, const floatX *inp, const floatX *weight, const floatX *bias,
                           int rows, int Cin, int Cout, cudaStream_t stream);
// pre = inp @ weight^T + bias; out = gelu(pre), from pre as stored.
// pre may be NULL (inference): then out only.
static void matmul_gelu_forward(floatX *out, floatX *pre, const floatX *inp, const floatX *weight,
                                const floatX *bias, int rows, int Cin, int Cout,
                                cudaStream_t stream);
// dinp (rows, Cin) = dout (rows, Cout) @ weight; if pre != NULL (rows, Cin) also
// multiplied by gelu'(pre).
static void matmul_backward_input(floatX *dinp, const floatX *dout, const floatX *weight,
                                  const floatX *pre, int rows, int Cin, int Cout,
                                  cudaStream_t stream);
// dweight (Cout, Cin) = dout^T @ inp; dbias (Cout) = column sums of dout (dbias may be NULL).
static void matmul_backward_weight(float *dweight, float *dbias, const floatX *dout,
                                   const floatX *inp, int rows, int Cin, int Cout, bool accumulate,
                                   cudaStream_t stream);

// ---- gelu (tanh form), same bits as inside matmul_gelu_forward; used when it is recomputed -----
static void gelu_forward(floatX *out, const floatX *pre, size_t n, cudaStream_t stream);

// ---- causal attention --------------------------------------------------------------------------
// qkv (B,T,3,NH,HS): Q, K, V of a token side by side; out (B,T,NH,HS), HS = C/NH.
// out = softmax(Q K^T / sqrt(HS), causal) V. lse (B,NH,T): log-sum-exp of the scaled scores, kept
// for the backward. Never stores T x T.
static void attention_forward(floatX *out, float *lse, const floatX *qkv, int B, int T, int C,
                              int NH, cudaStream_t stream);
// out (C) = the same of the last of T tokens alone. qkv (T,3,NH,HS) is what the tokens before have
// left, and its own: a text that grows by a token needs no other cache.
static void attention_last(floatX *out, const floatX *qkv, int T, int C, int NH,
                           cudaStream_t stream);
// dqkv (B,T,3,NH,HS): overwritten.
static void attention_backward(floatX *dqkv, const floatX *dout, const floatX *out,
                               const floatX *qkv, const float *lse, int B, int T, int C, int NH,
                               cudaStream_t stream);

// ---- classifier: softmax cross-entropy over V of ld columns ------------------------------------
// losses[i] = -log softmax(logits[i, 0..V))[targets[i]]. If write_dlogits, logits become the
// gradient of the summed loss in place: softmax - onehot, columns V..ld zero. A target of -1 gives
// loss 0 and gradient 0.
static void classifier(floatX *logits, float *losses, const int *targets, int rows, int V, int ld,
                       bool write_dlogits, cudaStream_t stream);
// *sum += losses[0] + losses[1] + ... in that order's fixed tree, in double.
static void sum_losses(double *sum, const float *losses, int rows, cudaStream_t stream);

// ---- shard ops: flat arrays, any stream, any n, pointers aligned to 16 bytes unless n is small
static void cast_from_float(floatX *dst, const float *src, size_t n, cudaStream_t stream);
static void cast_to_bf16(bf16 *dst, const float *src, size_t n, cudaStream_t stream);
static void cast_from_bf16(float *dst, const bf16 *src, size_t n, cudaStream_t stream);
// shard[i] = or += part[i]
static void shard_add(float *shard, const float *part, size_t n, bool accumulate,
                      cudaStream_t stream);
// shard[i] = (((0 or shard[i]) + parts[0][i]) + parts[1][i]) + ... ;
// part k starts at parts + k*stride.
static void shard_add_ordered(float *shard, const float *parts, int nparts, size_t stride, size_t n,
                              bool accumulate, cudaStream_t stream);
// *max = max(*max, |x[i]|); NaN and infinity give infinity.
static void shard_absmax(float *max, const float *x, size_t n, cudaStream_t stream);
// Sum of squares of x, added to sums[0..2]; the total is sums[0] + sums[1] + sums[2]. What is
// behind the third is room for partial sums.
#define SHARD_SUMS (4 + 3 * 512)
// absmax == NULL: a plain double sum in a fixed order into sums[0].
// Else order-free (arithmetic.cuh), a level a sum: *absmax is the largest of all shards together,
// total_bits = ceil(log2(number of elements of all shards together)). A zero or non-finite *absmax
// goes to sums[0] as it is.
static void shard_sum_squares(double sums[SHARD_SUMS], const float *x, size_t n,
                              const float *absmax, int total_bits, cudaStream_t stream);
// *sum += checksum_word (arithmetic.cuh) of all words, modulo 2^64.
static void shard_checksum(uint64_t *sum, const void *data, size_t words, cudaStream_t stream);

// ---- AdamW on pieces of a shard ----------------------------------------------------------------
// See adamw.cuh. p, g: fp32; m, v: of c->moments; what is outside of the pieces stays. sums: the
// three device sums of shard_sum_squares over all shards; norm = sqrt(total) * grad_scale. A norm
// that is not finite leaves p, m and v untouched.
static void adamw_update(float *p, const float *g, void *m, void *v, AdamWPieces pieces,
                         const double sums[3], const AdamWConfig *c, cudaStream_t stream);
// After it, with the same pieces, sums and c: by how much it has lowered each element.
static void adamw_change(float *change, const float *p, const void *m, const void *v,
                         AdamWPieces pieces, const double sums[3], const AdamWConfig *c,
                         cudaStream_t stream);

#if defined(DEVICE_PLAN)
#include "plan/ops.h"
#elif defined(DEVICE_CPU)
#include "cpu/ops.h"
#else
#include "kernels/ops.cuh"
#endif
