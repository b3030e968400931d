// lib/watchdog.h: ends a job that has gone silent. A thread looks whether the main thread waits for
// other ranks and has shown no progress (process_alive) within the time limit; if so, it says where
// the rank stands and takes all ranks down. Work may take any time, and files may: while some rank
// reads or writes a model, all are patient. The thread also ends a rank whose launcher has been
// killed. The limit counts the thread's own pauses, not a clock: a job that is stopped for an hour
// and continued has lost no time.
#pragma once

#include "die.h"

#include <pthread.h>
#include <time.h>

typedef struct {
    pid_t parent;  // the launcher, without which the rank ends; 0: none
    int limit;     // seconds
    // What this rank is waiting for; false: for none. NULL: its device does not say, it may.
    bool (*describe)(char *text, size_t);
    pthread_t thread;
} Watchdog;

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
        char where[512] = "waits for other ranks";
        const bool waits = process.world > 1 && !process.patient &&
                           (!w->describe || w->describe(where, sizeof where) ||
                            __atomic_load_n(&process.waits, __ATOMIC_RELAXED));
        unsigned long signs = __atomic_load_n(&process.signs, __ATOMIC_RELAXED);
        idle = waits && signs == seen ? idle + 1 : 0;
        seen = signs;
        if (idle < (long)w->limit * PAUSES_A_SECOND) continue;
        if (process.rank != 0) sleep(1);  // on other nodes: rank 0, if it can, speaks for all
        die("no progress for %d seconds: %s (--timeout sets the limit)", w->limit, where);
    }
}

static inline void watchdog_start(Watchdog *w, int seconds, bool (*describe)(char *text, size_t)) {
    w->limit = seconds;
    w->describe = describe;
    int error = pthread_create(&w->thread, NULL, watchdog_thread, w);
    if (error) die("cannot start the watchdog's thread: %s", strerror(error));
}

static inline void watchdog_stop(Watchdog *w) {
    pthread_cancel(w->thread);
    pthread_join(w->thread, NULL);
}
