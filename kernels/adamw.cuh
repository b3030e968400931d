// kernels/adamw.cuh: AdamW on a piece of a shard; the arithmetic is ../adamw.cuh. Bound by memory.
// The norm is read on the device, so that the host need not wait for it.
#pragma once

#include "../adamw.cuh"
#include "common.cuh"

#define ADAMW_THREADS 256

// P elements a thread; the last thread may have fewer.
template <class Moment, class Real, int P>
__global__ static void adamw_kernel(float *p, const float *g, Moment *m, Moment *v, size_t n,
                                    uint64_t first, const double *sums, AdamWFactors<Real> f) {
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * P;
    if (i >= n) return;
    Real scale;
    if (!adamw_scale(&scale, sums, f)) return;
    if (i + P > n) {
        for (; i < n; i++)
            adamw_element<Moment, Real>(p + i, g[i], m + i, v + i, scale, first + i, f);
        return;
    }
    Items<P, float> pi = load_items<P>(p + i), gi = load_items<P>(g + i);
    Items<P, Moment> mi = load_items<P>(m + i), vi = load_items<P>(v + i);
    for (int k = 0; k < P; k++)
        adamw_element<Moment, Real>(&pi.x[k], gi.x[k], &mi.x[k], &vi.x[k], scale,
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

// One element a thread.
template <class Moment, class Real>
__global__ static void adamw_change_kernel(float *change, const float *p, const Moment *m,
                                           const Moment *v, size_t n, const double *sums,
                                           AdamWFactors<Real> f) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Real scale;
    const bool updated = adamw_scale(&scale, sums, f);
    change[i] = updated ? adamw_change_of<Moment, Real>(p[i], m[i], v[i], f) : 0.0f;
}

template <class Moment, class Real>
static void adamw_change_launch(float *change, const float *p, const void *m, const void *v,
                                size_t n, const double sums[3], const AdamWConfig *c,
                                cudaStream_t stream) {
    adamw_change_kernel<Moment, Real><<<blocks_for(n, ADAMW_THREADS), ADAMW_THREADS, 0, stream>>>(
        change, p, (const Moment *)m, (const Moment *)v, n, sums, adamw_factors<Real>(c));
    launchCheck();
}

static void adamw_change(float *change, const float *p, const void *m, const void *v, size_t n,
                         const double sums[3], const AdamWConfig *c, cudaStream_t stream) {
    if (n == 0) return;
    switch (c->moments) {
    case MOMENTS_FP32:
        adamw_change_launch<float, float>(change, p, m, v, n, sums, c, stream);
        break;
    case MOMENTS_FP64:
        adamw_change_launch<double, double>(change, p, m, v, n, sums, c, stream);
        break;
    case MOMENTS_BF16:
        adamw_change_launch<bf16, float>(change, p, m, v, n, sums, c, stream);
        break;
    }
}
