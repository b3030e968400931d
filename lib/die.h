// lib/die.h: how a rank ends when something is wrong: one line on stderr, then the whole job.
// die() is for what this rank has found; it takes the other ranks down through die_hook. die_all()
// is for what every rank finds alike (a bad option, a bad file): rank 0 speaks for all, and a rank
// that still lives two seconds later was alone with it and speaks up. Then file and memory helpers
// whose messages name the file, what was expected and what was found.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __cplusplus
#define NORETURN [[noreturn]]
#else
#define NORETURN _Noreturn
#endif
// One object in the program, however many of its files include this one.
#define ONE_OBJECT __attribute__((weak))

// The process's only global state: who it is and where it stands.
typedef struct {
    int rank, world;
    long step;  // optimizer step, -1 outside the training loop
} Process;
ONE_OBJECT Process process = {0, 1, -1};

// Ends the other ranks; set by ranks.h once there are any. May be NULL.
ONE_OBJECT void (*die_hook)(void) = NULL;

// Writes "train_gpt: [where] message\n" in one piece, so that lines of several ranks do not mix.
static inline void die_print(bool name_rank, const char *format, va_list args) {
    char line[2048] = "train_gpt: ";
    size_t used = strlen(line), room = sizeof line - 1;
    if (name_rank && process.step >= 0)
        used += (size_t)snprintf(line + used, room - used, "[rank %d, step %ld] ", process.rank,
                                 process.step);
    else if (name_rank)
        used += (size_t)snprintf(line + used, room - used, "[rank %d] ", process.rank);
    int n = vsnprintf(line + used, room - used, format, args);
    size_t end = n < 0 ? used : used + (size_t)n < room ? used + (size_t)n : room - 1;
    for (size_t i = used; i < end; i++)
        if (line[i] == '\n' || line[i] == '\r') line[i] = ' ';
    line[end] = '\n';
    fflush(stdout);
    // stderr is the last place to complain, so a failed write has nobody to be told to.
    if (write(STDERR_FILENO, line, end + 1) < 0) return;
}

// _exit, not exit: destructors of libraries may wait for threads or ranks that will never answer.
NORETURN static inline void die_now(void) {
    if (die_hook) die_hook();
    _exit(1);
}

NORETURN __attribute__((format(printf, 1, 2))) static inline void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    die_print(true, format, args);
    va_end(args);
    die_now();
}

NORETURN __attribute__((format(printf, 1, 2))) static inline void die_all(const char *format, ...) {
    if (process.rank != 0) sleep(2);
    va_list args;
    va_start(args, format);
    die_print(process.rank != 0, format, args);
    va_end(args);
    die_now();
}

// ---- memory ------------------------------------------------------------------------------------

static inline void *malloc_check(size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    if (!p) die("out of memory: asked for %zu bytes", bytes);
    return p;
}

static inline char *strdup_check(const char *text) {
    size_t bytes = strlen(text) + 1;
    return (char *)memcpy(malloc_check(bytes), text, bytes);
}

// ---- files -------------------------------------------------------------------------------------

#define PATH_BYTES 4096

// snprintf into a path of PATH_BYTES.
__attribute__((format(printf, 2, 3))) static inline void path_print(char *path, const char *format,
                                                                    ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(path, PATH_BYTES, format, args);
    va_end(args);
    if (n < 0 || n >= PATH_BYTES) die_all("a path is too long: %.200s...", path);
}

static inline FILE *fopen_check(const char *path, const char *mode) {
    FILE *f = fopen(path, mode);
    if (!f) die_all("cannot %s %s: %s", mode[0] == 'r' ? "read" : "write", path, strerror(errno));
    return f;
}

static inline int open_check(const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC, 0666);
    bool reads = (flags & O_ACCMODE) == O_RDONLY;
    if (fd < 0) die_all("cannot %s %s: %s", reads ? "read" : "write", path, strerror(errno));
    return fd;
}

// Size in bytes of an open regular file.
static inline uint64_t file_size(int fd, const char *path) {
    struct stat s;
    if (fstat(fd, &s) != 0) die_all("cannot read the size of %s: %s", path, strerror(errno));
    if (!S_ISREG(s.st_mode)) die_all("%s is not a regular file", path);
    return (uint64_t)s.st_size;
}

// Reads exactly `bytes` at `offset`.
static inline void read_exact(int fd, void *dst, size_t bytes, uint64_t offset, const char *path) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(fd, (char *)dst + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            die_all("cannot read %s at byte %llu: %s", path, (unsigned long long)(offset + done),
                    strerror(errno));
        if (n == 0)
            die_all("%s ends at byte %llu: expected %zu bytes from byte %llu on; is it complete?",
                    path, (unsigned long long)(offset + done), bytes, (unsigned long long)offset);
        done += (size_t)n;
    }
}

// Writes exactly `bytes` at `offset`.
static inline void write_exact(int fd, const void *src, size_t bytes, uint64_t offset,
                               const char *path) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fd, (const char *)src + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            die("cannot write %s at byte %llu: %s", path, (unsigned long long)(offset + done),
                n < 0 ? strerror(errno) : "no progress");
        done += (size_t)n;
    }
}

// Flushes to the disk and closes, so that a full disk is found here and not later.
static inline void fclose_check(FILE *f, const char *path) {
    if (fflush(f) != 0 || ferror(f)) die("cannot write %s: %s", path, strerror(errno));
    if (fclose(f) != 0) die("cannot write %s: %s", path, strerror(errno));
}
