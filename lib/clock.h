// lib/clock.h: the time that passes, whatever is done to the date.
#pragma once

#include <stdint.h>
#include <time.h>

// Nanoseconds since some moment, the same for all processes of a machine.
static inline int64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline double clock_ms(void) {
    return 1e-6 * (double)clock_ns();
}
