// cpu/matmul.h: the products of a linear layer. Each is cut into tiles whose size depends on the shape alone; a
// tile is summed in fp32 in the thread's workspace and then written out with bias, GELU or the addition to the
// gradient, while it is in the cache.
#pragma once

#include "gemm.h"
#include "simd.h"

enum { TILE_ROWS = 256, TILE_COLS = 256, TILE_DEPTH = 1024 };
#define TILE_BYTES ((size_t)TILE_ROWS * TILE_COLS * sizeof(float))

typedef struct {
    int row, col, rows, cols;  // place and size within the result
} Tile;

static inline int tiles_of(int n, int tile) {
    return (n + tile - 1) / tile;
}

// Tile number `index` of a (rows, cols) result, along a row of tiles first.
static inline Tile tile_at(int index, int rows, int cols, int tile_rows, int tile_cols) {
    int per_row = tiles_of(cols, tile_cols);
    Tile t = {index / per_row * tile_rows, index % per_row * tile_cols, tile_rows, tile_cols};
    if (t.rows > rows - t.row) t.rows = rows - t.row;
    if (t.cols > cols - t.col) t.cols = cols - t.col;
    return t;
}

// out[r, :] = sum[r, :] + bias for the tile. With gelu: pre (may be NULL) gets that and out its GELU.
static inline void write_forward_tile(floatX *out, floatX *pre, const float *sum, const floatX *bias, const Tile *t,
                                      int Cout, bool gelu) {
    for (int r = 0; r < t->rows; r++) {
        size_t at = (size_t)(t->row + r) * Cout + t->col;
        floatX *linear = pre ? pre + at : out + at, *o = out + at;
        const float *s = sum + (size_t)r * t->cols;
        if (bias) {
            const floatX *b = bias + t->col;
#pragma omp simd
            for (int c = 0; c < t->cols; c++) store_float(&linear[c], s[c] + to_float(b[c]));
        } else {
#pragma omp simd
            for (int c = 0; c < t->cols; c++) store_float(&linear[c], s[c]);
        }
        if (!gelu) continue;
#pragma omp simd
        for (int c = 0; c < t->cols; c++) store_float(&o[c], gelu_float(to_float(linear[c])));
    }
}

static void linear_forward(floatX *out, floatX *pre, const floatX *inp, const floatX *weight, const floatX *bias,
                           int rows, int Cin, int Cout, bool gelu) {
    const int tile_rows = (size_t)Cin * sizeof(floatX) > 4096 ? TILE_ROWS / 2 : TILE_ROWS, tile_cols = 128;
    int tiles = tiles_of(rows, tile_rows) * tiles_of(Cout, tile_cols);
#pragma omp parallel num_threads(ops_threads())
    {
        gemm_one_thread();
        int thread = omp_get_thread_num();
        Room room = room_of_thread(thread);
        float *sum = (float *)room_take(&room, TILE_BYTES);
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < tiles; i++) {
            Tile t = tile_at(i, rows, Cout, tile_rows, tile_cols);
            Product p = {t.rows, t.cols, Cin, false, true, false, (size_t)Cin, (size_t)Cin, (size_t)t.cols};
            gemm_run(&p, thread, room, inp + (size_t)t.row * Cin, weight + (size_t)t.col * Cin, sum);
            write_forward_tile(out, pre, sum, bias, &t, Cout, gelu);
        }
    }
}

static void matmul_forward(floatX *out, const floatX *inp, const floatX *weight, const floatX *bias, int rows, int Cin,
                           int Cout, cudaStream_t stream) {
    (void)stream;
    linear_forward(out, NULL, inp, weight, bias, rows, Cin, Cout, false);
}

static void matmul_gelu_forward(floatX *out, floatX *pre, const floatX *inp, const floatX *weight, const floatX *bias,
                                int rows, int Cin, int Cout, cudaStream_t stream) {
    (void)stream;
    linear_forward(out, pre, inp, weight, bias, rows, Cin, Cout, true);
}

static inline void write_dinp_tile(floatX *dinp, const floatX *pre, const float *sum, const Tile *t, int Cin) {
    for (int r = 0; r < t->rows; r++) {
        size_t at = (size_t)(t->row + r) * Cin + t->col;
        floatX *d = dinp + at;
        const float *s = sum + (size_t)r * t->cols;
        if (pre) {
            const floatX *x = pre + at;
#pragma omp simd
            for (int c = 0; c < t->cols; c++) store_float(&d[c], s[c] * gelu_derivative(to_float(x[c])));
        } else {
#pragma omp simd
            for (int c = 0; c < t->cols; c++) store_float(&d[c], s[c]);
        }
    }
}

static void matmul_backward_input(floatX *dinp, const floatX *dout, const floatX *weight, const floatX *pre, int rows,
                                  int Cin, int Cout, cudaStream_t stream) {
    (void)stream;
    int tiles = tiles_of(rows, TILE_ROWS) * tiles_of(Cin, TILE_COLS);
#pragma omp parallel num_threads(ops_threads())
    {
        gemm_one_thread();
        int thread = omp_get_thread_num();
        Room room = room_of_thread(thread);
        float *sum = (float *)room_take(&room, TILE_BYTES);
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < tiles; i++) {
            Tile t = tile_at(i, rows, Cin, TILE_ROWS, TILE_COLS);
            for (int k = 0; k < Cout; k += TILE_DEPTH) {
                int depth = Cout - k < TILE_DEPTH ? Cout - k : TILE_DEPTH;
                Product p = {t.rows, t.cols, depth, false, false, k > 0, (size_t)Cout, (size_t)Cin, (size_t)t.cols};
                gemm_run(&p, thread, room, dout + (size_t)t.row * Cout + k, weight + (size_t)k * Cin + t.col, sum);
            }
            write_dinp_tile(dinp, pre, sum, &t, Cin);
        }
    }
}

// dbias = column sums of dout, four rows at a time within a chunk of rows
static void column_sums(float *dbias, const floatX *dout, int rows, int C, bool accumulate) {
    int per_chunk = rows_per_chunk(rows), chunks = tiles_of(rows, per_chunk);
    Room room = room_shared();
    float *part = (float *)room_take(&room, (size_t)chunks * C * sizeof(float));
#pragma omp parallel for schedule(dynamic, 1)
    for (int k = 0; k < chunks; k++) {
        int end = (k + 1) * per_chunk < rows ? (k + 1) * per_chunk : rows, i = k * per_chunk;
        float *sum = part + (size_t)k * C;
        for (int c = 0; c < C; c++) sum[c] = 0;
        for (; i + 4 <= end; i += 4) {
            const floatX *a = dout + (size_t)i * C, *b = a + C, *c2 = b + C, *d = c2 + C;
#pragma omp simd
            for (int c = 0; c < C; c++)
                sum[c] += (to_float(a[c]) + to_float(b[c])) + (to_float(c2[c]) + to_float(d[c]));
        }
        for (; i < end; i++) {
            const floatX *a = dout + (size_t)i * C;
#pragma omp simd
            for (int c = 0; c < C; c++) sum[c] += to_float(a[c]);
        }
    }
    add_chunks(dbias, part, (size_t)C, chunks, C, accumulate);
}

static void matmul_backward_weight(float *dweight, float *dbias, const floatX *dout, const floatX *inp, int rows,
                                   int Cin, int Cout, bool accumulate, cudaStream_t stream) {
    (void)stream;
    if (dbias) column_sums(dbias, dout, rows, Cout, accumulate);
    int tiles = tiles_of(Cout, TILE_ROWS) * tiles_of(Cin, TILE_COLS);
#pragma omp parallel num_threads(ops_threads())
    {
        gemm_one_thread();
        int thread = omp_get_thread_num();
        Room room = room_of_thread(thread);
        float *sum = (float *)room_take(&room, TILE_BYTES);
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < tiles; i++) {
            Tile t = tile_at(i, Cout, Cin, TILE_ROWS, TILE_COLS);
            Product p = {t.rows, t.cols, rows, true, false, false, (size_t)Cout, (size_t)Cin, (size_t)t.cols};
            gemm_run(&p, thread, room, dout + t.row, inp + t.col, sum);
            for (int r = 0; r < t.rows; r++) {
                float *d = dweight + (size_t)(t.row + r) * Cin + t.col;
                const float *s = sum + (size_t)r * t.cols;
                if (accumulate) {
#pragma omp simd
                    for (int c = 0; c < t.cols; c++) d[c] += s[c];
                } else {
#pragma omp simd
                    for (int c = 0; c < t.cols; c++) d[c] = s[c];
                }
            }
        }
    }
}
