// lib/schedule.h: the learning rate of a step. Linear warm-up, then constant, linear, cosine,
// or wsd (warm-up, stable, decay: Hägele et al. 2024, decay by 1 - sqrt over the last fifth
// of the steps).
#pragma once

#include <math.h>

typedef enum { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE, SCHEDULE_WSD } ScheduleType;

typedef struct {
    ScheduleType type;
    double lr;           // the highest learning rate
    double final_lr;     // the lowest after the warm-up, as a fraction of lr
    long warmup, steps;  // steps of the warm-up, steps of the whole run
} Schedule;

// Step counts from 0. Any step, also one outside the run, gives a value in (0, lr] during the
// warm-up and in [lr * final_lr, lr] afterwards.
static inline double schedule_lr(const Schedule *s, long step) {
    if (step < 0) step = 0;
    if (step < s->warmup) return s->lr * (double)(step + 1) / (double)s->warmup;
    long stable_until =
        s->type == SCHEDULE_WSD ? s->steps / 5 * 4 + s->steps % 5 * 4 / 5 : s->warmup;
    if (stable_until < s->warmup) stable_until = s->warmup;
    double span = (double)(s->steps - stable_until);
    double r = span > 0 ? (double)(step - stable_until) / span : 1.0;
    r = r < 0 ? 0 : r > 1 ? 1 : r;
    double share = 1.0;  // of the way from the lowest to the highest
    switch (s->type) {
    case SCHEDULE_CONSTANT:
        break;
    case SCHEDULE_LINEAR:
        share = 1.0 - r;
        break;
    case SCHEDULE_COSINE:
        share = 0.5 * (1.0 + cos(3.14159265358979323846 * r));
        break;
    case SCHEDULE_WSD:
        share = 1.0 - sqrt(r);
        break;
    }
    double lowest = s->lr * s->final_lr;
    return lowest + share * (s->lr - lowest);
}
