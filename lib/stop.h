// lib/stop.h: being asked to stop: SIGTERM and SIGUSR1 (a batch system that wants the machine
// back), SIGINT, and SIGHUP (the terminal has gone) unless nohup has it ignored. The run finishes
// its step, saves and ends; a second signal ends it at once. A terminal and a launcher may both
// deliver the same request, so what comes within a second of the first is no second one.
#pragma once

#include "die.h"

#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// Exit code of a run that has stopped when asked and can go on: EX_TEMPFAIL of sysexits.h.
enum { EXIT_STOPPED = 75 };

ONE_OBJECT volatile sig_atomic_t stop_signal = 0;  // 0: nobody has asked
ONE_OBJECT struct timespec stop_time;

// One line of all ranks, in a signal handler.
NORETURN static inline void stop_at_once(int signal) {
    static const char line[] =
        "train_gpt: ended at once by a second signal: nothing is saved behind the newest "
        "checkpoint\n";
    bool first = !die_spoken || !__atomic_exchange_n(die_spoken, 1, __ATOMIC_ACQ_REL);
    if (first && write(STDERR_FILENO, line, sizeof line - 1) < 0) _exit(128 + signal);
    _exit(128 + signal);
}

static inline void stop_handler(int signal) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double since =
        (double)(now.tv_sec - stop_time.tv_sec) + 1e-9 * (double)(now.tv_nsec - stop_time.tv_nsec);
    if (stop_signal && since > 1) stop_at_once(signal);
    if (stop_signal) return;
    stop_time = now;
    stop_signal = signal;
}

// Is it ignored, as nohup wants it of what it starts?
static inline bool stop_ignores(int signal) {
    struct sigaction action;
    return sigaction(signal, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

static inline void stop_listen(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = stop_handler;
    action.sa_flags = SA_RESTART;
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    if (!stop_ignores(SIGHUP)) sigaction(SIGHUP, &action, NULL);
}
