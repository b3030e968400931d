// timeline.h: when each piece of work of a step ran on which stream, as a Chrome/Perfetto timeline.
// Spans are pairs of events on the stream itself, so they show the device's time, not the host's.
// Times are whole nanoseconds since one moment for all ranks: an event at the start says how the
// device's clock stands to the host's.
#pragma once

#include "device.h"
#include "lib/clock.h"
#include "lib/replace.h"

#include <math.h>

#define TIMELINE_STREAMS 4
#ifndef timeline_clock_ns  // a plan's host has a clock of its own
#define timeline_clock_ns clock_ns
#endif

typedef struct {
    int stream;
    char name[56];
    cudaEvent_t begin, end;
} TimelineSpan;

typedef struct {
    cudaStream_t streams[TIMELINE_STREAMS];
    const char *stream_names[TIMELINE_STREAMS];
    cudaEvent_t origin;
    int64_t origin_ns;  // from the moment that is 0 in the trace to the origin
    TimelineSpan *spans;
    int count, room;
    int open[TIMELINE_STREAMS];  // index of the stream's unfinished span, -1: none
} Timeline;

// The origin lies between two looks at the host's clock; of several tries the one where these are
// closest.
static void timeline_set_origin(Timeline *t, int64_t zero) {
    enum { TRIES = 8 };
    cudaEvent_t tries[TRIES];
    int64_t closest = INT64_MAX;
    int best = 0;
    for (int i = 0; i < TRIES; i++) {
        cudaEventCreate(&tries[i]);
        int64_t before = timeline_clock_ns();
        cudaEventRecord(tries[i], t->streams[0]);
        cudaEventSynchronize(tries[i]);
        int64_t window = timeline_clock_ns() - before;
        if (window >= closest) continue;
        closest = window, best = i;
        t->origin_ns = before + window / 2 - zero;
    }
    t->origin = tries[best];
    for (int i = 0; i < TRIES; i++)
        if (i != best) cudaEventDestroy(tries[i]);
}

// zero: the moment of clock_ns() that is 0 in the trace.
static void timeline_start(Timeline *t, cudaStream_t compute, cudaStream_t gather,
                           cudaStream_t reduce, cudaStream_t messages, int64_t zero) {
    *t = (Timeline){{compute, gather, reduce, messages},
                    {"compute", "gather", "reduce", "messages"},
                    NULL,
                    0,
                    NULL,
                    0,
                    0,
                    {-1, -1, -1, -1}};
    timeline_set_origin(t, zero);
}

static int timeline_stream(const Timeline *t, cudaStream_t stream) {
    for (int i = 0; i < TIMELINE_STREAMS; i++)
        if (t->streams[i] == stream) return i;
    die("trace: span on a stream it does not know");
}

// t NULL: not tracing. Spans of one stream do not nest.
static void timeline_begin(Timeline *t, cudaStream_t stream, const char *kind, const char *unit) {
    if (!t) return;
    if (t->count == t->room) {
        t->room = t->room ? 2 * t->room : 256;
        t->spans = (TimelineSpan *)realloc(t->spans, sizeof(TimelineSpan) * (size_t)t->room);
        if (!t->spans) die("out of memory for a trace of %d spans", t->room);
    }
    TimelineSpan *s = &t->spans[t->count];
    s->stream = timeline_stream(t, stream);
    if (t->open[s->stream] >= 0)
        die("trace: %s begins inside %s", kind, t->spans[t->open[s->stream]].name);
    t->open[s->stream] = t->count++;
    snprintf(s->name, sizeof s->name, "%s %s", kind, unit);
    cudaEventCreate(&s->begin);
    cudaEventCreate(&s->end);
    cudaEventRecord(s->begin, stream);
}

static void timeline_end(Timeline *t, cudaStream_t stream) {
    if (!t) return;
    int i = timeline_stream(t, stream);
    cudaEventRecord(t->spans[t->open[i]].end, stream);
    t->open[i] = -1;
}

static long long timeline_ns(const Timeline *t, cudaEvent_t event) {
    float ms = 0;
    cudaEventElapsedTime(&ms, t->origin, event);
    return t->origin_ns + llround(1e6 * (double)ms);
}

// Writes the timeline of this rank and forgets the spans. The device must be idle. The format's
// unit is the microsecond: the nanoseconds are three digits behind the point.
static void timeline_write(Timeline *t, const char *path, int rank) {
    FILE *f = fopen_new(path);
    fprintf(f, "[\n");
    for (int i = 0; i < TIMELINE_STREAMS; i++)
        fprintf(f,
                "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":"
                "\"%s\"}},\n",
                rank, i, t->stream_names[i]);
    for (int i = 0; i < t->count; i++) {
        TimelineSpan *s = &t->spans[i];
        long long start = timeline_ns(t, s->begin), length = timeline_ns(t, s->end) - start;
        fprintf(f,
                "{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%lld.%03lld,"
                "\"dur\":%lld.%03lld}%s\n",
                s->name, rank, s->stream, start / 1000, start % 1000, length / 1000, length % 1000,
                i + 1 < t->count ? "," : "");
        cudaEventDestroy(s->begin);
        cudaEventDestroy(s->end);
    }
    fprintf(f, "]\n");
    fclose_check(f, path);
    cudaEventDestroy(t->origin);
    free(t->spans);
}
