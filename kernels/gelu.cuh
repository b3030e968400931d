// kernels/gelu.cuh: GELU, tanh form (Hendrycks & Gimpel 2016), and its derivative.
#pragma once

#include "common.cuh"

#define GELU_THREADS 256
#define GELU_SCALE 0.7978845608028654f  // sqrt(2 / pi)

__device__ static inline float gelu_value(float x) {
    return 0.5f * x * (1.0f + tanhf(GELU_SCALE * (x + 0.044715f * x * x * x)));
}

__device__ static inline float gelu_slope(float x) {
    float t = tanhf(GELU_SCALE * (x + 0.044715f * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * GELU_SCALE * (1.0f + 3.0f * 0.044715f * x * x);
}

// BACKWARD: out *= gelu'(pre), else out = gelu(pre). n is a multiple of the pack if PACKS.
template <bool BACKWARD, bool PACKS> __global__ static void gelu_kernel(floatX *out, const floatX *pre, size_t n) {
    const int P = PACKS ? Pack<floatX>::size : 1;
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * P;
    if (i >= n) return;
    alignas(16) floatX x[Pack<floatX>::size], y[Pack<floatX>::size];
    if (PACKS) *(Pack<floatX> *)x = load_pack(pre + i);
    else x[0] = pre[i];
    if (BACKWARD && PACKS) *(Pack<floatX> *)y = load_pack(out + i);
    else if (BACKWARD) y[0] = out[i];
    for (int k = 0; k < P; k++)
        store_float(&y[k], BACKWARD ? to_float(y[k]) * gelu_slope(to_float(x[k])) : gelu_value(to_float(x[k])));
    if (PACKS) store_pack(out + i, *(Pack<floatX> *)y);
    else out[i] = y[0];
}

template <bool BACKWARD> static void gelu_launch(floatX *out, const floatX *pre, size_t n, cudaStream_t stream) {
    if (n % Pack<floatX>::size == 0 && aligned16(out) && aligned16(pre))
        gelu_kernel<BACKWARD, true><<<blocks_for(n, GELU_THREADS * Pack<floatX>::size), GELU_THREADS, 0, stream>>>(
            out, pre, n);
    else
        gelu_kernel<BACKWARD, false><<<blocks_for(n, GELU_THREADS), GELU_THREADS, 0, stream>>>(out, pre, n);
    launchCheck();
}

static void gelu_forward(floatX *out, const floatX *pre, size_t n, cudaStream_t stream) {
    gelu_launch<false>(out, pre, n, stream);
}

// dout *= gelu'(pre)
static void gelu_backward_in_place(floatX *dout, const floatX *pre, size_t n, cudaStream_t stream) {
    gelu_launch<true>(dout, pre, n, stream);
}
