// test/trace.h: reads the traces of two ranks (PATH and its rank_path): can they be true?
#pragma once

#include "../lib/files.h"

typedef struct {
    char name[64];
    int stream;
    long long begin, end;  // ns
} Span;

// The spans of a trace in the file's order; returns how many.
static inline int read_spans(const char *path, int rank, Span *spans, int most) {
    FILE *f = fopen_check(path, "r");
    char line[512];
    int n = 0;
    while (fgets(line, sizeof line, f) && n < most) {
        Span *s = &spans[n];
        long long us, ns, dur_us, dur_ns;
        int pid, digits[2][2];
        if (!strstr(line, "\"ph\":\"X\"")) continue;
        if (sscanf(
                line,
                "{\"name\":\"%63[^\"]\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%lld.%n%3lld%n,"
                "\"dur\":%lld.%n%3lld%n}",
                s->name, &pid, &s->stream, &us, &digits[0][0], &ns, &digits[0][1], &dur_us,
                &digits[1][0], &dur_ns, &digits[1][1]) != 7 ||
            digits[0][1] - digits[0][0] != 3 || digits[1][1] - digits[1][0] != 3 || pid != rank)
            fail_msg("%s: expected a span in whole nanoseconds, found %s", path, line);
        s->begin = us * 1000 + ns;
        s->end = s->begin + dur_us * 1000 + dur_ns;
        n++;
    }
    fclose(f);
    return n;
}

// The spans of a stream follow each other. Every rank waits in an all-gather until the other has
// come to it, so none ends before the other has begun.
static inline void check_traces(const char *path) {
    enum { MOST = 1024, STREAMS = 4 };
    static Span spans[2][MOST];
    char other[PATH_BYTES];
    rank_path(other, path, 1);
    int n = read_spans(path, 0, spans[0], MOST), gathers = 0;
    assert_int_equal(read_spans(other, 1, spans[1], MOST), n);
    for (int rank = 0; rank < 2; rank++) {
        long long free_at[STREAMS] = {0, 0, 0, 0};
        for (int i = 0; i < n; i++) {
            const Span *s = &spans[rank][i];
            if (s->begin < free_at[s->stream] || s->end < s->begin)
                fail_msg("rank %d: %s begins %lld ns before the span in front of it ends", rank,
                         s->name, free_at[s->stream] - s->begin);
            free_at[s->stream] = s->end;
        }
    }
    for (int i = 0; i < n; i++) {
        const Span *a = &spans[0][i], *b = &spans[1][i];
        assert_string_equal(a->name, b->name);
        if (strncmp(a->name, "gather", 6)) continue;
        gathers++;
        if (a->end < b->begin || b->end < a->begin)
            fail_msg("%s: rank 0 from %lld to %lld ns, rank 1 from %lld to %lld", a->name, a->begin,
                     a->end, b->begin, b->end);
    }
    if (gathers < 2) fail_msg("expected several all-gathers, found %d", gathers);
}
