// test/bad_disk.cpp: a disk that fails for a while or is slow, for LD_PRELOAD. It stands before the
// C library's calls for the files whose path contains BAD_DISK:
//
//   BAD_DISK_READS=EIO:3      the first three reads of a process fail so (EIO, ESTALE, EINTR), or
//                             give only one byte (short)
//   BAD_DISK_WRITES=ENOSPC:1  the first write fails so
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

// One of the faults that the variable still has to give: its error number, -1 for `short`, 0: none.
static int fault(const char *variable, std::atomic<long> *given) {
    static const struct {
        const char *name;
        int number;
    } faults[] = {
        {"EIO", EIO}, {"ESTALE", ESTALE}, {"EINTR", EINTR}, {"ENOSPC", ENOSPC}, {"short", -1}};
    const char *text = getenv(variable), *colon = text ? strchr(text, ':') : NULL;
    if (!colon || (*given)++ >= atol(colon + 1)) return 0;
    for (auto &f : faults)
        if (!strncmp(f.name, text, (size_t)(colon - text))) return f.number;
    return 0;
}

static void pause_if_slow(int fd) {
    const char *ms = getenv("BAD_DISK_SLOW_MS");
    if (!ms || !is_bad(fd)) return;
    struct timespec pause = {atol(ms) / 1000, atol(ms) % 1000 * 1000000};
    real<int (*)(const timespec *, timespec *)>("nanosleep")(&pause, NULL);
}

extern "C" ssize_t pread(int fd, void *to, size_t bytes, off_t offset) {
    static std::atomic<long> given;
    int error = is_bad(fd) ? fault("BAD_DISK_READS", &given) : 0;
    read_failed = error > 0;
    if (error > 0) return errno = error, -1;
    return real<ssize_t (*)(int, void *, size_t, off_t)>("pread")(fd, to, error ? 1 : bytes,
                                                                  offset);
}

extern "C" ssize_t pwrite(int fd, const void *from, size_t bytes, off_t offset) {
    static std::atomic<long> given;
    pause_if_slow(fd);
    int error = is_bad(fd) ? fault("BAD_DISK_WRITES", &given) : 0;
    if (error > 0) return errno = error, -1;
    return real<ssize_t (*)(int, const void *, size_t, off_t)>("pwrite")(fd, from,
                                                                         error ? 1 : bytes, offset);
}

extern "C" int fsync(int fd) {
    pause_if_slow(fd);
    return real<int (*)(int)>("fsync")(fd);
}

extern "C" int nanosleep(const struct timespec *time, struct timespec *left) {
    if (read_failed) return read_failed = false, 0;
    return real<int (*)(const timespec *, timespec *)>("nanosleep")(time, left);
}
