// kernels/attention_tensor.cuh: attention of bf16 on tensor cores (mma.m16n8k16), for head sizes
// that are multiples of 16 up to 128. HSP is the head size that the tiles are made for, 64, 80, 96
// or 128: columns from HS on are zero. A block has four warps, each of them M times 16 rows, and
// goes through tiles of columns that cp.async brings while the tile before is worked on. What a
// warp loads of such a tile feeds its M products. The scores of a warp go from the accumulators of
// one product to the operand of the next without leaving its registers.
//
// "Rows" are queries in the forward and for dQ, keys for dK and dV; "columns" are
// then keys, or queries.
#pragma once

#include "ptx.cuh"

static inline bool tensor_cores_can(int HS, const void *a, const void *b, const void *c) {
    return HS % 16 == 0 && HS <= 128 && aligned16(a) && aligned16(b) && aligned16(c);
}

#define LN2 0.6931471805599453f
#define TENSOR_THREADS 128
#define TENSOR_WARPS (TENSOR_THREADS / WARP)

// Pieces of 16 bytes in a row of a tile that its permutation moves: the power of two in HSP / 8.
template <int HSP> __host__ __device__ static inline constexpr int pieces_permuted() {
    return HSP % 64 == 0 ? 8 : HSP % 32 == 0 ? 4 : 2;
}

// Where element (row, col) lies in a tile, col a multiple of 8. The pieces of a row are permuted by
// the row, so that eight rows of one column lie in different banks.
template <int HSP> __device__ static inline int tile_place(int row, int col) {
    const int P = pieces_permuted<HSP>();
    return row * HSP + ((col / 8) ^ (row / (8 / P) % P)) * 8;
}

// Element (row0 + row, col0 + col), with what depends on the lane apart from constants: row0 is a
// multiple of 8, col0 of 16, col is 0 or 8.
template <int HSP>
__device__ static inline const bf16 *tile_at(const bf16 *tile, int row0, int row, int col0,
                                             int col) {
    const int PERMUTED = pieces_permuted<HSP>() * 8;
    return tile + (tile_place<HSP>(row, col) ^ col0 % PERMUTED) + row0 * HSP +
           col0 / PERMUTED * PERMUTED;
}

// Starts the copy of rows row0 .. row0+ROWS of a head; rows from T on and columns
// from HS on become zero. Their address is `any`, a kernel's argument, which can be read again
// where it is used. Where it stays in registers a kernel may spill: forward with 80 channels does,
// 8 bytes on sm_90 (kernels/resources.txt).
template <int HSP, int ROWS>
__device__ static inline void tile_fetch(bf16 *tile, const bf16 *head, const bf16 *any, int ld,
                                         int row0, int T, int HS) {
    // STEP: rows at a time, a multiple of 8, so that the permutation stays.
    const int PIECES = HSP / 8, STEP = TENSOR_THREADS / PIECES / 8 * 8;
    int row = (int)threadIdx.x / PIECES, col = (int)threadIdx.x % PIECES * 8;
    if (STEP * PIECES < TENSOR_THREADS && row >= STEP) return;
    const bf16 *from = head + (ptrdiff_t)(row0 + row) * ld + col;
    int left = col < HS ? T - row0 - row : 0;
    bf16 *to = tile + tile_place<HSP>(row, col);
    UNROLL_2 for (int i = 0; i < ROWS; i += STEP) {
        cp_async_16(to + i * HSP, i < left ? from : any, i < left);
        from += (ptrdiff_t)STEP * ld;
    }
}

__device__ static inline uint32_t pack_bf16(float low, float high) {
    __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

// s (M x 16 x COLS) += rows row.. of one tile times the first COLS rows of another, columns k.. of
// both.
template <int HSP, int COLS, int M>
__device__ static inline void add_columns(float s[][COLS / 8][4], const bf16 *rows, int row,
                                          const bf16 *cols, int k) {
    int lane = (int)threadIdx.x % WARP;
    uint32_t a[M][4];
    UNROLL for (int m = 0; m < M; m++)
        ldmatrix_x4(a[m], tile_at<HSP>(rows, row + m * 16, lane % 16, k, lane / 16 * 8));
    UNROLL for (int n = 0; n < COLS; n += 16) {
        uint32_t b[4];
        ldmatrix_x4(b, tile_at<HSP>(cols, n, lane / 16 * 8 + lane % 8, k, lane / 8 % 2 * 8));
        UNROLL for (int m = 0; m < M; m++) {
            mma_m16n8k16_bf16(s[m][n / 8], a[m], b, s[m][n / 8]);
            mma_m16n8k16_bf16(s[m][n / 8 + 1], a[m], b + 2, s[m][n / 8 + 1]);
        }
    }
}

// acc (M x 16 x HSP) += p (M x 16 x COLS) times a tile (COLS x HSP).
template <int HSP, int COLS, int M>
__device__ static inline void add_scores_by_rows(float acc[][HSP / 8][4],
                                                 const float p[][COLS / 8][4], const bf16 *tile) {
    int lane = (int)threadIdx.x % WARP;
    UNROLL for (int k = 0; k < COLS; k += 16) {
        uint32_t a[M][4];
        UNROLL for (int m = 0; m < M; m++) {
            UNROLL for (int i = 0; i < 4; i++) {
                const float *two = p[m][k / 8 + i / 2] + i % 2 * 2;
                a[m][i] = pack_bf16(two[0], two[1]);
            }
        }
        UNROLL for (int n = 0; n < HSP; n += 16) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, tile_at<HSP>(tile, k, lane % 16, n, lane / 16 * 8));
            UNROLL for (int m = 0; m < M; m++) {
                mma_m16n8k16_bf16(acc[m][n / 8], a[m], b, acc[m][n / 8]);
                mma_m16n8k16_bf16(acc[m][n / 8 + 1], a[m], b + 2, acc[m][n / 8 + 1]);
            }
        }
    }
}

// Stores the 16 rows row.. of acc, times a factor for the lane's rows g and g + 8, to the same rows
// of dst, of which there are `rows`. They go through these rows of a tile that only this warp still
// uses, to be written in whole 16-byte pieces.
template <int HSP>
__device__ static inline void store_rows(bf16 *dst, int ld, bf16 *tile, const float acc[][4],
                                         float low, float high, int row, int rows, int HS) {
    int lane = (int)threadIdx.x % WARP;
    __syncwarp();
    UNROLL for (int n = 0; n < HSP / 8; n++) {
        const float *c = acc[n];
        __nv_bfloat162 g = __floats2bfloat162_rn(c[0] * low, c[1] * low);
        __nv_bfloat162 g8 = __floats2bfloat162_rn(c[2] * high, c[3] * high);
        bf16 *at = tile + tile_place<HSP>(row + lane / 4, n * 8) + lane % 4 * 2;
        *(__nv_bfloat162 *)at = g;
        *(__nv_bfloat162 *)(at + 8 * HSP) = g8;
    }
    __syncwarp();
    for (int i = lane; i < 16 * HSP / 8; i += WARP) {
        int r = row + i / (HSP / 8), col = i % (HSP / 8) * 8;
        if (r >= rows || col >= HS) continue;
        Pack<bf16> v = load_pack(tile + tile_place<HSP>(r, col));
        store_pack(dst + (ptrdiff_t)r * ld + col, v);
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

// A score's place among the 16 x COLS that it is of, for element e of column group n.
__device__ static inline int score_row(int e) {
    return (int)threadIdx.x % WARP / 4 + e / 2 * 8;
}

__device__ static inline int score_col(int n, int e) {
    return n * 8 + (int)threadIdx.x % 4 * 2 + e % 2;
}

// Of the M x 16 scores from row `first` and column col0 on: whether all are of keys behind their
// query, and whether some are.
template <int COLS, int M, bool KEYS>
__device__ static inline bool all_hidden(int first, int col0) {
    return KEYS ? col0 + COLS <= first : col0 >= first + 16 * M;
}

template <int COLS, int M, bool KEYS>
__device__ static inline bool some_hidden(int first, int col0) {
    return KEYS ? col0 < first + 16 * M - 1 : col0 + COLS - 1 > first;
}

// Hides them.
template <int COLS, int M, bool KEYS>
__device__ static inline void hide_scores(float s[][COLS / 8][4], int first, int col0) {
    UNROLL for (int m = 0; m < M; m++) {
        UNROLL for (int n = 0; n < COLS / 8; n++) {
            UNROLL for (int e = 0; e < 4; e++) {
                int less = first - col0 + m * 16 + score_row(e) - score_col(n, e);
                if (KEYS ? less > 0 : less < 0) s[m][n][e] = -INFINITY;
            }
        }
    }
}

template <int HSP, int COLS, int M>
__global__ static void __launch_bounds__(TENSOR_THREADS, HSP <= 80 ? 3 : 2)
    attention_forward_tensor_kernel(bf16 *out, float *lse, const bf16 *qkv, int T, int NH, int HS) {
    extern __shared__ uint4 attention_shared[];
    const int ROWS = TENSOR_WARPS * 16 * M, TILE = COLS * HSP;
    bf16 *q = (bf16 *)attention_shared, *k = q + ROWS * HSP, *v = k + 2 * TILE;  // two of k and v
    int tiles = (T + ROWS - 1) / ROWS, warp_row = (int)threadIdx.x / WARP * 16 * M;
    HeadPlace h = head_place(tiles, T, NH, HS);
    int row0 = (tiles - 1 - h.tile) * ROWS, first = row0 + warp_row;  // the longest rows first
    const int end = ((row0 + ROWS < T ? row0 + ROWS : T) + COLS - 1) / COLS;
    const int C = NH * HS, ld = 3 * C;
    const bf16 *head = qkv + h.token * (size_t)ld + h.column;
    tile_fetch<HSP, ROWS>(q, head, qkv, ld, row0, T, HS);
    tile_fetch<HSP, COLS>(k, head + C, qkv, ld, 0, T, HS);
    tile_fetch<HSP, COLS>(v, head + 2 * C, qkv, ld, 0, T, HS);
    float acc[M][HSP / 8][4] = {}, scale = LOG2E / sqrtf((float)HS);
    Softmax state[M];
    UNROLL for (int m = 0; m < M; m++) state[m] = {{-INFINITY, -INFINITY}, {0, 0}};
    for (int t = 0; t < end; t++) {
        cp_async_commit();
        cp_async_wait<0>();
        SEEDED_SYNC(1);  // tile t is here, and t - 1 is free
        if (t + 1 < end) {
            int next = (t + 1) % 2 * TILE;
            tile_fetch<HSP, COLS>(k + next, head + C, qkv, ld, (t + 1) * COLS, T, HS);
            tile_fetch<HSP, COLS>(v + next, head + 2 * C, qkv, ld, (t + 1) * COLS, T, HS);
        }
        if (all_hidden<COLS, M, false>(first, t * COLS)) continue;
        float s[M][COLS / 8][4] = {};
        UNROLL for (int i = 0; i < HSP; i += 16)
            add_columns<HSP, COLS, M>(s, q, warp_row, k + t % 2 * TILE, i);
        if (some_hidden<COLS, M, false>(first, t * COLS))
            hide_scores<COLS, M, false>(s, first, t * COLS);
        UNROLL for (int m = 0; m < M; m++) softmax_step<HSP, COLS>(&state[m], s[m], acc[m], scale);
        add_scores_by_rows<HSP, COLS, M>(acc, s, v + t % 2 * TILE);
    }
    bf16 *dst = out + (h.token + (size_t)row0) * (size_t)C + h.column;
    UNROLL for (int m = 0; m < M; m++) {
        float factor[2];
        UNROLL for (int half = 0; half < 2; half++) {
            float sum = quad_sum(state[m].sum[half]);
            int row = first + m * 16 + score_row(2 * half);
            factor[half] = 1.0f / sum;
            if (threadIdx.x % 4 == 0 && row < T)
                lse[h.bh * (size_t)T + (size_t)row] = state[m].max[half] / LOG2E + logf(sum);
        }
        store_rows<HSP>(dst, C, q, acc[m], factor[0], factor[1], warp_row + m * 16, T - row0, HS);
    }
}

// Scores and dP of the lane to P and dS without its scale: s = P, dp = P (dP - D). `queries` has
// lse and D of the columns with KEYS, else of the warp's rows.
template <int COLS, int M, bool KEYS>
__device__ static inline void score_gradients(float s[][COLS / 8][4], float dp[][COLS / 8][4],
                                              const float2 *queries, float scale) {
    float2 own[M][2];
    UNROLL for (int i = 0; !KEYS && i < 2 * M; i++) own[i / 2][i % 2] =
        queries[i / 2 * 16 + score_row(i % 2 * 2)];
    UNROLL for (int n = 0; n < COLS / 8; n++) {
        Items<2, float2> two = {};
        if (KEYS) two = load_items<2>(queries + score_col(n, 0));
        UNROLL for (int m = 0; m < M; m++) {
            UNROLL for (int e = 0; e < 4; e++) {
                float2 query = KEYS ? two.x[e % 2] : own[m][e / 2];
                float p = exp2_approx(fmaf(s[m][n][e], scale, -query.x));
                s[m][n][e] = p;
                dp[m][n][e] = p * (dp[m][n][e] - query.y);
            }
        }
    }
}

// Starts the copy of lse and D of N queries.
template <int N> __device__ static inline void fetch_queries(float2 *to, const float2 *from) {
    int at = (int)threadIdx.x * 2;
    if (at < N) cp_async_16(to + at, from + at, true);
}

template <int HSP, int COLS, int M, bool KEYS>
__global__ static void __launch_bounds__(TENSOR_THREADS, HSP == 64 && !KEYS ? 3 : 2)
    attention_backward_tensor_kernel(AttentionGradient g) {
    extern __shared__ uint4 attention_shared[];
    const int ROWS = TENSOR_WARPS * 16 * M, TILE = COLS * HSP;
    bf16 *r1 = (bf16 *)attention_shared, *r2 = r1 + ROWS * HSP, *c1 = r2 + ROWS * HSP,
         *c2 = c1 + 2 * TILE;
    float2 *queries = (float2 *)(c2 + 2 * TILE);  // rows of g: KEYS ? (2, COLS) : (ROWS)
    const int T = g.T, HS = g.HS, tiles = (T + ROWS - 1) / ROWS;
    HeadPlace h = head_place(tiles, T, g.NH, HS);
    int row0 = (KEYS ? h.tile : tiles - 1 - h.tile) * ROWS,
        warp_row = (int)threadIdx.x / WARP * 16 * M, first = row0 + warp_row;
    const int C = g.NH * HS, ld = 3 * C;
    const size_t at = h.token * (size_t)ld + h.column;
    const bf16 *q = g.qkv + at, *k = q + C, *v = k + C,
               *dout = g.dout + h.token * (size_t)C + h.column;
    const float2 *rows = g.rows + h.bh * (size_t)attention_pitch(T);
    int t = KEYS ? row0 / COLS : 0;
    const int end = ((KEYS || row0 + ROWS > T ? T : row0 + ROWS) + COLS - 1) / COLS;
    auto fetch = [&](int tile) {
        int to = tile % 2 * TILE;
        tile_fetch<HSP, COLS>(c1 + to, KEYS ? q : k, g.qkv, ld, tile * COLS, T, HS);
        tile_fetch<HSP, COLS>(c2 + to, KEYS ? dout : v, g.qkv, KEYS ? C : ld, tile * COLS, T, HS);
        if (KEYS) fetch_queries<COLS>(queries + tile % 2 * COLS, rows + tile * COLS);
    };
    tile_fetch<HSP, ROWS>(r1, KEYS ? k : q, g.qkv, ld, row0, T, HS);
    tile_fetch<HSP, ROWS>(r2, KEYS ? v : dout, g.qkv, KEYS ? ld : C, row0, T, HS);
    if (!KEYS) fetch_queries<ROWS>(queries, rows + row0);
    fetch(t);
    float acc[M][HSP / 8][4] = {}, dv[M][KEYS ? HSP / 8 : 1][4] = {},
                       scale = LOG2E / sqrtf((float)HS);
    for (; t < end; t++) {
        cp_async_commit();
        cp_async_wait<0>();
        SEEDED_SYNC(2);  // tile t is here, and t - 1 is free
        if (t + 1 < end) fetch(t + 1);
        if (all_hidden<COLS, M, KEYS>(first, t * COLS)) continue;
        const bf16 *c1t = c1 + t % 2 * TILE, *c2t = c2 + t % 2 * TILE;
        float s[M][COLS / 8][4] = {}, dp[M][COLS / 8][4] = {};
        UNROLL_2 for (int k = 0; k < HSP; k += 16) {
            add_columns<HSP, COLS, M>(s, r1, warp_row, c1t, k);
            add_columns<HSP, COLS, M>(dp, r2, warp_row, c2t, k);
        }
        if (some_hidden<COLS, M, KEYS>(first, t * COLS))
            hide_scores<COLS, M, KEYS>(s, first, t * COLS);
        score_gradients<COLS, M, KEYS>(s, dp, queries + (KEYS ? t % 2 * COLS : warp_row), scale);
        if constexpr (KEYS) add_scores_by_rows<HSP, COLS, M>(dv, s, c2t);
        add_scores_by_rows<HSP, COLS, M>(acc, dp, c1t);
    }
    bf16 *dst = g.dqkv + at + (ptrdiff_t)row0 * ld;
    scale *= LN2;
    UNROLL for (int m = 0; m < M; m++) {
        int row = warp_row + m * 16, left = T - row0;
        store_rows<HSP>(dst + (KEYS ? C : 0), ld, r1, acc[m], scale, scale, row, left, HS);
        if constexpr (KEYS) store_rows<HSP>(dst + 2 * C, ld, r2, dv[m], 1.0f, 1.0f, row, left, HS);
    }
}

// Allows a kernel the dynamic shared memory that it needs, at its first launch.
template <class... P> static void allow_shared(bool *allowed, void (*kernel)(P...), size_t bytes) {
    if (*allowed) return;
    *allowed = true;
    cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e != cudaSuccess)
        die("attention: expected %zu bytes of shared memory a block: %s", bytes,
            cudaGetErrorString(e));
}

template <int HSP, int COLS, int M>
static void forward_tensor_launch(bf16 *out, float *lse, const bf16 *qkv, size_t heads, int T,
                                  int NH, int HS, cudaStream_t stream) {
    const size_t ROWS = TENSOR_WARPS * 16 * M, bytes = (ROWS + 4 * COLS) * HSP * sizeof(bf16);
    static bool allowed;
    allow_shared(&allowed, attention_forward_tensor_kernel<HSP, COLS, M>, bytes);
    unsigned blocks = (unsigned)(blocks_for((size_t)T, ROWS) * heads);
    attention_forward_tensor_kernel<HSP, COLS, M>
        <<<blocks, TENSOR_THREADS, bytes, stream>>>(out, lse, qkv, T, NH, HS);
    launchCheck();
}

template <int HSP, int COLS, int M, bool KEYS>
static void backward_tensor_launch(const AttentionGradient *g, size_t heads, cudaStream_t stream) {
    const size_t ROWS = TENSOR_WARPS * 16 * M, bytes = (2 * ROWS + 4 * COLS) * HSP * sizeof(bf16) +
                                                       (KEYS ? 2 * COLS : ROWS) * sizeof(float2);
    static bool allowed;
    allow_shared(&allowed, attention_backward_tensor_kernel<HSP, COLS, M, KEYS>, bytes);
    unsigned blocks = (unsigned)(blocks_for((size_t)g->T, ROWS) * heads);
    attention_backward_tensor_kernel<HSP, COLS, M, KEYS>
        <<<blocks, TENSOR_THREADS, bytes, stream>>>(*g);
    launchCheck();
}

static void attention_forward_tensor(bf16 *out, float *lse, const bf16 *qkv, size_t heads, int T,
                                     int NH, int HS, cudaStream_t stream) {
    auto launch = HS <= 64   ? forward_tensor_launch<64, 32, 2>
                  : HS <= 80 ? forward_tensor_launch<80, 32, 2>
                  : HS <= 96 ? forward_tensor_launch<96, 32, 2>
                             : forward_tensor_launch<128, 32, 2>;
    launch(out, lse, qkv, heads, T, NH, HS, stream);
}

// 16 rows a warp for dK and dV of more than 64 channels: both stay in registers.
static void attention_backward_tensor(const AttentionGradient *g, size_t heads,
                                      cudaStream_t stream) {
    if (g->HS <= 64) {
        backward_tensor_launch<64, 32, 2, false>(g, heads, stream);
        backward_tensor_launch<64, 32, 2, true>(g, heads, stream);
    } else if (g->HS <= 80) {
        backward_tensor_launch<80, 32, 2, false>(g, heads, stream);
        backward_tensor_launch<80, 64, 1, true>(g, heads, stream);
    } else if (g->HS <= 96) {
        backward_tensor_launch<96, 32, 2, false>(g, heads, stream);
        backward_tensor_launch<96, 32, 1, true>(g, heads, stream);
    } else {
        backward_tensor_launch<128, 32, 2, false>(g, heads, stream);
        backward_tensor_launch<128, 32, 1, true>(g, heads, stream);
    }
}
