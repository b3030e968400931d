// counters.h: what a profiler would count of each launch, in the count build. For programs that
// print or check the counts; kernels know nothing of it.
//
// A request is one memory instruction of one warp. The requests of a warp's lanes are matched by
// instruction and by how often the lane has executed it since the warp last met in a barrier or a
// warp operation.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace emu {

// What is counted. Bytes, sectors (32 bytes) and wavefronts are sums over requests; "least" is what
// a request of the same bytes would take at best.
#define EMU_COUNTERS(COUNT)                                                                        \
    COUNT(warps)    /* that were launched */                                                       \
    COUNT(barriers) /* times the warps that waited */                                              \
    COUNT(loads)    /* global memory, cp.async and atomics too: requests */                        \
    COUNT(load_lanes)                                                                              \
    COUNT(load_bytes)                                                                              \
    COUNT(load_sectors)                                                                            \
    COUNT(load_sectors_least)                                                                      \
    COUNT(stores) /* global memory, atomics too: requests */                                       \
    COUNT(store_lanes)                                                                             \
    COUNT(store_bytes)                                                                             \
    COUNT(store_sectors)                                                                           \
    COUNT(store_sectors_least)                                                                     \
    COUNT(async)           /* cp.async: requests among the loads */                                \
    COUNT(atomics)         /* requests among both */                                               \
    COUNT(missed_sectors)  /* loads of sectors that the block had not loaded, and all cp.async */  \
    COUNT(read_sectors)    /* distinct in the launch, read before it wrote them */                 \
    COUNT(written_sectors) /* distinct in the launch */                                            \
    COUNT(shared)          /* shared memory, ldmatrix and cp.async too: requests */                \
    COUNT(shared_lanes)                                                                            \
    COUNT(wavefronts) /* of shared memory */                                                       \
    COUNT(wavefronts_least)                                                                        \
    COUNT(ldmatrix) /* requests among them */                                                      \
    COUNT(mma)      /* m16n8k16, a warp */                                                         \
    COUNT(shuffles) /* and votes and reductions, a warp */                                         \
    COUNT(special)  /* exp, log, sqrt, tanh: executed by a warp */

enum Counter {
#define EMU_COUNTER_ENUM(name) COUNT_##name,
    EMU_COUNTERS(EMU_COUNTER_ENUM)
#undef EMU_COUNTER_ENUM
        COUNTERS
};
extern const char *const counter_names[COUNTERS];
typedef std::array<double, COUNTERS> Counts;

// A kernel launch, or a product of cuBLASLt.
struct CountedLaunch {
    std::string kernel;  // as in kernels/resources.txt; of a product its name
    unsigned blocks, threads;
    size_t shared_bytes;  // a block: static and dynamic
    Counts counts;        // of the whole grid
    struct {
        int m, n, k;                     // 0: not a product
        int a_bytes, c_bytes, epilogue;  // of an element; CUBLASLT_EPILOGUE_...
        bool accumulates;
    } product;
    const void *stream;
    long times;  // that it was launched so
};
const std::vector<CountedLaunch> &counted_launches();
void forget_counts();

// Of a launch only the first n blocks run, and what they count is scaled to the grid: the second
// half of them tells what a block adds. What was launched before with the same grid and arguments
// does not run again; products, cudaMemset and collectives do nothing: results are meaningless, a
// step of any size takes seconds. 0, the default: everything runs.
void count_first_blocks(unsigned n);

// Counts by source line of what has run since the last call of forget_counts.
struct CountedLine {
    std::string line;
    Counts counts;
};
std::vector<CountedLine> counted_lines();

}  // namespace emu
