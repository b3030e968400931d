// cpu/encoder.h: token and position embeddings and their gradients.
#pragma once

#include "workspace.h"

static void encoder_forward(floatX *out, const int *tokens, const floatX *wte, const floatX *wpe,
                            int B, int T, int C, cudaStream_t stream) {
    (void)stream;
#pragma omp parallel for schedule(static)
    for (int i = 0; i < B * T; i++) {
        const floatX *e = wte + (size_t)tokens[i] * C, *p = wpe + (size_t)(i % T) * C;
        floatX *o = out + (size_t)i * C;
#pragma omp simd
        for (int c = 0; c < C; c++) store_float(&o[c], to_float(e[c]) + to_float(p[c]));
    }
}

// Positions ordered by token, equal tokens in their order: radix sort, 8 bits at a time. `order`
// and `spare` have room for rows; the result is in the one returned.
static inline int *sort_by_token(int *order, int *spare, const int *tokens, int rows) {
    int max = 0;
    for (int i = 0; i < rows; i++) {
        order[i] = i;
        max = tokens[i] > max ? tokens[i] : max;
    }
    for (int shift = 0; shift == 0 || (shift < 32 && max >> shift); shift += 8) {
        int start[257] = {0};
        for (int i = 0; i < rows; i++) start[(tokens[i] >> shift & 255) + 1]++;
        for (int d = 0; d < 256; d++) start[d + 1] += start[d];
        for (int i = 0; i < rows; i++) spare[start[tokens[order[i]] >> shift & 255]++] = order[i];
        int *t = order;
        order = spare;
        spare = t;
    }
    return order;
}

// dst[0..n) += the sum of rows src[row[0]], src[row[1]], ... (C apart), n <= 256
static inline void add_sum_of_rows(float *dst, const floatX *src, const int *row, int count, int C,
                                   int n) {
    float sum[256] = {0};
    for (int k = 0; k < count; k++) {
        const floatX *x = src + (size_t)row[k] * C;
#pragma omp simd
        for (int c = 0; c < n; c++) sum[c] += to_float(x[c]);
    }
#pragma omp simd
    for (int c = 0; c < n; c++) dst[c] += sum[c];
}

static void encoder_backward(float *dwte, float *dwpe, const floatX *dout, const int *tokens, int B,
                             int T, int C, cudaStream_t stream) {
    (void)stream;
    const int rows = B * T, blocks = (C + 255) / 256;
    Room room = room_shared();
    int *a = (int *)room_take(&room, (size_t)rows * sizeof(int));
    int *b = (int *)room_take(&room, (size_t)rows * sizeof(int));
    const int *order = sort_by_token(a, b, tokens, rows);
#pragma omp parallel for schedule(dynamic, 16)
    for (int i = 0; i < rows; i++) {
        int token = tokens[order[i]], count = 1;
        if (i > 0 && tokens[order[i - 1]] == token) continue;  // not the first of its run
        while (i + count < rows && tokens[order[i + count]] == token) count++;
        for (int k = 0; k < blocks; k++) {
            int c = k * 256, n = C - c < 256 ? C - c : 256;
            add_sum_of_rows(dwte + (size_t)token * C + c, dout + c, order + i, count, C, n);
        }
    }
#pragma omp parallel for schedule(static)
    for (int t = 0; t < T; t++) {
        for (int c = 0; c < C; c++) {
            float sum = 0;
            for (int k = 0; k < B; k++) sum += to_float(dout[((size_t)k * T + t) * C + c]);
            dwpe[(size_t)t * C + c] += sum;
        }
    }
}
