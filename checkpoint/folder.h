// checkpoint/folder.h: the folder OUT/checkpoints: which checkpoints it holds, the newest, and
// which may go. A checkpoint is step_NNNNNNNN with an index.json; what is being written is called
// step_NNNNNNNN.tmp, and what has been replaced or given up ends otherwise too.
#pragma once

#include "index.h"
#include "lib/replace.h"

static inline void checkpoint_folder(char *path, const char *out) {
    path_print(path, "%s/checkpoints", out);
}

static inline void checkpoint_path(char *path, const char *out, long step) {
    path_print(path, "%s/checkpoints/step_%08ld", out, step);
}

// What cannot be looked at is not taken for absent: a run would start anew beside its checkpoints.
static inline bool checkpoint_is_complete(const char *path) {
    char index[PATH_BYTES];
    path_print(index, "%s/index.json", path);
    if (access(index, F_OK) == 0) return true;
    if (errno != ENOENT && errno != ENOTDIR) die("cannot read %s: %s", index, strerror(errno));
    return false;
}

// The step of a name step_NNNNNNNN, -1 if it is none.
static inline long checkpoint_step(const char *name) {
    const char *digits = name + 5;
    if (strncmp(name, "step_", 5) || strlen(digits) < 8 ||
        strspn(digits, "0123456789") != strlen(digits) || strlen(digits) > 10)
        return -1;
    return atol(digits);
}

typedef struct {
    int count;
    long *steps;      // ascending
    long incomplete;  // the highest step of a folder without index.json, -1: there is none
} CheckpointList;

static inline int checkpoint_compare(const void *a, const void *b) {
    long x = *(const long *)a, y = *(const long *)b;
    return (x > y) - (x < y);
}

// The complete checkpoints of a run's --out; none if there is no such folder.
static inline CheckpointList checkpoint_list(const char *out) {
    CheckpointList list = {0, NULL, -1};
    char folder[PATH_BYTES], path[PATH_BYTES];
    checkpoint_folder(folder, out);
    DIR *d = opendir(folder);
    if (!d && errno != ENOENT && errno != ENOTDIR)
        die("cannot read %s: %s", folder, strerror(errno));
    if (!d) return list;
    for (struct dirent *e; errno = 0, (e = readdir(d)) != NULL;) {
        long step = checkpoint_step(e->d_name);
        if (step < 0) continue;
        checkpoint_path(path, out, step);
        if (!checkpoint_is_complete(path)) {
            if (step > list.incomplete) list.incomplete = step;
            continue;
        }
        list.steps = (long *)realloc(list.steps, sizeof(long) * (size_t)(list.count + 1));
        if (!list.steps) die("out of memory for a list of checkpoints");
        list.steps[list.count++] = step;
    }
    if (errno) die("cannot read %s: %s", folder, strerror(errno));
    closedir(d);
    if (list.count) qsort(list.steps, (size_t)list.count, sizeof(long), checkpoint_compare);
    return list;
}

// Is it the name of a file that this program writes into a checkpoint?
static inline bool checkpoint_owns(const char *name) {
    static const char sums[] = "checksums.";  // and a rank, see saver_sums_path
    const size_t n = sizeof sums - 1;
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++)
        if (!strcmp(name, checkpoint_arrays[a].file)) return true;
    if (!strncmp(name, sums, n)) return name[n] && !name[n + strspn(name + n, "0123456789")];
    return !strcmp(name, "index.json");
}

// Does the folder hold such files and nothing else?
static inline bool checkpoint_owns_all(const char *path) {
    DIR *d = opendir(path);
    bool all = d != NULL;
    for (struct dirent *e; all && (e = readdir(d)) != NULL;)
        all = !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || checkpoint_owns(e->d_name);
    if (d) closedir(d);
    return all;
}

// Removes a checkpoint: its index first, so that what is left over is no checkpoint any more. Files
// of others that lie there stay, and the folder with them.
static inline void checkpoint_remove(const char *path) {
    char file[PATH_BYTES];
    path_print(file, "%s/index.json", path);
    unlink(file);
    DIR *d = opendir(path);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        path_print(file, "%s/%s", path, e->d_name);
        if (checkpoint_owns(e->d_name)) unlink(file);
    }
    closedir(d);
    if (rmdir(path) != 0)
        fprintf(stderr, "train_gpt: the checkpoint in %s is removed, the folder stays: %s\n", path,
                strerror(errno));
}

// What has this name and is not this program's gets another one.
static inline void checkpoint_make_way(const char *path) {
    if (access(path, F_OK) != 0) return;
    files_set_aside(&path, 1);
    fprintf(stderr,
            "train_gpt: %s holds files that are no checkpoint's: it is kept under that name and a "
            "number\n",
            path);
}

// Leaves the newest `keep` (0: all), and those of every keep_every-th step (0: none) for good.
static inline void checkpoint_prune(const char *out, int keep, int keep_every) {
    CheckpointList list = checkpoint_list(out);
    char path[PATH_BYTES];
    for (int i = 0; keep > 0 && i < list.count - keep; i++) {
        if (keep_every > 0 && list.steps[i] % keep_every == 0) continue;
        checkpoint_path(path, out, list.steps[i]);
        checkpoint_remove(path);
    }
    free(list.steps);
}

// What was being written when an earlier run ended. A folder with anything else in it is not that.
static inline void checkpoint_remove_unfinished(const char *out) {
    char folder[PATH_BYTES], path[PATH_BYTES];
    checkpoint_folder(folder, out);
    DIR *d = opendir(folder);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char name[sizeof e->d_name];
        snprintf(name, sizeof name, "%s", e->d_name);
        char *end = strstr(name, ".tmp");
        if (!end || end[4]) continue;
        *end = 0;
        if (checkpoint_step(name) < 0) continue;
        path_print(path, "%s/%s", folder, e->d_name);
        if (checkpoint_owns_all(path)) checkpoint_remove(path);
    }
    closedir(d);
}

// A run that goes on from `step` leaves those of later steps behind, under names that no run
// continues: step_NNNNNNNN.1, .2, ...
static inline void checkpoint_set_aside(const char *out, long step) {
    CheckpointList list = checkpoint_list(out);
    char path[PATH_BYTES], aside[PATH_BYTES];
    for (int i = 0; i < list.count; i++) {
        if (list.steps[i] <= step) continue;
        checkpoint_path(path, out, list.steps[i]);
        int number = 1;
        do path_print(aside, "%s.%d", path, number++);
        while (access(aside, F_OK) == 0);
        if (rename(path, aside) != 0)
            die("cannot rename %s to %s: %s", path, aside, strerror(errno));
    }
    free(list.steps);
}
