// lib/outliers.h: is a loss or a gradient norm far above its recent values? The z-score of a new
// value against a window of the last ones, as llm.c's flags -sl and -sg ask for. An outlier does
// not enter the window, or the window would get used to outliers; but the third in a row does: then
// the level has moved.
#pragma once

#include <math.h>
#include <stdbool.h>

enum { OUTLIERS_WINDOW = 128, OUTLIERS_IN_A_ROW = 3 };

typedef struct {
    double values[OUTLIERS_WINDOW];
    int count, next;  // values so far, at most the window; where the next goes
    int in_a_row;
} Outliers;

// NaN until the window is full; 0 where all its values are the same.
static inline double outliers_score(const Outliers *o, double value) {
    if (o->count < OUTLIERS_WINDOW) return NAN;
    double mean = 0, variance = 0;
    for (int i = 0; i < OUTLIERS_WINDOW; i++) mean += o->values[i] / OUTLIERS_WINDOW;
    for (int i = 0; i < OUTLIERS_WINDOW; i++)
        variance += (o->values[i] - mean) * (o->values[i] - mean) / OUTLIERS_WINDOW;
    return variance > 0 ? (value - mean) / sqrt(variance) : 0;
}

// Takes note of a finite value. True if it lies more than `most` standard deviations above the
// window's mean (most 0: never).
static inline bool outliers_add(Outliers *o, double value, double most) {
    bool outlier = most > 0 && outliers_score(o, value) > most;  // false for NaN
    o->in_a_row = outlier ? o->in_a_row + 1 : 0;
    if (outlier && o->in_a_row < OUTLIERS_IN_A_ROW) return true;
    o->values[o->next] = value;
    o->next = (o->next + 1) % OUTLIERS_WINDOW;
    if (o->count < OUTLIERS_WINDOW) o->count++;
    return outlier;
}
