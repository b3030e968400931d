// cpu/nccl.cpp: collectives between processes, see nccl.h.
//
// A collective is a sequence of rounds. In a round each rank copies a piece of its data into its
// staging area, announces the round, waits for the others' announcements and reads their areas:
// two memory copies in all. Areas are used alternately: a rank announces round n only after it
// has read everything of round n-1, so an area may be written again two rounds later without
// a further barrier. The head of an area carries the call's signature, which every reader
// compares with its own.
// What lies in a window (cpu_share) on all ranks is read there, between two rounds
// that move nothing.
#include "nccl.h"

#include "window.h"

#include "../lib/die.h"
#include <algorithm>
#include <atomic>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>
#ifdef USE_MPI
#include <mpi.h>
#endif

// Bytes of data in a staging area: large enough to amortise a round, small enough to stay in cache.
#define STAGE_BYTES ((size_t)1 << 20)

struct Place {
    int64_t window;  // index of a window, -1: in none
    size_t offset;
};

struct Signature {
    char tag[16];  // the operation
    uint64_t round, count;
    int32_t type, op;
    Place at;  // of data that is read where it lies
};

struct alignas(64) Area {
    Signature signature;
    alignas(64) char data[STAGE_BYTES];
};

struct alignas(64) Lane {  // of one local rank
    std::atomic<uint64_t> announced;
    std::atomic<uint32_t> bell;      // rings at every announcement
    std::atomic<uint32_t> sleepers;  // ranks that wait for it to ring
    Area areas[2];
};

struct Shared {
    uint64_t token[2];  // random: a rank that opens the file knows by it that it is the right one
    alignas(64) Lane lanes[];
};

struct ncclComm {
    int rank, size;
    uint64_t round;
    Shared *shared;
    size_t shared_bytes;
    int spins;                    // polls before going to sleep
    std::vector<int> lane;        // of each rank on this node; -1: on another node
    std::vector<Area *> inbound;  // where a remote rank's area arrives (two per rank)
    std::vector<Window> windows;  // only if all ranks are on this node
#ifdef USE_MPI
    MPI_Comm mpi;
    std::vector<MPI_Request> requests;
#endif
};

// ---- shared memory: an anonymous file, opened by the others through its owner's /proc entry ----

// In a container with process numbers of its own the entry may belong to another process: the file
// is only taken if it holds the token.
struct FileAddress {
    int64_t pid, fd;
    uint64_t token[2];
};

static size_t shared_bytes(int lanes) {
    return sizeof(Shared) + sizeof(Lane) * (size_t)lanes;
}

static FileAddress shared_create(void) {
    FileAddress at = {getpid(), memfd_create("fsdp-collectives", 0), {}};
    if (at.fd < 0) die("shared memory: cannot create a file for it, %m");
    if (getrandom(at.token, sizeof at.token, 0) != (ssize_t)sizeof at.token ||
        pwrite((int)at.fd, at.token, sizeof at.token, 0) != (ssize_t)sizeof at.token)
        die("shared memory: cannot write a random number, %m");
    return at;
}

// Gives the file its size.
static void shared_resize(FileAddress at, int lanes) {
    if (ftruncate((int)at.fd, (off_t)shared_bytes(lanes)))
        die("shared memory for %d ranks: cannot make a file of %zu bytes (see ulimit -f), %m",
            lanes, shared_bytes(lanes));
}

// The descriptor of the file at this address; -1 if it is not to be had from here.
static int shared_open(FileAddress at) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/fd/%ld", (long)at.pid, (long)at.fd);
    struct stat s;
    if (stat(path, &s) || !S_ISREG(s.st_mode)) return -1;  // to open a device may do things
    int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    uint64_t token[2];
    if (fd >= 0 && pread(fd, token, sizeof token, 0) == (ssize_t)sizeof token &&
        !memcmp(token, at.token, sizeof token))
        return fd;
    if (fd >= 0) close(fd);
    return -1;
}

// False if the memory cannot be shared from here. created: by this process, which may not find
// itself in /proc.
static bool shared_attach(ncclComm *c, FileAddress at, int lanes, bool created) {
    int fd = created ? dup((int)at.fd) : shared_open(at);
    if (fd < 0) return false;
    c->shared_bytes = shared_bytes(lanes);
    void *p = mmap(NULL, c->shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) die("shared memory: cannot map %zu bytes, %m", c->shared_bytes);
    close(fd);
    c->shared = (Shared *)p;
    c->spins = lanes <= (int)sysconf(_SC_NPROCESSORS_ONLN) ? 2000 : 50;
    return true;
}

static void shared_detach(ncclComm *c) {
    munmap(c->shared, c->shared_bytes);
    c->shared = NULL;
}

// ---- one round ---------------------------------------------------------------------------------

static Area *own_area(const ncclComm *c, uint64_t round) {
    return &c->shared->lanes[c->lane[c->rank]].areas[round & 1];
}

// The staging area for the next round.
static char *round_open(ncclComm *c) {
    return own_area(c, c->round + 1)->data;
}

static void announce(Lane *lane, uint64_t round) {
    lane->announced.store(round);
    lane->bell.fetch_add(1);
    if (lane->sleepers.load() > 0)
        syscall(SYS_futex, &lane->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

// Announces the round: rank j may read bytes [j*stride, j*stride + bytes) of the staging area.
static void round_post(ncclComm *c, Signature s, size_t stride, size_t bytes) {
    c->round++;
    Area *own = own_area(c, c->round);
    s.round = c->round;
    own->signature = s;
    announce(&c->shared->lanes[c->lane[c->rank]], c->round);
    (void)stride, (void)bytes;
#ifdef USE_MPI
    for (int j = 0; j < c->size; j++) {
        if (c->lane[j] >= 0) continue;
        Area *in = &c->inbound[j][c->round & 1];
        MPI_Request r[4];
        MPI_Irecv(&in->signature, sizeof s, MPI_BYTE, j, 0, c->mpi, &r[0]);
        MPI_Irecv(in->data + (size_t)c->rank * stride, (int)bytes, MPI_BYTE, j, 1, c->mpi, &r[1]);
        MPI_Isend(&own->signature, sizeof s, MPI_BYTE, j, 0, c->mpi, &r[2]);
        MPI_Isend(own->data + (size_t)j * stride, (int)bytes, MPI_BYTE, j, 1, c->mpi, &r[3]);
        c->requests.insert(c->requests.end(), r, r + 4);
    }
#endif
}

struct Words {
    char text[96];
};

// "AllReduce of 7 fp32 (sum)"
static Words describe(const Signature &s) {
    static const char *const types[] = {"uint8", "int32", "fp32", "fp64", "bf16"};
    static const char *const ops[] = {" (sum)", " (max)"};
    bool reduces = strstr(s.tag, "Reduce") && (unsigned)s.op < 2;
    Words w;
    int n = snprintf(w.text, sizeof w.text, "%.15s of %lu %s%s", s.tag, (unsigned long)s.count,
                     (unsigned)s.type < 5 ? types[s.type] : "?", reduces ? ops[s.op] : "");
    if (s.at.window >= 0)
        snprintf(w.text + n, sizeof w.text - (size_t)n, " at byte %zu of shared buffer %d",
                 s.at.offset, (int)s.at.window);
    return w;
}

// Does the main thread wait for another rank? Read by the watchdog's thread.
static std::atomic<bool> waiting;

bool cpu_collective_waits(void) {
    return waiting;
}

static inline void spin_pause(void) {
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

// Polls for some tens of microseconds, then sleeps: others may have a use for the core.
static void wait_for_announcement(const ncclComm *c, Lane *lane) {
    for (int n = 0; n < c->spins; n++) {
        if (lane->announced.load(std::memory_order_acquire) >= c->round) return;
        spin_pause();
    }
    waiting = true;
    lane->sleepers++;
    while (true) {
        const uint32_t rung = lane->bell.load();
        if (lane->announced.load() >= c->round) break;
        syscall(SYS_futex, &lane->bell, FUTEX_WAIT, rung, NULL, NULL, 0);
    }
    lane->sleepers--;
    waiting = false;
}

// Rank j's staging area of the current round, once it is there.
static const char *round_read(ncclComm *c, int j) {
    const Area *area;
    if (c->lane[j] >= 0) {
        Lane *lane = &c->shared->lanes[c->lane[j]];
        wait_for_announcement(c, lane);
        area = &lane->areas[c->round & 1];
    } else {
#ifdef USE_MPI
        waiting = true;
        MPI_Waitall((int)c->requests.size(), c->requests.data(), MPI_STATUSES_IGNORE);
        waiting = false;
        c->requests.clear();
#endif
        area = &c->inbound[j][c->round & 1];
    }
    const Signature *own = &own_area(c, c->round)->signature, *s = &area->signature;
    if (strcmp(own->tag, s->tag) || own->count != s->count || own->type != s->type ||
        own->op != s->op || own->at.window != s->at.window || own->at.offset != s->at.offset)
        die("collective %lu: rank %d calls %s, rank %d calls %s", (unsigned long)c->round, c->rank,
            describe(*own).text, j, describe(*s).text);
    return area->data;
}

// A round that moves nothing: over when all have come to it.
static void round_done(ncclComm *c, Signature s) {
    round_post(c, s, 0, 0);
    for (int j = 0; j < c->size; j++) round_read(c, j);
}

// ---- communicators -----------------------------------------------------------------------------

static Signature sign(const char *tag, size_t count, int type, int op) {
    Signature s = {};
    snprintf(s.tag, sizeof s.tag, "%s", tag);
    s.count = count, s.type = type, s.op = op, s.at.window = -1;
    return s;
}

// Gathers a few bytes of every rank; used to build communicators.
static void exchange_small(ncclComm *c, const void *mine, void *all, size_t bytes) {
    memcpy(round_open(c), mine, bytes);
    round_post(c, sign("CommSplit", bytes, 0, 0), 0, bytes);
    for (int j = 0; j < c->size; j++)
        memcpy((char *)all + (size_t)j * bytes, round_read(c, j), bytes);
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    // The number of ranks is not known yet: rank 0 sizes the file in ncclCommInitRankConfig.
    memset(id, 0, sizeof *id);
    const FileAddress at = shared_create();
    memcpy(id->internal, &at, sizeof at);
    return ncclSuccess;
}

#ifdef USE_MPI
static bool mpi_running(void) {
    int on = 0;
    MPI_Initialized(&on);
    return on;
}

// The communicator of the ranks that this one shares a node's memory with, and c attached to it.
// Ranks that cannot open the first one's file, as they are in other containers, try it among
// themselves; one that is left alone has memory for itself.
static MPI_Comm attach_to_node(ncclComm *c, MPI_Comm node) {
    while (true) {
        int lane, lanes, together;
        MPI_Comm_rank(node, &lane);
        MPI_Comm_size(node, &lanes);
        FileAddress at = {};
        if (lane == 0) {
            at = shared_create();
            shared_resize(at, lanes);
        }
        MPI_Bcast(&at, sizeof at, MPI_BYTE, 0, node);
        const bool here = shared_attach(c, at, lanes, lane == 0);
        MPI_Comm part;
        MPI_Comm_split(node, here, lane, &part);  // all have tried
        if (lane == 0) close((int)at.fd);
        MPI_Comm_free(&node);
        MPI_Comm_size(part, &together);
        if (here && together == lanes) return part;
        if (here) shared_detach(c);
        node = part;
    }
}

// Builds c from an MPI communicator over the same ranks: who shares this node, and the node's
// memory. FSDP_RANKS_PER_NODE=n treats every n consecutive ranks as a node, so that one machine can
// test several.
static void attach_over_mpi(ncclComm *c, MPI_Comm mpi) {
    c->mpi = mpi;
    MPI_Comm node;
    int world_rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    const char *pretend = getenv("FSDP_RANKS_PER_NODE");
    if (pretend && atoi(pretend) > 0)
        MPI_Comm_split(mpi, world_rank / atoi(pretend), c->rank, &node);
    else
        MPI_Comm_split_type(mpi, MPI_COMM_TYPE_SHARED, c->rank, MPI_INFO_NULL, &node);
    node = attach_to_node(c, node);
    struct {
        int host, lane;  // ranks that share memory have one host: the smallest of their numbers
    } mine = {}, *all = (decltype(mine) *)calloc((size_t)c->size, sizeof mine);
    if (!all) die("out of memory for a table of %d ranks", c->size);
    MPI_Comm_rank(node, &mine.lane);
    MPI_Allreduce(&world_rank, &mine.host, 1, MPI_INT, MPI_MIN, node);
    MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, mpi);
    c->lane.resize((size_t)c->size);
    c->inbound.resize((size_t)c->size);
    for (int j = 0; j < c->size; j++) {
        c->lane[j] = all[j].host == mine.host ? all[j].lane : -1;
        if (c->lane[j] < 0) c->inbound[j] = (Area *)aligned_alloc(64, 2 * sizeof(Area));
    }
    free(all);
    MPI_Comm_free(&node);
}
#endif

// Attaches c, a communicator of ranks without MPI, once the file has its size.
static void attach_here(ncclComm *c, FileAddress at) {
    const int fd = c->rank == 0 ? (int)at.fd : shared_open(at);
    struct stat s = {};
    if (fd < 0 && access("/proc/self/fd", X_OK))
        die("shared memory: expected /proc to be mounted, %m");
    while (fd >= 0 && fstat(fd, &s) == 0 && (size_t)s.st_size < shared_bytes(c->size))
        sched_yield();
    if (c->rank && fd >= 0) close(fd);
    if (!shared_attach(c, at, c->size, c->rank == 0))
        die("rank %d cannot open the shared memory of rank 0: without MPI the ranks of the CPU "
            "build have to be on one machine, in one container; use mpirun",
            c->rank);
    for (int j = 0; j < c->size; j++) c->lane.push_back(j);
    c->inbound.resize((size_t)c->size);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    (void)config;
    ncclComm *c = new ncclComm();
    c->rank = rank, c->size = nranks;
    *comm = c;
#ifdef USE_MPI
    if (mpi_running()) {
        MPI_Comm mpi;
        MPI_Comm_dup(MPI_COMM_WORLD, &mpi);
        attach_over_mpi(c, mpi);
        return ncclSuccess;
    }
#endif
    FileAddress at;
    memcpy(&at, id.internal, sizeof at);
    if (rank == 0) shared_resize(at, nranks);
    attach_here(c, at);
    uint64_t token = 0;
    std::vector<uint64_t> tokens((size_t)nranks);
    exchange_small(c, &token, tokens.data(), sizeof token);  // all have it open
    if (rank == 0) close((int)at.fd);
    return ncclSuccess;
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *split, void *config) {
    if (config) return ncclInvalidArgument;
    struct Member {
        int color, key, rank;
        FileAddress at;
    } mine = {color, key, parent->rank, {}};
    std::vector<Member> all((size_t)parent->size), group;
    exchange_small(parent, &mine, all.data(), sizeof mine);
    for (const Member &m : all)
        if (m.color == color && color != NCCL_SPLIT_NOCOLOR) group.push_back(m);
    std::stable_sort(group.begin(), group.end(),
                     [](const Member &a, const Member &b) { return a.key < b.key; });
    ncclComm *c = new ncclComm();
    c->size = (int)group.size();
    for (size_t i = 0; i < group.size(); i++)
        if (group[i].rank == parent->rank) c->rank = (int)i;
    *split = color == NCCL_SPLIT_NOCOLOR ? NULL : c;
#ifdef USE_MPI
    if (mpi_running()) {
        MPI_Comm mpi;
        MPI_Comm_split(parent->mpi, *split ? color : MPI_UNDEFINED, key, &mpi);
        if (*split)
            attach_over_mpi(c, mpi);
        else
            delete c;
        return ncclSuccess;
    }
#endif
    if (*split && c->rank == 0) {
        mine.at = shared_create();
        shared_resize(mine.at, c->size);
    }
    exchange_small(parent, &mine, all.data(), sizeof mine);
    if (*split) attach_here(c, all[(size_t)group[0].rank].at);
    exchange_small(parent, &mine, all.data(), sizeof mine);  // all have it open
    if (*split && c->rank == 0) close((int)mine.at.fd);
    if (!*split) delete c;
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c) {
    for (Window &w : c->windows) window_close(&w);
    shared_detach(c);
    for (Area *a : c->inbound) free(a);
#ifdef USE_MPI
    if (mpi_running()) MPI_Comm_free(&c->mpi);
#endif
    delete c;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t *error) {
    *error = ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t) {
    return ncclSuccess;
}

const char *ncclGetLastError(ncclComm_t) {
    return "";
}

const char *ncclGetErrorString(ncclResult_t result) {
    return result == ncclSuccess       ? "no error"
           : result == ncclSystemError ? "system error"
                                       : "invalid argument or a form that the CPU device lacks";
}

// ---- windows -----------------------------------------------------------------------------------

// The file of a window, made by rank 0 and opened by the others; -1 if it is not to be had.
static int window_file(ncclComm *c, const Window *w) {
    struct {
        FileAddress at;
        bool there;
    } mine = {};
    if (c->rank == 0) {
        mine.at = shared_create();
        mine.there = window_resize(w, (int)mine.at.fd);
        if (!mine.there) close((int)mine.at.fd);
    }
    std::vector<decltype(mine)> all((size_t)c->size);
    exchange_small(c, &mine, all.data(), sizeof mine);
    if (!all[0].there) return -1;
    return c->rank == 0 ? (int)mine.at.fd : shared_open(all[0].at);
}

bool cpu_share(ncclComm_t c, void *data, size_t bytes, bool one) {
    round_done(c, sign(one ? "ShareOne" : "Share", bytes, ncclUint8, 0));
    const bool together = std::count(c->lane.begin(), c->lane.end(), -1) == 0;
    if (c->size == 1 || !together || bytes < (size_t)sysconf(_SC_PAGESIZE)) return false;
    Window w = window_plan(data, bytes, one, c->rank, c->size);
    const int fd = window_file(c, &w);
    const char mine = fd >= 0 && window_look(&w, fd);
    std::vector<char> all((size_t)c->size);
    exchange_small(c, &mine, all.data(), sizeof mine);
    const bool shared = std::count(all.begin(), all.end(), 0) == 0;
    if (shared) {
        window_open(&w, fd);
        c->windows.push_back(w);
    } else {
        window_look_away(&w);
    }
    if (fd >= 0) close(fd);
    return shared;
}

void cpu_barrier(ncclComm_t c, size_t count) {
    round_done(c, sign("Barrier", count, ncclUint8, 0));
}

static Place place_of(const ncclComm *c, const void *data, size_t bytes) {
    for (size_t i = 0; i < c->windows.size(); i++) {
        const Window *w = &c->windows[i];
        const size_t offset = (size_t)data - (size_t)w->own;
        if (offset <= w->bytes && bytes <= w->bytes - offset) return {(int64_t)i, offset};
    }
    return {-1, 0};
}

const void *cpu_parts(ncclComm_t c, const void *data, size_t bytes, size_t *stride) {
    const Place p = place_of(c, data, bytes);
    if (p.window < 0 || !c->windows[(size_t)p.window].all) return NULL;
    *stride = c->windows[(size_t)p.window].stride;
    return window_at(&c->windows[(size_t)p.window], 0, p.offset);
}

// Announces a call whose parts for the ranks (bytes each) lie in a window of all of them, at one
// offset; parts[j] becomes where what rank j has for this one can be read. False if they do not.
static bool find_parts(ncclComm *c, Signature *s, const std::vector<const char *> &mine,
                       size_t bytes, std::vector<const char *> &parts) {
    s->at = place_of(c, mine[0], bytes);
    for (const char *part : mine)
        if (place_of(c, part, bytes).window != s->at.window) s->at = {-1, 0};
    if (s->at.window < 0) return false;
    round_done(c, *s);
    const Window *w = &c->windows[(size_t)s->at.window];
    for (int j = 0; j < c->size; j++)
        parts[(size_t)j] = window_at(w, j, (size_t)(mine[(size_t)c->rank] - w->own));
    return true;
}

// ---- copies and sums ---------------------------------------------------------------------------

static size_t type_bytes(ncclDataType_t type) {
    switch (type) {
    case ncclUint8:
        return 1;
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclFloat32:
        return 4;
    case ncclFloat64:
        return 8;
    }
    return 0;
}

static void copy(void *dst, const void *src, size_t bytes) {
    int threads = omp_get_max_threads();
    if (bytes < 65536 || threads == 1) {
        memcpy(dst, src, bytes);
        return;
    }
    size_t part = (bytes / (size_t)threads + 63) / 64 * 64;
#pragma omp parallel for
    for (int t = 0; t < threads; t++) {
        size_t from = (size_t)t * part;
        if (from < bytes)
            memcpy((char *)dst + from, (const char *)src + from, std::min(part, bytes - from));
    }
}

// The numbers that are their own wide form (bf16.h has float and bf16).
static double to_float(double x) {
    return x;
}

static void store_float(double *dst, double x) {
    *dst = x;
}

static int to_float(int x) {
    return x;
}

static void store_float(int *dst, int x) {
    *dst = x;
}

template <class T, class Wide>
static void combine_typed(T *dst, const std::vector<const char *> &parts, size_t n,
                          ncclRedOp_t op) {
    const size_t BLOCK = 1024;
#pragma omp parallel for
    for (size_t from = 0; from < n; from += BLOCK) {
        size_t m = std::min(BLOCK, n - from);
        Wide acc[BLOCK];
        const T *first = (const T *)parts[0] + from;
        for (size_t i = 0; i < m; i++) acc[i] = (Wide)to_float(first[i]);
        for (size_t k = 1; k < parts.size(); k++) {
            const T *p = (const T *)parts[k] + from;
            if (op == ncclSum)
                for (size_t i = 0; i < m; i++) acc[i] += (Wide)to_float(p[i]);
            else
                for (size_t i = 0; i < m; i++) {
                    Wide x = (Wide)to_float(p[i]);
                    if (x > acc[i] || x != x) acc[i] = x;
                }
        }
        for (size_t i = 0; i < m; i++) store_float(&dst[from + i], acc[i]);
    }
}

// dst = parts[0] + parts[1] + ..., in this order (or the maximum).
static void combine(void *dst, const std::vector<const char *> &parts, size_t n,
                    ncclDataType_t type, ncclRedOp_t op) {
    switch (type) {
    case ncclBfloat16:
        combine_typed<bf16, float>((bf16 *)dst, parts, n, op);
        break;
    case ncclFloat32:
        combine_typed<float, float>((float *)dst, parts, n, op);
        break;
    case ncclFloat64:
        combine_typed<double, double>((double *)dst, parts, n, op);
        break;
    case ncclInt32:
        combine_typed<int, int>((int *)dst, parts, n, op);
        break;
    case ncclUint8:
        die("sums of bytes: expected a number type in a reduction");
    }
}

// ---- collectives -------------------------------------------------------------------------------

// Gathers into one memory of all ranks: every part is there when all have come.
static bool gather_in_one(ncclComm *c, Signature *s, const char *out, size_t bytes) {
    const Place at = place_of(c, out, bytes * (size_t)c->size);
    if (at.window < 0 || c->windows[(size_t)at.window].all) return false;
    s->at = at;
    round_done(c, *s);
    return true;
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t sendcount, ncclDataType_t type,
                           ncclComm_t c, cudaStream_t) {
    size_t bytes = sendcount * type_bytes(type);
    char *out = (char *)recv;
    if (out + (size_t)c->rank * bytes != send) memmove(out + (size_t)c->rank * bytes, send, bytes);
    Signature s = sign("AllGather", sendcount, type, 0);
    if (c->size == 1 || gather_in_one(c, &s, out, bytes)) return ncclSuccess;
    for (size_t at = 0; at < bytes; at += STAGE_BYTES) {
        size_t n = std::min(STAGE_BYTES, bytes - at);
        copy(round_open(c), (const char *)send + at, n);
        round_post(c, s, 0, n);
        for (int j = 0; j < c->size; j++) {
            const char *part = round_read(c, j);
            if (j != c->rank) copy(out + (size_t)j * bytes + at, part, n);
        }
    }
    return ncclSuccess;
}

// Bytes per destination that fit into a staging area with one part for each rank.
static size_t part_bytes(const ncclComm *c) {
    return STAGE_BYTES / (size_t)c->size / 64 * 64;
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t recvcount, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t c, cudaStream_t) {
    size_t bytes = recvcount * type_bytes(type), part = part_bytes(c);
    std::vector<const char *> parts((size_t)c->size), mine((size_t)c->size);
    if (c->size == 1) {
        if (recv != send) memmove(recv, send, bytes);
        return ncclSuccess;
    }
    Signature s = sign("ReduceScatter", recvcount, type, op);
    for (size_t j = 0; j < mine.size(); j++) mine[j] = (const char *)send + j * bytes;
    if (find_parts(c, &s, mine, bytes, parts)) {
        combine(recv, parts, recvcount, type, op);
        round_done(c, s);
        return ncclSuccess;
    }
    for (size_t at = 0; at < bytes; at += part) {
        size_t n = std::min(part, bytes - at);
        char *stage = round_open(c);
        for (size_t j = 0; j < (size_t)c->size; j++)
            if ((int)j != c->rank) copy(stage + j * part, mine[j] + at, n);
        round_post(c, s, part, n);
        for (int j = 0; j < c->size; j++)
            parts[(size_t)j] = round_read(c, j) + (size_t)c->rank * part;
        parts[(size_t)c->rank] = mine[(size_t)c->rank] + at;
        combine((char *)recv + at, parts, n / type_bytes(type), type, op);
    }
    return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t c, cudaStream_t) {
    size_t bytes = count * type_bytes(type);
    std::vector<const char *> parts((size_t)c->size);
    if (c->size == 1) {
        if (recv != send) memmove(recv, send, bytes);
        return ncclSuccess;
    }
    for (size_t at = 0; at < bytes; at += STAGE_BYTES) {
        size_t n = std::min(STAGE_BYTES, bytes - at);
        copy(round_open(c), (const char *)send + at, n);
        round_post(c, sign("AllReduce", count, type, op), 0, n);
        for (int j = 0; j < c->size; j++) parts[(size_t)j] = round_read(c, j);
        combine((char *)recv + at, parts, n / type_bytes(type), type, op);
    }
    return ncclSuccess;
}

// ---- grouped Send and Recv: an all-to-all ------------------------------------------------------

static struct {
    int depth;
    ncclComm *comm;
    std::vector<const char *> send;
    std::vector<char *> recv;
    size_t bytes;
    int calls;
} group;

// Files one call of the group under its peer; false if the group is no all-to-all of equal parts.
static bool group_add(ncclComm *c, size_t bytes, int peer) {
    if (group.depth == 0) return false;
    if (group.calls++ == 0) {
        group.comm = c, group.bytes = bytes;
        group.send.assign((size_t)c->size, NULL);
        group.recv.assign((size_t)c->size, NULL);
    }
    return group.comm == c && group.bytes == bytes && peer >= 0 && peer < c->size;
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t) {
    if (!group_add(c, count * type_bytes(type), peer)) return ncclInvalidArgument;
    group.send[(size_t)peer] = (const char *)send;
    return ncclSuccess;
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t) {
    if (!group_add(c, count * type_bytes(type), peer)) return ncclInvalidArgument;
    group.recv[(size_t)peer] = (char *)recv;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void) {
    group.depth++;
    return ncclSuccess;
}

static void all_to_all(ncclComm *c, size_t bytes) {
    size_t part = part_bytes(c), me = (size_t)c->rank;
    std::vector<const char *> parts((size_t)c->size);
    Signature s = sign("SendRecv", bytes, 0, 0);
    if (group.send[me] != group.recv[me]) memmove(group.recv[me], group.send[me], bytes);
    if (c->size > 1 && find_parts(c, &s, group.send, bytes, parts)) {
        for (size_t j = 0; j < parts.size(); j++)
            if (j != me) copy(group.recv[j], parts[j], bytes);
        round_done(c, s);
        return;
    }
    for (size_t at = 0; at < bytes && c->size > 1; at += part) {
        size_t n = std::min(part, bytes - at);
        char *stage = round_open(c);
        for (size_t j = 0; j < (size_t)c->size; j++)
            if (j != me) copy(stage + j * part, group.send[j] + at, n);
        round_post(c, s, part, n);
        for (size_t j = 0; j < (size_t)c->size; j++) {
            const char *in = round_read(c, (int)j);
            if (j != me) copy(group.recv[j] + at, in + me * part, n);
        }
    }
}

ncclResult_t ncclGroupEnd(void) {
    if (--group.depth > 0 || group.calls == 0) return ncclSuccess;
    ncclComm *c = group.comm;
    bool complete = group.calls == 2 * c->size;
    for (int j = 0; complete && j < c->size; j++)
        complete = group.send[(size_t)j] && group.recv[(size_t)j];
    group.calls = 0;
    if (!complete) return ncclInvalidArgument;
    all_to_all(c, group.bytes);
    return ncclSuccess;
}
