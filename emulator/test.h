// test.h: for the emulator's own tests: a scenario runs in a child process and must end silently,
// or must end with a report that contains the given words.
#pragma once

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

#define CHECK(call)                                                                                \
    do {                                                                                           \
        if ((int)(call) != 0) {                                                                    \
            fprintf(stderr, "%s:%d: %s failed\n", __FILE__, __LINE__, #call);                      \
            exit(3);                                                                               \
        }                                                                                          \
    } while (0)
#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #condition);               \
            exit(2);                                                                               \
        }                                                                                          \
    } while (0)

struct Outcome {
    int status;  // exit code, 128 + signal
    std::string output;
};

// Runs scenario() in a child process and reads what it prints on stderr.
template <class F> static Outcome run_scenario(F scenario) {
    int ends[2];
    if (pipe(ends)) exit(1);
    fflush(stdout);
    fflush(stderr);
    pid_t child = fork();
    if (child == 0) {
        for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL})
            signal(number, SIG_DFL);  // not cmocka's handlers
        close(ends[0]);
        dup2(ends[1], 2);
        close(ends[1]);
        scenario();
        exit(0);
    }
    close(ends[1]);
    Outcome o;
    char buffer[4096];
    ssize_t n;
    while ((n = read(ends[0], buffer, sizeof buffer)) > 0) o.output.append(buffer, (size_t)n);
    close(ends[0]);
    int status;
    waitpid(child, &status, 0);
    o.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return o;
}

template <class F> static void expect_silent(F scenario) {
    Outcome o = run_scenario(scenario);
    if (o.status == 0 && o.output.empty()) return;
    fail_msg("expected silence and exit code 0, found %d:\n%s", o.status, o.output.c_str());
}

// `words`: all of these strings, separated by '|'
template <class F> static void expect_report(const std::string &words, F scenario) {
    Outcome o = run_scenario(scenario);
    std::string rest = words;
    bool all = o.status != 0;
    while (!rest.empty()) {
        size_t bar = rest.find('|');
        all = all && o.output.find(rest.substr(0, bar)) != std::string::npos;
        rest = bar == std::string::npos ? "" : rest.substr(bar + 1);
    }
    if (all) return;
    fail_msg("expected a failing exit code and a report with \"%s\", found %d:\n%s", words.c_str(),
             o.status, o.output.c_str());
}

static const char *const ORDERS[] = {"ascending", "descending", "random", "sticky"};
static const char *const SCHEDULES[] = {"eager", "random", "lazy", "priority"};
