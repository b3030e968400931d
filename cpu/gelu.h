// cpu/gelu.h: the activation alone, over a flat array, for when it is
// recomputed in the backward pass.
#pragma once

#include "simd.h"
#include "workspace.h"

static void gelu_forward(floatX *out, const floatX *pre, size_t n, cudaStream_t stream) {
    (void)stream;
    const size_t block = 4096;
#pragma omp parallel for schedule(static)
    for (size_t at = 0; at < n; at += block) {
        size_t len = n - at < block ? n - at : block;
#pragma omp simd
        for (size_t i = at; i < at + len; i++) store_float(&out[i], gelu_float(to_float(pre[i])));
    }
}
