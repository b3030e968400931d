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
// Control bytes of the message (a file may have any name) come as \x1b, so that it stays one line
// and commands nothing to a terminal.
static inline void die_print(bool name_rank, const char *format, va_list args) {
    enum { ESCAPE = 4 };  // the longest: \x1b
    char message[2048] = "", line[4096] = "train_gpt: ";
    size_t used = strlen(line);
    if (name_rank && process.step >= 0)
        used += (size_t)snprintf(line + used, sizeof line - used, "[rank %d, step %ld] ",
                                 process.rank, process.step);
    else if (name_rank)
        used += (size_t)snprintf(line + used, sizeof line - used, "[rank %d] ", process.rank);
    vsnprintf(message, sizeof message, format, args);
    for (const char *c = message; *c && used < sizeof line - ESCAPE - 1; c++) {
        unsigned char byte = (unsigned char)*c;
        if (byte < 32 || byte == 127)
            used += (size_t)snprintf(line + used, ESCAPE + 1, "\\x%02x", byte);
        else
            line[used++] = *c;
    }
    line[used++] = '\n';
    fflush(stdout);
    // stderr is the last place to complain, so a failed write has nobody to be told to.
    if (write(STDERR_FILENO, line, used) < 0) return;
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

// What is opened for reading has to be a regular file (or a folder, with O_DIRECTORY):
// a pipe or a device may never end. O_NONBLOCK lets the open of a pipe return at once;
// files know no such thing.
static inline int open_check(const char *path, int flags) {
    bool reads = (flags & O_ACCMODE) == O_RDONLY;
    int fd = open(path, flags | O_CLOEXEC | (reads ? O_NONBLOCK : 0), 0666);
    if (fd < 0) die_all("cannot %s %s: %s", reads ? "read" : "write", path, strerror(errno));
    struct stat s;
    if (!reads || flags & O_DIRECTORY) return fd;
    if (fstat(fd, &s) != 0) die_all("cannot read %s: %s", path, strerror(errno));
    if (!S_ISREG(s.st_mode))
        die_all("cannot read %s: expected a regular file, found a %s", path,
                S_ISDIR(s.st_mode)    ? "folder"
                : S_ISFIFO(s.st_mode) ? "pipe"
                                      : "device");
    return fd;
}

static inline FILE *fopen_check(const char *path, const char *mode) {
    bool reads = mode[0] == 'r';
    FILE *f = reads ? fdopen(open_check(path, O_RDONLY), mode) : fopen(path, mode);
    if (!f) die_all("cannot %s %s: %s", reads ? "read" : "write", path, strerror(errno));
    return f;
}

// Size in bytes of an open file.
static inline uint64_t file_size(int fd, const char *path) {
    struct stat s;
    if (fstat(fd, &s) != 0) die_all("cannot read the size of %s: %s", path, strerror(errno));
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
