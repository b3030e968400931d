// kernels/bf16.cuh: the conversions of cpu/bf16.h for the CUDA type.
#pragma once

#include <cuda_bf16.h>
#include <stdint.h>

typedef __nv_bfloat16 bf16;

__host__ __device__ static inline float to_float(float x) {
    return x;
}

__host__ __device__ static inline float to_float(bf16 x) {
    return __bfloat162float(x);
}

__host__ __device__ static inline void store_float(float *dst, float x) {
    *dst = x;
}

__host__ __device__ static inline void store_float(bf16 *dst, float x) {
    bf16 y = __float2bfloat16_rn(x);  // stored apart: g++ does not instrument `*p = f()`
    *dst = y;
}

__host__ __device__ static inline bf16 bf16_of_bits(uint16_t bits) {
    return __ushort_as_bfloat16(bits);
}
