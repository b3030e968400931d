// cpu/adamw.h: AdamW on pieces of a shard; the arithmetic is ../adamw.cuh.
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

static AdamWConfig adamw_config_of(const AdamWPiece *piece, const AdamWConfig *c) {
    AdamWConfig config = *c;
    if (!piece->decays) config.weight_decay = 0;
    return config;
}

template <class Moment, class Real>
static void adamw_pieces(float *p, const float *g, void *moment1, void *moment2,
                         const AdamWPieces *pieces, const double sums[3], const AdamWConfig *c) {
    Moment *m = (Moment *)moment1, *v = (Moment *)moment2;
    for (int i = 0; i < pieces->count; i++) {
        const AdamWPiece *t = &pieces->piece[i];
        const AdamWConfig config = adamw_config_of(t, c);
        adamw_blocks<Moment, Real>(p + t->at, g + t->at, m + t->at, v + t->at, t->n, t->first, sums,
                                   &config);
    }
}

static void adamw_update(float *p, const float *g, void *m, void *v, AdamWPieces pieces,
                         const double sums[3], const AdamWConfig *c, cudaStream_t stream) {
    (void)stream;
    switch (c->moments) {
    case MOMENTS_FP32:
        adamw_pieces<float, float>(p, g, m, v, &pieces, sums, c);
        break;
    case MOMENTS_FP64:
        adamw_pieces<double, double>(p, g, m, v, &pieces, sums, c);
        break;
    case MOMENTS_BF16:
        adamw_pieces<bf16, float>(p, g, m, v, &pieces, sums, c);
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

template <class Moment, class Real>
static void adamw_changes_of_pieces(float *change, const float *p, const void *m, const void *v,
                                    const AdamWPieces *pieces, const double sums[3],
                                    const AdamWConfig *c) {
    for (int i = 0; i < pieces->count; i++) {
        const AdamWPiece *t = &pieces->piece[i];
        const AdamWConfig config = adamw_config_of(t, c);
        adamw_changes<Moment, Real>(change + t->at, p + t->at, (const Moment *)m + t->at,
                                    (const Moment *)v + t->at, t->n, sums, &config);
    }
}

static void adamw_change(float *change, const float *p, const void *m, const void *v,
                         AdamWPieces pieces, const double sums[3], const AdamWConfig *c,
                         cudaStream_t stream) {
    (void)stream;
    switch (c->moments) {
    case MOMENTS_FP32:
        adamw_changes_of_pieces<float, float>(change, p, m, v, &pieces, sums, c);
        break;
    case MOMENTS_FP64:
        adamw_changes_of_pieces<double, double>(change, p, m, v, &pieces, sums, c);
        break;
    case MOMENTS_BF16:
        adamw_changes_of_pieces<bf16, float>(change, p, m, v, &pieces, sums, c);
        break;
    }
}
