// cpu/attention.h: causal self-attention in blocks (Rabe & Staats 2021; Dao et al. 2022), never T x
// T. A thread works on one (batch, head): it copies the head's q, k, v out of the token rows, then
// takes QUERIES rows of scores at a time against pieces of KEYS keys, with a running maximum and
// sum. The backward pass makes the probabilities again from lse:
//   P = exp(S/sqrt(HS) - lse), dP = dO V^T, D = rowsum(dO * O), dS = P (dP - D) / sqrt(HS),
//   dQ = dS K, dK = dS^T Q, dV = P^T dO.
#pragma once

#include "gemm.h"
#include "simd.h"

enum { QUERIES = 128, KEYS = 512 };  // KEYS is a multiple of QUERIES

typedef struct {
    int T, HS;
    int thread;
    Room room;          // for the products
    floatX *q, *k, *v;  // (T, HS)
    floatX *dout;       // (T, HS), backward
    float *s, *dp;      // (QUERIES, KEYS) scores; dP
    floatX *p,
        *ds;   // (QUERIES, KEYS) probabilities, gradient of the scores; p is s and ds is dp in fp32
    float *o;  // (QUERIES, HS) output or dQ, not yet rounded
    float *dk, *dv;    // (T, HS), backward
    float *max, *sum;  // (QUERIES) of the row so far; in the backward D and lse
} HeadRoom;

static size_t attention_room_bytes(int T, int HS) {
    size_t head = round_up((size_t)T * HS, 16), scores = (size_t)QUERIES * KEYS;
    return head * (4 * sizeof(floatX) + 2 * sizeof(float)) +
           scores * 2 * (sizeof(float) + sizeof(floatX)) +
           round_up((size_t)QUERIES * HS, 16) * sizeof(float) + 2 * QUERIES * sizeof(float);
}

static HeadRoom head_room(int thread, int T, int HS) {
    HeadRoom h = {};
    Room r = room_of_thread(thread);
    size_t head = (size_t)T * HS, scores = (size_t)QUERIES * KEYS;
    h.T = T;
    h.HS = HS;
    h.thread = thread;
    h.q = (floatX *)room_take(&r, head * sizeof(floatX));
    h.k = (floatX *)room_take(&r, head * sizeof(floatX));
    h.v = (floatX *)room_take(&r, head * sizeof(floatX));
    h.dout = (floatX *)room_take(&r, head * sizeof(floatX));
    h.dk = (float *)room_take(&r, head * sizeof(float));
    h.dv = (float *)room_take(&r, head * sizeof(float));
    h.s = (float *)room_take(&r, scores * sizeof(float));
    h.dp = (float *)room_take(&r, scores * sizeof(float));
    bool in_place = sizeof(floatX) == sizeof(float);
    h.p = in_place ? (floatX *)h.s : (floatX *)room_take(&r, scores * sizeof(floatX));
    h.ds = in_place ? (floatX *)h.dp : (floatX *)room_take(&r, scores * sizeof(floatX));
    h.o = (float *)room_take(&r, (size_t)QUERIES * HS * sizeof(float));
    h.max = (float *)room_take(&r, QUERIES * sizeof(float));
    h.sum = (float *)room_take(&r, QUERIES * sizeof(float));
    h.room = r;
    return h;
}

static inline int smaller(int a, int b) {
    return a < b ? a : b;
}

// dst (T, HS) = rows of src that are ld apart
static inline void copy_head(floatX *dst, const floatX *src, size_t ld, int T, int HS) {
    for (int t = 0; t < T; t++)
        memcpy(dst + (size_t)t * HS, src + t * ld, (size_t)HS * sizeof(floatX));
}

static inline void write_head(floatX *dst, size_t ld, const float *src, int T, int HS) {
    for (int t = 0; t < T; t++) {
#pragma omp simd
        for (int i = 0; i < HS; i++) store_float(&dst[t * ld + i], src[(size_t)t * HS + i]);
    }
}

// s (m, n) = rows a[i0 ..] times rows b[j0 ..] transposed
static inline void rows_by_rows(HeadRoom *h, float *s, const floatX *a, int i0, int m,
                                const floatX *b, int j0, int n) {
    size_t HS = (size_t)h->HS;
    Product p = {m, n, h->HS, false, true, false, HS, HS, (size_t)n};
    gemm_run(&p, h->thread, h->room, a + i0 * HS, b + j0 * HS, s);
}

// out (m, HS) = or += p (m, n) times rows b[j0 ..]
static inline void scores_by_rows(HeadRoom *h, float *out, const floatX *p, int m, const floatX *b,
                                  int j0, int n, bool add) {
    size_t HS = (size_t)h->HS;
    Product q = {m, h->HS, n, false, false, add, (size_t)n, HS, HS};
    gemm_run(&q, h->thread, h->room, p, b + j0 * HS, out);
}

// rows out[j0 ..] (n, HS) = or += p (m, n) transposed times rows b[i0 ..]
static inline void scores_transposed_by_rows(HeadRoom *h, float *out, const floatX *p, int m,
                                             const floatX *b, int i0, int j0, int n, bool add) {
    size_t HS = (size_t)h->HS;
    Product q = {n, h->HS, m, true, false, add, (size_t)n, HS, HS};
    gemm_run(&q, h->thread, h->room, p, b + i0 * HS, out + j0 * HS);
}

// Masks a row's scores from `seen` up to a whole number of vectors, so that the loops over them
// have no remainder; returns that length.
static inline int mask_scores(float *s, int n, int seen) {
    int padded = smaller(n, (int)round_up((size_t)seen, 16));
    for (int j = seen; j < padded; j++) s[j] = -INFINITY;
    return padded;
}

// One row of scores, of which the first `seen` are not masked, to exp(scale s - max); scales what
// was summed before to the new maximum.
static inline void softmax_row(HeadRoom *h, int r, int n, int seen, float scale, bool first) {
    float *s = h->s + (size_t)r * n;
    floatX *p = h->p + (size_t)r * n;
    const int padded = mask_scores(s, n, seen);
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
    if (shrink == 1.0f) return;
    float *o = h->o + (size_t)r * h->HS;
#pragma omp simd
    for (int i = 0; i < h->HS; i++) o[i] *= shrink;
}

// Rows i0 .. i0+m of the output; out rows are ld apart.
static void attention_forward_block(HeadRoom *h, floatX *out, size_t ld, float *lse, int i0,
                                    int m) {
    const float scale = 1.0f / sqrtf((float)h->HS);
    for (int j0 = 0; j0 < i0 + m; j0 += KEYS) {
        int n = smaller(KEYS, i0 + m - j0);
        rows_by_rows(h, h->s, h->q, i0, m, h->k, j0, n);
        for (int r = 0; r < m; r++)
            softmax_row(h, r, n, smaller(n, i0 + r + 1 - j0), scale, j0 == 0);
        scores_by_rows(h, h->o, h->p, m, h->v, j0, n, j0 > 0);
    }
    for (int r = 0; r < m; r++) {
        const float inverse = 1.0f / h->sum[r], *o = h->o + (size_t)r * h->HS;
        floatX *dst = out + (size_t)(i0 + r) * ld;
#pragma omp simd
        for (int i = 0; i < h->HS; i++) store_float(&dst[i], o[i] * inverse);
        lse[i0 + r] = h->max[r] + logf(h->sum[r]);
    }
}

static void attention_forward(floatX *out, float *lse, const floatX *qkv, int B, int T, int C,
                              int NH, cudaStream_t stream) {
    (void)stream;
    const int HS = C / NH;
    const size_t row = (size_t)3 * C;
#pragma omp parallel num_threads(ops_threads())
    {
        gemm_one_thread();
        HeadRoom h = head_room(omp_get_thread_num(), T, HS);
#pragma omp for schedule(dynamic, 1)
        for (int bh = 0; bh < B * NH; bh++) {
            const size_t token = (size_t)(bh / NH) * T, at = (size_t)(bh % NH) * HS;
            const floatX *q = qkv + token * row + at;
            copy_head(h.q, q, row, T, HS);
            copy_head(h.k, q + C, row, T, HS);
            copy_head(h.v, q + 2 * (size_t)C, row, T, HS);
            for (int i0 = 0; i0 < T; i0 += QUERIES)
                attention_forward_block(&h, out + token * C + at, (size_t)C, lse + (size_t)bh * T,
                                        i0, smaller(QUERIES, T - i0));
        }
    }
}

// P and dS of a row from the scores and dP
static inline void score_gradient_row(HeadRoom *h, int r, int n, int seen, float scale, float lse,
                                      float D) {
    float *s = h->s + (size_t)r * n, *dp = h->dp + (size_t)r * n;
    const int padded = mask_scores(s, n, seen);
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

static inline float dot(const floatX *a, const floatX *b, int n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < n; i++) sum += to_float(a[i]) * to_float(b[i]);
    return sum;
}

// Query rows i0 .. i0+m: their dQ (to dq, rows ld apart) and their share of dK and dV. `first`: dK
// and dV are set.
static void attention_backward_block(HeadRoom *h, floatX *dq, size_t ld, const floatX *out,
                                     const float *lse, int i0, int m, int NH, bool first) {
    const float scale = 1.0f / sqrtf((float)h->HS);
    const size_t HS = (size_t)h->HS;
    float *D = h->sum;
    for (int r = 0; r < m; r++)
        D[r] = dot(h->dout + (i0 + r) * HS, out + (i0 + r) * HS * NH, h->HS);
    for (int j0 = 0; j0 < i0 + m; j0 += KEYS) {
        int n = smaller(KEYS, i0 + m - j0);
        rows_by_rows(h, h->s, h->q, i0, m, h->k, j0, n);
        rows_by_rows(h, h->dp, h->dout, i0, m, h->v, j0, n);
        for (int r = 0; r < m; r++)
            score_gradient_row(h, r, n, smaller(n, i0 + r + 1 - j0), scale, lse[i0 + r], D[r]);
        scores_by_rows(h, h->o, h->ds, m, h->k, j0, n, j0 > 0);
        scores_transposed_by_rows(h, h->dk, h->ds, m, h->q, i0, j0, n, !first);
        scores_transposed_by_rows(h, h->dv, h->p, m, h->dout, i0, j0, n, !first);
    }
    write_head(dq + (size_t)i0 * ld, ld, h->o, m, h->HS);
}

static void attention_backward(floatX *dqkv, const floatX *dout, const floatX *out,
                               const floatX *qkv, const float *lse, int B, int T, int C, int NH,
                               cudaStream_t stream) {
    (void)stream;
    const int HS = C / NH, last = (T - 1) / QUERIES * QUERIES;
    const size_t row = (size_t)3 * C;
#pragma omp parallel num_threads(ops_threads())
    {
        gemm_one_thread();
        HeadRoom h = head_room(omp_get_thread_num(), T, HS);
#pragma omp for schedule(dynamic, 1)
        for (int bh = 0; bh < B * NH; bh++) {
            const size_t token = (size_t)(bh / NH) * T, at = (size_t)(bh % NH) * HS;
            const floatX *q = qkv + token * row + at;
            floatX *dq = dqkv + token * row + at;
            copy_head(h.q, q, row, T, HS);
            copy_head(h.k, q + C, row, T, HS);
            copy_head(h.v, q + 2 * (size_t)C, row, T, HS);
            copy_head(h.dout, dout + token * C + at, (size_t)C, T, HS);
            // The last block sees every key, so it sets dK and dV and the others add.
            for (int i0 = last; i0 >= 0; i0 -= QUERIES)
                attention_backward_block(&h, dq, row, out + token * C + at, lse + (size_t)bh * T,
                                         i0, smaller(QUERIES, T - i0), NH, i0 == last);
            write_head(dq + C, row, h.dk, T, HS);
            write_head(dq + 2 * (size_t)C, row, h.dv, T, HS);
        }
    }
}
