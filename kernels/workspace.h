// kernels/workspace.h: the room that the CUDA ops need, in plain C: --plan counts it where there is
// no CUDA.
#pragma once

#include <stddef.h>

#define PRODUCT_WORKSPACE ((size_t)32 << 20)  // of cuBLASLt, as NVIDIA recommends it for Hopper
// Up to so many Cin a weight's product also sums the bias's gradient. A kernel would read dout once
// more, which on an A100 takes 157 / Cin of the product's own time. Where that is little, the
// product may lose more: fused, a BERT of 1.5e9 parameters became faster on A100s, one of 1e10 took
// 1.6 times as long (github.com/NVIDIA/CUDALibrarySamples/issues/90).
#define PRODUCT_BIAS_WIDTH 2048
#define COLUMNS_CHUNKS 64
#define NORM_CHUNKS 256

// Column sums: a chunk of rows gives one row of sums.
static inline int columns_chunks(int rows) {
    int chunks = (rows + 63) / 64;
    return chunks < COLUMNS_CHUNKS ? chunks : COLUMNS_CHUNKS;
}

static inline size_t columns_workspace_bytes(int rows, int C) {
    return (size_t)columns_chunks(rows) * (size_t)C * sizeof(float);
}

// LayerNorm's backward: a chunk of rows, which is a block, gives three.
static inline int norm_chunks(int rows) {
    int chunks = (rows + 31) / 32;
    return chunks < NORM_CHUNKS ? chunks : NORM_CHUNKS;
}

static inline size_t norm_workspace_bytes(int rows, int C) {
    return 3 * (size_t)norm_chunks(rows) * (size_t)C * sizeof(float);
}

// The order of the tokens, twice.
static inline size_t encoder_workspace_bytes(int rows) {
    return 2 * (size_t)rows * sizeof(int);
}

// Rows of a head: whole tiles.
static inline size_t attention_workspace_bytes(int B, int T, int NH) {
    return (size_t)B * (size_t)NH * (size_t)((T + 127) / 128 * 128) * 2 * sizeof(float);
}

// The largest of what single ops take.
static inline size_t ops_room_bytes(int B, int T, int C, int NH) {
    size_t most = columns_workspace_bytes(B * T, 4 * C), sort = encoder_workspace_bytes(B * T),
           attention = attention_workspace_bytes(B, T, NH), norm = norm_workspace_bytes(B * T, C);
    most = most > norm ? most : norm;
    most = most > sort ? most : sort;
    most = most > attention ? most : attention;
    return (most + 255) / 256 * 256;
}
