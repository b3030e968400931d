// cpu/adamw.h: AdamW on a piece of a shard; the arithmetic is ../adamw.cuh.
#pragma once

#include "../adamw.cuh"
#include "workspace.h"

enum { ADAMW_BLOCK = 2048 };

template <class Moment, class Real>
static inline void adamw_block(float *p, const float *g, Moment *m, Moment *v, size_t n, Real scale,
                               uint64_t first, const AdamWFactors<Real> f) {
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        adamw_element<Moment, Real>(&p[i], g[i], &m[i], &v[i], scale, first + i, f);
}

template <class Moment, class Real>
static void adamw_blocks(float *p, const float *g, Moment *m, Moment *v, size_t n, uint64_t first,
                         const double sums[3], const AdamWConfig *c) {
    const AdamWFactors<Real> f = adamw_factors<Real>(c);
    Real scale;
    if (!adamw_scale(&scale, sums, f)) return;
#pragma omp parallel for schedule(static)
    for (size_t at = 0; at < n; at += ADAMW_BLOCK)
        adamw_block<Moment, Real>(p + at, g + at, m + at, v + at,
                                  n - at < ADAMW_BLOCK ? n - at : (size_t)ADAMW_BLOCK, scale,
                                  first + at, f);
}

static void adamw_update(float *p, const float *g, void *m, void *v, size_t n, uint64_t first,
                         const double sums[3], const AdamWConfig *c, cudaStream_t stream) {
    (void)stream;
    switch (c->moments) {
    case MOMENTS_FP32:
        adamw_blocks<float, float>(p, g, (float *)m, (float *)v, n, first, sums, c);
        break;
    case MOMENTS_FP64:
        adamw_blocks<double, double>(p, g, (double *)m, (double *)v, n, first, sums, c);
        break;
    case MOMENTS_BF16:
        adamw_blocks<bf16, float>(p, g, (bf16 *)m, (bf16 *)v, n, first, sums, c);
        break;
    }
}

template <class Moment, class Real>
static void adamw_changes(float *change, const float *p, const Moment *m, const Moment *v, size_t n,
                          const double sums[3], const AdamWConfig *c) {
    const AdamWFactors<Real> f = adamw_factors<Real>(c);
    Real scale;
    const bool updated = adamw_scale(&scale, sums, f);
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < n; i++)
        change[i] = updated ? adamw_change_of<Moment, Real>(p[i], m[i], v[i], f) : 0.0f;
}

static void adamw_change(float *change, const float *p, const void *m, const void *v, size_t n,
                         const double sums[3], const AdamWConfig *c, cudaStream_t stream) {
    (void)stream;
    switch (c->moments) {
    case MOMENTS_FP32:
        adamw_changes<float, float>(change, p, (const float *)m, (const float *)v, n, sums, c);
        break;
    case MOMENTS_FP64:
        adamw_changes<double, double>(change, p, (const double *)m, (const double *)v, n, sums, c);
        break;
    case MOMENTS_BF16:
        adamw_changes<bf16, float>(change, p, (const bf16 *)m, (const bf16 *)v, n, sums, c);
        break;
    }
}
