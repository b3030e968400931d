// dev/kernel_report.cu: what the kernels of a step do and how long they should take, without a GPU.
// One rank of many runs a step of the program's own gpt.cu in the emulator's count build, at the
// real shape: of each launch a few blocks run, their counts are scaled to the grid, and
// plan/roofline.h turns them into times. Registers come from kernels/resources.txt, instructions
// from kernels/instructions.txt, both made by nvcc.
//
//   kernel_report SIZE [GPU...]     the step of scripts/gpt.sh's SIZE, on each GPU of plan/gpus.h
//   kernel_report --counts          the counts of SIZE 124M, and of AdamW with other moments, as in
//                                   kernels/counters.txt
//   kernel_report --check FILE      fails where a count has become worse than in FILE
//   kernel_report --lines SIZE      the counts by source line
#include "emulator/counters.h"
#include "gpt.h"
#include "plan/roofline.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

extern const GptCode gpt_bf16;
using emu::CountedLaunch;
using emu::Counts;
typedef std::string Text;

// ---- the steps
// -----------------------------------------------------------------------------------

// Rows of scripts/gpt.sh.
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
    gpt_bf16.start(g, id);
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

// ---- what nvcc knows: registers and instructions
// ---------------------------------------------------

typedef struct {
    int inside;  // part around it; 0: the kernel itself
    std::map<Text, double> count;
} Part;  // of a kernel: its straight code, or a loop
typedef struct {
    int registers;
    size_t shared_bytes;
    std::vector<Part> parts;
} Compiled;
typedef std::map<Text, Compiled> Kernels;  // by name, of one architecture

// Lines of a table, in words; of each the first `name` words but the last columns are the name.
static std::vector<std::vector<Text>> read_table(const char *path, size_t columns) {
    std::ifstream file(path);
    if (!file) die("%s: cannot be read", path);
    std::vector<std::vector<Text>> rows;
    for (Text line; std::getline(file, line);) {
        std::istringstream words(line);
        std::vector<Text> row(1);
        std::vector<Text> all;
        for (Text w; words >> w;) all.push_back(w);
        if (all.size() < columns + 1) continue;
        for (size_t i = 0; i + columns < all.size(); i++) row[0] += (i ? " " : "") + all[i];
        row.insert(row.end(), all.end() - (long)columns, all.end());
        rows.push_back(row);
    }
    return rows;
}

static Kernels read_kernels(int arch) {
    Kernels kernels;
    Text name = "sm_" + std::to_string(arch);
    for (auto &row : read_table("kernels/resources.txt", 7))
        if (row[1] == "bf16" && row[2] == name) {
            kernels[row[0]].registers = atoi(row[3].c_str());
            kernels[row[0]].shared_bytes = (size_t)atol(row[7].c_str());
        }
    auto rows = read_table("kernels/instructions.txt", 20);
    for (auto &row : rows) {
        if (row[1] != name) continue;
        Part part = {atoi(row[3].c_str()), {}};
        for (size_t i = 4; i < row.size(); i++) part.count[rows[0][i]] = atof(row[i].c_str());
        kernels[row[0]].parts.push_back(part);
    }
    return kernels;
}

// ---- how often each part of a kernel runs
// ----------------------------------------------------------

// What both the disassembly and the emulator count, a warp.
static const struct {
    const char *columns[2];
    std::vector<emu::Counter> plus, minus;
} anchors[] = {{{"load"}, {emu::COUNT_loads}, {emu::COUNT_async}},
               {{"store"}, {emu::COUNT_stores}, {}},
               {{"async"}, {emu::COUNT_async}, {}},
               {{"lds", "sts"}, {emu::COUNT_shared}, {emu::COUNT_async, emu::COUNT_ldmatrix}},
               {{"ldsm"}, {emu::COUNT_ldmatrix}, {}},
               {{"mma"}, {emu::COUNT_mma}, {}},
               {{"shuffle"}, {emu::COUNT_shuffles}, {}},
               {{"barrier"}, {emu::COUNT_barriers}, {}}};

static double counted(const Counts &c, int anchor) {
    double n = 0;
    for (emu::Counter i : anchors[anchor].plus) n += c[i];
    for (emu::Counter i : anchors[anchor].minus) n -= c[i];
    return n;
}

static double in_part(const Part &p, int anchor) {
    double n = 0;
    for (const char *column : anchors[anchor].columns)
        if (column) n += p.count.at(column);
    return n;
}

// Times that a warp runs each part, so that the parts together give the counts: the least squares
// of the relative errors with no negative times, by coordinate descent. The straight code runs
// once.
static std::vector<double> times_of_parts(const std::vector<Part> &parts, const Counts &counts) {
    const int A = sizeof anchors / sizeof anchors[0];
    std::vector<double> times(parts.size(), 0);
    times[0] = 1;
    double warps = counts[emu::COUNT_warps], rest[A], weight[A];
    for (int a = 0; a < A; a++) {
        double wanted = counted(counts, a) / warps;
        rest[a] = wanted - in_part(parts[0], a);
        weight[a] = 1 / fmax(wanted, 1);
    }
    for (int round = 0; round < 1000; round++)
        for (size_t i = 1; i < parts.size(); i++) {
            double up = 0, down = 0;
            for (int a = 0; a < A; a++) {
                double n = in_part(parts[i], a) * weight[a];
                up += n * rest[a] * weight[a];
                down += n * n;
            }
            if (down == 0) continue;
            double step = fmax(up / down, -times[i]);
            times[i] += step;
            for (int a = 0; a < A; a++) rest[a] -= step * in_part(parts[i], a);
        }
    // A loop without anything to hold on to runs as often as what is around it.
    for (size_t i = 1; i < parts.size(); i++) {
        bool anchored = false;
        for (int a = 0; a < A; a++) anchored = anchored || in_part(parts[i], a) > 0;
        if (!anchored) times[i] = times[(size_t)parts[i].inside];
    }
    return times;
}

// ---- times
// -----------------------------------------------------------------------------------------

typedef struct {
    const CountedLaunch *launch;
    LaunchTime time;        // of one
    double seconds, bound;  // of one: predicted, and what its bytes or flops alone would take
    double instructions;    // a warp
    double flight;          // bytes on their way for a multiprocessor when its warps wait
    int registers;
    ProductTime product;
    long times;  // of all launches of the row: launches, seconds, least seconds, counts
    double total, best;
    Counts counts;
} Row;

static Row product_row(const Gpu *gpu, const CountedLaunch &l) {
    Row row = {};
    row.launch = &l;
    const auto &p = l.product;
    ProductWork w = {p.m, p.n, p.k, p.a_bytes, p.c_bytes, 1 + p.accumulates + (p.epilogue > 128)};
    row.product = product_time(gpu, &w);
    row.seconds = row.product.seconds;
    row.bound = 2.0 * p.m * p.n * p.k / gpu->tensor;
    return row;
}

static Row kernel_row(const Gpu *gpu, const CountedLaunch &l, const Kernels &kernels) {
    auto found = kernels.find(l.kernel);
    if (found == kernels.end() || found->second.parts.empty())
        die("%s: not in kernels/resources.txt and kernels/instructions.txt for sm_%d: make "
            "DEVICE=cuda resources instructions",
            l.kernel.c_str(), gpu->arch);
    const Compiled &k = found->second;
    const Counts &c = l.counts;
    std::vector<double> times = times_of_parts(k.parts, c);
    LaunchWork w = {};
    w.blocks = l.blocks, w.threads = (int)l.threads, w.registers = k.registers;
    w.shared_bytes = l.shared_bytes;
    double warps = c[emu::COUNT_warps], flight = 0;
    for (size_t i = 0; i < k.parts.size(); i++) {
        auto &n = k.parts[i].count;
        w.instructions += warps * times[i] * n.at("all");
        w.float_instructions += warps * times[i] * n.at("float");
        w.special_instructions += warps * times[i] * n.at("special");
        w.chain += times[i] * n.at("cycles");
        w.waits += times[i] * n.at("waits");
        if (times[i] >= 0.5) flight = fmax(flight, n.at("flight") + n.at("(async)"));
    }
    if (c[emu::COUNT_async] > 0) w.waits++;  // for the first tile
    w.mma = c[emu::COUNT_mma];
    w.wavefronts = c[emu::COUNT_wavefronts];
    w.l2_bytes = 32 * (c[emu::COUNT_missed_sectors] + c[emu::COUNT_store_sectors]);
    w.dram_bytes = 32 * (c[emu::COUNT_read_sectors] + c[emu::COUNT_written_sectors]);
    double sectors = fmax(c[emu::COUNT_load_sectors], 1);
    w.wait_dram = c[emu::COUNT_read_sectors] / sectors;
    w.wait_l2 = (c[emu::COUNT_missed_sectors] - c[emu::COUNT_read_sectors]) / sectors;
    Row row = {};
    row.launch = &l, row.time = launch_time(gpu, &w), row.instructions = w.instructions / warps,
    row.registers = k.registers;
    row.flight = flight * l.threads * row.time.resident;
    row.seconds = row.time.seconds;
    row.bound = fmax(row.time.bounds[BOUND_DRAM], w.mma * 4096 / gpu->tensor);
    return row;
}

// All launches of one kernel on one stream are a row, described by the one that takes longest.
static std::vector<Row> rows_of(const Gpu *gpu, const Step &step, const Kernels &kernels) {
    std::map<std::pair<const void *, Text>, Row> rows;
    for (const CountedLaunch &l : step.launches) {
        Row r = l.product.m ? product_row(gpu, l) : kernel_row(gpu, l, kernels);
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

// ---- the report
// ------------------------------------------------------------------------------------

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

// ---- counts to keep
// --------------------------------------------------------------------------------

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
        int worse = check_counts(step_to_keep(), argv[2]);
        if (worse) die("%d counts are worse; where that is meant: make kernel-counts", worse);
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
