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

// What the kernels of the backward read and write. rows (B,NH,pitch): of each query lse in units of
// log 2, and D; behind T infinity, which makes P zero, and 0.
typedef struct {
    floatX *dqkv;
    const floatX *dout, *qkv;
    const float2 *rows;
    int T, NH, HS;
} AttentionGradient;

// Rows of a head: whole tiles.
__host__ __device__ static inline int attention_pitch(int T) {
    return (T + 127) / 128 * 128;
}

// Where a block works: its tile of rows and its (batch, head); token is the first of the sequence.
typedef struct {
    int tile;
    size_t bh, token, column;  // column: of the head in a row of C
} HeadPlace;

// Divisions of 32 bits: those of 64 are long. There are as many heads as blocks at most.
__device__ static inline HeadPlace head_place(int tiles, int T, int NH, int HS) {
    HeadPlace h;
    unsigned bh = blockIdx.x / (unsigned)tiles, batch = bh / (unsigned)NH;
    h.tile = (int)(blockIdx.x - bh * (unsigned)tiles);
    h.bh = bh;
    h.token = (size_t)batch * (size_t)T;
    h.column = (size_t)(bh - batch * (unsigned)NH) * (size_t)HS;
    return h;
}

#include "attention_any.cuh"
#if PRECISION_BF16
#include "attention_tensor.cuh"
#endif

#define ROWS_THREADS 256

// rows of AttentionGradient from lse and the dot products of the rows of dout and out, which are
// (B,T,NH,HS). `lanes`, a power of 2, share a row, P elements at a time; a block's rows are of one
// head.
template <int P>
__global__ static void attention_rows_kernel(float2 *rows, const float *lse, const floatX *dout,
                                             const floatX *out, int tiles, int T, int NH, int HS,
                                             int lanes) {
    HeadPlace h = head_place(tiles, T, NH, HS);
    int lane = (int)threadIdx.x & (lanes - 1), pitch = attention_pitch(T),
        t = h.tile * (ROWS_THREADS / lanes) + (int)threadIdx.x / lanes;
    size_t at = (h.token + (size_t)t) * (size_t)(NH * HS) + h.column;
    float2 row = {INFINITY, 0};
    if (t < T) {
        if (lane == 0) row.x = lse[h.bh * (size_t)T + (size_t)t] * LOG2E;
        for (int c = lane * P; c < HS; c += lanes * P) {
            Items<P> a = load_items<P>(dout + at + c), b = load_items<P>(out + at + c);
            for (int k = 0; k < P; k++) row.y += to_float(a.x[k]) * to_float(b.x[k]);
        }
    }
    for (int offset = lanes / 2; offset > 0; offset /= 2)
        row.y += __shfl_xor_sync(FULL_MASK, row.y, offset);
    if (lane == 0 && t < pitch) rows[h.bh * (size_t)pitch + (size_t)t] = row;
}

template <int P>
static void attention_rows(float2 *rows, const float *lse, const floatX *dout, const floatX *out,
                           size_t heads, int T, int NH, int HS, cudaStream_t stream) {
    int lanes = 1;
    while (lanes < WARP && lanes * P < HS) lanes *= 2;
    unsigned tiles = blocks_for((size_t)attention_pitch(T), (size_t)(ROWS_THREADS / lanes));
    attention_rows_kernel<P><<<(unsigned)(tiles * heads), ROWS_THREADS, 0, stream>>>(
        rows, lse, dout, out, (int)tiles, T, NH, HS, lanes);
    launchCheck();
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

#define LAST_THREADS 256

// A block is a head. scores (NH,T): room.
__global__ static void attention_last_kernel(floatX *out, float *scores, const floatX *qkv, int T,
                                             int NH, int HS) {
    __shared__ float room[LAST_THREADS / WARP];
    __shared__ float part[LAST_THREADS / WARP][WARP];
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, warps = LAST_THREADS / WARP,
        threads = LAST_THREADS;
    size_t C = (size_t)NH * (size_t)HS, row = 3 * C, head = (size_t)blockIdx.x * (size_t)HS;
    const floatX *q = qkv + (size_t)(T - 1) * row + head, *k = qkv + C + head, *v = k + C;
    float *s = scores + (size_t)blockIdx.x * (size_t)T;
    float max = -INFINITY, sum = 0;
    for (int t = warp; t < T; t += warps) {
        float x = 0;
        for (int c = lane; c < HS; c += WARP)
            x += to_float(q[c]) * to_float(k[(size_t)t * row + (size_t)c]);
        x = warp_sum(x) * rsqrtf((float)HS);
        if (lane == 0) s[t] = x;
        max = fmaxf(max, x);
    }
    max = block_max(max, room);  // its barriers also show every thread the scores
    for (int t = (int)threadIdx.x; t < T; t += threads) {
        s[t] = expf(s[t] - max);
        sum += s[t];
    }
    sum = block_sum(sum, room);
    for (int c0 = 0; c0 < HS; c0 += WARP) {
        int c = c0 + lane;
        float x = 0;
        for (int t = warp; t < T && c < HS; t += warps)
            x += s[t] * to_float(v[(size_t)t * row + (size_t)c]);
        part[warp][lane] = x;
        SEEDED_SYNC(7);
        for (int w = 1; w < warps && warp == 0; w++) x += part[w][lane];
        if (warp == 0 && c < HS) store_float(&out[head + (size_t)c], x / sum);
        __syncthreads();
    }
}

static void attention_last(floatX *out, const floatX *qkv, int T, int C, int NH,
                           cudaStream_t stream) {
    size_t bytes = (size_t)NH * (size_t)T * sizeof(float);
    float *scores = (float *)workspace_take(bytes, "attention_last");
    attention_last_kernel<<<(unsigned)NH, LAST_THREADS, 0, stream>>>(out, scores, qkv, T, NH,
                                                                     C / NH);
    launchCheck();
}

static void attention_backward(floatX *dqkv, const floatX *dout, const floatX *out,
                               const floatX *qkv, const float *lse, int B, int T, int C, int NH,
                               cudaStream_t stream) {
    size_t heads = (size_t)B * (size_t)NH;
    int HS = C / NH;
    float2 *rows =
        (float2 *)workspace_take(attention_workspace_bytes(B, T, NH), "attention_backward");
    AttentionGradient g = {dqkv, dout, qkv, rows, T, NH, HS};
    if (HS % Pack<floatX>::size == 0 && aligned16(dout) && aligned16(out))
        attention_rows<Pack<floatX>::size>(rows, lse, dout, out, heads, T, NH, HS, stream);
    else
        attention_rows<1>(rows, lse, dout, out, heads, T, NH, HS, stream);
#if PRECISION_BF16
    if (tensor_cores_can(HS, qkv, dout, dqkv)) {
        attention_backward_tensor(&g, heads, stream);
        return;
    }
#endif
    attention_backward_any(&g, heads, stream);
}
