// kernels/common.cuh: what the kernels share: 16-byte packs, sums over warps
// and blocks, launch checks.
#pragma once

#include "../ops.h"
#include "workspace.h"

#include <math.h>

#define WARP 32
#define FULL_MASK 0xffffffffu
#define LOG2E 1.4426950408889634f

#ifdef EMULATOR
#define UNROLL
#define UNROLL_1
#define UNROLL_2
#define UNROLL_4
#else
#define UNROLL _Pragma("unroll")
#define UNROLL_1 _Pragma("unroll 1")
#define UNROLL_2 _Pragma("unroll 2")
#define UNROLL_4 _Pragma("unroll 4")
#endif

// A barrier that a test can leave out, to see that the race is reported.
#ifdef SEEDED_DEFECTS
static int left_out = 0;
EMU_UNCHECKED static bool leaves_out(int number) {
    return left_out == number;
}
#define SEEDED_SYNC(number)                                                                        \
    do {                                                                                           \
        if (!leaves_out(number)) __syncthreads();                                                  \
    } while (0)
#else
#define SEEDED_SYNC(number) __syncthreads()
#endif

#define launchCheck() cudaCheck(cudaGetLastError())

// x as floatX would keep it.
__device__ static inline float rounded(float x) {
    floatX y;
    store_float(&y, x);
    return to_float(y);
}

// 16 bytes at once.
template <class T> struct alignas(16) Pack {
    static const int size = 16 / sizeof(T);
    T x[size];
};

template <class T> __device__ static inline Pack<T> load_pack(const T *p) {
    return *(const Pack<T> *)p;
}

template <class T> __device__ static inline void store_pack(T *p, const Pack<T> &v) {
    *(Pack<T> *)p = v;
}

// P neighbours, loaded and stored together: in one piece, or in pieces of 16 bytes.
template <int P, class T = floatX> struct alignas(P * sizeof(T) < 16 ? P * sizeof(T) : 16) Items {
    T x[P];
};

template <int P, class T> __device__ static inline Items<P, T> load_items(const T *p) {
    return *(const Items<P, T> *)p;
}

template <int P, class T> __device__ static inline void store_items(T *p, const Items<P, T> &v) {
    *(Items<P, T> *)p = v;
}

static inline bool aligned16(const void *p) {
    return (size_t)p % 16 == 0;
}

static inline unsigned blocks_for(size_t n, size_t per_block) {
    return (unsigned)((n + per_block - 1) / per_block);
}

// The sum over the warp, in every lane, by the same tree whoever the lanes are.
template <class T> __device__ static inline T warp_sum(T x) {
    for (int offset = WARP / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(FULL_MASK, x, offset);
    return x;
}

__device__ static inline float warp_max(float x) {
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(FULL_MASK, x, offset));
    return x;
}

// The sum (or maximum) over the block, in every thread. room: one T a warp,
// shared; free again on return.
template <class T> __device__ static inline T block_sum(T x, T *room) {
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP,
        warps = (int)(blockDim.x / WARP);
    x = warp_sum(x);
    if (lane == 0) room[warp] = x;
    __syncthreads();
    x = warp_sum(lane < warps ? room[lane] : (T)0);
    __syncthreads();
    return x;
}

__device__ static inline float block_max(float x, float *room) {
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP,
        warps = (int)(blockDim.x / WARP);
    x = warp_max(x);
    if (lane == 0) room[warp] = x;
    __syncthreads();
    x = warp_max(lane < warps ? room[lane] : -INFINITY);
    __syncthreads();
    return x;
}

// ---- the workspace of ops_init, used by one op at a time on the compute stream -----------------

static struct {
    char *room;
    size_t bytes;
} workspace;

// Bits of the largest token; set by ops_init.
static int vocabulary_bits = 1;

static inline void *workspace_take(size_t bytes, const char *op) {
    if (bytes > workspace.bytes)
        die("%s: expected a workspace of %zu bytes, found %zu", op, bytes, workspace.bytes);
    return workspace.room;
}
