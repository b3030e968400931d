// lib/files.h: files read and written exactly, with messages that name the file, what was expected
// and what was found. What may fail while the run's state is whole (a data file that is gone, a
// checkpoint that cannot be written) comes in two forms: NAME_try fills a Failure and returns
// false, so that the run can be saved first; NAME_exact ends the run.
#pragma once

#include "die.h"

#include <dirent.h>
#include <fcntl.h>
#include <libgen.h>
#include <sys/stat.h>
#include <time.h>

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

// The last part of a path.
static inline const char *path_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// Where a rank writes what is FILE on rank 0: rank 1's is FILE.rank-1.
static inline void rank_path(char *path, const char *file, int rank) {
    if (rank == 0)
        path_print(path, "%s", file);
    else
        path_print(path, "%s.rank-%d", file, rank);
}

// What went wrong, in one line; empty: nothing.
typedef struct {
    char text[1024];
} Failure;

// Always false, so that a function can end with it.
__attribute__((format(printf, 2, 3))) static inline bool fails(Failure *f, const char *format,
                                                               ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(f->text, sizeof f->text, format, args);
    va_end(args);
    return false;
}

static inline bool is_folder(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

static inline const char *file_kind_name(mode_t mode) {
    return S_ISREG(mode)    ? "file"
           : S_ISDIR(mode)  ? "folder"
           : S_ISFIFO(mode) ? "pipe"
           : S_ISSOCK(mode) ? "socket"
                            : "device";
}

// Removes a folder and the files in it but hidden ones; true if it is gone.
static inline bool folder_remove(const char *folder) {
    char path[PATH_BYTES];
    DIR *d = opendir(folder);
    if (!d) return errno == ENOENT;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        path_print(path, "%s/%s", folder, e->d_name);
        unlink(path);
    }
    closedir(d);
    return rmdir(folder) == 0;
}

// ---- opening -----------------------------------------------------------------------------------

// What is opened for reading has to be a regular file (or a folder, with O_DIRECTORY): a pipe or a
// device may never end. O_NONBLOCK lets the open of a pipe return at once; files know no such
// thing. Returns the descriptor, or -1.
static inline int open_try(const char *path, int flags, Failure *failure) {
    bool reads = (flags & O_ACCMODE) == O_RDONLY;
    int fd = open(path, flags | O_CLOEXEC | (reads ? O_NONBLOCK : 0), 0666);
    struct stat s;
    if (fd < 0) {
        fails(failure, "cannot %s %s: %s", reads ? "read" : "write", path, strerror(errno));
        return -1;
    }
    if (!reads || flags & O_DIRECTORY) return fd;
    if (fstat(fd, &s) != 0)
        fails(failure, "cannot read %s: %s", path, strerror(errno));
    else if (S_ISREG(s.st_mode))
        return fd;
    else
        fails(failure, "cannot read %s: expected a regular file, found a %s", path,
              file_kind_name(s.st_mode));
    close(fd);
    return -1;
}

static inline int open_check(const char *path, int flags) {
    Failure failure;
    int fd = open_try(path, flags, &failure);
    if (fd < 0) die_all("%s", failure.text);
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

// ---- reading -----------------------------------------------------------------------------------

// Network disks fail for a while and come back: a read is tried again after growing pauses,
// together some thirteen seconds, and the file is opened anew in case its handle is stale. A file
// that seems to end early gets half a second.
enum { READ_TRIES = 8, READ_TRIES_AT_END = 4, READ_FIRST_PAUSE_MS = 50 };

static inline void read_pause(int tries) {
    long ms = (long)READ_FIRST_PAUSE_MS << tries;
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

// Gives the descriptor the file that now has this name.
static inline void read_reopen(int fd, const char *path) {
    int again = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (again < 0) return;
    dup2(again, fd);
    close(again);
}

// Reads exactly `bytes` at `offset`.
static inline bool read_try(int fd, void *dst, size_t bytes, uint64_t offset, const char *path,
                            Failure *failure) {
    int tries = 0;
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(fd, (char *)dst + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n > 0) {
            done += (size_t)n;
            tries = 0;
        } else if (n == 0 && tries == READ_TRIES_AT_END) {
            return fails(failure,
                         "%s ends at byte %llu: expected %zu bytes from byte %llu on; is it "
                         "complete?",
                         path, (unsigned long long)(offset + done), bytes,
                         (unsigned long long)offset);
        } else if (n < 0 && (tries == READ_TRIES || (errno != EIO && errno != ESTALE))) {
            return fails(failure, "cannot read %s at byte %llu: %s%s", path,
                         (unsigned long long)(offset + done), strerror(errno),
                         tries ? ", again and again" : "");
        } else {
            read_pause(tries++);
            read_reopen(fd, path);
        }
    }
    return true;
}

static inline void read_exact(int fd, void *dst, size_t bytes, uint64_t offset, const char *path) {
    Failure failure;
    if (!read_try(fd, dst, bytes, offset, path, &failure)) die_all("%s", failure.text);
}

// Lets the disk bring the bytes from `offset` on while others are worked on. It is only advice.
static inline void file_read_ahead(int fd, uint64_t offset, uint64_t bytes) {
    posix_fadvise(fd, (off_t)offset, (off_t)bytes, POSIX_FADV_WILLNEED);
}

// A whole file of at most `most` bytes, to be freed by the caller.
static inline char *read_all(const char *path, uint64_t most, size_t *bytes) {
    int fd = open_check(path, O_RDONLY);
    uint64_t size = file_size(fd, path);
    if (size > most)
        die_all("%s: expected at most %llu bytes, found %llu", path, (unsigned long long)most,
                (unsigned long long)size);
    char *text = (char *)malloc_check(size);
    read_exact(fd, text, size, 0, path);
    close(fd);
    *bytes = size;
    return text;
}

// Do the two files hold the same bytes? false if one cannot be opened.
static inline bool files_are_equal(const char *a, const char *b) {
    FILE *f = fopen(a, "re"), *g = fopen(b, "re");
    bool equal = f && g;
    for (int c = 0; equal && c != EOF;) equal = (c = getc(f)) == getc(g);
    if (f) fclose(f);
    if (g) fclose(g);
    return equal;
}

// ---- writing -----------------------------------------------------------------------------------

// Writes exactly `bytes` at `offset`.
static inline bool write_try(int fd, const void *src, size_t bytes, uint64_t offset,
                             const char *path, Failure *failure) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fd, (const char *)src + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return fails(failure, "cannot write %s at byte %llu: %s", path,
                         (unsigned long long)(offset + done), n < 0 ? strerror(errno) : "no room");
        done += (size_t)n;
    }
    return true;
}

static inline void write_exact(int fd, const void *src, size_t bytes, uint64_t offset,
                               const char *path) {
    Failure failure;
    if (!write_try(fd, src, bytes, offset, path, &failure)) die("%s", failure.text);
}

// Takes the room for a file of `bytes` at once, so that a full disk is found before the writing.
static inline bool reserve_try(int fd, uint64_t bytes, const char *path, Failure *failure) {
    int result;
    do result = fallocate(fd, 0, 0, (off_t)bytes);
    while (result != 0 && errno == EINTR);
    // Not every file system can reserve; it can still give the size.
    if (result != 0 && (errno == EOPNOTSUPP || errno == ENOSYS))
        result = ftruncate(fd, (off_t)bytes);
    if (result != 0)
        return fails(failure, "cannot write %s: %s (%llu bytes are needed)", path, strerror(errno),
                     (unsigned long long)bytes);
    return true;
}

// What has been written is on the disk afterwards; the descriptor is closed in any case.
static inline bool sync_close_try(int fd, const char *path, Failure *failure) {
    int error = fsync(fd) != 0 ? errno : 0;
    if (close(fd) != 0 && !error) error = errno;
    return !error || fails(failure, "cannot write %s: %s", path, strerror(error));
}

// The names in a folder are on the disk afterwards.
static inline bool sync_folder_try(const char *folder, Failure *failure) {
    int fd = open_try(folder, O_RDONLY | O_DIRECTORY, failure);
    return fd >= 0 && sync_close_try(fd, folder, failure);
}

// Flushes to the disk and closes, so that a full disk is found here and not later.
static inline void fclose_check(FILE *f, const char *path) {
    if (fflush(f) != 0 || ferror(f)) die("cannot write %s: %s", path, strerror(errno));
    if (fclose(f) != 0) die("cannot write %s: %s", path, strerror(errno));
}
