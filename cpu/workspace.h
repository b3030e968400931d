// cpu/workspace.h: the room that ops_init is given: one shared part and one part per OpenMP thread.
// An op takes what it needs from the start of a part; nothing lives there between ops.
#pragma once

#include "lib/die.h"
#include <omp.h>

static struct {
    int threads;   // parts there are; no op uses more threads than this
    char *shared;  // shared_bytes
    char *parts;   // threads * part_bytes
    size_t shared_bytes, part_bytes;
} workspace;

// For ops that use the threads' parts.
static inline int ops_threads(void) {
    int n = omp_get_max_threads();
    return n < workspace.threads ? n : workspace.threads;
}

static inline size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

// A stack over one part: addresses of the next piece and of the end. Every piece is aligned to a
// cache line.
typedef struct {
    size_t next, end;
} Room;

static inline void *room_take(Room *r, size_t bytes) {
    size_t p = r->next;
    bytes = round_up(bytes, 64);
    if (bytes > r->end - r->next)
        die("ops: expected sizes within OpsDims, found one that needs %zu bytes more of the "
            "workspace",
            bytes - (r->end - r->next));
    r->next += bytes;
    return (void *)p;
}

// Nothing is behind its addresses: what is taken from it is counted in `next`.
static inline Room room_to_measure(void) {
    Room r = {0, SIZE_MAX};
    return r;
}

static inline Room room_shared(void) {
    Room r = {(size_t)workspace.shared, (size_t)workspace.shared + workspace.shared_bytes};
    return r;
}

static inline Room room_of_thread(int thread) {
    size_t p = (size_t)workspace.parts + (size_t)thread * workspace.part_bytes;
    Room r = {p, p + workspace.part_bytes};
    return r;
}

// Sums over rows are taken in at most ROW_CHUNKS chunks of at least 64 rows, each summed by one
// thread, and the chunks' sums are added in order: the tree depends on `rows` alone.
enum { ROW_CHUNKS = 64 };

static inline int rows_per_chunk(int rows) {
    int n = (rows + ROW_CHUNKS - 1) / ROW_CHUNKS;
    return n < 64 ? 64 : n;
}

// dst[c] = part[0][c] + part[1][c] + ... ; parts are `stride` apart
static inline void add_chunks(float *dst, const float *part, size_t stride, int chunks, int C,
                              bool accumulate) {
#pragma omp parallel for schedule(static)
    for (int c0 = 0; c0 < C; c0 += 256) {
        int n = C - c0 < 256 ? C - c0 : 256;
        float sum[256];
        for (int c = 0; c < n; c++) sum[c] = part[c0 + c];
        for (int k = 1; k < chunks; k++) {
            const float *p = part + k * stride + c0;
#pragma omp simd
            for (int c = 0; c < n; c++) sum[c] += p[c];
        }
        for (int c = 0; c < n; c++) dst[c0 + c] = accumulate ? dst[c0 + c] + sum[c] : sum[c];
    }
}
