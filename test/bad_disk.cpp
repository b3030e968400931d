// test/bad_disk.cpp: a disk that fails for a while, is full or slow, for LD_PRELOAD. It stands
// before the C library's calls for the files whose path contains BAD_DISK:
//
//   BAD_DISK_READS=EIO:3      the first three reads of a process fail so (EIO, ESTALE, EINTR), or
//                             give only one byte (short)
//   BAD_DISK_ROOM=7           the disk is full after seven calls of a process that may take room:
//                             the next write is cut to one byte, then all fail
//   BAD_DISK_SLOW_MS=20       every write and flush takes so long
//
// A thread does not pause after a failed read, so that tests of many tries are short.
#include <atomic>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static thread_local bool read_failed;

template <typename F> static F real(const char *name) {
    return (F)dlsym(RTLD_NEXT, name);
}

static bool is_bad(int fd) {
    const char *part = getenv("BAD_DISK");
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = part ? readlink(link, path, sizeof path - 1) : -1;
    if (n < 0) return false;
    path[n] = 0;
    return strstr(path, part) != NULL;
}

// One of the faults that reads still have to give: its error number, -1 for `short`, 0: none.
static int read_fault(void) {
    static const struct {
        const char *name;
        int number;
    } faults[] = {{"EIO", EIO}, {"ESTALE", ESTALE}, {"EINTR", EINTR}, {"short", -1}};
    static std::atomic<long> given;
    const char *text = getenv("BAD_DISK_READS"), *colon = text ? strchr(text, ':') : NULL;
    if (!colon || given++ >= atol(colon + 1)) return 0;
    for (auto &f : faults)
        if (!strncmp(f.name, text, (size_t)(colon - text))) return f.number;
    return 0;
}

// What a call that may take room comes to: ENOSPC, -1 for less than was asked, 0: all of it.
static int room_fault(int fd) {
    static std::atomic<long> calls;
    const char *room = getenv("BAD_DISK_ROOM");
    if (!room || !is_bad(fd)) return 0;
    const long before = calls++;
    return before < atol(room) ? 0 : before == atol(room) ? -1 : ENOSPC;
}

static void pause_if_slow(int fd) {
    const char *ms = getenv("BAD_DISK_SLOW_MS");
    if (!ms || !is_bad(fd)) return;
    struct timespec pause = {atol(ms) / 1000, atol(ms) % 1000 * 1000000};
    real<int (*)(const timespec *, timespec *)>("nanosleep")(&pause, NULL);
}

extern "C" ssize_t pread(int fd, void *to, size_t bytes, off_t offset) {
    int error = is_bad(fd) ? read_fault() : 0;
    read_failed = error > 0;
    if (error > 0) return errno = error, -1;
    return real<ssize_t (*)(int, void *, size_t, off_t)>("pread")(fd, to, error ? 1 : bytes,
                                                                  offset);
}

extern "C" ssize_t pwrite(int fd, const void *from, size_t bytes, off_t offset) {
    pause_if_slow(fd);
    int error = room_fault(fd);
    if (error > 0) return errno = error, -1;
    return real<ssize_t (*)(int, const void *, size_t, off_t)>("pwrite")(fd, from,
                                                                         error ? 1 : bytes, offset);
}

extern "C" int fsync(int fd) {
    pause_if_slow(fd);
    if (room_fault(fd) > 0) return errno = ENOSPC, -1;
    return real<int (*)(int)>("fsync")(fd);
}

extern "C" int fallocate(int fd, int mode, off_t offset, off_t bytes) {
    if (room_fault(fd) != 0) return errno = ENOSPC, -1;
    return real<int (*)(int, int, off_t, off_t)>("fallocate")(fd, mode, offset, bytes);
}

extern "C" int nanosleep(const struct timespec *time, struct timespec *left) {
    if (read_failed) return read_failed = false, 0;
    return real<int (*)(const timespec *, timespec *)>("nanosleep")(time, left);
}
