// test/cpu_reference.cpp: see cpu_reference.h. Compiled with DEVICE_CPU.
#include "ops.h"

#include <omp.h>

#include "test/cpu_reference.h"
#include <vector>

// One thread: the tests fork, and a forked process has none of OpenMP's other threads.
__attribute__((constructor)) static void use_one_thread(void) {
    omp_set_num_threads(1);
}

namespace cpu {

typedef floatX *X;
typedef const floatX *CX;
static std::vector<char> room;

void init(int B, int T, int C, int NH, int V, int head_rows) {
    OpsDims d = {B, T, C, NH, V, head_rows, false};
    if (workspace.threads) ops_destroy();
    room.resize(ops_workspace_bytes(&d));
    ops_init(&d, room.data(), room.size(), NULL);
}

void encoder_forward(void *out, const int *tokens, const void *wte, const void *wpe, int B, int T,
                     int C) {
    ::encoder_forward((X)out, tokens, (CX)wte, (CX)wpe, B, T, C, NULL);
}

void encoder_backward(float *dwte, float *dwpe, const void *dout, const int *tokens, int B, int T,
                      int C) {
    ::encoder_backward(dwte, dwpe, (CX)dout, tokens, B, T, C, NULL);
}

void cast_to_bf16(void *dst, const float *src, size_t n) {
    ::cast_to_bf16((bf16 *)dst, src, n, NULL);
}

void shard_add_ordered(float *shard, const float *parts, int nparts, size_t stride, size_t n,
                       bool accumulate) {
    ::shard_add_ordered(shard, parts, nparts, stride, n, accumulate, NULL);
}

void shard_checksum(uint64_t *sum, const void *data, size_t words) {
    ::shard_checksum(sum, data, words, NULL);
}
void shard_absmax(float *max, const float *x, size_t n) {
    ::shard_absmax(max, x, n, NULL);
}

void shard_sum_squares(double *sums, const float *x, size_t n, const float *absmax,
                       int total_bits) {
    ::shard_sum_squares(sums, x, n, absmax, total_bits, NULL);
}

void adamw_update(float *p, const float *g, void *m, void *v, size_t n, uint64_t first,
                  const double *sums, const void *config) {
    ::adamw_update(p, g, m, v, adamw_whole(n, first), sums, (const AdamWConfig *)config, NULL);
}

}  // namespace cpu
