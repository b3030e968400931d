// dev/bench_kernels.cu: the time of every kernel against what this GPU could do, both measured
// here: the bandwidth of a large copy for what moves bytes, the rate of a large product for what
// multiplies. Bytes and flops are the least that the op needs, not what the kernel happens to do.
// Compiled once per dtype.
//
//   bench_kernels [B T C NH V]          default: 64 1024 768 12 50257, beyond the L2 of every GPU
//
// In the emulator's count build the same program prints how long all that should take on a GPU:
//
//   predict_kernels GPU [B T C NH V]    a name of plan/gpus.h
#include "ops.h"
#ifdef EMULATOR
#include "dev/predict.h"
#endif
#include <algorithm>
#include <vector>

static cudaStream_t stream;
static double copy_bytes, product_flops;  // a second, measured

#ifdef EMULATOR
static const bool predicts = true;  // the values of arrays are of no matter
static const Gpu *gpu;
static Kernels kernels;

template <class Run> static double fastest(Run run) {
    double seconds = 0;
    emu::forget_counts();
    run();
    cudaCheck(cudaStreamSynchronize(stream));
    for (const CountedLaunch &l : emu::counted_launches())
        seconds += (double)l.times * expected_seconds(launch_row(gpu, l, kernels));
    return 1e3 * seconds;
}
#else
static const bool predicts = false;

// Milliseconds of the fastest run of those that fit in 50 ms, at least three, after one to warm up.
template <class Run> static double fastest(Run run) {
    cudaEvent_t begin, end;
    cudaCheck(cudaEventCreate(&begin));
    cudaCheck(cudaEventCreate(&end));
    double best = 1e30, total = 0;
    run();
    for (int i = 0; i < 3 || (total < 50 && i < 1000); i++) {
        float ms;
        cudaCheck(cudaEventRecord(begin, stream));
        run();
        cudaCheck(cudaEventRecord(end, stream));
        cudaCheck(cudaEventSynchronize(end));
        cudaCheck(cudaEventElapsedTime(&ms, begin, end));
        best = std::min(best, (double)ms), total += ms;
    }
    cudaCheck(cudaEventDestroy(begin));
    cudaCheck(cudaEventDestroy(end));
    return best;
}
#endif

static void print_row(const char *name, double ms, double bytes, double flops) {
    double bound = 1e3 * std::max(bytes / copy_bytes, flops / product_flops);
    if (flops > 0)
        printf("%-28s %-5s %9.3f ms %9.1f Tflop/s %6.1f %% of the bound\n", name, FLOATX_NAME, ms,
               flops / ms * 1e-9, 100 * bound / ms);
    else
        printf("%-28s %-5s %9.3f ms %9.1f GB/s    %6.1f %% of the bound\n", name, FLOATX_NAME, ms,
               bytes / ms * 1e-6, 100 * bound / ms);
}

template <class T> static T *device_array(size_t n, const T *values = NULL) {
    T *p;
    cudaCheck(cudaMalloc((void **)&p, n * sizeof(T)));
    cudaCheck(cudaMemset(p, 0, n * sizeof(T)));
    if (values) cudaCheck(cudaMemcpy(p, values, n * sizeof(T), cudaMemcpyHostToDevice));
    cudaCheck(cudaDeviceSynchronize());
    return p;
}

// Everything that the ops are called with; activations are all of the largest size.
typedef struct {
    OpsDims d;
    int rows, head_rows, Vp;
    floatX *x, *y, *z, *w, *logits;  // (rows, 4C) thrice; the largest weight; (head_rows, Vp)
    float *stats, *lse, *grad, *column;
    int *tokens;
} Arena;

static Arena arena_create(const OpsDims *d) {
    Arena a = {};
    a.d = *d;
    a.rows = d->B * d->T, a.head_rows = d->head_rows, a.Vp = (d->V + 127) / 128 * 128;
    size_t activations = (size_t)a.rows * (size_t)d->C * 4, C = (size_t)d->C;
    size_t weights = std::max(4 * C, (size_t)a.Vp) * C;  // wte is the largest of usual models
    std::vector<floatX> values(predicts ? 0 : std::max(activations, weights));
    uint64_t state = 1;
    for (auto &v : values) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        store_float(&v, (float)((double)(int64_t)state / 9223372036854775808.0));
    }
    std::vector<int> tokens((size_t)a.rows);
    for (size_t i = 0; i < tokens.size(); i++) tokens[i] = (int)(i * 7919 % (size_t)d->V);
    const floatX *any = predicts ? NULL : values.data();
    a.x = device_array(activations, any), a.y = device_array(activations, any);
    a.z = device_array(activations, any), a.w = device_array(weights, any);
    a.logits = device_array<floatX>((size_t)a.head_rows * (size_t)a.Vp);
    a.stats = device_array<float>(2 * (size_t)a.rows),
    a.lse = device_array<float>((size_t)a.rows * (size_t)d->NH);
    a.grad = device_array<float>(weights + (size_t)d->T * C),
    a.column = device_array<float>(std::max(4 * C, (size_t)a.Vp) * 2);
    a.tokens = device_array(tokens.size(), tokens.data());
    size_t room = ops_workspace_bytes(d);
    ops_init(d, device_array<char>(room), room, stream);
    return a;
}

#ifdef EMULATOR
static void measure_bounds(const Arena *) {
    copy_bytes = gpu->dram * gpu->dram_reached, product_flops = gpu->tensor * gpu->product_reached;
    printf("predicted for %s\n", gpu->name);
}

static void choose_gpu(const char *name, const OpsDims *d) {
    gpu = gpu_named(name);
    if (!gpu) die("GPU %s: not in plan/gpus.h", name);
    kernels = read_kernels(gpu->arch);
    setenv("EMU_MEMORY", "1e12", 1);
    emu::count_first_blocks(2 * (unsigned)d->T / 64);  // two heads of attention's tiles, or more
}
#else
static void measure_bounds(const Arena *a) {
    size_t bytes = (size_t)1 << 30;
    char *from = device_array<char>(bytes), *to = device_array<char>(bytes);
    double ms = fastest(
        [&] { cudaCheck(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream)); });
    copy_bytes = 2 * (double)bytes / ms * 1e3;
    cudaCheck(cudaFree(from));
    cudaCheck(cudaFree(to));
    const int n = 8192;
    floatX *x = device_array<floatX>((size_t)n * n), *w = device_array<floatX>((size_t)n * n),
           *out = device_array<floatX>((size_t)n * n);
    // Zeros would be multiplied with less power, and faster.
    cudaCheck(cudaMemcpy(x, a->x, (size_t)a->d.C * 4 * sizeof(floatX), cudaMemcpyDeviceToDevice));
    for (size_t have = (size_t)a->d.C * 4, all = (size_t)n * n; have < all; have *= 2)
        cudaCheck(cudaMemcpy(x + have, x, std::min(have, all - have) * sizeof(floatX),
                             cudaMemcpyDeviceToDevice));
    cudaCheck(cudaMemcpy(w, x, (size_t)n * n * sizeof(floatX), cudaMemcpyDeviceToDevice));
    cudaCheck(cudaDeviceSynchronize());
    ms = fastest([&] { matmul_forward(out, x, w, NULL, n, n, n, stream); });
    product_flops = 2.0 * n * n * n / ms * 1e3;
    cudaCheck(cudaFree(x));
    cudaCheck(cudaFree(w));
    cudaCheck(cudaFree(out));
    printf("%-28s %-5s copy %.0f GB/s, product of 8192 x 8192 %.1f Tflop/s\n", "this GPU reaches",
           FLOATX_NAME, copy_bytes * 1e-9, product_flops * 1e-12);
}
#endif

static void bench_memory_bound(const Arena *a) {
    const int B = a->d.B, T = a->d.T, C = a->d.C, rows = a->rows;
    const double e = sizeof(floatX), n = (double)rows * C;
    float *mean = a->stats, *rstd = a->stats + rows;
    print_row("encoder_forward",
              fastest([&] { encoder_forward(a->x, a->tokens, a->w, a->y, B, T, C, stream); }),
              2 * n * e, 0);
    print_row("encoder_backward", fastest([&] {
                  encoder_backward(a->grad, a->grad + (size_t)a->d.V * C, a->x, a->tokens, B, T, C,
                                   stream);
              }),
              2 * n * e + 8 * std::min(n, (double)a->d.V * C) + 8.0 * T * C, 0);
    print_row("layernorm_forward", fastest([&] {
                  layernorm_forward(a->y, mean, rstd, a->x, a->w, a->w, rows, C, stream);
              }),
              2 * n * e, 0);
    print_row("residual_layernorm_forward", fastest([&] {
                  residual_layernorm_forward(a->z, a->y, mean, rstd, a->x, a->x + (size_t)rows * C,
                                             a->w, a->w, rows, C, stream);
              }),
              4 * n * e, 0);
    print_row("layernorm_backward", fastest([&] {
                  layernorm_backward(a->z, a->column, a->column + C, a->column + 2 * C, a->y, a->x,
                                     a->w, mean, rstd, rows, C, true, stream);
              }),
              4 * n * e, 0);
    print_row("gelu_forward",
              fastest([&] { gelu_forward(a->y, a->x, (size_t)rows * 4 * (size_t)C, stream); }),
              8 * n * e, 0);
    print_row("classifier", fastest([&] {
                  classifier(a->logits, a->lse, a->tokens, a->head_rows, a->d.V, a->Vp, true,
                             stream);
              }),
              2.0 * a->head_rows * a->Vp * e, 0);
}

static void bench_products(const Arena *a) {
    const int C = a->d.C, rows = a->rows;
    const struct {
        const char *name;
        int rows, Cin, Cout;
    } shapes[] = {{"qkv", rows, C, 3 * C},
                  {"attention projection", rows, C, C},
                  {"mlp up", rows, C, 4 * C},
                  {"mlp down", rows, 4 * C, C},
                  {"head", a->head_rows, C, a->Vp}};
    for (auto &s : shapes) {
        char name[64];
        bool head = s.rows != rows || s.Cout == a->Vp;
        floatX *wide = head ? a->logits : a->y;
        double flops = 2.0 * s.rows * s.Cin * s.Cout;
        snprintf(name, sizeof name, "%s forward", s.name);
        print_row(name, fastest([&] {
                      matmul_forward(wide, a->x, a->w, head ? NULL : a->w, s.rows, s.Cin, s.Cout,
                                     stream);
                  }),
                  0, flops);
        snprintf(name, sizeof name, "%s backward input", s.name);
        print_row(name, fastest([&] {
                      matmul_backward_input(a->z, wide, a->w, NULL, s.rows, s.Cin, s.Cout, stream);
                  }),
                  0, flops);
        snprintf(name, sizeof name, "%s backward weight", s.name);
        print_row(name, fastest([&] {
                      matmul_backward_weight(a->grad, head ? NULL : a->column, wide, a->x, s.rows,
                                             s.Cin, s.Cout, true, stream);
                  }),
                  0, flops);
    }
}

static void bench_attention(const Arena *a) {
    const int B = a->d.B, T = a->d.T, C = a->d.C, NH = a->d.NH;
    double flops = 4.0 * B * C * (0.5 * T * (T + 1));  // two products over the causal half
    print_row("attention_forward",
              fastest([&] { attention_forward(a->y, a->lse, a->x, B, T, C, NH, stream); }), 0,
              flops);
    print_row("attention_backward", fastest([&] {
                  attention_backward(a->z, a->y, a->y, a->x, a->lse, B, T, C, NH, stream);
              }),
              0, 2.5 * flops);
}

static void bench_shards(void) {
    const size_t n = (size_t)64 << 20;
    float *p = device_array<float>(n), *g = device_array<float>(n), *m = device_array<float>(n),
          *v = device_array<float>(n);
    floatX *cast = device_array<floatX>(n);
    double *sums = device_array<double>(SHARD_SUMS);
    AdamWConfig c = {};
    c.lr = 1e-3f, c.beta1 = 0.9f, c.beta2 = 0.95f, c.eps = 1e-8f, c.step = 1, c.grad_scale = 1,
    c.moments = MOMENTS_FP32;
    double k = (double)n;
    print_row("cast_from_float", fastest([&] { cast_from_float(cast, p, n, stream); }),
              k * (4 + sizeof(floatX)), 0);
    print_row("shard_add", fastest([&] { shard_add(g, p, n, true, stream); }), k * 12, 0);
    print_row("shard_absmax", fastest([&] { shard_absmax(m, g, n, stream); }), k * 4, 0);
    print_row("shard_sum_squares", fastest([&] { shard_sum_squares(sums, g, n, NULL, 0, stream); }),
              k * 4, 0);
    print_row("adamw_update",
              fastest([&] { adamw_update(p, g, m, v, adamw_whole(n, 0), sums, &c, stream); }),
              k * 28, 0);
}

int main(int argc, char **argv) {
    OpsDims d = {64, 1024, 768, 12, 50257, 0, false};
#ifdef EMULATOR
    if (argc < 2) die("usage: predict_kernels GPU [B T C NH V]");
    const char *name = argv[1];
    argc--, argv++;
#endif
    if (argc == 6)
        d.B = atoi(argv[1]), d.T = atoi(argv[2]), d.C = atoi(argv[3]), d.NH = atoi(argv[4]),
        d.V = atoi(argv[5]);
    else if (argc != 1)
        die("usage: bench_kernels [B T C NH V]");
    d.head_rows = std::min(d.B * d.T, 16384);
#ifdef EMULATOR
    choose_gpu(name, &d);
#endif
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skipped: no GPU answers\n");
        return 0;
    }
    cudaCheck(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Arena a = arena_create(&d);
    measure_bounds(&a);
    bench_memory_bound(&a);
    bench_attention(&a);
    bench_products(&a);
    bench_shards();
    return 0;
}
