// lib/logger.h: the files that a run leaves in its folder --out. main.log in llm.c's format, with
// digits enough that a float survives, metrics.jsonl with every field, one JSON object a line, and
// options.cfg, which repeats the run. Rank 0 writes them. They appear with the run's first line,
// and only then does an earlier run's set step aside (main.log.1, metrics.jsonl.1, options.cfg.1,
// then .2, ...): a run that fails before it has said anything changes nothing. A resumed run goes
// on in the files that are there and drops their lines from its first step on: none stands twice.
#pragma once

#include "options.h"
#include "replace.h"
#include "utf8.h"

// ---- JSON: strings, and numbers that are not finite --------------------------------------------

// A quoted string of UTF-8; bytes that are none become U+FFFD, so that any bytes give valid JSON.
static inline void json_string(FILE *f, const char *text, size_t n) {
    const unsigned char *c = (const unsigned char *)text;
    fputc('"', f);
    for (size_t i = 0, length; i < n; i += length ? length : 1) {
        length = utf8_length(c + i, n - i);
        if (c[i] == '"' || c[i] == '\\')
            fprintf(f, "\\%c", c[i]);
        else if (c[i] == '\n')
            fputs("\\n", f);
        else if (c[i] < 32 || c[i] == 127)
            fprintf(f, "\\u%04x", c[i]);
        else if (length)
            fwrite(c + i, 1, length, f);
        else
            fputs(UTF8_REPLACEMENT, f);
    }
    fputc('"', f);
}

// A NaN without the sign that printf would show.
static inline double plain_nan(double x) {
    return isnan(x) ? (double)NAN : x;
}

// A number with `digits` digits; null if it is not finite.
static inline void json_number(FILE *f, double x, int digits) {
    if (isfinite(x))
        fprintf(f, "%.*g", digits, x);
    else
        fputs("null", f);
}

// ---- files -------------------------------------------------------------------------------------

typedef struct {
    long step, steps;
    double loss, norm;  // mean over all tokens of the step; norm before clipping
    double lr, ms;
    double tokens_per_second, mfu;  // mfu: share of the peak; NaN if the peak is not known
    double comm_share;              // of the step's time spent waiting for communication
    double gathered, reduced,
        allreduced;       // bytes that this rank has received in the step's collectives
    double update_ratio;  // norm of the update over that of the parameters; NaN: not measured
    double elapsed;       // seconds since the run has begun, without the time between its parts
    double epoch;         // how often the training data have been gone over
    int skipped;          // updates left out so far
    long collectives;
    uint64_t tokens;  // trained on so far, this step included
    uint64_t memory;  // bytes of this rank's buffers
} StepMetrics;

typedef struct {
    const Options *options;  // --out is the folder; "": no files. They live longer than the logger
    bool resumes;            // goes on in the files that are there
    long start;              // first step of this run
    double elapsed;          // at that step: of the parts of the run before
    FILE *log, *metrics;     // NULL: nothing has been written yet
    char log_path[PATH_BYTES], metrics_path[PATH_BYTES], options_path[PATH_BYTES];
} Logger;

// The step's number of a line of main.log or metrics.jsonl, -1 if it has none.
static inline long logger_line_step(const char *line) {
    long step;
    if (sscanf(line, "s:%ld", &step) == 1 || sscanf(line, "{\"step\":%ld", &step) == 1) return step;
    return -1;
}

// Leaves of a file the lines of steps before `start`.
static inline void logger_cut(const char *path, long start) {
    if (access(path, F_OK) != 0) return;
    char other[PATH_BYTES], *line = NULL;
    file_temporary(other, path);
    FILE *from = fopen_check(path, "r"), *to = fopen_check(other, "wx");
    file_begun(other);
    size_t capacity = 0;
    while (getline(&line, &capacity, from) >= 0)
        if (logger_line_step(line) < start && strchr(line, '\n')) fputs(line, to);
    if (ferror(from)) die("cannot read %s: %s", path, strerror(errno));
    free(line);
    fclose(from);
    fclose_check(to, other);
    rename_check(other, path);
    file_done();
}

// The seconds that the last line before step `start` has come to.
static inline double logger_elapsed(const char *path, long start) {
    static const char field[] = ",\"elapsed\":";
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t capacity = 0;
    double seconds = 0;
    while (f && getline(&line, &capacity, f) >= 0) {
        const char *at = strstr(line, field);
        if (at && logger_line_step(line) < start) seconds = atof(at + strlen(field));
    }
    free(line);
    if (f) fclose(f);
    return seconds;
}

// Writes the options under a temporary name: whether the folder takes files is known before any
// other is touched.
static inline void logger_save_options(const Logger *l, char *path) {
    file_temporary(path, l->options_path);
    file_begun(path);
    options_save(l->options, path);
}

// start: the first step of this run; resumes: lines before it are there already. An unwritable
// folder and a full disk are found here.
static inline void logger_open(Logger *l, const Options *options, bool resumes, long start) {
    char probe[PATH_BYTES];
    const char *folder = options->out;
    memset(l, 0, sizeof *l);
    l->options = options;
    l->resumes = resumes;
    l->start = start;
    if (!folder[0]) return;
    make_folder(folder);
    path_print(l->log_path, "%s/main.log", folder);
    path_print(l->metrics_path, "%s/metrics.jsonl", folder);
    path_print(l->options_path, "%s/options.cfg", folder);
    if (resumes) l->elapsed = logger_elapsed(l->metrics_path, start);
    logger_save_options(l, probe);
    unlink(probe);
    file_done();
}

// Before every line: false if there is nothing to write to. The first makes the files.
static inline bool logger_begin(Logger *l) {
    if (l->log || !l->options || !l->options->out[0]) return l->log != NULL;
    char saved[PATH_BYTES];
    const char *paths[] = {l->options_path, l->log_path, l->metrics_path};
    logger_save_options(l, saved);
    const bool same = l->resumes && files_are_equal(saved, l->options_path);
    if (!same) files_set_aside(paths, l->resumes ? 1 : 3);
    rename_check(saved, l->options_path);
    file_done();
    if (l->resumes) {
        logger_cut(l->log_path, l->start);
        logger_cut(l->metrics_path, l->start);
    }
    l->log = fopen_check(l->log_path, "a");
    l->metrics = fopen_check(l->metrics_path, "a");
    return true;
}

// After every line, so that a run that is killed leaves what it has said.
static inline void logger_flush(Logger *l) {
    if (fflush(l->log) != 0) die("cannot write %s: %s", l->log_path, strerror(errno));
    if (fflush(l->metrics) != 0) die("cannot write %s: %s", l->metrics_path, strerror(errno));
}

// One JSON object and a newline; also what --json prints.
static inline void metrics_print(FILE *f, const StepMetrics *m) {
    const struct {
        const char *name;
        double value;
        int digits;
    } fields[] = {{"loss", m->loss, 9},
                  {"norm", m->norm, 9},
                  {"lr", m->lr, 9},
                  {"ms", m->ms, 6},
                  {"tokens_per_second", m->tokens_per_second, 6},
                  {"mfu", m->mfu, 4},
                  {"comm_share", m->comm_share, 4},
                  {"update_ratio", m->update_ratio, 6},
                  {"elapsed", m->elapsed, 9},
                  {"epoch", m->epoch, 9},
                  {"gathered", m->gathered, 15},
                  {"reduced", m->reduced, 15},
                  {"allreduced", m->allreduced, 15}};
    fprintf(f, "{\"step\":%ld,\"steps\":%ld", m->step, m->steps);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        fprintf(f, ",\"%s\":", fields[i].name);
        json_number(f, fields[i].value, fields[i].digits);
    }
    fprintf(f, ",\"skipped\":%d,\"collectives\":%ld,\"tokens\":%llu,\"memory\":%llu}\n", m->skipped,
            m->collectives, (unsigned long long)m->tokens, (unsigned long long)m->memory);
}

static inline void logger_step(Logger *l, const StepMetrics *m) {
    if (!logger_begin(l)) return;
    fprintf(l->log, "s:%ld trl:%.9g lr:%.9g norm:%.9g\n", m->step, m->loss, m->lr, m->norm);
    metrics_print(l->metrics, m);
    logger_flush(l);
}

static inline void logger_validation(Logger *l, long step, double loss) {
    if (!logger_begin(l)) return;
    fprintf(l->log, "s:%ld tel:%.9g\n", step, loss);
    fprintf(l->metrics, "{\"step\":%ld,\"val_loss\":", step);
    json_number(l->metrics, loss, 9);
    fputs("}\n", l->metrics);
    logger_flush(l);
}

static inline void logger_eval(Logger *l, long step, int right, int examples) {
    if (!logger_begin(l)) return;
    fprintf(l->log, "s:%ld eval:%.9g\n", step, (double)right / examples);
    fprintf(l->metrics, "{\"step\":%ld,\"eval\":%.9g,\"right\":%d,\"examples\":%d}\n", step,
            (double)right / examples, right, examples);
    logger_flush(l);
}

// text: n bytes.
static inline void logger_sample(Logger *l, long step, const char *text, size_t n) {
    if (!logger_begin(l)) return;
    fprintf(l->metrics, "{\"step\":%ld,\"sample\":", step);
    json_string(l->metrics, text, n);
    fputs("}\n", l->metrics);
    logger_flush(l);
}

static inline void logger_close(Logger *l) {
    if (!l->log) return;
    fclose_check(l->log, l->log_path);
    fclose_check(l->metrics, l->metrics_path);
    l->log = l->metrics = NULL;
}
