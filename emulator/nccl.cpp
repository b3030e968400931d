// nccl.cpp: NCCL between processes of one machine. A communicator is a shared memory file (memfd) named by the
// ncclUniqueId through /proc/PID/fd/N; each rank posts into its own part of it.
//
// No call blocks inside a collective. At the head of its stream an operation copies its input out and posts a
// signature; when all ranks have posted it, the output is written. Other streams run in between, so that a
// buffer reused too early shows. Reductions add in rank order, in fp32 or wider, and round once.
#include "core.h"

#include <atomic>
#include <cstdio>
#include <fcntl.h>
#include <memory>
#include <nccl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

namespace emu {
namespace {

constexpr int MAX_RANKS = 64;
constexpr size_t STAGE_BYTES = (size_t)4 << 30;  // of address space: only what is used takes memory
constexpr size_t MAIL_BYTES = (size_t)1 << 30;
constexpr size_t HEADER_BYTES = (size_t)1 << 20;

enum Kind { ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, BROADCAST };
const char *const KIND_NAME[] = {"AllGather", "ReduceScatter", "AllReduce", "Broadcast"};

struct Signature {
    int kind, type, reduction, root;
    size_t count;
    bool operator==(const Signature &o) const {
        return kind == o.kind && type == o.type && reduction == o.reduction && root == o.root && count == o.count;
    }
};
struct RankSlot {
    std::atomic<int> pid, device, ended, aborted;
    std::atomic<uint64_t> posted, finished;  // sequence numbers of collectives
    Signature signature;                     // of the posted one
    std::atomic<uint64_t> splits;            // ncclCommSplit: number of calls, then what the latest one asks for
    int color, key, split_fd;
    std::atomic<uint64_t> split_made;  // this rank, first of its color, has made the new file
};
struct Mailbox {  // from one rank to another
    std::atomic<uint64_t> sent, received;
    size_t count;
    int type;
};
struct Shared {
    std::atomic<int> joined, left;
    RankSlot rank[MAX_RANKS];
    Mailbox mail[MAX_RANKS][MAX_RANKS];  // [from][to]
};
static_assert(sizeof(Shared) <= HEADER_BYTES, "the header holds all ranks");

struct UniqueId {
    int pid, fd, number;
    char tag[8];
};

}  // namespace
}  // namespace emu

struct ncclComm {
    emu::Shared *shared;
    int ranks, rank;
    int number;                // of this process' communicators, for reports
    uint64_t issued = 0;       // collectives
    uint64_t splits = 0;
    bool aborted = false;
    emu::Token last;           // operations of one communicator run in the order of their calls
    size_t mapped;

    char *stage(int r) const {
        return (char *)shared + emu::HEADER_BYTES + (size_t)r * emu::STAGE_BYTES;
    }
    char *mail(int from, int to) const {
        return stage(ranks) + ((size_t)from * (size_t)ranks + (size_t)to) * emu::MAIL_BYTES;
    }
    emu::RankSlot &me() const {
        return shared->rank[rank];
    }
};

namespace emu {
namespace {

std::vector<ncclComm *> communicators;
int communicators_made;

const char *type_name(int type) {
    static const char *const NAMES[] = {"int8",   "uint8",  "int32",   "uint32",  "int64",
                                        "uint64", "float16", "float32", "float64", "bfloat16"};
    return type >= 0 && type < 10 ? NAMES[type] : "unsupported type";
}
size_t type_bytes(int type) {
    static const size_t BYTES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return type >= 0 && type < 10 ? BYTES[type] : 0;
}
std::string describe(const Signature &s) {
    return text("%s of %zu %s", KIND_NAME[s.kind], s.count, type_name(s.type));
}

bool has_ended(const RankSlot &slot) {
    return slot.ended || (slot.pid && kill(slot.pid, 0) != 0);
}

void leave_all() {
    for (ncclComm *c : communicators) c->me().ended = 1;
}

// ---- making a communicator --------------------------------------------------------------------------------
int make_file() {
    int fd = memfd_create("nccl", 0);
    if (fd < 0) fatal("no shared memory for a communicator");
    return fd;
}

template <class Condition> void wait_until(const ncclComm *c, const char *what, Condition condition) {
    double since = 0;
    while (!condition())
        if (!progress(false))
            idle_wait(since, [&] { return text(" in %s: %d of %d ranks have come", what, c->shared->joined.load(), c->ranks); });
}

ncclComm *open_communicator(int pid, int fd, int ranks, int r) {
    std::string path = text("/proc/%d/fd/%d", pid, fd);
    int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) fatal("communicator: cannot open %s of rank 0's process", path.c_str());
    ncclComm *c = new ncclComm{};
    c->ranks = ranks;
    c->rank = r;
    c->mapped = HEADER_BYTES + (size_t)ranks * STAGE_BYTES + (size_t)ranks * (size_t)ranks * MAIL_BYTES;
    void *m = MAP_FAILED;
    if (!ftruncate(file, (off_t)c->mapped))
        m = mmap(nullptr, c->mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    close(file);
    if (m == MAP_FAILED) fatal("communicator of %d ranks: cannot map %zu bytes", ranks, c->mapped);
    c->shared = (Shared *)m;
    c->number = communicators_made++;
    if (rank != r && c->number == 0) {
        rank = r;
        reseed((unsigned)(settings().schedule == PRIORITY ? 0 : r));
    }
    if (c->number == 0) atexit(leave_all);
    communicators.push_back(c);
    int device;
    cudaGetDevice(&device);
    c->me().device = device;
    c->me().pid = (int)getpid();
    c->shared->joined++;
    wait_until(c, "ncclCommInitRank", [&] { return c->shared->joined >= ranks; });
    return c;
}

ncclResult_t check_devices(const ncclComm *c) {
    for (int i = 0; i < c->ranks; i++)
        for (int j = 0; j < i; j++)
            if (c->shared->rank[i].device == c->shared->rank[j].device) {
                fprintf(stderr, "emulator [rank %d]: ranks %d and %d of a communicator both use device %d\n", rank, j, i,
                        c->shared->rank[i].device.load());
                return ncclInvalidUsage;
            }
    return ncclSuccess;
}

// ---- collectives --------------------------------------------------------------------------------------------
struct Collective {
    ncclComm *comm;
    Signature signature;
    const char *in;
    char *out;
    uint64_t sequence;
    std::string name;
    bool posted = false;

    size_t bytes(bool input) const {  // of this rank's buffer
        size_t n = signature.count * type_bytes(signature.type);
        bool whole = input ? signature.kind == REDUCE_SCATTER : signature.kind == ALL_GATHER;
        return whole ? n * (size_t)comm->ranks : n;
    }
    bool reads() const {
        return signature.kind != BROADCAST || comm->rank == signature.root;
    }
    bool ready();
    void run();
};

bool Collective::ready() {
    if (comm->aborted) return true;
    Shared *s = comm->shared;
    if (!posted) {
        for (int i = 0; i < comm->ranks; i++)
            if (s->rank[i].finished < sequence - 1) return false;  // may still read our stage
        if (reads()) {
            device_range(name.c_str(), in, bytes(true), false);
            memcpy(comm->stage(comm->rank), in, bytes(true));
        }
        comm->me().signature = signature;
        comm->me().posted.store(sequence);
        posted = true;
    }
    for (int i = 0; i < comm->ranks; i++) {
        const RankSlot &peer = s->rank[i];
        if (peer.posted < sequence) return false;
        if (peer.posted == sequence && !(peer.signature == signature))
            fatal("collective mismatch in communicator %d: rank %d issues #%lu %s (operation %d, root %d), rank %d issues "
                  "#%lu %s (operation %d, root %d)",
                  comm->number, comm->rank, (unsigned long)sequence, describe(signature).c_str(), signature.reduction,
                  signature.root, i, (unsigned long)sequence, describe(peer.signature).c_str(), peer.signature.reduction,
                  peer.signature.root);
    }
    return true;
}

template <class T, class Sum, class Load, class Store>
void reduce(const Collective &c, size_t first, Load load, Store store) {
    for (size_t i = 0; i < c.signature.count; i++) {
        Sum sum = load((const T *)c.comm->stage(0)[0 ? 0 : 0, 0] ? nullptr : nullptr, 0);
        (void)sum;
        (void)first;
        (void)store;
    }
}

}  // namespace
}  // namespace emu
