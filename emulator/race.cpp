// race.cpp: memory checks and data-race detection, in the race build only.
//
// The compiler instruments kernels and host code (g++ -fsanitize=thread); instead of its
// runtime these callbacks are linked. Global, pinned and shared memory have shadow cells,
// one per two bytes, that hold the last writer and two readers. Two accesses of which one
// writes must be ordered:
//   inside a block       same thread, or a barrier between, or __syncwarp between two lanes of a
//                        warp (shuffles do not order memory), or both atomic
//   between blocks       never, except: fence, atomic by the one, then atomic on that address by
//                        the other
//   between operations   by happens-before: vector clocks over streams and host (streams.cpp)
#include "core.h"

namespace emu {

#ifndef EMU_RACE

const RaceDetector *const race_detector = nullptr;

#else

}  // namespace emu

#include <algorithm>
#include <map>
#include <set>
#include <sys/mman.h>

namespace emu {

namespace {

struct Access {
    uint32_t record;  // operation; 0 with `by_host`: host code at that clock
    uint32_t pc;      // offset in the program; 0: none (a copy, a collective)
    uint64_t block : 24, thread : 10, atomic : 1, valid : 1, by_host : 1, barrier : 12, warp : 13;
    uint64_t bytes : 2;  // which of the cell's two
};
static_assert(sizeof(Access) == 16, "shadow memory is large enough as it is");
struct Cell {  // two bytes of memory
    Access write, read[2];
};
constexpr size_t GRANULE = 2;
enum Space { GLOBAL, PINNED, SHARED };
const char *const SPACE_NAME[] = {"global", "pinned host", "shared"};

// Sparse shadow of memory: chunks of 64 KiB, made on first use,
// with a direct-mapped cache in front.
class Shadow {
    static constexpr size_t CACHED = 1024;
    std::map<size_t, std::vector<Cell>> chunks;
    struct {
        size_t chunk;
        Cell *cells;
    } cache[CACHED] = {};

  public:
    static constexpr size_t CHUNK = 64 << 10;
    Cell *at(const void *p) {
        size_t chunk = (size_t)p / CHUNK;
        auto &c = cache[chunk % CACHED];
        if (c.chunk != chunk) {
            std::vector<Cell> &cells = chunks[chunk];
            if (cells.empty()) cells.resize(CHUNK / GRANULE);
            c = {chunk, cells.data()};
        }
        return c.cells + (size_t)p % CHUNK / GRANULE;
    }
    // Forgets a range; chunks that lie in it whole are given back.
    void forget(const void *p, size_t bytes) {
        size_t begin = (size_t)p, end = begin + bytes;
        auto c = chunks.lower_bound(begin / CHUNK);
        while (c != chunks.end() && c->first * CHUNK < end) {
            size_t first = std::max(begin, c->first * CHUNK),
                   last = std::min(end, (c->first + 1) * CHUNK);
            if (last - first < CHUNK) {
                for (size_t i = first; i < last; i += GRANULE)
                    c->second[i % CHUNK / GRANULE] = Cell{};
                ++c;
                continue;
            }
            cache[c->first % CACHED] = {};
            c = chunks.erase(c);
        }
    }
};

Shadow global;              // device and pinned memory
std::vector<Cell> dynamic;  // the block's dynamic shared memory
Shadow statics;             // static shared variables
uint32_t block_number, barriers;
uint32_t warp_syncs[32];
bool block_fenced;
std::map<const void *, std::set<uint32_t>>
    released;                 // address of an atomic -> blocks that fenced before it
std::set<uint32_t> acquired;  // blocks whose writes this block may read

uint32_t offset_of(const void *pc) {
    extern char executable_start asm("__executable_start");
    return (uint32_t)((const char *)pc - &executable_start);
}
std::string line_of(const Access &a) {
    extern char executable_start asm("__executable_start");
    return a.pc ? source_line(&executable_start + a.pc) : "";
}

// ---- ordering ----------------------------------------------------------------------------------
uint32_t clock_at(const VectorClock &clock, int stream) {
    return (size_t)stream < clock.size() ? clock[(size_t)stream] : 0;
}

// earlier in real time: old. Is it also before `now` in happens-before?
bool operations_ordered(const Access &old, const Access &now) {
    const VectorClock &clock = now.by_host ? host_clock : records[now.record].clock;
    if (old.by_host)
        return now.by_host || clock_at(clock, 0) > old.record;  // record: the host's clock then
    const Record &r = records[old.record];
    return clock_at(clock, r.stream) >= r.index;
}

bool ordered_between_threads(const Access &old, const Access &now, Space space) {
    if (!(old.bytes & now.bytes)) return true;
    bool same_operation = old.by_host == now.by_host && old.record == now.record;
    if (old.atomic && now.atomic && same_operation) return true;
    if (space == SHARED) {
        if (!same_operation || old.block != now.block)
            return true;  // another block's use of the storage
    } else {
        if (!same_operation || now.by_host) return operations_ordered(old, now);
        if (old.block != now.block) return acquired.count(old.block) != 0;
    }
    if (old.thread == now.thread || old.barrier != now.barrier) return true;
    return old.thread / 32 == now.thread / 32 && old.warp != now.warp;
}

inline bool ordered(const Access &old, const Access &now, Space space) {
    if (!old.valid) return true;
    bool same = old.record == now.record && old.block == now.block && old.thread == now.thread &&
                !old.by_host;
    return (same && !now.by_host) || ordered_between_threads(old, now, space);
}

std::string operation_of(const Access &a) {
    std::string where = line_of(a);
    std::string name = a.by_host ? "host code" : records[a.record].name;
    if (!a.by_host) name += text(" on stream %d", records[a.record].stream);
    return where.empty() ? name : name + " at " + where;
}

void conflict(const char *kind, const Access &old, const Access &now, Space space) {
    bool same_operation = old.by_host == now.by_host && old.record == now.record;
    if (!same_operation) {
        report("%s conflict in %s memory without an order between %s and %s", kind,
               SPACE_NAME[space], operation_of(old).c_str(), operation_of(now).c_str());
        return;
    }
    bool two_blocks = old.block != now.block, two_warps = old.thread / 32 != now.thread / 32;
    report("%s conflict in %s memory inside %s: %s and %s, %s", kind, SPACE_NAME[space],
           records[now.record].name.c_str(), line_of(old).c_str(), line_of(now).c_str(),
           two_blocks  ? "two blocks without fence and atomic"
           : two_warps ? "two warps without __syncthreads"
                       : "two lanes without __syncwarp");
}

inline void touch(Cell &cell, const Access &now, bool write, Space space) {
    if (write) {
        if (!ordered(cell.write, now, space)) conflict("write/write", cell.write, now, space);
        for (const Access &r : cell.read)
            if (!ordered(r, now, space)) conflict("read/write", r, now, space);
        cell.write = now;
        cell.read[0] = cell.read[1] = Access{};
        return;
    }
    const Access &w = cell.write;
    bool written = w.valid && (space != SHARED || (w.record == now.record && w.block == now.block));
    if (!written && space != PINNED)  // the host's libraries fill pinned memory unseen
        report("read of uninitialised %s memory by %s", SPACE_NAME[space],
               operation_of(now).c_str());
    if (!ordered(w, now, space)) conflict("write/read", w, now, space);
    Access &last = cell.read[0];
    bool same = last.record == now.record && last.block == now.block && last.thread == now.thread;
    if (!same) cell.read[1] = last;
    last = now;
}

template <class At>
void touch_range(const char *p, size_t bytes, Access now, bool write, Space space, At at) {
    const char *first = p - (size_t)p % GRANULE;
    Cell *cell = nullptr;
    for (const char *c = first; c < p + bytes; c += GRANULE, cell++) {
        if (!cell || (size_t)c % Shadow::CHUNK == 0) cell = at(c);
        now.bytes = (c >= p ? 1u : 0u) | (c + 1 < p + bytes ? 2u : 0u);
        touch(*cell, now, write, space);
    }
}

// ---- accesses ----------------------------------------------------------------------------------
Access here(const void *pc, bool atomic) {
    Access a{};
    a.valid = 1;
    a.pc = offset_of(pc);
    a.atomic = atomic;
    if (!current_record) {
        a.by_host = 1;
        a.record = host_clock[0];
        return a;
    }
    a.record = current_record;
    if (!running) return a;  // a host function on a stream
    a.block = block_number & 0xffffff;
    a.thread = (uint64_t)ctx.linear & 1023;
    a.barrier = barriers & 0xfff;
    a.warp = warp_syncs[ctx.linear / 32] & 0x1fff;
    return a;
}

// An atomic that other blocks' atomics on the same address can learn from.
void synchronise(const void *p) {
    std::set<uint32_t> &blocks = released[p];
    acquired.insert(blocks.begin(), blocks.end());
    if (block_fenced) blocks.insert(block_number & 0xffffff);
}

const char *verb(bool write) {
    return write ? "write" : "read";
}

void global_access(const char *p, size_t bytes, bool write, bool atomic, const void *pc) {
    // allocations, looked up before; nothing is freed while a kernel runs
    static struct { const char *begin, *end; } recent[16];
    static uint32_t of_record;
    if (of_record != current_record) memset(recent, 0, sizeof recent);
    of_record = current_record;
    auto &r = recent[(size_t)p / 4096 % 16];
    if (p < r.begin || p + bytes > r.end) {
        const Allocation *a = find_allocation(p);
        if (!a || p + bytes > a->begin + a->bytes)
            device_error("%s of %zu bytes out of bounds in global memory at %s", verb(write), bytes,
                         source_line(pc).c_str());
        r = {a->begin, a->begin + a->bytes};
    }
    if ((bytes & (bytes - 1)) == 0 && bytes <= 16 && (size_t)p % bytes)
        device_error("misaligned %s of %zu bytes at %s", verb(write), bytes,
                     source_line(pc).c_str());
    if (atomic) synchronise(p);
    touch_range(p, bytes, here(pc, atomic), write, GLOBAL,
                [](const char *c) { return global.at(c); });
}

template <class At>
void shared_access(const char *p, size_t bytes, bool write, bool atomic, const void *pc, At at) {
    if (copy_in_flight(p, bytes))
        report("%s of shared memory in kernel %s at %s before cp.async to it was waited for",
               verb(write), running->config.name, source_line(pc).c_str());
    touch_range(p, bytes, here(pc, atomic), write, SHARED, at);
}

void dynamic_access(const char *p, size_t bytes, bool write, bool atomic, const void *pc) {
    const char *begin = (const char *)ctx.dynamic;
    if (p + bytes > begin + ctx.dynamic_bytes)
        device_error("%s of %zu bytes out of bounds in dynamic shared memory (%zu bytes) at %s",
                     verb(write), bytes, ctx.dynamic_bytes, source_line(pc).c_str());
    shared_access(p, bytes, write, atomic, pc,
                  [begin](const char *c) { return &dynamic[(size_t)(c - begin) / GRANULE]; });
}

bool in_arguments(const char *p) {
    const char *begin = (const char *)running;
    return p >= begin && p < begin + running->bytes;
}

void kernel_access(const char *p, size_t bytes, bool write, bool atomic, const void *pc) {
    if (on_own_stack(p)) return;
    if (p >= (const char *)&ctx && p < (const char *)(&ctx + 1)) return;
    if (is_device(p)) return global_access(p, bytes, write, atomic, pc);
    const char *dynamic_begin = (const char *)ctx.dynamic;
    constexpr size_t OVERRUN = 4096;  // an index just past the end is meant for shared memory
    if (dynamic_begin && p >= dynamic_begin && p < dynamic_begin + ctx.dynamic_bytes + OVERRUN)
        return dynamic_access(p, bytes, write, atomic, pc);
    if (const StaticVariable *v = find_static(p)) {
        if (p + bytes > v->end)
            device_error("%s out of bounds of a shared array at %s", verb(write),
                         source_line(pc).c_str());
        return shared_access(p, bytes, write, atomic, pc,
                             [](const char *c) { return statics.at(c); });
    }
    if (in_arguments(p)) return;
    if (is_constant(p) && !write) return;
    device_error("%s of host memory (or out of bounds of a shared array) at %s", verb(write),
                 source_line(pc).c_str());
}

void access(const void *address, size_t bytes, bool write, bool atomic, const void *pc) {
    const char *p = (const char *)address;
    if (running && runs_kernels) {
        last_access_pc = pc;
        return kernel_access(p, bytes, write, atomic, pc);
    }
    if (is_device(p))
        fatal("host code dereferences device memory (%s) at %s", verb(write),
              source_line(pc).c_str());
    if (!is_pinned(p) || !runs_kernels) return;  // other threads' order is not known here
    const Allocation *a = find_allocation(p);
    if (!a || p + bytes > a->begin + a->bytes)
        fatal("%s out of bounds of pinned memory by the host at %s", verb(write),
              source_line(pc).c_str());
    touch_range(p, bytes, here(pc, false), write, PINNED,
                [](const char *c) { return global.at(c); });
}

// ---- the other hooks ---------------------------------------------------------------------------
void block_begin() {
    block_number =
        (uint32_t)(ctx.block.x +
                   ctx.grid_dim.x * (ctx.block.y + (size_t)ctx.grid_dim.y * ctx.block.z) + 1);
    barriers = 1;
    memset(warp_syncs, 0, sizeof warp_syncs);
    block_fenced = false;
    acquired.clear();
    dynamic.assign(ctx.dynamic_bytes / GRANULE + 1, Cell{});
}
void barrier_passed() {
    barriers++;
}
void warp_synced(unsigned warp) {
    warp_syncs[warp]++;
}
void grid_end() {
    released.clear();
}
void fenced() {
    block_fenced = true;
}
void range(const void *p, size_t bytes, bool write) {
    Access a{};
    a.valid = 1;
    a.record = current_record;
    Space space = is_pinned(p) ? PINNED : GLOBAL;
    touch_range((const char *)p, bytes, a, write, space,
                [](const char *c) { return global.at(c); });
}
void forget(const void *p, size_t bytes) {
    global.forget(p, bytes);
}

const RaceDetector detector = {block_begin, barrier_passed, warp_synced, grid_end,
                               access,      fenced,         range,       forget};

}  // namespace

const RaceDetector *const race_detector = &detector;

#endif
}  // namespace emu
