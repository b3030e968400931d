// checkpoint/resume.h: which checkpoint a run goes on from, and what that means for its options:
// those that a run keeps are the checkpoint's unless the command line says otherwise, and each that
// differs is named.
#pragma once

#include "lib/outputs.h"
#include "load.h"

// ---- which -------------------------------------------------------------------------------------

static inline bool resume_is_auto(const char *resume) {
    return !strcmp(resume, "auto") || !strcmp(resume, "1");  // 1 is llm.c's
}

// The newest checkpoint of a run's folder; false if there is none. Says which is passed over.
static inline bool resume_newest(char *path, const char *out) {
    CheckpointList list = checkpoint_list(out);
    long newest = list.count ? list.steps[list.count - 1] : -1;
    if (list.incomplete > newest) {
        checkpoint_path(path, out, list.incomplete);
        fprintf(stderr, "train_gpt: %s is passed over: it has no index.json\n", path);
        path[0] = 0;
    }
    if (list.count) checkpoint_path(path, out, newest);
    free(list.steps);
    return list.count > 0;
}

// --resume to the path of a checkpoint, "": start afresh. Rank 0 looks.
static inline void resume_find(char *path, const char *resume, const char *out) {
    path[0] = 0;
    if (!strcmp(resume, "0")) return;
    if (resume_is_auto(resume)) {
        if (!out[0]) die("--resume %s: expected --out, the folder of the run", resume);
        resume_newest(path, out);
        return;
    }
    size_t length = strlen(resume);
    while (length > 1 && resume[length - 1] == '/') length--;
    path_print(path, "%.*s", (int)length, resume);
    char folder[PATH_BYTES];
    path_print(folder, "%s", path);
    if (checkpoint_is_complete(path) || resume_newest(path, folder)) return;
    if (access(path, F_OK) != 0) die("--resume %s: %s", resume, strerror(errno));
    if (length > 4 && !strcmp(path + length - 4, ".tmp"))
        die("--resume %s: this checkpoint was never completed", resume);
    die("--resume %s: expected a checkpoint (index.json) or the --out of a run (checkpoints/), "
        "found neither",
        resume);
}

// The same for all ranks; every one has to see it.
static inline void resume_agree(char *path, Ranks *ranks, const char *resume, const char *out) {
    char *everyones = (char *)calloc(1, PATH_BYTES);
    if (!everyones) die("out of memory for a path");
    if (ranks->rank == 0) resume_find(everyones, resume, out);
    if (ranks_started(ranks)) ranks_broadcast(ranks, everyones, PATH_BYTES);
    path_print(path, "%s", everyones);
    free(everyones);
    if (path[0] && !checkpoint_is_complete(path))
        die("--resume: rank %d does not see %s, which rank 0 does: expected a folder that all "
            "nodes share",
            ranks->rank, path);
}

// Is it one of the run's own checkpoints, whose logs go on? One that has been set aside is not: the
// logs have been cut before it and may be those of another way on.
static inline bool resume_is_below(const char *path, const char *out) {
    char folder[PATH_BYTES], *checkpoint = realpath(path, NULL), *own;
    checkpoint_folder(folder, out);
    own = realpath(folder, NULL);
    size_t n = own ? strlen(own) : 0;
    bool below = own && checkpoint && !strncmp(checkpoint, own, n) && checkpoint[n] == '/' &&
                 checkpoint_step(checkpoint + n + 1) >= 0;
    free(checkpoint);
    free(own);
    return below;
}

// ---- options -----------------------------------------------------------------------------------

// The options that a run keeps, as a config file has them. tokens_per_step: what it comes to,
// as its default depends on the ranks.
static inline json_t *resume_options(const Options *o, uint64_t tokens_per_step) {
    json_t *all = json_object();
    for (int i = 0; i < OPTION_ROWS; i++) {
        const Option *row = &option_table[i];
        char value[PATH_BYTES];
        if (!option_is_of_run(row)) continue;
        option_print_value(o, row, value, sizeof value);
        json_object_set_new(all, option_name(row).text, json_string(value));
    }
    json_object_set_new(all, "tokens-per-step", json_sprintf("%" PRIu64, tokens_per_step));
    return all;
}

// The checkpoint's value of an option; NULL: it has none.
static inline const char *resume_value(const CheckpointIndex *x, const Option *row) {
    if (!option_is_of_run(row)) return NULL;
    return json_string_value(json_object_get(x->options, option_name(row).text));
}

// Data and checkpoints are of use only where a step is made.
static inline bool resume_needs(const Option *row, bool trains) {
    bool data =
        row == option_find("train") || row == option_find("val") || row == option_find("eval");
    return trains || !(data || option_is_of_checkpoints(row));
}

// Puts the checkpoint's options before those of the command line. Their texts stay the index's. An
// audit takes two ranks: a run that goes on with one leaves out the checkpoint's.
static inline void resume_apply(Options *o, const CheckpointIndex *x, int world, int argc,
                                char **argv) {
    bool trains = o->steps != 0 && !o->generate;
    options_default(o);
    for (int i = 0; i < OPTION_ROWS; i++) {
        const Option *row = &option_table[i];
        const char *value = resume_value(x, row);
        bool alone = row == option_find("audit-every") && world == 1;
        if (value && resume_needs(row, trains) && !alone)
            option_set_or_die(o, row, value, "index.json: ");
    }
    options_command_line(o, argc, argv);
}

// Are the files there that the checkpoint names? (Its model is in it.)
static inline void resume_check_inputs(const Options *o, const CheckpointIndex *x) {
    for (int i = 0; i < OPTION_ROWS; i++) {
        const Option *row = &option_table[i];
        const char *before = resume_value(x, row);
        if ((row->path != INPUT && row->path != INPUT_FILES) || row == option_find("model"))
            continue;
        if (!before || !before[0] || strcmp(before, option_text(o, row))) continue;
        Paths found = {0, NULL};
        Failure failure;
        if (!paths_try_pattern(&found, before, &failure))
            die_all("--%s, as in the checkpoint: %s; give it anew if it has moved",
                    option_name(row).text, failure.text);
        paths_free(&found);
    }
}

// Names every option that is not the checkpoint's.
static inline void resume_print_differences(const Options *o, const CheckpointIndex *x, FILE *f) {
    for (int i = 0; i < OPTION_ROWS; i++) {
        const Option *row = &option_table[i];
        const char *before = resume_value(x, row);
        char now[PATH_BYTES];
        bool needed =
            resume_needs(row, o->steps != 0) && (o->steps != 0 || row != option_find("steps"));
        if (!before || !needed) continue;
        option_print_value(o, row, now, sizeof now);
        if (!strcmp(before, now)) continue;
        bool rescales = row == option_find("steps") && o->schedule != 0;
        fprintf(f, "  --%s %s, in the checkpoint %s%s\n", option_name(row).text,
                now[0] ? now : "(empty)", before[0] ? before : "(empty)",
                rescales ? "; the learning rate follows the new end" : "");
    }
}

// What cannot be continued ends in one line. moment_bytes 0: moments are not asked for.
static inline void resume_check_moments(const CheckpointIndex *x, size_t moment_bytes,
                                        const char *path) {
    if (moment_bytes > 0 && x->bytes[1] != moment_bytes)
        die_all("--resume %s: its moments are %s, the options ask for %s; use --moment-dtype %s",
                path, checkpoint_dtype(x->bytes[1]), checkpoint_dtype(moment_bytes),
                checkpoint_dtype(x->bytes[1]));
}

static inline void resume_check_model(const CheckpointIndex *x, const ModelConfig *m,
                                      const char *path) {
    const ModelConfig *c = &x->model;
    if (memcmp(c, m, sizeof *c))
        die_all("--resume %s: its model is L=%d,C=%d,NH=%d,T=%d,V=%d, --model is "
                "L=%d,C=%d,NH=%d,T=%d,V=%d",
                path, c->L, c->C, c->NH, c->T, c->V, m->L, m->C, m->NH, m->T, m->V);
}
