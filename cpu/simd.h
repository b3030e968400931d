// cpu/simd.h: functions of one float, written so that the loops that call them vectorise at every
// instruction set: no branches, no library calls. Polynomials: minimax on [-ln2/2, ln2/2].
#pragma once

#include "../arithmetic.cuh"
#include <math.h>
#include <stdint.h>
#include <string.h>

// exp(x), relative error below 2e-7. 0 below -87.7 (where it would not be normal), infinity above
// 88.4: there the power of two below has exponent bits of zero, or of infinity.
static inline float exp_float(float x) {
    float y = x < -88.1f ? -88.1f : x;
    y = y > 88.8f ? 88.8f : y;
    const float to_integer = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    float n = y * 1.44269504088896341f + to_integer;
    int32_t bits;
    memcpy(&bits, &n, sizeof bits);
    n -= to_integer;
    float r = y - n * 0.693145751953125f;  // ln 2 in two parts, the first exact in 15 bits
    r = r - n * 1.42860682030941723e-6f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t scale_bits = ((uint32_t)bits + 127u) << 23;  // 2^n; the constant's own bits shift out
    float scale;
    memcpy(&scale, &scale_bits, sizeof scale);
    return p * scale;
}

static inline float gelu_float(float x) {
    return gelu_of_exp(x, exp_float(gelu_exponent(x)));
}

static inline float gelu_derivative(float x) {
    float u2 = gelu_exponent(x);
    u2 = u2 > GELU_EXPONENT_MAX ? GELU_EXPONENT_MAX : u2;
    return gelu_derivative_of_exp(x, exp_float(u2));
}
