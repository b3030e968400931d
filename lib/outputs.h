// lib/outputs.h: before a run begins: none of its results is a file that it reads, no two of them
// are one file, and each can be written. Which options name files to read and to write is in the
// table of options.h. Files are compared by device and inode, so through links of both kinds; those
// that are not there yet by their path from the root on. Rank 0 looks.
#pragma once

#include "options.h"
#include "paths.h"
#include "replace.h"

#include <dirent.h>

// What an option that names a folder writes there; "/" at the end: a folder that is its own.
static const struct {
    const char *option, *file;
} output_files[] = {
    {"out", "main.log"},     {"out", "metrics.jsonl"},     {"out", "options.cfg"},
    {"out", "checkpoints/"}, {"export-hf", "config.json"}, {"export-hf", "model.safetensors"},
};

// A file that the run reads or writes.
typedef struct {
    char what[40];  // "--train"
    char *given, *full;
    bool there;
    struct stat s;
} RunFile;

typedef struct {
    RunFile *files;
    int count;
} RunFiles;

// The path from the root on, links followed; of what is not there as it would be.
static inline void path_full(char *full, const char *path) {
    char target[PATH_BYTES], copy[PATH_BYTES], folder[PATH_BYTES], *real = realpath(path, NULL);
    if (real) {
        path_print(full, "%s", real);
        free(real);
        return;
    }
    file_target(target, path);
    path_print(folder, "%s", target);
    path_print(copy, "%s", target);
    const char *name = basename(copy), *above = dirname(folder);
    path_full(target, strcmp(above, path) ? above : ".");
    if (!strcmp(name, ".."))
        path_print(full, "%s", dirname(target));
    else
        path_print(full, "%s%s%s", target, strcmp(name, ".") ? "/" : "",
                   strcmp(name, ".") ? name : "");
}

static inline void run_files_add(RunFiles *all, const char *what, const char *path) {
    char full[PATH_BYTES];
    RunFile f;
    path_full(full, path);
    snprintf(f.what, sizeof f.what, "%s", what);
    f.given = strdup_check(path), f.full = strdup_check(full);
    f.there = stat(path, &f.s) == 0;
    all->files = (RunFile *)realloc_check(all->files, ((size_t)all->count + 1) * sizeof f);
    all->files[all->count++] = f;
}

static inline void run_files_free(RunFiles *all) {
    for (int i = 0; i < all->count; i++) free(all->files[i].given), free(all->files[i].full);
    free(all->files);
}

// A file, or those that lie in a folder.
static inline void run_files_add_all(RunFiles *all, const char *what, const char *path) {
    char file[PATH_BYTES];
    DIR *d = is_folder(path) ? opendir(path) : NULL;
    if (!d && access(path, F_OK) == 0) run_files_add(all, what, path);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        path_print(file, "%s/%s", path, e->d_name);
        if (!is_folder(file)) run_files_add(all, what, file);
    }
    if (d) closedir(d);
}

// ---- what a run reads and writes ---------------------------------------------------------------

static inline const char *option_text(const Options *o, const Option *row) {
    return *(const char *const *)(const void *)((const char *)o + row->offset);
}

// resumed: the folder of a checkpoint, or "".
static inline RunFiles run_inputs(const Options *o, int argc, char **argv, const char *resumed) {
    RunFiles all = {NULL, 0};
    for (int i = 0; i < OPTION_ROWS; i++) {
        const Option *row = &option_table[i];
        if (row->kind != KIND_TEXT || !option_text(o, row)[0]) continue;
        char what[40];
        snprintf(what, sizeof what, "--%s", option_name(row).text);
        Paths found = {0, NULL};
        if (row->path == INPUT_FILES) paths_add_pattern(&found, option_text(o, row));
        for (int k = 0; k < found.count; k++) run_files_add(&all, what, found.names[k]);
        paths_free(&found);
        if (row->path == INPUT) run_files_add_all(&all, what, option_text(o, row));
    }
    OptionWords w = option_words(argc, argv);
    while (option_next(&w))  // each of them, not the last alone
        if (w.row == option_find("config")) run_files_add(&all, "--config", w.value);
    if (resumed[0]) run_files_add_all(&all, "--resume", resumed);
    run_files_add(&all, "stdout", "/proc/self/fd/1");
    run_files_add(&all, "stderr", "/proc/self/fd/2");
    run_files_add(&all, "the program", "/proc/self/exe");
    return all;
}

// Of `world` ranks, each writes a trace of its own.
static inline RunFiles run_outputs(const Options *o, int world) {
    RunFiles all = {NULL, 0};
    char what[40], path[PATH_BYTES];
    for (int i = 0; i < OPTION_ROWS; i++) {
        const Option *row = &option_table[i];
        if (row->kind != KIND_TEXT || !option_text(o, row)[0]) continue;
        OptionName name = option_name(row);
        snprintf(what, sizeof what, "--%s", name.text);
        if (row->path == OUTPUT_FILE) run_files_add(&all, what, option_text(o, row));
        for (size_t k = 0; k < sizeof output_files / sizeof output_files[0]; k++) {
            if (row->path != OUTPUT_FOLDER || strcmp(name.text, output_files[k].option)) continue;
            path_print(path, "%s/%s", option_text(o, row), output_files[k].file);
            run_files_add(&all, what, path);
        }
    }
    for (int rank = 1; o->trace[0] && rank < world; rank++) {
        rank_path(path, o->trace, rank);
        run_files_add(&all, "--trace", path);
    }
    return all;
}

// ---- the comparison ----------------------------------------------------------------------------

static inline bool run_file_is_folder(const RunFile *f) {
    return f->given[strlen(f->given) - 1] == '/';
}

static inline bool run_file_same(const RunFile *a, const RunFile *b) {
    if (a->there && b->there) return a->s.st_dev == b->s.st_dev && a->s.st_ino == b->s.st_ino;
    return !strcmp(a->full, b->full);
}

// Does a file lie in the folder?
static inline bool run_file_below(const RunFile *f, const RunFile *folder) {
    size_t n = strlen(folder->full);
    return run_file_is_folder(folder) && !strncmp(f->full, folder->full, n) && f->full[n] == '/';
}

static inline void output_check_kind(const RunFile *f) {
    const bool folder = run_file_is_folder(f);
    if (f->there && !(folder ? S_ISDIR(f->s.st_mode) : S_ISREG(f->s.st_mode)))
        die_all("%s %s: expected a %s, found a %s", f->what, f->given, folder ? "folder" : "file",
                file_kind_name(f->s.st_mode));
}

// A run may be repeated by the options that it has left in its own folder.
static inline bool output_may_replace(const RunFile *output, const RunFile *input) {
    return !strcmp(output->what, "--out") && !strcmp(input->what, "--config");
}

static inline void output_check_other(const RunFile *f, const RunFile *other) {
    if (run_file_same(f, other) || run_file_below(f, other))
        die_all("%s %s: expected a file of its own, found that of %s: %s", f->what, f->given,
                other->what, other->full);
}

static inline void output_folders_check(const Options *o) {
    for (int i = 0; i < OPTION_ROWS; i++) {
        const Option *row = &option_table[i];
        if (row->kind != KIND_TEXT || row->path != OUTPUT_FOLDER) continue;
        const char *path = option_text(o, row);
        if (path[0] && access(path, F_OK) == 0 && !is_folder(path))
            die_all("--%s %s: expected a folder, found a file", option_name(row).text, path);
    }
}

static inline void outputs_check(const Options *o, int argc, char **argv, const char *resumed,
                                 int world) {
    output_folders_check(o);
    RunFiles in = run_inputs(o, argc, argv, resumed), out = run_outputs(o, world);
    for (int i = 0; i < out.count; i++) {
        const RunFile *f = &out.files[i];
        output_check_kind(f);
        for (int k = 0; k < in.count; k++)
            if (!output_may_replace(f, &in.files[k])) output_check_other(f, &in.files[k]);
        for (int k = 0; k < out.count; k++)
            if (k != i) output_check_other(f, &out.files[k]);
    }
    run_files_free(&in);
    run_files_free(&out);
}

// ---- can they be written? ----------------------------------------------------------------------

static inline void output_try(const char *option, const char *path) {
    char probe[PATH_BYTES];
    if (!path[0]) return;
    file_temporary(probe, path);
    int fd = open(probe, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) die_all("--%s %s: %s", option, path, strerror(errno));
    close(fd);
    unlink(probe);
}

// Makes a folder and keeps it for this run.
static inline void output_take_folder(const char *option, const char *folder) {
    if (!folder[0]) return;
    make_folder(folder);
    if (!folder_lock(folder))
        die_all("--%s %s: another run is writing there; give this one a folder of its own", option,
                folder);
}

static inline void outputs_open(const Options *o) {
    char file[PATH_BYTES], out[PATH_BYTES], hf[PATH_BYTES];
    path_full(out, o->out), path_full(hf, o->export_hf);
    output_take_folder("out", o->out);
    if (!o->out[0] || strcmp(out, hf)) output_take_folder("export-hf", o->export_hf);
    path_print(file, "%s/model", o->export_hf);
    if (o->export_hf[0]) output_try("export-hf", file);
    output_try("export-model", o->export_model);
    output_try("trace", o->trace);
}
