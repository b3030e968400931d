// plan/roofline.h: how long a launch takes on a GPU, from what it does: the longest of its bounds
// (Williams, Waterman & Patterson 2009). Memory's bounds are its rates. A multiprocessor's own work
// is the longest of what its units take, with whole blocks, and of what its warps take: each goes
// through its instructions and waits in turn, and shares a scheduler with a few others. How well
// few warps hide each other's waits is a closed queueing network, solved by mean value analysis
// (Reiser & Lavenberg 1980).
#pragma once

#include "gpus.h"

#include <math.h>
#include <stdbool.h>

typedef enum {
    BOUND_DRAM,
    BOUND_L2,
    BOUND_ISSUE,    // instructions
    BOUND_TENSOR,   // mma
    BOUND_SHARED,   // wavefronts of shared memory
    BOUND_SPECIAL,  // exp, reciprocals, roots
    BOUND_LATENCY,  // too few warps to hide each other's waits
    BOUNDS
} Bound;
static const char *const bound_names[] = {"DRAM",   "L2",      "issue",  "tensor",
                                          "shared", "special", "latency"};

// Attention's units overlap less than the queue lets expect: FlashAttention-2 takes this much
// longer (geometric mean of test/test_roofline.cpp's three published rates).
#define ATTENTION_BEYOND 1.35

// What a whole launch does. Instructions are counted by warp.
typedef struct {
    double blocks;
    int threads;          // of a block
    int registers;        // of a thread
    size_t shared_bytes;  // of a block
    double instructions, float_instructions, special_instructions;
    double mma;         // m16n8k16
    double wavefronts;  // of shared memory
    double l2_bytes;    // that cross between the multiprocessors and the L2
    double dram_bytes;  // distinct: read once, written once
    double chain;       // cycles that one warp alone takes, without loads from global memory
    double waits;       // times that a warp waits for such loads
    double wait_dram, wait_l2;  // share of its loads that comes from there; the rest from L1
} LaunchWork;

typedef struct {
    double seconds;
    double bounds[BOUNDS];  // seconds of each, without the launch itself
    Bound bound;            // the longest
    int resident;           // blocks that a multiprocessor holds at a time
    double occupancy;       // share of its warps that these are
    double waves;
} LaunchTime;

// Registers are given to warps in units of 256 (CUDA occupancy calculator).
static inline int resident_blocks(const Gpu *g, int threads, int registers, size_t shared_bytes) {
    int warps = (threads + 31) / 32, a_warp = (registers * 32 + 255) / 256 * 256;
    int blocks = GPU_WARPS / warps < GPU_BLOCKS ? GPU_WARPS / warps : GPU_BLOCKS;
    int by_shared = g->shared_bytes / (int)(shared_bytes + (size_t)g->shared_reserved);
    int by_registers = a_warp ? GPU_REGISTERS / a_warp / 4 * 4 / warps : blocks;
    if (by_shared < blocks) blocks = by_shared;
    return by_registers < blocks ? by_registers : blocks;
}

// Bytes that have to be on their way on each multiprocessor for a share of the DRAM's peak
// (Little).
static inline double flight_needed(const Gpu *g, double share) {
    return share * g->dram * g->dram_latency / g->multiprocessors;
}

// Cycles between two warps that are done, where `warps` of them share a scheduler: each needs some
// cycles of each of its units, and `alone` cycles in all if no other is there.
#define UNITS 3
static inline double cycles_a_warp(double warps, const double units[UNITS], double alone) {
    double waiting[UNITS] = {0}, at[UNITS], cycles = alone, rest = alone;
    for (int i = 0; i < UNITS; i++) rest -= units[i];
    for (double n = 1; n <= fmax(1, warps); n++) {
        double round = fmax(0, rest);
        for (int i = 0; i < UNITS; i++) round += at[i] = units[i] * (1 + waiting[i]);
        for (int i = 0; i < UNITS; i++) waiting[i] = n * at[i] / round;
        cycles = fmax(alone, round) / n;
    }
    return cycles;
}

// Work is in cycles of one multiprocessor that does all of it; the busiest one has whole blocks.
static inline LaunchTime launch_time(const Gpu *g, const LaunchWork *w) {
    LaunchTime t = {0, {0}, BOUND_DRAM, 0, 0, 0};
    int warps = (w->threads + 31) / 32;
    t.resident = resident_blocks(g, w->threads, w->registers, w->shared_bytes);
    if (t.resident == 0) return t;
    double sm = g->multiprocessors, all_warps = w->blocks * warps;
    t.occupancy = (double)(t.resident * warps) / GPU_WARPS;
    t.waves = w->blocks / (sm * t.resident);
    double busiest = ceil(w->blocks / sm) * sm / w->blocks, cycle = busiest / (sm * g->clock);
    double mma_cycles = 4096 / (g->tensor / g->clock / sm * g->mma_share);  // of a multiprocessor
    double special = w->special_instructions * 32 / GPU_SPECIAL_LANES;
    t.bounds[BOUND_DRAM] = w->dram_bytes / (g->dram * g->dram_reached);
    t.bounds[BOUND_L2] = w->l2_bytes / g->l2;
    t.bounds[BOUND_ISSUE] =
        cycle * fmax(w->instructions / GPU_SCHEDULERS, w->float_instructions * 32 / g->fp32_lanes);
    t.bounds[BOUND_TENSOR] = cycle * w->mma * mma_cycles;
    t.bounds[BOUND_SHARED] = cycle * w->wavefronts;
    t.bounds[BOUND_SPECIAL] = cycle * special;
    double wait = w->wait_dram * g->dram_latency + w->wait_l2 * g->l2_latency +
                  (1 - w->wait_dram - w->wait_l2) * g->l1_latency;
    double alone = w->chain + w->waits * wait * g->clock;
    double on_scheduler = fmin(t.resident, ceil(w->blocks / sm)) * warps / GPU_SCHEDULERS;
    double units[UNITS] = {w->instructions - w->mma - w->special_instructions,
                           w->mma * mma_cycles * GPU_SCHEDULERS, special * GPU_SCHEDULERS};
    for (int i = 0; i < UNITS; i++) units[i] /= all_warps;
    double a_warp = cycles_a_warp(on_scheduler, units, alone);
    t.bounds[BOUND_LATENCY] = fmax(cycle * all_warps / GPU_SCHEDULERS * a_warp, alone / g->clock);
    for (int i = 0; i < BOUNDS; i++)
        if (t.bounds[i] > t.bounds[t.bound]) t.bound = (Bound)i;
    t.seconds = t.bounds[t.bound] + g->launch;
    return t;
}

// ---- products of a library ----

typedef struct {
    int m, n, k;
    int operand_bytes, result_bytes;  // of an element
    int results_moved;  // times that an array of the result's size is read or written, at least 1
} ProductWork;

typedef struct {
    double seconds;
    int tile_m, tile_n, splits;
    double waves;
    bool by_memory;
} ProductTime;

// Tiles of a block, and the share of the main loop's best rate that they reach: smaller ones load
// more for each flop (NVIDIA, "Matrix Multiplication Background User's Guide", tile quantisation).
static const struct {
    int m, n;
    double reached;
} product_tiles[] = {{256, 128, 1.0}, {128, 256, 1.0}, {128, 128, 0.95}, {256, 64, 0.9},
                     {64, 256, 0.9},  {128, 64, 0.8},  {64, 128, 0.8},   {64, 64, 0.65}};

// The fastest of the tiles, with the sum over k in one piece or in some that are added later: the
// time of whole waves of tiles, or of the bytes.
static inline ProductTime product_time(const Gpu *g, const ProductWork *p) {
    ProductTime best = {1e30, 0, 0, 0, 0, false};
    double m = p->m, n = p->n, k = p->k, dram = g->dram * g->dram_reached;
    double a_multiprocessor = g->tensor * g->product_reached / g->multiprocessors;
    double bytes = (m + n) * k * p->operand_bytes + m * n * p->result_bytes * p->results_moved;
    for (size_t i = 0; i < sizeof product_tiles / sizeof product_tiles[0]; i++)
        for (int splits = 1; splits <= 16 && (splits == 1 || k / splits >= 512); splits *= 2) {
            double tm = product_tiles[i].m, tn = product_tiles[i].n;
            double waves = ceil(m / tm) * ceil(n / tn) * splits / g->multiprocessors;
            double flops = 2 * tm * tn * (ceil(k / splits / 32) * 32 + 64);  // 64: to fill the pipe
            double compute = ceil(waves) * flops / (a_multiprocessor * product_tiles[i].reached);
            double seconds = fmax(compute, bytes / dram) + g->launch;
            if (splits > 1) seconds += m * n * 4 * 2 * splits / dram + g->launch;
            if (seconds >= best.seconds) continue;
            best.seconds = seconds, best.tile_m = (int)tm, best.tile_n = (int)tn;
            best.splits = splits, best.waves = waves, best.by_memory = bytes / dram > compute;
        }
    return best;
}
