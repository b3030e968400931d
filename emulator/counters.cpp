// counters.cpp: counts what a profiler would, in the count build only (see counters.h).
//
// The compiler's callbacks (instrument.cpp) tell every access of a lane. They are kept, by warp and
// instruction, until the warp meets; then the lanes' n-th executions of an instruction are one
// request.
//
// Beliefs, with their sources:
//   - Global memory moves in sectors of 32 bytes; a request of a warp touches as many as its lanes'
//     addresses do (CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory"; Nsight
//     Compute's Kernel Profiling Guide, "L1/TEX sectors per request").
//   - Shared memory has 32 banks of 4 bytes. Lanes that touch one word share it; different words of
//   a
//     bank take one wavefront each (CUDA C++ Programming Guide, "Shared Memory").
//   - A request of 8 bytes a lane is served in halves of the warp, one of 16 bytes in quarters;
//   conflicts
//     arise within those only (NVIDIA's forum, answers of its staff on 128-bit accesses;
//     microbenchmarks). ldmatrix reads one 8 x 8 matrix, eight rows of 16 bytes, a wavefront
//     (CUTLASS, GTC 2020 S21745).
#include "counters.h"
#include "core.h"

namespace emu {

#define COUNTER_NAME(name) #name,
const char *const counter_names[COUNTERS] = {EMU_COUNTERS(COUNTER_NAME)};

#ifndef EMU_COUNT

const CountHooks *const counters = nullptr;

#else

}  // namespace emu

#include <algorithm>
#include <cxxabi.h>
#include <map>
#include <unistd.h>
#include <unordered_map>

namespace emu {
namespace {

constexpr size_t SECTOR = 32;
constexpr int BANKS = 32;

enum Kind { LOAD, STORE, ATOMIC, SHARED_ACCESS, ASYNC_LOAD, ASYNC_STORE, SPECIAL };

struct Request {
    uint32_t lanes;
    const char *address[32];
};
// One instruction of the program; a piece of at most 16 bytes of a larger copy.
struct Instruction {
    const void *pc;
    Kind kind;
    int bytes;
    Counts counts;
};
// What the lanes of a warp have executed of one instruction since they last met.
struct Pending {
    uint32_t executed[32];
    std::vector<Request> requests;
    size_t used;  // of the vector, whose room is kept
};
struct Warp {
    std::vector<Pending> of;   // by instruction
    std::vector<int> touched;  // instructions with requests
};

std::vector<Instruction> instructions;
std::map<Site, Counts, bool (*)(const Site &, const Site &)> operations([](const Site &a,
                                                                           const Site &b) {
    int order = strcmp(a.file, b.file);
    return order ? order < 0 : a.line < b.line;
});
Warp warps[32];
Counts now;  // of the running launch
std::vector<CountedLaunch> launches;
std::map<std::string, size_t> known;  // launches by what they are
unsigned first_blocks;

// ---- which memory has been touched --------------------------------------------------------------
struct Page {  // the sectors of 64 KiB of device memory
    static constexpr size_t BYTES = 64 << 10;
    uint32_t block[BYTES / SECTOR] = {};  // number of the last block that loaded it; 0: none
    bool written[BYTES / SECTOR] = {};
};
std::unordered_map<size_t, Page> pages;
Page *last_page;  // that was asked for
size_t last_page_number;
uint32_t block_number;

Page *page_of(const char *p) {
    size_t number = (size_t)p / Page::BYTES;
    if (!last_page || number != last_page_number) {
        last_page = &pages[number];
        last_page_number = number;
    }
    return last_page;
}

void touch_sector(const char *p, bool loads, bool stores, bool cached) {
    Page *page = page_of(p);
    size_t i = (size_t)p % Page::BYTES / SECTOR;
    if (loads) {
        now[COUNT_read_sectors] += !page->block[i] && !page->written[i];
        now[COUNT_missed_sectors] += !cached || page->block[i] != block_number;
        page->block[i] = block_number;
    }
    if (stores) {
        now[COUNT_written_sectors] += !page->written[i];
        page->written[i] = 1;
    }
}

// ---- requests -----------------------------------------------------------------------------------
// Calls f with each lane's address.
template <class F> void for_lanes(const Request &r, uint32_t lanes, F f) {
    for (uint32_t rest = r.lanes & lanes; rest; rest &= rest - 1) f(r.address[__builtin_ctz(rest)]);
}

template <class T> int sort_unique(T *values, int n) {
    std::sort(values, values + n);
    return (int)(std::unique(values, values + n) - values);
}

void add(Instruction &in, Counter c, double n) {
    in.counts[c] += n;
    now[c] += n;
}

void count_global(Instruction &in, const Request &r) {
    bool loads = in.kind != STORE, stores = in.kind == STORE || in.kind == ATOMIC;
    size_t sectors[64], addresses[32];
    int touched = 0, lanes = 0;
    for_lanes(r, ~0u, [&](const char *p) {
        addresses[lanes++] = (size_t)p;
        for (size_t s = (size_t)p / SECTOR; s <= ((size_t)p + (size_t)in.bytes - 1) / SECTOR; s++)
            sectors[touched++] = s;
    });
    touched = sort_unique(sectors, touched);
    size_t distinct = 0, end = 0;  // bytes
    for (int i = 0, n = sort_unique(addresses, lanes); i < n; i++) {
        size_t last = addresses[i] + (size_t)in.bytes;
        distinct += last - std::max(end, addresses[i]);
        end = last;
    }
    double least = (double)((distinct + SECTOR - 1) / SECTOR);
    for (int i = 0; i < touched; i++)
        touch_sector((const char *)(sectors[i] * SECTOR), loads, stores, in.kind == LOAD);
    if (in.kind == ATOMIC) add(in, COUNT_atomics, 1);
    if (loads) {
        add(in, COUNT_loads, 1);
        add(in, COUNT_load_lanes, lanes);
        add(in, COUNT_load_bytes, lanes * in.bytes);
        add(in, COUNT_load_sectors, touched);
        add(in, COUNT_load_sectors_least, least);
    }
    if (stores) {
        add(in, COUNT_stores, 1);
        add(in, COUNT_store_lanes, lanes);
        add(in, COUNT_store_bytes, lanes * in.bytes);
        add(in, COUNT_store_sectors, touched);
        add(in, COUNT_store_sectors_least, least);
    }
}

// Wavefronts of those lanes that are served together.
int wavefronts_of(const Request &r, uint32_t lanes, int bytes) {
    size_t words[64];
    int n = 0, of_bank[BANKS] = {}, most = 0;
    for_lanes(r, lanes, [&](const char *p) {
        for (size_t w = (size_t)p / 4; w <= ((size_t)p + (size_t)bytes - 1) / 4; w++)
            words[n++] = w;
    });
    n = sort_unique(words, n);
    for (int i = 0; i < n; i++) most = std::max(most, ++of_bank[words[i] % BANKS]);
    return most;
}

struct Wavefronts {
    int found, least;
};
Wavefronts wavefronts(const Request &r, int bytes) {
    int together = bytes <= 4 ? 32 : bytes <= 8 ? 16 : 8;  // lanes
    Wavefronts w = {0, 0};
    for (int first = 0; first < 32; first += together) {
        uint32_t lanes = (together == 32 ? ~0u : (1u << together) - 1) << first;
        if (!(r.lanes & lanes)) continue;
        w.found += wavefronts_of(r, lanes, bytes);
        w.least++;
    }
    return w;
}

void count_shared(Instruction &in, const Request &r) {
    Wavefronts w = wavefronts(r, in.bytes);
    add(in, COUNT_shared, 1);
    add(in, COUNT_shared_lanes, __builtin_popcount(r.lanes));
    add(in, COUNT_wavefronts, w.found);
    add(in, COUNT_wavefronts_least, w.least);
}

void count_request(Instruction &in, const Request &r) {
    if (in.kind == ASYNC_STORE) add(in, COUNT_async, 1);
    if (in.kind == SHARED_ACCESS || in.kind == ASYNC_STORE) return count_shared(in, r);
    if (in.kind == SPECIAL) return add(in, COUNT_special, 1);
    count_global(in, r);
}

// The warp has met: what its lanes did before is matched.
void meet(Warp &w) {
    for (int i : w.touched) {
        Pending &p = w.of[(size_t)i];
        for (size_t k = 0; k < p.used; k++) count_request(instructions[(size_t)i], p.requests[k]);
        memset(p.executed, 0, sizeof p.executed);
        p.used = 0;
    }
    w.touched.clear();
}

// ---- what a lane does ---------------------------------------------------------------------------
int instruction_at(const void *pc, Kind kind, int bytes) {
    static struct {
        const void *pc;
        Kind kind;
        int bytes, index;
    } recent[4096];
    auto &r = recent[((size_t)pc * 2654435761u >> 8 ^ (size_t)kind) % 4096];
    if (r.pc == pc && r.kind == kind && r.bytes == bytes) return r.index;
    size_t i = 0;
    while (i < instructions.size() && !(instructions[i].pc == pc && instructions[i].kind == kind &&
                                        instructions[i].bytes == bytes))
        i++;
    if (i == instructions.size()) instructions.push_back({pc, kind, bytes, {}});
    r = {pc, kind, bytes, (int)i};
    return (int)i;
}

void executed(const void *pc, Kind kind, const char *p, int bytes) {
    int i = instruction_at(pc, kind, bytes), lane = ctx.linear % 32;
    Warp &w = warps[ctx.linear / 32];
    if (w.of.size() <= (size_t)i) w.of.resize((size_t)i + 1, Pending{{}, {}, 0});
    Pending &pending = w.of[(size_t)i];
    uint32_t n = pending.executed[lane]++;
    if (n == pending.used) {
        if (n == 0) w.touched.push_back(i);
        if (pending.used == pending.requests.size()) pending.requests.resize(n + 1);
        pending.requests[n].lanes = 0;
        pending.used++;
    }
    pending.requests[n].lanes |= 1u << lane;
    pending.requests[n].address[lane] = p;
}

bool in_shared(const char *p) {
    const char *dynamic = (const char *)ctx.dynamic;
    if (dynamic && p >= dynamic && p < dynamic + ctx.dynamic_bytes) return true;
    return find_static(p) != nullptr;
}

// More than 16 bytes are copied by as many instructions.
void access(const void *address, size_t bytes, bool write, bool atomic, const void *pc) {
    if (!running || !runs_kernels) return;
    const char *p = (const char *)address;
    if (on_own_stack(p)) return;
    bool global = is_device(p);
    if (!global && !in_shared(p)) return;
    Kind kind = !global ? SHARED_ACCESS : atomic ? ATOMIC : write ? STORE : LOAD;
    for (size_t i = 0; i < bytes; i += 16)
        executed((const char *)pc + i / 16, kind, p + i, (int)std::min<size_t>(bytes - i, 16));
}

void async_copy(const void *shared, const void *global, size_t bytes, bool valid, const void *pc) {
    if (valid) executed(pc, ASYNC_LOAD, (const char *)global, (int)bytes);
    executed(pc, ASYNC_STORE, (const char *)shared, (int)bytes);
}

void special_function(const void *pc) {
    if (running && runs_kernels) executed(pc, SPECIAL, nullptr, 0);
}

// ---- what a warp does ---------------------------------------------------------------------------
void add_at(Site site, Counter c, double n) {
    operations[site][c] += n;
    now[c] += n;
}

void count_ldmatrix(const WarpLane *lane, Site site) {
    Request r = {0, {}};
    int rows = 8 * (lane[0].argument & 255);
    for (int i = 0; i < rows; i++) {
        r.lanes |= 1u << i;
        memcpy(&r.address[i], lane[i].in, sizeof r.address[i]);
    }
    Wavefronts w = wavefronts(r, 16);
    add_at(site, COUNT_ldmatrix, 1);
    add_at(site, COUNT_shared, 1);
    add_at(site, COUNT_shared_lanes, 32);
    add_at(site, COUNT_wavefronts, w.found);
    add_at(site, COUNT_wavefronts_least, w.least);
}

// all: every lane of the warp that still runs takes part.
void warp_operation(const WarpOp &op, int warp, const WarpLane *lane, bool all, Site site) {
    if (all) meet(warps[warp]);
    if (&op == &warp_mma)
        add_at(site, COUNT_mma, 1);
    else if (&op == &warp_ldmatrix)
        count_ldmatrix(lane, site);
    else if (&op != &warp_sync)
        add_at(site, COUNT_shuffles, 1);
}

void barrier_passed(int waiting) {
    now[COUNT_barriers] += waiting;
    for (Warp &w : warps) meet(w);
}

// ---- launches -----------------------------------------------------------------------------------
Counts at_half;  // the running launch's counts when half of its blocks had run

// The name as nvcc's tools print it: without return type and parameters.
std::string kernel_name(const Kernel &kernel) {
    std::string mangled = function_name(kernel.function);
    if (mangled.empty()) return kernel.config.name;
    int status;
    char *demangled = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
    if (!demangled) return mangled;
    std::string name = demangled;
    free(demangled);
    if (name.compare(0, 5, "void ") == 0) name = name.substr(5);
    return name.substr(0, name.find('('));
}

// A launch's shape and arguments; of a pointer only its alignment and whether it is null.
std::string key_of(const Kernel &kernel) {
    const LaunchConfig &c = kernel.config;
    std::string key =
        text("%p %s %p %u %u %u %u %u %u %zu", kernel.function, c.name, (void *)c.stream, c.grid.x,
             c.grid.y, c.grid.z, c.block.x, c.block.y, c.block.z, c.dynamic_bytes);
    for (size_t i = sizeof(Kernel); i + 8 <= kernel.bytes; i += 8) {
        size_t word;
        memcpy(&word, (const char *)&kernel + i, 8);
        if (is_device((const void *)word)) word = 1 + word % 256;
        key += text(" %zx", word);
    }
    return key;
}

unsigned grid_begin(const Kernel &kernel) {
    const LaunchConfig &c = kernel.config;
    size_t blocks = (size_t)c.grid.x * c.grid.y * c.grid.z;
    std::string key = first_blocks ? key_of(kernel) : "";
    auto it = known.find(key);
    if (first_blocks && it != known.end()) {
        launches[it->second].times++;
        return 0;
    }
    if (first_blocks) known[key] = launches.size();
    now = at_half = Counts{};
    pages.clear();
    last_page = nullptr;
    block_number = 0;
    CountedLaunch l = {};
    l.kernel = kernel_name(kernel);
    l.blocks = (unsigned)blocks;
    l.threads = c.block.x * c.block.y * c.block.z;
    l.shared_bytes = c.dynamic_bytes + static_shared_bytes(kernel.function);
    l.stream = c.stream;
    l.times = 1;
    launches.push_back(l);
    return (unsigned)(first_blocks ? std::min<size_t>(first_blocks, blocks) : blocks);
}

void block_begin() {
    block_number++;
    now[COUNT_warps] += (launches.back().threads + 31) / 32;
}

void block_end() {
    for (Warp &w : warps) meet(w);
    if (2 * block_number == first_blocks) at_half = now;
}

void grid_end() {
    CountedLaunch &l = launches.back();
    l.counts = now;
    if (block_number == l.blocks) return;
    for (int i = 0; i < COUNTERS; i++)
        l.counts[(size_t)i] +=
            (now[(size_t)i] - at_half[(size_t)i]) / (first_blocks / 2) * (l.blocks - block_number);
}

// True: it need not run.
bool product(const CountedLaunch &p) {
    for (CountedLaunch &l : launches)
        if (l.kernel == p.kernel && l.stream == p.stream) {
            l.times++;
            return first_blocks != 0;
        }
    launches.push_back(p);
    return first_blocks != 0;
}

bool only_counts() {
    return first_blocks != 0;
}

const CountHooks hooks = {grid_begin,       block_begin, block_end,  grid_end,
                          barrier_passed,   access,      async_copy, warp_operation,
                          special_function, product,     only_counts};

}  // namespace

const CountHooks *const counters = &hooks;

const std::vector<CountedLaunch> &counted_launches() {
    return launches;
}

void forget_counts() {
    launches.clear();
    known.clear();
    operations.clear();
    for (Instruction &i : instructions) i.counts = {};
}

void count_first_blocks(unsigned n) {
    first_blocks = n + n % 2;
}

// The path from the folder that the program was compiled and runs in, as __FILE__ has it.
static std::string relative(const std::string &line) {
    char folder[4096];
    if (!getcwd(folder, sizeof folder)) return line;
    size_t n = strlen(folder);
    return line.compare(0, n, folder) == 0 && line[n] == '/' ? line.substr(n + 1) : line;
}

std::vector<CountedLine> counted_lines() {
    std::map<std::string, Counts> by_line;
    auto add_to = [&](const std::string &line, const Counts &c) {
        for (size_t i = 0; i < COUNTERS; i++) by_line[line][i] += c[i];
    };
    for (const Instruction &i : instructions)
        if (i.counts != Counts{}) add_to(relative(source_line(i.pc)), i.counts);
    for (const auto &o : operations) add_to(text("%s:%d", o.first.file, o.first.line), o.second);
    std::vector<CountedLine> lines;
    for (const auto &l : by_line) lines.push_back({l.first, l.second});
    return lines;
}

#endif
}  // namespace emu
