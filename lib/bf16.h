// lib/bf16.h: bfloat16 as bits, for the CPU device and for files.
#pragma once

#include <stdint.h>
#include <string.h>

// Round to nearest even; NaN stays NaN.
static inline uint16_t bf16_from_float(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (u & 0x7fffffffu) > 0x7f800000u ? (uint16_t)(u >> 16 | 0x40u) : (uint16_t)rounded;
}

static inline float bf16_to_float(uint16_t bits) {
    uint32_t u = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}
