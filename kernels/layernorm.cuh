// kernels/layernorm.cuh: layer normalisation (Ba, Kiros & Hinton 2016), see ../ops.h. A row is read
// once and stays in registers: in the forward pass a warp has up to 768 elements, and several warps
// share a longer row; in the backward pass, whose threads also add up their columns, up to 512.
// Blocks are (threads of a row, rows at a time).
#pragma once

#include "columns.cuh"

#define FORWARD_WIDTH 24   // elements of a row that a thread keeps
#define BACKWARD_WIDTH 16  // the same, with three sums of each
#define NORM_THREADS 1024  // of a row, at most

static dim3 norm_block(int C, int width) {
    unsigned x = blocks_for((size_t)C, (size_t)(WARP * width)) * WARP;
    if (x > NORM_THREADS)
        die("LayerNorm of %d elements: expected at most %d", C, NORM_THREADS * width);
    return dim3(x, x < 256 ? 256 / x : 1);
}

// x[n] becomes the sum of all x[n] of the row's threads. room: N floats a warp, shared; it may be
// used again after the next call, which must have another one.
template <int N> __device__ static inline void row_sums(float (&x)[N], float *room) {
    const int warps = (int)blockDim.x / WARP;
    for (int n = 0; n < N; n++) x[n] = warp_sum(x[n]);
    if (warps == 1) return;
    float *row = room + (int)threadIdx.y * warps * N;
    if (threadIdx.x % WARP == 0)
        for (int n = 0; n < N; n++) row[(int)threadIdx.x / WARP * N + n] = x[n];
    SEEDED_SYNC(3);
    for (int n = 0; n < N; n++) {
        x[n] = 0;
        for (int w = 0; w < warps; w++) x[n] += row[w * N + n];
    }
}

// The first of the thread's v-th P columns.
template <int P> __device__ static inline int norm_column(int v) {
    return (v * (int)blockDim.x + (int)threadIdx.x) * P;
}

// inp2 NULL: x is inp1. Else x = inp1 + inp2, stored as residual. C is a multiple of P.
template <int P, int V>
__global__ static void __launch_bounds__(NORM_THREADS, 1)
    layernorm_forward_kernel(floatX *residual, floatX *out, float *mean, float *rstd,
                             const floatX *inp1, const floatX *inp2, const floatX *weight,
                             const floatX *bias, int rows, int C) {
    __shared__ float room[2][NORM_THREADS / WARP];
    int i = (int)(blockIdx.x * blockDim.y + threadIdx.y), width = i < rows ? C : 0;
    size_t row = (size_t)i * (size_t)C;
    Items<P> x[V];
    float sum[1] = {0}, squares[1] = {0};
    UNROLL
    for (int v = 0; v < V; v++)
        if (norm_column<P>(v) < width) x[v] = load_items<P>(inp1 + row + norm_column<P>(v));
    UNROLL
    for (int v = 0; v < V; v++) {
        int c = norm_column<P>(v);
        if (c >= width) continue;
        if (inp2) {
            Items<P> b = load_items<P>(inp2 + row + c);
            for (int k = 0; k < P; k++)
                store_float(&x[v].x[k], to_float(x[v].x[k]) + to_float(b.x[k]));
            store_items<P>(residual + row + c, x[v]);
        }
        for (int k = 0; k < P; k++) sum[0] += to_float(x[v].x[k]);
    }
    row_sums(sum, room[0]);
    float m = sum[0] / (float)C;
    UNROLL
    for (int v = 0; v < V; v++)
        for (int k = 0; norm_column<P>(v) < width && k < P; k++) {
            float d = to_float(x[v].x[k]) - m;
            squares[0] += d * d;
        }
    row_sums(squares, room[1]);
    float r = rsqrtf(squares[0] / (float)C + LAYERNORM_EPS);
    UNROLL
    for (int v = 0; v < V; v++) {
        int c = norm_column<P>(v);
        if (c >= width) continue;
        Items<P> w = load_items<P>(weight + c), b = load_items<P>(bias + c);
        for (int k = 0; k < P; k++)
            store_float(&b.x[k],
                        (to_float(x[v].x[k]) - m) * r * to_float(w.x[k]) + to_float(b.x[k]));
        store_items<P>(out + row + c, b);
    }
    if (threadIdx.x == 0 && width) mean[i] = m, rstd[i] = r;
}

static void residual_layernorm_forward(floatX *residual, floatX *out, float *mean, float *rstd,
                                       const floatX *inp1, const floatX *inp2, const floatX *weight,
                                       const floatX *bias, int rows, int C, cudaStream_t stream) {
    const int P = Pack<floatX>::size;
    dim3 block = norm_block(C, FORWARD_WIDTH);
    unsigned blocks = blocks_for((size_t)rows, block.y);
    if (C % P == 0 && aligned16(out) && aligned16(inp1) && aligned16(inp2) && aligned16(residual) &&
        aligned16(weight) && aligned16(bias))
        layernorm_forward_kernel<P, FORWARD_WIDTH / P><<<blocks, block, 0, stream>>>(
            residual, out, mean, rstd, inp1, inp2, weight, bias, rows, C);
    else
        layernorm_forward_kernel<1, FORWARD_WIDTH><<<blocks, block, 0, stream>>>(
            residual, out, mean, rstd, inp1, inp2, weight, bias, rows, C);
    launchCheck();
}

static void layernorm_forward(floatX *out, float *mean, float *rstd, const floatX *inp,
                              const floatX *weight, const floatX *bias, int rows, int C,
                              cudaStream_t stream) {
    residual_layernorm_forward(NULL, out, mean, rstd, inp, NULL, weight, bias, rows, C, stream);
}

// With n = (x - mean) rstd and g = weight dout: dx = rstd (g - mean(g) - n mean(g n)). A block has
// a chunk of rows; its threads add up their columns meanwhile. parts (chunks, 3, C): of each chunk
// the sums of dout, of dout n, and of dinp as stored. dinp may be dout.
template <int P, int WIDTH, int THREADS>
__global__ static void __launch_bounds__(THREADS, 1)
    layernorm_backward_kernel(float *parts, floatX *dinp, const floatX *dout, const floatX *inp,
                              const floatX *weight, const float *mean, const float *rstd, int rows,
                              int C, bool accumulate) {
    const int V = WIDTH / P;
    __shared__ float room[2][2 * THREADS / WARP];
    alignas(16) __shared__ float columns[columns_stride<P>(THREADS)];
    int chunk = (rows + (int)gridDim.x - 1) / (int)gridDim.x, begin = (int)blockIdx.x * chunk;
    int end = begin + chunk < rows ? begin + chunk : rows;
    float sums[3 * V][P] = {};
    for (int first = begin, round = 0; first < end; first += (int)blockDim.y, round ^= 1) {
        int i = first + (int)threadIdx.y, width = i < end ? C : 0;
        size_t row = (size_t)i * (size_t)C;
        float m = width ? mean[i] : 0, r = width ? rstd[i] : 0, sum[2] = {0, 0};
        Items<P> x[V], d[V], y[V];
        UNROLL
        for (int v = 0; v < V; v++) {
            int c = norm_column<P>(v);
            if (c >= width) continue;
            x[v] = load_items<P>(inp + row + c), d[v] = load_items<P>(dout + row + c);
            if (accumulate) y[v] = load_items<P>(dinp + row + c);
        }
        UNROLL
        for (int v = 0; v < V; v++) {
            int c = norm_column<P>(v);
            if (c >= width) continue;
            Items<P> w = load_items<P>(weight + c);
            for (int k = 0; k < P; k++) {
                float o = to_float(d[v].x[k]), n = (to_float(x[v].x[k]) - m) * r,
                      g = to_float(w.x[k]) * o;
                sum[0] += g, sum[1] += g * n;
                sums[v][k] += o, sums[V + v][k] += o * n;
            }
        }
        row_sums(sum, room[round]);
        float mean_g = sum[0] / (float)C, mean_gn = sum[1] / (float)C;
        UNROLL
        for (int v = 0; v < V; v++) {
            int c = norm_column<P>(v);
            if (c >= width) continue;
            Items<P> w = load_items<P>(weight + c);
            for (int k = 0; k < P; k++) {
                float n = (to_float(x[v].x[k]) - m) * r, g = to_float(w.x[k]) * to_float(d[v].x[k]),
                      dx = r * (g - mean_g - n * mean_gn);
                store_float(&y[v].x[k], accumulate ? to_float(y[v].x[k]) + dx : dx);
                sums[2 * V + v][k] += to_float(y[v].x[k]);
            }
            store_items<P>(dinp + row + c, y[v]);
        }
    }
    // Each in turn comes to the front: a loop whose sums stay in registers.
    UNROLL_1
    for (int n = 0; n < 3 * V; n++) {
        int c = n % V * (int)blockDim.x * P;
        columns_total<P>(parts + ((size_t)blockIdx.x * 3 + n / V) * C + c, sums[0], columns, C - c);
        UNROLL
        for (int i = 0; i + 1 < 3 * V; i++)
            for (int k = 0; k < P; k++) sums[i][k] = sums[i + 1][k];
    }
}

template <int P, int WIDTH, int THREADS>
static void layernorm_backward_launch(float *parts, floatX *dinp, const floatX *dout,
                                      const floatX *inp, const floatX *weight, const float *mean,
                                      const float *rstd, int rows, int C, bool accumulate,
                                      cudaStream_t stream) {
    layernorm_backward_kernel<P, WIDTH, THREADS>
        <<<(unsigned)norm_chunks(rows), norm_block(C, WIDTH), 0, stream>>>(
            parts, dinp, dout, inp, weight, mean, rstd, rows, C, accumulate);
    launchCheck();
}

// A multiprocessor has registers for 512 threads of BACKWARD_WIDTH, two blocks of the longest row
// here. Longer rows are shared by twice the threads; from 8193 elements on some registers spill.
template <int P>
static decltype(&layernorm_backward_launch<P, 1, 1>) layernorm_backward_for(int C) {
    const int W = BACKWARD_WIDTH;
    return C <= 256 * W                ? layernorm_backward_launch<P, W, 512>
           : C <= NORM_THREADS * W / 2 ? layernorm_backward_launch<P, W / 2, NORM_THREADS>
                                       : layernorm_backward_launch<P, W, NORM_THREADS>;
}

static void layernorm_backward(floatX *dinp, float *dweight, float *dbias, float *dinp_sums,
                               const floatX *dout, const floatX *inp, const floatX *weight,
                               const float *mean, const float *rstd, int rows, int C,
                               bool accumulate_dinp, cudaStream_t stream) {
    float *parts = (float *)workspace_take(norm_workspace_bytes(rows, C), "layernorm_backward");
    const int P = Pack<floatX>::size;
    bool packs =
        C % P == 0 && aligned16(dinp) && aligned16(dout) && aligned16(inp) && aligned16(weight);
    auto launch = packs ? layernorm_backward_for<P>(C) : layernorm_backward_for<1>(C);
    launch(parts, dinp, dout, inp, weight, mean, rstd, rows, C, accumulate_dinp, stream);
    ColumnSums dst = {{dbias, dweight, dinp_sums}};
    add_chunks(dst, dinp_sums ? 3 : 2, parts, norm_chunks(rows), 3, C, false, stream);
}
