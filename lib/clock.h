// lib/clock.h: the time that passes, whatever is done to the date.
#pragma once

#include <time.h>

// Milliseconds since some fixed moment.
static inline double clock_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}
