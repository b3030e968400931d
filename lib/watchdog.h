// lib/watchdog.h: ends a job that has gone silent. A thread looks whether the main thread has shown
// progress within the time limit; if not, it says where the rank stands and takes all ranks down.
#pragma once

#include "die.h"

#include <pthread.h>
#include <time.h>

typedef struct {
    int limit;                             // seconds
    void (*describe)(char *text, size_t);  // adds what this rank is waiting for; may be NULL
    long alive;                            // time of the last sign of progress
    pthread_t thread;
} Watchdog;

static inline long watchdog_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long)t.tv_sec;
}

// The main thread has got on.
static inline void watchdog_alive(Watchdog *w) {
    __atomic_store_n(&w->alive, watchdog_now(), __ATOMIC_RELAXED);
}

static inline void *watchdog_thread(void *argument) {
    Watchdog *w = (Watchdog *)argument;
    for (;;) {
        struct timespec pause = {0, 200 * 1000 * 1000};
        nanosleep(&pause, NULL);
        if (watchdog_now() - __atomic_load_n(&w->alive, __ATOMIC_RELAXED) < w->limit) continue;
        char where[512] = "no collective is waiting";
        if (w->describe) w->describe(where, sizeof where);
        die("no progress for %d seconds: %s (--timeout sets the limit)", w->limit, where);
    }
}

static inline void watchdog_start(Watchdog *w, int seconds, void (*describe)(char *text, size_t)) {
    w->limit = seconds;
    w->describe = describe;
    watchdog_alive(w);
    int error = pthread_create(&w->thread, NULL, watchdog_thread, w);
    if (error) die("cannot start the watchdog's thread: %s", strerror(error));
}

static inline void watchdog_stop(Watchdog *w) {
    pthread_cancel(w->thread);
    pthread_join(w->thread, NULL);
}
