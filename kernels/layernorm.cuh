// kernels/layernorm.cuh: layer normalisation (Ba, Kiros & Hinton 2016), see ../ops.h. A block a row; the row is
// read again from the cache, not kept in registers, so that any C will do.
#pragma once

#include "columns.cuh"

#define LAYERNORM_THREADS 256
#define LAYERNORM_EPS 1e-5f


// inp2 NULL: x is inp1. Else x = inp1 + inp2, stored as residual. PACKS: C is a multiple of the pack.
template <bool PACKS>
__global__ static void layernorm_forward_kernel(floatX *residual, floatX *out, float *mean, float *rstd,
                                                const floatX *inp1, const floatX *inp2, const floatX *weight,
                                                const floatX *bias, int C) {
    __shared__ float room[LAYERNORM_THREADS / WARP];
    const int P = PACKS ? Pack<floatX>::size : 1;
    size_t row = (size_t)blockIdx.x * (size_t)C;
    const floatX *x = inp2 ? residual + row : inp1 + row;
    float sum = 0, squares = 0;
    for (int c = (int)threadIdx.x * P; c < C; c += (int)blockDim.x * P) {
        alignas(16) floatX a[Pack<floatX>::size], b[Pack<floatX>::size];
        if (PACKS) *(Pack<floatX> *)a = load_pack(inp1 + row + c);
        else a[0] = inp1[row + c];
        if (inp2) {
            if (PACKS) *(Pack<floatX> *)b = load_pack(inp2 + row + c);
            else b[0] = inp2[row + c];
            for (int k = 0; k < P; k++) store_float(&a[k], to_float(a[k]) + to_float(b[k]));
            if (PACKS) store_pack(residual + row + c, *(Pack<floatX> *)a);
            else residual[row + c] = a[0];
        }
        for (int k = 0; k < P; k++) sum += to_float(a[k]);
    }
    float m = block_sum(sum, room) / (float)C;
    for (int c = (int)threadIdx.x * P; c < C; c += (int)blockDim.x * P)
        for (int k = 0; k < P; k++) {
            float d = to_float(x[c + k]) - m;
            squares += d * d;
        }
    float r = rsqrtf(block_sum(squares, room) / (float)C + LAYERNORM_EPS);
    for (int c = (int)threadIdx.x * P; c < C; c += (int)blockDim.x * P) {
        alignas(16) floatX y[Pack<floatX>::size];
        for (int k = 0; k < P; k++)
            store_float(&y[k], (to_float(x[c + k]) - m) * r * to_float(weight[c + k]) + to_float(bias[c + k]));
        if (PACKS) store_pack(out + row + c, *(Pack<floatX> *)y);
        else out[row + c] = y[0];
    }
    if (threadIdx.x == 0) mean[blockIdx.x] = m, rstd[blockIdx.x] = r;
}

static void residual_layernorm_forward(floatX *residual, floatX *out, float *mean, float *rstd, const floatX *inp1,
                                       const floatX *inp2, const floatX *weight, const floatX *bias, int rows, int C,
                                       cudaStream_t stream) {
    bool packs = C % Pack<floatX>::size == 0 && aligned16(out) && aligned16(inp1) && aligned16(inp2) &&
                 aligned16(residual);
    if (packs)
        layernorm_forward_kernel<true><<<(unsigned)rows, LAYERNORM_THREADS, 0, stream>>>(residual, out, mean, rstd, inp1,
                                                                                         inp2, weight, bias, C);
    else
        layernorm_forward_kernel<false><<<(unsigned)rows, LAYERNORM_THREADS, 0, stream>>>(
            residual, out, mean, rstd, inp1, inp2, weight, bias, C);
    launchCheck();
}

static void layernorm_forward(floatX *out, float *mean, float *rstd, const floatX *inp, const floatX *weight,
                              const floatX *bias, int rows, int C, cudaStream_t stream) {
    residual_layernorm_forward(NULL, out, mean, rstd, inp, NULL, weight, bias, rows, C, stream);
}

// With n = (x - mean) rstd and g = weight dout: dx = rstd (g - mean(g) - n mean(g n)).
template <bool PACKS>
__global__ static void layernorm_backward_kernel(floatX *dinp, const floatX *dout, const floatX *inp,
                                                 const floatX *weight, const float *mean, const float *rstd, int C,
                                                 bool accumulate) {
    __shared__ float room[LAYERNORM_THREADS / WARP];
    const int P = PACKS ? Pack<floatX>::size : 1;
    size_t row = (size_t)blockIdx.x * (size_t)C;
    float m = mean[blockIdx.x], r = rstd[blockIdx.x], sum_g = 0, sum_gn = 0;
    for (int c = (int)threadIdx.x * P; c < C; c += (int)blockDim.x * P)
        for (int k = 0; k < P; k++) {
            float g = to_float(weight[c + k]) * to_float(dout[row + c + k]);
            sum_g += g;
            sum_gn += g * (to_float(inp[row + c + k]) - m) * r;
        }
    sum_g = block_sum(sum_g, room) / (float)C;
    sum_gn = block_sum(sum_gn, room) / (float)C;
    for (int c = (int)threadIdx.x * P; c < C; c += (int)blockDim.x * P) {
        alignas(16) floatX y[Pack<floatX>::size];
        if (PACKS && accumulate) *(Pack<floatX> *)y = load_pack(dinp + row + c);
        else if (accumulate) y[0] = dinp[row + c];
        for (int k = 0; k < P; k++) {
            float n = (to_float(inp[row + c + k]) - m) * r, g = to_float(weight[c + k]) * to_float(dout[row + c + k]);
            float d = r * (g - sum_g - n * sum_gn);
            store_float(&y[k], accumulate ? to_float(y[k]) + d : d);
        }
        if (PACKS) store_pack(dinp + row + c, *(Pack<floatX> *)y);
        else dinp[row + c] = y[0];
    }
}

static void layernorm_backward(floatX *dinp, float *dweight, float *dbias, const floatX *dout, const floatX *inp,
                               const floatX *weight, const float *mean, const float *rstd, int rows, int C,
                               bool accumulate_dinp, cudaStream_t stream) {
    ColumnsNorm norm = {inp, mean, rstd};
    column_sums(dbias, dweight, dout, norm, rows, C, false, stream);  // first: dinp may be dout
    if (C % Pack<floatX>::size == 0 && aligned16(dinp))
        layernorm_backward_kernel<true><<<(unsigned)rows, LAYERNORM_THREADS, 0, stream>>>(dinp, dout, inp, weight, mean,
                                                                                          rstd, C, accumulate_dinp);
    else
        layernorm_backward_kernel<false><<<(unsigned)rows, LAYERNORM_THREADS, 0, stream>>>(
            dinp, dout, inp, weight, mean, rstd, C, accumulate_dinp);
    launchCheck();
}
