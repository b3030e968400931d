// lib/replace.h: results take their names so that nothing that was there is lost. What is being
// written has a name of its own beside the one it will get, and is created exclusively; a file that
// is in the way of the complete one is kept under a number (PATH.1, or the first that is free). A
// symbolic link is followed: the file that it leads to is the one meant.
#pragma once

#include "files.h"

#include <sys/file.h>

// Where the file of this name is, or would be made.
static inline void file_target(char *target, const char *path) {
    enum { MOST_LINKS = 40 };
    char link[PATH_BYTES], folder[PATH_BYTES];
    path_print(target, "%s", path);
    for (int i = 0; i < MOST_LINKS; i++) {
        ssize_t n = readlink(target, link, sizeof link - 1);
        if (n < 0) return;  // no link
        link[n] = 0;
        path_print(folder, "%s", target);
        if (link[0] == '/')
            path_print(target, "%s", link);
        else
            path_print(target, "%s/%s", dirname(folder), link);
    }
    die("cannot write %s: %s", path, strerror(ELOOP));
}

// The name of `path` while it is being written, the same on all ranks of a run and on no other's.
static inline void file_temporary(char *temporary, const char *path) {
    char target[PATH_BYTES];
    file_target(target, path);
    path_print(temporary, "%s.%08x.tmp", target, process.run);
}

// The temporary file goes if this process dies before it is file_done with it.
static inline void file_begun(const char *temporary) {
    path_print(die_unfinished, "%s", temporary);
}

static inline void file_done(void) {
    die_unfinished[0] = 0;
}

// Opens a file of `bytes` that several ranks write together. `first` is true on the one that makes
// it, with what stands at its beginning; the others open it after that.
static inline int open_shared(const char *path, bool first, uint64_t bytes, const void *head,
                              size_t head_bytes) {
    int fd = open_check(path, first ? O_RDWR | O_CREAT | O_EXCL : O_RDWR);
    Failure failure;
    if (!first) return fd;
    file_begun(path);
    if (!reserve_try(fd, bytes, path, &failure) ||
        !write_try(fd, head, head_bytes, 0, path, &failure))
        die("%s", failure.text);
    return fd;
}

static inline void rename_check(const char *from, const char *to) {
    if (rename(from, to) != 0) die("cannot rename %s to %s: %s", from, to, strerror(errno));
}

// Gives a file a name that none has; false if one has it.
static inline bool rename_new(const char *from, const char *to) {
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return true;
    if (errno == EEXIST || (errno == EINVAL && access(to, F_OK) == 0)) return false;
    if (errno != EINVAL) die("cannot rename %s to %s: %s", from, to, strerror(errno));
    rename_check(from, to);  // the file system cannot look and rename in one
    return true;
}

// Gives those of the files that are there the first number that is free for all of them.
static inline void files_set_aside(const char *const *paths, int count) {
    char to[PATH_BYTES];
    for (int number = 1, taken = 1; taken; number++) {
        taken = 0;
        for (int i = 0; i < count; i++) {
            path_print(to, "%s.%d", paths[i], number);
            taken += access(to, F_OK) == 0;
        }
        for (int i = 0; !taken && i < count; i++) {
            path_print(to, "%s.%d", paths[i], number);
            if (access(paths[i], F_OK) == 0) taken += !rename_new(paths[i], to);
        }
    }
}

// On one rank, after all have closed the temporary file: gives the complete file its name.
static inline void publish(const char *path) {
    char temporary[PATH_BYTES], target[PATH_BYTES];
    const char *paths[] = {target};
    file_target(target, path);
    file_temporary(temporary, path);
    do files_set_aside(paths, 1);
    while (!rename_new(temporary, target));  // another run was faster
    file_done();
    Failure failure;
    if (!sync_folder_try(dirname(target), &failure)) die("%s", failure.text);
}

// A new file of this name, for one rank to write as it goes.
static inline FILE *fopen_new(const char *path) {
    char target[PATH_BYTES];
    const char *paths[] = {target};
    FILE *f;
    file_target(target, path);
    do files_set_aside(paths, 1);
    while (!(f = fopen(target, "wxe")) && errno == EEXIST);
    if (!f) die("cannot write %s: %s", path, strerror(errno));
    return f;
}

// ---- folders -----------------------------------------------------------------------------------

// mkdir -p.
static inline void make_folder(const char *folder) {
    char path[PATH_BYTES];
    path_print(path, "%s", folder);
    for (char *c = path + 1;; c++) {
        if (*c && *c != '/') continue;
        char separator = *c;
        *c = 0;
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            die("cannot make the folder %s: %s", path, strerror(errno));
        if (!is_folder(path)) die_all("%s: expected a folder, found a file", path);
        if (!separator) return;
        *c = separator;
    }
}

// Keeps a folder for this process until it ends; false if another has it. A file system without
// locks gives it to all.
static inline bool folder_lock(const char *folder) {
    char path[PATH_BYTES];
    path_print(path, "%s/.lock", folder);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    return fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}
