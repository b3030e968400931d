// cpu/shard.h: casts, sums and norms over flat arrays. No workspace; any n.
#pragma once

#include "../arithmetic.cuh"
#include "workspace.h"

static const size_t SHARD_BLOCK =
    4096;  // elements one thread takes at a time; fixes the order of sums

template <typename D, typename S> static inline void convert(D *dst, const S *src, size_t n) {
#pragma omp parallel for schedule(static)
    for (size_t at = 0; at < n; at += SHARD_BLOCK) {
        size_t end = n - at < SHARD_BLOCK ? n : at + SHARD_BLOCK;
#pragma omp simd
        for (size_t i = at; i < end; i++) store_float(&dst[i], to_float(src[i]));
    }
}

static void cast_from_float(floatX *dst, const float *src, size_t n, cudaStream_t stream) {
    (void)stream;
    convert(dst, src, n);
}

static void cast_to_bf16(bf16 *dst, const float *src, size_t n, cudaStream_t stream) {
    (void)stream;
    convert(dst, src, n);
}

static void cast_from_bf16(float *dst, const bf16 *src, size_t n, cudaStream_t stream) {
    (void)stream;
    convert(dst, src, n);
}

static void shard_add_ordered(float *shard, const float *parts, int nparts, size_t stride, size_t n,
                              bool accumulate, cudaStream_t stream) {
    (void)stream;
#pragma omp parallel for schedule(static)
    for (size_t at = 0; at < n; at += SHARD_BLOCK) {
        size_t len = n - at < SHARD_BLOCK ? n - at : SHARD_BLOCK;
        float *s = shard + at;
        if (!accumulate) {
#pragma omp simd
            for (size_t i = 0; i < len; i++) s[i] = 0.0f + parts[at + i];
        }
        for (int k = accumulate ? 0 : 1; k < nparts; k++) {
            const float *p = parts + k * stride + at;
#pragma omp simd
            for (size_t i = 0; i < len; i++) s[i] += p[i];
        }
    }
}

static void shard_add(float *shard, const float *part, size_t n, bool accumulate,
                      cudaStream_t stream) {
    if (accumulate)
        shard_add_ordered(shard, part, 1, 0, n, true, stream);
    else
        convert(shard, part, n);
}

// Floats of one sign compare as their bits do; NaN is above infinity.
static void shard_absmax(float *max, const float *x, size_t n, cudaStream_t stream) {
    (void)stream;
    const uint32_t infinity = 0x7f800000u;
    uint32_t most;
    memcpy(&most, max, sizeof most);
#pragma omp parallel for simd schedule(static) reduction(max : most)
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof u);
        u &= 0x7fffffffu;
        most = u > most ? u : most;
    }
    most = most > infinity ? infinity : most;
    memcpy(max, &most, sizeof most);
}

static inline double sum_squares_block(const float *x, size_t n) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    return sum;
}

// Blocks are summed by whoever comes and added in order, BLOCKS of them at a time.
static double sum_squares_in_order(const float *x, size_t n) {
    const size_t BLOCKS = 512;
    double part[BLOCKS], sum = 0;
    for (size_t at = 0; at < n; at += BLOCKS * SHARD_BLOCK) {
        size_t len = n - at < BLOCKS * SHARD_BLOCK ? n - at : BLOCKS * SHARD_BLOCK;
        size_t blocks = (len + SHARD_BLOCK - 1) / SHARD_BLOCK;
#pragma omp parallel for schedule(static)
        for (size_t k = 0; k < blocks; k++) {
            size_t from = k * SHARD_BLOCK;
            part[k] = sum_squares_block(x + at + from,
                                        len - from < SHARD_BLOCK ? len - from : SHARD_BLOCK);
        }
        for (size_t k = 0; k < blocks; k++) sum += part[k];
    }
    return sum;
}

// The parts of every square, summed level by level.
template <int LEVELS>
static void squares_exact(double sums[3], const float *x, size_t n, const double round[3]) {
    const double round0 = round[0], round1 = round[1], round2 = round[2];
    double s0 = 0, s1 = 0, s2 = 0;
#pragma omp parallel for simd schedule(static) reduction(+ : s0, s1, s2)
    for (size_t i = 0; i < n; i++) {
        double square = (double)x[i] * x[i];
        double q0 = level_part(square, round0), q1 = level_part(square - q0, round1);
        s0 += q0;
        s1 += q1;
        if (LEVELS == 3) s2 += level_part(square - q0 - q1, round2);
    }
    sums[0] += s0;
    sums[1] += s1;
    sums[2] += s2;
}

static void shard_sum_squares(double sums[3], const float *x, size_t n, const float *absmax,
                              int total_bits, cudaStream_t stream) {
    (void)stream;
    if (!absmax) {
        sums[0] += sum_squares_in_order(x, n);
        return;
    }
    if (*absmax == 0 || !isfinite(*absmax)) {
        sums[0] += *absmax;
        return;
    }
    const SquareLevels l = square_levels(*absmax, total_bits);
    if (l.levels == 2)
        squares_exact<2>(sums, x, n, l.round);
    else
        squares_exact<3>(sums, x, n, l.round);
}

static void shard_checksum(uint64_t *sum, const void *data, size_t words, cudaStream_t stream) {
    (void)stream;
    const uint32_t *word = (const uint32_t *)data;
    uint64_t total = 0;
#pragma omp parallel for simd schedule(static) reduction(+ : total)
    for (size_t i = 0; i < words; i++) total += checksum_word(i, word[i]);
    *sum += total;
}
