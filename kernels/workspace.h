// kernels/workspace.h: the room that the CUDA ops need, in plain C: --plan counts it where there is
// no CUDA.
#pragma once

#include <stddef.h>

#define PRODUCT_WORKSPACE ((size_t)32 << 20)  // of cuBLASLt, as NVIDIA recommends it for Hopper
#define COLUMNS_CHUNKS 64

// Column sums: a chunk of rows gives one row of sums.
static inline int columns_chunks(int rows) {
    int chunks = (rows + 63) / 64;
    return chunks < COLUMNS_CHUNKS ? chunks : COLUMNS_CHUNKS;
}

static inline size_t columns_workspace_bytes(int rows, int C) {
    return 2 * (size_t)columns_chunks(rows) * (size_t)C * sizeof(float);
}

// The order of the tokens, twice.
static inline size_t encoder_workspace_bytes(int rows) {
    return 2 * (size_t)rows * sizeof(int);
}

// Rows of a head: whole tiles.
static inline size_t attention_workspace_bytes(int B, int T, int NH) {
    return (size_t)B * (size_t)NH * (size_t)((T + 63) / 64 * 64) * 2 * sizeof(float);
}

// The largest of what single ops take.
static inline size_t ops_room_bytes(int B, int T, int C, int NH) {
    size_t most = columns_workspace_bytes(B * T, 4 * C), sort = encoder_workspace_bytes(B * T),
           attention = attention_workspace_bytes(B, T, NH);
    most = most > sort ? most : sort;
    most = most > attention ? most : attention;
    return (most + 255) / 256 * 256;
}
