// lib/collectives.h: which collective each rank of a node has come to, for the watchdog's last
// words. All ranks make the same collectives in the same order, so the rank that has counted the
// fewest is the one that the others wait for. Counted is what the host has issued: a GPU may be
// behind.
#pragma once

#include "die.h"

typedef struct {
    int rank;
    int64_t count;  // of collectives that the rank has begun
    char last[48];  // the last of them, e.g. "gather of block 3"
} CollectiveLog;

// The logs of the ranks of this node in memory that they share, set by ranks.h, and this rank's.
typedef struct {
    int ranks;
    CollectiveLog *logs, *own;
} Collectives;
ONE_OBJECT CollectiveLog collectives_alone = {0, 0, ""};
ONE_OBJECT Collectives collectives = {1, &collectives_alone, &collectives_alone};

// what: "gather"; of: a unit, or "".
static inline void collective_begins(const char *what, const char *of) {
    CollectiveLog *own = collectives.own;
    snprintf(own->last, sizeof own->last, "%s%s%s", what, of[0] ? " of " : "", of);
    __atomic_store_n(&own->count, own->count + 1, __ATOMIC_RELEASE);
}

static inline int64_t collectives_of(int local_rank) {
    return __atomic_load_n(&collectives.logs[local_rank].count, __ATOMIC_ACQUIRE);
}

// The smallest count above `than`; INT64_MAX: there is none.
static inline int64_t collectives_next(int64_t than) {
    int64_t next = INT64_MAX;
    for (int i = 0; i < collectives.ranks; i++) {
        int64_t count = collectives_of(i);
        if (count > than && count < next) next = count;
    }
    return next;
}

__attribute__((format(printf, 3, 4))) static inline void add_text(char *text, size_t room,
                                                                  const char *format, ...) {
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, room - used, format, args);
    va_end(args);
}

// Adds the ranks that have come to collective `count`, and what it is.
static inline void collectives_add(char *text, size_t room, int64_t count) {
    enum { MOST = 8 };  // named
    const char *last = "";
    int n = 0;
    for (int i = 0; i < collectives.ranks; i++) n += collectives_of(i) == count;
    add_text(text, room, n == 1 ? "rank" : "ranks");
    for (int i = 0, named = 0; i < collectives.ranks; i++) {
        if (collectives_of(i) != count) continue;
        last = collectives.logs[i].last;
        if (named++ < MOST)
            add_text(text, room, "%s %d", named > 1 ? "," : "", collectives.logs[i].rank);
    }
    if (n > MOST) add_text(text, room, " and %d more", n - MOST);
    if (count)
        add_text(text, room, " at collective %lld, %s", (long long)count, last);
    else
        add_text(text, room, " before the first collective");
    if (count || collectives.own != &collectives_alone || process.world < 2) return;
    if (process.world == 2)
        add_text(text, room, "; missing at the start: rank %d", 1 - process.rank);
    else
        add_text(text, room, "; missing at the start: some of the other %d", process.world - 1);
}

// Adds where each rank of the node stands; true if some have not come as far as others.
static inline bool collectives_describe(char *text, size_t room) {
    int64_t first = collectives_next(-1), next = collectives_next(first);
    if (next != INT64_MAX) add_text(text, room, "missing: ");
    collectives_add(text, room, first);
    for (int64_t at = next; at != INT64_MAX; at = collectives_next(at)) {
        add_text(text, room, "; ");
        collectives_add(text, room, at);
    }
    return next != INT64_MAX;
}
