// lib/sampler.h: draws a token from logits: temperature, top-k, and a uniform number that is a
// function of (seed, stream, position), so that every rank and every rerun draws the same.
#pragma once

#include "rng.h"

typedef struct {
    float temperature;  // 0: the likeliest token
    int top_k;          // 0: all tokens
    uint64_t seed;
} Sampler;

// Floats in an order that unsigned integers have too.
static inline uint32_t sampler_rank(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

// Rank of the k-th largest logit, found bit by bit; needs no memory.
static inline uint32_t sampler_kth(const float *logits, int V, int k) {
    uint32_t kth = 0;
    for (int bit = 31; bit >= 0; bit--) {
        uint32_t candidate = kth | (uint32_t)1 << bit;
        int count = 0;
        for (int i = 0; i < V; i++) count += sampler_rank(logits[i]) >= candidate;
        if (count >= k) kth = candidate;
    }
    return kth;
}

// Next token after `position` tokens of text number `stream`. logits (V).
static inline int sampler_next(const Sampler *s, const float *logits, int V, uint32_t stream,
                               uint64_t position) {
    int best = 0;
    for (int i = 1; i < V; i++)
        if (logits[i] > logits[best]) best = i;
    if (s->temperature <= 0) return best;
    uint32_t lowest = s->top_k > 0 && s->top_k < V ? sampler_kth(logits, V, s->top_k) : 0;
    double scale = 1.0 / s->temperature, sum = 0;
    for (int i = 0; i < V; i++)
        if (sampler_rank(logits[i]) >= lowest) sum += exp((logits[i] - logits[best]) * scale);
    double left = rng_uniform(s->seed, RNG_SAMPLE, stream, position) * sum;
    int last = best;
    for (int i = 0; i < V; i++) {
        if (sampler_rank(logits[i]) < lowest) continue;
        double share = exp((logits[i] - logits[best]) * scale);
        if (left < share) return i;
        left -= share;
        if (share > 0) last = i;
    }
    return last;  // rounding has eaten the end of the sum
}
