// adamw.cuh: AdamW (Loshchilov & Hutter 2019, algorithm 2) on one element, once for both devices.
// The loops over pieces of a shard are in cpu/adamw.h and kernels/adamw.cuh.
//
//   g = scale * gradient,  scale = grad_scale * min(1, grad_clip / (norm + 1e-6))
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) g^2
//   p = p - lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay p)
//
// p and the gradient are fp32. What the moments are is a choice between memory and precision:
//
//   moments   arithmetic   bytes of p, gradient, m, v   bytes moved by an update
//   fp32      fp32         4 + 4 + 4 + 4 = 16           28
//   fp64      fp64         4 + 4 + 8 + 8 = 24           44
//   bf16      fp32         4 + 4 + 2 + 2 = 12           20
//
// bf16 keeps 8 bits: rounded to nearest, a moment whose changes are smaller than half its last bit
// would stand still. So it is rounded up with the probability of the part cut off. The random bits
// are a function of seed, step and global element: they do not depend on how shards are cut.
#pragma once

#include "config.h"
#include "device.h"

#include <math.h>
#include <string.h>

typedef struct {
    float lr, beta1, beta2, eps, weight_decay;
    int step;  // t, from 1
    MomentType moments;
    double grad_scale;  // 1 / tokens of the step
    float grad_clip;    // of the global norm; 0: no clipping
    uint64_t seed;      // of stochastic rounding
} AdamWConfig;

// A piece of a tensor in flat arrays.
typedef struct {
    size_t at, n;    // its first element and how many
    uint64_t first;  // global index of the first
    bool decays;
} AdamWPiece;

// What one call updates: the tensors of a layer are.
enum { ADAMW_PIECES = 16 };
typedef struct {
    int count;
    AdamWPiece piece[ADAMW_PIECES];
} AdamWPieces;

// n elements that decay, as a single piece.
static inline AdamWPieces adamw_whole(size_t n, uint64_t first) {
    AdamWPieces whole = {1, {{0, n, first, true}}};
    return whole;
}

// What is the same for every element; Real is the type of the arithmetic.
template <class Real> struct AdamWFactors {
    Real lr, beta1, beta2, eps, weight_decay;
    Real m_scale, v_scale;  // 1 / (1 - beta^t)
    double grad_scale, grad_clip;
    uint64_t key;  // of stochastic rounding
};

// 64 bits to 64 bits (splitmix64's finaliser, Steele, Lea & Flood 2014)
static inline uint64_t mix64(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

template <class Real> static AdamWFactors<Real> adamw_factors(const AdamWConfig *c) {
    AdamWFactors<Real> f;
    f.lr = c->lr, f.beta1 = c->beta1, f.beta2 = c->beta2, f.eps = c->eps;
    f.weight_decay = c->weight_decay;
    f.m_scale = (Real)(1 / (1 - pow((double)c->beta1, c->step)));
    f.v_scale = (Real)(1 / (1 - pow((double)c->beta2, c->step)));
    f.grad_scale = c->grad_scale, f.grad_clip = c->grad_clip;
    f.key = mix64(mix64(c->seed) + (uint64_t)c->step);
    return f;
}

// The factor of all gradients. sums: of the squares of the shards' gradients. False if the norm is
// not finite: then nothing is updated.
template <class Real>
__host__ __device__ static inline bool adamw_scale(Real *scale, const double sums[3],
                                                   const AdamWFactors<Real> &f) {
    double norm = sqrt(sums[0] + sums[1] + sums[2]) * f.grad_scale, s = f.grad_scale;
    if (!isfinite(norm)) return false;
    if (f.grad_clip > 0 && norm + 1e-6 > f.grad_clip) s *= f.grad_clip / (norm + 1e-6);
    *scale = (Real)s;
    return true;
}

// 32 random bits of an element: its index under the key, through murmur3's finaliser. The low half
// rounds m, the high half v.
__host__ __device__ static inline uint32_t rounding_bits(uint64_t key, uint64_t element) {
    uint32_t h = (uint32_t)element ^ (uint32_t)key;
    h += ((uint32_t)(element >> 32) ^ (uint32_t)(key >> 32)) * 0x9e3779b1u;
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}

__host__ __device__ static inline float moment_value(float x) {
    return x;
}

__host__ __device__ static inline double moment_value(double x) {
    return x;
}

__host__ __device__ static inline float moment_value(bf16 x) {
    return to_float(x);
}

__host__ __device__ static inline void store_moment(float *dst, float x, uint32_t) {
    *dst = x;
}

__host__ __device__ static inline void store_moment(double *dst, double x, uint32_t) {
    *dst = x;
}

// Up with the probability of the part cut off. A value at the top of the range stays finite.
__host__ __device__ static inline void store_moment(bf16 *dst, float x, uint32_t random16) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    uint32_t up = u + random16;
    bool top = (up & 0x7f800000u) == 0x7f800000u;
    bf16 y = bf16_of_bits((uint16_t)((top ? u : up) >> 16));  // apart: see kernels/bf16.cuh
    *dst = y;
}

// element: its global index. Moment: what m and v are stored as.
template <class Moment, class Real>
__host__ __device__ static inline void adamw_element(float *p, float gradient, Moment *m, Moment *v,
                                                     Real scale, uint64_t element,
                                                     const AdamWFactors<Real> &f) {
    Real g = gradient * scale;
    Real mi = f.beta1 * moment_value(*m) + (1 - f.beta1) * g;
    Real vi = f.beta2 * moment_value(*v) + (1 - f.beta2) * g * g;
    uint32_t random = sizeof(Moment) == sizeof(bf16) ? rounding_bits(f.key, element) : 0;
    store_moment(m, mi, random & 0xffffu);
    store_moment(v, vi, random >> 16);
    Real root = (Real)sqrt(vi * f.v_scale);
    *p = (float)(*p - f.lr * (mi * f.m_scale / (root + f.eps) + f.weight_decay * *p));
}

// By how much the update that left p, m and v has lowered p.
template <class Moment, class Real>
__host__ __device__ static inline float adamw_change_of(float p, Moment m, Moment v,
                                                        const AdamWFactors<Real> &f) {
    Real root = (Real)sqrt(moment_value(v) * f.v_scale);
    Real along = f.lr * moment_value(m) * f.m_scale / (root + f.eps);
    Real decay = f.lr * f.weight_decay;
    return (float)(along + decay * ((p + along) / (1 - decay)));
}
