// cpu/rates.h: how long this CPU takes for a unit of each kind of work, for --plan: the ops
// themselves, timed for a moment at shapes like those of the run, cut down where that would take
// long.
#pragma once

#include "../lib/clock.h"
#include "../lib/work.h"

enum { RATE_TRIES = 3, RATE_MS = 30, RATE_ROWS = 512, RATE_CHANNELS = 768, RATE_COPY = 4 << 20 };

// What the ops are tried on. Arrays are as large as the largest of their uses.
typedef struct {
    OpsDims d;
    int rows, head;
    floatX *a, *b, *c, *w;  // (rows, 4C), (rows, 4C), (rows, 4C), (4C, C)
    float *grad, *vector;   // (4C, C) or RATE_COPY, (rows or 4C)
    float *flat;            // (RATE_COPY)
    int *tokens;            // (rows)
} Probe;

static OpsDims probe_dims(const OpsDims *d) {
    OpsDims p = *d;
    int head = d->C / d->NH;
    if (p.C > RATE_CHANNELS)
        p.NH = RATE_CHANNELS > head ? RATE_CHANNELS / head : 1, p.C = p.NH * head;
    if (p.T > RATE_ROWS) p.T = RATE_ROWS;
    if (p.B * p.T > RATE_ROWS) p.B = RATE_ROWS / p.T;
    if (p.V > 8192) p.V = 8192;
    if (p.head_rows > p.B * p.T) p.head_rows = p.B * p.T;
    return p;
}

static void *probe_array(size_t elements, size_t size) {
    void *x = aligned_alloc(64, (elements * size + 63) / 64 * 64);
    if (!x) die("out of memory for the measurement of this CPU");
    memset(x, 0, elements * size);
    return x;
}

// Runs the work of a kind once and returns its units.
static double probe_run(const Probe *p, WorkKind kind) {
    const OpsDims *d = &p->d;
    const int rows = p->rows, C = d->C, W = 4 * C;
    const double X = sizeof(floatX), product = 2.0 * rows * C * W;
    const double scores = (double)d->B * d->T * (d->T + 64.0) * C;
    AdamWConfig adamw = {};
    double sums[SHARD_SUMS] = {0};
    switch (kind) {
    case WORK_FORWARD:
        matmul_forward(p->b, p->a, p->w, NULL, rows, C, W, NULL);
        return product;
    case WORK_INPUT:
        matmul_backward_input(p->a, p->b, p->w, NULL, rows, C, W, NULL);
        return product;
    case WORK_WEIGHT:
        matmul_backward_weight(p->grad, p->vector, p->b, p->a, rows, C, W, false, NULL);
        return product;
    case WORK_ATTENTION:
        attention_forward(p->a, p->vector, p->b, d->B, d->T, C, d->NH, NULL);
        return 2 * scores;
    case WORK_ATTENTION_BACKWARD:
        attention_backward(p->c, p->a, p->a, p->b, p->vector, d->B, d->T, C, d->NH, NULL);
        return 7 * scores;
    case WORK_NORM:
        residual_layernorm_forward(p->b, p->c, p->vector, p->vector, p->a, p->a, p->w, p->w, rows,
                                   C, NULL);
        return 4.0 * rows * C * X;
    case WORK_NORM_BACKWARD:
        layernorm_backward(p->b, p->grad, p->grad + C, p->grad + 2 * C, p->c, p->a, p->w, p->vector,
                           p->vector, rows, C, true, NULL);
        return 4.0 * rows * C * X;
    case WORK_GELU:
        gelu_forward(p->c, p->b, (size_t)rows * W, NULL);
        return 2.0 * rows * W * X;
    case WORK_CLASSIFIER: {
        int V = W < d->V ? W : d->V;
        classifier(p->b, p->vector, p->tokens, rows, V, V, true, NULL);
        return 2.0 * rows * V * X;
    }
    case WORK_ENCODER:
        encoder_forward(p->b, p->tokens, p->w, p->w, 1, W < rows ? W : rows, C, NULL);
        return 3.0 * (W < rows ? W : rows) * C * X;
    case WORK_SHARD:
        shard_add(p->flat, p->flat + RATE_COPY / 2, RATE_COPY / 2, true, NULL);
        return 3.0 * RATE_COPY / 2 * sizeof(float);
    case WORK_SQUARES:
        shard_sum_squares(sums, p->flat, RATE_COPY, NULL, 32, NULL);
        return (double)RATE_COPY * sizeof(float);
    case WORK_ADAMW:
        adamw.step = 1;
        adamw_update(p->flat, p->flat + RATE_COPY / 4, p->flat + RATE_COPY / 2,
                     p->flat + 3 * (RATE_COPY / 4), adamw_whole(RATE_COPY / 4, 0), sums, &adamw,
                     NULL);
        return 7.0 * RATE_COPY / 4 * sizeof(float);
    case WORK_COPY:
        memcpy(p->flat, p->flat + RATE_COPY / 2, RATE_COPY / 2 * sizeof(float));
        return (double)RATE_COPY * sizeof(float);
    default:
        return 0;
    }
}

// The head of gpt.cu writes a vector of (B, NH, T); none is larger than the rows of the probe times
// its heads.
static Probe probe_make(const OpsDims *dims) {
    Probe p = {};
    p.d = probe_dims(dims);
    p.rows = p.d.B * p.d.T;
    const size_t wide = (size_t)p.rows * 4 * (size_t)p.d.C, weight = (size_t)4 * p.d.C * p.d.C;
    p.a = (floatX *)probe_array(wide, sizeof(floatX)),
    p.b = (floatX *)probe_array(wide, sizeof(floatX));
    p.c = (floatX *)probe_array(wide, sizeof(floatX)),
    p.w = (floatX *)probe_array(weight, sizeof(floatX));
    p.grad = (float *)probe_array(weight, sizeof(float));
    p.vector = (float *)probe_array((size_t)p.rows * p.d.NH + (size_t)4 * p.d.C, sizeof(float));
    p.flat = (float *)probe_array(RATE_COPY, sizeof(float));
    p.tokens = (int *)probe_array((size_t)p.rows, sizeof(int));
    return p;
}

// Seconds of a unit: of the fastest of some tries after a first one, as others may use the machine.
static double probe_rate(const Probe *p, WorkKind kind) {
    double best = INFINITY, began = clock_ms();
    for (int i = 0; i <= RATE_TRIES || clock_ms() - began < RATE_MS; i++) {
        double before = clock_ms(), units = probe_run(p, kind);
        if (units == 0) return 0;
        if (i > 0) best = fmin(best, 1e-3 * (clock_ms() - before) / units);
    }
    return best;
}

// seconds (WORK_KINDS): of a unit of each.
static void measure_rates(const OpsDims *dims, double *seconds) {
    Probe p = probe_make(dims);
    const size_t room_bytes = ops_workspace_bytes(&p.d);
    void *room = probe_array(room_bytes, 1);
    ops_init(&p.d, room, room_bytes, NULL);
    for (int kind = 0; kind < WORK_KINDS; kind++) seconds[kind] = probe_rate(&p, (WorkKind)kind);
    ops_destroy();
    void *arrays[] = {p.a, p.b, p.c, p.w, p.grad, p.vector, p.flat, p.tokens, room};
    for (void *x : arrays) free(x);
}
