// dev/predict.h: how long a launch should take on a GPU: counts from the emulator's count
// build, registers from kernels/resources.txt and instructions from kernels/instructions.txt, both
// made by nvcc, and plan/roofline.h.
#pragma once

#include "emulator/counters.h"
#include "lib/die.h"
#include "plan/roofline.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

using emu::CountedLaunch;
using emu::Counts;
typedef std::string Text;

// ---- what nvcc knows: registers and instructions -----------------------------------------------

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

// A GPU without code of its own runs the newest that it can.
static Kernels read_kernels(int arch) {
    Kernels kernels;
    auto resources = read_table("kernels/resources.txt", 7);
    int code = 0;
    for (auto &row : resources) {
        int has = row[2].rfind("sm_", 0) == 0 ? atoi(row[2].c_str() + 3) : 0;
        if (has <= arch) code = std::max(code, has);
    }
    Text name = "sm_" + std::to_string(code);
    for (auto &row : resources)
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

// ---- how often each part of a kernel runs ------------------------------------------------------

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

// ---- times -------------------------------------------------------------------------------------

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

static Row launch_row(const Gpu *gpu, const CountedLaunch &l, const Kernels &kernels) {
    return l.product.m ? product_row(gpu, l) : kernel_row(gpu, l, kernels);
}

// Attention is expected to be as far from its bounds as FlashAttention-2.
static double expected_seconds(const Row &r) {
    return r.launch->counts[emu::COUNT_mma] > 0 ? r.seconds * ATTENTION_BEYOND : r.seconds;
}
