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
