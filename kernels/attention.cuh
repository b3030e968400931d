// kernels/attention.cuh: causal self-attention without a T x T array (Dao et al. 2022, Dao 2023),
// see ../ops.h. Scores exist one tile at a time; the backward makes them again from lse:
//   P = exp(S/sqrt(HS) - lse), dP = dO V^T, D = rowsum(dO * O), dS = P (dP - D) / sqrt(HS),
//   dQ = dS K, dK = dS^T Q, dV = P^T dO.
// dQ is summed by the block of a tile of queries, dK and dV by that of a tile of keys:
// two passes that both make the scores, so that nothing is added by two blocks and the result does
// not depend on their order.
// bf16 with a head size that is a multiple of 16 up to 128 runs on tensor cores,
// everything else in fp32.
#pragma once

#include "common.cuh"

#define LOG2E 1.4426950408889634f

// What the kernels of the backward read and write; D (B,NH,T) as lse.
typedef struct {
    floatX *dqkv;
    const floatX *dout, *qkv;
    const float *lse, *D;
    int T, NH, HS;
} AttentionGradient;

// Where a block works: its tile of rows and its (batch, head); token is the first of the sequence.
typedef struct {
    int tile;
    size_t bh, token, column;  // column: of the head in a row of C
} HeadPlace;

__device__ static inline HeadPlace head_place(int tiles, int T, int NH, int HS) {
    HeadPlace h;
    h.tile = (int)(blockIdx.x % (unsigned)tiles);
    h.bh = blockIdx.x / (unsigned)tiles;
    h.token = h.bh / (size_t)NH * (size_t)T;
    h.column = h.bh % (size_t)NH * (size_t)HS;
    return h;
}

#include "attention_any.cuh"
#if PRECISION_BF16
#include "attention_tensor.cuh"
#endif

#define DOT_THREADS 256

// D (B,NH,T): dot products of the rows of dout and out, which are (B,T,NH,HS). A warp a row.
__global__ static void attention_dot_kernel(float *D, const floatX *dout, const floatX *out,
                                            size_t rows, int T, int NH, int HS) {
    size_t row = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    int lane = (int)threadIdx.x % WARP;
    if (row >= rows) return;
    const floatX *a = dout + row * (size_t)HS, *b = out + row * (size_t)HS;
    float sum = 0;
    for (int i = lane; i < HS; i += WARP) sum += to_float(a[i]) * to_float(b[i]);
    sum = warp_sum(sum);
    size_t head = row % (size_t)NH, t = row / (size_t)NH % (size_t)T,
           batch = row / (size_t)NH / (size_t)T;
    if (lane == 0) D[(batch * (size_t)NH + head) * (size_t)T + t] = sum;
}

static size_t attention_workspace_bytes(const OpsDims *d) {
    return (size_t)d->B * (size_t)d->T * (size_t)d->NH * sizeof(float);
}

static void attention_forward(floatX *out, float *lse, const floatX *qkv, int B, int T, int C,
                              int NH, cudaStream_t stream) {
    int HS = C / NH;
    size_t heads = (size_t)B * (size_t)NH;
#if PRECISION_BF16
    if (tensor_cores_can(HS, qkv, out, out)) {
        attention_forward_tensor(out, lse, qkv, heads, T, NH, HS, stream);
        return;
    }
#endif
    attention_forward_any(out, lse, qkv, heads, T, NH, HS, stream);
}

static void attention_backward(floatX *dqkv, const floatX *dout, const floatX *out,
                               const floatX *qkv, const float *lse, int B, int T, int C, int NH,
                               cudaStream_t stream) {
    size_t rows = (size_t)B * (size_t)T * (size_t)NH, heads = (size_t)B * (size_t)NH;
    float *D = (float *)workspace_take(rows * sizeof(float), "attention_backward");
    AttentionGradient g = {dqkv, dout, qkv, lse, D, T, NH, C / NH};
    attention_dot_kernel<<<blocks_for(rows, DOT_THREADS / WARP), DOT_THREADS, 0, stream>>>(
        D, dout, out, rows, T, NH, g.HS);
    launchCheck();
#if PRECISION_BF16
    if (tensor_cores_can(g.HS, qkv, dout, dqkv)) {
        attention_backward_tensor(&g, heads, stream);
        return;
    }
#endif
    attention_backward_any(&g, heads, stream);
}
