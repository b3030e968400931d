// kernels/attention_tensor.cuh: attention of bf16 on tensor cores (mma.m16n8k16), for head sizes
// that are multiples of 16 up to 128. HSP is the head size that the tiles are made for, 64 or 128:
// columns from HS on are zero. A block of four warps has 64 rows, each warp 16 of them,
// and goes through tiles of columns that cp.async brings while the tile before is worked on.
// The scores of a warp go from the accumulators of one product to the operand of the next without
// leaving its registers.
//
// "Rows" are queries in the forward and for dQ, keys for dK and dV; "columns" are
// then keys, or queries.
#pragma once

#include "ptx.cuh"

static inline bool tensor_cores_can(int HS, const void *a, const void *b, const void *c) {
    return HS % 16 == 0 && HS <= 128 && aligned16(a) && aligned16(b) && aligned16(c);
}

#define TENSOR_THREADS 128
#define TENSOR_ROWS 64

// Where element (row, col) lies in a tile, col a multiple of 8. The 16-byte pieces of a row are
// permuted by the row, so that eight rows of one column lie in different banks.
template <int HSP> __device__ static inline int tile_place(int row, int col) {
    return row * HSP + ((col / 8) ^ (row & 7)) * 8;
}

// Element (row0 + row, col0 + col), with what depends on the lane apart from constants: row0 is a
// multiple of 8, col0 of 16, col is 0 or 8.
template <int HSP>
__device__ static inline const bf16 *tile_at(const bf16 *tile, int row0, int row, int col0,
                                             int col) {
    return tile + (tile_place<HSP>(row, col) ^ col0) + row0 * HSP;
}

// Starts the copy of rows row0 .. row0+ROWS of a head; rows from T on and columns
// from HS on become zero.
template <int HSP, int ROWS>
__device__ static inline void tile_fetch(bf16 *tile, const bf16 *head, size_t ld, int row0, int T,
                                         int HS) {
    const int STEP = TENSOR_THREADS / (HSP / 8);  // rows at a time, a multiple of 8
    int row = (int)threadIdx.x / (HSP / 8), col = (int)threadIdx.x % (HSP / 8) * 8;
    const bf16 *from = head + (size_t)(row0 + row) * ld + col;
    int left = col < HS ? T - row0 - row : 0;
    bf16 *to = tile + tile_place<HSP>(row, col);
    UNROLL_2 for (int i = 0; i < ROWS; i += STEP) {
        cp_async_16(to + i * HSP, from, i < left);
        from += STEP * ld;
    }
}

__device__ static inline uint32_t pack_bf16(float low, float high) {
    __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

// The 16 x 16 of A from (row, col) of a tile on.
template <int HSP>
__device__ static inline void load_a(uint32_t a[4], const bf16 *tile, int row, int col) {
    int lane = (int)threadIdx.x % WARP;
    ldmatrix_x4(a, tile_at<HSP>(tile, row, lane % 16, col, lane / 16 * 8));
}

// s (16 x COLS) += a (16 x 16, columns k.. of the row operand) times the same
// columns of a tile's rows.
template <int HSP, int COLS>
__device__ static inline void add_rows_by_rows(float s[][4], const uint32_t a[4], const bf16 *tile,
                                               int k) {
    int lane = (int)threadIdx.x % WARP;
    UNROLL for (int n = 0; n < COLS; n += 16) {
        uint32_t b[4];
        ldmatrix_x4(b, tile_at<HSP>(tile, n, lane / 16 * 8 + lane % 8, k, lane / 8 % 2 * 8));
        mma_m16n8k16_bf16(s[n / 8], a, b, s[n / 8]);
        mma_m16n8k16_bf16(s[n / 8 + 1], a, b + 2, s[n / 8 + 1]);
    }
}

// acc (16 x HSP) += p (16 x COLS) times a tile (COLS x HSP).
template <int HSP, int COLS>
__device__ static inline void add_scores_by_rows(float acc[][4], const float p[][4],
                                                 const bf16 *tile) {
    int lane = (int)threadIdx.x % WARP;
    UNROLL for (int k = 0; k < COLS; k += 16) {
        const float *l = p[k / 8], *r = p[k / 8 + 1];
        uint32_t a[4] = {pack_bf16(l[0], l[1]), pack_bf16(l[2], l[3]), pack_bf16(r[0], r[1]),
                         pack_bf16(r[2], r[3])};
        UNROLL for (int n = 0; n < HSP; n += 16) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, tile_at<HSP>(tile, k, lane % 16, n, lane / 16 * 8));
            mma_m16n8k16_bf16(acc[n / 8], a, b, acc[n / 8]);
            mma_m16n8k16_bf16(acc[n / 8 + 1], a, b + 2, acc[n / 8 + 1]);
        }
    }
}

// Stores the warp's 16 rows of acc, times a factor for the lane's rows g and g + 8, to rows row..
// of dst. They go through the same rows of a tile that only this warp still uses, to be written in
// whole 16-byte pieces.
template <int HSP>
__device__ static inline void store_rows(bf16 *dst, size_t ld, bf16 *tile, const float acc[][4],
                                         float low, float high, int rows, int HS) {
    int lane = (int)threadIdx.x % WARP, row0 = (int)threadIdx.x / WARP * 16, row = row0 + lane / 4;
    __syncwarp();
    UNROLL for (int n = 0; n < HSP / 8; n++) {
        const float *c = acc[n];
        __nv_bfloat162 g = __floats2bfloat162_rn(c[0] * low, c[1] * low);
        __nv_bfloat162 g8 = __floats2bfloat162_rn(c[2] * high, c[3] * high);
        bf16 *at = tile + tile_place<HSP>(row, n * 8) + lane % 4 * 2;
        *(__nv_bfloat162 *)at = g;
        *(__nv_bfloat162 *)(at + 8 * HSP) = g8;
    }
    __syncwarp();
    for (int i = lane; i < 16 * HSP / 8; i += WARP) {
        int r = row0 + i / (HSP / 8), col = i % (HSP / 8) * 8;
        if (r >= rows || col >= HS) continue;
        Pack<bf16> v = load_pack(tile + tile_place<HSP>(r, col));
        store_pack(dst + (size_t)r * ld + col, v);
    }
}

// Over the four lanes that share a row.
__device__ static inline float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL_MASK, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL_MASK, x, 2));
}

__device__ static inline float quad_sum(float x) {
    x += __shfl_xor_sync(FULL_MASK, x, 1);
    return x + __shfl_xor_sync(FULL_MASK, x, 2);
}

// Running maximum (in units of log 2) and the lane's part of the sum, of its rows g and g + 8.
typedef struct {
    float max[2], sum[2];
} Softmax;

// The lane's scores to 2^(scale s - max); acc and the sums shrink to the new maximum.
template <int HSP, int COLS>
__device__ static inline void softmax_step(Softmax *state, float s[][4], float acc[][4],
                                           float scale) {
    UNROLL for (int half = 0; half < 2; half++) {
        float most = -INFINITY, total = 0;
        UNROLL for (int n = 0; n < COLS / 8; n++) most =
            fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        most = fmaxf(state->max[half], quad_max(most) * scale);
        UNROLL for (int n = 0; n < COLS / 8; n++) {
            UNROLL for (int e = 2 * half; e < 2 * half + 2; e++) total += s[n][e] =
                exp2_approx(fmaf(s[n][e], scale, -most));
        }
        float shrink = exp2_approx(state->max[half] - most);
        state->sum[half] = state->sum[half] * shrink + total;
        state->max[half] = most;
        UNROLL for (int n = 0; n < HSP / 8; n++) {
            acc[n][2 * half] *= shrink;
            acc[n][2 * half + 1] *= shrink;
        }
    }
}

// A score's place within its tile, for element e of column group n.
__device__ static inline int score_row(int e) {
    return (int)threadIdx.x / WARP * 16 + (int)threadIdx.x % WARP / 4 + e / 2 * 8;
}

__device__ static inline int score_col(int n, int e) {
    return n * 8 + (int)threadIdx.x % 4 * 2 + e % 2;
}

// Hides the scores of keys behind their query, in a tile on the diagonal. ahead: row0 - col0.
template <int COLS, bool KEYS> __device__ static inline void hide_scores(float s[][4], int ahead) {
    UNROLL for (int n = 0; n < COLS / 8; n++) {
        UNROLL for (int e = 0; e < 4; e++) {
            int less = ahead + score_row(e) - score_col(n, e);
            if (KEYS ? less > 0 : less < 0) s[n][e] = -INFINITY;
        }
    }
}

template <int HSP>
__global__ static void __launch_bounds__(TENSOR_THREADS, HSP == 64 ? 4 : 2)
    attention_forward_tensor_kernel(bf16 *out, float *lse, const bf16 *qkv, int T, int NH, int HS) {
    extern __shared__ uint4 attention_shared[];
    const int COLS = 64, TILE = COLS * HSP;
    bf16 *q = (bf16 *)attention_shared, *k = q + TILE,
         *v = k + 2 * TILE;  // (64, HSP), two of k and of v
    int tiles = (T + TENSOR_ROWS - 1) / TENSOR_ROWS, warp = (int)threadIdx.x / WARP;
    HeadPlace h = head_place(tiles, T, NH, HS);
    int tile = tiles - 1 - h.tile, row0 = tile * TENSOR_ROWS;  // the longest rows first
    size_t C = (size_t)NH * (size_t)HS, ld = 3 * C;
    const bf16 *head = qkv + h.token * ld + h.column;
    tile_fetch<HSP, TENSOR_ROWS>(q, head, ld, row0, T, HS);
    tile_fetch<HSP, COLS>(k, head + C, ld, 0, T, HS);
    tile_fetch<HSP, COLS>(v, head + 2 * C, ld, 0, T, HS);
    cp_async_commit();
    uint32_t a[HSP / 16][4];
    float acc[HSP / 8][4] = {}, scale = LOG2E / sqrtf((float)HS);
    Softmax state = {{-INFINITY, -INFINITY}, {0, 0}};
    for (int t = 0; t <= tile; t++) {
        bf16 *kt = k + t % 2 * TILE, *vt = v + t % 2 * TILE;
        if (t < tile) {
            tile_fetch<HSP, COLS>(k + (t + 1) % 2 * TILE, head + C, ld, (t + 1) * COLS, T, HS);
            tile_fetch<HSP, COLS>(v + (t + 1) % 2 * TILE, head + 2 * C, ld, (t + 1) * COLS, T, HS);
        }
        cp_async_commit();
        cp_async_wait<1>();
        SEEDED_SYNC(1);
        if (t == 0) {
            UNROLL for (int i = 0; i < HSP / 16; i++) load_a<HSP>(a[i], q, warp * 16, i * 16);
        }
        float s[COLS / 8][4] = {};
        UNROLL for (int i = 0; i < HSP / 16; i++) add_rows_by_rows<HSP, COLS>(s, a[i], kt, i * 16);
        if (t == tile) hide_scores<COLS, false>(s, 0);
        softmax_step<HSP, COLS>(&state, s, acc, scale);
        add_scores_by_rows<HSP, COLS>(acc, s, vt);
        __syncthreads();  // before the next copy into this tile
    }
    float factor[2];
    for (int half = 0; half < 2; half++) {
        float sum = quad_sum(state.sum[half]);
        int row = row0 + score_row(2 * half);
        factor[half] = 1.0f / sum;
        if (threadIdx.x % 4 == 0 && row < T)
            lse[h.bh * (size_t)T + (size_t)row] = state.max[half] / LOG2E + logf(sum);
    }
    store_rows<HSP>(out + (h.token + (size_t)row0) * C + h.column, C, q, acc, factor[0], factor[1],
                    T - row0, HS);
}

// Scores and dP of the lane to P and dS without its scale: s = P, dp = P (dP - D). `rows` has lse
// and D of the queries: of the lane's two rows, or KEYS of all columns.
template <int COLS, bool KEYS>
__device__ static inline void score_gradients(float s[][4], float dp[][4], const float2 *rows,
                                              float scale) {
    UNROLL for (int n = 0; n < COLS / 8; n++) {
        const float2 *of = KEYS ? rows + score_col(n, 0) : rows;
        Items<2, float2> two = load_items<2>(of);
        UNROLL for (int e = 0; e < 4; e++) {
            float2 row = two.x[KEYS ? e % 2 : e / 2];
            float p = exp2_approx(fmaf(s[n][e], scale, -row.x));
            s[n][e] = p;
            dp[n][e] = p * (dp[n][e] - row.y);
        }
    }
}

// Starts the copy of lse and D of COLS queries.
template <int COLS> __device__ static inline void fetch_queries(float2 *to, const float2 *from) {
    int at = (int)threadIdx.x * 2;
    if (at < COLS) cp_async_16(to + at, from + at, true);
}

// KEYS: rows are keys, acc is dK, and dV is made too. Else rows are queries and acc is dQ.
template <int HSP, int COLS, bool KEYS>
__global__ static void __launch_bounds__(TENSOR_THREADS, HSP == 64 ? 3 : 2)
    attention_backward_tensor_kernel(AttentionGradient g) {
    extern __shared__ uint4 attention_shared[];
    const int ROWS_TILE = TENSOR_ROWS * HSP, TILE = COLS * HSP;
    bf16 *r1 = (bf16 *)attention_shared, *r2 = r1 + ROWS_TILE, *c1 = r2 + ROWS_TILE,
         *c2 = c1 + 2 * TILE;
    float2 *queries = (float2 *)(c2 + 2 * TILE);  // (2, COLS): rows of g for the columns, with KEYS
    const int T = g.T, HS = g.HS, tiles = (T + TENSOR_ROWS - 1) / TENSOR_ROWS;
    HeadPlace h = head_place(tiles, T, g.NH, HS);
    int row0 = (KEYS ? h.tile : tiles - 1 - h.tile) * TENSOR_ROWS,
        warp_row = (int)threadIdx.x / WARP * 16;
    size_t C = (size_t)g.NH * (size_t)HS, ld = 3 * C, at = h.token * ld + h.column;
    const bf16 *q = g.qkv + at, *k = q + C, *v = k + C, *dout = g.dout + h.token * C + h.column;
    const float2 *rows = g.rows + h.bh * (size_t)attention_pitch(T);
    int t = KEYS ? row0 / COLS : 0;
    const int end = KEYS ? (T + COLS - 1) / COLS
                         : ((row0 + TENSOR_ROWS < T ? row0 + TENSOR_ROWS : T) + COLS - 1) / COLS;
    tile_fetch<HSP, TENSOR_ROWS>(r1, KEYS ? k : q, ld, row0, T, HS);
    tile_fetch<HSP, TENSOR_ROWS>(r2, KEYS ? v : dout, KEYS ? ld : C, row0, T, HS);
    tile_fetch<HSP, COLS>(c1 + t % 2 * TILE, KEYS ? q : k, ld, t * COLS, T, HS);
    tile_fetch<HSP, COLS>(c2 + t % 2 * TILE, KEYS ? dout : v, KEYS ? C : ld, t * COLS, T, HS);
    if (KEYS) fetch_queries<COLS>(queries + t % 2 * COLS, rows + t * COLS);
    cp_async_commit();
    float acc[HSP / 8][4] = {}, dv[KEYS ? HSP / 8 : 1][4] = {}, scale = 1.0f / sqrtf((float)HS);
    float2 own[2] = {};
    for (int half = 0; !KEYS && half < 2; half++) own[half] = rows[row0 + score_row(2 * half)];
    for (; t < end; t++) {
        bf16 *c1t = c1 + t % 2 * TILE, *c2t = c2 + t % 2 * TILE;
        if (t + 1 < end) {
            tile_fetch<HSP, COLS>(c1 + (t + 1) % 2 * TILE, KEYS ? q : k, ld, (t + 1) * COLS, T, HS);
            tile_fetch<HSP, COLS>(c2 + (t + 1) % 2 * TILE, KEYS ? dout : v, KEYS ? C : ld,
                                  (t + 1) * COLS, T, HS);
            if (KEYS) fetch_queries<COLS>(queries + (t + 1) % 2 * COLS, rows + (t + 1) * COLS);
        }
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();
        float s[COLS / 8][4] = {}, dp[COLS / 8][4] = {};
        UNROLL_2 for (int i = 0; i < HSP; i += 16) {
            uint32_t a[4];
            load_a<HSP>(a, r1, warp_row, i);
            add_rows_by_rows<HSP, COLS>(s, a, c1t, i);
            load_a<HSP>(a, r2, warp_row, i);
            add_rows_by_rows<HSP, COLS>(dp, a, c2t, i);
        }
        int ahead = row0 - t * COLS;
        if (KEYS ? ahead + TENSOR_ROWS > 0 : ahead < COLS) hide_scores<COLS, KEYS>(s, ahead);
        score_gradients<COLS, KEYS>(s, dp, KEYS ? queries + t % 2 * COLS : own, scale * LOG2E);
        if (KEYS) add_scores_by_rows<HSP, COLS>(dv, s, c2t);
        add_scores_by_rows<HSP, COLS>(acc, dp, c1t);
        SEEDED_SYNC(2);  // before the next copy into this tile
    }
    bf16 *dst = g.dqkv + at + (size_t)row0 * ld;
    store_rows<HSP>(dst + (KEYS ? C : 0), ld, r1, acc, scale, scale, T - row0, HS);
    if constexpr (KEYS) store_rows<HSP>(dst + 2 * C, ld, r2, dv, 1.0f, 1.0f, T - row0, HS);
}

// Allows a kernel the dynamic shared memory that it needs.
template <class... P> static void allow_shared(void (*kernel)(P...), size_t bytes) {
    cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e != cudaSuccess)
        die("attention: expected %zu bytes of shared memory a block: %s", bytes,
            cudaGetErrorString(e));
}

template <int HSP>
static void forward_tensor_launch(bf16 *out, float *lse, const bf16 *qkv, size_t heads, int T,
                                  int NH, int HS, cudaStream_t stream) {
    size_t bytes = 5 * (size_t)TENSOR_ROWS * HSP * sizeof(bf16);
    allow_shared(attention_forward_tensor_kernel<HSP>, bytes);
    unsigned blocks = (unsigned)((size_t)((T + TENSOR_ROWS - 1) / TENSOR_ROWS) * heads);
    attention_forward_tensor_kernel<HSP>
        <<<blocks, TENSOR_THREADS, bytes, stream>>>(out, lse, qkv, T, NH, HS);
    launchCheck();
}

template <int HSP, int COLS, bool KEYS>
static void backward_tensor_launch(const AttentionGradient *g, size_t heads, cudaStream_t stream) {
    size_t bytes = (2 * (size_t)TENSOR_ROWS + 4 * (size_t)COLS) * HSP * sizeof(bf16) +
                   (KEYS ? 2 * (size_t)COLS * sizeof(float2) : 0);
    allow_shared(attention_backward_tensor_kernel<HSP, COLS, KEYS>, bytes);
    unsigned blocks = (unsigned)((size_t)((g->T + TENSOR_ROWS - 1) / TENSOR_ROWS) * heads);
    attention_backward_tensor_kernel<HSP, COLS, KEYS>
        <<<blocks, TENSOR_THREADS, bytes, stream>>>(*g);
    launchCheck();
}

static void attention_forward_tensor(bf16 *out, float *lse, const bf16 *qkv, size_t heads, int T,
                                     int NH, int HS, cudaStream_t stream) {
    if (HS <= 64)
        forward_tensor_launch<64>(out, lse, qkv, heads, T, NH, HS, stream);
    else
        forward_tensor_launch<128>(out, lse, qkv, heads, T, NH, HS, stream);
}

// Half as many columns for dK and dV of a large head: both stay in registers.
static void attention_backward_tensor(const AttentionGradient *g, size_t heads,
                                      cudaStream_t stream) {
    if (g->HS <= 64) {
        backward_tensor_launch<64, 64, false>(g, heads, stream);
        backward_tensor_launch<64, 64, true>(g, heads, stream);
    } else {
        backward_tensor_launch<128, 64, false>(g, heads, stream);
        backward_tensor_launch<128, 32, true>(g, heads, stream);
    }
}
