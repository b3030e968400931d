// cpu/gemm.h: one small matrix product on one thread, C (m,n) fp32 = or += A (m,k) B (k,n), A of
// floatX and B packed. The ops cut their products into tiles of fixed size and share the tiles out
// among OpenMP threads, so that the bits do not depend on the number of threads (a library's own
// threading changes them for some shapes). oneDNN makes the product (dnnl.h, 2.x or 3.x), CBLAS
// where oneDNN is not built in, plain loops where neither is; where bf16 products are missing,
// operands are widened to fp32.
//
// B is packed as oneDNN's fastest kernels want it (they would copy it so at every call): blocks of
// BLOCK columns, one after the other; in a block k rows of BLOCK elements, bf16 as pairs of rows
// (b[k][j], b[k+1][j]). Columns beyond n, and rows up to packed_rows(k), are zero.
#pragma once

#include "products.h"
#include "workspace.h"

#if defined(USE_ONEDNN)
#include <dnnl.h>
#elif defined(USE_CBLAS)
#include <cblas.h>
#endif

enum { BLOCK = 64 };

// Whether the library multiplies packed floatX here. If not, B is packed as fp32, without pairs.
static bool packed_native;

static inline bool packed_in_pairs(void) {
    return sizeof(floatX) == 2 && packed_native;
}

static inline size_t packed_rows(int k) {
    return round_up((size_t)k, packed_in_pairs() ? 32 : 16);
}

static inline size_t packed_element(void) {
    return packed_native ? sizeof(floatX) : sizeof(float);
}

// Columns, rounded up to whole blocks.
static inline int whole_blocks(int n) {
    return (int)round_up((size_t)n, BLOCK);
}

// Bytes of a packed B (k, n); also how far column n is from column 0, if it
// is the first of a block.
static inline size_t packed_bytes(int k, int n) {
    return packed_rows(k) * (size_t)whole_blocks(n) * packed_element();
}

typedef struct {
    int m, n, k;  // n is a multiple of BLOCK; rows of A and C have no gaps
    bool add;     // C += instead of C =
} Product;

// Room a product may use: oneDNN's scratchpad or the widened A.
enum { GEMM_ROOM = 2 << 20 };

// To be called by every thread at the start of a parallel region that makes products: keeps a
// library from starting threads of its own when the region has one thread only.
// Ends with the region.
static inline void gemm_one_thread(void) {
    omp_set_num_threads(1);
}

static inline void widen(float *dst, const floatX *src, int rows, int cols, size_t ld) {
    for (int i = 0; i < rows; i++) {
#pragma omp simd
        for (int j = 0; j < cols; j++) dst[(size_t)i * cols + j] = to_float(src[i * ld + j]);
    }
}

#if !defined(USE_ONEDNN) && !defined(USE_CBLAS)
// Rows and columns of C that are summed up in registers.
enum { PLAIN_ROWS = 4, PLAIN_COLS = 16 };

// `rows` rows and PLAIN_COLS columns of the block's product.
static inline void plain_tile(int rows, int k, bool add, const float *A, size_t lda, const float *B,
                              float *C, size_t ldc) {
    float sum[PLAIN_ROWS][PLAIN_COLS] = {};
    for (int l = 0; l < k; l++)
        for (int i = 0; i < rows; i++) {
#pragma omp simd
            for (int j = 0; j < PLAIN_COLS; j++)
                sum[i][j] += A[(size_t)i * lda + (size_t)l] * B[(size_t)l * BLOCK + (size_t)j];
        }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < PLAIN_COLS; j++)
            C[(size_t)i * ldc + (size_t)j] =
                sum[i][j] + (add ? C[(size_t)i * ldc + (size_t)j] : 0.0f);
}
#endif

// C (m, BLOCK), rows ldc apart, = or += A (m, k) B (k, BLOCK)
static inline void sgemm_block(int m, int k, bool add, const float *A, size_t lda, const float *B,
                               float *C, size_t ldc) {
#if defined(USE_ONEDNN)
    float beta = add ? 1.0f : 0.0f;
    if (dnnl_sgemm('N', 'N', m, BLOCK, k, 1.0f, A, (dnnl_dim_t)lda, B, BLOCK, beta, C,
                   (dnnl_dim_t)ldc) != dnnl_success)
        die("dnnl_sgemm failed on a product of %d x %d x %d", m, BLOCK, k);
#elif defined(USE_CBLAS)
    float beta = add ? 1.0f : 0.0f;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, BLOCK, k, 1.0f, A, (int)lda, B, BLOCK,
                beta, C, (int)ldc);
#else
    int i = 0;
    for (; i + PLAIN_ROWS <= m; i += PLAIN_ROWS)  // a constant count unrolls
        for (int j = 0; j < BLOCK; j += PLAIN_COLS)
            plain_tile(PLAIN_ROWS, k, add, A + (size_t)i * lda, lda, B + j,
                       C + (size_t)i * ldc + (size_t)j, ldc);
    for (int j = 0; i < m && j < BLOCK; j += PLAIN_COLS)
        plain_tile(m - i, k, add, A + (size_t)i * lda, lda, B + j, C + (size_t)i * ldc + (size_t)j,
                   ldc);
#endif
}

// The product in fp32; A is widened in pieces along k that fit the room.
static void gemm_fp32(const Product *p, Room room, const floatX *A, const float *B, float *C) {
    const bool widening = sizeof(floatX) != sizeof(float);
    const int fits = widening ? GEMM_ROOM / (int)sizeof(float) / p->m : p->k;
    float *wide = widening ? (float *)room_take(&room, GEMM_ROOM) : NULL;
    for (int k0 = 0; k0 < p->k; k0 += fits) {
        const int k = p->k - k0 < fits ? p->k - k0 : fits;
        if (widening) widen(wide, A + k0, p->m, k, (size_t)p->k);
        const float *a = widening ? wide : (const float *)(const void *)A;
        for (int j = 0; j < p->n; j += BLOCK)
            sgemm_block(p->m, k, p->add || k0 > 0, a, (size_t)k,
                        B + packed_rows(p->k) * j + (size_t)k0 * BLOCK, C + j, (size_t)p->n);
    }
}

#ifdef USE_ONEDNN
// A primitive and, for each thread, the memory objects of A, B, C and the scratchpad.
enum { PLAN_A, PLAN_B, PLAN_C, PLAN_SCRATCH, PLAN_MEMORIES };
typedef struct GemmPlan {
    Product key;
    dnnl_primitive_t primitive;
    dnnl_memory_t (*memory)[PLAN_MEMORIES];  // one row a thread
    bool user_scratch;                       // the scratchpad fits GEMM_ROOM and is ours
} GemmPlan;

enum { PLANS = 4096 };  // a power of two
static struct {
    dnnl_engine_t engine;
    dnnl_stream_t stream;   // on a CPU it holds no state
    GemmPlan *plan[PLANS];  // open addressing; filled, never emptied before ops_destroy
    int count;
} gemm;

static void gemm_check(dnnl_status_t s, const char *call) {
    if (s != dnnl_success) die("oneDNN: %s returned %d", call, (int)s);
}
#define DNNL(call) gemm_check(call, #call)

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t MatrixDesc;
typedef const_dnnl_memory_desc_t MatrixDescRef;
static MatrixDescRef desc_ref(const MatrixDesc *d) {
    return *d;
}
static void desc_destroy(MatrixDesc *d) {
    DNNL(dnnl_memory_desc_destroy(*d));
}
#else
typedef dnnl_memory_desc_t MatrixDesc;
typedef const dnnl_memory_desc_t *MatrixDescRef;
static MatrixDescRef desc_ref(const MatrixDesc *d) {
    return d;
}
static void desc_destroy(MatrixDesc *d) {
    (void)d;
}
#endif

static void desc_create(MatrixDesc *d, int rows, int cols, dnnl_data_type_t type,
                        dnnl_format_tag_t tag) {
    dnnl_dims_t dims = {rows, cols};
#if DNNL_VERSION_MAJOR >= 3
    DNNL(dnnl_memory_desc_create_with_tag(d, 2, dims, type, tag));
#else
    DNNL(dnnl_memory_desc_init_by_tag(d, 2, dims, type, tag));
#endif
}

// The memory of A, B and C of a product of `type`, B packed.
static void desc_create_product(MatrixDesc d[3], const Product *p, dnnl_data_type_t type) {
    desc_create(&d[PLAN_A], p->m, p->k, type, dnnl_ab);
    desc_create(&d[PLAN_B], p->k, p->n, type, type == dnnl_f32 ? dnnl_BA16a64b : dnnl_BA16a64b2a);
    desc_create(&d[PLAN_C], p->m, p->n, dnnl_f32, dnnl_ab);
}

static dnnl_primitive_desc_t plan_describe(const MatrixDesc d[3], bool add, bool user_scratch) {
    dnnl_primitive_attr_t attr;
    DNNL(dnnl_primitive_attr_create(&attr));
    if (user_scratch)
        DNNL(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user));
    if (add) {
        dnnl_post_ops_t ops;
        DNNL(dnnl_post_ops_create(&ops));
#if DNNL_VERSION_MAJOR >= 3
        DNNL(dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef));
#else
        DNNL(dnnl_post_ops_append_sum(ops, 1.0f));
#endif
        DNNL(dnnl_primitive_attr_set_post_ops(attr, ops));
        DNNL(dnnl_post_ops_destroy(ops));
    }
    dnnl_primitive_desc_t pd;
#if DNNL_VERSION_MAJOR >= 3
    DNNL(dnnl_matmul_primitive_desc_create(&pd, gemm.engine, d[PLAN_A], d[PLAN_B], NULL, d[PLAN_C],
                                           attr));
#else
    dnnl_matmul_desc_t op;
    DNNL(dnnl_matmul_desc_init(&op, &d[PLAN_A], &d[PLAN_B], NULL, &d[PLAN_C]));
    DNNL(dnnl_primitive_desc_create(&pd, &op, attr, gemm.engine, NULL));
#endif
    DNNL(dnnl_primitive_attr_destroy(attr));
    return pd;
}

static GemmPlan *plan_create(const Product *p) {
    int threads = omp_get_max_threads();
    omp_set_num_threads(1);  // the primitive is made for one thread
    GemmPlan *plan = (GemmPlan *)calloc(1, sizeof *plan);
    plan->key = *p;
    dnnl_data_type_t type = sizeof(floatX) == 2 ? dnnl_bf16 : dnnl_f32;
    MatrixDesc d[3];
    desc_create_product(d, p, type);
    dnnl_primitive_desc_t pd = plan_describe(d, p->add, true);
    MatrixDescRef scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    plan->user_scratch = dnnl_memory_desc_get_size(scratch) <= GEMM_ROOM;
    if (!plan->user_scratch) {
        DNNL(dnnl_primitive_desc_destroy(pd));
        pd = plan_describe(d, p->add, false);
    }
    DNNL(dnnl_primitive_create(&plan->primitive, pd));
    plan->memory =
        (dnnl_memory_t(*)[PLAN_MEMORIES])calloc((size_t)workspace.threads, sizeof *plan->memory);
    for (int t = 0; t < workspace.threads; t++) {
        for (int i = 0; i < 3; i++)
            DNNL(dnnl_memory_create(&plan->memory[t][i], desc_ref(&d[i]), gemm.engine, NULL));
        if (plan->user_scratch)
            DNNL(dnnl_memory_create(&plan->memory[t][PLAN_SCRATCH], scratch, gemm.engine, NULL));
    }
    for (int i = 0; i < 3; i++) desc_destroy(&d[i]);
    DNNL(dnnl_primitive_desc_destroy(pd));
    omp_set_num_threads(threads);
    return plan;
}

static void plan_destroy(GemmPlan *plan) {
    for (int t = 0; t < workspace.threads; t++)
        for (int i = 0; i < PLAN_MEMORIES; i++)
            if (plan->memory[t][i]) DNNL(dnnl_memory_destroy(plan->memory[t][i]));
    DNNL(dnnl_primitive_destroy(plan->primitive));
    free(plan->memory);
    free(plan);
}

static inline bool product_equal(const Product *a, const Product *b) {
    return a->m == b->m && a->n == b->n && a->k == b->k && a->add == b->add;
}

static inline size_t product_hash(const Product *p) {
    uint64_t h = (uint64_t)p->m * 0x9e3779b97f4a7c15u + (uint64_t)p->n;
    h = h * 0x9e3779b97f4a7c15u + (uint64_t)p->k;
    h = h * 0x9e3779b97f4a7c15u + (uint64_t)p->add;
    return (size_t)(h >> 40);
}

// The slot of the plan for p, or the empty one where it belongs.
static inline GemmPlan **plan_slot(const Product *p) {
    for (size_t i = product_hash(p);; i++) {
        GemmPlan **slot = &gemm.plan[i & (PLANS - 1)];
        GemmPlan *plan = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
        if (!plan || product_equal(&plan->key, p)) return slot;
    }
}

// Plans are made when first needed, in the first step; later steps only look them up.
static GemmPlan *plan_get(const Product *p) {
    GemmPlan *plan = __atomic_load_n(plan_slot(p), __ATOMIC_ACQUIRE);
    if (plan) return plan;
#pragma omp critical(gemm_plans)
    {
        GemmPlan **slot = plan_slot(p);
        if (!*slot) {
            if (++gemm.count > PLANS / 2)
                die("ops: expected at most %d different matrix products, found more", PLANS / 2);
            __atomic_store_n(slot, plan_create(p), __ATOMIC_RELEASE);
        }
        plan = *slot;
    }
    return plan;
}

static void gemm_planned(const Product *p, int thread, Room room, const floatX *A, const void *B,
                         float *C) {
    GemmPlan *plan = plan_get(p);
    dnnl_memory_t *m = plan->memory[thread];
    DNNL(dnnl_memory_set_data_handle(m[PLAN_A], (void *)A));
    DNNL(dnnl_memory_set_data_handle(m[PLAN_B], (void *)B));
    DNNL(dnnl_memory_set_data_handle(m[PLAN_C], C));
    dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, m[PLAN_A]},
                              {DNNL_ARG_WEIGHTS, m[PLAN_B]},
                              {DNNL_ARG_DST, m[PLAN_C]},
                              {DNNL_ARG_SCRATCHPAD, m[PLAN_SCRATCH]}};
    if (plan->user_scratch)
        DNNL(dnnl_memory_set_data_handle(m[PLAN_SCRATCH], room_take(&room, GEMM_ROOM)));
    DNNL(dnnl_primitive_execute(plan->primitive, gemm.stream, plan->user_scratch ? 4 : 3, args));
}

// Whether this processor's kernel for a matrix product is the one B is packed for.
static bool gemm_has_packed_kernel(void) {
    const Product p = {BLOCK, BLOCK, BLOCK, false};
    if (sizeof(floatX) == 2 && products_of_bf16() == PRODUCTS_WIDENED) return false;
    MatrixDesc d[3];
    desc_create_product(d, &p, sizeof(floatX) == 2 ? dnnl_bf16 : dnnl_f32);
    dnnl_primitive_desc_t pd = plan_describe(d, false, false);
    const char *kernel = "";
    DNNL(dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &kernel));
    const bool found = strncmp(kernel, "brg", 3) == 0;
    DNNL(dnnl_primitive_desc_destroy(pd));
    for (int i = 0; i < 3; i++) desc_destroy(&d[i]);
    return found;
}

static void gemm_init(void) {
    DNNL(dnnl_engine_create(&gemm.engine, dnnl_cpu, 0));
    DNNL(dnnl_stream_create(&gemm.stream, gemm.engine, dnnl_stream_default_flags));
    packed_native = gemm_has_packed_kernel();
}

static void gemm_destroy(void) {
    for (int i = 0; i < PLANS; i++)
        if (gemm.plan[i]) plan_destroy(gemm.plan[i]);
    DNNL(dnnl_stream_destroy(gemm.stream));
    DNNL(dnnl_engine_destroy(gemm.engine));
    memset(&gemm, 0, sizeof gemm);
}
#else
static void gemm_init(void) {}
static void gemm_destroy(void) {}
#endif

// C = or += A B, on the calling thread, which owns part `thread` of the workspace; `room` is what
// is left of that part.
static inline void gemm_run(const Product *p, int thread, Room room, const floatX *A, const void *B,
                            float *C) {
#ifdef USE_ONEDNN
    if (packed_native) {
        gemm_planned(p, thread, room, A, B, C);
        return;
    }
#else
    (void)thread;
#endif
    gemm_fp32(p, room, A, (const float *)B, C);
}
