// cpu/window.h: buffers that the ranks of a node reach where they lie. The pages behind a buffer's
// addresses become those of an anonymous file that all these ranks map; the address stays.
//
// Either the file holds one buffer for all ranks, or one for each, which the others see at an
// address of their own. Knows nothing of collectives.
#pragma once

#include "../lib/die.h"
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif

// Buffers start at a multiple of this in the file, so that huge pages can hold them; what is before
// the first is for the owner's mark.
#define WINDOW_PAGE ((size_t)2 << 20)

typedef struct {
    char *own;     // (bytes): the buffer of this rank
    size_t bytes;  // whole pages
    char *all;     // (ranks, stride): every rank's buffer; NULL: one for all
    size_t stride;
    int rank, ranks;
} Window;

static size_t window_round(size_t n, size_t unit) {
    return (n + unit - 1) / unit * unit;
}

// The buffer has its pages for itself, see cudaMalloc.
static Window window_plan(void *data, size_t bytes, bool one, int rank, int ranks) {
    Window w = {(char *)data, window_round(bytes, (size_t)sysconf(_SC_PAGESIZE)), NULL, 0, rank,
                ranks};
    if (!one) w.stride = window_round(w.bytes, WINDOW_PAGE);
    return w;
}

static size_t window_file_bytes(const Window *w) {
    return WINDOW_PAGE + (w->stride ? w->stride * (size_t)w->ranks : w->bytes);
}

// Gives the file its size; false if it may not have it. More than a limit is not tried: the kernel
// would send a signal.
static bool window_resize(const Window *w, int fd) {
    const size_t bytes = window_file_bytes(w);
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes <= limit.rlim_cur &&
           ftruncate(fd, (off_t)bytes) == 0;
}

// Maps the buffers of all ranks, if each has its own; false if there is no room for them. A limited
// address space is left to what cannot do without (the products' scratch memory).
static bool window_look(Window *w, int fd) {
    if (!w->stride) return true;
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur != RLIM_INFINITY) return false;
    const size_t bytes = w->stride * (size_t)w->ranks;
    void *hole = mmap(NULL, bytes + WINDOW_PAGE, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (hole == MAP_FAILED) return false;
    char *at = (char *)window_round((size_t)hole, WINDOW_PAGE);
    const size_t before = (size_t)(at - (char *)hole), after = WINDOW_PAGE - before;
    if (before) munmap(hole, before);
    if (after) munmap(at + bytes, after);
    if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, WINDOW_PAGE) ==
        MAP_FAILED) {
        munmap(at, bytes);
        return false;
    }
    w->all = at;
    return true;
}

static void window_look_away(Window *w) {
    if (w->all) munmap(w->all, w->stride * (size_t)w->ranks);
    w->all = NULL;
}

// Makes huge pages of [at, at + bytes), whatever the setting for shared memory is, if the kernel
// can; and takes them from the memory that is nearest to this rank.
static void window_touch(char *at, size_t bytes) {
    madvise(at, bytes, MADV_HUGEPAGE);
    for (size_t i = 0; i < bytes; i += WINDOW_PAGE) ((volatile char *)at)[i] = 0;
    madvise(at, bytes, MADV_COLLAPSE);
}

// Puts the file's pages behind the buffer, whose contents are lost; they are zero now. Of one that
// is for all ranks each takes its share from the memory near it.
static void window_open(Window *w, int fd) {
    const size_t at = WINDOW_PAGE + w->stride * (size_t)w->rank;
    if (mmap(w->own, w->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)at) ==
        MAP_FAILED)
        die("shared memory: cannot map %zu bytes, %m", w->bytes);
    size_t share = w->bytes, from = 0;
    if (!w->stride) {
        share = window_round(w->bytes / (size_t)w->ranks + 1, WINDOW_PAGE);
        from = share * (size_t)w->rank;
    }
    if (from >= w->bytes) return;
    window_touch(w->own + from, share < w->bytes - from ? share : w->bytes - from);
}

// The buffer is the rank's own again, and zero.
static void window_close(Window *w) {
    window_look_away(w);
    if (mmap(w->own, w->bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        die("memory: cannot map %zu bytes, %m", w->bytes);
    madvise(w->own, w->bytes, MADV_HUGEPAGE);
}

// Where rank j's byte `offset` of the buffer lies.
static const char *window_at(const Window *w, int j, size_t offset) {
    return (w->all ? w->all + w->stride * (size_t)j : w->own) + offset;
}
