// streams.cpp: streams and events with deferred execution, copies, and the
// runtime calls about them.
//
// Every launch, asynchronous copy, collective and event is queued on its stream and runs only when
// the host waits, in an order chosen by the schedule: eager (as soon as possible), random, lazy
// (only what the wait needs), priority (random priorities with change points, after Burckhardt et
// al. 2010, "A randomized scheduler with probabilistic guarantees of finding bugs"). What a real
// device may do in some order, it does in some seed.
#include "core.h"

#include <cstdio>
#include <ctime>
#include <deque>
#include <pthread.h>
#include <set>
#include <unistd.h>

namespace emu {

struct Queued {
    Operation operation;
    Token token;
    VectorClock host;     // the host's clock when it was queued
    uint32_t record = 0;  // once started
};
struct Stream {
    int id;         // also its component of vector clocks
    bool blocking;  // synchronises with the legacy default stream
    bool destroyed = false;
    std::deque<Queued *> queue;
    Token last;
    VectorClock clock;
    uint32_t priority = 0;
};
struct Event {
    Token token;  // of the latest record
    bool timing;
};

VectorClock host_clock(1, 0);
uint32_t current_record;
std::vector<Record> records(1, Record{"the host", 0, 0, {}});
static std::vector<Stream *> streams;
static std::set<Event *> events;
static Random choices;
static bool in_host_function;

void join(VectorClock &a, const VectorClock &b) {
    if (a.size() < b.size()) a.resize(b.size());
    for (size_t i = 0; i < b.size(); i++) a[i] = std::max(a[i], b[i]);
}

static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- streams -----------------------------------------------------------------------------------
void reseed(unsigned salt) {
    choices.seed(settings().seed * 1000 + salt);
    for (Stream *s : streams) s->priority = choices.next();
}

static Stream *make_stream(bool blocking) {
    if (streams.empty() && choices.state == 1) choices.seed(settings().seed * 1000);
    Stream *s = new Stream;
    s->id = (int)streams.size() + 1;
    s->blocking = blocking;
    s->priority = choices.next();
    streams.push_back(s);
    return s;
}

static Stream *default_stream() {
    static Stream *s = make_stream(true);
    return s;
}

Stream *stream_of(cudaStream_t handle) {
    Stream *first = default_stream();
    if (!handle || handle == cudaStreamLegacy) return first;
    for (Stream *s : streams)
        if ((cudaStream_t)s == handle && !s->destroyed) return s;
    fatal("%p is not a live stream", (void *)handle);
}

Token enqueue(Stream *s, Operation operation) {
    static const pthread_t owner = pthread_self();
    if (!pthread_equal(owner, pthread_self()))
        fatal("%s: from a second thread", operation.name.c_str());
    runs_kernels = true;
    if (in_host_function)
        fatal("%s: a host function on a stream may not call CUDA", operation.name.c_str());
    Stream *legacy = default_stream();
    if (s == legacy) {
        for (Stream *o : streams)
            if (o->blocking && o != s && o->last) operation.after.push_back(o->last);
    } else if (s->blocking && legacy->last) {
        operation.after.push_back(legacy->last);
    }
    host_clock[0]++;
    Queued *q = new Queued{std::move(operation), std::make_shared<Completion>(), host_clock};
    s->queue.push_back(q);
    s->last = q->token;
    Token token = q->token;
    if (settings().schedule == EAGER)
        while (progress(false)) continue;
    return token;
}

// ---- running -----------------------------------------------------------------------------------
static bool all_done(const std::vector<Token> &tokens) {
    for (const Token &t : tokens)
        if (!t->done) return false;
    return true;
}
static bool may_start(const Queued *q) {
    return all_done(q->operation.after) && all_done(q->operation.after_too);
}

// The operation's place in happens-before: after its stream, what it waits for, and the
// host when it was queued.
static void start(Stream *s, Queued *q) {
    if (q->record) return;
    VectorClock clock = s->clock;
    join(clock, q->host);
    for (const Token &t : q->operation.after) join(clock, t->clock);
    if ((int)clock.size() <= s->id) clock.resize((size_t)s->id + 1);
    clock[(size_t)s->id]++;
    s->clock = clock;
    records.push_back({q->operation.name, s->id, clock[(size_t)s->id], clock});
    q->record = (uint32_t)records.size() - 1;
}

static bool is_ready(Stream *s) {
    Queued *q = s->queue.front();
    if (!may_start(q)) return false;
    if (!q->operation.ready) return true;
    start(s, q);
    current_record = q->record;
    bool ready = q->operation.ready();
    current_record = 0;
    return ready;
}

static void run_head(Stream *s) {
    Queued *q = s->queue.front();
    start(s, q);
    if (settings().trace)
        fprintf(stderr, "emulator [rank %d] stream %d: %s\n", rank, s->id,
                q->operation.name.c_str());
    current_record = q->record;
    if (q->operation.run) q->operation.run();
    current_record = 0;
    q->token->clock = records[q->record].clock;
    q->token->seconds = now();
    q->token->done = true;
    s->queue.pop_front();
    delete q;
    if (settings().schedule == PRIORITY && choices.next() % 16 == 0) s->priority = choices.next();
}

bool progress(bool patient) {
    constexpr int MOMENTS = 100, MOMENT_US = 20;  // for the peers of a collective
    std::vector<Stream *> startable;
    for (Stream *s : streams)
        if (!s->queue.empty() && may_start(s->queue.front())) startable.push_back(s);
    if (settings().schedule == PRIORITY && !startable.empty()) {
        Stream *best = startable[0];
        for (Stream *s : startable)
            if (s->priority > best->priority) best = s;
        for (int i = 0; i < (patient ? MOMENTS : 1); i++) {
            if (i > 0) usleep(MOMENT_US);
            if (!is_ready(best)) continue;
            run_head(best);
            return true;
        }
    }
    std::vector<Stream *> ready;
    for (Stream *s : startable)
        if (is_ready(s)) ready.push_back(s);
    if (ready.empty()) return false;
    Stream *next = ready[0];
    if (settings().schedule == RANDOM) next = ready[choices.next() % ready.size()];
    if (settings().schedule == PRIORITY)
        for (Stream *s : ready)
            if (s->priority > next->priority) next = s;
    run_head(next);
    return true;
}

// ---- the host waits ----------------------------------------------------------------------------
static std::string pending() {
    std::string out;
    for (Stream *s : streams) {
        if (s->queue.empty()) continue;
        Queued *q = s->queue.front();
        out += text("\n    stream %d: %zu operations pending, the first is %s, waiting for %s",
                    s->id, s->queue.size(), q->operation.name.c_str(),
                    may_start(q) ? "its peers" : "another stream");
    }
    return out + describe_communicators();
}

void idle_wait(double &since, const std::function<std::string()> &state) {
    if (since == 0) since = now();
    if (now() - since > settings().stall_seconds)
        fatal("no progress for %.0f s (EMU_STALL_SECONDS)%s", settings().stall_seconds,
              state().c_str());
    usleep(20);
}

static Stream *owner(const Token &token) {
    for (Stream *s : streams)
        for (Queued *q : s->queue)
            if (q->token == token) return s;
    fatal("internal: an operation that is not done is on no stream");
}

// Runs only what `token` needs; after a while of waiting for other ranks also
// the rest, which they may need.
static void wait_lazily(const Token &token) {
    double since = 0;
    int idle = 0;
    while (!token->done) {
        Stream *s = owner(token);
        Queued *q = s->queue.front();
        std::vector<Token> needs = q->operation.after;
        needs.insert(needs.end(), q->operation.after_too.begin(), q->operation.after_too.end());
        if (!all_done(needs)) {
            for (const Token &t : needs) wait_lazily(t);
        } else if (is_ready(s)) {
            run_head(s);
            since = idle = 0;
        } else if (++idle % 100 == 0 && progress(false)) {
            since = 0;
        } else {
            idle_wait(since, pending);
        }
    }
}

static void host_sees(const Token &token) {
    join(host_clock, token->clock);
    end_if_reported();
    end_if_launch_failed();
}

void wait_for(const Token &token) {
    if (!token) return;
    if (settings().schedule == LAZY) {
        wait_lazily(token);
    } else {
        double since = 0;
        while (!token->done) {
            if (progress(true))
                since = 0;
            else
                idle_wait(since, pending);
        }
    }
    host_sees(token);
}

void wait_for_all() {
    for (size_t i = 0; i < streams.size(); i++) wait_for(streams[i]->last);
    end_if_launch_failed();
}

// ---- launches ----------------------------------------------------------------------------------
void launch(std::shared_ptr<Kernel> kernel) {
    cudaError_t error;
    check_launch(*kernel, &error);
    if (error != cudaSuccess) return;
    const LaunchConfig &c = kernel->config;
    std::string name = text("kernel %s (%s:%d)", c.name, c.site.file, c.site.line);
    auto run = [kernel, name] {
        run_grid(*kernel);
        check_red_zones(name.c_str());
    };
    enqueue(stream_of(c.stream), {name, run, nullptr, {}, {}});
}

// ---- copies ------------------------------------------------------------------------------------
static void host_range(const char *what, const void *p, size_t bytes, bool write) {
    if (!is_pinned(p)) return;
    const Allocation *a = find_allocation(p);
    if (!a || (const char *)p + bytes > a->begin + a->bytes)
        fatal("%s is out of bounds of pinned memory", what);
    if (race_detector) race_detector->range(p, bytes, write);
}

struct Copy {
    void *to;
    const void *from;
    size_t bytes;
    std::string name;

    void run() const {
        if (is_device(from))
            device_range(name.c_str(), from, bytes, false);
        else
            host_range(name.c_str(), from, bytes, false);
        if (is_device(to))
            device_range(name.c_str(), to, bytes, true);
        else
            host_range(name.c_str(), to, bytes, true);
        memmove(to, from, bytes);
    }
};

static const char *place(const void *p) {
    return is_device(p) ? "device" : is_pinned(p) ? "pinned host" : "pageable host";
}

static void check_kind(const char *function, const void *to, const void *from,
                       cudaMemcpyKind kind) {
    bool to_device = is_device(to), from_device = is_device(from), ok = true;
    switch (kind) {
    case cudaMemcpyHostToHost:
        ok = !to_device && !from_device;
        break;
    case cudaMemcpyHostToDevice:
        ok = to_device && !from_device;
        break;
    case cudaMemcpyDeviceToHost:
        ok = !to_device && from_device;
        break;
    case cudaMemcpyDeviceToDevice:
        ok = to_device && from_device;
        break;
    default:
        break;
    }
    if (!ok)
        fatal("%s: kind %d, but it copies from %s to %s memory", function, (int)kind, place(from),
              place(to));
}

static Token enqueue_copy(const char *function, void *to, const void *from, size_t bytes,
                          Stream *s) {
    Copy copy = {to, from, bytes,
                 text("%s of %zu bytes (%s to %s)", function, bytes, place(from), place(to))};
    if (!is_device(from) &&
        !is_pinned(from)) {  // pageable: the source is staged before the call returns
        auto staged =
            std::make_shared<std::vector<char>>((const char *)from, (const char *)from + bytes);
        copy.from = staged->data();
        return enqueue(s, {copy.name, [copy, staged] { copy.run(); }, nullptr, {}, {}});
    }
    return enqueue(s, {copy.name, [copy] { copy.run(); }, nullptr, {}, {}});
}

}  // namespace emu

using namespace emu;

#define MAY_FAIL(code)                                                                             \
    if (int error = injected_failure(__func__, code)) return set_error((cudaError_t)error)

extern "C" {

void emu_progress(void) {
    if (settings().schedule != LAZY || choices.next() % 8 == 0) progress(false);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    MAY_FAIL(cudaErrorInvalidValue);
    check_kind(__func__, to, from, kind);
    if (!bytes) return cudaSuccess;
    Token token = enqueue_copy(__func__, to, from, bytes, stream_of(stream));
    if (!is_device(to) && !is_pinned(to))
        wait_for(token);  // into pageable memory it returns when complete
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    MAY_FAIL(cudaErrorInvalidValue);
    check_kind(__func__, to, from, kind);
    if (!bytes) return cudaSuccess;
    Token token = enqueue_copy(__func__, to, from, bytes, default_stream());
    // Out of pageable memory it may return once the bytes are staged, before they are on the device
    // (CUDA Runtime API, "API synchronization behavior").
    if (is_device(from) || is_pinned(from) || !is_device(to)) wait_for(token);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream) {
    MAY_FAIL(cudaErrorInvalidValue);
    if (!is_device(p)) fatal("cudaMemset of %s memory", place(p));
    std::string name = text("cudaMemset of %zu bytes", bytes);
    auto run = [=] {
        device_range(name.c_str(), p, bytes, true);
        if (counters && counters->only_counts()) return;
        memset(p, value, bytes);
    };
    enqueue(stream_of(stream), {name, run, nullptr, {}, {}});
    return cudaSuccess;
}
cudaError_t cudaMemset(void *p, int value, size_t bytes) {
    return cudaMemsetAsync(p, value, bytes, nullptr);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    MAY_FAIL(cudaErrorInvalidValue);
    auto run = [=] {
        in_host_function = true;
        function(data);
        in_host_function = false;
    };
    enqueue(stream_of(stream), {"a host function", run, nullptr, {}, {}});
    return cudaSuccess;
}

// ---- streams -----------------------------------------------------------------------------------
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int) {
    MAY_FAIL(cudaErrorMemoryAllocation);
    default_stream();
    *s = (cudaStream_t)make_stream(flags != cudaStreamNonBlocking);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
    MAY_FAIL(cudaErrorMemoryAllocation);
    return cudaStreamCreateWithPriority(s, flags, 0);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    MAY_FAIL(cudaErrorUnknown);
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {  // queued work still completes
    MAY_FAIL(cudaErrorInvalidResourceHandle);
    if (!s) return set_error(cudaErrorInvalidResourceHandle);
    stream_of(s)->destroyed = true;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    MAY_FAIL(cudaErrorIllegalAddress);
    wait_for(stream_of(s)->last);
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
    MAY_FAIL(cudaErrorIllegalAddress);
    wait_for_all();
    return cudaSuccess;
}

// ---- events ------------------------------------------------------------------------------------
static Event *event_of(cudaEvent_t e) {
    if (!events.count((Event *)e)) fatal("%p is not a live event", (void *)e);
    return (Event *)e;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
    MAY_FAIL(cudaErrorMemoryAllocation);
    Event *event = new Event{nullptr, !(flags & cudaEventDisableTiming)};
    events.insert(event);
    *e = (cudaEvent_t)event;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *e) {
    return cudaEventCreateWithFlags(e, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    MAY_FAIL(cudaErrorInvalidResourceHandle);
    Event *event = event_of(e);
    events.erase(event);
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    MAY_FAIL(cudaErrorInvalidResourceHandle);
    event_of(e)->token = enqueue(stream_of(s), {"cudaEventRecord", nullptr, nullptr, {}, {}});
    return cudaSuccess;
}
// Waits for the record that is the latest now; an event never recorded counts as complete.
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
    MAY_FAIL(cudaErrorInvalidResourceHandle);
    Token token = event_of(e)->token;
    if (token) enqueue(stream_of(s), {"cudaStreamWaitEvent", nullptr, nullptr, {token}, {}});
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    MAY_FAIL(cudaErrorIllegalAddress);
    wait_for(event_of(e)->token);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
    MAY_FAIL(cudaErrorIllegalAddress);
    Token token = event_of(e)->token;
    if (token && !token->done) progress(false);
    if (token && !token->done) return cudaErrorNotReady;
    if (token) host_sees(token);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t first, cudaEvent_t last) {
    MAY_FAIL(cudaErrorUnknown);
    Event *a = event_of(first), *b = event_of(last);
    if (!a->timing || !b->timing || !a->token || !b->token)
        return set_error(cudaErrorInvalidResourceHandle);
    if (!a->token->done || !b->token->done) return cudaErrorNotReady;
    *ms = (float)(1e3 * (b->token->seconds - a->token->seconds));
    return cudaSuccess;
}

}  // extern "C"
