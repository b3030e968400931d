// test/death.h: runs code that must end the process, in a child, and checks its last words.
#pragma once

#include "common.h"

#include <sys/wait.h>

// run(argument) must exit with a status other than 0 after exactly one line on stderr, which
// contains `expected`.
static inline void expect_death(void (*run)(const void *), const void *argument,
                                const char *expected) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        run(argument);
        _exit(0);
    }
    close(ends[1]);
    char words[4096] = "";
    size_t used = 0;
    for (ssize_t n; (n = read(ends[0], words + used, sizeof words - 1 - used)) > 0;)
        used += (size_t)n;
    close(ends[0]);
    int status;
    waitpid(child, &status, 0);
    char *newline = strchr(words, '\n');
    if (!WIFEXITED(status) || WEXITSTATUS(status) == 0 || !strstr(words, expected) || !newline ||
        newline[1])
        fail_msg("expected a non-zero exit and one line with `%s`, found status %#x and: %s",
                 expected, (unsigned)status, words);
    if (strncmp(words, "train_gpt: ", 11)) fail_msg("the line names no program: %s", words);
}
