// cpu/classifier.h: softmax cross-entropy over rows of logits and, in place, its gradient.
#pragma once

#include "simd.h"
#include "workspace.h"

static inline void classifier_row(floatX *x, float *loss, int target, int V, int ld,
                                  bool write_dlogits) {
    if (target < 0) {
        *loss = 0;
        if (write_dlogits) memset(x, 0, (size_t)ld * sizeof(floatX));
        return;
    }
    float max = -INFINITY, sum = 0;
#pragma omp simd reduction(max : max)
    for (int v = 0; v < V; v++) max = to_float(x[v]) > max ? to_float(x[v]) : max;
#pragma omp simd reduction(+ : sum)
    for (int v = 0; v < V; v++) sum += exp_float(to_float(x[v]) - max);
    *loss = logf(sum) + (max - to_float(x[target]));
    if (!write_dlogits) return;
    const float scale = 1.0f / sum, at_target = exp_float(to_float(x[target]) - max) * scale - 1.0f;
#pragma omp simd
    for (int v = 0; v < V; v++) store_float(&x[v], exp_float(to_float(x[v]) - max) * scale);
    store_float(&x[target], at_target);
    for (int v = V; v < ld; v++) store_float(&x[v], 0.0f);
}

static void classifier(floatX *logits, float *losses, const int *targets, int rows, int V, int ld,
                       bool write_dlogits, cudaStream_t stream) {
    (void)stream;
#pragma omp parallel for schedule(static)
    for (int i = 0; i < rows; i++)
        classifier_row(logits + (size_t)i * ld, losses + i, targets[i], V, ld, write_dlogits);
}

static void sum_losses(double *sum, const float *losses, int rows, cudaStream_t stream) {
    (void)stream;
    double s = 0;
    for (int i = 0; i < rows; i++) s += losses[i];
    *sum += s;
}
