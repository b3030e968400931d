// cpu/matmul.h: the products of a linear layer. Each is cut into tiles whose size depends on the
// shape alone. One operand is packed, in panels that stay in a core's cache while the rows of the
// other pass by (Goto & van de Geijn 2008); a tile is summed in fp32 in the thread's workspace and
// then written out with bias, GELU or the addition to the gradient.
#pragma once

#include "pack.h"
#include "simd.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { TILE_ROWS = 128, GROUP_ROWS = 1024, LONG_GROUP_ROWS = 512, PANEL_COLS = 384 };
enum { PANEL_BYTES = 576 << 10 };       // of a panel, unless it is only BLOCK columns wide
enum { DEPTH_BYTES = 16 << 10 };        // of a column of a panel
enum { WEIGHT_DEPTH_BYTES = 4 << 10 };  // the same in a weight's gradient, and of a row of A
enum { STREAM_BYTES = 4 << 20 };        // results larger than that do not stay in a core's cache
#define PANEL_ROOM ((size_t)DEPTH_BYTES * BLOCK)
#define SUM_ROOM ((size_t)LONG_GROUP_ROWS * PANEL_COLS * sizeof(float))
#define ROWS_ROOM ((size_t)TILE_ROWS * WEIGHT_DEPTH_BYTES)

// Of the packed operand of a weight's gradient, which all threads share.
static size_t matmul_shared_bytes(int rows, int C) {
    size_t column = round_up((size_t)rows, 32) * sizeof(float);
    if (column > WEIGHT_DEPTH_BYTES) column = WEIGHT_DEPTH_BYTES;
    return column * (size_t)whole_blocks(4 * C);
}

typedef struct {
    int row, col, rows, cols;  // place and size within the result
} Tile;

// dst = src, past the caches if both are aligned: lines of dst that would not stay there need not
// be read from memory before they are written.
static inline void stream_copy(void *dst, const void *src, size_t bytes) {
#ifdef __SSE2__
    if ((size_t)dst % 16 == 0 && bytes % 16 == 0) {
        for (size_t i = 0; i < bytes / 16; i++)
            _mm_stream_si128((__m128i *)dst + i, _mm_loadu_si128((const __m128i *)src + i));
        return;
    }
#endif
    memcpy(dst, src, bytes);
}

// To be called after stream_copy, before another thread reads.
static inline void stream_end(void) {
#ifdef __SSE2__
    _mm_sfence();
#endif
}

static inline int tiles_of(int n, int tile) {
    return (n + tile - 1) / tile;
}

static inline int smaller(int a, int b) {
    return a < b ? a : b;
}

// The size of pieces of n: at most `pieces` of them, as alike as multiples of `unit` allow.
static inline int piece_of(int n, int pieces, int unit) {
    return (int)round_up((size_t)tiles_of(n, pieces), (size_t)unit);
}

// Two threads share an even number of tasks fairly.
static inline int next_even(int n) {
    return n + n % 2;
}

// Columns that fit a panel of k rows.
static inline int widest_panel(int k) {
    int fits = (int)(PANEL_BYTES / packed_element() / packed_rows(k)) / BLOCK * BLOCK;
    return fits < BLOCK ? BLOCK : smaller(fits, PANEL_COLS);
}

// out (M, N) = a (M, K) @ W, where W is w (K, N), or w (N, K) transposed. `write` is given every
// tile of the result: its sums, with rows `ld` apart.
typedef struct RowsProduct RowsProduct;
struct RowsProduct {
    const floatX *a, *w;
    bool transposed;
    int M, N, K;
    void (*write)(const RowsProduct *p, const float *sum, size_t ld, const Tile *t);
    floatX *out, *pre;
    const floatX *bias;
    bool gelu;
};

// The pieces a task works on: `group` rows of the result and `width` columns, summed over `depth`
// of K at a time. If that is not all of K, the sums of the whole group are kept meanwhile.
typedef struct {
    int group, width, depth;
} Cut;

static Cut cut_rows_product(const RowsProduct *p) {
    const int longest = DEPTH_BYTES / (int)packed_element();
    Cut c = {0, 0, p->K};
    if (p->K > longest) c.depth = PANEL_BYTES / PANEL_COLS / (int)packed_element();
    const int widest = widest_panel(c.depth), panels = tiles_of(p->N, widest);
    const int most = c.depth < p->K || panels < 8 ? LONG_GROUP_ROWS : GROUP_ROWS;
    const int groups = tiles_of(p->M, most);
    c.group = piece_of(p->M, groups, 16);
    c.width = piece_of(p->N, groups % 2 ? next_even(panels) : panels, BLOCK);
    return c;
}

typedef struct {
    int thread;
    void *panel;   // packed: columns of W
    float *sum;    // (rows of a tile or a group, columns of a panel)
    floatX *rows;  // (rows of a tile, depth): rows of `a` without gaps, or columns of dout
    Room left;     // for the products
} MatmulRoom;

static MatmulRoom matmul_room(Room r) {
    MatmulRoom m = {};
    m.thread = omp_get_thread_num();
    m.panel = room_take(&r, PANEL_ROOM);
    m.sum = (float *)room_take(&r, SUM_ROOM);
    m.rows = (floatX *)room_take(&r, ROWS_ROOM);
    m.left = r;
    return m;
}

static size_t matmul_room_bytes(void) {
    return matmul_room(room_to_measure()).left.next;
}

// Part `t` of the result, at most a group of rows and a panel of columns.
static void rows_product_part(const RowsProduct *p, const Cut *c, const Tile *t, MatmulRoom *m) {
    const int ld = whole_blocks(t->cols);
    const size_t w_ld = (size_t)(p->transposed ? p->K : p->N);
    for (int k = 0; k < p->K; k += c->depth) {
        const int depth = smaller(c->depth, p->K - k), end = t->row + t->rows;
        if (p->transposed)
            pack_transposed(m->panel, p->w + t->col * w_ld + k, w_ld, depth, t->cols);
        else
            pack_rows(m->panel, p->w + k * w_ld + t->col, w_ld, depth, t->cols);
        for (int row = t->row; row < end; row += TILE_ROWS) {
            Tile part = {row, t->col, smaller(TILE_ROWS, end - row), t->cols};
            float *sum = m->sum + (c->depth < p->K ? (size_t)(row - t->row) * ld : 0);
            const floatX *a = p->a + (size_t)row * p->K + k;
            if (depth < p->K) {
                copy_rows(m->rows, a, (size_t)p->K, part.rows, depth);
                a = m->rows;
            }
            Product q = {part.rows, ld, depth, k > 0};
            gemm_run(&q, m->thread, m->left, a, m->panel, sum);
            if (k + depth == p->K) p->write(p, sum, (size_t)ld, &part);
        }
    }
}

static inline float dot(const floatX *a, const floatX *b, int n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < n; i++) sum += to_float(a[i]) * to_float(b[i]);
    return sum;
}

// a (n) times four rows: sums[k * gap] is that of row k. Four at a time, as each addition of a sum
// waits for the one before it.
enum { DOTS = 4 };
static inline void dots(float *sums, int gap, const floatX *a, const floatX *const row[DOTS],
                        int n) {
    const floatX *b0 = row[0], *b1 = row[1], *b2 = row[2], *b3 = row[3];
    float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
    for (int i = 0; i < n; i++) {
        const float x = to_float(a[i]);
        s0 += x * to_float(b0[i]), s1 += x * to_float(b1[i]);
        s2 += x * to_float(b2[i]), s3 += x * to_float(b3[i]);
    }
    sums[0] = s0, sums[gap] = s1, sums[2 * gap] = s2, sums[3 * gap] = s3;
}

// A single row times w transposed: each result is a dot product with a row of w, which is read
// once, as it lies; packing it would cost more than the product. The four rows of a time are far
// apart: of rows that share a page, memory is fetched ahead less well.
static void row_product(const RowsProduct *p) {
#pragma omp parallel for schedule(static) num_threads(ops_threads())
    for (int col = 0; col < p->N; col += BLOCK) {
        float sum[BLOCK];
        Tile t = {0, col, 1, smaller(BLOCK, p->N - col)};
        const int gap = tiles_of(t.cols, DOTS);
        for (int i = 0; i < gap; i++) {
            const floatX *row[DOTS];  // behind the last one: that one again
            for (int k = 0; k < DOTS; k++)
                row[k] = p->w + (size_t)(col + smaller(i + k * gap, t.cols - 1)) * p->K;
            dots(sum + i, gap, p->a, row, p->K);
        }
        p->write(p, sum, BLOCK, &t);
    }
}

static void rows_product(const RowsProduct *p) {
    if (p->M == 1 && p->transposed) {
        row_product(p);
        return;
    }
    const Cut c = cut_rows_product(p);
    const int panels = tiles_of(p->N, c.width), tasks = panels * tiles_of(p->M, c.group);
#pragma omp parallel num_threads(ops_threads())
    {
        gemm_one_thread();
        MatmulRoom m = matmul_room(room_of_thread(omp_get_thread_num()));
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < tasks; i++) {
            Tile t = {i / panels * c.group, i % panels * c.width, c.group, c.width};
            t.rows = smaller(t.rows, p->M - t.row);
            t.cols = smaller(t.cols, p->N - t.col);
            rows_product_part(p, &c, &t, &m);
        }
        stream_end();
    }
}

// dst = row, results that are finished
static inline void write_row(const RowsProduct *p, floatX *dst, const floatX *row, int cols) {
    if ((size_t)p->M * p->N * sizeof(floatX) > STREAM_BYTES)
        stream_copy(dst, row, (size_t)cols * sizeof(floatX));
    else
        memcpy(dst, row, (size_t)cols * sizeof(floatX));
}

// out = sum + bias. With gelu: pre (may be NULL) gets that and out its GELU.
static void write_forward(const RowsProduct *p, const float *sum, size_t ld, const Tile *t) {
    alignas(64) floatX linear[PANEL_COLS], active[PANEL_COLS];
    for (int r = 0; r < t->rows; r++) {
        const size_t at = (size_t)(t->row + r) * p->N + t->col;
        const float *s = sum + r * ld;
        if (p->bias) {
            const floatX *b = p->bias + t->col;
#pragma omp simd
            for (int c = 0; c < t->cols; c++) store_float(&linear[c], s[c] + to_float(b[c]));
        } else {
#pragma omp simd
            for (int c = 0; c < t->cols; c++) store_float(&linear[c], s[c]);
        }
        if (!p->gelu) {
            write_row(p, p->out + at, linear, t->cols);
            continue;
        }
#pragma omp simd
        for (int c = 0; c < t->cols; c++) store_float(&active[c], gelu_float(to_float(linear[c])));
        write_row(p, p->out + at, active, t->cols);
        if (p->pre) write_row(p, p->pre + at, linear, t->cols);
    }
}

// out = sum, times gelu'(pre) if that is given
static void write_dinp(const RowsProduct *p, const float *sum, size_t ld, const Tile *t) {
    alignas(64) floatX d[PANEL_COLS];
    for (int r = 0; r < t->rows; r++) {
        const size_t at = (size_t)(t->row + r) * p->N + t->col;
        const float *s = sum + r * ld;
        if (p->pre) {
            const floatX *x = p->pre + at;
#pragma omp simd
            for (int c = 0; c < t->cols; c++)
                store_float(&d[c], s[c] * gelu_derivative(to_float(x[c])));
        } else {
#pragma omp simd
            for (int c = 0; c < t->cols; c++) store_float(&d[c], s[c]);
        }
        write_row(p, p->out + at, d, t->cols);
    }
}

static void matmul_forward(floatX *out, const floatX *inp, const floatX *weight, const floatX *bias,
                           int rows, int Cin, int Cout, cudaStream_t stream) {
    (void)stream;
    RowsProduct p = {inp, weight, true, rows, Cout, Cin, write_forward, out, NULL, bias, false};
    rows_product(&p);
}

static void matmul_gelu_forward(floatX *out, floatX *pre, const floatX *inp, const floatX *weight,
                                const floatX *bias, int rows, int Cin, int Cout,
                                cudaStream_t stream) {
    (void)stream;
    RowsProduct p = {inp, weight, true, rows, Cout, Cin, write_forward, out, pre, bias, true};
    rows_product(&p);
}

static void matmul_backward_input(floatX *dinp, const floatX *dout, const floatX *weight,
                                  const floatX *pre, int rows, int Cin, int Cout,
                                  cudaStream_t stream) {
    (void)stream;
    RowsProduct p = {dout,       weight, false,         rows, Cin,  Cout,
                     write_dinp, dinp,   (floatX *)pre, NULL, false};
    rows_product(&p);
}

// dst[c] = or += the sum of row c of src (cols, rows)
static inline void add_row_sums(float *dst, const floatX *src, int cols, int rows, bool add) {
    for (int c = 0; c < cols; c++) {
        const floatX *x = src + (size_t)c * rows;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int r = 0; r < rows; r++) sum += to_float(x[r]);
        dst[c] = add ? dst[c] + sum : sum;
    }
}

// What is not added to is written past the caches at any size: a gradient is read again once the
// backward pass of its unit, of many such tensors, is over.
static inline void add_tile(float *dweight, int Cin, const float *sum, size_t ld, const Tile *t,
                            bool add) {
    for (int r = 0; r < t->rows; r++) {
        float *d = dweight + (size_t)(t->row + r) * Cin + t->col;
        const float *s = sum + r * ld;
        if (add) {
#pragma omp simd
            for (int c = 0; c < t->cols; c++) d[c] += s[c];
        } else {
            stream_copy(d, s, (size_t)t->cols * sizeof(float));
        }
    }
}

// dweight (Cout, Cin) = or += dout (depth, Cout) ^T @ inp (depth, Cin), dbias likewise. inp is
// packed once for all threads; a thread transposes TILE_ROWS columns of dout at a time.
static void dweight_piece(float *dweight, float *dbias, const floatX *dout, const floatX *inp,
                          int depth, int Cin, int Cout, bool add) {
    const int width = piece_of(Cin, tiles_of(Cin, widest_panel(depth)), BLOCK);
    const int tile_rows = piece_of(Cout, next_even(tiles_of(Cout, TILE_ROWS)), 16);
    Room shared = room_shared();
    char *packed = (char *)room_take(&shared, packed_bytes(depth, Cin));
#pragma omp parallel num_threads(ops_threads())
    {
        gemm_one_thread();
        MatmulRoom m = matmul_room(room_of_thread(omp_get_thread_num()));
#pragma omp for schedule(dynamic, 1)
        for (int col = 0; col < Cin; col += width)
            pack_rows(packed + packed_bytes(depth, col), inp + col, (size_t)Cin, depth,
                      smaller(width, Cin - col));
#pragma omp for schedule(dynamic, 1)
        for (int row = 0; row < Cout; row += tile_rows) {
            Tile t = {row, 0, smaller(tile_rows, Cout - row), 0};
            transpose(m.rows, dout + row, (size_t)Cout, depth, t.rows);
            if (dbias) add_row_sums(dbias + row, m.rows, t.rows, depth, add);
            for (t.col = 0; t.col < Cin; t.col += width) {
                t.cols = smaller(width, Cin - t.col);
                const int ld = whole_blocks(t.cols);
                Product q = {t.rows, ld, depth, false};
                gemm_run(&q, m.thread, m.left, m.rows, packed + packed_bytes(depth, t.col), m.sum);
                add_tile(dweight, Cin, m.sum, (size_t)ld, &t, add);
            }
        }
        stream_end();
    }
}

static void matmul_backward_weight(float *dweight, float *dbias, const floatX *dout,
                                   const floatX *inp, int rows, int Cin, int Cout, bool accumulate,
                                   cudaStream_t stream) {
    (void)stream;
    const int longest = WEIGHT_DEPTH_BYTES / (int)packed_element();
    for (int k = 0; k < rows; k += longest)
        dweight_piece(dweight, dbias, dout + (size_t)k * Cout, inp + (size_t)k * Cin,
                      smaller(longest, rows - k), Cin, Cout, accumulate || k > 0);
}
