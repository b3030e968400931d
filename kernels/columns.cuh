// kernels/columns.cuh: sums down the columns of (rows, C): gradients of biases and of LayerNorm's
// parameters. Two stages in a fixed order, without atomics: a block sums a chunk of rows for some
// columns, then the chunks are added. The number of chunks depends on the number of rows alone.
#pragma once

#include "common.cuh"

#define COLUMNS_X 32  // threads side by side, P columns each
#define COLUMNS_Y 8   // rows at a time

// What LayerNorm's sums need besides dout; mean NULL: plain sums of dout.
typedef struct {
    const floatX *inp;  // (rows, C)
    const float *mean, *rstd;
} ColumnsNorm;

// Adds the P columns from c on of one row: db += dout, dw += dout * (inp - mean) * rstd.
template <int P, bool NORM>
__device__ static inline void add_row(float *db, float *dw, const floatX *dout, ColumnsNorm norm,
                                      int row, size_t at) {
    float mean = NORM ? norm.mean[row] : 0, rstd = NORM ? norm.rstd[row] : 0;
    Items<P> d = load_items<P>(dout + at), x = d;
    if (NORM) x = load_items<P>(norm.inp + at);
    for (int k = 0; k < P; k++) {
        float g = to_float(d.x[k]);
        db[k] += g;
        if (NORM) dw[k] += g * (to_float(x.x[k]) - mean) * rstd;
    }
}

// A thread's P sums in a row of shared memory: four at a time, those of neighbours side by side.
template <int P> __device__ static inline void columns_store(float *row, const float sums[P]) {
    const int W = P < 4 ? P : 4;
    for (int k = 0; k < P; k += W) {
        Items<W, float> v;
        for (int i = 0; i < W; i++) v.x[i] = sums[k + i];
        store_items<W>(row + k * COLUMNS_X + (int)threadIdx.x * W, v);
    }
}

// The column, counted from the block's first, of element i of such a row.
template <int P> __device__ static inline int columns_at(int i) {
    const int W = P < 4 ? P : 4;
    return i % (COLUMNS_X * W) / W * P + i / (COLUMNS_X * W) * W + i % W;
}

// parts (chunks, 2, C): of each chunk the sums db, then dw.
template <int P, bool NORM>
__global__ static void columns_kernel(float *parts, const floatX *dout, ColumnsNorm norm, int rows,
                                      int C) {
    alignas(16) __shared__ float room[COLUMNS_Y][COLUMNS_X * P];
    int c = ((int)blockIdx.x * COLUMNS_X + (int)threadIdx.x) * P;
    int chunk = (rows + (int)gridDim.y - 1) / (int)gridDim.y, begin = (int)blockIdx.y * chunk;
    int end = begin + chunk < rows ? begin + chunk : rows;
    float sums[2][P] = {};
    if (c < C)
        for (int row = begin + (int)threadIdx.y; row < end; row += COLUMNS_Y)
            add_row<P, NORM>(sums[0], sums[1], dout, norm, row, (size_t)row * C + c);
    int place = (int)(threadIdx.y * COLUMNS_X + threadIdx.x);
    for (int s = 0; s < (NORM ? 2 : 1); s++) {
        columns_store<P>(room[threadIdx.y], sums[s]);
        SEEDED_SYNC(4);
        for (int i = place; i < COLUMNS_X * P; i += COLUMNS_X * COLUMNS_Y) {
            float total = 0;
            for (int y = 0; y < COLUMNS_Y; y++) total += room[y][i];
            int column = (int)blockIdx.x * COLUMNS_X * P + columns_at<P>(i);
            if (column < C) parts[((size_t)blockIdx.y * 2 + s) * C + column] = total;
        }
        __syncthreads();
    }
}

// dst[c] = or += parts[0][s][c] + parts[1][s][c] + ...
__global__ static void add_chunks_kernel(float *dst, const float *parts, int chunks, int s, int C,
                                         bool accumulate) {
    int c = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (c >= C) return;
    float total = 0;
    for (int k = 0; k < chunks; k++) total += parts[((size_t)k * 2 + s) * C + c];
    dst[c] = accumulate ? dst[c] + total : total;
}

template <int P, bool NORM>
static void columns_launch(float *parts, const floatX *dout, ColumnsNorm norm, int rows, int C,
                           cudaStream_t stream) {
    dim3 grid(blocks_for((size_t)C, COLUMNS_X * P), (unsigned)columns_chunks(rows)),
        block(COLUMNS_X, COLUMNS_Y);
    columns_kernel<P, NORM><<<grid, block, 0, stream>>>(parts, dout, norm, rows, C);
    launchCheck();
}

static void add_chunks(float *dst, const float *parts, int rows, int s, int C, bool accumulate,
                       cudaStream_t stream) {
    add_chunks_kernel<<<blocks_for((size_t)C, 128), 128, 0, stream>>>(
        dst, parts, columns_chunks(rows), s, C, accumulate);
    launchCheck();
}

// db (C) = or += column sums of dout; dw (C), with norm.mean:
// the same of dout * (inp - mean) * rstd.
static void column_sums(float *db, float *dw, const floatX *dout, ColumnsNorm norm, int rows, int C,
                        bool accumulate, cudaStream_t stream) {
    float *parts = (float *)workspace_take(columns_workspace_bytes(rows, C), "column sums");
    bool packs =
        C % Pack<floatX>::size == 0 && aligned16(dout) && (!norm.mean || aligned16(norm.inp));
    const int P = Pack<floatX>::size;
    if (norm.mean && packs)
        columns_launch<P, true>(parts, dout, norm, rows, C, stream);
    else if (norm.mean)
        columns_launch<1, true>(parts, dout, norm, rows, C, stream);
    else if (packs)
        columns_launch<P, false>(parts, dout, norm, rows, C, stream);
    else
        columns_launch<1, false>(parts, dout, norm, rows, C, stream);
    add_chunks(db, parts, rows, 0, C, accumulate, stream);
    if (norm.mean) add_chunks(dw, parts, rows, 1, C, accumulate, stream);
}
