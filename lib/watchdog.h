// lib/watchdog.h: ends a job that has gone silent. A thread looks whether the main thread waits for
// other ranks and has shown no progress (process_alive) within the time limit; if so, it says where
// the ranks stand and takes all of them down. Work may take any time, and files may: while some
// rank reads or writes a model, all are patient. The thread also ends the job when the device says
// that a collective has failed, and a rank whose launcher has been killed. The limit counts the
// thread's own pauses, not a clock: a job that is stopped for an hour and continued has lost no
// time.
#pragma once

#include "collectives.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

typedef struct {
    pid_t parent;         // the launcher, without which the rank ends; 0: none
    int limit;            // seconds
    bool (*waits)(void);  // for another rank, in a collective? NULL: the device does not say
    // May be NULL. failed: has the device something to say of a collective that has failed?
    // give_up: of all that are under way.
    bool (*failed)(void *context, char *text, size_t room);
    void (*give_up)(void *context);
    void *context;
    pthread_t thread;
} Watchdog;

// ncclCommAbort has been seen to wait for ever (github.com/NVIDIA/nccl/issues/829).
enum { WATCHDOG_GIVE_UP_SECONDS = 10 };

static inline void watchdog_exit(int) {
    _exit(1);
}

// One line, then the end of this rank and of all others.
NORETURN static inline void watchdog_end(const Watchdog *w, const char *line) {
    __atomic_store_n(&process.ends, true, __ATOMIC_RELEASE);
    die_say("%s", line);
    signal(SIGALRM, watchdog_exit);
    alarm(WATCHDOG_GIVE_UP_SECONDS);
    if (w->give_up) w->give_up(w->context);
    die_now();
}

// On the nodes where all ranks have come equally far, others are given the time to say who is
// missing there.
NORETURN static inline void watchdog_end_silence(const Watchdog *w) {
    enum { OTHER_NODES_SECONDS = 3 };
    char where[768] = "", line[1024];
    bool known = collectives_describe(where, sizeof where);
    snprintf(line, sizeof line, "no progress for %d seconds; %s (--timeout sets the limit)",
             w->limit, where);
    const bool alone = collectives.ranks == process.world;
    if (!known) sleep((alone ? 0 : OTHER_NODES_SECONDS) + (process.rank > 0));
    watchdog_end(w, line);
}

// The launcher has been killed: nobody will end this rank, or remove the shared memory of the job.
NORETURN static inline void watchdog_end_orphan(void) {
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        char *path = strstr(line, "/dev/shm/");
        line[strcspn(line, "\n")] = 0;
        if (path) unlink(path);
    }
    die_hook = NULL;  // it asks the launcher
    die("the process that has started this rank has ended");
}

static inline void *watchdog_thread(void *argument) {
    enum { PAUSES_A_SECOND = 5 };
    Watchdog *w = (Watchdog *)argument;
    unsigned long seen = 0;
    for (long idle = 0;;) {  // pauses since the last sign
        struct timespec pause = {0, 1000 * 1000 * 1000 / PAUSES_A_SECOND};
        if (nanosleep(&pause, NULL) != 0) continue;  // a signal has cut it short
        if (w->parent && getppid() != w->parent) watchdog_end_orphan();
        char what[512] = "";
        if (w->failed && w->failed(w->context, what, sizeof what)) watchdog_end(w, what);
        const bool waits =
            process.world > 1 && !process.patient &&
            (!w->waits || w->waits() || __atomic_load_n(&process.waits, __ATOMIC_RELAXED));
        unsigned long signs = __atomic_load_n(&process.signs, __ATOMIC_RELAXED);
        idle = waits && signs == seen ? idle + 1 : 0;
        seen = signs;
        if (idle < (long)w->limit * PAUSES_A_SECOND) continue;
        watchdog_end_silence(w);
    }
}

static inline void watchdog_start(Watchdog *w, int seconds) {
    w->limit = seconds;
    int error = pthread_create(&w->thread, NULL, watchdog_thread, w);
    if (error) die("cannot start the watchdog's thread: %s", strerror(error));
}

static inline void watchdog_stop(Watchdog *w) {
    pthread_cancel(w->thread);
    pthread_join(w->thread, NULL);
}
