// cpu/adamw.h: AdamW (Loshchilov & Hutter 2019, algorithm 2) on a piece of a shard:
//   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2,
//   p -= lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay p)
// with g scaled by grad_scale and the clip coefficient. The arithmetic is fp32,
// or fp64 where moments are.
#pragma once

#include "workspace.h"
#include <math.h>

// What is the same for every element. Real: float or double.
template <typename Real> struct AdamWFactors {
    Real grad, lr, beta1, beta2, eps, decay;
    Real m_scale, v_scale;  // 1 / (1 - beta^t)
};

// False if the norm is not finite.
template <typename Real>
static bool adamw_factors(AdamWFactors<Real> *f, const double sums[3], const AdamWConfig *c) {
    double norm = sqrt(sums[0] + sums[1] + sums[2]) * c->grad_scale, scale = c->grad_scale;
    if (!isfinite(norm)) return false;
    if (c->grad_clip > 0 && norm + 1e-6 > c->grad_clip) scale *= c->grad_clip / (norm + 1e-6);
    f->grad = (Real)scale;
    f->lr = c->lr;
    f->beta1 = c->beta1;
    f->beta2 = c->beta2;
    f->eps = c->eps;
    f->decay = c->weight_decay;
    f->m_scale = (Real)(1 / (1 - pow(c->beta1, c->step)));
    f->v_scale = (Real)(1 / (1 - pow(c->beta2, c->step)));
    return true;
}

template <typename Real>
static inline Real adamw_step(Real p, Real m, Real v, const AdamWFactors<Real> f) {
    return p - f.lr * (m * f.m_scale / ((Real)sqrt(v * f.v_scale) + f.eps) + f.decay * p);
}

enum { ADAMW_BLOCK = 2048 };

template <typename Real>
static inline void adamw_block(float *p, const float *g, Real *m, Real *v, size_t n,
                               const AdamWFactors<Real> f) {
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        Real x = g[i] * f.grad;
        Real mi = f.beta1 * m[i] + (1 - f.beta1) * x, vi = f.beta2 * v[i] + (1 - f.beta2) * x * x;
        m[i] = mi;
        v[i] = vi;
        p[i] = (float)adamw_step<Real>(p[i], mi, vi, f);
    }
}

template <typename Real>
static void adamw_exact(float *p, const float *g, Real *m, Real *v, size_t n, const double sums[3],
                        const AdamWConfig *c) {
    AdamWFactors<Real> f;
    if (!adamw_factors(&f, sums, c)) return;
#pragma omp parallel for schedule(static)
    for (size_t at = 0; at < n; at += ADAMW_BLOCK)
        adamw_block<Real>(p + at, g + at, m + at, v + at,
                          n - at < ADAMW_BLOCK ? n - at : (size_t)ADAMW_BLOCK, f);
}

// 64 bits to 64 bits (splitmix64's finaliser, Steele, Lea & Flood 2014)
static inline uint64_t mix64(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

// 32 random bits of an element: its index under the key, through murmur3's finaliser. The low half
// rounds m, the high half v.
static inline uint32_t rounding_bits(uint64_t key, uint64_t element) {
    uint32_t h = (uint32_t)element ^ (uint32_t)key;
    h += ((uint32_t)(element >> 32) ^ (uint32_t)(key >> 32)) * 0x9e3779b1u;
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}

// Up with the probability of the part cut off. A value at the top of the range stays finite.
static inline void store_stochastic(bf16 *dst, float x, uint32_t random16) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    uint32_t up = u + random16;
    dst->bits = (uint16_t)(((up & 0x7f800000u) == 0x7f800000u ? u : up) >> 16);
}

static inline void adamw_bf16_block(float *p, const float *g, bf16 *m, bf16 *v, size_t n,
                                    uint64_t first, uint64_t key, const AdamWFactors<float> f) {
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        float x = g[i] * f.grad;
        float mi = f.beta1 * to_float(m[i]) + (1 - f.beta1) * x;
        float vi = f.beta2 * to_float(v[i]) + (1 - f.beta2) * x * x;
        uint32_t random = rounding_bits(key, first + i);
        store_stochastic(&m[i], mi, random & 0xffffu);
        store_stochastic(&v[i], vi, random >> 16);
        p[i] = adamw_step<float>(p[i], mi, vi, f);
    }
}

static void adamw_bf16(float *p, const float *g, bf16 *m, bf16 *v, size_t n, uint64_t first,
                       const double sums[3], const AdamWConfig *c) {
    AdamWFactors<float> f;
    if (!adamw_factors(&f, sums, c)) return;
    const uint64_t key = mix64(mix64(c->seed) + (uint64_t)c->step);
#pragma omp parallel for schedule(static)
    for (size_t at = 0; at < n; at += ADAMW_BLOCK)
        adamw_bf16_block(p + at, g + at, m + at, v + at,
                         n - at < ADAMW_BLOCK ? n - at : (size_t)ADAMW_BLOCK, first + at, key, f);
}

static void adamw_update(float *p, const float *g, void *m, void *v, size_t n, uint64_t first,
                         const double sums[3], const AdamWConfig *c, cudaStream_t stream) {
    (void)stream;
    switch (c->moments) {
    case MOMENTS_FP32:
        adamw_exact(p, g, (float *)m, (float *)v, n, sums, c);
        break;
    case MOMENTS_FP64:
        adamw_exact(p, g, (double *)m, (double *)v, n, sums, c);
        break;
    case MOMENTS_BF16:
        adamw_bf16(p, g, (bf16 *)m, (bf16 *)v, n, first, sums, c);
        break;
    }
}
