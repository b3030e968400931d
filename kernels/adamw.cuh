// kernels/adamw.cuh: AdamW on a piece of a shard, see ../ops.h. Bound by memory: 28 bytes an
// element (fp32). The norm is read on the device, so that the host need not wait for it.
#pragma once

#include "common.cuh"

#define ADAMW_THREADS 256

// What is the same for every element; Real is the type that m, v and the step are computed in.
template <class Real> struct AdamWFactors {
    Real lr, beta1, beta2, eps, decay;
    Real m_scale, v_scale;  // 1 / (1 - beta^t)
    double grad_scale, grad_clip;
    uint64_t key;  // of stochastic rounding
};

static inline uint64_t mix64(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

template <class Real> static AdamWFactors<Real> adamw_factors(const AdamWConfig *c) {
    AdamWFactors<Real> f;
    f.lr = c->lr, f.beta1 = c->beta1, f.beta2 = c->beta2, f.eps = c->eps, f.decay = c->weight_decay;
    f.m_scale = (Real)(1 / (1 - pow((double)c->beta1, c->step)));
    f.v_scale = (Real)(1 / (1 - pow((double)c->beta2, c->step)));
    f.grad_scale = c->grad_scale, f.grad_clip = c->grad_clip;
    f.key = mix64(mix64(c->seed) + (uint64_t)c->step);
    return f;
}

// 32 random bits of an element, as in cpu/adamw.h: the low half rounds m, the high half v.
__device__ static inline uint32_t rounding_bits(uint64_t key, uint64_t element) {
    uint32_t h = (uint32_t)element ^ (uint32_t)key;
    h += ((uint32_t)(element >> 32) ^ (uint32_t)(key >> 32)) * 0x9e3779b1u;
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}

__device__ static inline double moment_value(double x) {
    return x;
}

__device__ static inline float moment_value(float x) {
    return x;
}

__device__ static inline float moment_value(bf16 x) {
    return to_float(x);
}

__device__ static inline void store_moment(double *dst, double x, uint32_t) {
    *dst = x;
}

__device__ static inline void store_moment(float *dst, float x, uint32_t) {
    *dst = x;
}

// Up with the probability of the part cut off. A value at the top of the range stays finite.
__device__ static inline void store_moment(bf16 *dst, float x, uint32_t random16) {
    uint32_t u = __float_as_uint(x), up = u + random16;
    bool top = (up & 0x7f800000u) == 0x7f800000u;
    bf16 y = __ushort_as_bfloat16((unsigned short)((top ? u : up) >> 16));
    *dst = y;
}

template <class Moment, class Real>
__device__ static inline void adamw_element(float *p, float g, Moment *m, Moment *v, Real scale,
                                            uint64_t element, const AdamWFactors<Real> &f) {
    Real x = g * scale;
    Real mi = f.beta1 * moment_value(*m) + (1 - f.beta1) * x;
    Real vi = f.beta2 * moment_value(*v) + (1 - f.beta2) * x * x;
    uint32_t random = sizeof(Moment) == 2 ? rounding_bits(f.key, element) : 0;
    store_moment(m, mi, random & 0xffffu);
    store_moment(v, vi, random >> 16);
    Real step = mi * f.m_scale / ((Real)sqrt(vi * f.v_scale) + f.eps) + f.decay * *p;
    *p = (float)(*p - f.lr * step);
}

// P elements a thread; the last thread may have fewer.
template <class Moment, class Real, int P>
__global__ static void adamw_kernel(float *p, const float *g, Moment *m, Moment *v, size_t n,
                                    uint64_t first, const double *sums, AdamWFactors<Real> f) {
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * P;
    if (i >= n) return;
    double norm = sqrt(sums[0] + sums[1] + sums[2]) * f.grad_scale, scale = f.grad_scale;
    if (!isfinite(norm)) return;
    if (f.grad_clip > 0 && norm + 1e-6 > f.grad_clip) scale *= f.grad_clip / (norm + 1e-6);
    if (i + P > n) {
        for (; i < n; i++)
            adamw_element<Moment, Real>(p + i, g[i], m + i, v + i, (Real)scale, first + i, f);
        return;
    }
    Items<P, float> pi = load_items<P>(p + i), gi = load_items<P>(g + i);
    Items<P, Moment> mi = load_items<P>(m + i), vi = load_items<P>(v + i);
    for (int k = 0; k < P; k++)
        adamw_element<Moment, Real>(&pi.x[k], gi.x[k], &mi.x[k], &vi.x[k], (Real)scale,
                                    first + i + (size_t)k, f);
    store_items<P>(p + i, pi);
    store_items<P>(m + i, mi);
    store_items<P>(v + i, vi);
}

template <class Moment, class Real>
static void adamw_launch(float *p, const float *g, void *m, void *v, size_t n, uint64_t first,
                         const double sums[3], const AdamWConfig *c, cudaStream_t stream) {
    AdamWFactors<Real> f = adamw_factors<Real>(c);
    if (aligned16(p) && aligned16(g) && aligned16(m) && aligned16(v))
        adamw_kernel<Moment, Real, 4>
            <<<blocks_for(n, ADAMW_THREADS * 4), ADAMW_THREADS, 0, stream>>>(
                p, g, (Moment *)m, (Moment *)v, n, first, sums, f);
    else
        adamw_kernel<Moment, Real, 1><<<blocks_for(n, ADAMW_THREADS), ADAMW_THREADS, 0, stream>>>(
            p, g, (Moment *)m, (Moment *)v, n, first, sums, f);
    launchCheck();
}

static void adamw_update(float *p, const float *g, void *m, void *v, size_t n, uint64_t first,
                         const double sums[3], const AdamWConfig *c, cudaStream_t stream) {
    if (n == 0) return;
    switch (c->moments) {
    case MOMENTS_FP32:
        adamw_launch<float, float>(p, g, m, v, n, first, sums, c, stream);
        break;
    case MOMENTS_FP64:
        adamw_launch<double, double>(p, g, m, v, n, first, sums, c, stream);
        break;
    case MOMENTS_BF16:
        adamw_launch<bf16, float>(p, g, m, v, n, first, sums, c, stream);
        break;
    }
}
