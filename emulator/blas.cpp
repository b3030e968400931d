// blas.cpp: cublasLtMatmul on the CPU, for what the program asks of it: fp32 and bf16 matrices
// in column-major order, fp32 compute, transposes, strided batches, bias, GELU and their
// gradients in the epilogue. Anything else is an error with a line that names it, never a guess.
//
//   D = epilogue(alpha * op(A) op(B) + beta * C),  op(A) m x k, op(B) k x n,
// with sums in fp32, in ascending k by blocks.
#include "core.h"
#include "counters.h"

#include <cstdio>
#include <cublasLt.h>

namespace emu {
namespace {

struct Descriptor {
    int32_t transA = CUBLAS_OP_N, transB = CUBLAS_OP_N;
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void *bias = nullptr, *aux = nullptr;
    int64_t aux_ld = 0;
    int32_t aux_type = -1, bias_type = -1;  // -1: that of D
    bool tf32 = false;                      // fp32 operands are rounded
};
struct Layout {
    cudaDataType type;
    uint64_t rows, cols;
    int64_t ld;
    int32_t batch = 1;
    int64_t stride = 0;  // elements between batches

    size_t element() const {
        return type == CUDA_R_32F ? 4 : 2;
    }
    size_t bytes() const {  // of one batch, from the first to the last element
        return ((size_t)(cols - 1) * (size_t)ld + (size_t)rows) * element();
    }
};
constexpr uint32_t DEFAULT_ALIGNMENT =
    256;  // what cuBLASLt's heuristic assumes of pointers unless told
struct Preference {
    uint64_t workspace = 0;
    uint32_t align[4] = {DEFAULT_ALIGNMENT, DEFAULT_ALIGNMENT, DEFAULT_ALIGNMENT,
                         DEFAULT_ALIGNMENT};  // A B C D
};
struct Algorithm {  // what cublasLtMatmulAlgo_t's opaque bytes hold
    uint64_t tag, workspace;
    uint32_t align[4], bias_align, aux_align;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t), "fits the opaque bytes");
constexpr uint64_t ALGORITHM_TAG = 0x656d75626c6173;

// What is read and written once the operation runs.
struct Matmul {
    Descriptor d;
    Layout a, b, c, o;
    const char *A, *B, *C;
    char *D;
    float alpha, beta;
    int m, n, k;
    std::string name;
};

cublasStatus_t unsupported(const char *what, long long value) {
    fprintf(stderr, "emulator: cublasLt: %s %lld is not supported\n", what, value);
    return CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t invalid(const std::string &what) {
    fprintf(stderr, "emulator: cublasLt: %s\n", what.c_str());
    return CUBLAS_STATUS_INVALID_VALUE;
}

bool has_bias(uint32_t e) {
    return e == CUBLASLT_EPILOGUE_BIAS || e == CUBLASLT_EPILOGUE_GELU_BIAS ||
           e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
bool has_gelu(uint32_t e) {
    return e == CUBLASLT_EPILOGUE_GELU || e == CUBLASLT_EPILOGUE_GELU_AUX ||
           e == CUBLASLT_EPILOGUE_GELU_BIAS || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
bool writes_aux(uint32_t e) {
    return e == CUBLASLT_EPILOGUE_GELU_AUX || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
bool has_dgelu(uint32_t e) {
    return e == CUBLASLT_EPILOGUE_DGELU || e == CUBLASLT_EPILOGUE_DGELU_BGRAD;
}
bool writes_bias(uint32_t e) {
    return e == CUBLASLT_EPILOGUE_DGELU_BGRAD || e == CUBLASLT_EPILOGUE_BGRADA ||
           e == CUBLASLT_EPILOGUE_BGRADB;
}
bool known_epilogue(uint32_t e) {
    return e == CUBLASLT_EPILOGUE_DEFAULT || has_bias(e) || has_gelu(e) || has_dgelu(e) ||
           writes_bias(e);
}
bool known_type(int type) {
    return type == CUDA_R_32F || type == CUDA_R_16BF;
}
size_t type_bytes(int type) {
    return type == CUDA_R_32F ? 4 : 2;
}

// ---- numbers -----------------------------------------------------------------------------------
float load(const void *p, int type, size_t i) {
    return type == CUDA_R_32F ? ((const float *)p)[i]
                              : __bfloat162float(((const __nv_bfloat16 *)p)[i]);
}
// TF32 keeps 10 bits of the mantissa.
float round_to_tf32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7f800000) != 0x7f800000) bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
    memcpy(&x, &bits, sizeof bits);
    return x;
}
void store(void *p, int type, size_t i, float x) {
    if (type == CUDA_R_32F)
        ((float *)p)[i] = x;
    else
        ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn(x);
}
constexpr float GELU_SCALE = 0.7978845608028654f;  // sqrt(2 / pi)
float gelu(float x) {
    return 0.5f * x * (1.0f + tanhf(GELU_SCALE * (x + 0.044715f * x * x * x)));
}
float gelu_slope(float x) {
    float t = tanhf(GELU_SCALE * (x + 0.044715f * x * x * x));
    return 0.5f * (1.0f + t) +
           0.5f * x * (1.0f - t * t) * GELU_SCALE * (1.0f + 3.0f * 0.044715f * x * x);
}

// A tile of C is MR x NR: MR rows as vectors, NR columns. Operands are packed in panels of
// that width, zero filled.
constexpr int VECTOR = 8, MR = 16, NR = 6, KB = 256;
typedef float Vector __attribute__((vector_size(4 * VECTOR)));

__attribute__((target_clones("avx2,fma", "default"))) void
tile(int k, const float *a, const float *b, float *c, size_t ldc) {
    static_assert(MR == 2 * VECTOR, "two vectors per column");
    Vector lo[NR] = {}, hi[NR] = {};
    for (int p = 0; p < k; p++, a += MR, b += NR) {
        Vector a_lo, a_hi;
        memcpy(&a_lo, a, sizeof a_lo);
        memcpy(&a_hi, a + VECTOR, sizeof a_hi);
#pragma GCC unroll 6
        for (int j = 0; j < NR; j++) {
            lo[j] += a_lo * b[j];
            hi[j] += a_hi * b[j];
        }
    }
#pragma GCC unroll 6
    for (int j = 0; j < NR; j++, c += ldc)
        for (int i = 0; i < VECTOR; i++) {
            c[i] += lo[j][i];
            c[i + VECTOR] += hi[j][i];
        }
}

// panel[p][i] = element (first + i, p) of a matrix whose element (i, p) is at i*row_step + p*k_step
void pack(float *panel, int width, int first, int limit, int k, const char *x, int type, bool tf32,
          size_t row_step, size_t k_step) {
    for (int p = 0; p < k; p++)
        for (int i = 0; i < width; i++) {
            size_t at = (size_t)(first + i) * row_step + (size_t)p * k_step;
            float value = first + i < limit ? load(x, type, at) : 0.0f;
            panel[p * width + i] = tf32 ? round_to_tf32(value) : value;
        }
}

int round_up(int x, int unit) {
    return (x + unit - 1) / unit * unit;
}

// sum (rounded-up m) x (rounded-up n), column-major with leading dimension ld, += op(A) op(B)
void multiply(const Matmul &g, const char *A, const char *B, std::vector<float> &sum, size_t ld) {
    bool ta = g.d.transA == CUBLAS_OP_T, tb = g.d.transB == CUBLAS_OP_T;
    size_t a_row = ta ? (size_t)g.a.ld : 1, a_k = ta ? 1 : (size_t)g.a.ld;
    size_t b_col = tb ? 1 : (size_t)g.b.ld, b_k = tb ? (size_t)g.b.ld : 1;
    int mp = round_up(g.m, MR), np = round_up(g.n, NR);
    std::vector<float> a_panels((size_t)mp * KB), b_panel((size_t)NR * KB);
    for (int k0 = 0; k0 < g.k; k0 += KB) {
        int k = std::min(KB, g.k - k0);
        const char *a = A + (size_t)k0 * a_k * g.a.element(),
                   *b = B + (size_t)k0 * b_k * g.b.element();
        for (int i = 0; i < mp; i += MR)
            pack(&a_panels[(size_t)i * KB], MR, i, g.m, k, a, g.a.type, g.d.tf32, a_row, a_k);
        for (int j = 0; j < np; j += NR) {
            pack(b_panel.data(), NR, j, g.n, k, b, g.b.type, g.d.tf32, b_col, b_k);
            for (int i = 0; i < mp; i += MR)
                tile(k, &a_panels[(size_t)i * KB], b_panel.data(), &sum[(size_t)j * ld + (size_t)i],
                     ld);
        }
    }
}

// ---- epilogue ----------------------------------------------------------------------------------
void finish(const Matmul &g, const char *C, char *D, const std::vector<float> &sum, size_t ld) {
    uint32_t e = g.d.epilogue;
    int bias_type = g.d.bias_type < 0 ? g.o.type : g.d.bias_type,
        aux_type = g.d.aux_type < 0 ? g.o.type : g.d.aux_type;
    std::vector<double> row_sum(writes_bias(e) ? (size_t)g.m : 0);
    for (int j = 0; j < g.n; j++)
        for (int i = 0; i < g.m; i++) {
            float x = g.alpha * sum[(size_t)j * ld + (size_t)i];
            if (g.beta != 0)
                x += g.beta * load(C, g.c.type, (size_t)j * (size_t)g.c.ld + (size_t)i);
            if (has_bias(e)) x += load(g.d.bias, bias_type, (size_t)i);
            size_t aux_at = (size_t)j * (size_t)g.d.aux_ld + (size_t)i;
            if (writes_aux(e)) store(g.d.aux, aux_type, aux_at, x);
            if (has_gelu(e)) x = gelu(x);
            if (has_dgelu(e)) x *= gelu_slope(load(g.d.aux, aux_type, aux_at));
            if (e == CUBLASLT_EPILOGUE_DGELU_BGRAD) row_sum[(size_t)i] += x;
            store(D, g.o.type, (size_t)j * (size_t)g.o.ld + (size_t)i, x);
        }
    if (e == CUBLASLT_EPILOGUE_DGELU_BGRAD)
        for (int i = 0; i < g.m; i++)
            store(g.d.bias, bias_type, (size_t)i, (float)row_sum[(size_t)i]);
}

// BGRADA: row sums of op(A); BGRADB: column sums of op(B); both over k
void input_bias_gradient(const Matmul &g) {
    bool of_a = g.d.epilogue == CUBLASLT_EPILOGUE_BGRADA;
    const Layout &l = of_a ? g.a : g.b;
    bool outer_is_row = of_a == (((of_a ? g.d.transA : g.d.transB)) == CUBLAS_OP_N);
    size_t outer_step = outer_is_row ? 1 : (size_t)l.ld, k_step = outer_is_row ? (size_t)l.ld : 1;
    int bias_type = g.d.bias_type < 0 ? g.o.type : g.d.bias_type;
    for (int i = 0; i < (of_a ? g.m : g.n); i++) {
        double x = 0;
        for (int p = 0; p < g.k; p++)
            x += load(of_a ? g.A : g.B, l.type, (size_t)i * outer_step + (size_t)p * k_step);
        store(g.d.bias, bias_type, (size_t)i, (float)x);
    }
}

void check_ranges(const Matmul &g, size_t batch) {
    const char *name = g.name.c_str();
    auto at = [batch](const char *p, const Layout &l) {
        return p + batch * (size_t)l.stride * l.element();
    };
    device_range(name, at(g.A, g.a), g.a.bytes(), false);
    device_range(name, at(g.B, g.b), g.b.bytes(), false);
    if (g.beta != 0) device_range(name, at(g.C, g.c), g.c.bytes(), false);
    int aux_type = g.d.aux_type < 0 ? g.o.type : g.d.aux_type,
        bias_type = g.d.bias_type < 0 ? g.o.type : g.d.bias_type;
    size_t bias_bytes =
        type_bytes(bias_type) * (size_t)(g.d.epilogue == CUBLASLT_EPILOGUE_BGRADB ? g.n : g.m);
    size_t aux_bytes =
        type_bytes(aux_type) * ((size_t)(g.n - 1) * (size_t)g.d.aux_ld + (size_t)g.m);
    if (has_bias(g.d.epilogue)) device_range(name, g.d.bias, bias_bytes, false);
    if (has_dgelu(g.d.epilogue)) device_range(name, g.d.aux, aux_bytes, false);
    device_range(name, at(g.D, g.o), g.o.bytes(), true);
    if (writes_aux(g.d.epilogue)) device_range(name, g.d.aux, aux_bytes, true);
    if (writes_bias(g.d.epilogue)) device_range(name, g.d.bias, bias_bytes, true);
}

// Written, so far as others are concerned. Its ends stand for the whole, which is large: two
// operations on unordered streams that share a workspace meet at its beginning.
void note_workspace(const Matmul &g, char *workspace, size_t bytes) {
    if (!bytes) return;
    device_range(g.name.c_str(), workspace, std::min(bytes, (size_t)4096), true);
    device_range(g.name.c_str(), workspace + bytes - 1, 1, true);
}

void run(const Matmul &g) {
    size_t ld = (size_t)round_up(g.m, MR);
    std::vector<float> sum(ld * (size_t)round_up(g.n, NR));
    for (int batch = 0; batch < g.o.batch; batch++) {
        check_ranges(g, (size_t)batch);
        auto step = [batch](const Layout &l) {
            return (size_t)batch * (size_t)l.stride * l.element();
        };
        std::fill(sum.begin(), sum.end(), 0.0f);
        multiply(g, g.A + step(g.a), g.B + step(g.b), sum, ld);
        finish(g, g.C + step(g.c), g.D + step(g.o), sum, ld);
    }
    if (g.d.epilogue == CUBLASLT_EPILOGUE_BGRADA || g.d.epilogue == CUBLASLT_EPILOGUE_BGRADB)
        input_bias_gradient(g);
    check_red_zones(g.name.c_str());
}

// ---- checks at the call ------------------------------------------------------------------------
cublasStatus_t check(const Descriptor &d, const Layout &a, const Layout &b, const Layout &c,
                     const Layout &o) {
    if (!known_epilogue(d.epilogue)) return unsupported("epilogue", d.epilogue);
    bool same_inputs = a.type == b.type, mixed = a.type == CUDA_R_16BF && o.type == CUDA_R_32F;
    if (!same_inputs || c.type != o.type || !(a.type == o.type || mixed))
        return unsupported("combination of types with D", o.type);
    auto rows = [](const Layout &l, int trans) { return trans == CUBLAS_OP_N ? l.rows : l.cols; };
    auto cols = [](const Layout &l, int trans) { return trans == CUBLAS_OP_N ? l.cols : l.rows; };
    uint64_t k = cols(a, d.transA);
    if (rows(a, d.transA) != o.rows || cols(b, d.transB) != o.cols || rows(b, d.transB) != k ||
        c.rows != o.rows || c.cols != o.cols)
        return invalid(
            text("shapes do not fit: op(A) %lu x %lu, op(B) %lu x %lu, C %lu x %lu, D %lu x %lu",
                 rows(a, d.transA), k, rows(b, d.transB), cols(b, d.transB), c.rows, c.cols, o.rows,
                 o.cols));
    for (const Layout *l : {&a, &b, &c, &o})
        if (l->ld < (int64_t)l->rows || l->batch != o.batch || l->batch < 1 || l->rows < 1 ||
            l->cols < 1)
            return invalid(
                "a layout is empty, or its leading dimension or batch count does not fit");
    bool aux = writes_aux(d.epilogue) || has_dgelu(d.epilogue);
    if (aux && (d.aux_ld % 8 || d.aux_ld < (int64_t)o.rows))
        return invalid(
            text("epilogue aux: leading dimension %ld must be a multiple of 8 and at least %lu",
                 (long)d.aux_ld, o.rows));
    if (d.epilogue != CUBLASLT_EPILOGUE_DEFAULT && o.batch > 1)
        return unsupported("batched matmul with epilogue", d.epilogue);
    if (d.aux_type >= 0 && d.aux_type != o.type) return unsupported("aux type", d.aux_type);
    if (d.bias_type >= 0 && d.bias_type != o.type && d.bias_type != a.type)
        return unsupported("bias type", d.bias_type);
    return CUBLAS_STATUS_SUCCESS;
}

// What a heuristic concludes from an epilogue pointer; NULL counts as aligned to anything.
uint32_t alignment_of(const void *p) {
    size_t lowest_bit = (size_t)p & -(size_t)p;
    return p && lowest_bit < DEFAULT_ALIGNMENT ? (uint32_t)lowest_bit : DEFAULT_ALIGNMENT;
}

cublasStatus_t check_epilogue_pointers(const Descriptor &d, const Algorithm &algorithm) {
    bool bias = has_bias(d.epilogue) || writes_bias(d.epilogue);
    bool aux = writes_aux(d.epilogue) || has_dgelu(d.epilogue);
    if (bias && (!d.bias || (size_t)d.bias % algorithm.bias_align))
        return invalid(
            text("bias = %p is NULL or not aligned to %u bytes, which the heuristic saw (a NULL "
                 "pointer counts as aligned to %u)",
                 d.bias, algorithm.bias_align, DEFAULT_ALIGNMENT));
    if (aux && (!d.aux || (size_t)d.aux % std::max(algorithm.aux_align, 16u)))
        return invalid(
            text("aux = %p is NULL or not aligned to %u bytes, which the heuristic saw (a NULL "
                 "pointer counts as aligned to %u; at least 16 is needed)",
                 d.aux, algorithm.aux_align, DEFAULT_ALIGNMENT));
    return CUBLAS_STATUS_SUCCESS;
}

// True: it need not run.
bool count_product(const Matmul &g, cudaStream_t stream) {
    CountedLaunch p = {};
    bool accumulates = g.beta != 0;
    p.kernel = text("product %dx%dx%d %zu->%zu bytes%s%s", g.m, g.n, g.k, type_bytes(g.a.type),
                    type_bytes(g.o.type), g.d.epilogue == CUBLASLT_EPILOGUE_DEFAULT ? "" : " fused",
                    accumulates ? " added" : "");
    p.product = {g.m,
                 g.n,
                 g.k,
                 (int)type_bytes(g.a.type),
                 (int)type_bytes(g.o.type),
                 (int)g.d.epilogue,
                 accumulates};
    p.stream = stream;
    p.times = 1;
    return counters->product(p);
}

}  // namespace
}  // namespace emu

using namespace emu;

#define MAY_FAIL(code)                                                                             \
    if (int error = injected_failure(__func__, code)) return (cublasStatus_t)error
#define TAKE(field)                                                                                \
    do {                                                                                           \
        if (bytes != sizeof(field))                                                                \
            return invalid(text("attribute %d: size %zu", (int)attribute, bytes));                 \
        memcpy(&(field), value, bytes);                                                            \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    } while (0)

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    MAY_FAIL(CUBLAS_STATUS_NOT_INITIALIZED);
    *handle = (cublasLtHandle_t) new char;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    delete (char *)handle;
    return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() {
    return CUBLAS_VERSION;
}
const char *cublasLtGetStatusName(cublasStatus_t status) {
#define NAME(s)                                                                                    \
    if (status == s) return #s;
    NAME(CUBLAS_STATUS_SUCCESS)
    NAME(CUBLAS_STATUS_NOT_INITIALIZED)
    NAME(CUBLAS_STATUS_ALLOC_FAILED)
    NAME(CUBLAS_STATUS_INVALID_VALUE)
    NAME(CUBLAS_STATUS_ARCH_MISMATCH)
    NAME(CUBLAS_STATUS_EXECUTION_FAILED)
    NAME(CUBLAS_STATUS_INTERNAL_ERROR)
    NAME(CUBLAS_STATUS_NOT_SUPPORTED)
    return "CUBLAS_STATUS_UNKNOWN";
}
const char *cublasLtGetStatusString(cublasStatus_t status) {
    return cublasLtGetStatusName(status);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    MAY_FAIL(CUBLAS_STATUS_ALLOC_FAILED);
    if (compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_FAST_TF32)
        return unsupported("compute type", compute);
    if (scale != CUDA_R_32F) return unsupported("scale type", scale);
    Descriptor *made = new Descriptor;
    made->tf32 = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    *d = (cublasLtMatmulDesc_t)made;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
    delete (Descriptor *)d;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes) {
    MAY_FAIL(CUBLAS_STATUS_INVALID_VALUE);
    Descriptor *d = (Descriptor *)desc;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        TAKE(d->transA);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        TAKE(d->transB);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        TAKE(d->epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        TAKE(d->bias);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        TAKE(d->bias_type);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        TAKE(d->aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        TAKE(d->aux_ld);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
        TAKE(d->aux_type);
    default:
        return unsupported("matmul attribute", attribute);
    }
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
    MAY_FAIL(CUBLAS_STATUS_ALLOC_FAILED);
    if (!known_type(type)) return unsupported("matrix type", type);
    *l = (cublasLtMatrixLayout_t) new Layout{type, rows, cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
    delete (Layout *)l;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t bytes) {
    Layout *l = (Layout *)layout;
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        TAKE(l->batch);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        TAKE(l->stride);
    default:
        return unsupported("layout attribute", attribute);
    }
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p) {
    MAY_FAIL(CUBLAS_STATUS_ALLOC_FAILED);
    *p = (cublasLtMatmulPreference_t) new Preference;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
    delete (Preference *)p;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes) {
    Preference *p = (Preference *)preference;
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        TAKE(p->workspace);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        TAKE(p->align[0]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        TAKE(p->align[1]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        TAKE(p->align[2]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        TAKE(p->align[3]);
    default:
        return unsupported("preference", attribute);
    }
}

// One result. It claims the whole workspace it was offered, so that the program
// must pass one as large.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t o,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int *found) {
    MAY_FAIL(CUBLAS_STATUS_NOT_SUPPORTED);
    *found = 0;
    if (wanted < 1) return invalid("no room for a heuristic result");
    cublasStatus_t status =
        check(*(Descriptor *)d, *(Layout *)a, *(Layout *)b, *(Layout *)c, *(Layout *)o);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    const Preference *p = (const Preference *)preference;
    Algorithm algorithm = {ALGORITHM_TAG,
                           p->workspace,
                           {p->align[0], p->align[1], p->align[2], p->align[3]},
                           alignment_of(((Descriptor *)d)->bias),
                           alignment_of(((Descriptor *)d)->aux)};
    memset(&results[0], 0, sizeof results[0]);
    memcpy(&results[0].algo, &algorithm, sizeof algorithm);
    results[0].workspaceSize = p->workspace;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    results[0].wavesCount = 1.0f;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t a, const void *B,
                              cublasLtMatrixLayout_t b, const void *beta, const void *C,
                              cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t o,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
    MAY_FAIL(CUBLAS_STATUS_EXECUTION_FAILED);
    Matmul g = {*(Descriptor *)desc,
                *(Layout *)a,
                *(Layout *)b,
                *(Layout *)c,
                *(Layout *)o,
                (const char *)A,
                (const char *)B,
                (const char *)C,
                (char *)D,
                *(const float *)alpha,
                *(const float *)beta,
                0,
                0,
                0,
                ""};
    cublasStatus_t status = check(g.d, g.a, g.b, g.c, g.o);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    g.m = (int)g.o.rows;
    g.n = (int)g.o.cols;
    g.k = (int)(g.d.transA == CUBLAS_OP_N ? g.a.cols : g.a.rows);
    g.name = text("cublasLtMatmul m=%d n=%d k=%d", g.m, g.n, g.k);
    Algorithm algorithm{
        ALGORITHM_TAG, 0, {1, 1, 1, 1}, 1, 1};  // none given: chosen for these pointers
    if (algo) memcpy(&algorithm, algo, sizeof algorithm);
    if (algorithm.tag != ALGORITHM_TAG) return invalid("an algorithm that no heuristic gave");
    status = check_epilogue_pointers(g.d, algorithm);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    const void *operand[4] = {A, B, C, D};
    for (int i = 0; i < 4; i++)
        if (operand[i] && (size_t)operand[i] % algorithm.align[i])
            return invalid(
                text("%c = %p is not aligned to %u bytes, which the algorithm was chosen for",
                     "ABCD"[i], operand[i], algorithm.align[i]));
    if (algorithm.workspace > workspace_bytes)
        return invalid(text("workspace of %zu bytes, the algorithm needs %lu", workspace_bytes,
                            (unsigned long)algorithm.workspace));
    if (counters && count_product(g, stream)) return CUBLAS_STATUS_SUCCESS;
    enqueue(stream_of(stream), {g.name,
                                [g, workspace, workspace_bytes] {
                                    note_workspace(g, (char *)workspace, workspace_bytes);
                                    run(g);
                                },
                                nullptr,
                                {},
                                {}});
    return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
