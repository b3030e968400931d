// kernels/attention_any.cuh: attention in fp32 arithmetic for any head size and either dtype. 256
// threads make a tile of 64 rows by 64 columns of scores, 4 x 4 each, from slices of the operands
// in shared memory, and keep 64 rows by 16 NC columns of the result in registers; blockIdx.y says
// which columns of the head.
//
// "Rows" are a block's own: queries in the forward and for dQ, keys for dK and dV. "Columns" are
// what it goes through, tile after tile: keys, or queries.
#pragma once

#define ANY_THREADS 256
#define ANY_TILE 64
#define ANY_STEP 16  // deep is a slice of the operands
#define ANY_LD                                                                                     \
    68  // of a slice or tile in shared memory, in floats: whole packs, few bank conflicts

typedef struct {
    float a[ANY_STEP][ANY_LD];        // slices of a product's operands
    float b[ANY_STEP][2 * ANY_TILE];  //
    float p[ANY_TILE][ANY_LD];        // [column][row]: probabilities
    float ds[ANY_TILE][ANY_LD];       // [column][row]: gradients of the scores
} AnyRoom;

// A tile of rows of one head: row r, column c is at[r * ld + c]; there are `rows` rows from at[0].
typedef struct {
    const floatX *at;
    size_t ld;
    int rows;
} AnyRows;

__device__ static inline AnyRows any_rows(const floatX *head, size_t ld, int row0, int T) {
    AnyRows r = {head + (size_t)row0 * ld, ld, T - row0};
    return r;
}

__device__ static inline float any_value(const AnyRows *r, int row, int col, int HS) {
    return row < r->rows && col < HS ? to_float(r->at[(size_t)row * r->ld + (size_t)col]) : 0.0f;
}

// s = rows of a times rows of b, transposed: the thread's 4 x 4, rows 4 (thread / 16) on,
// columns 4 (thread % 16) on.
__device__ static inline void any_rows_by_rows(float s[4][4], AnyRoom *room, AnyRows a, AnyRows b,
                                               int HS) {
    int x = (int)threadIdx.x % 16 * 4, y = (int)threadIdx.x / 16 * 4, row = (int)threadIdx.x / 4,
        col = (int)threadIdx.x % 4 * 4;
    for (int i = 0; i < 16; i++) s[i / 4][i % 4] = 0;
    for (int k0 = 0; k0 < HS; k0 += ANY_STEP) {
        __syncthreads();
        UNROLL for (int i = 0; i < 4; i++) {
            room->a[col + i][row] = any_value(&a, row, k0 + col + i, HS);
            room->b[col + i][row] = any_value(&b, row, k0 + col + i, HS);
        }
        SEEDED_SYNC(6);
        UNROLL_4 for (int k = 0; k < ANY_STEP; k++) {
            Pack<float> u = load_pack(&room->a[k][y]), v = load_pack(&room->b[k][x]);
            UNROLL for (int i = 0; i < 4; i++) {
                UNROLL for (int j = 0; j < 4; j++) s[i][j] += u.x[i] * v.x[j];
            }
        }
    }
}

// acc (64 x 16 NC) += p (64 x 64) times rows of b, of which the columns from c0 on. The thread's
// column j is 64 (j / 4) + 4 (thread % 16) + j % 4.
template <int NC>
__device__ static inline void any_scores_by_rows(float acc[4][NC], AnyRoom *room,
                                                 const float (*p)[ANY_LD], AnyRows b, int c0,
                                                 int HS) {
    int x = (int)threadIdx.x % 16 * 4, y = (int)threadIdx.x / 16 * 4;
    for (int k0 = 0; k0 < ANY_TILE; k0 += ANY_STEP) {
        __syncthreads();
        UNROLL for (int i = 0; i < NC; i++) {
            int at = (int)threadIdx.x + i * ANY_THREADS, row = at / (16 * NC), col = at % (16 * NC);
            room->b[row][col] = any_value(&b, k0 + row, c0 + col, HS);
        }
        __syncthreads();
        UNROLL_4 for (int k = 0; k < ANY_STEP; k++) {
            Pack<float> u = load_pack(&p[k0 + k][y]);
            UNROLL for (int j = 0; j < NC; j += 4) {
                Pack<float> v = load_pack(&room->b[k][j / 4 * 64 + x]);
                UNROLL for (int i = 0; i < 16; i++) acc[i / 4][j + i % 4] +=
                    u.x[i / 4] * v.x[i % 4];
            }
        }
    }
}

// Turns a thread's 4 x 4 by storing it [column][row].
__device__ static inline void any_store_scores(float (*dst)[ANY_LD], const float s[4][4]) {
    int x = (int)threadIdx.x % 16 * 4, y = (int)threadIdx.x / 16 * 4;
    for (int j = 0; j < 4; j++) {
        Pack<float> v;
        for (int i = 0; i < 4; i++) v.x[i] = s[i][j];
        store_pack(&dst[x + j][y], v);
    }
}

template <int NC>
__device__ static inline void any_store_result(floatX *dst, size_t ld, int rows,
                                               const float acc[4][NC], const float factor[4],
                                               int c0, int HS) {
    int x = (int)threadIdx.x % 16 * 4, y = (int)threadIdx.x / 16 * 4;
    UNROLL for (int i = 0; i < 4; i++) {
        UNROLL for (int j = 0; j < NC; j++) {
            int col = c0 + j / 4 * 64 + x + j % 4;
            if (y + i < rows && col < HS)
                store_float(&dst[(size_t)(y + i) * ld + (size_t)col], acc[i][j] * factor[i]);
        }
    }
}

// The sum or maximum over the 16 threads that share rows.
__device__ static inline float any_row_max(float x) {
    for (int offset = 8; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(FULL_MASK, x, offset));
    return x;
}

__device__ static inline float any_row_sum(float x) {
    for (int offset = 8; offset > 0; offset /= 2) x += __shfl_xor_sync(FULL_MASK, x, offset);
    return x;
}

// One row's four scores to exp(scale s - max); returns by how much what was summed before shrinks.
// first: how many of the columns from x on the row sees.
__device__ static inline float any_softmax_row(float s[4], float *max, float *sum, int seen,
                                               float scale) {
    float most = *max, total = 0;
    UNROLL for (int j = 0; j < 4; j++) {
        s[j] = j < seen ? s[j] * scale : -INFINITY;
        most = fmaxf(most, s[j]);
    }
    most = any_row_max(most);
    UNROLL for (int j = 0; j < 4; j++) total += s[j] = exp2f(s[j] - most);
    float shrink = exp2f(*max - most);
    *sum = *sum * shrink + any_row_sum(total);
    *max = most;
    return shrink;
}

template <int NC>
__global__ static void __launch_bounds__(ANY_THREADS, NC == 4 ? 2 : 1)
    attention_forward_any_kernel(floatX *out, float *lse, const floatX *qkv, int T, int NH,
                                 int HS) {
    __shared__ AnyRoom room;
    int tiles = (T + ANY_TILE - 1) / ANY_TILE, c0 = (int)blockIdx.y * 16 * NC;
    HeadPlace h = head_place(tiles, T, NH, HS);
    int row0 = (tiles - 1 - h.tile) * ANY_TILE, x = (int)threadIdx.x % 16 * 4,
        y = (int)threadIdx.x / 16 * 4;
    size_t C = (size_t)NH * (size_t)HS, ld = 3 * C;
    const floatX *q = qkv + h.token * ld + h.column;
    float scale = LOG2E / sqrtf((float)HS), max[4], sum[4] = {}, acc[4][NC] = {};
    for (int i = 0; i < 4; i++) max[i] = -INFINITY;
    for (int col0 = 0; col0 <= row0; col0 += ANY_TILE) {
        float s[4][4];
        any_rows_by_rows(s, &room, any_rows(q, ld, row0, T), any_rows(q + C, ld, col0, T), HS);
        UNROLL for (int i = 0; i < 4; i++) {
            float shrink =
                any_softmax_row(s[i], &max[i], &sum[i], row0 + y + i + 1 - (col0 + x), scale);
            UNROLL for (int j = 0; j < NC; j++) acc[i][j] *= shrink;
        }
        any_store_scores(room.p, s);
        any_scores_by_rows<NC>(acc, &room, room.p, any_rows(q + 2 * C, ld, col0, T), c0, HS);
    }
    float factor[4];
    for (int i = 0; i < 4; i++) {
        factor[i] = 1.0f / sum[i];
        if (x == 0 && c0 == 0 && row0 + y + i < T)
            lse[h.bh * (size_t)T + (size_t)(row0 + y + i)] = max[i] / LOG2E + logf(sum[i]);
    }
    any_store_result<NC>(out + (h.token + (size_t)row0) * C + h.column, C, T - row0, acc, factor,
                         c0, HS);
}

// KEYS: rows are keys, for dK and dV; else rows are queries, for dQ.
template <int NC, bool KEYS>
__global__ static void __launch_bounds__(ANY_THREADS, NC == 4 ? 2 : 1)
    attention_backward_any_kernel(AttentionGradient g) {
    __shared__ AnyRoom room;
    const int T = g.T, HS = g.HS, tiles = (T + ANY_TILE - 1) / ANY_TILE,
              c0 = (int)blockIdx.y * 16 * NC;
    HeadPlace h = head_place(tiles, T, g.NH, HS);
    int tile = KEYS ? h.tile : tiles - 1 - h.tile, row0 = tile * ANY_TILE;
    int x = (int)threadIdx.x % 16 * 4, y = (int)threadIdx.x / 16 * 4;
    size_t C = (size_t)g.NH * (size_t)HS, ld = 3 * C, at = h.token * ld + h.column;
    const floatX *q = g.qkv + at, *k = q + C, *v = k + C, *dout = g.dout + h.token * C + h.column;
    const float2 *rows = g.rows + h.bh * (size_t)attention_pitch(T);
    float scale = 1.0f / sqrtf((float)HS), acc[4][NC] = {}, dv[4][KEYS ? NC : 1] = {};
    for (int t = KEYS ? tile : 0, end = KEYS ? tiles : tile + 1; t < end; t++) {
        int col0 = t * ANY_TILE;
        float s[4][4], dp[4][4];
        any_rows_by_rows(s, &room, any_rows(KEYS ? k : q, ld, row0, T),
                         any_rows(KEYS ? q : k, ld, col0, T), HS);
        any_rows_by_rows(dp, &room, KEYS ? any_rows(v, ld, row0, T) : any_rows(dout, C, row0, T),
                         KEYS ? any_rows(dout, C, col0, T) : any_rows(v, ld, col0, T), HS);
        UNROLL for (int i = 0; i < 4; i++) {
            UNROLL for (int j = 0; j < 4; j++) {
                int query = KEYS ? col0 + x + j : row0 + y + i,
                    key = KEYS ? row0 + y + i : col0 + x + j;
                float2 r = rows[query];
                float p = key <= query ? exp2f(s[i][j] * scale * LOG2E - r.x) : 0.0f;
                s[i][j] = p;
                dp[i][j] = p * (dp[i][j] - r.y);
            }
        }
        if (KEYS) any_store_scores(room.p, s);
        any_store_scores(room.ds, dp);
        any_scores_by_rows<NC>(acc, &room, room.ds, any_rows(KEYS ? q : k, ld, col0, T), c0, HS);
        if constexpr (KEYS)
            any_scores_by_rows<NC>(dv, &room, room.p, any_rows(dout, C, col0, T), c0, HS);
    }
    const float scales[4] = {scale, scale, scale, scale}, ones[4] = {1, 1, 1, 1};
    floatX *dst = g.dqkv + at + (size_t)row0 * ld;
    any_store_result<NC>(dst + (KEYS ? C : 0), ld, T - row0, acc, scales, c0, HS);
    if constexpr (KEYS) any_store_result<NC>(dst + 2 * C, ld, T - row0, dv, ones, c0, HS);
}

static dim3 any_grid(size_t heads, int T, int HS, int columns) {
    return dim3((unsigned)((size_t)((T + ANY_TILE - 1) / ANY_TILE) * heads),
                blocks_for((size_t)HS, (size_t)columns));
}

static void attention_forward_any(floatX *out, float *lse, const floatX *qkv, size_t heads, int T,
                                  int NH, int HS, cudaStream_t stream) {
    if (HS <= 64)
        attention_forward_any_kernel<4>
            <<<any_grid(heads, T, HS, 64), ANY_THREADS, 0, stream>>>(out, lse, qkv, T, NH, HS);
    else
        attention_forward_any_kernel<8>
            <<<any_grid(heads, T, HS, 128), ANY_THREADS, 0, stream>>>(out, lse, qkv, T, NH, HS);
    launchCheck();
}

static void attention_backward_any(const AttentionGradient *g, size_t heads, cudaStream_t stream) {
    dim3 grid = any_grid(heads, g->T, g->HS, g->HS <= 64 ? 64 : 128);
    if (g->HS <= 64) {
        attention_backward_any_kernel<4, false><<<grid, ANY_THREADS, 0, stream>>>(*g);
        attention_backward_any_kernel<4, true><<<grid, ANY_THREADS, 0, stream>>>(*g);
    } else {
        attention_backward_any_kernel<8, false><<<grid, ANY_THREADS, 0, stream>>>(*g);
        attention_backward_any_kernel<8, true><<<grid, ANY_THREADS, 0, stream>>>(*g);
    }
    launchCheck();
}
