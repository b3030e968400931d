// kernels/shard.cuh: casts, sums and norms over flat arrays; see ../ops.h.
// Bound by memory bandwidth.
#pragma once

#include "../arithmetic.cuh"
#include "common.cuh"

#define SHARD_THREADS 256

// Elements a thread handles: two packs of four, next to those of neighbouring threads.
#define SHARD_ITEMS 8

// What is behind the last pack, or everything if the arrays are not aligned, goes one by one.
template <class D, class S> __global__ static void convert_kernel(D *dst, const S *src, size_t n) {
    size_t packs = (((size_t)dst | (size_t)src) & 15) == 0 ? n / 4 : 0;
    size_t p = (size_t)blockIdx.x * 2 * SHARD_THREADS + threadIdx.x, q = p + SHARD_THREADS;
    Items<4, S> a = {}, b = {};
    Items<4, D> x, y;
    if (p < packs) a = load_items<4>(src + 4 * p);
    if (q < packs) b = load_items<4>(src + 4 * q);
    for (int k = 0; k < 4; k++) store_float(&x.x[k], to_float(a.x[k]));
    for (int k = 0; k < 4; k++) store_float(&y.x[k], to_float(b.x[k]));
    if (p < packs) store_items<4>(dst + 4 * p, x);
    if (q < packs) store_items<4>(dst + 4 * q, y);
    for (size_t i = 4 * packs + (size_t)blockIdx.x * SHARD_THREADS + threadIdx.x; i < n;
         i += (size_t)gridDim.x * SHARD_THREADS)
        store_float(&dst[i], to_float(src[i]));
}

template <class D, class S>
static void convert(D *dst, const S *src, size_t n, cudaStream_t stream) {
    if (n == 0) return;
    convert_kernel<<<blocks_for(n, SHARD_THREADS * SHARD_ITEMS), SHARD_THREADS, 0, stream>>>(
        dst, src, n);
    launchCheck();
}

static void cast_from_float(floatX *dst, const float *src, size_t n, cudaStream_t stream) {
    convert(dst, src, n, stream);
}

static void cast_to_bf16(bf16 *dst, const float *src, size_t n, cudaStream_t stream) {
    convert(dst, src, n, stream);
}

static void cast_from_bf16(float *dst, const bf16 *src, size_t n, cudaStream_t stream) {
    convert(dst, src, n, stream);
}

__global__ static void shard_add_kernel(float *shard, const float *parts, int nparts, size_t stride,
                                        size_t n, bool accumulate) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = accumulate ? shard[i] : 0.0f;
    for (int k = 0; k < nparts; k++) sum += parts[(size_t)k * stride + i];
    shard[i] = sum;
}

// Four neighbours a thread; stride, n and the pointers are multiples of 16 bytes.
__global__ static void shard_add_vector_kernel(float *shard, const float *parts, int nparts,
                                               size_t stride, size_t n, bool accumulate) {
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i >= n) return;
    Pack<float> sum = {};
    if (accumulate) sum = load_pack(shard + i);
    for (int k = 0; k < nparts; k++) {
        Pack<float> p = load_pack(parts + (size_t)k * stride + i);
        for (int j = 0; j < 4; j++) sum.x[j] += p.x[j];
    }
    store_pack(shard + i, sum);
}

static void shard_add_ordered(float *shard, const float *parts, int nparts, size_t stride, size_t n,
                              bool accumulate, cudaStream_t stream) {
    if (n == 0) return;
    if (n % 4 == 0 && stride % 4 == 0 && aligned16(shard) && aligned16(parts))
        shard_add_vector_kernel<<<blocks_for(n, SHARD_THREADS * 4), SHARD_THREADS, 0, stream>>>(
            shard, parts, nparts, stride, n, accumulate);
    else
        shard_add_kernel<<<blocks_for(n, SHARD_THREADS), SHARD_THREADS, 0, stream>>>(
            shard, parts, nparts, stride, n, accumulate);
    launchCheck();
}

static void shard_add(float *shard, const float *part, size_t n, bool accumulate,
                      cudaStream_t stream) {
    shard_add_ordered(shard, part, 1, 0, n, accumulate, stream);
}

// ---- norms -------------------------------------------------------------------------------------

// Non-negative floats compare as their bits do, so the maximum may be taken by an integer atomic:
// its result does not depend on the order.
__global__ static void shard_absmax_kernel(float *max, const float *x, size_t n) {
    __shared__ float room[SHARD_THREADS / WARP];
    float most = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        float a = fabsf(x[i]);
        most = a == a ? fmaxf(most, a) : INFINITY;
        if (!(most <= 3.402823466e38f)) most = INFINITY;
    }
    most = block_max(most, room);
    if (threadIdx.x == 0) atomicMax((int *)max, __float_as_int(most));
}

static void shard_absmax(float *max, const float *x, size_t n, cudaStream_t stream) {
    if (n == 0) return;
    unsigned blocks = blocks_for(n, SHARD_THREADS * 16);
    if (blocks > 1024) blocks = 1024;
    shard_absmax_kernel<<<blocks, SHARD_THREADS, 0, stream>>>(max, x, n);
    launchCheck();
}

// Sums in two stages, without atomics: each block leaves its parts behind sums[3], (3,
// SQUARES_BLOCKS), then they are added by a fixed tree. The number of blocks depends on n alone.
#define SQUARES_THREADS 512
#define SQUARES_BLOCKS 512

// levels 0: the whole square goes to s[0].
__device__ static inline void add_square(double s[3], double rest, const SquareLevels &l) {
    if (l.levels == 0) {
        s[0] += rest;
        return;
    }
    UNROLL
    for (int k = 0; k < 3 && k < l.levels; k++) {
        double q = level_part(rest, l.round[k]);
        rest -= q;
        s[k] += q;
    }
}

__global__ static void sum_squares_kernel(double *sums, const float *x, size_t n,
                                          const float *absmax, int total_bits) {
    __shared__ double room[SQUARES_THREADS / WARP];
    double s[3] = {0, 0, 0};
    float largest = absmax ? *absmax : 1.0f;
    SquareLevels l = {};
    if (absmax) l = square_levels(largest, total_bits);
    bool usable = largest > 0 && largest <= 3.402823466e38f;
    // Packs of 16 bytes keep memory busy: of 4 too few would be on their way.
    size_t packs = (size_t)x % 16 == 0 ? n / 4 : 0, threads = (size_t)gridDim.x * blockDim.x,
           first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (size_t i = first; usable && i < packs; i += threads) {
        Pack<float> a = load_pack(x + 4 * i);
        for (int k = 0; k < 4; k++) add_square(s, (double)a.x[k] * a.x[k], l);
    }
    for (size_t i = 4 * packs + first; usable && i < n; i += threads)
        add_square(s, (double)x[i] * x[i], l);
    if (!usable && blockIdx.x == 0 && threadIdx.x == 0) s[0] = largest;
    for (int k = 0; k < 3; k++) {
        double total = block_sum(s[k], room);
        if (threadIdx.x == 0) sums[4 + k * SQUARES_BLOCKS + (int)blockIdx.x] = total;
    }
}

// A thread for each part, a block for each sum.
__global__ static void add_parts_kernel(double *sums, int blocks) {
    __shared__ double room[SQUARES_BLOCKS / WARP];
    const double *parts = sums + 4 + blockIdx.x * SQUARES_BLOCKS;
    double total = block_sum((int)threadIdx.x < blocks ? parts[threadIdx.x] : 0.0, room);
    if (threadIdx.x == 0) sums[blockIdx.x] += total;
}

static void shard_sum_squares(double sums[SHARD_SUMS], const float *x, size_t n,
                              const float *absmax, int total_bits, cudaStream_t stream) {
    unsigned blocks = blocks_for(n ? n : 1, SQUARES_THREADS * 8);
    if (blocks > SQUARES_BLOCKS) blocks = SQUARES_BLOCKS;
    sum_squares_kernel<<<blocks, SQUARES_THREADS, 0, stream>>>(sums, x, n, absmax, total_bits);
    add_parts_kernel<<<3, SQUARES_BLOCKS, 0, stream>>>(sums, (int)blocks);
    launchCheck();
}

// ---- checksums ---------------------------------------------------------------------------------

// Sums of integers do not depend on their order, so an atomic may take them.
__global__ static void shard_checksum_kernel(unsigned long long *sum, const uint32_t *word,
                                             size_t words) {
    unsigned long long total = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x)
        total += checksum_word(i, word[i]);
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        total += __shfl_xor_sync(FULL_MASK, total, offset);
    if (threadIdx.x % WARP == 0) atomicAdd(sum, total);
}

static void shard_checksum(uint64_t *sum, const void *data, size_t words, cudaStream_t stream) {
    if (words == 0) return;
    unsigned blocks = blocks_for(words, SHARD_THREADS * 16);
    if (blocks > 1024) blocks = 1024;
    shard_checksum_kernel<<<blocks, SHARD_THREADS, 0, stream>>>((unsigned long long *)sum,
                                                                (const uint32_t *)data, words);
    launchCheck();
}
