// kernels/matmul.cuh: matrix products by cuBLASLt, see ../ops.h. Biases, their gradients and GELU's
// derivative are fused into the product's end; GELU itself is a kernel of its own, so that it is
// the same bits when it is recomputed. Descriptors and the chosen algorithm are made once for a
// shape and kept.
//
// cuBLASLt counts columns first: a row-major (rows, C) array is its C x rows matrix.
//   forward          out (Cout x rows) = weight^T (Cout x Cin) * inp (Cin x rows)
//   backward input   dinp (Cin x rows) = weight (Cin x Cout) * dout (Cout x rows)
//   backward weight  dweight (Cin x Cout, fp32) = inp (Cin x rows) * dout^T (rows x Cout)
#pragma once

#include "columns.cuh"
#include "gelu.cuh"

#include <cublasLt.h>

#define cublasCheck(call)                                                                          \
    do {                                                                                           \
        cublasStatus_t e_ = (call);                                                                \
        if (e_ != CUBLAS_STATUS_SUCCESS)                                                           \
            die("%s:%d: %s: %s", __FILE__, __LINE__, #call, cublasLtGetStatusString(e_));          \
    } while (0)

typedef enum { PRODUCT_FORWARD, PRODUCT_BACKWARD_INPUT, PRODUCT_BACKWARD_WEIGHT } ProductKind;

typedef struct {
    ProductKind kind;
    int rows, Cin, Cout;
    bool fused;  // with bias, GELU's derivative (backward input) or the bias's gradient (weight)
} ProductKey;

typedef struct {
    ProductKey key;
    bool possible;  // false: no algorithm does this with the fused end
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
} Product;

static struct {
    cublasLtHandle_t handle;
    cublasComputeType_t compute;
    void *workspace;
    Product *made;
    int count, room;
} products;

// tf32: operands in fp32 are rounded to TF32 (cuBLAS documentation, cublasComputeType_t).
static void products_init(void *room, bool tf32) {
    cublasCheck(cublasLtCreate(&products.handle));
    products.compute = tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    products.workspace = room;
    products.made = NULL;
    products.count = products.room = 0;
}

static void products_destroy(void) {
    for (int i = 0; i < products.count; i++) {
        Product *p = &products.made[i];
        cublasCheck(cublasLtMatrixLayoutDestroy(p->a));
        cublasCheck(cublasLtMatrixLayoutDestroy(p->b));
        cublasCheck(cublasLtMatrixLayoutDestroy(p->c));
        cublasCheck(cublasLtMatmulDescDestroy(p->desc));
    }
    free(products.made);
    cublasCheck(cublasLtDestroy(products.handle));
}

static void set_desc(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what,
                     const void *value, size_t bytes) {
    cublasCheck(cublasLtMatmulDescSetAttribute(desc, what, value, bytes));
}

static cublasLtMatrixLayout_t layout(cudaDataType_t type, int rows, int cols) {
    cublasLtMatrixLayout_t l;
    cublasCheck(cublasLtMatrixLayoutCreate(&l, type, (uint64_t)rows, (uint64_t)cols, rows));
    return l;
}

static void describe_product(Product *p) {
    const ProductKey *k = &p->key;
    cudaDataType_t type = sizeof(floatX) == 2 ? CUDA_R_16BF : CUDA_R_32F;
    cublasOperation_t yes = CUBLAS_OP_T, no = CUBLAS_OP_N;
    cublasCheck(cublasLtMatmulDescCreate(&p->desc, products.compute, CUDA_R_32F));
    set_desc(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, k->kind == PRODUCT_FORWARD ? &yes : &no,
             sizeof yes);
    set_desc(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, k->kind == PRODUCT_BACKWARD_WEIGHT ? &yes : &no,
             sizeof yes);
    switch (k->kind) {
    case PRODUCT_FORWARD:
        p->a = layout(type, k->Cin, k->Cout), p->b = layout(type, k->Cin, k->rows);
        p->c = layout(type, k->Cout, k->rows);
        break;
    case PRODUCT_BACKWARD_INPUT:
        p->a = layout(type, k->Cin, k->Cout), p->b = layout(type, k->Cout, k->rows);
        p->c = layout(type, k->Cin, k->rows);
        break;
    case PRODUCT_BACKWARD_WEIGHT:
        p->a = layout(type, k->Cin, k->rows), p->b = layout(type, k->Cout, k->rows);
        p->c = layout(CUDA_R_32F, k->Cin, k->Cout);
        break;
    }
    if (!k->fused) return;
    // Of a product of bf16 with a result in fp32 the bias is fp32 too (cuBLAS documentation,
    // cublasLtMatmul(), table of supported types); BGRADB sums op(B), which is dout^T, over k.
    static const cublasLtEpilogue_t ends[] = {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_DGELU,
                                              CUBLASLT_EPILOGUE_BGRADB};
    set_desc(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &ends[k->kind], sizeof ends[0]);
    if (k->kind == PRODUCT_BACKWARD_WEIGHT) type = CUDA_R_32F;
    if (k->kind != PRODUCT_BACKWARD_INPUT) {
        set_desc(p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
    } else {
        int64_t ld = k->Cin;
        set_desc(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof ld);
    }
}

// Bytes that the chosen algorithm may expect every pointer to be a multiple of. It follows from the
// shape alone, not from where a tensor happens to lie, so that the algorithm, and with it the bits,
// are the same for any units and any number of ranks: all tensors start at multiples of 64 bytes
// (FSDP_ALIGN, cudaMalloc), parts of them begin with a whole row. 16 bytes are the widest access of
// a thread, and what TMA asks of an address (CUDA C++ Programming Guide, "Tensor Memory Access").
static size_t product_alignment(const ProductKey *k) {
    size_t rows = ((size_t)k->Cin | (size_t)k->Cout) * sizeof(floatX) | 16;
    return rows & (~rows + 1);
}

static void choose_algorithm(Product *p) {
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    size_t room = PRODUCT_WORKSPACE;
    uint32_t alignment = (uint32_t)product_alignment(&p->key);
    int n = 0;
    cublasCheck(cublasLtMatmulPreferenceCreate(&preference));
    cublasCheck(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room));
    static const cublasLtMatmulPreferenceAttributes_t sides[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (int i = 0; i < 4; i++)
        cublasCheck(cublasLtMatmulPreferenceSetAttribute(preference, sides[i], &alignment,
                                                         sizeof alignment));
    cublasStatus_t e = cublasLtMatmulAlgoGetHeuristic(products.handle, p->desc, p->a, p->b, p->c,
                                                      p->c, preference, 1, &found, &n);
    p->possible = e == CUBLAS_STATUS_SUCCESS && n > 0;
    if (p->possible)
        p->algo = found.algo;
    else if (!p->key.fused)
        die("cuBLASLt has no algorithm for a product of rows %d, Cin %d, Cout %d (%s): %s",
            p->key.rows, p->key.Cin, p->key.Cout, FLOATX_NAME, cublasLtGetStatusString(e));
    cublasCheck(cublasLtMatmulPreferenceDestroy(preference));
}

static bool same_product(const ProductKey *x, const ProductKey *y) {
    return x->kind == y->kind && x->rows == y->rows && x->Cin == y->Cin && x->Cout == y->Cout &&
           x->fused == y->fused;
}

// The array of the product's end: bias, its gradient, or the input of GELU.
static void set_fused(Product *p, const void *fuse) {
    set_desc(p->desc,
             p->key.kind == PRODUCT_BACKWARD_INPUT ? CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER
                                                   : CUBLASLT_MATMUL_DESC_BIAS_POINTER,
             &fuse, sizeof fuse);
}

static Product *product_for(const ProductKey *key) {
    for (int i = 0; i < products.count; i++)
        if (same_product(&products.made[i].key, key)) return &products.made[i];
    if (products.count == products.room) {
        products.room = products.room ? 2 * products.room : 64;
        products.made =
            (Product *)realloc_check(products.made, (size_t)products.room * sizeof(Product));
    }
    Product *p = &products.made[products.count++];
    *p = Product();
    p->key = *key;
    describe_product(p);
    // The heuristic derives the alignment it may expect from the pointer.
    if (key->fused) set_fused(p, (const void *)product_alignment(key));
    choose_algorithm(p);
    return p;
}

// c = a * b, or c + a * b. fuse: bias, pre or dbias; NULL: plain. False if the fused form does not
// exist.
static bool product(ProductKind kind, void *c, const void *a, const void *b, const void *fuse,
                    int rows, int Cin, int Cout, bool accumulate, cudaStream_t stream) {
    const ProductKey key = {kind, rows, Cin, Cout, fuse != NULL};
    const size_t pointers = (size_t)c | (size_t)a | (size_t)b | (size_t)fuse;
    if (pointers % product_alignment(&key))
        die("a product of rows %d, Cin %d, Cout %d: expected arrays at multiples of %zu bytes",
            rows, Cin, Cout, product_alignment(&key));
    Product *p = product_for(&key);
    if (!p->possible) return false;
    if (fuse) set_fused(p, fuse);
    float one = 1.0f, beta = accumulate ? 1.0f : 0.0f;
    cublasCheck(cublasLtMatmul(products.handle, p->desc, &one, a, p->a, b, p->b, &beta, c, p->c, c,
                               p->c, &p->algo, products.workspace, PRODUCT_WORKSPACE, stream));
    return true;
}

// out[row, c] += bias[c], where no algorithm fuses it
__global__ static void add_bias_kernel(floatX *out, const floatX *bias, size_t n, int C) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) store_float(&out[i], to_float(out[i]) + to_float(bias[i % (size_t)C]));
}

static void matmul_forward(floatX *out, const floatX *inp, const floatX *weight, const floatX *bias,
                           int rows, int Cin, int Cout, cudaStream_t stream) {
    if (product(PRODUCT_FORWARD, out, weight, inp, bias, rows, Cin, Cout, false, stream)) return;
    product(PRODUCT_FORWARD, out, weight, inp, NULL, rows, Cin, Cout, false, stream);
    size_t n = (size_t)rows * (size_t)Cout;
    add_bias_kernel<<<blocks_for(n, 256), 256, 0, stream>>>(out, bias, n, Cout);
    launchCheck();
}

static void matmul_gelu_forward(floatX *out, floatX *pre, const floatX *inp, const floatX *weight,
                                const floatX *bias, int rows, int Cin, int Cout,
                                cudaStream_t stream) {
    if (!pre) pre = out;
    matmul_forward(pre, inp, weight, bias, rows, Cin, Cout, stream);
    gelu_forward(out, pre, (size_t)rows * (size_t)Cout, stream);
}

static void matmul_backward_input(floatX *dinp, const floatX *dout, const floatX *weight,
                                  const floatX *pre, int rows, int Cin, int Cout,
                                  cudaStream_t stream) {
    // The fused end wants rows of a multiple of 8.
    const floatX *fuse = Cin % 8 == 0 ? pre : NULL;
    bool fused =
        product(PRODUCT_BACKWARD_INPUT, dinp, weight, dout, fuse, rows, Cin, Cout, false, stream);
    if (!fused)
        product(PRODUCT_BACKWARD_INPUT, dinp, weight, dout, NULL, rows, Cin, Cout, false, stream);
    if (pre && !(fused && fuse))
        gelu_backward_in_place(dinp, pre, (size_t)rows * (size_t)Cin, stream);
}

static void matmul_backward_weight(float *dweight, float *dbias, const floatX *dout,
                                   const floatX *inp, int rows, int Cin, int Cout, bool accumulate,
                                   cudaStream_t stream) {
    float *fuse = accumulate || Cin > PRODUCT_BIAS_WIDTH ? NULL : dbias;
    bool fused = product(PRODUCT_BACKWARD_WEIGHT, dweight, inp, dout, fuse, rows, Cin, Cout,
                         accumulate, stream);
    if (!fused)
        product(PRODUCT_BACKWARD_WEIGHT, dweight, inp, dout, NULL, rows, Cin, Cout, accumulate,
                stream);
    if (dbias && !(fused && fuse)) column_sums(dbias, dout, rows, Cout, accumulate, stream);
}
