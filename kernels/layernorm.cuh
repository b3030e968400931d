// kernels/layernorm.cuh: layer normalisation (Ba, Kiros & Hinton 2016), see ../ops.h. A block a
// row; the row is read again from the cache, not kept in registers, so that any C will do.
#pragma once

#include "columns.cuh"

#define LAYERNORM_THREADS 256

// inp2 NULL: x is inp1. Else x = inp1 + inp2, stored as residual. C is a multiple of P.
template <int P>
__global__ static void layernorm_forward_kernel(floatX *residual, floatX *out, float *mean,
                                                float *rstd, const floatX *inp1, const floatX *inp2,
                                                const floatX *weight, const floatX *bias, int C) {
    __shared__ float room[LAYERNORM_THREADS / WARP];
    size_t row = (size_t)blockIdx.x * (size_t)C;
    const floatX *x = inp2 ? residual + row : inp1 + row;
    float sum = 0, squares = 0;
    for (int c = (int)threadIdx.x * P; c < C; c += (int)blockDim.x * P) {
        Items<P> a = load_items<P>(inp1 + row + c);
        if (inp2) {
            Items<P> b = load_items<P>(inp2 + row + c);
            for (int k = 0; k < P; k++) store_float(&a.x[k], to_float(a.x[k]) + to_float(b.x[k]));
            store_items<P>(residual + row + c, a);
        }
        for (int k = 0; k < P; k++) sum += to_float(a.x[k]);
    }
    float m = block_sum(sum, room) / (float)C;
    for (int c = (int)threadIdx.x * P; c < C; c += (int)blockDim.x * P) {
        Items<P> a = load_items<P>(x + c);
        for (int k = 0; k < P; k++) {
            float d = to_float(a.x[k]) - m;
            squares += d * d;
        }
    }
    float r = rsqrtf(block_sum(squares, room) / (float)C + LAYERNORM_EPS);
    for (int c = (int)threadIdx.x * P; c < C; c += (int)blockDim.x * P) {
        Items<P> a = load_items<P>(x + c), w = load_items<P>(weight + c),
                 b = load_items<P>(bias + c);
        for (int k = 0; k < P; k++)
            store_float(&a.x[k], (to_float(a.x[k]) - m) * r * to_float(w.x[k]) + to_float(b.x[k]));
        store_items<P>(out + row + c, a);
    }
    if (threadIdx.x == 0) mean[blockIdx.x] = m, rstd[blockIdx.x] = r;
}

static void residual_layernorm_forward(floatX *residual, floatX *out, float *mean, float *rstd,
                                       const floatX *inp1, const floatX *inp2, const floatX *weight,
                                       const floatX *bias, int rows, int C, cudaStream_t stream) {
    const int P = Pack<floatX>::size;
    if (C % P == 0 && aligned16(out) && aligned16(inp1) && aligned16(inp2) && aligned16(residual) &&
        aligned16(weight) && aligned16(bias))
        layernorm_forward_kernel<P><<<(unsigned)rows, LAYERNORM_THREADS, 0, stream>>>(
            residual, out, mean, rstd, inp1, inp2, weight, bias, C);
    else
        layernorm_forward_kernel<1><<<(unsigned)rows, LAYERNORM_THREADS, 0, stream>>>(
            residual, out, mean, rstd, inp1, inp2, weight, bias, C);
    launchCheck();
}

static void layernorm_forward(floatX *out, float *mean, float *rstd, const floatX *inp,
                              const floatX *weight, const floatX *bias, int rows, int C,
                              cudaStream_t stream) {
    residual_layernorm_forward(NULL, out, mean, rstd, inp, NULL, weight, bias, rows, C, stream);
}

// With n = (x - mean) rstd and g = weight dout: dx = rstd (g - mean(g) - n mean(g n)).
template <int P>
__global__ static void
layernorm_backward_kernel(floatX *dinp, const floatX *dout, const floatX *inp, const floatX *weight,
                          const float *mean, const float *rstd, int C, bool accumulate) {
    __shared__ float room[LAYERNORM_THREADS / WARP];
    size_t row = (size_t)blockIdx.x * (size_t)C;
    float m = mean[blockIdx.x], r = rstd[blockIdx.x], sum_g = 0, sum_gn = 0;
    for (int c = (int)threadIdx.x * P; c < C; c += (int)blockDim.x * P) {
        Items<P> x = load_items<P>(inp + row + c), w = load_items<P>(weight + c),
                 d = load_items<P>(dout + row + c);
        for (int k = 0; k < P; k++) {
            float g = to_float(w.x[k]) * to_float(d.x[k]);
            sum_g += g;
            sum_gn += g * (to_float(x.x[k]) - m) * r;
        }
    }
    sum_g = block_sum(sum_g, room) / (float)C;
    sum_gn = block_sum(sum_gn, room) / (float)C;
    for (int c = (int)threadIdx.x * P; c < C; c += (int)blockDim.x * P) {
        Items<P> x = load_items<P>(inp + row + c), w = load_items<P>(weight + c),
                 d = load_items<P>(dout + row + c), y = d;
        if (accumulate) y = load_items<P>(dinp + row + c);
        for (int k = 0; k < P; k++) {
            float n = (to_float(x.x[k]) - m) * r, g = to_float(w.x[k]) * to_float(d.x[k]);
            float dx = r * (g - sum_g - n * sum_gn);
            store_float(&y.x[k], accumulate ? to_float(y.x[k]) + dx : dx);
        }
        store_items<P>(dinp + row + c, y);
    }
}

static void layernorm_backward(floatX *dinp, float *dweight, float *dbias, const floatX *dout,
                               const floatX *inp, const floatX *weight, const float *mean,
                               const float *rstd, int rows, int C, bool accumulate_dinp,
                               cudaStream_t stream) {
    ColumnsNorm norm = {inp, mean, rstd};
    column_sums(dbias, dweight, dout, norm, rows, C, false, stream);  // first: dinp may be dout
    const int P = Pack<floatX>::size;
    if (C % P == 0 && aligned16(dinp) && aligned16(dout) && aligned16(inp) && aligned16(weight))
        layernorm_backward_kernel<P><<<(unsigned)rows, LAYERNORM_THREADS, 0, stream>>>(
            dinp, dout, inp, weight, mean, rstd, C, accumulate_dinp);
    else
        layernorm_backward_kernel<1><<<(unsigned)rows, LAYERNORM_THREADS, 0, stream>>>(
            dinp, dout, inp, weight, mean, rstd, C, accumulate_dinp);
    launchCheck();
}
