// kernels/columns.cuh: sums down the columns of (rows, C): gradients of biases and of LayerNorm's
// parameters. Two stages in a fixed order, without atomics: a block sums a chunk of rows, then the
// chunks are added. The number of chunks depends on the number of rows alone.
#pragma once

#include "common.cuh"

#define COLUMNS_X 32      // threads side by side, P columns each
#define COLUMNS_Y 8       // rows at a time
#define CHUNKS_Y 16       // chunks at a time
#define CHUNKS_AT_ONCE 8  // loads of a thread that are on their way together

// A row of threads leaves its sums in a row of shared memory: of each thread's P columns first the
// first four, those of neighbours side by side, then the others. What columns_place makes of
// neighbouring columns lies in different banks: 16 floats part the two halves.
template <int P> __host__ __device__ static constexpr int columns_stride(int threads) {
    return P < 4 ? threads * P : P / 4 * (threads * 4 + 16);
}

template <int P> __device__ static inline int columns_place(int column, int threads) {
    if (P < 4) return column;
    return column % P / 4 * (threads * 4 + 16) + column / P * 4 + column % 4;
}

// to[0 .. columns): the sums of all rows of the block's threads, in their order. Thread (x, y) has
// P columns, from x * P on. room (blockDim.y, columns_stride) is free again on return.
template <int P>
__device__ static inline void columns_total(float *to, const float sums[P], float *room,
                                            int columns) {
    const int W = P < 4 ? P : 4, X = (int)blockDim.x, stride = columns_stride<P>(X);
    for (int k = 0; k < P; k += W) {
        Items<W, float> v;
        for (int i = 0; i < W; i++) v.x[i] = sums[k + i];
        store_items<W>(
            room + (int)threadIdx.y * stride + columns_place<P>((int)threadIdx.x * P + k, X), v);
    }
    SEEDED_SYNC(4);
    for (int i = (int)threadIdx.y * X + (int)threadIdx.x; i < X * P && i < columns;
         i += X * (int)blockDim.y) {
        float total = 0;
        for (int y = 0; y < (int)blockDim.y; y++)
            total += room[y * stride + columns_place<P>(i, X)];
        to[i] = total;
    }
    __syncthreads();
}

// parts (chunks, C): of each chunk the sums of dout.
template <int P>
__global__ static void columns_kernel(float *parts, const floatX *dout, int rows, int C) {
    alignas(16) __shared__ float room[COLUMNS_Y * columns_stride<P>(COLUMNS_X)];
    int first = (int)blockIdx.x * COLUMNS_X * P, c = first + (int)threadIdx.x * P;
    int chunk = (rows + (int)gridDim.y - 1) / (int)gridDim.y, begin = (int)blockIdx.y * chunk;
    int end = begin + chunk < rows ? begin + chunk : rows;
    float sums[P] = {};
    if (c < C)
        for (int row = begin + (int)threadIdx.y; row < end; row += COLUMNS_Y) {
            Items<P> d = load_items<P>(dout + (size_t)row * C + c);
            for (int k = 0; k < P; k++) sums[k] += to_float(d.x[k]);
        }
    columns_total<P>(parts + (size_t)blockIdx.y * C + first, sums, room, C - first);
}

// Where the sums of add_chunks go.
typedef struct {
    float *to[3];
} ColumnSums;

// dst.to[s][c] = or += parts[0][s][c] + parts[1][s][c] + ... ; parts (chunks, every, C), s is
// blockIdx.y. A block has WARP columns; a row of its threads every CHUNKS_Y-th chunk.
__global__ static void add_chunks_kernel(ColumnSums dst, const float *parts, int chunks, int every,
                                         int C, bool accumulate) {
    __shared__ float room[CHUNKS_Y][WARP];
    int c = (int)(blockIdx.x * WARP + threadIdx.x), s = (int)blockIdx.y;
    float total = 0;
    for (int k = (int)threadIdx.y; k < chunks; k += CHUNKS_AT_ONCE * CHUNKS_Y) {
        float v[CHUNKS_AT_ONCE];
        UNROLL for (int j = 0; j < CHUNKS_AT_ONCE; j++) {
            int chunk = k + j * CHUNKS_Y;
            v[j] = chunk < chunks && c < C ? parts[((size_t)chunk * every + s) * C + c] : 0.0f;
        }
        UNROLL for (int j = 0; j < CHUNKS_AT_ONCE; j++) total += v[j];
    }
    room[threadIdx.y][threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.y > 0 || c >= C) return;
    for (int y = 1; y < CHUNKS_Y; y++) total += room[y][threadIdx.x];
    float *to = s == 0 ? dst.to[0] : s == 1 ? dst.to[1] : dst.to[2];
    to[c] = accumulate ? to[c] + total : total;
}

// The first `sums` of `every` sums that each chunk has.
static void add_chunks(ColumnSums dst, int sums, const float *parts, int chunks, int every, int C,
                       bool accumulate, cudaStream_t stream) {
    dim3 grid(blocks_for((size_t)C, WARP), (unsigned)sums), block(WARP, CHUNKS_Y);
    add_chunks_kernel<<<grid, block, 0, stream>>>(dst, parts, chunks, every, C, accumulate);
    launchCheck();
}

template <int P>
static void columns_launch(float *parts, const floatX *dout, int rows, int C, cudaStream_t stream) {
    dim3 grid(blocks_for((size_t)C, COLUMNS_X * P), (unsigned)columns_chunks(rows)),
        block(COLUMNS_X, COLUMNS_Y);
    columns_kernel<P><<<grid, block, 0, stream>>>(parts, dout, rows, C);
    launchCheck();
}

// sums (C) = or += column sums of dout.
static void column_sums(float *sums, const floatX *dout, int rows, int C, bool accumulate,
                        cudaStream_t stream) {
    float *parts = (float *)workspace_take(columns_workspace_bytes(rows, C), "column sums");
    const int P = Pack<floatX>::size;
    if (C % P == 0 && aligned16(dout))
        columns_launch<P>(parts, dout, rows, C, stream);
    else
        columns_launch<1>(parts, dout, rows, C, stream);
    ColumnSums dst = {{sums, NULL, NULL}};
    add_chunks(dst, 1, parts, columns_chunks(rows), 1, C, accumulate, stream);
}
