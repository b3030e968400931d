// cpu/simd.h: functions of one float, written so that the loops that call them vectorise at every
// instruction set: no branches, no library calls. Polynomials: minimax on [-ln2/2, ln2/2].
#pragma once

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

// GELU, tanh form (Hendrycks & Gimpel 2016): x/2 (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3).
// Written x / (1 + exp(-2u)), which is the same and loses no digits where tanh is near -1.
static inline float gelu_float(float x) {
    float u2 = -1.5957691216057308f * (x + 0.044715f * x * x * x);
    return x / (1.0f + exp_float(u2));
}

// d gelu / dx = s + x s (1 - s) d(2u)/dx with s = 1 / (1 + exp(-2u))
static inline float gelu_derivative(float x) {
    float u2 = -1.5957691216057308f * (x + 0.044715f * x * x * x);
    u2 = u2 > 80.0f ? 80.0f : u2;  // e must be finite
    float e = exp_float(u2);
    float s = 1.0f / (1.0f + e);
    return s + x * s * (e * s) * 1.5957691216057308f * (1.0f + 0.134145f * x * x);
}
