// fibers.cpp: runs the threads of a block as fibers on one operating-system thread: barriers, warp
// collectives, cp.async, deadlock and divergence reports, the watchdog.
//
// A "worker" fiber runs thread after thread; only a thread that blocks keeps its stack,
// and the next unstarted thread then gets a fresh fiber. A kernel without barriers is so a
// plain loop on one stack.
// The order of threads is a setting: each order finds missing barriers that the others miss.
#include "core.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#ifdef EMU_ASAN
#include <sanitizer/asan_interface.h>
extern "C" const char *__asan_default_options() {
    return "detect_leaks=0:detect_stack_use_after_return=0";
}
#endif

#ifndef __x86_64__
#error "the emulator's fiber switch is written for x86-64"
#endif

namespace emu {

Context ctx;
Kernel *running;
thread_local bool runs_kernels;
const void *last_access_pc;

#ifdef EMU_ASAN
constexpr size_t STACK_BYTES = 512 << 10;
#else
constexpr size_t STACK_BYTES = 128 << 10;
#endif
constexpr size_t PAGE = 4096;
constexpr int MAX_THREADS = 1024;

struct Fiber {
    void *sp = nullptr;
    char *stack = nullptr;  // lowest address, above a guard page
    size_t bytes = 0;
    void *fake_stack = nullptr;  // AddressSanitizer's
};

struct Warp {
    uint32_t ready, unstarted;  // lanes that can run; ready includes unstarted
    uint32_t at_barrier, waiting, exited;
    const WarpOp *op[32];  // of the waiting lanes
    uint32_t mask[32];
    Site site[32];
    WarpLane lane[32];
};

struct AsyncCopy {
    char *shared;
    const char *global;
    size_t bytes;
    bool valid;
    int group;
};
struct AsyncCopies {
    std::vector<AsyncCopy> in_flight;
    int group = 0;
};

// The block that runs.
static struct Block {
    int threads, warps, alive, arrived;
    uint32_t ready;  // warps with a ready lane
    int warp, lane;  // now running
    Order order;
    unsigned steps;  // of the sticky order
    bool downwards;
    Warp w[32];
    Fiber *fiber[MAX_THREADS];
    Fiber main, *current;
    std::vector<Fiber *> idle;
    Site barrier_site;
    int barrier_first;
    int vote[MAX_THREADS];
    uint3 thread[MAX_THREADS];
    dim3 thread_for{0, 0, 0};  // the block shape that thread[] holds
    AsyncCopies async[MAX_THREADS];
} block;
static Random random_order;

// ---- switching ---------------------------------------------------------------------------------
// Saves rbp, the resume address and the stack pointer; the clobber list makes the compiler save
// the rest. The jump at the end (no ret) keeps the processor's return stack balanced.
// Needs -mno-red-zone.
static inline __attribute__((always_inline)) void switch_stacks(void **save, void *load) {
    asm volatile("leaq 1f(%%rip), %%rax\n\t"
                 "pushq %%rbp\n\t"
                 "pushq %%rax\n\t"
                 "movq %%rsp, (%0)\n\t"
                 "movq %1, %%rsp\n\t"
                 "popq %%rax\n\t"
                 "popq %%rbp\n\t"
                 "jmp *%%rax\n"
                 "1:\n"
                 : "+D"(save), "+S"(load)
                 :
                 : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
                   "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
                   "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}

static void switch_to(Fiber *to) {
    Fiber *from = block.current;
    block.current = to;
#ifdef EMU_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->bytes);
#endif
    switch_stacks(&from->sp, to->sp);
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
#endif
}

static void thread_exit();
static void schedule(bool finished);

static void fiber_main() {
#ifdef EMU_ASAN
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    if (!block.main.stack) block.main.stack = (char *)bottom, block.main.bytes = bytes;
#endif
    for (;;) {
        running->run_thread();
        thread_exit();
        schedule(true);
    }
}

static Fiber *get_fiber() {
    if (!block.idle.empty()) {
        Fiber *f = block.idle.back();
        block.idle.pop_back();
        return f;
    }
    Fiber *f = new Fiber;
    char *m = (char *)mmap(nullptr, STACK_BYTES + PAGE, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED || mprotect(m, PAGE, PROT_NONE))
        fatal("no memory for the stack of a device thread");
    f->stack = m + PAGE;
    f->bytes = STACK_BYTES;
    void **sp = (void **)(f->stack + STACK_BYTES - 64);
    *--sp = nullptr;  // return address of fiber_main, which never returns; also aligns its frame
    *--sp = nullptr;  // rbp
    *--sp = (void *)fiber_main;
    f->sp = sp;
    return f;
}

bool on_own_stack(const void *p) {
    const char *a = (const char *)p;
    return a >= block.current->stack && a < block.current->stack + block.current->bytes;
}

// ---- which thread next -------------------------------------------------------------------------
// Sticky runs on in one direction and now and then jumps to a random lane and
// chooses a direction anew.
static int pick_up(uint32_t set, int after) {
    uint32_t higher = after >= 31 ? 0 : set & (~0u << (after + 1));
    return __builtin_ctz(higher ? higher : set);
}
static int pick_down(uint32_t set, int after) {
    uint32_t lower = after <= 0 ? 0 : set & ((1u << after) - 1);
    return 31 - __builtin_clz(lower ? lower : set);
}
static int pick_random(uint32_t set) {
    return pick_up(set, (int)(random_order.next() & 31) - 1);
}
static int pick(uint32_t set, int after) {
    switch (block.order) {
    case ASCENDING:
        return pick_up(set, after);
    case DESCENDING:
        return pick_down(set, after);
    case RANDOM_LANE:
        return pick_random(set);
    default:
        break;
    }
    if ((block.steps++ & 31) == 0) {
        block.downwards = random_order.next() & 1;
        return pick_random(set);
    }
    return block.downwards ? pick_down(set, after) : pick_up(set, after);
}

static int pick_warp() {
    bool can_stay = block.ready >> block.warp & 1;
    if (block.order == RANDOM_LANE || (block.order == STICKY && (block.steps & 63) == 0))
        can_stay = false;
    return can_stay ? block.warp : pick(block.ready, block.warp);
}

static void make_ready(int warp, uint32_t lanes) {
    if (!lanes) return;
    block.w[warp].ready |= lanes;
    block.ready |= 1u << warp;
}

static void report_deadlock() {
    std::string waits;
    if (block.arrived)
        waits += text("; %d of %d live threads wait at __syncthreads %s:%d", block.arrived,
                      block.alive, block.barrier_site.file, block.barrier_site.line);
    int shown = 0;
    for (int i = 0; i < block.warps && shown < 4; i++) {
        const Warp &w = block.w[i];
        if (!w.waiting) continue;
        int l = __builtin_ctz(w.waiting);
        waits += text("; warp %d: lanes %08x wait at %s %s:%d, whose mask is %08x", i, w.waiting,
                      w.op[l]->name, w.site[l].file, w.site[l].line, w.mask[l]);
        shown++;
    }
    device_error("deadlock, no thread can run%s", waits.c_str());
}

// Runs another thread. finished: the current thread has ended and its fiber is
// free for the next one.
static void schedule(bool finished) {
    Fiber *me = block.current;
    if (!block.ready) {
        if (block.alive) report_deadlock();
        block.idle.push_back(me);
        switch_to(&block.main);
        return;
    }
    int wi = pick_warp();
    Warp &w = block.w[wi];
    int l = pick(w.ready, wi == block.warp ? block.lane : block.order == DESCENDING ? 32 : -1);
    w.ready &= ~(1u << l);
    if (!w.ready) block.ready &= ~(1u << wi);
    block.warp = wi;
    block.lane = l;
    int thread = wi * 32 + l;
    ctx.linear = thread;
    ctx.thread = block.thread[thread];
    if (w.unstarted >> l & 1) {
        w.unstarted &= ~(1u << l);
        Fiber *f = finished ? me : get_fiber();
        block.fiber[thread] = f;
        if (f != me) switch_to(f);
    } else if (block.fiber[thread] != me) {
        if (finished) block.idle.push_back(me);
        switch_to(block.fiber[thread]);
    }
}

// ---- barriers ----------------------------------------------------------------------------------
static void release_barrier() {
    block.arrived = 0;
    if (race_detector) race_detector->barrier();
    if (counters) counters->barrier((block.alive + 31) / 32);
    for (int i = 0; i < block.warps; i++) {
        make_ready(i, block.w[i].at_barrier);
        block.w[i].at_barrier = 0;
    }
}

void barrier(Site site) {
    if (!running) fatal("%s:%d: __syncthreads on the host", site.file, site.line);
    int thread = ctx.linear;
    if (block.arrived == 0) {
        block.barrier_site = site;
        block.barrier_first = thread;
    } else if (block.barrier_site.line != site.line || strcmp(block.barrier_site.file, site.file)) {
        device_error("divergent __syncthreads: thread %d waits at %s:%d, thread %d at %s:%d",
                     block.barrier_first, block.barrier_site.file, block.barrier_site.line, thread,
                     site.file, site.line);
    }
    if (++block.arrived == block.alive) {  // the last one goes on
        release_barrier();
        return;
    }
    block.w[thread / 32].at_barrier |= 1u << thread % 32;
    schedule(false);
}

int barrier_vote(int predicate, BarrierVote vote, Site site) {
    block.vote[ctx.linear] = predicate != 0;
    barrier(site);
    int count = 0, alive = block.alive;
    for (int i = 0; i < block.threads; i++)
        if (!(block.w[i / 32].exited >> i % 32 & 1)) count += block.vote[i];
    barrier(site);  // nobody votes again before all have counted
    return vote == VOTE_OR ? count > 0 : vote == VOTE_AND ? count == alive : count;
}

// ---- warp operations ---------------------------------------------------------------------------
static void nothing(WarpLane *, uint32_t) {}
#define FOR_LANES(i, set)                                                                          \
    for (uint32_t rest_ = set; rest_; rest_ &= rest_ - 1)                                          \
        if (int i = __builtin_ctz(rest_); true)

static void compute_shuffle(WarpLane *lane, uint32_t members) {
    FOR_LANES(i, members) {
        int source = lane[i].argument;
        if (!(members >> source & 1))
            device_error("shuffle: lane %d reads lane %d, which is not in the mask or has exited",
                         i, source);
        memcpy(lane[i].out, lane[source].in, 16);
    }
}
static void compute_ballot(WarpLane *lane, uint32_t members) {
    unsigned votes = 0;
    FOR_LANES(i, members) if (*(unsigned *)lane[i].in) votes |= 1u << i;
    FOR_LANES(i, members) memcpy(lane[i].out, &votes, 4);
}
static void compute_match(WarpLane *lane, uint32_t members) {
    FOR_LANES(i, members) {
        unsigned same = 0;
        FOR_LANES(j, members) if (!memcmp(lane[i].in, lane[j].in, 8)) same |= 1u << j;
        memcpy(lane[i].out, &same, 4);
    }
}
template <class T, T (*F)(T, T)> static void compute_reduction(WarpLane *lane, uint32_t members) {
    T result = *(T *)lane[__builtin_ctz(members)].in;
    FOR_LANES(i, members & (members - 1)) result = F(result, *(T *)lane[i].in);
    FOR_LANES(i, members) memcpy(lane[i].out, &result, 4);
}
template <class T> static T op_min(T a, T b) {
    return a < b ? a : b;
}
template <class T> static T op_max(T a, T b) {
    return a > b ? a : b;
}
static unsigned op_add(unsigned a, unsigned b) {
    return a + b;
}
static unsigned op_and(unsigned a, unsigned b) {
    return a & b;
}
static unsigned op_or(unsigned a, unsigned b) {
    return a | b;
}
static unsigned op_xor(unsigned a, unsigned b) {
    return a ^ b;
}
const WarpOp warp_sync = {"__syncwarp", nothing};
const WarpOp warp_shuffle = {"a shuffle", compute_shuffle};
const WarpOp warp_ballot = {"a warp vote", compute_ballot};
const WarpOp warp_match = {"__match_any_sync", compute_match};
const WarpOp warp_add = {"__reduce_add_sync", compute_reduction<unsigned, op_add>};
const WarpOp warp_min = {"__reduce_min_sync", compute_reduction<int, op_min<int>>};
const WarpOp warp_max = {"__reduce_max_sync", compute_reduction<int, op_max<int>>};
const WarpOp warp_min_unsigned = {"__reduce_min_sync",
                                  compute_reduction<unsigned, op_min<unsigned>>};
const WarpOp warp_max_unsigned = {"__reduce_max_sync",
                                  compute_reduction<unsigned, op_max<unsigned>>};
const WarpOp warp_and = {"__reduce_and_sync", compute_reduction<unsigned, op_and>};
const WarpOp warp_or = {"__reduce_or_sync", compute_reduction<unsigned, op_or>};
const WarpOp warp_xor = {"__reduce_xor_sync", compute_reduction<unsigned, op_xor>};

int shuffle_source(Shuffle kind, int argument, int width) {
    if (width < 1 || width > 32 || (width & (width - 1)))
        device_error("shuffle: width %d is not a power of 2", width);
    int lane = ctx.linear % 32, first = lane & -width, last = first + width - 1, source;
    switch (kind) {
    case SHUFFLE_UP:
        source = lane - argument;
        break;
    case SHUFFLE_DOWN:
        source = lane + argument;
        break;
    case SHUFFLE_XOR:
        source = lane ^ argument;
        break;
    default:
        source = first + (argument & (width - 1));
        break;
    }
    if (kind == SHUFFLE_XOR)
        return source >= 0 && source <= last ? source : lane;  // may read an earlier segment
    return source < first || source > last ? lane : source;
}

// All lanes of the mask that still run have posted: computes, and makes the others ready.
static void complete(int warp, uint32_t members, const WarpOp &op) {
    Warp &w = block.w[warp];
    w.waiting &= ~members;
    op.compute(w.lane, members);
    if (race_detector && &op == &warp_sync) race_detector->warp_sync((unsigned)warp);
    if (counters)
        counters->warp_operation(op, warp, w.lane, members == ~w.exited,
                                 w.site[__builtin_ctz(members)]);
}

// the operand sizes in use; a call of memcpy would cost more than the copy
static inline void copy_operand(void *to, const void *from, size_t bytes) {
    switch (bytes) {
    case 0:
        break;
    case 4:
        memcpy(to, from, 4);
        break;
    case 8:
        memcpy(to, from, 8);
        break;
    case 16:
        memcpy(to, from, 16);
        break;
    default:
        memcpy(to, from, bytes);
    }
}

void warp_exchange(const WarpOp &op, uint32_t mask, const WarpData &data, Site site) {
    if (__builtin_expect(!running, 0))
        fatal("%s:%d: %s on the host", site.file, site.line, op.name);
    int wi = ctx.linear / 32, l = ctx.linear % 32;
    Warp &w = block.w[wi];
    WarpLane &lane = w.lane[l];
    if (__builtin_expect(!(mask >> l & 1), 0))
        device_error("%s at %s:%d: lane %d is not in its own mask %08x", op.name, site.file,
                     site.line, l, mask);
    copy_operand(lane.in, data.in, data.in_bytes);
    lane.argument = data.argument;
    w.op[l] = &op;
    w.mask[l] = mask;
    w.site[l] = site;
    // a lane that waits for us must wait in this very operation; one that does
    // not may come here later
    FOR_LANES(i, w.waiting & mask) {
        if (w.mask[i] == mask && w.op[i] == &op) break;
        if (w.mask[i] >> l & 1)
            device_error("divergent warp: lane %d at %s %s:%d with mask %08x, lane %d at %s %s:%d "
                         "with mask %08x",
                         l, op.name, site.file, site.line, mask, i, w.op[i]->name, w.site[i].file,
                         w.site[i].line, w.mask[i]);
    }
    w.waiting |= 1u << l;
    uint32_t members = mask & ~w.exited;
    if ((w.waiting & members) == members) {
        complete(wi, members, op);
        make_ready(wi, members & ~(1u << l));
    } else {
        schedule(false);
    }
    copy_operand(data.out, lane.out, data.out_bytes);
}

// ---- cp.async ----------------------------------------------------------------------------------
// The bytes land at once or as late as the wait, by chance: a missing barrier
// shows with one of the two.
static void land(const AsyncCopy &c) {
    if (c.valid)
        memcpy(c.shared, c.global, c.bytes);
    else
        memset(c.shared, 0, c.bytes);
}
static void note_copy(const AsyncCopy &c) {
    if (c.valid) note_access(c.global, c.bytes, false);
    note_access(c.shared, c.bytes, true);
}

void cp_async(void *shared, const void *global, size_t bytes, bool valid) {
    if ((size_t)shared % bytes || (size_t)global % bytes)
        device_error("cp.async: %p <- %p is not aligned to %zu bytes", shared, global, bytes);
    // Where nothing is read no other check sees the address.
    const Allocation *from = valid ? nullptr : find_allocation(global);
    if (!valid && (!from || (const char *)global + bytes > from->begin + from->bytes))
        device_error("cp.async: %p, of which nothing is read, is not in live memory", global);
    AsyncCopies &mine = block.async[ctx.linear];
    AsyncCopy c = {(char *)shared, (const char *)global, bytes, valid, mine.group};
    note_copy(c);
    if (counters) counters->async_copy(shared, global, bytes, valid, __builtin_return_address(0));
    bool at_once =
        block.order == DESCENDING || (block.order >= RANDOM_LANE && random_order.next() & 1);
    if (at_once) land(c);
    mine.in_flight.push_back(c);
}

void cp_async_commit() {
    block.async[ctx.linear].group++;
}

void cp_async_wait(int groups_left) {
    AsyncCopies &mine = block.async[ctx.linear];
    std::vector<AsyncCopy> all;
    all.swap(mine.in_flight);
    for (const AsyncCopy &c : all) {
        if (c.group < mine.group - groups_left) {
            note_copy(c);
            land(c);
        } else {
            mine.in_flight.push_back(c);
        }
    }
}

bool copy_in_flight(const void *p, size_t bytes) {
    for (const AsyncCopy &c : block.async[ctx.linear].in_flight)
        if ((const char *)p < c.shared + c.bytes && (const char *)p + bytes > c.shared) return true;
    return false;
}

// ---- blocks and grids --------------------------------------------------------------------------
static void thread_exit() {
    int thread = ctx.linear, wi = thread / 32, l = thread % 32;
    if (!block.async[thread].in_flight.empty())
        device_error("the thread ends with cp.async copies in flight");
    block.async[thread].group = 0;
    Warp &w = block.w[wi];
    w.exited |= 1u << l;
    block.alive--;
    for (uint32_t waiting = w.waiting; waiting;) {  // was it the last one that others wait for?
        int i = __builtin_ctz(waiting);
        uint32_t members = w.mask[i] & ~w.exited;
        if ((w.waiting & members) == members) {
            complete(wi, members, *w.op[i]);
            make_ready(wi, members);
        }
        waiting &= ~(members | 1u << i);
    }
    if (block.alive && block.arrived == block.alive) release_barrier();
}

static void name_threads(dim3 shape) {
    dim3 &known = block.thread_for;
    if (known.x == shape.x && known.y == shape.y && known.z == shape.z) return;
    known = shape;
    int i = 0;
    for (unsigned z = 0; z < shape.z; z++)
        for (unsigned y = 0; y < shape.y; y++)
            for (unsigned x = 0; x < shape.x; x++) block.thread[i++] = {x, y, z};
}

static void run_block(int threads) {
    block.threads = block.alive = threads;
    block.warps = (threads + 31) / 32;
    block.arrived = 0;
    for (int i = 0; i < block.warps; i++) {
        int lanes = threads - i * 32;
        uint32_t present = lanes >= 32 ? ~0u : (1u << lanes) - 1;
        Warp &w = block.w[i];
        w.ready = w.unstarted = present;
        w.exited = ~present;
        w.at_barrier = w.waiting = 0;
    }
    block.ready = block.warps == 32 ? ~0u : (1u << block.warps) - 1;
    block.warp = block.order == DESCENDING ? block.warps - 1 : 0;
    block.lane = block.order == DESCENDING ? 32 : -1;
    if (ctx.dynamic_bytes) memset(ctx.dynamic, 0xff, ctx.dynamic_bytes);  // NaN
    if (race_detector) race_detector->block_begin();
    if (counters) counters->block_begin();
    // the first worker starts as if its previous thread had ended
    Fiber *first = get_fiber();
    Fiber *main = &block.main;
    block.current = main;
    int wi = pick_warp(), l = pick(block.w[wi].ready, block.lane);
    block.w[wi].ready &= ~(1u << l);
    block.w[wi].unstarted &= ~(1u << l);
    if (!block.w[wi].ready) block.ready &= ~(1u << wi);
    block.warp = wi;
    block.lane = l;
    ctx.linear = wi * 32 + l;
    ctx.thread = block.thread[ctx.linear];
    block.fiber[ctx.linear] = first;
    switch_to(first);
    if (counters) counters->block_end();
}

static void on_signal(int number, siginfo_t *info, void *machine) {
    // source_line expects an address behind the instruction. In the race build we are
    // mostly in its callbacks.
    const void *pc = (const void *)(((ucontext_t *)machine)->uc_mcontext.gregs[REG_RIP] + 1);
    if (last_access_pc) pc = last_access_pc;
    bool in_kernel = running && (runs_kernels || number == SIGPROF);
    if (!in_kernel) {  // not ours
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    if (number == SIGPROF)
        device_error("still running after %d s of processor time: it spins, at %s",
                     settings().kernel_seconds, source_line(pc).c_str());
    const char *a = (const char *)info->si_addr, *stack = block.current->stack;
    if (a >= stack - PAGE && a < stack)
        device_error("stack overflow of a device thread (%zu KiB) at %s", STACK_BYTES >> 10,
                     source_line(pc).c_str());
    device_error("signal %d, address %p, at %s", number, info->si_addr, source_line(pc).c_str());
}

static void install_signals() {
    static bool installed = false;
    if (installed) return;
    installed = true;
    constexpr size_t BYTES = 256 << 10;
    stack_t alternate = {};
    alternate.ss_sp = malloc(BYTES);
    alternate.ss_size = BYTES;
    sigaltstack(&alternate, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigaction(SIGPROF, &action, nullptr);
    for (int number : {SIGSEGV, SIGBUS, SIGFPE}) sigaction(number, &action, nullptr);
}

static void watchdog(int seconds) {
    struct itimerval timer = {};
    timer.it_value.tv_sec = seconds;
    setitimer(ITIMER_PROF, &timer, nullptr);
}

void run_grid(Kernel &kernel) {
    const LaunchConfig &c = kernel.config;
    static bool seeded = false;
    if (!seeded) random_order.seed(settings().seed);
    seeded = true;
    install_signals();
    // an allocation of its own, of exactly this size: AddressSanitizer then sees its ends
    size_t rounded = (c.dynamic_bytes + 127) / 128 * 128;
    ctx.dynamic = rounded ? aligned_alloc(128, rounded) : nullptr;
    ctx.dynamic_bytes = c.dynamic_bytes;
#ifdef EMU_ASAN
    if (rounded)
        __asan_poison_memory_region((char *)ctx.dynamic + c.dynamic_bytes,
                                    rounded - c.dynamic_bytes);
#endif
    ctx.block_dim = c.block;
    ctx.grid_dim = c.grid;
    name_threads(c.block);
    running = &kernel;
    runs_kernels = true;
    block.order = settings().order;
    watchdog(settings().kernel_seconds);
    size_t blocks = (size_t)c.grid.x * c.grid.y * c.grid.z;
    if (counters) blocks = counters->grid_begin(kernel);
    for (size_t i = 0; i < blocks; i++) {
        size_t b = block.order == DESCENDING ? blocks - 1 - i : i;
        ctx.block = {(unsigned)(b % c.grid.x), (unsigned)(b / c.grid.x % c.grid.y),
                     (unsigned)(b / ((size_t)c.grid.x * c.grid.y))};
        run_block((int)(c.block.x * c.block.y * c.block.z));
    }
    watchdog(0);
    if (race_detector) race_detector->grid_end();
    if (counters && blocks) counters->grid_end();
    running = nullptr;
#ifdef EMU_ASAN
    if (rounded) __asan_unpoison_memory_region(ctx.dynamic, rounded);
#endif
    free(ctx.dynamic);
    ctx.dynamic = nullptr;
}

// ---- what the compiler's callbacks cannot see --------------------------------------------------
void note_access(const void *p, size_t bytes, bool write) {
    if (race_detector) race_detector->access(p, bytes, write, false, __builtin_return_address(0));
}
void note_atomic(const void *p, size_t bytes) {
    if (race_detector) race_detector->access(p, bytes, true, true, __builtin_return_address(0));
    if (counters) counters->access(p, bytes, true, true, __builtin_return_address(0));
}
void note_fence() {
    if (race_detector) race_detector->fence();
}

}  // namespace emu
