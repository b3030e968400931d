// kernels/adamw.cuh: AdamW on pieces of a shard, in one launch; the arithmetic is ../adamw.cuh.
// Bound by memory. The norm is read on the device, so that the host need not wait for it.
#pragma once

#include "../adamw.cuh"
#include "common.cuh"

#define ADAMW_THREADS 256

static inline unsigned adamw_blocks(const AdamWPieces *pieces, size_t elements) {
    unsigned blocks = 0;
    for (int i = 0; i < pieces->count; i++) blocks += blocks_for(pieces->piece[i].n, elements);
    return blocks;
}

// The piece that a block works on, and the block's number in it. Blocks go through the pieces in
// order; each has whole blocks of `elements`.
__device__ static inline AdamWPiece adamw_piece(const AdamWPieces &pieces, size_t elements,
                                                size_t *block) {
    size_t left = blockIdx.x;
    int i = 0;
    for (; i + 1 < pieces.count; i++) {
        size_t blocks = (pieces.piece[i].n + elements - 1) / elements;
        if (left < blocks) break;
        left -= blocks;
    }
    *block = left;
    return pieces.piece[i];
}

// P elements a thread, whose moments are 16 bytes or less, so that neighbouring threads read
// neighbouring ones; the last thread of a piece may have fewer.
template <class Moment, class Real, int P>
__global__ static void adamw_kernel(float *p, const float *g, Moment *m, Moment *v,
                                    AdamWPieces pieces, const double *sums, AdamWFactors<Real> f) {
    size_t block;
    AdamWPiece piece = adamw_piece(pieces, ADAMW_THREADS * P, &block);
    size_t i = (block * ADAMW_THREADS + threadIdx.x) * P, n = piece.n, at = piece.at;
    if (i >= n) return;
    Real scale;
    if (!adamw_scale(&scale, sums, f)) return;
    if (!piece.decays) f.weight_decay = 0;
    if (i + P > n) {
        for (; i < n; i++)
            adamw_element<Moment, Real>(p + at + i, g[at + i], m + at + i, v + at + i, scale,
                                        piece.first + i, f);
        return;
    }
    Items<P, float> pi = load_items<P>(p + at + i), gi = load_items<P>(g + at + i);
    Items<P, Moment> mi = load_items<P>(m + at + i), vi = load_items<P>(v + at + i);
    for (int k = 0; k < P; k++)
        adamw_element<Moment, Real>(&pi.x[k], gi.x[k], &mi.x[k], &vi.x[k], scale,
                                    piece.first + i + (size_t)k, f);
    store_items<P>(p + at + i, pi);
    store_items<P>(m + at + i, mi);
    store_items<P>(v + at + i, vi);
}

template <class Moment, class Real, int P>
static void adamw_launch(float *p, const float *g, void *m, void *v, const AdamWPieces *pieces,
                         const double sums[3], const AdamWConfig *c, cudaStream_t stream) {
    unsigned blocks = adamw_blocks(pieces, ADAMW_THREADS * P);
    if (blocks == 0) return;
    adamw_kernel<Moment, Real, P><<<blocks, ADAMW_THREADS, 0, stream>>>(
        p, g, (Moment *)m, (Moment *)v, *pieces, sums, adamw_factors<Real>(c));
    launchCheck();
}

static void adamw_update(float *p, const float *g, void *m, void *v, AdamWPieces pieces,
                         const double sums[3], const AdamWConfig *c, cudaStream_t stream) {
    bool packs = aligned16(p) && aligned16(g) && aligned16(m) && aligned16(v);
    for (int i = 0; i < pieces.count; i++) packs = packs && pieces.piece[i].at % 8 == 0;
    switch (c->moments) {
    case MOMENTS_FP32: {
        auto launch = packs ? adamw_launch<float, float, 4> : adamw_launch<float, float, 1>;
        launch(p, g, m, v, &pieces, sums, c, stream);
        break;
    }
    case MOMENTS_FP64: {
        auto launch = packs ? adamw_launch<double, double, 2> : adamw_launch<double, double, 1>;
        launch(p, g, m, v, &pieces, sums, c, stream);
        break;
    }
    case MOMENTS_BF16: {
        auto launch = packs ? adamw_launch<bf16, float, 4> : adamw_launch<bf16, float, 1>;
        launch(p, g, m, v, &pieces, sums, c, stream);
        break;
    }
    }
}

// One element a thread.
template <class Moment, class Real>
__global__ static void adamw_change_kernel(float *change, const float *p, const Moment *m,
                                           const Moment *v, AdamWPieces pieces, const double *sums,
                                           AdamWFactors<Real> f) {
    size_t block;
    AdamWPiece piece = adamw_piece(pieces, ADAMW_THREADS, &block);
    size_t i = block * ADAMW_THREADS + threadIdx.x, at = piece.at + i;
    if (i >= piece.n) return;
    Real scale;
    const bool updated = adamw_scale(&scale, sums, f);
    if (!piece.decays) f.weight_decay = 0;
    change[at] = updated ? adamw_change_of<Moment, Real>(p[at], m[at], v[at], f) : 0.0f;
}

template <class Moment, class Real>
static void adamw_change_launch(float *change, const float *p, const void *m, const void *v,
                                const AdamWPieces *pieces, const double sums[3],
                                const AdamWConfig *c, cudaStream_t stream) {
    unsigned blocks = adamw_blocks(pieces, ADAMW_THREADS);
    if (blocks == 0) return;
    adamw_change_kernel<Moment, Real><<<blocks, ADAMW_THREADS, 0, stream>>>(
        change, p, (const Moment *)m, (const Moment *)v, *pieces, sums, adamw_factors<Real>(c));
    launchCheck();
}

static void adamw_change(float *change, const float *p, const void *m, const void *v,
                         AdamWPieces pieces, const double sums[3], const AdamWConfig *c,
                         cudaStream_t stream) {
    switch (c->moments) {
    case MOMENTS_FP32:
        adamw_change_launch<float, float>(change, p, m, v, &pieces, sums, c, stream);
        break;
    case MOMENTS_FP64:
        adamw_change_launch<double, double>(change, p, m, v, &pieces, sums, c, stream);
        break;
    case MOMENTS_BF16:
        adamw_change_launch<bf16, float>(change, p, m, v, &pieces, sums, c, stream);
        break;
    }
}
