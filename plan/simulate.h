// plan/simulate.h: streams, events and work as a GPU would run them, without one. What the program
// issues is kept, stream by stream, with the moment at which the host issued it and the time that
// it takes alone. It is run, event by event, when somebody asks for a time: a stream does one thing
// after the other, a wait ends when its event has happened, and what runs at the same time slows
// each other down (sim_rate). Collectives begin in the order in which the host issued them, on
// whatever streams they are: NCCL_LAUNCH_ORDER_IMPLICIT, which the program sets.
#pragma once

#include "../lib/die.h"

#include <math.h>

enum { SIM_STREAMS = 8 };

typedef enum { SIM_KERNEL, SIM_COLLECTIVE, SIM_RECORD, SIM_WAIT } SimKind;

typedef struct {
    SimKind kind;
    double issued;   // by the host
    double seconds;  // alone
    long record;     // of SIM_RECORD and SIM_WAIT: index in Sim.records
    long turn;       // of SIM_COLLECTIVE: how many were issued before it
} SimItem;

typedef struct {
    SimItem *items;
    size_t head, count, room;
    bool running;  // the item at the head
    double left;   // seconds of it, alone
} SimStream;

// What the time has gone into. All are seconds.
typedef struct {
    double total;
    double computing;      // kernels on the compute stream, no collective beside them
    double overlapped;     // both
    double communicating;  // a collective, and nothing on the compute stream
    double sharding;       // nothing but kernels on the other streams: casts, sums, AdamW
    double idle;           // nothing at all: the host is late
} SimTimes;

typedef struct {
    SimStream streams[SIM_STREAMS];  // the first is the compute stream
    int nstreams;
    double *records;  // when each recorded event happened; NAN: not yet
    long nrecords, records_room;
    long collectives, begun;  // issued; of these begun
    double now;               // everything before it has been simulated
    double host;              // the host's own time: it issues ahead of the device
    bool serial;              // a CPU: work is done where it is issued
    double interference;      // share of a kernel's rate that a collective beside it takes
    SimTimes times;           // since sim_start
} Sim;

static inline void sim_start(Sim *s, bool serial, double interference) {
    for (int i = 0; i < SIM_STREAMS; i++) free(s->streams[i].items);
    free(s->records);
    *s = (Sim){};
    s->serial = serial;
    s->interference = interference;
}

// p, with room for one more element.
static inline void *sim_grow(void *p, size_t count, size_t *room, size_t size) {
    if (count < *room) return p;
    *room = *room ? 2 * *room : 1024;
    p = realloc(p, *room * size);
    if (!p) die("out of memory for the plan's schedule of %zu entries", *room);
    return p;
}

static inline int sim_stream(Sim *s) {
    if (s->nstreams == SIM_STREAMS) die("plan: expected at most %d streams", SIM_STREAMS);
    return s->nstreams++;
}

// ---- running -----------------------------------------------------------------------------------

typedef struct {
    int kernels, collectives;
    bool compute, any;
} SimBusy;

static inline SimBusy sim_busy(const Sim *s) {
    SimBusy b = {0, 0, false, false};
    for (int i = 0; i < s->nstreams; i++) {
        const SimStream *stream = &s->streams[i];
        if (!stream->running) continue;
        bool collective = stream->items[stream->head].kind == SIM_COLLECTIVE;
        b.any = true;
        b.collectives += collective, b.kernels += !collective;
        b.compute = b.compute || (i == 0 && !collective);
    }
    return b;
}

// How fast a piece of work runs beside the others: kernels share the device, collectives the links,
// and collectives take a part of the device from the kernels.
static inline double sim_rate(const Sim *s, const SimBusy *b, SimKind kind) {
    if (kind == SIM_COLLECTIVE) return 1.0 / b->collectives;
    return (b->collectives ? 1 - s->interference : 1) / b->kernels;
}

static inline void sim_account(Sim *s, const SimBusy *b, double seconds) {
    SimTimes *t = &s->times;
    t->total += seconds;
    *(b->compute && b->collectives ? &t->overlapped
      : b->compute                 ? &t->computing
      : b->collectives             ? &t->communicating
      : b->any                     ? &t->sharding
                                   : &t->idle) += seconds;
}

// Lets events happen and starts what can start now.
static inline void sim_settle(Sim *s) {
    for (bool changed = true; changed;) {
        changed = false;
        for (int i = 0; i < s->nstreams; i++) {
            SimStream *stream = &s->streams[i];
            while (!stream->running && stream->head < stream->count) {
                SimItem *item = &stream->items[stream->head];
                if (item->issued > s->now) break;
                if (item->kind == SIM_WAIT && !(s->records[item->record] <= s->now)) break;
                if (item->kind == SIM_COLLECTIVE && item->turn != s->begun) break;
                if (item->kind == SIM_COLLECTIVE) s->begun++;
                if (item->kind == SIM_RECORD) s->records[item->record] = s->now;
                changed = true;
                stream->running = item->kind <= SIM_COLLECTIVE;
                stream->left = item->seconds;
                if (!stream->running) stream->head++;
            }
            if (stream->head == stream->count) stream->head = stream->count = 0;
        }
    }
}

// The next moment at which something ends or can start.
static inline double sim_next(const Sim *s, const SimBusy *b) {
    double next = INFINITY;
    for (int i = 0; i < s->nstreams; i++) {
        const SimStream *stream = &s->streams[i];
        if (stream->head == stream->count) continue;
        const SimItem *item = &stream->items[stream->head];
        double at = stream->running         ? s->now + stream->left / sim_rate(s, b, item->kind)
                    : item->issued > s->now ? item->issued
                                            : INFINITY;
        next = fmin(next, at);
    }
    return next;
}

// Lets time pass until the stream has done all that it was given.
static inline void sim_drain(Sim *s, int wanted) {
    for (;;) {
        sim_settle(s);
        if (s->streams[wanted].count == 0) return;
        SimBusy b = sim_busy(s);
        double next = sim_next(s, &b), seconds = next - s->now;
        if (next == INFINITY) die("plan: the schedule waits for itself");
        sim_account(s, &b, seconds);
        for (int i = 0; i < s->nstreams; i++) {
            SimStream *stream = &s->streams[i];
            if (!stream->running) continue;
            double rate = sim_rate(s, &b, stream->items[stream->head].kind);
            bool ends = s->now + stream->left / rate <= next;
            stream->left -= seconds * rate;
            if (ends) stream->running = false, stream->head++;
        }
        s->now = next;
    }
}

// ---- what the host does ------------------------------------------------------------------------

static inline void sim_push(Sim *s, int stream, SimItem item) {
    SimStream *to = &s->streams[stream];
    to->items = (SimItem *)sim_grow(to->items, to->count, &to->room, sizeof item);
    item.issued = s->host;
    if (item.kind == SIM_COLLECTIVE) item.turn = s->collectives++;
    to->items[to->count++] = item;
}

// host: seconds until the host has issued it.
static inline void sim_work(Sim *s, int stream, SimKind kind, double seconds, double host) {
    if (s->serial) {
        SimBusy b = {kind == SIM_KERNEL, kind == SIM_COLLECTIVE, kind == SIM_KERNEL && stream == 0,
                     true};
        sim_account(s, &b, seconds);
        s->host = s->now += seconds;
        return;
    }
    s->host += host;
    sim_push(s, stream, (SimItem){kind, 0, seconds, 0, 0});
}

// Returns the record, for waits.
static inline long sim_record(Sim *s, int stream, double host) {
    size_t room = (size_t)s->records_room;
    s->records = (double *)sim_grow(s->records, (size_t)s->nrecords, &room, sizeof *s->records);
    s->records_room = (long)room;
    s->records[s->nrecords] = s->serial ? s->now : NAN;
    s->host += s->serial ? 0 : host;
    if (!s->serial) sim_push(s, stream, (SimItem){SIM_RECORD, 0, 0, s->nrecords, 0});
    return s->nrecords++;
}

static inline void sim_wait(Sim *s, int stream, long record, double host) {
    if (s->serial) return;
    s->host += host;
    sim_push(s, stream, (SimItem){SIM_WAIT, 0, 0, record, 0});
}

// The host waits for a stream.
static inline void sim_synchronize(Sim *s, int stream) {
    sim_drain(s, stream);
    s->host = fmax(s->host, s->now);
}

static inline void sim_synchronize_all(Sim *s) {
    for (int i = 0; i < s->nstreams; i++) sim_synchronize(s, i);
}

// When a recorded event happens.
static inline double sim_time(Sim *s, long record) {
    for (int i = 0; i < s->nstreams && !(s->records[record] >= 0); i++) sim_drain(s, i);
    return s->records[record];
}
