// dev/bench_ops.cpp: the time of every CPU op against what the processor could do, measured in the
// same run: multiply-adds for the products and attention, memory traffic for the rest.
//
//   bench_ops [--peak] [--threads N] [--only TEXT] [B T C NH V]
//
// Defaults: all threads, 4 256 768 12 50257.
//
// --only: ops with TEXT in their names. --peak prints only the figures of the machine, one "name
// value" a line: fp32_gflops, bf16_gflops (the fastest bf16 multiply-add there is: AMX, AVX-512
// BF16, else fp32), bf16_avx512_gflops, memory_gbs (in place, read and write), memory_copy_gbs.
#include "ops.h"
#include <algorithm>
#include <time.h>
#include <vector>
#ifdef __x86_64__
#include <immintrin.h>
#include <sys/syscall.h>
#endif

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- peak: independent multiply-adds in registers. Each function returns the flops it made -----

static long peak_loops = 100000;  // about a millisecond

// Twelve accumulators of one vector type; `mad(c)` is c = c + a * b.
#define ACCUMULATORS(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11)

#ifdef __x86_64__
#define ZERO(i) "vpxor %%xmm" #i ", %%xmm" #i ", %%xmm" #i "\n"
#define CLOBBERS                                                                                   \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",       \
        "xmm11", "xmm12", "cc"
#define PEAK_LOOP(MAD, FLOPS)                                                                      \
    long n = peak_loops;                                                                           \
    __asm__ volatile(ACCUMULATORS(ZERO) ZERO(12) "1:\n" ACCUMULATORS(MAD) "dec %0\n jnz 1b\n"      \
                     : "+r"(n)                                                                     \
                     :                                                                             \
                     : CLOBBERS);                                                                  \
    return 12.0 * (FLOPS) * (double)peak_loops;

static double fma_avx512(void) {
#define MAD(i) "vfmadd231ps %%zmm12, %%zmm12, %%zmm" #i "\n"
    PEAK_LOOP(MAD, 32)
#undef MAD
}

static double fma_avx2(void) {
#define MAD(i) "vfmadd231ps %%ymm12, %%ymm12, %%ymm" #i "\n"
    PEAK_LOOP(MAD, 16)
#undef MAD
}

static double bf16_avx512(void) {
#define MAD(i) "vdpbf16ps %%zmm12, %%zmm12, %%zmm" #i "\n"
    PEAK_LOOP(MAD, 64)
#undef MAD
}

// Each of four products of tiles needs one new operand, which is loaded from the nearest cache:
// there are eight tile registers, so that no product of matrices can do with fewer.
__attribute__((target("amx-tile,amx-bf16"))) static double bf16_amx(void) {
    struct {
        uint8_t palette, start, unused[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } tiles = {};
    tiles.palette = 1;
    for (int i = 0; i < 8; i++) tiles.bytes[i] = 64, tiles.rows[i] = 16;
    alignas(64) static thread_local uint8_t operands[4][1024];
    __asm__ volatile("ldtilecfg %0" : : "m"(tiles));
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (long i = 0; i < peak_loops / 16; i++) {
        _tile_loadd(4, operands[0], 64);
        _tile_loadd(5, operands[1], 64);
        _tile_loadd(6, operands[2], 64);
        _tile_loadd(7, operands[3], 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return 4.0 * 16 * 16 * 32 * 2 * (double)(peak_loops / 16);
}

static bool has_amx(void) {
    unsigned a, b, c, d;
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "0"(7), "2"(0));
    const int request_permission = 0x1023, tile_data = 18;
    return (d >> 22 & 1) && (d >> 24 & 1) &&
           syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}
#endif

static double fma_generic(void) {
    typedef float Vector __attribute__((vector_size(16)));
    Vector c[12] = {}, a = {1, 1, 1, 1};
    for (long i = 0; i < peak_loops; i++)
        for (int k = 0; k < 12; k++) {
            c[k] += a * a;
            __asm__ volatile("" : "+m"(c[k]));  // not to be computed at compile time
        }
    return 12.0 * 8 * (double)peak_loops;
}

static double median(std::vector<double> x) {
    std::sort(x.begin(), x.end());
    return x[x.size() / 2];
}

// Work a second of all threads together, by the wall clock: the median of what is measured in
// `budget` seconds, so that it compares with the median of steps. `work` does some on a thread and
// says how much.
template <typename Work> static double rate_of(double budget, Work work) {
    double total = 0;
    const double end = now() + budget;
#pragma omp parallel reduction(+ : total)
    {
        std::vector<double> rates;
        while (rates.size() < 3 || now() < end) {
            double start = now(), done = work(omp_get_thread_num());
            rates.push_back(done / (now() - start));
        }
        total += median(rates);
    }
    return total;
}

static double peak_of(double (*loop)(void)) {
    return 1e-9 * rate_of(0.1, [&](int) { return loop(); });
}

typedef struct {
    double fp32, bf16, bf16_avx512;  // GF/s
    double memory, memory_copy;      // GB/s
} Peak;

// Every thread on its own 256 MiB: more than its share of the cache.
static void measure_memory(Peak *p) {
    const size_t n = 64 << 20;
    std::vector<std::vector<float>> x(omp_get_max_threads()), y(x.size());
    for (auto &v : x) v.resize(n);
    for (auto &v : y) v.resize(n);
    p->memory = 1e-9 * rate_of(0.25, [&](int thread) {
                    float *a = x[thread].data();
#pragma omp simd
                    for (size_t i = 0; i < n; i++) a[i] = a[i] * 0.5f + 1.0f;
                    return 8.0 * (double)n;
                });
    p->memory_copy = 1e-9 * rate_of(0.25, [&](int thread) {
                         float *a = x[thread].data(), *b = y[thread].data();
#pragma omp simd
                         for (size_t i = 0; i < n; i++) b[i] = a[i] * 0.5f;
                         return 8.0 * (double)n;
                     });
}

static double (*fastest_mad)(void);  // the loop of floatX with the highest peak

// The GF/s of a loop; the fastest for floatX is kept.
static double peak_of_candidate(double (*loop)(void), double *best, bool of_floatX) {
    double gflops = peak_of(loop);
    if (gflops <= *best) return gflops;
    *best = gflops;
    if (of_floatX) fastest_mad = loop;
    return gflops;
}

static Peak measure_peak(void) {
    Peak p = {};
    const bool is_bf16 = sizeof(floatX) == 2;
    peak_of_candidate(fma_generic, &p.fp32, true);
#ifdef __x86_64__
    if (__builtin_cpu_supports("fma")) peak_of_candidate(fma_avx2, &p.fp32, true);
    if (__builtin_cpu_supports("avx512f")) peak_of_candidate(fma_avx512, &p.fp32, true);
    p.bf16 = p.fp32;
    if (__builtin_cpu_supports("avx512bf16"))
        p.bf16_avx512 = peak_of_candidate(bf16_avx512, &p.bf16, is_bf16);
    if (has_amx()) peak_of_candidate(bf16_amx, &p.bf16, is_bf16);
#endif
    p.bf16 = fmax(p.bf16, p.fp32);
    measure_memory(&p);
    return p;
}

static void print_peak(const Peak *p) {
    printf("threads %d\nfp32_gflops %.1f\nbf16_gflops %.1f\nbf16_avx512_gflops %.1f\n",
           omp_get_max_threads(), p->fp32, p->bf16, p->bf16_avx512);
    printf("memory_gbs %.1f\nmemory_copy_gbs %.1f\n", p->memory, p->memory_copy);
}

// ---- ops ---------------------------------------------------------------------------------------

static Peak peak;
static const char *only_op = "";

// GF/s of all threads together, now, by the wall clock: what an op could reach at this moment.
static double peak_now(void) {
    double flops = 0, start = now();
#pragma omp parallel reduction(+ : flops)
    flops += fastest_mad();
    return 1e-9 * flops / (now() - start);
}

// Processors whose cores are shared change speed from one moment to the next. So the peak is taken
// before and after every run, and the shares are compared.
template <typename Run> static void report(const char *op, double flops, double bytes, Run run) {
    if (!strstr(op, only_op)) return;
    double best = 1e30, end = now() + 0.4, before = peak_now();
    std::vector<double> shares;
    for (int i = 0; i < 5 || now() < end; i++) {
        double start = now();
        run();
        double t = now() - start, after = peak_now();
        shares.push_back(flops * 1e-9 / t / ((before + after) / 2));
        best = fmin(best, t);
        before = after;
    }
    double gflops = sizeof(floatX) == 2 ? peak.bf16 : peak.fp32;
    if (flops / gflops > bytes / peak.memory)
        printf("%-34s %9.3f ms %9.1f GF/s %4.0f %% of multiply-adds\n", op, best * 1e3,
               flops / best * 1e-9, 100 * median(shares));
    else
        printf("%-34s %9.3f ms %9.1f GB/s %4.0f %% of memory\n", op, best * 1e3,
               bytes / best * 1e-9, 100 * bytes * 1e-9 / peak.memory / best);
}

static std::vector<floatX> values(size_t n) {
    std::vector<floatX> x(n);
    uint32_t s = 1;
    for (auto &v : x)
        store_float(&v, (float)((s = s * 1664525u + 1013904223u) >> 8) / (1 << 23) - 1.0f);
    return x;
}

static void bench_linear(const char *name, int rows, int Cin, int Cout, bool head) {
    auto inp = values((size_t)rows * Cin), w = values((size_t)Cout * Cin), bias = values(Cout),
         out = values((size_t)rows * Cout), dinp = inp;
    std::vector<float> dw((size_t)Cout * Cin), db(Cout);
    double flops = 2.0 * rows * Cin * Cout, X = sizeof(floatX);
    double bytes = X * ((double)rows * Cin + (double)rows * Cout + (double)Cin * Cout);
    char label[64];
    snprintf(label, sizeof label, "%s forward", name);
    report(label, flops, bytes, [&] {
        matmul_forward(out.data(), inp.data(), w.data(), head ? NULL : bias.data(), rows, Cin, Cout,
                       NULL);
    });
    snprintf(label, sizeof label, "%s dinp", name);
    report(label, flops, bytes, [&] {
        matmul_backward_input(dinp.data(), out.data(), w.data(), NULL, rows, Cin, Cout, NULL);
    });
    snprintf(label, sizeof label, "%s dweight", name);
    report(label, flops, bytes + (4 - X) * Cin * Cout, [&] {
        matmul_backward_weight(dw.data(), head ? NULL : db.data(), out.data(), inp.data(), rows,
                               Cin, Cout, true, NULL);
    });
}

static void bench_products(int rows, int C, int V) {
    bench_linear("qkv", rows, C, 3 * C, false);
    bench_linear("proj", rows, C, C, false);
    bench_linear("fc", rows, C, 4 * C, false);
    bench_linear("fcproj", rows, 4 * C, C, false);
    bench_linear("head", rows < 1024 ? rows : 1024, C, (V + 127) / 128 * 128, true);
    auto inp = values((size_t)rows * C), w = values((size_t)4 * C * C), bias = values(4 * C),
         pre = values((size_t)rows * 4 * C), out = pre;
    double flops = 8.0 * rows * C * C;
    report("fc + gelu forward", flops, 0, [&] {
        matmul_gelu_forward(out.data(), pre.data(), inp.data(), w.data(), bias.data(), rows, C,
                            4 * C, NULL);
    });
    auto dout = values((size_t)rows * C);
    report("fcproj dinp * gelu'", flops, 0, [&] {
        matmul_backward_input(out.data(), dout.data(), w.data(), pre.data(), rows, 4 * C, C, NULL);
    });
    double bytes = 2.0 * sizeof(floatX) * pre.size();
    report("gelu forward", 0, bytes,
           [&] { gelu_forward(out.data(), pre.data(), pre.size(), NULL); });
}

// Flops counted: the lower triangle only, T (T+1) / 2 pairs, 2 products forward and 5 backward.
static void bench_attention(int B, int T, int C, int NH) {
    size_t n = (size_t)B * T * C;
    auto qkv = values(3 * n), out = values(n), dout = values(n), dqkv = qkv;
    std::vector<float> lse((size_t)B * NH * T);
    double pairs = 2.0 * B * C * T * (T + 1.0) / 2, X = sizeof(floatX);
    report("attention forward", 2 * pairs, 4 * n * X,
           [&] { attention_forward(out.data(), lse.data(), qkv.data(), B, T, C, NH, NULL); });
    report("attention backward", 5 * pairs, 8 * n * X, [&] {
        attention_backward(dqkv.data(), dout.data(), out.data(), qkv.data(), lse.data(), B, T, C,
                           NH, NULL);
    });
}

static void bench_rows(int B, int T, int C, int V) {
    int rows = B * T, Vp = (V + 127) / 128 * 128, head = rows < 256 ? rows : 256;
    size_t n = (size_t)rows * C;
    double X = sizeof(floatX), bytes = X * (double)n;
    auto a = values(n), b = values(n), c = values(n), w = values(C), bias = values(C),
         wte = values((size_t)Vp * C), wpe = values((size_t)T * C),
         logits = values((size_t)head * Vp);
    std::vector<float> mean(rows), rstd(rows, 1.0f), dw(C), db(C), dwte((size_t)Vp * C),
        dwpe((size_t)T * C), loss(head);
    std::vector<int> tokens(rows);
    for (int i = 0; i < rows; i++) tokens[i] = (int)((size_t)i * 7919 % V);
    report("encoder forward", 0, 3 * bytes, [&] {
        encoder_forward(a.data(), tokens.data(), wte.data(), wpe.data(), B, T, C, NULL);
    });
    report("encoder backward", 0, 2 * bytes + 8.0 * ((double)n + dwpe.size()), [&] {
        encoder_backward(dwte.data(), dwpe.data(), a.data(), tokens.data(), B, T, C, NULL);
    });
    report("layernorm forward", 0, 2 * bytes, [&] {
        layernorm_forward(b.data(), mean.data(), rstd.data(), a.data(), w.data(), bias.data(), rows,
                          C, NULL);
    });
    report("residual + layernorm forward", 0, 4 * bytes, [&] {
        residual_layernorm_forward(c.data(), b.data(), mean.data(), rstd.data(), a.data(), b.data(),
                                   w.data(), bias.data(), rows, C, NULL);
    });
    report("layernorm backward", 0, 4 * bytes, [&] {
        layernorm_backward(c.data(), dw.data(), db.data(), NULL, a.data(), b.data(), w.data(),
                           mean.data(), rstd.data(), rows, C, true, NULL);
    });
    report("classifier", 0, 2 * X * (double)logits.size(),
           [&] { classifier(logits.data(), loss.data(), tokens.data(), head, V, Vp, true, NULL); });
}

static void bench_shards(void) {
    const size_t n = 8 << 20;
    std::vector<float> p(n, 0.1f), g(n, 0.2f), p2(n, 0.1f);
    std::vector<double> m(n), v(n);
    auto x = values(n);
    std::vector<bf16> y(n);
    double sums[3] = {1, 0, 0}, N = (double)n;
    float absmax = 1;
    AdamWConfig c = {1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 10, MOMENTS_FP32, 1, 1, 1};
    auto adamw = [&] {
        adamw_update(p.data(), g.data(), m.data(), v.data(), adamw_whole(n, 0), sums, &c, NULL);
    };
    report("adamw fp32 moments", 0, 28 * N, adamw);
    c.moments = MOMENTS_FP64;
    std::fill(m.begin(), m.end(), 0.0), std::fill(v.begin(), v.end(), 0.0);
    report("adamw fp64 moments", 0, 44 * N, adamw);
    c.moments = MOMENTS_BF16;
    std::fill(m.begin(), m.end(), 0.0), std::fill(v.begin(), v.end(), 0.0);
    report("adamw bf16 moments", 0, 20 * N, adamw);
    report("cast to bf16", 0, 6 * N, [&] { cast_to_bf16(y.data(), g.data(), n, NULL); });
    report("shard add", 0, 12 * N, [&] { shard_add(p2.data(), g.data(), n, true, NULL); });
    report("absmax", 0, 4 * N, [&] { shard_absmax(&absmax, g.data(), n, NULL); });
    report("sum of squares", 0, 4 * N,
           [&] { shard_sum_squares(sums, g.data(), n, NULL, 0, NULL); });
    report("sum of squares, order-free", 0, 4 * N,
           [&] { shard_sum_squares(sums, g.data(), n, &absmax, 23, NULL); });
}

// A product with subnormal weights, which processors are slow with unless they count as zero.
static void bench_subnormals(int rows, int C) {
    if (!strstr("subnormal weights", only_op)) return;
    auto inp = values((size_t)rows * C), w = values((size_t)4 * C * C),
         out = values((size_t)rows * 4 * C);
    auto tiny = w;
    memset(tiny.data(), 0, tiny.size() * sizeof tiny[0]);
    for (auto &x : tiny) memset(&x, 1, 1);  // the smallest number of either type
    std::vector<double> times[2];
    for (int i = 0; i < 14; i++) {
        double start = now();
        matmul_forward(out.data(), inp.data(), (i % 2 ? tiny : w).data(), NULL, rows, C, 4 * C,
                       NULL);
        times[i % 2].push_back(now() - start);
    }
    printf("%-34s %9.2f times as long as normal ones\n", "fc forward, subnormal weights",
           median(times[1]) / median(times[0]));
}

int main(int argc, char **argv) {
    int shape[5] = {4, 256, 768, 12, 50257}, given = 0;  // B T C NH V
    bool only_peak = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--peak"))
            only_peak = true;
        else if (!strcmp(argv[i], "--only") && i + 1 < argc)
            only_op = argv[++i];
        else if (!strcmp(argv[i], "--threads") && i + 1 < argc)
            omp_set_num_threads(atoi(argv[++i]));
        else if (given < 5)
            shape[given++] = atoi(argv[i]);
    }
    int B = shape[0], T = shape[1], C = shape[2], NH = shape[3], V = shape[4];
    OpsDims d = {B, T, C, NH, V, 1024, false};
    std::vector<char> room(ops_workspace_bytes(&d));
    ops_init(&d, room.data(), room.size(), NULL);
    peak = measure_peak();
    print_peak(&peak);
    if (only_peak) return 0;
    peak_loops = 20000;
    printf(FLOATX_NAME " B %d T %d C %d NH %d V %d\n", B, T, C, NH, V);
    bench_products(B * T, C, V);
    bench_attention(B, T, C, NH);
    bench_rows(B, T, C, V);
    bench_shards();
    bench_subnormals(B * T, C);
    ops_destroy();
    return 0;
}
