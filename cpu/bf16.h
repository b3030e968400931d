// cpu/bf16.h: bfloat16 as a 2-byte struct; conversions that compilers vectorise.
#pragma once

#include <stdint.h>
#include <string.h>

typedef struct {
    uint16_t bits;
} bf16;

static inline float to_float(float x) {
    return x;
}

static inline float to_float(bf16 x) {
    uint32_t u = (uint32_t)x.bits << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline void store_float(float *dst, float x) {
    *dst = x;
}

// Round to nearest even; NaN stays NaN.
static inline void store_float(bf16 *dst, float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    dst->bits = (u & 0x7fffffffu) > 0x7f800000u ? (uint16_t)(u >> 16 | 0x40u) : (uint16_t)rounded;
}
