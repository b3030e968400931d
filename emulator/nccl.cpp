// nccl.cpp: NCCL between processes of one machine. A communicator is a shared memory file (memfd)
// named by the ncclUniqueId through /proc/PID/fd/N; each rank posts into its own part of it.
//
// No call blocks inside a collective. At the head of its stream an operation copies its input
// out and posts a signature; when all ranks have posted it, the output is written. Other streams
// run in between, so that a buffer reused too early shows. Reductions add in rank order, in fp32
// or wider, and round once.
#include "core.h"

#include <atomic>
#include <cstdio>
#include <fcntl.h>
#include <map>
#include <memory>
#include <nccl.h>
#include <set>
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
    long
        at;  // of all ranks' data within its registered buffer, see ncclComm::offset; -1: it is not
    bool operator==(const Signature &o) const {
        return kind == o.kind && type == o.type && reduction == o.reduction && root == o.root &&
               count == o.count && at == o.at;
    }
};
struct RankSlot {
    std::atomic<int> pid, device, ended, aborted;
    std::atomic<uint64_t> posted, finished;  // sequence numbers of collectives
    Signature signature;                     // of the posted one
    std::atomic<uint64_t>
        splits;  // ncclCommSplit: number of calls, then what the latest one asks for
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
    int number;           // of this process' communicators, for reports
    uint64_t issued = 0;  // collectives
    uint64_t splits = 0;
    bool aborted = false;
    emu::Token last;  // operations of one communicator run in the order of their calls
    size_t mapped;
    std::map<const char *, size_t> registered;  // buffers, with their bytes
    std::set<int> connected;                    // see connect

    // Of p within the registered buffer that holds it, -1: none does.
    long offset(const void *p) const {
        auto after = registered.upper_bound((const char *)p);
        if (after == registered.begin()) return -1;
        --after;
        long at = (const char *)p - after->first;
        return at < (long)after->second ? at : -1;
    }

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

char last_error[128];  // see ncclGetLastError

// `function` fails on demand (EMU_FAIL), as NCCL does with a warning.
ncclResult_t failure(const char *function, int code) {
    const int error = injected_failure(function, code);
    if (error) snprintf(last_error, sizeof last_error, "%s fails on demand", function);
    return (ncclResult_t)error;
}

std::set<void *> nccl_memory;  // of ncclMemAlloc
std::vector<ncclComm *> communicators;
int communicators_made;

const char *type_name(int type) {
    static const char *const NAMES[] = {"int8",   "uint8",   "int32",   "uint32",  "int64",
                                        "uint64", "float16", "float32", "float64", "bfloat16"};
    return type >= 0 && type < 10 ? NAMES[type] : "unsupported type";
}
size_t type_bytes(int type) {
    static const size_t BYTES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return type >= 0 && type < 10 ? BYTES[type] : 0;
}
std::string describe(const Signature &s) {
    std::string out = text("%s of %zu %s", KIND_NAME[s.kind], s.count, type_name(s.type));
    return s.at < 0 ? out : out + text(" at byte %ld of registered memory", s.at);
}

bool has_ended(const RankSlot &slot) {
    return slot.ended || (slot.pid && kill(slot.pid, 0) != 0);
}

void leave_all() {
    for (ncclComm *c : communicators) c->me().ended = 1;
}

// ---- making a communicator ---------------------------------------------------------------------
int make_file() {
    int fd = memfd_create("nccl", 0);
    if (fd < 0) fatal("no shared memory for a communicator");
    return fd;
}

template <class Condition>
void wait_until(const ncclComm *c, const char *what, Condition condition) {
    double since = 0;
    while (!condition())
        if (!progress(false))
            idle_wait(since, [&] {
                return text(" in %s: %d of %d ranks have come", what, c->shared->joined.load(),
                            c->ranks);
            });
}

ncclComm *open_communicator(int pid, int fd, int ranks, int r) {
    std::string path = text("/proc/%d/fd/%d", pid, fd);
    int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) fatal("communicator: cannot open %s of rank 0's process", path.c_str());
    ncclComm *c = new ncclComm{};
    c->ranks = ranks;
    c->rank = r;
    c->mapped =
        HEADER_BYTES + (size_t)ranks * STAGE_BYTES + (size_t)ranks * (size_t)ranks * MAIL_BYTES;
    void *m = MAP_FAILED;
    if (!ftruncate(file, (off_t)c->mapped))
        m = mmap(nullptr, c->mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    close(file);
    if (m == MAP_FAILED) fatal("communicator of %d ranks: cannot map %zu bytes", ranks, c->mapped);
    c->shared = (Shared *)m;
    c->number = communicators_made++;
    if (c->number > 0 && !getenv("NCCL_LAUNCH_ORDER_IMPLICIT"))
        fatal("communicator %d of a process: its operations and those of the others have no order "
              "(NCCL_LAUNCH_ORDER_IMPLICIT)",
              c->number);
    if (rank != r && c->number == 0) {
        rank = r;
        reseed((unsigned)(settings().schedule == PRIORITY ? 0 : r));
    }
    if (c->number == 0) atexit(leave_all);
    communicators.push_back(c);
    int device;
    cudaGetDevice(&device);
    c->me().device = settings().pci_bus + device;  // its place, whatever number it has here
    c->me().pid = (int)getpid();
    c->shared->joined++;
    wait_until(c, "ncclCommInitRank", [&] { return c->shared->joined >= ranks; });
    return c;
}

// In the count build one rank may run without the others: nothing is sent.
bool alone() {
    return counters && counters->only_counts();
}

ncclResult_t check_devices(const ncclComm *c) {
    for (int i = 0; i < c->ranks; i++)
        for (int j = 0; j < i; j++)
            if (c->shared->rank[i].device == c->shared->rank[j].device) {
                fprintf(
                    stderr,
                    "emulator [rank %d]: ranks %d and %d of a communicator both use device %d\n",
                    rank, j, i, c->shared->rank[i].device.load());
                return ncclInvalidUsage;
            }
    return ncclSuccess;
}

// ---- collectives -------------------------------------------------------------------------------
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
            fatal("collective mismatch in communicator %d: rank %d issues #%lu %s (operation %d, "
                  "root %d), rank %d issues "
                  "#%lu %s (operation %d, root %d)",
                  comm->number, comm->rank, (unsigned long)sequence, describe(signature).c_str(),
                  signature.reduction, signature.root, i, (unsigned long)sequence,
                  describe(peer.signature).c_str(), peer.signature.reduction, peer.signature.root);
    }
    return true;
}

// Accumulator: fp32 for the 16-bit formats.
template <class T> struct Wide { typedef T type; };
template <> struct Wide<__nv_bfloat16> { typedef float type; };
template <> struct Wide<__half> { typedef float type; };

template <class T> void reduce(const Collective &c) {
    size_t n = c.signature.count,
           first = c.signature.kind == REDUCE_SCATTER ? n * (size_t)c.comm->rank : 0;
    std::vector<const T *> part;
    for (int r = 0; r < c.comm->ranks; r++) part.push_back((const T *)c.comm->stage(r) + first);
    T *out = (T *)c.out;
    for (size_t i = 0; i < n; i++) {
        typename Wide<T>::type x = part[0][i];
        for (size_t r = 1; r < part.size(); r++) {
            typename Wide<T>::type y = part[r][i];
            switch (c.signature.reduction) {
            case ncclSum:
                x = x + y;
                break;
            case ncclMax:
                x = y > x ? y : x;
                break;
            default:
                x = y < x ? y : x;
                break;
            }
        }
        out[i] = (T)x;
    }
}

void reduce_by_type(const Collective &c) {
    switch (c.signature.type) {
    case ncclInt8:
        return reduce<int8_t>(c);
    case ncclUint8:
        return reduce<uint8_t>(c);
    case ncclInt32:
        return reduce<int32_t>(c);
    case ncclUint32:
        return reduce<uint32_t>(c);
    case ncclInt64:
        return reduce<int64_t>(c);
    case ncclUint64:
        return reduce<uint64_t>(c);
    case ncclFloat16:
        return reduce<__half>(c);
    case ncclFloat32:
        return reduce<float>(c);
    case ncclFloat64:
        return reduce<double>(c);
    default:
        return reduce<__nv_bfloat16>(c);
    }
}

void Collective::run() {
    if (comm->aborted) return;
    device_range(name.c_str(), out, bytes(false), true);
    size_t each = bytes(true);
    switch (signature.kind) {
    case ALL_GATHER:
        for (int r = 0; r < comm->ranks; r++) memcpy(out + (size_t)r * each, comm->stage(r), each);
        break;
    case BROADCAST:
        memcpy(out, comm->stage(signature.root), each);
        break;
    default:
        reduce_by_type(*this);
    }
    comm->me().finished.store(sequence);
}

// In place means exactly: AllGather in == out + rank*count, ReduceScatter out ==
// in + rank*count, else in == out.
bool overlaps_wrongly(const Collective &c) {
    size_t in_bytes = c.bytes(true), out_bytes = c.bytes(false);
    bool apart = c.in + in_bytes <= c.out || c.out + out_bytes <= c.in;
    if (apart || !c.reads()) return false;
    if (c.signature.kind == ALL_GATHER) return c.in != c.out + (size_t)c.comm->rank * in_bytes;
    if (c.signature.kind == REDUCE_SCATTER) return c.out != c.in + (size_t)c.comm->rank * out_bytes;
    return c.in != c.out;
}

// ---- send and receive --------------------------------------------------------------------------
struct Message {
    bool send;
    int peer;
    char *buffer;
    size_t count;
    int type;
    bool done = false;
    size_t bytes() const {
        return count * type_bytes(type);
    }
};
// The sends and receives of one group go on together. A send is complete when
// its peer has taken it.
struct Exchange {
    ncclComm *comm;
    std::vector<Message> messages;
    std::string name;
    uint64_t awaited[MAX_RANKS] = {};  // by peer: messages sent, to be taken

    bool ready();
    bool try_send(Message &m);
    bool try_receive(Message &m);
};

bool Exchange::try_send(Message &m) {
    Mailbox &box = comm->shared->mail[comm->rank][m.peer];
    if (box.sent != box.received) return false;  // the previous message is still there
    device_range(name.c_str(), m.buffer, m.bytes(), false);
    memcpy(comm->mail(comm->rank, m.peer), m.buffer, m.bytes());
    box.count = m.count;
    box.type = m.type;
    awaited[m.peer] = ++box.sent;
    return true;
}

bool Exchange::try_receive(Message &m) {
    Mailbox &box = comm->shared->mail[m.peer][comm->rank];
    if (box.sent == box.received) return false;
    if (box.count != m.count || box.type != m.type)
        fatal("communicator %d: rank %d receives %zu %s from rank %d, which sends %zu %s",
              comm->number, comm->rank, m.count, type_name(m.type), m.peer, box.count,
              type_name(box.type));
    device_range(name.c_str(), m.buffer, m.bytes(), true);
    memcpy(m.buffer, comm->mail(m.peer, comm->rank), m.bytes());
    box.received++;
    return true;
}

bool Exchange::ready() {
    if (comm->aborted) return true;
    bool complete = true;
    for (size_t i = 0; i < messages.size(); i++) {
        Message &m = messages[i];
        bool earlier = false;  // messages of one pair keep their order
        for (size_t j = 0; j < i; j++)
            earlier |=
                !messages[j].done && messages[j].send == m.send && messages[j].peer == m.peer;
        if (!m.done && !earlier) m.done = m.send ? try_send(m) : try_receive(m);
        complete &= m.done;
    }
    for (int r = 0; r < comm->ranks; r++)
        complete &= comm->shared->mail[comm->rank][r].received >= awaited[r];
    return complete;
}

// ---- groups: calls between ncclGroupStart and ncclGroupEnd are queued at its end ---------------
struct Call {
    ncclComm *comm;
    cudaStream_t stream;
    bool collective;
    Signature signature;  // of a collective
    const void *in;
    void *out;
    Message message;  // else
};
int group_depth;
std::vector<Call> group;

void queue_collective(const Call &call) {
    ncclComm *comm = call.comm;
    auto c = std::make_shared<Collective>();
    c->comm = comm;
    c->signature = call.signature;
    c->in = (const char *)call.in;
    c->out = (char *)call.out;
    c->sequence = ++comm->issued;
    c->name = text("nccl%s #%lu of communicator %d", describe(c->signature).c_str(),
                   (unsigned long)c->sequence, comm->number);
    if (overlaps_wrongly(*c))
        fatal("%s: the buffers overlap, but not as in-place operation asks", c->name.c_str());
    Operation o = {c->name, [c] { c->run(); }, [c] { return c->ready(); }, {}, {}};
    if (comm->last) o.after_too.push_back(comm->last);
    comm->last = enqueue(stream_of(call.stream), o);
}

void queue_exchange(const std::vector<Call> &calls) {
    ncclComm *comm = calls[0].comm;
    auto e = std::make_shared<Exchange>();
    e->comm = comm;
    std::string list;
    for (const Call &call : calls) {
        const Message &m = call.message;
        e->messages.push_back(m);
        list += text("%s %zu %s %s rank %d", list.empty() ? "" : ",", m.count, type_name(m.type),
                     m.send ? "to" : "from", m.peer);
        if (call.stream != calls[0].stream) fatal("ncclSend/ncclRecv of one group on two streams");
    }
    e->name = text("nccl exchange in communicator %d:%s", comm->number, list.c_str());
    Operation o = {e->name, nullptr, [e] { return e->ready(); }, {}, {}};
    if (comm->last) o.after_too.push_back(comm->last);
    comm->last = enqueue(stream_of(calls[0].stream), o);
}

void queue_group() {
    std::vector<Call> calls;
    calls.swap(group);
    for (size_t i = 0; i < calls.size(); i++) {
        if (!calls[i].comm) continue;
        if (calls[i].collective) {
            queue_collective(calls[i]);
            continue;
        }
        std::vector<Call> exchange;
        ncclComm *comm = calls[i].comm;
        for (size_t j = i; j < calls.size(); j++) {
            if (calls[j].comm != comm || calls[j].collective) continue;
            exchange.push_back(calls[j]);
            calls[j].comm = nullptr;
        }
        queue_exchange(exchange);
    }
}

ncclResult_t add(const Call &call) {
    size_t bytes = call.collective ? call.signature.count * type_bytes(call.signature.type)
                                   : call.message.bytes();
    size_t limit = call.collective ? STAGE_BYTES / (size_t)call.comm->ranks : MAIL_BYTES;
    if (bytes > limit)
        fatal("a collective of %zu bytes is more than the emulator takes (%zu)", bytes, limit);
    group.push_back(call);
    if (group_depth == 0) queue_group();
    return ncclSuccess;
}

// The real one takes memory for an algorithm when a collective first needs it, which follows from
// its kind and size, and for a peer at the first message (NCCL_RUNTIME_CONNECT). Here each has its
// own: `way` is 2 * kind + (long), or that of the peer.
bool connect(ncclComm *c, int way) {
    if (c->ranks == 1 || c->connected.count(way)) return true;
    if (!take_memory((long)settings().nccl_memory)) {
        snprintf(last_error, sizeof last_error, "no memory for a connection");
        return false;
    }
    c->connected.insert(way);
    return true;
}

// Memory of ncclMemAlloc is there to be registered; a communicator that does not know it copies.
void expect_registered(const char *function, const ncclComm *comm, const void *p) {
    const Allocation *a = find_allocation(p);
    if (a && nccl_memory.count((void *)a->begin) && comm->offset(p) < 0)
        fatal("%s: memory of ncclMemAlloc that is not registered with communicator %d", function,
              comm->number);
}

ncclResult_t collective(const char *function, Kind kind, const void *in, void *out, size_t count,
                        ncclDataType_t type, int reduction, int root, ncclComm *comm,
                        cudaStream_t stream) {
    if (ncclResult_t error = failure(function, ncclSystemError)) return error;
    if (alone()) return ncclSuccess;
    bool known = reduction == ncclSum || reduction == ncclMax || reduction == ncclMin;
    if (!comm || comm->aborted || !type_bytes(type) || !known || root < 0 || root >= comm->ranks) {
        fprintf(stderr,
                "emulator [rank %d]: %s: communicator, type %d, reduction %d or root %d is not "
                "valid here\n",
                rank, function, (int)type, reduction, root);
        return ncclInvalidArgument;
    }
    if (!connect(comm, 2 * kind + (count * type_bytes(type) >= 1024)))
        return ncclUnhandledCudaError;
    Call call{};
    call.comm = comm;
    call.stream = stream;
    call.collective = true;
    expect_registered(function, comm, in), expect_registered(function, comm, out);
    const long from = comm->offset(in), to = comm->offset(out);
    call.signature = {kind, type,  reduction,
                      root, count, from < 0 || to < 0 ? -1 : kind == ALL_GATHER ? to : from};
    call.in = in;
    call.out = out;
    return add(call);
}

ncclResult_t message(const char *function, bool send, void *buffer, size_t count,
                     ncclDataType_t type, int peer, ncclComm *comm, cudaStream_t stream) {
    if (ncclResult_t error = failure(function, ncclSystemError)) return error;
    if (alone()) return ncclSuccess;
    if (!comm || comm->aborted || !type_bytes(type) || peer < 0 || peer >= comm->ranks)
        return ncclInvalidArgument;
    if (peer != comm->rank && !connect(comm, 2 * (BROADCAST + 1) + peer))
        return ncclUnhandledCudaError;
    expect_registered(function, comm, buffer);
    Call call{};
    call.comm = comm;
    call.stream = stream;
    call.message = {send, peer, (char *)buffer, count, type};
    return add(call);
}

}  // namespace

std::string describe_communicators() {
    std::string out;
    for (const ncclComm *c : communicators)
        for (int r = 0; r < c->ranks; r++) {
            const RankSlot &slot = c->shared->rank[r];
            uint64_t posted = slot.posted;
            out += text("\n    communicator %d rank %d: posted #%lu%s%s, finished #%lu%s",
                        c->number, r, (unsigned long)posted, posted ? " " : "",
                        posted ? describe(slot.signature).c_str() : "",
                        (unsigned long)slot.finished.load(),
                        has_ended(slot) ? " (its process has ended)" : "");
        }
    return out;
}

}  // namespace emu

using namespace emu;

#define MAY_FAIL(code)                                                                             \
    if (ncclResult_t error = failure(__func__, code)) return error

extern "C" {

ncclResult_t ncclGetVersion(int *version) {
    *version = settings().nccl_version;
    return ncclSuccess;
}
const char *ncclGetErrorString(ncclResult_t result) {
    static const char *const NAMES[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "in progress"};
    return result >= 0 && result < ncclNumResults ? NAMES[result] : "unknown result code";
}

// The real one keeps the last warning of this process, "" if there was none.
const char *ncclGetLastError(ncclComm_t) {
    return last_error;
}

// The file stays open in this process, where the other ranks find it.
ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    MAY_FAIL(ncclSystemError);
    static int number;
    UniqueId u = {(int)getpid(), make_file(), number++, "emu"};
    memset(id, 0, sizeof *id);
    memcpy(id, &u, sizeof u);
    return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int r,
                                    ncclConfig_t *config) {
    const ncclConfig_t fresh = NCCL_CONFIG_INITIALIZER;
    if (config->magic != fresh.magic || (config->maxCTAs != fresh.maxCTAs && config->maxCTAs < 1))
        return ncclInvalidArgument;
    return ncclCommInitRank(comm, ranks, id, r);
}
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int r) {
    MAY_FAIL(ncclSystemError);
    if (alone()) {
        *comm = new ncclComm{};
        return ncclSuccess;
    }
    UniqueId u;
    memcpy(&u, &id, sizeof u);
    if (ranks < 1 || ranks > MAX_RANKS || r < 0 || r >= ranks || strcmp(u.tag, "emu"))
        return ncclInvalidArgument;
    *comm = open_communicator(u.pid, u.fd, ranks, r);
    return check_devices(*comm);
}

// Ranks of one color form a communicator, ordered by key, then by their rank here.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *) {
    MAY_FAIL(ncclSystemError);
    if (alone()) {
        *out = new ncclComm{};
        return ncclSuccess;
    }
    if (!comm || comm->aborted || (color < 0 && color != NCCL_SPLIT_NOCOLOR))
        return ncclInvalidArgument;
    RankSlot &me = comm->me();
    uint64_t call = ++comm->splits;
    me.color = color;
    me.key = key;
    me.splits.store(call);
    RankSlot *all = comm->shared->rank;
    wait_until(comm, "ncclCommSplit", [&] {
        for (int i = 0; i < comm->ranks; i++)
            if (all[i].splits < call) return false;
        return true;
    });
    int members = 0, position = 0, first = -1;
    for (int i = 0; i < comm->ranks; i++) {
        if (all[i].color != color) continue;
        members++;
        position += all[i].key < key || (all[i].key == key && i < comm->rank);
        if (first < 0) first = i;
    }
    *out = nullptr;
    if (color != NCCL_SPLIT_NOCOLOR) {
        if (first == comm->rank) {
            me.split_fd = make_file();
            me.split_made.store(call);
        }
        wait_until(comm, "ncclCommSplit", [&] { return all[first].split_made >= call; });
        *out = open_communicator(all[first].pid, all[first].split_fd, members, position);
    }
    // nobody may begin the next split before all have read this one
    comm->shared->left++;
    wait_until(comm, "ncclCommSplit",
               [&] { return comm->shared->left >= (int)call * comm->ranks; });
    return ncclSuccess;
}

static void forget(ncclComm *comm) {
    comm->me().ended = 1;
    for (size_t i = 0; i < communicators.size(); i++)
        if (communicators[i] == comm) communicators.erase(communicators.begin() + (long)i);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    MAY_FAIL(ncclSystemError);
    if (!comm) return ncclInvalidArgument;
    if (!comm->registered.empty())
        fatal("ncclCommDestroy of communicator %d: memory is still registered with it",
              comm->number);
    wait_for(comm->last);
    forget(comm);
    take_memory(-(long)(comm->connected.size() * settings().nccl_memory));
    munmap(comm->shared, comm->mapped);
    delete comm;
    return ncclSuccess;
}
// Pending operations complete without effect; peers see ncclRemoteError. The handle's memory stays.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    MAY_FAIL(ncclSystemError);
    if (!comm) return ncclInvalidArgument;
    comm->aborted = true;
    comm->me().aborted = 1;
    forget(comm);
    return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    *error = failure(__func__, ncclRemoteError);
    if (!comm) return ncclInvalidArgument;
    for (int r = 0; r < comm->ranks; r++) {
        const RankSlot &slot = comm->shared->rank[r];
        bool left_us = slot.posted < comm->issued && has_ended(slot);
        if (slot.aborted || left_us) *error = ncclRemoteError;
    }
    return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int *ranks) {
    *ranks = comm->ranks;
    return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *r) {
    *r = comm->rank;
    return ncclSuccess;
}

// ---- memory: NCCL's own, from which registered collectives need no copies ----------------------
// Before 2.28 the real one rounds up to what is recommended for multicast.
ncclResult_t ncclMemAlloc(void **p, size_t bytes) {
    MAY_FAIL(ncclUnhandledCudaError);
    constexpr size_t MULTICAST = (size_t)512 << 20;
    if (settings().nccl_version < NCCL_VERSION(2, 28, 0))
        bytes = (bytes + MULTICAST - 1) / MULTICAST * MULTICAST;
    if (cudaMalloc(p, bytes) != cudaSuccess) return ncclUnhandledCudaError;
    nccl_memory.insert(*p);
    return ncclSuccess;
}
ncclResult_t ncclMemFree(void *p) {
    MAY_FAIL(ncclUnhandledCudaError);
    for (const ncclComm *c : communicators)
        if (c->offset(p) >= 0)
            fatal("ncclMemFree of memory that is registered with a communicator");
    if (!nccl_memory.erase(p)) fatal("ncclMemFree of memory that is not of ncclMemAlloc");
    return cudaFree(p) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buffer, size_t bytes, void **handle) {
    MAY_FAIL(ncclSystemError);
    if (!comm || !buffer || !bytes) return ncclInvalidArgument;
    if (!nccl_memory.count(buffer)) fatal("ncclCommRegister of memory that is not of ncclMemAlloc");
    comm->registered[(const char *)buffer] = bytes;
    *handle = buffer;
    return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle) {
    MAY_FAIL(ncclSystemError);
    return comm && comm->registered.erase((const char *)handle) ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclGroupStart() {
    MAY_FAIL(ncclSystemError);
    group_depth++;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
    MAY_FAIL(ncclSystemError);
    if (group_depth == 0) return ncclInvalidUsage;
    if (--group_depth == 0) queue_group();
    return ncclSuccess;
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    return collective(__func__, ALL_GATHER, in, out, count, type, ncclSum, 0, comm, stream);
}
ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return collective(__func__, REDUCE_SCATTER, in, out, count, type, op, 0, comm, stream);
}
ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return collective(__func__, ALL_REDUCE, in, out, count, type, op, 0, comm, stream);
}
ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    return collective(__func__, BROADCAST, in, out, count, type, ncclSum, root, comm, stream);
}
ncclResult_t ncclSend(const void *buffer, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
    return message(__func__, true, (void *)buffer, count, type, peer, comm, stream);
}
ncclResult_t ncclRecv(void *buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return message(__func__, false, buffer, count, type, peer, comm, stream);
}

}  // extern "C"
