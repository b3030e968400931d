// cpu/matmul.h: the products of a linear layer. Each is cut into tiles whose size depends on the
// shape alone; a tile is summed in fp32 in the thread's workspace and then written out with bias,
// GELU or the addition to the gradient, while it is in the cache. Operands are copied together
// where that lets oneDNN take its faster kernel (2.6 has it for matrices without gaps between rows
// only).
#pragma once

#include "gemm.h"
#include "simd.h"

enum { TILE_ROWS = 256, TILE_COLS = 512, WIDE_COLS = 1024, FORWARD_COLS = 128 };
enum { INPUT_DEPTH = 512, WEIGHT_DEPTH = 2048 };  // longest piece of a sum, backward
#define TILE_BYTES ((size_t)TILE_ROWS * WIDE_COLS * sizeof(float))
#define PACK_BYTES ((size_t)TILE_ROWS * WEIGHT_DEPTH * sizeof(floatX))

typedef struct {
    int row, col, rows, cols;  // place and size within the result
} Tile;

static inline int tiles_of(int n, int tile) {
    return (n + tile - 1) / tile;
}

// Tiles of at most TILE_ROWS rows, an even number of them and alike, so that two or four threads
// share them fairly.
static inline int even_tile_rows(int rows) {
    int tiles = tiles_of(rows, TILE_ROWS);
    if (rows >= 128 && tiles % 2) tiles++;
    return (int)round_up((size_t)tiles_of(rows, tiles), 16);
}

// Tile number `index` of a (rows, cols) result, along a row of tiles first.
static inline Tile tile_at(int index, int rows, int cols, int tile_rows, int tile_cols) {
    int per_row = tiles_of(cols, tile_cols);
    Tile t = {index / per_row * tile_rows, index % per_row * tile_cols, tile_rows, tile_cols};
    if (t.rows > rows - t.row) t.rows = rows - t.row;
    if (t.cols > cols - t.col) t.cols = cols - t.col;
    return t;
}

// out[r, :] = sum[r, :] + bias for the tile. With gelu: pre (may be NULL) gets that and out its
// GELU.
static inline void write_forward_tile(floatX *out, floatX *pre, const float *sum,
                                      const floatX *bias, const Tile *t, int Cout, bool gelu) {
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

static void linear_forward(floatX *out, floatX *pre, const floatX *inp, const floatX *weight,
                           const floatX *bias, int rows, int Cin, int Cout, bool gelu) {
    int tiles = tiles_of(rows, TILE_ROWS) * tiles_of(Cout, FORWARD_COLS);
#pragma omp parallel num_threads(ops_threads())
    {
        gemm_one_thread();
        int thread = omp_get_thread_num();
        Room room = room_of_thread(thread);
        float *sum = (float *)room_take(&room, TILE_BYTES);
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < tiles; i++) {
            Tile t = tile_at(i, rows, Cout, TILE_ROWS, FORWARD_COLS);
            Product p = {t.rows, t.cols,      Cin,         false,         true,
                         false,  (size_t)Cin, (size_t)Cin, (size_t)t.cols};
            gemm_run(&p, thread, room, inp + (size_t)t.row * Cin, weight + (size_t)t.col * Cin,
                     sum);
            write_forward_tile(out, pre, sum, bias, &t, Cout, gelu);
        }
    }
}

static void matmul_forward(floatX *out, const floatX *inp, const floatX *weight, const floatX *bias,
                           int rows, int Cin, int Cout, cudaStream_t stream) {
    (void)stream;
    linear_forward(out, NULL, inp, weight, bias, rows, Cin, Cout, false);
}

static void matmul_gelu_forward(floatX *out, floatX *pre, const floatX *inp, const floatX *weight,
                                const floatX *bias, int rows, int Cin, int Cout,
                                cudaStream_t stream) {
    (void)stream;
    linear_forward(out, pre, inp, weight, bias, rows, Cin, Cout, true);
}

static inline void write_dinp_tile(floatX *dinp, const floatX *pre, const float *sum, const Tile *t,
                                   int Cin) {
    for (int r = 0; r < t->rows; r++) {
        size_t at = (size_t)(t->row + r) * Cin + t->col;
        floatX *d = dinp + at;
        const float *s = sum + (size_t)r * t->cols;
        if (pre) {
            const floatX *x = pre + at;
#pragma omp simd
            for (int c = 0; c < t->cols; c++)
                store_float(&d[c], s[c] * gelu_derivative(to_float(x[c])));
        } else {
#pragma omp simd
            for (int c = 0; c < t->cols; c++) store_float(&d[c], s[c]);
        }
    }
}

// sum (tile) = dout (tile.rows, Cout) @ weight (Cout, tile.cols)
static void dinp_tile(float *sum, floatX *pack, const floatX *dout, const floatX *weight,
                      const Tile *t, int Cin, int Cout, int thread, Room room) {
    for (int k = 0; k < Cout; k += INPUT_DEPTH) {
        int depth = Cout - k < INPUT_DEPTH ? Cout - k : INPUT_DEPTH;
        const floatX *a = dout + (size_t)t->row * Cout + k;
        Product p = {t->rows, t->cols,      depth,       false,          false,
                     k > 0,   (size_t)Cout, (size_t)Cin, (size_t)t->cols};
        if (sizeof(floatX) == 2 && t->cols == Cin) {
            for (int r = 0; r < t->rows; r++)
                memcpy(pack + (size_t)r * depth, a + (size_t)r * Cout,
                       (size_t)depth * sizeof(floatX));
            a = pack;
            p.lda = (size_t)depth;
        }
        gemm_run(&p, thread, room, a, weight + (size_t)k * Cin + t->col, sum);
    }
}

static void matmul_backward_input(floatX *dinp, const floatX *dout, const floatX *weight,
                                  const floatX *pre, int rows, int Cin, int Cout,
                                  cudaStream_t stream) {
    (void)stream;
    const int tile_rows = even_tile_rows(rows), tile_cols = Cin <= WIDE_COLS ? Cin : TILE_COLS;
    int tiles = tiles_of(rows, tile_rows) * tiles_of(Cin, tile_cols);
#pragma omp parallel num_threads(ops_threads())
    {
        gemm_one_thread();
        int thread = omp_get_thread_num();
        Room room = room_of_thread(thread);
        float *sum = (float *)room_take(&room, TILE_BYTES);
        floatX *pack = (floatX *)room_take(&room, PACK_BYTES);
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < tiles; i++) {
            Tile t = tile_at(i, rows, Cin, tile_rows, tile_cols);
            dinp_tile(sum, pack, dout, weight, &t, Cin, Cout, thread, room);
            write_dinp_tile(dinp, pre, sum, &t, Cin);
        }
    }
}

// An 8 x 8 block, transposed by three rounds of interleaving rows i and i + 4.
typedef uint16_t Lane16 __attribute__((may_alias));
typedef uint32_t Lane32 __attribute__((may_alias));
#if PRECISION_BF16
typedef Lane16 Lane;
#else
typedef Lane32 Lane;
#endif
typedef Lane Lanes
    __attribute__((vector_size(8 * sizeof(floatX)), aligned(sizeof(floatX)), may_alias));

static inline void transpose_block(floatX *dst, size_t dst_ld, const floatX *src, size_t src_ld) {
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

// dst (cols, rows) = src (rows, cols) transposed; rows of src are ld apart
static inline void transpose(floatX *dst, const floatX *src, size_t ld, int rows, int cols) {
    const int line = 64 / sizeof(floatX), whole_rows = rows & ~7;
    for (int c0 = 0; c0 < cols; c0 += line) {
        int end = cols - c0 < line ? cols : c0 + line, whole = c0 + ((end - c0) & ~7);
        for (int r = 0; r < whole_rows; r += 8)
            for (int c = c0; c < whole; c += 8)
                transpose_block(dst + (size_t)c * rows + r, (size_t)rows, src + r * ld + c, ld);
        for (int r = 0; r < rows; r++)
            for (int c = r < whole_rows ? whole : c0; c < end; c++)
                dst[(size_t)c * rows + r] = src[r * ld + c];
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

static inline void add_tile(float *dweight, const float *sum, const Tile *t, int Cin,
                            bool accumulate) {
    for (int r = 0; r < t->rows; r++) {
        float *d = dweight + (size_t)(t->row + r) * Cin + t->col;
        const float *s = sum + (size_t)r * t->cols;
        if (accumulate) {
#pragma omp simd
            for (int c = 0; c < t->cols; c++) d[c] += s[c];
        } else {
#pragma omp simd
            for (int c = 0; c < t->cols; c++) d[c] = s[c];
        }
    }
}

// Rows t->row .. + t->rows of dweight, a tile of columns at a time. The piece of dout they need is
// transposed into `pack` once where it fits.
static void dweight_rows(float *dweight, float *sum, floatX *pack, const floatX *dout,
                         const floatX *inp, Tile t, int rows, int Cin, int Cout, bool accumulate) {
    const int thread = omp_get_thread_num(),
              cols = Cin <= WIDE_COLS && sizeof(floatX) == 2 ? Cin : TILE_COLS;
    Room room = room_of_thread(thread);
    room.next = (char *)pack + PACK_BYTES;
    for (t.col = 0; t.col < Cin; t.col += cols) {
        t.cols = Cin - t.col < cols ? Cin - t.col : cols;
        for (int k = 0; k < rows; k += WEIGHT_DEPTH) {
            int depth = rows - k < WEIGHT_DEPTH ? rows - k : WEIGHT_DEPTH;
            if (t.col == 0 || rows > WEIGHT_DEPTH)
                transpose(pack, dout + (size_t)k * Cout + t.row, (size_t)Cout, depth, t.rows);
            Product p = {t.rows, t.cols,        depth,       false,         false,
                         k > 0,  (size_t)depth, (size_t)Cin, (size_t)t.cols};
            gemm_run(&p, thread, room, pack, inp + (size_t)k * Cin + t.col, sum);
        }
        add_tile(dweight, sum, &t, Cin, accumulate);
    }
}

static void matmul_backward_weight(float *dweight, float *dbias, const floatX *dout,
                                   const floatX *inp, int rows, int Cin, int Cout, bool accumulate,
                                   cudaStream_t stream) {
    (void)stream;
    if (dbias) column_sums(dbias, dout, rows, Cout, accumulate);
    const int tile_rows = even_tile_rows(Cout);
#pragma omp parallel num_threads(ops_threads())
    {
        gemm_one_thread();
        Room room = room_of_thread(omp_get_thread_num());
        float *sum = (float *)room_take(&room, TILE_BYTES);
        floatX *pack = (floatX *)room_take(&room, PACK_BYTES);
#pragma omp for schedule(dynamic, 1)
        for (int row = 0; row < Cout; row += tile_rows) {
            Tile t = {row, 0, Cout - row < tile_rows ? Cout - row : tile_rows, 0};
            dweight_rows(dweight, sum, pack, dout, inp, t, rows, Cin, Cout, accumulate);
        }
    }
}
