// lib/outcome.h: has a run succeeded that has reached its last step? Not if it learned nothing: its
// last loss is no number, its last updates were skipped, or too many of all. An update is skipped
// if the gradient is not finite (what --skip-loss and --skip-norm leave out does not count here).
#pragma once

#include "die.h"

#include <math.h>

enum { OUTCOME_SHARE = 10 };  // one update in so many may be skipped

typedef struct {
    long steps, skipped;  // of this process
    int in_a_row;         // the last updates that were skipped, those before a resume included
    bool goes_on;         // from a checkpoint, so that there have been updates
    double loss;          // the last, of a step or a validation
} RunOutcome;

static inline void outcome_add(RunOutcome *o, bool finite, int in_a_row) {
    o->steps++;
    o->skipped += !finite;
    o->in_a_row = in_a_row;
}

// If no update was ever made, the learning rate has no part in it.
static inline const char *outcome_advice(const RunOutcome *o) {
    return o->skipped == o->steps && !o->goes_on
               ? "there was none from the first step on, before any update; "
                 "look at the weights of --model and at the data"
               : "use a smaller --lr or look at the data";
}

static inline void outcome_check(const RunOutcome *o) {
    if (o->in_a_row > 0)
        die_all("the last %d updates were skipped, for want of a finite gradient: %s", o->in_a_row,
                outcome_advice(o));
    if (o->skipped > o->steps / OUTCOME_SHARE)
        die_all("%ld of %ld updates were skipped, more than one in %d, for want of a finite "
                "gradient: %s",
                o->skipped, o->steps, OUTCOME_SHARE, outcome_advice(o));
    if (!isfinite(o->loss)) die_all("the last loss is %g: expected a number", fabs(o->loss));
}
