// test_blas.cu: cublasLtMatmul of the emulator against double precision, for every epilogue, type
// and transpose it offers; and its refusals.
#include "test.h"

#include <cublasLt.h>
#include <math.h>
#include <vector>

struct Case {
    cudaDataType in, out;
    cublasOperation_t transA, transB;
    cublasLtEpilogue_t epilogue;
    float alpha, beta;
    int m, n, k, batch;
};

// A column-major matrix on the device and its values as double.
struct Matrix {
    cudaDataType type;
    int rows, cols, ld, batch;
    std::vector<double> host;
    void *device;

    double &at(int i, int j, int b = 0) {
        return host[((size_t)b * (size_t)cols + (size_t)j) * (size_t)ld + (size_t)i];
    }
    size_t bytes() const {
        return host.size() * (type == CUDA_R_32F ? 4 : 2);
    }
};
static double rounded(cudaDataType type, double x) {
    return type == CUDA_R_32F ? (double)(float)x
                              : (double)__bfloat162float(__float2bfloat16_rn((float)x));
}
static Matrix make(cudaDataType type, int rows, int cols, int ld, int batch, unsigned seed) {
    Matrix x = {type, rows, cols, ld, batch, {}, nullptr};
    x.host.resize((size_t)ld * (size_t)cols * (size_t)batch);
    for (double &v : x.host) {
        seed = seed * 1664525u + 1013904223u;
        v = rounded(type, (double)(seed >> 8) / (1 << 24) - 0.5);
    }
    std::vector<float> f(x.host.begin(), x.host.end());
    std::vector<__nv_bfloat16> h;
    for (float v : f) h.push_back(__float2bfloat16_rn(v));
    CHECK(cudaMalloc(&x.device, x.bytes()));
    const void *from = type == CUDA_R_32F ? (const void *)f.data() : (const void *)h.data();
    CHECK(cudaMemcpy(x.device, from, x.bytes(), cudaMemcpyHostToDevice));
    return x;
}
static void download(Matrix *x) {
    std::vector<char> raw(x->bytes());
    CHECK(cudaMemcpy(raw.data(), x->device, raw.size(), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < x->host.size(); i++)
        x->host[i] = x->type == CUDA_R_32F
                         ? (double)((float *)raw.data())[i]
                         : (double)__bfloat162float(((__nv_bfloat16 *)raw.data())[i]);
}
static cublasLtMatrixLayout_t layout(const Matrix &x) {
    cublasLtMatrixLayout_t l;
    CHECK(cublasLtMatrixLayoutCreate(&l, x.type, (uint64_t)x.rows, (uint64_t)x.cols, x.ld));
    if (x.batch > 1) {
        int32_t count = x.batch;
        int64_t stride = (int64_t)x.ld * x.cols;
        CHECK(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                               sizeof count));
        CHECK(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                               &stride, sizeof stride));
    }
    return l;
}
static bool uses_aux(int e) {
    return e & 128;
}
static bool uses_bias(int e) {
    return e != CUBLASLT_EPILOGUE_DEFAULT && e != CUBLASLT_EPILOGUE_GELU &&
           e != CUBLASLT_EPILOGUE_GELU_AUX && e != CUBLASLT_EPILOGUE_DGELU;
}
template <class T>
static void set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const T &value) {
    CHECK(cublasLtMatmulDescSetAttribute(d, a, &value, sizeof value));
}

static double gelu(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
static double gelu_slope(double x) {
    const double h = 1e-5;
    return (gelu(x + h) - gelu(x - h)) / (2 * h);
}

struct Problem {
    Case c;
    Matrix A, B, C, D, bias, aux;
};
static Problem problem(const Case &c) {
    bool ta = c.transA == CUBLAS_OP_T, tb = c.transB == CUBLAS_OP_T;
    int a_rows = ta ? c.k : c.m, b_rows = tb ? c.n : c.k, aux_ld = (c.m + 7) / 8 * 8;
    return {c,
            make(c.in, a_rows, ta ? c.m : c.k, a_rows + 3, c.batch, 1),
            make(c.in, b_rows, tb ? c.k : c.n, b_rows + 1, c.batch, 2),
            make(c.out, c.m, c.n, c.m + 2, c.batch, 3),
            make(c.out, c.m, c.n, c.m + 2, c.batch, 4),
            make(c.out, c.epilogue == CUBLASLT_EPILOGUE_BGRADB ? c.n : c.m, 1, c.m + c.n, 1, 5),
            make(c.out, c.m, c.n, aux_ld, 1, 6)};
}
// later_bias: set after the heuristic, instead of p.bias
static cublasStatus_t multiply(const Problem &p, uint32_t alignment, void *later_bias = nullptr) {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t d;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    int found;
    CHECK(cublasLtCreate(&handle));
    CHECK(cublasLtMatmulDescCreate(&d, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(d, CUBLASLT_MATMUL_DESC_TRANSA, p.c.transA);
    set(d, CUBLASLT_MATMUL_DESC_TRANSB, p.c.transB);
    set(d, CUBLASLT_MATMUL_DESC_EPILOGUE, p.c.epilogue);
    if (uses_bias(p.c.epilogue)) set(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias.device);
    if (uses_aux(p.c.epilogue)) {
        set(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.aux.device);
        set(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (int64_t)p.aux.ld);
    }
    CHECK(cublasLtMatmulPreferenceCreate(&preference));
    for (int a = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
         a <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES; a++)
        CHECK(cublasLtMatmulPreferenceSetAttribute(
            preference, (cublasLtMatmulPreferenceAttributes_t)a, &alignment, 4));
    cublasLtMatrixLayout_t l[4] = {layout(p.A), layout(p.B), layout(p.C), layout(p.D)};
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, d, l[0], l[1], l[2], l[3],
                                                           preference, 1, &result, &found);
    if (later_bias) set(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, later_bias);
    if (status == CUBLAS_STATUS_SUCCESS)
        status =
            cublasLtMatmul(handle, d, &p.c.alpha, p.A.device, l[0], p.B.device, l[1], &p.c.beta,
                           p.C.device, l[2], p.D.device, l[3], &result.algo, nullptr, 0, nullptr);
    for (cublasLtMatrixLayout_t x : l) CHECK(cublasLtMatrixLayoutDestroy(x));
    CHECK(cublasLtMatmulPreferenceDestroy(preference));
    CHECK(cublasLtMatmulDescDestroy(d));
    CHECK(cublasLtDestroy(handle));
    return status;
}

// Compares with tolerance: rounding of the output type, and k fp32 additions.
static void expect_close(const char *what, cudaDataType type, double found, double expected) {
    double tolerance = (type == CUDA_R_32F ? 4e-6 : 5e-3) * (1 + fabs(expected));
    if (fabs(found - expected) <= tolerance) return;
    fprintf(stderr, "%s: expected %.8g, found %.8g\n", what, expected, found);
    exit(2);
}
static void check(const Case &c) {
    Problem p = problem(c);
    EXPECT(multiply(p, 16) == CUBLAS_STATUS_SUCCESS);
    Matrix D = p.D, bias = p.bias, aux = p.aux;
    download(&D);
    download(&bias);
    download(&aux);
    auto a = [&](int i, int k, int b) {
        return c.transA == CUBLAS_OP_T ? p.A.at(k, i, b) : p.A.at(i, k, b);
    };
    auto b = [&](int k, int j, int n) {
        return c.transB == CUBLAS_OP_T ? p.B.at(j, k, n) : p.B.at(k, j, n);
    };
    int e = c.epilogue;
    bool adds_bias = (e & CUBLASLT_EPILOGUE_BIAS) != 0,
         applies_gelu = (e & CUBLASLT_EPILOGUE_GELU) != 0;
    bool applies_slope = (e & 64) != 0;
    std::vector<double> row_sum((size_t)c.m);
    for (int n = 0; n < c.batch; n++)
        for (int j = 0; j < c.n; j++)
            for (int i = 0; i < c.m; i++) {
                double x = 0;
                for (int k = 0; k < c.k; k++) x += a(i, k, n) * b(k, j, n);
                x = c.alpha * x + (c.beta != 0 ? c.beta * p.C.at(i, j, n) : 0);
                if (adds_bias) x += p.bias.at(i, 0);
                if (applies_gelu && uses_aux(e)) expect_close("aux", c.out, aux.at(i, j), x);
                if (applies_gelu) x = gelu(x);
                if (applies_slope) x *= gelu_slope(p.aux.at(i, j));
                row_sum[(size_t)i] += x;
                expect_close("D", c.out, D.at(i, j, n), x);
            }
    for (int i = 0; e == CUBLASLT_EPILOGUE_DGELU_BGRAD && i < c.m; i++)
        expect_close("bias gradient", c.out, bias.at(i, 0), row_sum[(size_t)i]);
    for (int i = 0; e == CUBLASLT_EPILOGUE_BGRADA && i < c.m; i++) {
        double x = 0;
        for (int k = 0; k < c.k; k++) x += a(i, k, 0);
        expect_close("bias gradient of A", c.out, bias.at(i, 0), x);
    }
    for (int j = 0; e == CUBLASLT_EPILOGUE_BGRADB && j < c.n; j++) {
        double x = 0;
        for (int k = 0; k < c.k; k++) x += b(k, j, 0);
        expect_close("bias gradient of B", c.out, bias.at(j, 0), x);
    }
}

constexpr cudaDataType F = CUDA_R_32F, H = CUDA_R_16BF;
constexpr cublasOperation_t N = CUBLAS_OP_N, T = CUBLAS_OP_T;
static void every_type_and_transpose_multiplies_right(void **) {
    expect_silent([] {
        for (auto types : {std::pair<cudaDataType, cudaDataType>{F, F}, {H, H}, {H, F}})
            for (cublasOperation_t ta : {N, T})
                for (cublasOperation_t tb : {N, T}) {
                    check({types.first, types.second, ta, tb, CUBLASLT_EPILOGUE_DEFAULT, 1, 0, 19,
                           7, 300, 1});
                    check({types.first, types.second, ta, tb, CUBLASLT_EPILOGUE_DEFAULT, 0.5f, 1, 1,
                           1, 1, 1});
                    check({types.first, types.second, ta, tb, CUBLASLT_EPILOGUE_DEFAULT, 2, -1, 33,
                           13, 5, 3});
                }
    });
}
static void every_epilogue_is_right(void **) {
    expect_silent([] {
        for (auto types : {std::pair<cudaDataType, cudaDataType>{F, F}, {H, H}, {H, F}})
            for (cublasLtEpilogue_t e :
                 {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_AUX,
                  CUBLASLT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                  CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_DGELU_BGRAD, CUBLASLT_EPILOGUE_BGRADA,
                  CUBLASLT_EPILOGUE_BGRADB})
                for (cublasOperation_t ta : {N, T})
                    check({types.first, types.second, ta, N, e, 1, 0.5f, 21, 9, 40, 1});
    });
}
static void shapes_that_do_not_fit_are_refused(void **) {
    expect_report("shapes do not fit", [] {
        Problem p = problem({F, F, N, N, CUBLASLT_EPILOGUE_DEFAULT, 1, 0, 8, 8, 8, 1});
        p.B.rows = 7;
        exit(multiply(p, 16) == CUBLAS_STATUS_INVALID_VALUE ? 1 : 0);
    });
}
static void a_combination_of_types_that_does_not_exist_is_refused(void **) {
    expect_report("combination of types", [] {
        exit(multiply(problem({F, H, N, N, CUBLASLT_EPILOGUE_DEFAULT, 1, 0, 8, 8, 8, 1}), 16) ==
             CUBLAS_STATUS_NOT_SUPPORTED);
    });
}
static void an_unknown_epilogue_is_refused(void **) {
    expect_report("epilogue 2 is not supported", [] {
        exit(multiply(problem({F, F, N, N, CUBLASLT_EPILOGUE_RELU, 1, 0, 8, 8, 8, 1}), 16) ==
             CUBLAS_STATUS_NOT_SUPPORTED);
    });
}
static void pointers_less_aligned_than_the_heuristic_was_told_are_refused(void **) {
    expect_report("A = |is not aligned to 256 bytes", [] {
        Problem p = problem({F, F, N, N, CUBLASLT_EPILOGUE_DEFAULT, 1, 0, 8, 8, 8, 1});
        p.A.device = (char *)p.A.device + 16;
        exit(multiply(p, 256) == CUBLAS_STATUS_INVALID_VALUE);
    });
}
static void a_bias_less_aligned_than_the_heuristic_saw_is_refused(void **) {
    expect_report("bias = |is NULL or not aligned to 256 bytes", [] {
        Problem p = problem({F, F, N, N, CUBLASLT_EPILOGUE_BIAS, 1, 0, 8, 8, 8, 1});
        void *bias = (char *)p.bias.device + 16;
        p.bias.device = nullptr;
        exit(multiply(p, 16, bias) == CUBLAS_STATUS_INVALID_VALUE);
    });
}
static void an_operand_past_its_allocation_is_reported(void **) {
    expect_report("cublasLtMatmul m=8 n=8 k=8 reads|out of bounds", [] {
        Problem p = problem({F, F, N, N, CUBLASLT_EPILOGUE_DEFAULT, 1, 0, 8, 8, 8, 1});
        p.A.device = (char *)p.A.device + 256;
        CHECK(multiply(p, 16));
        CHECK(cudaDeviceSynchronize());
    });
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_and_transpose_multiplies_right),
        cmocka_unit_test(every_epilogue_is_right),
        cmocka_unit_test(shapes_that_do_not_fit_are_refused),
        cmocka_unit_test(a_combination_of_types_that_does_not_exist_is_refused),
        cmocka_unit_test(an_unknown_epilogue_is_refused),
        cmocka_unit_test(pointers_less_aligned_than_the_heuristic_was_told_are_refused),
        cmocka_unit_test(a_bias_less_aligned_than_the_heuristic_saw_is_refused),
        cmocka_unit_test(an_operand_past_its_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
