// cpu/bf16.h: bfloat16 as a 2-byte struct; conversions that compilers vectorise.
#pragma once

#include "lib/bf16.h"

typedef struct {
    uint16_t bits;
} bf16;

static inline float to_float(float x) {
    return x;
}

static inline float to_float(bf16 x) {
    return bf16_to_float(x.bits);
}

static inline void store_float(float *dst, float x) {
    *dst = x;
}

static inline void store_float(bf16 *dst, float x) {
    dst->bits = bf16_from_float(x);
}

static inline bf16 bf16_of_bits(uint16_t bits) {
    bf16 x = {bits};
    return x;
}
