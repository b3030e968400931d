// cpu/pack.h: operands of products copied into the layouts that gemm.h asks for.
#pragma once

#include "gemm.h"

typedef uint16_t Lane16 __attribute__((may_alias));
typedef uint32_t Lane32 __attribute__((may_alias));

// An 8 x 8 block of lanes, transposed by three rounds of interleaving rows i and i + 4. Rows are
// dst_ld and src_ld elements of the pointers' types apart.
template <typename Lane, typename Dst, typename Src>
static inline void transpose_block(Dst *dst, size_t dst_ld, const Src *src, size_t src_ld) {
    typedef Lane Lanes
        __attribute__((vector_size(8 * sizeof(Lane)), aligned(sizeof(Lane)), may_alias));
    const Lanes low = {0, 8, 1, 9, 2, 10, 3, 11}, high = {4, 12, 5, 13, 6, 14, 7, 15};
    Lanes a[8], b[8];
    for (int i = 0; i < 8; i++) a[i] = *(const Lanes *)(src + i * src_ld);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4; i++) {
            b[2 * i] = __builtin_shuffle(a[i], a[i + 4], low);
            b[2 * i + 1] = __builtin_shuffle(a[i], a[i + 4], high);
        }
        for (int i = 0; i < 8; i++) a[i] = b[i];
    }
    for (int i = 0; i < 8; i++) *(Lanes *)(dst + i * dst_ld) = a[i];
}

#if PRECISION_BF16
typedef Lane16 LaneX;
#else
typedef Lane32 LaneX;
#endif

// dst (cols, rows) = src (rows, cols) transposed; rows of src are ld apart. As many rows at a time
// as make lines of dst, since lines of several rows of it may not stay in the cache together.
static inline void transpose(floatX *dst, const floatX *src, size_t ld, int rows, int cols) {
    const int line = 64 / sizeof(floatX), whole_rows = rows & ~7, whole_cols = cols & ~7;
    for (int r0 = 0; r0 < whole_rows; r0 += line)
        for (int c = 0; c < whole_cols; c += 8)
            for (int r = r0; r < whole_rows && r < r0 + line; r += 8)
                transpose_block<LaneX>(dst + (size_t)c * rows + r, (size_t)rows, src + r * ld + c,
                                       ld);
    for (int r = 0; r < rows; r++)
        for (int c = r < whole_rows ? whole_cols : 0; c < cols; c++)
            dst[(size_t)c * rows + r] = src[r * ld + c];
}

// dst (rows, cols) = rows of src that are ld apart
static inline void copy_rows(floatX *dst, const floatX *src, size_t ld, int rows, int cols) {
    for (int r = 0; r < rows; r++)
        memcpy(dst + (size_t)r * cols, src + r * ld, (size_t)cols * sizeof(floatX));
}

// Sets element (p, j) of a packed B (k, n) to x, or to zero where it lies outside.
static inline void pack_element(void *packed, const floatX *x, int p, int j, int k, int n) {
    const size_t block = (size_t)(j / BLOCK) * packed_rows(k) * BLOCK, col = (size_t)(j % BLOCK);
    const bool inside = p < k && j < n;
    if (packed_in_pairs()) {
        floatX *d = (floatX *)packed + block + (size_t)(p / 2) * 2 * BLOCK + col * 2 + p % 2;
        if (inside)
            *d = *x;
        else
            store_float(d, 0.0f);
    } else {
        ((float *)packed)[block + (size_t)p * BLOCK + col] = inside ? to_float(*x) : 0.0f;
    }
}

// The 32-bit lanes of one packed row, or pair of rows, within a block
static inline Lane32 *packed_lanes(void *packed, int k, int block, int lane_row) {
    size_t rows = packed_rows(k) / (packed_in_pairs() ? 2 : 1);
    return (Lane32 *)packed + (block * rows + (size_t)lane_row) * BLOCK;
}

// One row of a block, or the pair of rows a and b, of BLOCK columns
static inline void pack_row(Lane32 *dst, const floatX *a, const floatX *b) {
    if (packed_in_pairs()) {
        const Lane16 *low = (const Lane16 *)a, *high = (const Lane16 *)b;
#pragma omp simd
        for (int j = 0; j < BLOCK; j++) dst[j] = (uint32_t)low[j] | (uint32_t)high[j] << 16;
    } else {
        float *d = (float *)(void *)dst;
#pragma omp simd
        for (int j = 0; j < BLOCK; j++) d[j] = to_float(a[j]);
    }
}

// Packs B (k, n), B[p][j] = src[p*ld + j].
static inline void pack_rows(void *packed, const floatX *src, size_t ld, int k, int n) {
    const int rows = packed_in_pairs() ? 2 : 1, whole = k / rows * rows;
    for (int p = 0; p < (int)packed_rows(k); p += rows)
        for (int j = 0; j < n; j += BLOCK) {
            const floatX *x = src + p * ld + j;
            if (p < whole && n - j >= BLOCK) {
                pack_row(packed_lanes(packed, k, j / BLOCK, p / rows), x, x + ld);
                continue;
            }
            for (int i = 0; i < rows; i++)
                for (int c = 0; c < BLOCK; c++)
                    pack_element(packed, x + i * ld + c, p + i, j + c, k, n);
        }
}

// Packs B (k, n), B[p][j] = src[j*ld + p]: 16 columns at a time, which fill lines of the result, of
// 16 lanes, which are lines of the source.
static inline void pack_transposed(void *packed, const floatX *src, size_t ld, int k, int n) {
    const int rows = packed_in_pairs() ? 2 : 1, step = 16 * rows;
    const bool lanes = packed_element() == sizeof(floatX);  // one or two elements as they are
    for (int j = 0; j < whole_blocks(n); j += 16)
        for (int p = 0; p < (int)packed_rows(k); p += step) {
            const floatX *x = src + j * ld + p;
            if (!lanes || n - j < 16 || k - p < step) {
                for (int c = 0; c < 16; c++)
                    for (int i = 0; i < step; i++)
                        pack_element(packed, x + c * ld + i, p + i, j + c, k, n);
                continue;
            }
            Lane32 *d = packed_lanes(packed, k, j / BLOCK, p / rows) + j % BLOCK;
            for (int c = 0; c < 16; c += 8)
                for (int i = 0; i < 16; i += 8)
                    transpose_block<Lane32>(d + i * BLOCK + c, BLOCK, x + c * ld + i * rows, ld);
        }
}
