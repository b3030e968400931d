// kernels/gelu.cuh: the activation and its derivative over a flat array; the formula is in
// ../arithmetic.cuh.
#pragma once

#include "../arithmetic.cuh"
#include "common.cuh"

#define GELU_THREADS 256

__device__ static inline float gelu_exp(float x) {
    return expf(fminf(gelu_exponent(x), GELU_EXPONENT_MAX));
}

// BACKWARD: out *= gelu'(pre), else out = gelu(pre). n is a multiple of P.
template <bool BACKWARD, int P>
__global__ static void gelu_kernel(floatX *out, const floatX *pre, size_t n) {
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * P;
    if (i >= n) return;
    Items<P> x = load_items<P>(pre + i), y = x;
    if (BACKWARD) y = load_items<P>(out + i);
    for (int k = 0; k < P; k++) {
        float z = to_float(x.x[k]), e = gelu_exp(z);
        store_float(&y.x[k],
                    BACKWARD ? to_float(y.x[k]) * gelu_derivative_of_exp(z, e) : gelu_of_exp(z, e));
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
