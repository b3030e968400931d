// lib/sampler.h: draws a token from logits: temperature, top-k, top-p (Holtzman et al. 2020, "The
// curious case of neural text degeneration"), and a uniform number that is a function of (seed,
// stream, position), so that every rank and every rerun draws the same.
#pragma once

#include "rng.h"

typedef struct {
    float temperature;  // 0: the likeliest token
    int top_k;          // 0: all tokens
    float top_p;  // of the tokens that top_k leaves, the likeliest that have this share; 1: all
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

// What a token has to weigh to be among the likeliest that have `share` of the sum: the heaviest
// tokens whose weights come to so much, found bit by bit. (Bits of positive floats are in order.)
static inline float sampler_nucleus(const float *weights, int V, double share, double sum) {
    uint32_t lowest = 0;
    float weight;
    for (int bit = 30; bit >= 0; bit--) {
        uint32_t candidate = lowest | (uint32_t)1 << bit;
        double heavier = 0;
        memcpy(&weight, &candidate, sizeof weight);
        for (int i = 0; i < V; i++) heavier += weights[i] >= weight ? (double)weights[i] : 0;
        if (heavier > 0 && heavier >= share * sum) lowest = candidate;
    }
    memcpy(&weight, &lowest, sizeof weight);
    return weight;
}

// Next token after `position` tokens of text number `stream`. logits (V) are used up. Tokens that
// are equally likely are taken or left out together.
static inline int sampler_next(const Sampler *s, float *logits, int V, uint32_t stream,
                               uint64_t position) {
    int best = 0;
    for (int i = 1; i < V; i++)
        if (logits[i] > logits[best]) best = i;
    if (s->temperature <= 0) return best;
    uint32_t lowest = s->top_k > 0 && s->top_k < V ? sampler_kth(logits, V, s->top_k) : 0;
    double scale = 1.0 / s->temperature, largest = logits[best], sum = 0;
    for (int i = 0; i < V; i++) {
        bool kept = sampler_rank(logits[i]) >= lowest;
        logits[i] = kept ? (float)exp((logits[i] - largest) * scale) : 0.0f;
        sum += logits[i];
    }
    float least = 0;
    if (s->top_p < 1) least = sampler_nucleus(logits, V, s->top_p, sum), sum = 0;
    for (int i = 0; s->top_p < 1 && i < V; i++) sum += logits[i] >= least ? (double)logits[i] : 0;
    double left = rng_uniform(s->seed, RNG_SAMPLE, stream, position) * sum;
    int last = best;
    for (int i = 0; i < V; i++) {
        if (logits[i] < least || logits[i] == 0.0f) continue;
        if (left < (double)logits[i]) return i;
        left -= (double)logits[i];
        last = i;
    }
    return last;  // rounding has eaten the end of the sum
}
