// kernels/gelu.cuh: GELU(x) = x/2 (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3) (Hendrycks &
// Gimpel 2016), and its derivative.
#pragma once

#include "common.cuh"

#define GELU_THREADS 256
#define GELU_SCALE 1.5957691216057308f  // 2 sqrt(2 / pi)

// 1/2 (1 + tanh u) = s = 1 / (1 + exp(-2u)), which keeps its digits where tanh u is close to -1.
__device__ static inline float gelu_exp(float x) {
    return expf(fminf(-GELU_SCALE * (x + 0.044715f * x * x * x), 80.0f));
}

__device__ static inline float gelu_value(float x) {
    return x / (1.0f + gelu_exp(x));
}

// s + x s (1 - s) d(2u)/dx
__device__ static inline float gelu_slope(float x) {
    float e = gelu_exp(x), s = 1.0f / (1.0f + e);
    return s + x * s * (e * s) * GELU_SCALE * (1.0f + 0.134145f * x * x);
}

// BACKWARD: out *= gelu'(pre), else out = gelu(pre). n is a multiple of P.
template <bool BACKWARD, int P>
__global__ static void gelu_kernel(floatX *out, const floatX *pre, size_t n) {
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * P;
    if (i >= n) return;
    Items<P> x = load_items<P>(pre + i), y = x;
    if (BACKWARD) y = load_items<P>(out + i);
    for (int k = 0; k < P; k++) {
        float z = to_float(x.x[k]);
        store_float(&y.x[k], BACKWARD ? to_float(y.x[k]) * gelu_slope(z) : gelu_value(z));
    }
    store_items<P>(out + i, y);
}

template <bool BACKWARD>
static void gelu_launch(floatX *out, const floatX *pre, size_t n, cudaStream_t stream) {
    const int P = Pack<floatX>::size;
    if (n % P == 0 && aligned16(out) && aligned16(pre))
        gelu_kernel<BACKWARD, P>
            <<<blocks_for(n, GELU_THREADS * P), GELU_THREADS, 0, stream>>>(out, pre, n);
    else
        gelu_kernel<BACKWARD, 1>
            <<<blocks_for(n, GELU_THREADS), GELU_THREADS, 0, stream>>>(out, pre, n);
    launchCheck();
}

static void gelu_forward(floatX *out, const floatX *pre, size_t n, cudaStream_t stream) {
    gelu_launch<false>(out, pre, n, stream);
}

// dout *= gelu'(pre)
static void gelu_backward_in_place(floatX *dout, const floatX *pre, size_t n, cudaStream_t stream) {
    gelu_launch<true>(dout, pre, n, stream);
}
