// cpu/attention.h: causal self-attention in blocks (Rabe & Staats 2021; Dao et al. 2022), never T x
// T. A thread works on one (batch, head): it copies the head's q, k, v out of the token rows,
// packed where they are the second operand of a product, then takes QUERIES rows of scores at a
// time against pieces of KEYS keys, with a running maximum and sum. The backward pass makes the
// probabilities again from lse:
//   P = exp(S/sqrt(HS) - lse), dP = dO V^T, D = rowsum(dO * O), dS = P (dP - D) / sqrt(HS),
//   dQ = dS K, dK = dS^T Q, dV = P^T dO.
// Numbers of keys are rounded up to whole blocks; P and dS are 0 where there is no key.
#pragma once

#include "matmul.h"

enum { QUERIES = 64, KEYS = 512 };  // multiples of BLOCK; KEYS is one of QUERIES

// "In blocks": a (T, HS) matrix as blocks of BLOCK columns, each of whole_blocks(T) rows.
typedef struct {
    int T, HS;
    int thread;
    Room room;                 // for the products
    floatX *q, *dout;          // (T, HS)
    char *kt, *vt;             // (HS, T), packed
    char *qs, *ks, *vs, *dos;  // q, k, v, dout in blocks, packed
    float *dk, *dv;            // in blocks
    float *s, *dp;             // (QUERIES, KEYS) scores; dP
    floatX *p, *ds;            // (QUERIES, KEYS) P; dS; in fp32 the same memory as s and dp
    floatX *turned;            // (KEYS, QUERIES) P or dS transposed
    float *o;                  // (QUERIES, HS) in blocks: output or dQ, before rounding
    float *max, *sum;          // (QUERIES) of the row so far; sum is D in the backward
} HeadRoom;

static inline int head_blocks(int HS) {
    return tiles_of(HS, BLOCK);
}

static HeadRoom head_room(Room r, int T, int HS) {
    HeadRoom h = {};
    const size_t head = (size_t)T * HS, scores = (size_t)QUERIES * KEYS;
    const size_t blocks = (size_t)whole_blocks(T) * whole_blocks(HS);
    h.T = T;
    h.HS = HS;
    h.thread = omp_get_thread_num();
    h.q = (floatX *)room_take(&r, head * sizeof(floatX));
    h.dout = (floatX *)room_take(&r, head * sizeof(floatX));
    char **packed[] = {&h.kt, &h.vt, &h.qs, &h.ks, &h.vs, &h.dos};
    for (char **to : packed) *to = (char *)room_take(&r, blocks * sizeof(float));
    h.dk = (float *)room_take(&r, blocks * sizeof(float));
    h.dv = (float *)room_take(&r, blocks * sizeof(float));
    h.s = (float *)room_take(&r, scores * sizeof(float));
    h.dp = (float *)room_take(&r, scores * sizeof(float));
    const bool in_place = sizeof(floatX) == sizeof(float);
    h.p = in_place ? (floatX *)h.s : (floatX *)room_take(&r, scores * sizeof(floatX));
    h.ds = in_place ? (floatX *)h.dp : (floatX *)room_take(&r, scores * sizeof(floatX));
    h.turned = (floatX *)room_take(&r, scores * sizeof(floatX));
    h.o = (float *)room_take(&r, (size_t)QUERIES * whole_blocks(HS) * sizeof(float));
    h.max = (float *)room_take(&r, QUERIES * sizeof(float));
    h.sum = (float *)room_take(&r, QUERIES * sizeof(float));
    h.room = r;
    return h;
}

static size_t attention_room_bytes(int T, int HS) {
    return head_room(room_to_measure(), T, HS).room.next;
}

// Rows of src, ld apart, in blocks and packed; rows from T on are zero.
static void pack_head(const HeadRoom *h, char *dst, const floatX *src, size_t ld) {
    const size_t row = BLOCK * packed_element(), block = whole_blocks(h->T) * row;
    for (int b = 0; b < head_blocks(h->HS); b++) {
        char *d = dst + b * block;
        pack_rows(d, src + b * BLOCK, ld, h->T, smaller(BLOCK, h->HS - b * BLOCK));
        memset(d + packed_rows(h->T) * row, 0, block - packed_rows(h->T) * row);
    }
}

// dst, rows ld apart, = `rows` rows of src in blocks of block_rows rows
static void write_head(floatX *dst, size_t ld, const float *src, int block_rows, int rows, int HS) {
    for (int t = 0; t < rows; t++)
        for (int c = 0; c < HS; c += BLOCK) {
            const float *s = src + ((size_t)(c / BLOCK) * block_rows + t) * BLOCK;
            floatX *d = dst + t * ld + c;
            const int n = smaller(BLOCK, HS - c);
#pragma omp simd
            for (int i = 0; i < n; i++) store_float(&d[i], s[i]);
        }
}

// s (m, n) = rows a[i0 ..] times columns j0 .. of bt
static inline void rows_by_rows(HeadRoom *h, float *s, const floatX *a, int i0, int m,
                                const char *bt, int j0, int n) {
    Product p = {m, n, h->HS, false};
    gemm_run(&p, h->thread, h->room, a + (size_t)i0 * h->HS, bt + packed_bytes(h->HS, j0), s);
}

// o (m, HS) = or += p (m, n) times rows j0 .. of b
static inline void scores_by_rows(HeadRoom *h, const floatX *p, int m, const char *b, int j0, int n,
                                  bool add) {
    Product q = {m, BLOCK, n, add};
    for (int i = 0; i < head_blocks(h->HS); i++) {
        size_t at = ((size_t)i * whole_blocks(h->T) + j0) * BLOCK;
        gemm_run(&q, h->thread, h->room, p, b + at * packed_element(), h->o + i * QUERIES * BLOCK);
    }
}

// rows out[j0 ..] (n, HS) = or += p (m, n) transposed times rows i0 .. of b
static inline void scores_transposed_by_rows(HeadRoom *h, float *out, const floatX *p, int m,
                                             const char *b, int i0, int j0, int n, bool add) {
    transpose(h->turned, p, (size_t)n, m, n);
    Product q = {n, BLOCK, m, add};
    for (int i = 0; i < head_blocks(h->HS); i++) {
        size_t block = (size_t)i * whole_blocks(h->T);
        gemm_run(&q, h->thread, h->room, h->turned, b + (block + i0) * BLOCK * packed_element(),
                 out + (block + j0) * BLOCK);
    }
}

// Masks a row's scores from `seen` up to a whole number of vectors, so that the loops over them
// have no remainder; returns that length.
static inline int mask_scores(float *s, int seen) {
    int padded = (int)round_up((size_t)seen, 16);
    for (int j = seen; j < padded; j++) s[j] = -INFINITY;
    return padded;
}

// Row r of the output so far, times a factor
static inline void scale_output_row(HeadRoom *h, int r, float factor) {
    for (int b = 0; b < head_blocks(h->HS); b++) {
        float *o = h->o + (size_t)(b * QUERIES + r) * BLOCK;
#pragma omp simd
        for (int i = 0; i < BLOCK; i++) o[i] *= factor;
    }
}

// One row of scores, of which the first `seen` are not masked, to exp(scale s - max); scales what
// was summed before to the new maximum.
static inline void softmax_row(HeadRoom *h, int r, int n, int seen, float scale, bool first) {
    float *s = h->s + (size_t)r * n;
    floatX *p = h->p + (size_t)r * n;
    const int padded = mask_scores(s, seen);
    float max = first ? -INFINITY : h->max[r], sum = 0;
    const float old = max;
#pragma omp simd reduction(max : max)
    for (int j = 0; j < padded; j++) max = s[j] * scale > max ? s[j] * scale : max;
#pragma omp simd reduction(+ : sum)
    for (int j = 0; j < padded; j++) {
        float e = exp_float(s[j] * scale - max);
        store_float(&p[j], e);
        sum += e;
    }
    for (int j = padded; j < n; j++) store_float(&p[j], 0.0f);
    h->max[r] = max;
    if (first) {
        h->sum[r] = sum;
        return;
    }
    const float shrink = exp_float(old - max);
    h->sum[r] = h->sum[r] * shrink + sum;
    if (shrink != 1.0f) scale_output_row(h, r, shrink);
}

// Rows i0 .. i0+m of the output; out rows are ld apart.
static void attention_forward_block(HeadRoom *h, floatX *out, size_t ld, float *lse, int i0,
                                    int m) {
    const float scale = 1.0f / sqrtf((float)h->HS);
    for (int j0 = 0; j0 < i0 + m; j0 += KEYS) {
        const int keys = smaller(KEYS, i0 + m - j0), n = whole_blocks(keys);
        rows_by_rows(h, h->s, h->q, i0, m, h->kt, j0, n);
        for (int r = 0; r < m; r++)
            softmax_row(h, r, n, smaller(keys, i0 + r + 1 - j0), scale, j0 == 0);
        scores_by_rows(h, h->p, m, h->vs, j0, n, j0 > 0);
    }
    for (int r = 0; r < m; r++) {
        scale_output_row(h, r, 1.0f / h->sum[r]);
        lse[i0 + r] = h->max[r] + logf(h->sum[r]);
    }
    write_head(out + (size_t)i0 * ld, ld, h->o, QUERIES, m, h->HS);
}

static void attention_forward(floatX *out, float *lse, const floatX *qkv, int B, int T, int C,
                              int NH, cudaStream_t stream) {
    (void)stream;
    const int HS = C / NH;
    const size_t row = (size_t)3 * C;
#pragma omp parallel num_threads(ops_threads())
    {
        gemm_one_thread();
        HeadRoom h = head_room(room_of_thread(omp_get_thread_num()), T, HS);
#pragma omp for schedule(dynamic, 1)
        for (int bh = 0; bh < B * NH; bh++) {
            const size_t token = (size_t)(bh / NH) * T, at = (size_t)(bh % NH) * HS;
            const floatX *q = qkv + token * row + at;
            copy_rows(h.q, q, row, T, HS);
            pack_transposed(h.kt, q + C, row, HS, T);
            pack_head(&h, h.vs, q + 2 * (size_t)C, row);
            for (int i0 = 0; i0 < T; i0 += QUERIES)
                attention_forward_block(&h, out + token * C + at, (size_t)C, lse + (size_t)bh * T,
                                        i0, smaller(QUERIES, T - i0));
        }
    }
}

// One head of the last token. s (T): room for the scores, o (HS) for the sum.
static void attention_last_head(floatX *out, const floatX *q, const floatX *k, const floatX *v,
                                size_t row, int T, int HS, float *s, float *o) {
    const float scale = 1.0f / sqrtf((float)HS);
    float max = -INFINITY, sum = 0;
    for (int t = 0; t < T; t++) {
        s[t] = dot(q, k + t * row, HS) * scale;
        max = s[t] > max ? s[t] : max;
    }
    for (int c = 0; c < HS; c++) o[c] = 0;
    for (int t = 0; t < T; t++) {
        const float e = exp_float(s[t] - max);
        const floatX *vt = v + t * row;
        sum += e;
#pragma omp simd
        for (int c = 0; c < HS; c++) o[c] += e * to_float(vt[c]);
    }
    for (int c = 0; c < HS; c++) store_float(&out[c], o[c] / sum);
}

static void attention_last(floatX *out, const floatX *qkv, int T, int C, int NH,
                           cudaStream_t stream) {
    (void)stream;
    const int HS = C / NH;
    const size_t row = (size_t)3 * C;
#pragma omp parallel num_threads(ops_threads())
    {
        Room room = room_of_thread(omp_get_thread_num());
        float *s = (float *)room_take(&room, (size_t)T * sizeof(float));
        float *o = (float *)room_take(&room, (size_t)HS * sizeof(float));
#pragma omp for schedule(static)
        for (int h = 0; h < NH; h++) {
            const floatX *q = qkv + (T - 1) * row + h * HS, *k = qkv + C + h * HS, *v = k + C;
            attention_last_head(out + h * HS, q, k, v, row, T, HS, s, o);
        }
    }
}

// P and dS of a row from the scores and dP
static inline void score_gradient_row(HeadRoom *h, int r, int n, int seen, float scale, float lse,
                                      float D) {
    float *s = h->s + (size_t)r * n, *dp = h->dp + (size_t)r * n;
    const int padded = mask_scores(s, seen);
    floatX *p = h->p + (size_t)r * n, *ds = h->ds + (size_t)r * n;
#pragma omp simd
    for (int j = 0; j < padded; j++) {
        float e = exp_float(s[j] * scale - lse);
        store_float(&p[j], e);
        store_float(&ds[j], e * (dp[j] - D) * scale);
    }
    for (int j = padded; j < n; j++) {
        store_float(&p[j], 0.0f);
        store_float(&ds[j], 0.0f);
    }
}

// Query rows i0 .. i0+m: their dQ (to dq, rows ld apart) and their share of dK and dV.
// `first`: dK and dV are set.
static void attention_backward_block(HeadRoom *h, floatX *dq, size_t ld, const floatX *out,
                                     const float *lse, int i0, int m, int NH, bool first) {
    const float scale = 1.0f / sqrtf((float)h->HS);
    const size_t HS = (size_t)h->HS;
    float *D = h->sum;
    for (int r = 0; r < m; r++)
        D[r] = dot(h->dout + (i0 + r) * HS, out + (i0 + r) * HS * NH, h->HS);
    for (int j0 = 0; j0 < i0 + m; j0 += KEYS) {
        const int keys = smaller(KEYS, i0 + m - j0), n = whole_blocks(keys);
        rows_by_rows(h, h->s, h->q, i0, m, h->kt, j0, n);
        rows_by_rows(h, h->dp, h->dout, i0, m, h->vt, j0, n);
        for (int r = 0; r < m; r++)
            score_gradient_row(h, r, n, smaller(keys, i0 + r + 1 - j0), scale, lse[i0 + r], D[r]);
        scores_by_rows(h, h->ds, m, h->ks, j0, n, j0 > 0);
        scores_transposed_by_rows(h, h->dk, h->ds, m, h->qs, i0, j0, n, !first);
        scores_transposed_by_rows(h, h->dv, h->p, m, h->dos, i0, j0, n, !first);
    }
    write_head(dq + (size_t)i0 * ld, ld, h->o, QUERIES, m, h->HS);
}

static void attention_backward(floatX *dqkv, const floatX *dout, const floatX *out,
                               const floatX *qkv, const float *lse, int B, int T, int C, int NH,
                               cudaStream_t stream) {
    (void)stream;
    const int HS = C / NH, last = (T - 1) / QUERIES * QUERIES, keys = whole_blocks(T);
    const size_t row = (size_t)3 * C;
#pragma omp parallel num_threads(ops_threads())
    {
        gemm_one_thread();
        HeadRoom h = head_room(room_of_thread(omp_get_thread_num()), T, HS);
#pragma omp for schedule(dynamic, 1)
        for (int bh = 0; bh < B * NH; bh++) {
            const size_t token = (size_t)(bh / NH) * T, at = (size_t)(bh % NH) * HS;
            const floatX *q = qkv + token * row + at, *k = q + C, *v = k + C;
            const floatX *d = dout + token * C + at;
            floatX *dq = dqkv + token * row + at;
            copy_rows(h.q, q, row, T, HS);
            copy_rows(h.dout, d, (size_t)C, T, HS);
            pack_transposed(h.kt, k, row, HS, T);
            pack_transposed(h.vt, v, row, HS, T);
            pack_head(&h, h.qs, q, row);
            pack_head(&h, h.ks, k, row);
            pack_head(&h, h.dos, d, (size_t)C);
            // The last block sees every key, so it sets dK and dV and the others add.
            for (int i0 = last; i0 >= 0; i0 -= QUERIES)
                attention_backward_block(&h, dq, row, out + token * C + at, lse + (size_t)bh * T,
                                         i0, smaller(QUERIES, T - i0), NH, i0 == last);
            write_head(dq + C, row, h.dk, keys, T, HS);
            write_head(dq + 2 * (size_t)C, row, h.dv, keys, T, HS);
        }
    }
}
