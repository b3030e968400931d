// test/cpu_reference.h: the CPU ops as plain functions, for tests of the kernels, which define the
// same names. Arrays of floatX are void *: the CPU's bf16 is a type of its own with the same bits.
// The arguments are those of ops.h.
#pragma once

#include "config.h"
#include <stddef.h>
#include <stdint.h>

namespace cpu {

// Largest sizes of what follows; call first.
void init(int B, int T, int C, int NH, int V, int head_rows);
void encoder_forward(void *out, const int *tokens, const void *wte, const void *wpe, int B, int T,
                     int C);
void encoder_backward(float *dwte, float *dwpe, const void *dout, const int *tokens, int B, int T,
                      int C);
void layernorm_forward(void *out, float *mean, float *rstd, const void *inp, const void *weight,
                       const void *bias, int rows, int C);
void residual_layernorm_forward(void *residual, void *out, float *mean, float *rstd,
                                const void *inp1, const void *inp2, const void *weight,
                                const void *bias, int rows, int C);
void layernorm_backward(void *dinp, float *dweight, float *dbias, const void *dout, const void *inp,
                        const void *weight, const float *mean, const float *rstd, int rows, int C,
                        bool accumulate);
void matmul_gelu_forward(void *out, void *pre, const void *inp, const void *weight,
                         const void *bias, int rows, int Cin, int Cout);
void matmul_backward_input(void *dinp, const void *dout, const void *weight, const void *pre,
                           int rows, int Cin, int Cout);
void matmul_backward_weight(float *dweight, float *dbias, const void *dout, const void *inp,
                            int rows, int Cin, int Cout, bool accumulate);
void attention_forward(void *out, float *lse, const void *qkv, int B, int T, int C, int NH);
void attention_backward(void *dqkv, const void *dout, const void *out, const void *qkv,
                        const float *lse, int B, int T, int C, int NH);
void classifier(void *logits, float *losses, const int *targets, int rows, int V, int ld,
                bool write_dlogits);
void sum_losses(double *sum, const float *losses, int rows);
void cast_to_bf16(void *dst, const float *src, size_t n);
void shard_add_ordered(float *shard, const float *parts, int nparts, size_t stride, size_t n,
                       bool accumulate);
void shard_absmax(float *max, const float *x, size_t n);
void shard_checksum(uint64_t *sum, const void *data, size_t words);
void shard_sum_squares(double *sums, const float *x, size_t n, const float *absmax, int total_bits);
// config: an AdamWConfig, which this header cannot name.
void adamw_update(float *p, const float *g, void *m, void *v, size_t n, uint64_t first,
                  const double *sums, const void *config);

}  // namespace cpu
