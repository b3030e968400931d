// dev/kernel_report.cu: what the kernels of a step do and how long they should take, without a GPU.
// One rank of many runs a step of the program's own gpt.cu in the emulator's count build, at the
// real shape: of each launch a few blocks run, their counts are scaled to the grid, and
// predict.h turns them into times.
//
//   kernel_report SIZE [GPU...]     a step of the model SIZE, on each GPU of plan/gpus.h
//   kernel_report --counts          the counts of SIZE 124M, and of AdamW with other moments, as in
//                                   kernels/counters.txt
//   kernel_report --check FILE      fails where a count has become worse than in FILE, or a kernel
//                                   is beyond the limits of doc/gpu-speed.md
//   kernel_report --lines SIZE      the counts by source line
#include "dev/predict.h"
#include "gpt.h"

extern const GptCode gpt_bf16;

// ---- the steps ---------------------------------------------------------------------------------

// Models of scripts/gpt.sh, as in the tables of doc/gpu-speed.md.
typedef struct {
    const char *size, *model;
    int B, T, ranks;
    double tokens;  // a step
    int recompute;
} Shape;
static const Shape shapes[] = {{"124M", "gpt2:d12", 64, 1024, 8, 524288, RECOMPUTE_NONE},
                               {"1558M", "gpt2:d48", 16, 1024, 8, 524288, RECOMPUTE_NONE},
                               {"2.7B", "gpt3:c2560", 8, 2048, 16, 1048576, RECOMPUTE_NORM},
                               {"13B", "gpt3:c5120", 4, 2048, 64, 2097152, RECOMPUTE_NORM},
                               {"175B", "gpt3:c12288", 3, 2048, 256, 3145728, RECOMPUTE_LAYER}};

static const Shape *shape_named(const char *size) {
    for (const Shape &s : shapes)
        if (!strcmp(s.size, size)) return &s;
    die("size %s: expected 124M, 1558M, 2.7B, 13B or 175B", size);
}

// The launches of a micro-step with all that follows it in its step.
typedef struct {
    ModelConfig model;
    std::vector<CountedLaunch> launches;
} Step;

static GptConfig step_config(const Shape *s, MomentType moments) {
    GptConfig c = {};
    c.model = model_parse(s->model);
    model_set_vocab(&c.model, 50257);
    c.B = s->B, c.T = s->T, c.logits_rows = 16384;
    c.unit = UNIT_LAYER, c.recompute = s->recompute;
    FsdpConfig *f = &c.fsdp;
    f->world = f->K = s->ranks;
    f->gather_slots = f->grad_slots = 2, f->prefetch = 1, f->micro_steps = 1;
    f->moments = moments;
    return c;
}

// Half of the tokens are among a few frequent ones, as in text.
static void fill_tokens(int *tokens, size_t n) {
    uint64_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t r = (uint32_t)(state >> 33);
        tokens[i] = (int)(r & 1 ? r / 2 % 200 : r / 2 % 50257);
    }
}

static Step count_step(const Shape *s, MomentType moments) {
    Step step;
    GptConfig c = step_config(s, moments);
    ncclUniqueId id = {};
    emu::count_first_blocks(2 * (unsigned)s->T / 64);  // two heads of attention's tiles, or more
    Gpt *g = gpt_bf16.create(&c);
    gpt_bf16.join(g, id);
    gpt_bf16.start(g);
    fill_tokens(gpt_bf16.inputs(g, 0), 2 * (size_t)c.B * (size_t)c.T);
    emu::forget_counts();
    gpt_bf16.micro_step(g, 0);
    GptUpdate u = {};
    u.lr = 1e-4f, u.beta1 = 0.9f, u.beta2 = 0.95f, u.eps = 1e-8f, u.grad_clip = 1;
    gpt_bf16.update(g, &u);
    if (cudaDeviceSynchronize() != cudaSuccess) die("the step failed");
    step.model = c.model;
    step.launches = emu::counted_launches();
    return step;
}

// ---- times of a step ---------------------------------------------------------------------------

// All launches of one kernel on one stream are a row, described by the one that takes longest.
static std::vector<Row> rows_of(const Gpu *gpu, const Step &step, const Kernels &kernels) {
    std::map<std::pair<const void *, Text>, Row> rows;
    for (const CountedLaunch &l : step.launches) {
        Row r = launch_row(gpu, l, kernels);
        r.times = l.times, r.total = r.seconds * (double)l.times,
        r.best = r.bound * (double)l.times;
        for (size_t i = 0; i < emu::COUNTERS; i++) r.counts[i] = l.counts[i] * (double)l.times;
        Row &sum = rows[{l.stream, l.kernel}];
        if (sum.times) {
            r.times += sum.times, r.total += sum.total, r.best += sum.best;
            for (size_t i = 0; i < emu::COUNTERS; i++) r.counts[i] += sum.counts[i];
            if (sum.seconds > r.seconds) {
                std::swap(r.time, sum.time), std::swap(r.instructions, sum.instructions),
                    std::swap(r.flight, sum.flight);
                r.launch = sum.launch, r.seconds = sum.seconds, r.bound = sum.bound;
            }
        }
        sum = r;
    }
    std::vector<Row> sorted;
    for (auto &r : rows) sorted.push_back(r.second);
    std::sort(sorted.begin(), sorted.end(),
              [](const Row &a, const Row &b) { return a.total > b.total; });
    return sorted;
}

// ---- the report --------------------------------------------------------------------------------

static double ratio(double a, double b) {
    return b > 0 ? a / b : 1;
}

static void print_row(const Row &r, double total) {
    const CountedLaunch &l = *r.launch;
    const Counts &c = r.counts;
    printf("%-48s %5ld %8.2f %5.1f%% %9.1f %6.2f ", l.kernel.c_str(), r.times, 1e3 * r.total,
           100 * r.total / total, 1e6 * r.total / (double)r.times, ratio(r.total, r.best));
    if (l.product.m) {
        printf("%-8s tile %dx%d/%d, %.2f waves\n", r.product.by_memory ? "DRAM" : "tensor",
               r.product.tile_m, r.product.tile_n, r.product.splits, r.product.waves);
        return;
    }
    printf("%-8s %4.0f%% %5d %6.1f %9.1f %9.1f %5.2f %5.2f %5.2f %8.0f\n",
           bound_names[r.time.bound], 100 * r.time.occupancy, r.registers, 1e-3 * r.flight,
           32e-6 * c[emu::COUNT_read_sectors], 32e-6 * c[emu::COUNT_written_sectors],
           ratio(c[emu::COUNT_load_sectors] + c[emu::COUNT_store_sectors],
                 c[emu::COUNT_load_sectors_least] + c[emu::COUNT_store_sectors_least]),
           ratio(c[emu::COUNT_wavefronts], c[emu::COUNT_wavefronts_least]),
           ratio(c[emu::COUNT_load_lanes] + c[emu::COUNT_store_lanes],
                 32 * (c[emu::COUNT_loads] + c[emu::COUNT_stores])),
           r.instructions);
}

// As llm.c counts them: 6 a parameter, and attention's products over the whole square.
static double flops_a_token(const ModelConfig *m, int T) {
    return 6.0 * (double)model_parameters(m) + 6.0 * m->L * m->C * T;
}

static void report(const Shape *s, const Step &step, const Gpu *gpu) {
    std::vector<Row> rows = rows_of(gpu, step, read_kernels(gpu->arch));
    const void *compute = step.launches[0].stream;
    double total = 0, beside = 0, beyond = 0;
    long launches = 0;
    for (const Row &r : rows) {
        (r.launch->stream == compute ? total : beside) += r.total;
        if (r.counts[emu::COUNT_mma] > 0) beyond += r.total * (ATTENTION_BEYOND - 1);
        launches += r.times;
    }
    double tokens = (double)s->B * s->T, flops = flops_a_token(&step.model, s->T) * tokens;
    printf("\n%s on %d %s: a micro-step of B %d, T %d (%.0f a step), %ld launches\n", s->size,
           s->ranks, gpu->name, s->B, s->T, s->tokens / tokens / s->ranks, launches);
    printf("  bounds       %7.1f ms, %4.1f %% MFU; %.1f ms on other streams\n", 1e3 * total,
           100 * flops / total / gpu->tensor, 1e3 * beside);
    printf("  expected     %7.1f ms, %4.1f %% MFU: attention as far from its bounds as "
           "FlashAttention-2\n",
           1e3 * (total + beyond), 100 * flops / (total + beyond) / gpu->tensor);
    printf("  %.0f KB have to be on their way on a multiprocessor for 0.9 of its DRAM's rate\n",
           1e-3 * flight_needed(gpu, 0.9));
    printf("%-48s %5s %8s %6s %9s %6s %-8s %5s %5s %6s %9s %9s %5s %5s %5s %8s\n", "kernel",
           "times", "ms", "share", "us each", "x best", "bound", "occ.", "regs", "flight",
           "MB read", "MB wrote", "sect.", "waves", "lanes", "instr.");
    for (bool other : {false, true}) {
        if (other) printf("on the gather and reduce streams:\n");
        for (const Row &r : rows)
            if ((r.launch->stream != compute) == other) print_row(r, total);
    }
}

// ---- counts to keep ----------------------------------------------------------------------------

// What a profile would be judged by; more is worse.
static const struct {
    const char *name;
    emu::Counter counter;
} kept[] = {{"loads", emu::COUNT_loads},
            {"sectors", emu::COUNT_load_sectors},
            {"missed", emu::COUNT_missed_sectors},
            {"read", emu::COUNT_read_sectors},
            {"stores", emu::COUNT_stores},
            {"sectors", emu::COUNT_store_sectors},
            {"written", emu::COUNT_written_sectors},
            {"shared", emu::COUNT_shared},
            {"wavefronts", emu::COUNT_wavefronts},
            {"mma", emu::COUNT_mma},
            {"shuffles", emu::COUNT_shuffles},
            {"special", emu::COUNT_special},
            {"barriers", emu::COUNT_barriers}};
#define KEPT (sizeof kept / sizeof kept[0])

// The step of 124M, and AdamW with the other moments, in a small one.
static Step step_to_keep(void) {
    const Shape small = {"", "gpt2:L=1,C=768,NH=12,T=64", 1, 64, 8, 0, RECOMPUTE_NONE};
    Step step = count_step(shape_named("124M"), MOMENTS_FP32);
    for (MomentType moments : {MOMENTS_FP64, MOMENTS_BF16})
        for (const CountedLaunch &l : count_step(&small, moments).launches)
            if (l.kernel.rfind("adamw", 0) == 0) step.launches.push_back(l);
    return step;
}

// By kernel: launches, then the counts of all of them.
static std::map<Text, std::vector<double>> counts_of(const Step &step) {
    std::map<Text, std::vector<double>> rows;
    for (const CountedLaunch &l : step.launches) {
        if (l.product.m) continue;
        std::vector<double> &row = rows[l.kernel];
        row.resize(1 + KEPT);
        row[0] += (double)l.times;
        for (size_t i = 0; i < KEPT; i++) row[1 + i] += l.counts[kept[i].counter] * (double)l.times;
    }
    return rows;
}

static void print_counts(const Step &step) {
    printf("%-48s %8s", "kernel", "launches");
    for (auto &k : kept) printf(" %12s", k.name);
    printf("\n");
    for (auto &row : counts_of(step)) {
        printf("%-48s %8.0f", row.first.c_str(), row.second[0]);
        for (size_t i = 1; i <= KEPT; i++) printf(" %12.0f", row.second[i]);
        printf("\n");
    }
}

// Returns how many counts are worse by more than compilers differ.
static int check_counts(const Step &step, const char *path) {
    const double ALLOWED = 1.005;
    std::map<Text, std::vector<Text>> before;
    for (auto &row : read_table(path, 1 + KEPT)) before[row[0]] = row;
    int worse = 0;
    for (auto &row : counts_of(step)) {
        auto old = before.find(row.first);
        if (old == before.end()) {
            printf("%s is not in %s\n", row.first.c_str(), path), worse++;
            continue;
        }
        for (size_t i = 0; i <= KEPT; i++) {
            double expected = atof(old->second[1 + i].c_str());
            if (row.second[i] <= expected * ALLOWED + 1) continue;
            printf("%s: %s: %.0f, expected at most %.0f (%s)\n", row.first.c_str(),
                   i ? kept[i - 1].name : "launches", row.second[i], expected, path);
            worse++;
        }
    }
    return worse;
}

// What a kernel may ask for at most: sectors and wavefronts, of the least that serve its requests.
// The encoder's sort scatters tokens, in one block, 0.07 % of a step (doc/gpu-speed.md).
typedef struct {
    double sectors, wavefronts;
} Most;
static Most most_of(const Row &r) {
    return r.launch->kernel == "sort_pass_kernel" ? Most{8.05, 2.25} : Most{1.05, 1.1};
}
static const double dram_share = 0.9;

// Would DRAM be the bound of it if loads took no time? Then so many bytes have to be on their way.
static bool is_memory_bound(const Row &r) {
    for (int i = 0; i < BOUNDS; i++)
        if (i != BOUND_LATENCY && r.time.bounds[i] > r.time.bounds[BOUND_DRAM]) return false;
    return true;
}

// Returns how many kernels of a step are beyond the limits on a GPU.
static int check_limits(const Step &step, const Gpu *gpu) {
    int beyond = 0;
    const double needed = flight_needed(gpu, dram_share);
    for (const Row &r : rows_of(gpu, step, read_kernels(gpu->arch))) {
        if (r.launch->product.m) continue;
        const Most most = most_of(r);
        const Counts &c = r.counts;
        const double sectors = ratio(c[emu::COUNT_load_sectors] + c[emu::COUNT_store_sectors],
                                     c[emu::COUNT_load_sectors_least] +
                                         c[emu::COUNT_store_sectors_least]),
                     wavefronts = ratio(c[emu::COUNT_wavefronts], c[emu::COUNT_wavefronts_least]);
        if (sectors > most.sectors || wavefronts > most.wavefronts)
            printf("%s: %.2f x the least sectors and %.2f x the least wavefronts, expected at most "
                   "%.2f and %.2f\n",
                   r.launch->kernel.c_str(), sectors, wavefronts, most.sectors, most.wavefronts),
                beyond++;
        if (is_memory_bound(r) && r.flight < needed)
            printf(
                "%s on %s: %.1f KB are on their way on a multiprocessor, expected %.1f for %g of "
                "its DRAM's rate\n",
                r.launch->kernel.c_str(), gpu->name, 1e-3 * r.flight, 1e-3 * needed, dram_share),
                beyond++;
    }
    return beyond;
}

static void print_lines(void) {
    printf("%-40s %12s %6s %12s %6s %12s %6s\n", "line", "loads", "sect.", "stores", "sect.",
           "shared", "waves");
    for (auto &l : emu::counted_lines()) {
        const Counts &c = l.counts;
        printf(
            "%-40s %12.0f %6.2f %12.0f %6.2f %12.0f %6.2f\n", l.line.c_str(), c[emu::COUNT_loads],
            ratio(c[emu::COUNT_load_sectors], c[emu::COUNT_load_sectors_least]),
            c[emu::COUNT_stores],
            ratio(c[emu::COUNT_store_sectors], c[emu::COUNT_store_sectors_least]),
            c[emu::COUNT_shared], ratio(c[emu::COUNT_wavefronts], c[emu::COUNT_wavefronts_least]));
    }
}

int main(int argc, char **argv) {
    Text first = argc > 1 ? argv[1] : "";
    setenv("EMU_MEMORY", "1e12", 1);
    if (first == "--counts" && argc == 2) {
        print_counts(step_to_keep());
    } else if (first == "--check" && argc == 3) {
        const Step step = step_to_keep();
        int worse = check_counts(step, argv[2]), beyond = 0;
        for (const char *gpu : {"a100-80gb", "h100-sxm"})
            beyond += check_limits(step, gpu_named(gpu));
        if (worse) die("%d counts are worse; where that is meant: make kernel-counts", worse);
        if (beyond) die("%d kernels are beyond the limits of doc/gpu-speed.md", beyond);
        printf("no count is worse than in %s\n", argv[2]);
    } else if (first == "--lines" && argc == 3) {
        count_step(shape_named(argv[2]), MOMENTS_FP32);
        print_lines();
    } else if (argc > 1 && first[0] != '-') {
        const Shape *s = shape_named(argv[1]);
        Step step = count_step(s, MOMENTS_FP32);
        for (int i = 2; i < argc; i++) {
            const Gpu *gpu = gpu_named(argv[i]);
            if (!gpu) die("GPU %s: not in plan/gpus.h", argv[i]);
            report(s, step, gpu);
        }
    } else {
        die("usage: kernel_report SIZE GPU... | --counts | --check FILE | --lines SIZE");
    }
    return 0;
}
