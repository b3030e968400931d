// test/run.h: runs the program and the scripts as a user does, in a shell, and keeps what they say.
#pragma once

#include "common.h"

#include <netinet/in.h>
#include <sys/socket.h>
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

// A port that is free at the moment.
static inline int free_port(void) {
    struct sockaddr_in at = {};
    socklen_t bytes = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    at.sin_family = AF_INET;
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, bytes) ||
        getsockname(fd, (struct sockaddr *)&at, &bytes))
        fail_msg("no free port: %s", strerror(errno));
    close(fd);
    return ntohs(at.sin_port);
}

// The variables by which torchrun, or Slurm's srun, tells task $i of $n what it is.
#define TORCHRUN "RANK=$i WORLD_SIZE=$n MASTER_ADDR=localhost MASTER_PORT=$port "
#define SRUN                                                                                       \
    "SLURM_PROCID=$i SLURM_STEP_NUM_TASKS=$n SLURM_STEP_NODELIST=localhost,gpu[1-3] "              \
    "SLURM_JOB_ID=$port "

// Runs n tasks side by side; what their launcher tells them is in `variables`. `meanwhile` is run
// beside them: their process numbers are ${p[0]}, ${p[1]}, ... Adds the line "codes" with the exit
// code of each.
static inline Outcome run_tasks(int n, const char *variables, const char *command,
                                const char *meanwhile) {
    return run("n=%d; port=%d; p=(); for i in $(seq 0 $((n - 1))); do env %s %s & p+=($!); done; "
               "%s; codes=; for x in ${p[@]}; do wait $x; codes=\"$codes $?\"; done; "
               "echo \"codes$codes\"",
               n, free_port(), variables, command, meanwhile);
}
