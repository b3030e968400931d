// test/run.h: runs the program and the scripts as a user does, in a shell, and keeps what they say.
#pragma once

#include "common.h"

#include <sys/wait.h>

#define PROGRAM "./train_gpt"
#define MPIRUN "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe"

typedef struct {
    int status;
    char out[16384], err[4096];
} Outcome;

// Runs a shell command, in at most a minute.
static inline Outcome run(const char *format, ...) {
    static char command[2048], full[4096], path[128];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    Outcome o;
    snprintf(full, sizeof full,
             "cd . && timeout -s KILL 60 bash -c \"set -f; %s\" >%s/out 2>%s/err", command, folder,
             folder);
    o.status = system(full);
    snprintf(path, sizeof path, "%s/out", folder);
    read_text(path, o.out, sizeof o.out);
    snprintf(path, sizeof path, "%s/err", folder);
    read_text(path, o.err, sizeof o.err);
    return o;
}

static inline int lines_of(const char *text) {
    int n = 0;
    for (; *text; text++) n += *text == '\n';
    return n;
}

// A failure by itself, not by the time limit, and one line on stderr that names what is wrong.
static inline void expect_refusal(const char *command, const char *expected) {
    Outcome o = run("%s", command);
    if (!WIFEXITED(o.status) || WEXITSTATUS(o.status) == 0 || WEXITSTATUS(o.status) >= 124)
        fail_msg("%s: expected a refusal, found status %#x", command, (unsigned)o.status);
    if (!strstr(o.err, expected) || lines_of(o.err) != 1)
        fail_msg("%s: expected one line with `%s`, found: %s", command, expected, o.err);
}
