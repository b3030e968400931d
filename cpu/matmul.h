// cpu/matmul.h: the products of a linear layer. Each is cut into tiles whose size depends on the
// shape alone; a tile is summed in fp32 in the thread's workspace, over pieces short enough that
// all three operands stay in the cache, and then written out with bias, GELU or the addition to the
// gradient. Operands are copied together where there would be gaps between their rows: oneDNN 2.6
// has its faster kernel for matrices without gaps only.
#pragma once

#include "gemm.h"
#include "simd.h"

enum { TILE_ROWS = 256, TILE_COLS = 512, WIDE_COLS = 1024, FORWARD_COLS = 128 };
enum { DEPTH = 512 };         // of a piece of a sum, in the backward
enum { WEIGHT_ROWS = 2048 };  // rows of dout that are kept transposed
#define TILE_BYTES ((size_t)TILE_ROWS * WIDE_COLS * sizeof(float))
#define PACK_BYTES ((size_t)TILE_ROWS * WEIGHT_ROWS * sizeof(floatX))

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

// Columns of a panel: a matrix up to WIDE_COLS wide is one, wider ones are cut into equal parts.
static inline int panel_width(int cols) {
    if (cols <= WIDE_COLS) return cols;
    return (int)round_up((size_t)tiles_of(cols, tiles_of(cols, 768)), 16);
}

// Longest piece of a sum in the forward. In fp32 whole sums are faster than copies.
static inline int forward_depth(int Cin) {
    return sizeof(floatX) == 2 ? panel_width(Cin) : Cin;
}

static size_t panels_bytes(int C) {
    return (size_t)4 * C * C * sizeof(floatX);
}

// The (rows, cols) matrix w as panels of `width` columns without gaps, one after the other. What
// is no wider than a panel stays where it is.
static const floatX *in_panels(const floatX *w, int rows, int cols, int width) {
    if (width == cols) return w;
    Room room = room_shared();
    floatX *panels = (floatX *)room_take(&room, (size_t)rows * cols * sizeof(floatX));
#pragma omp parallel for schedule(static)
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c += width) {
            int n = cols - c < width ? cols - c : width;
            memcpy(panels + (size_t)c * rows + (size_t)r * n, w + (size_t)r * cols + c,
                   (size_t)n * sizeof(floatX));
        }
    return panels;
}

// `rows` rows of a, lda apart, `cols` elements of each, without gaps: in place or copied to pack.
static inline const floatX *without_gaps(floatX *pack, const floatX *a, size_t lda, int rows,
                                         int cols) {
    if (lda == (size_t)cols) return a;
    for (int r = 0; r < rows; r++)
        memcpy(pack + (size_t)r * cols, a + r * lda, (size_t)cols * sizeof(floatX));
    return pack;
}

// sum (tile) = inp (tile.rows, Cin) @ weight^T (Cin, tile.cols), the weight (Cout, Cin) in panels
static void forward_tile(float *sum, floatX *pack, const floatX *inp, const floatX *panels,
                         const Tile *t, int Cin, int Cout, int thread, Room room) {
    const int width = forward_depth(Cin);
    for (int k = 0; k < Cin; k += width) {
        int depth = Cin - k < width ? Cin - k : width;
        const floatX *a = inp + (size_t)t->row * Cin + k;
        a = without_gaps(pack, a, (size_t)Cin, t->rows, depth);
        Product p = {t->rows, t->cols,       depth,         false,          true,
                     k > 0,   (size_t)depth, (size_t)depth, (size_t)t->cols};
        gemm_run(&p, thread, room, a, panels + (size_t)k * Cout + (size_t)t->col * depth, sum);
    }
}

static void linear_forward(floatX *out, floatX *pre, const floatX *inp, const floatX *weight,
                           const floatX *bias, int rows, int Cin, int Cout, bool gelu) {
    const int width = forward_depth(Cin);
    const int tile_rows = width < Cin ? even_tile_rows(rows) : TILE_ROWS;
    const int tile_cols = width == Cin ? FORWARD_COLS : Cout <= WIDE_COLS ? Cout : TILE_COLS;
    const int tiles = tiles_of(rows, tile_rows) * tiles_of(Cout, tile_cols);
    const floatX *panels = in_panels(weight, Cout, Cin, width);
#pragma omp parallel num_threads(ops_threads())
    {
        gemm_one_thread();
        int thread = omp_get_thread_num();
        Room room = room_of_thread(thread);
        float *sum = (float *)room_take(&room, TILE_BYTES);
        floatX *pack = (floatX *)room_take(&room, PACK_BYTES);
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < tiles; i++) {
            Tile t = tile_at(i, rows, Cout, tile_rows, tile_cols);
            forward_tile(sum, pack, inp, panels, &t, Cin, Cout, thread, room);
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

// sum (tile) = dout (tile.rows, Cout) @ weight (Cout, tile.cols), the weight (Cout, Cin) in panels,
// of which the tile's columns are one
static void dinp_tile(float *sum, floatX *pack, const floatX *dout, const floatX *panels,
                      const Tile *t, int Cout, int thread, Room room) {
    const floatX *panel = panels + (size_t)t->col * Cout;
    for (int k = 0; k < Cout; k += DEPTH) {
        int depth = Cout - k < DEPTH ? Cout - k : DEPTH;
        const floatX *a = dout + (size_t)t->row * Cout + k;
        size_t lda = (size_t)Cout;
        if (sizeof(floatX) == 2) {  // in fp32 the slower kernel is no slower than the copy
            a = without_gaps(pack, a, lda, t->rows, depth);
            lda = (size_t)depth;
        }
        Product p = {t->rows, t->cols, depth,           false,          false,
                     k > 0,   lda,     (size_t)t->cols, (size_t)t->cols};
        gemm_run(&p, thread, room, a, panel + (size_t)k * t->cols, sum);
    }
}

static void matmul_backward_input(floatX *dinp, const floatX *dout, const floatX *weight,
                                  const floatX *pre, int rows, int Cin, int Cout,
                                  cudaStream_t stream) {
    (void)stream;
    const int tile_rows = even_tile_rows(rows), tile_cols = panel_width(Cin);
    const int tiles = tiles_of(rows, tile_rows) * tiles_of(Cin, tile_cols);
    const floatX *panels = in_panels(weight, Cout, Cin, tile_cols);
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
            dinp_tile(sum, pack, dout, panels, &t, Cout, thread, room);
            write_dinp_tile(dinp, pre, sum, &t, Cin);
        }
    }
}

// An 8 x 8 block, transposed by three rounds of interleaving rows i and i + 4.
typedef uint16_t Lane16 __attribute__((may_alias));
typedef uint32_t Lane32 __attribute__((may_alias));

template <typename Lane, typename Element>
static inline void transpose_block(Element *dst, size_t dst_ld, const Element *src, size_t src_ld) {
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

// dst (cols, rows) = src (rows, cols) transposed; rows of src are ld apart
static inline void transpose(floatX *dst, const floatX *src, size_t ld, int rows, int cols) {
    const int line = 64 / sizeof(floatX), whole_rows = rows & ~7;
    for (int c0 = 0; c0 < cols; c0 += line) {
        int end = cols - c0 < line ? cols : c0 + line, whole = c0 + ((end - c0) & ~7);
        for (int r = 0; r < whole_rows; r += 8)
            for (int c = c0; c < whole; c += 8)
                transpose_block<LaneX>(dst + (size_t)c * rows + r, (size_t)rows, src + r * ld + c,
                                       ld);
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

static inline void add_row(float *d, const float *s, int n, bool accumulate) {
    if (accumulate) {
#pragma omp simd
        for (int c = 0; c < n; c++) d[c] += s[c];
    } else {
#pragma omp simd
        for (int c = 0; c < n; c++) d[c] = s[c];
    }
}

static inline void add_tile(float *dweight, const float *sum, const Tile *t, int Cin,
                            bool accumulate) {
    for (int r = 0; r < t->rows; r++)
        add_row(dweight + (size_t)(t->row + r) * Cin + t->col, sum + (size_t)r * t->cols, t->cols,
                accumulate);
}

// The same for a tile of dweight^T: its rows are columns of dweight.
static inline void add_transposed_tile(float *dweight, const float *sum, const Tile *t, int Cin,
                                       bool accumulate) {
    float block[8 * 8];
    for (int c = 0; c < t->cols; c += 8)
        for (int r = 0; r < t->rows; r += 8) {
            const float *s = sum + (size_t)r * t->cols + c;
            const int m = t->rows - r < 8 ? t->rows - r : 8, n = t->cols - c < 8 ? t->cols - c : 8;
            if (m == 8 && n == 8)
                transpose_block<Lane32>(block, 8, s, (size_t)t->cols);
            else
                for (int i = 0; i < m; i++)
                    for (int k = 0; k < n; k++) block[k * 8 + i] = s[(size_t)i * t->cols + k];
            for (int k = 0; k < n; k++)
                add_row(dweight + (size_t)(t->col + c + k) * Cin + t->row + r, block + 8 * k, m,
                        accumulate);
        }
}

// dw (M, N) = or += left^T @ right with left (rows, M) and right (rows, N); transposed: dw is (N,
// M) instead.
typedef struct {
    float *dw;
    const floatX *left, *right;
    int rows, M, N;
    bool transposed, accumulate;
} WeightGradient;

// Rows t.row .. + t.rows of the result, a tile of columns at a time. The columns of `left` they
// need are transposed into `pack` once where they fit.
static void dweight_rows(const WeightGradient *g, float *sum, floatX *pack, Tile t) {
    const int thread = omp_get_thread_num(), cols = g->N <= WIDE_COLS ? g->N : TILE_COLS;
    Room room = room_of_thread(thread);
    room.next = (char *)pack + PACK_BYTES;
    for (t.col = 0; t.col < g->N; t.col += cols) {
        t.cols = g->N - t.col < cols ? g->N - t.col : cols;
        for (int k = 0; k < g->rows; k += DEPTH) {
            int depth = g->rows - k < DEPTH ? g->rows - k : DEPTH;
            floatX *a = pack + (size_t)(k % WEIGHT_ROWS) * t.rows;
            if (t.col == 0 || g->rows > WEIGHT_ROWS)
                transpose(a, g->left + (size_t)k * g->M + t.row, (size_t)g->M, depth, t.rows);
            Product p = {t.rows, t.cols,        depth,        false,         false,
                         k > 0,  (size_t)depth, (size_t)g->N, (size_t)t.cols};
            gemm_run(&p, thread, room, a, g->right + (size_t)k * g->N + t.col, sum);
        }
        if (g->transposed)
            add_transposed_tile(g->dw, sum, &t, g->M, g->accumulate);
        else
            add_tile(g->dw, sum, &t, g->N, g->accumulate);
    }
}

// The narrower operand stays as it is and is read whole, the wider one is transposed by tiles.
static void matmul_backward_weight(float *dweight, float *dbias, const floatX *dout,
                                   const floatX *inp, int rows, int Cin, int Cout, bool accumulate,
                                   cudaStream_t stream) {
    (void)stream;
    if (dbias) column_sums(dbias, dout, rows, Cout, accumulate);
    WeightGradient g = {dweight, dout, inp, rows, Cout, Cin, false, accumulate};
    if (Cin > WIDE_COLS && Cin > Cout) {
        g.left = inp, g.right = dout;
        g.M = Cin, g.N = Cout;
        g.transposed = true;
    }
    const int tile_rows = even_tile_rows(g.M);
#pragma omp parallel num_threads(ops_threads())
    {
        gemm_one_thread();
        Room room = room_of_thread(omp_get_thread_num());
        float *sum = (float *)room_take(&room, TILE_BYTES);
        floatX *pack = (floatX *)room_take(&room, PACK_BYTES);
#pragma omp for schedule(dynamic, 1)
        for (int row = 0; row < g.M; row += tile_rows) {
            Tile t = {row, 0, g.M - row < tile_rows ? g.M - row : tile_rows, 0};
            dweight_rows(&g, sum, pack, t);
        }
    }
}
