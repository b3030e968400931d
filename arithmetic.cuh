// arithmetic.cuh: what the two devices' ops compute alike on single numbers, defined once: GELU,
// and the split of a square that makes norms exact. AdamW has a file of its own. Elsewhere the
// devices shape the arithmetic: exp is a polynomial on CPUs, where loops must vectorise, and the
// library's on GPUs; softmax and LayerNorm take a row by vectors here, by the threads of a block
// there.
#pragma once

#include "device.h"

#include <math.h>

// ---- GELU, tanh form (Hendrycks & Gimpel 2016) -------------------------------------------------
// x/2 (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3). Written x / (1 + e) with e = exp(-2u), which
// is the same and loses no digits where tanh u is near -1. The caller has its own exp.
#define GELU_SCALE 1.5957691216057308f  // 2 sqrt(2/pi)
#define GELU_EXPONENT_MAX 80.0f         // from there on GELU is zero; e must be finite in its slope

__host__ __device__ static inline float gelu_exponent(float x) {  // -2u
    return -GELU_SCALE * (x + 0.044715f * x * x * x);
}

__host__ __device__ static inline float gelu_of_exp(float x, float e) {
    return x / (1.0f + e);
}

// s + x s (1 - s) d(2u)/dx with s = 1 / (1 + e)
__host__ __device__ static inline float gelu_derivative_of_exp(float x, float e) {
    float s = 1.0f / (1.0f + e);
    return s + x * s * (e * s) * GELU_SCALE * (1.0f + 0.134145f * x * x);
}

// ---- sums of squares whose order does not matter -----------------------------------------------
// Demmel & Nguyen 2013, "Fast reproducible floating-point summation". With M = absmax^2 < 2^e the
// largest square of all shards together and total_bits = ceil(log2(number of their elements)), a
// square is split at the granularities 2^(e - b), 2^(e - 2b), 2^(e - 3b), b = 52 - total_bits - 1.
// A level's terms are multiples of its granularity g, and their sum stays below 2^53 g: every
// addition is exact, and the total is the same bits however the elements are cut into shards.
typedef struct {
    int levels;       // 2 where they have 44 bits, else 3
    double round[3];  // 1.5 * 2^52 * granularity
} SquareLevels;

__host__ __device__ static inline SquareLevels square_levels(float absmax, int total_bits) {
    const int bits = 52 - total_bits - 1;
    int e;
    frexp((double)absmax * absmax, &e);
    SquareLevels l;
    l.levels = bits >= 22 ? 2 : 3;
    l.round[0] = ldexp(1.5, 52 + e - bits);
    l.round[1] = ldexp(l.round[0], -bits);
    l.round[2] = ldexp(l.round[1], -bits);
    return l;
}

// What of x is a multiple of the granularity: adding 1.5 * 2^52 g to a number below 2^51 g rounds
// it to a multiple of g. The rest is exact, too, and goes to the next level. (The square of a float
// is exact in double, so that a compiler may merge it into the addition.)
__host__ __device__ static inline double level_part(double x, double round) {
    return (x + round) - round;
}

// ---- a checksum of many words ------------------------------------------------------------------
// Every 32-bit word is mixed with its place and all are added up modulo 2^64, so that the order
// does not matter. The mixing is that of SplitMix64 (Steele, Lea & Flood 2014).
__host__ __device__ static inline uint64_t checksum_word(uint64_t place, uint32_t word) {
    uint64_t z = place * 0x9E3779B97F4A7C15ull + word;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}
