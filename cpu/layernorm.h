// cpu/layernorm.h: layer normalisation over the C channels of a row (Ba, Kiros & Hinton 2016).
//   out = (x - mean) * rstd * weight + bias,  rstd = 1 / sqrt(var + eps),
// var without Bessel's correction.
#pragma once

#include "workspace.h"

static inline void layernorm_row(floatX *out, float *mean, float *rstd, const floatX *x,
                                 const floatX *weight, const floatX *bias, int C) {
    float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int c = 0; c < C; c++) sum += to_float(x[c]);
    const float m = sum / C;
#pragma omp simd reduction(+ : squares)
    for (int c = 0; c < C; c++) {
        float d = to_float(x[c]) - m;
        squares += d * d;
    }
    const float r = 1.0f / sqrtf(squares / C + LAYERNORM_EPS);
#pragma omp simd
    for (int c = 0; c < C; c++)
        store_float(&out[c], (to_float(x[c]) - m) * r * to_float(weight[c]) + to_float(bias[c]));
    *mean = m;
    *rstd = r;
}

static void layernorm_forward(floatX *out, float *mean, float *rstd, const floatX *inp,
                              const floatX *weight, const floatX *bias, int rows, int C,
                              cudaStream_t stream) {
    (void)stream;
#pragma omp parallel for schedule(static)
    for (int i = 0; i < rows; i++)
        layernorm_row(out + (size_t)i * C, mean + i, rstd + i, inp + (size_t)i * C, weight, bias,
                      C);
}

static void residual_layernorm_forward(floatX *residual, floatX *out, float *mean, float *rstd,
                                       const floatX *inp1, const floatX *inp2, const floatX *weight,
                                       const floatX *bias, int rows, int C, cudaStream_t stream) {
    (void)stream;
#pragma omp parallel for schedule(static)
    for (int i = 0; i < rows; i++) {
        const floatX *a = inp1 + (size_t)i * C, *b = inp2 + (size_t)i * C;
        floatX *res = residual + (size_t)i * C;
#pragma omp simd
        for (int c = 0; c < C; c++) store_float(&res[c], to_float(a[c]) + to_float(b[c]));
        layernorm_row(out + (size_t)i * C, mean + i, rstd + i, res, weight, bias, C);
    }
}

// With n = (x - mean) rstd and g = weight dout: dx = rstd (g - mean(g) - n mean(g n)). Adds the
// row's share to dweight, dbias and dinp_sums.
static inline void layernorm_backward_row(floatX *dinp, float *dweight, float *dbias,
                                          float *dinp_sums, const floatX *dout, const floatX *x,
                                          const floatX *weight, float mean, float rstd, int C,
                                          bool accumulate) {
    float sum_g = 0, sum_gn = 0;
#pragma omp simd reduction(+ : sum_g, sum_gn)
    for (int c = 0; c < C; c++) {
        float d = to_float(dout[c]), n = (to_float(x[c]) - mean) * rstd,
              g = to_float(weight[c]) * d;
        sum_g += g;
        sum_gn += g * n;
        dbias[c] += d;
        dweight[c] += d * n;
    }
    sum_g /= C;
    sum_gn /= C;
    if (accumulate) {
#pragma omp simd
        for (int c = 0; c < C; c++) {
            float n = (to_float(x[c]) - mean) * rstd, g = to_float(weight[c]) * to_float(dout[c]);
            store_float(&dinp[c], to_float(dinp[c]) + rstd * (g - sum_g - n * sum_gn));
        }
    } else {
#pragma omp simd
        for (int c = 0; c < C; c++) {
            float n = (to_float(x[c]) - mean) * rstd, g = to_float(weight[c]) * to_float(dout[c]);
            store_float(&dinp[c], rstd * (g - sum_g - n * sum_gn));
        }
    }
#pragma omp simd
    for (int c = 0; c < C; c++) dinp_sums[c] += to_float(dinp[c]);
}

static void layernorm_backward(floatX *dinp, float *dweight, float *dbias, float *dinp_sums,
                               const floatX *dout, const floatX *inp, const floatX *weight,
                               const float *mean, const float *rstd, int rows, int C,
                               bool accumulate_dinp, cudaStream_t stream) {
    (void)stream;
    int per_chunk = rows_per_chunk(rows), chunks = (rows + per_chunk - 1) / per_chunk;
    Room room = room_shared();
    float *part =
        (float *)room_take(&room, (size_t)chunks * 3 * C * sizeof(float));  // (chunks, 3, C)
#pragma omp parallel for schedule(dynamic, 1)
    for (int k = 0; k < chunks; k++) {
        int end = (k + 1) * per_chunk < rows ? (k + 1) * per_chunk : rows;
        float *dw = part + (size_t)k * 3 * C, *db = dw + C, *sums = db + C;
        for (int c = 0; c < 3 * C; c++) dw[c] = 0;
        for (int i = k * per_chunk; i < end; i++)
            layernorm_backward_row(dinp + (size_t)i * C, dw, db, sums, dout + (size_t)i * C,
                                   inp + (size_t)i * C, weight, mean[i], rstd[i], C,
                                   accumulate_dinp);
    }
    add_chunks(dweight, part, (size_t)3 * C, chunks, C, false);
    add_chunks(dbias, part + C, (size_t)3 * C, chunks, C, false);
    if (dinp_sums) add_chunks(dinp_sums, part + 2 * (size_t)C, (size_t)3 * C, chunks, C, false);
}
