// plan/ops.h: the ops of ../ops.h as the work that they are: the launches of kernels/ and what they
// read and write, of which the kernel report finds that they take as long as that takes
// (doc/gpu-speed.md). Nothing is computed.
#pragma once

#include "../kernels/workspace.h"
#include "device.h"

#pragma GCC diagnostic ignored "-Wunused-function"

#define PLAN_X ((double)sizeof(floatX))

// The CPU's ops need other room; it is asked of them.
static size_t ops_workspace_bytes(const OpsDims *d) {
    return plan_device.cluster.cpu ? plan_device.cpu_workspace
                                   : ops_room_bytes(d->B, d->T, d->C, d->NH) + PRODUCT_WORKSPACE;
}

static void ops_init(const OpsDims *, void *, size_t, cudaStream_t) {}
static void ops_destroy(void) {}

// A product of (m, k) and (k, n). moved: times that the result is written or read.
static void plan_product(WorkKind kind, int m, int n, int k, size_t result, int moved,
                         cudaStream_t s) {
    Work w = {};
    w.kind = kind;
    w.units = w.counted_flops = 2.0 * m * n * k;
    w.product = (ProductWork){m, n, k, (int)sizeof(floatX), (int)result, moved};
    w.launches = 1;
    plan_work(s, &w);
}

// On CPUs GELU and its derivative are at the end of a product.
static void plan_gelu(double n, bool derivative, cudaStream_t s) {
    if (!derivative || plan_device.cluster.cpu) plan_bytes(s, WORK_GELU, 2 * n * PLAN_X, 1);
}

static void plan_columns(double bytes, cudaStream_t s) {
    if (!plan_device.cluster.cpu) plan_bytes(s, WORK_COLUMNS, bytes, 2);
}

// ---- encoder -----------------------------------------------------------------------------------

static void encoder_forward(floatX *, const int *, const floatX *, const floatX *, int B, int T,
                            int C, cudaStream_t s) {
    plan_bytes(s, WORK_ENCODER, 3.0 * B * T * C * PLAN_X, 1);
}

// Four passes sort the tokens; then each position is read twice and a row of a token added to.
static void encoder_backward(float *, float *, const floatX *, const int *, int B, int T, int C,
                             cudaStream_t s) {
    plan_bytes(s, WORK_ENCODER, 2.0 * B * T * C * PLAN_X + 2.0 * T * C * (B + 1) * sizeof(float),
               6);
}

// ---- layernorm ---------------------------------------------------------------------------------

static void layernorm_forward(floatX *, float *, float *, const floatX *, const floatX *,
                              const floatX *, int rows, int C, cudaStream_t s) {
    plan_bytes(s, WORK_NORM, 2.0 * rows * C * PLAN_X, 1);
}

static void residual_layernorm_forward(floatX *, floatX *, float *, float *, const floatX *,
                                       const floatX *, const floatX *, const floatX *, int rows,
                                       int C, cudaStream_t s) {
    plan_bytes(s, WORK_NORM, 4.0 * rows * C * PLAN_X, 1);
}

static void layernorm_backward(floatX *, float *, float *, float *, const floatX *, const floatX *,
                               const floatX *, const float *, const float *, int rows, int C,
                               bool accumulate_dinp, cudaStream_t s) {
    plan_bytes(s, WORK_NORM_BACKWARD, (accumulate_dinp ? 4.0 : 3.0) * rows * C * PLAN_X, 2);
}

// ---- matmul ------------------------------------------------------------------------------------

static void matmul_forward(floatX *, const floatX *, const floatX *, const floatX *, int rows,
                           int Cin, int Cout, cudaStream_t s) {
    plan_product(WORK_FORWARD, Cout, rows, Cin, sizeof(floatX), 1, s);
}

static void matmul_gelu_forward(floatX *, floatX *, const floatX *, const floatX *, const floatX *,
                                int rows, int Cin, int Cout, cudaStream_t s) {
    plan_product(WORK_FORWARD, Cout, rows, Cin, sizeof(floatX), 1, s);
    plan_gelu((double)rows * Cout, false, s);
}

static void matmul_backward_input(floatX *, const floatX *, const floatX *, const floatX *pre,
                                  int rows, int Cin, int Cout, cudaStream_t s) {
    plan_product(WORK_INPUT, Cin, rows, Cout, sizeof(floatX), pre ? 2 : 1, s);
    if (pre) plan_gelu((double)rows * Cin, true, s);
}

static void matmul_backward_weight(float *, float *dbias, const floatX *, const floatX *, int rows,
                                   int Cin, int Cout, bool accumulate, cudaStream_t s) {
    plan_product(WORK_WEIGHT, Cin, Cout, rows, sizeof(float), accumulate ? 2 : 1, s);
    if (dbias && (accumulate || Cin > PRODUCT_BIAS_WIDTH))
        plan_columns((double)rows * Cout * PLAN_X, s);
}

static void gelu_forward(floatX *, const floatX *, size_t n, cudaStream_t s) {
    plan_gelu((double)n, false, s);
}

// ---- attention: tiles of 64 rows, those on the diagonal whole ----------------------------------

static void plan_attention(WorkKind kind, int products, int counted, int B, int T, int C,
                           cudaStream_t s) {
    Work w = {};
    w.kind = kind;
    w.units = products * (double)B * T * (T + 64.0) * C;
    w.product.operand_bytes = (int)sizeof(floatX);
    w.counted_flops = counted * (double)B * T * T * C;
    w.launches = kind == WORK_ATTENTION ? 1 : 2;
    plan_work(s, &w);
}

static void attention_forward(floatX *, float *, const floatX *, int B, int T, int C, int,
                              cudaStream_t s) {
    plan_attention(WORK_ATTENTION, 2, 2, B, T, C, s);
}

static void attention_last(floatX *, const floatX *, int T, int C, int, cudaStream_t s) {
    Work w = {};
    w.kind = WORK_ATTENTION;
    w.units = w.counted_flops = 4.0 * T * C;
    w.launches = 1;
    plan_work(s, &w);
}

// Two passes, seven products where four are counted: twice the forward.
static void attention_backward(floatX *, const floatX *, const floatX *, const floatX *,
                               const float *, int B, int T, int C, int, cudaStream_t s) {
    plan_attention(WORK_ATTENTION_BACKWARD, 7, 4, B, T, C, s);
    plan_columns(2.0 * B * T * C * PLAN_X, s);  // dot products of the rows
}

// ---- classifier --------------------------------------------------------------------------------

static void classifier(floatX *, float *, const int *, int rows, int, int ld, bool write_dlogits,
                       cudaStream_t s) {
    plan_bytes(s, WORK_CLASSIFIER, (write_dlogits ? 2.0 : 1.0) * rows * ld * PLAN_X, 1);
}

static void sum_losses(double *, const float *, int rows, cudaStream_t s) {
    plan_bytes(s, WORK_SHARD, (double)rows * sizeof(float), 1);
}

// ---- shards ------------------------------------------------------------------------------------

static void cast_from_float(floatX *, const float *, size_t n, cudaStream_t s) {
    plan_bytes(s, WORK_SHARD, (double)n * (sizeof(float) + PLAN_X), 1);
}

static void cast_to_bf16(bf16 *, const float *, size_t n, cudaStream_t s) {
    plan_bytes(s, WORK_SHARD, (double)n * (sizeof(float) + sizeof(bf16)), 1);
}

static void cast_from_bf16(float *, const bf16 *, size_t n, cudaStream_t s) {
    plan_bytes(s, WORK_SHARD, (double)n * (sizeof(float) + sizeof(bf16)), 1);
}

static void shard_add(float *, const float *, size_t n, bool accumulate, cudaStream_t s) {
    plan_bytes(s, WORK_SHARD, (double)n * sizeof(float) * (accumulate ? 3 : 2), 1);
}

static void shard_add_ordered(float *, const float *, int nparts, size_t, size_t n, bool accumulate,
                              cudaStream_t s) {
    plan_bytes(s, WORK_SHARD, (double)n * sizeof(float) * (nparts + (accumulate ? 2 : 1)), 1);
}

static void shard_absmax(float *, const float *, size_t n, cudaStream_t s) {
    plan_bytes(s, WORK_SQUARES, (double)n * sizeof(float), 2);
}

static void shard_sum_squares(double *, const float *, size_t n, const float *, int,
                              cudaStream_t s) {
    plan_bytes(s, WORK_SQUARES, (double)n * sizeof(float), 2);
}

static void shard_checksum(uint64_t *, const void *, size_t words, cudaStream_t s) {
    plan_bytes(s, WORK_SQUARES, (double)words * sizeof(uint32_t), 1);
}

static double plan_adamw_elements(const AdamWPieces *pieces) {
    double n = 0;
    for (int i = 0; i < pieces->count; i++) n += (double)pieces->piece[i].n;
    return n;
}

static double plan_moment_bytes(const AdamWConfig *c) {
    return c->moments == MOMENTS_FP64 ? 8 : c->moments == MOMENTS_BF16 ? 2 : 4;
}

// Parameter, gradient and moments are read, all but the gradient written.
static void adamw_update(float *, const float *, void *, void *, AdamWPieces pieces, const double *,
                         const AdamWConfig *c, cudaStream_t s) {
    double bytes = 3 * sizeof(float) + 4 * plan_moment_bytes(c);
    plan_bytes(s, WORK_ADAMW, plan_adamw_elements(&pieces) * bytes, 1);
}

// Parameter and moments are read, the change written.
static void adamw_change(float *, const float *, const void *, const void *, AdamWPieces pieces,
                         const double *, const AdamWConfig *c, cudaStream_t s) {
    double bytes = 2 * sizeof(float) + 2 * plan_moment_bytes(c);
    plan_bytes(s, WORK_ADAMW, plan_adamw_elements(&pieces) * bytes, 1);
}
