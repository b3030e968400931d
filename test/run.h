// test/run.h: runs the program and the scripts as a user does, in a shell, and keeps what they say.
#pragma once

#include "common.h"

#include <sys/wait.h>

#define PROGRAM "./train_gpt"
#define MPIRUN "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe"

typedef struct {
    int status;  // the exit code, or 128 + the signal that ended it
    char out[32768], err[8192];
} Outcome;

// Runs a command in a shell (without file name patterns: set +f brings them back), in at most
// LIMIT seconds.
#ifndef LIMIT
#define LIMIT "60"
#endif
__attribute__((format(printf, 1, 2))) static inline Outcome run(const char *format, ...) {
    static char command[8192];
    int n = snprintf(command, sizeof command, "set -f; ");
    va_list args;
    va_start(args, format);
    n += vsnprintf(command + n, sizeof command - (size_t)n, format, args);
    va_end(args);
    if (n >= (int)sizeof command) fail_msg("a command of %d bytes", n);

    pid_t pid = fork();
    if (pid == 0) {
        if (!freopen(temporary("out"), "w", stdout) || !freopen(temporary("err"), "w", stderr))
            _exit(127);
        execlp("timeout", "timeout", "-s", "KILL", LIMIT, "bash", "-c", command, (char *)NULL);
        _exit(127);
    }
    Outcome o;
    int status = -1;
    if (pid < 0 || waitpid(pid, &status, 0) != pid) fail_msg("cannot run: %s", strerror(errno));
    o.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    read_text(temporary("out"), o.out, sizeof o.out);
    read_text(temporary("err"), o.err, sizeof o.err);
    return o;
}

// The words are on stdout or stderr.
#define expect_text(o, words)                                                                      \
    do {                                                                                           \
        if (!strstr((o).out, words) && !strstr((o).err, words))                                    \
            fail_msg("expected `%s`, found status %d and: %s%s", words, (o).status, (o).out,       \
                     (o).err);                                                                     \
    } while (0)

static inline int lines_of(const char *text) {
    int n = 0;
    for (; *text; text++) n += *text == '\n';
    return n;
}

// A failure by itself, not by the time limit, and one line on stderr that names what is wrong.
static inline void expect_refusal(const char *command, const char *expected) {
    Outcome o = run("%s", command);
    if (o.status == 0 || o.status >= 124)
        fail_msg("%s: expected a refusal, found status %d", command, o.status);
    if (!strstr(o.err, expected) || lines_of(o.err) != 1)
        fail_msg("%s: expected one line with `%s`, found: %s", command, expected, o.err);
}
