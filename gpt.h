// gpt.h: the model as the program sees it. gpt.cu is compiled once per compute dtype (and, on CPUs,
// per SIMD level); each copy is one GptCode, and the program picks one at start.
#pragma once

#include "config.h"
#include "device.h"

typedef struct Gpt Gpt;

// What is kept of every parameter.
typedef enum { GPT_PARAMETERS, GPT_GRADIENTS, GPT_MOMENT_M, GPT_MOMENT_V } GptArray;

typedef void (*GptFill)(float *dst, size_t n, const ModelConfig *m, int id, int layer, size_t first,
                        uint64_t seed);

// What a step came to, the same on all ranks.
typedef struct {
    double loss;  // mean over all tokens of the step
    double norm;  // of the gradient, before clipping
    FsdpCounters counters;
} GptStep;

// What gpt->update needs besides the state.
typedef struct {
    float lr, beta1, beta2, eps, weight_decay, grad_clip;
    long step;  // from 0
    uint64_t seed;
} GptUpdate;

typedef struct {
    const char *name;  // e.g. "bf16 avx512"
    // Lays everything out, without touching the device.
    Gpt *(*create)(const GptConfig *config);
    const Buffers *(*buffers)(const Gpt *g);
    double (*bytes_per_parameter)(const Gpt *g);
    // Allocates the buffers of the table and joins the other ranks.
    void (*start)(Gpt *g, ncclUniqueId id);
    void (*finish)(Gpt *g);
    // Parameters from the seed, or from a model file with the same sizes. fill is tensor_init,
    // compiled for the plainest processor: the same weights at every SIMD level.
    void (*init)(Gpt *g, GptFill fill, uint64_t seed);
    void (*load)(Gpt *g, const char *path);
    // Writes one of the four arrays as a model file; returns when all ranks
    // have written their part.
    void (*save)(Gpt *g, GptArray what, const char *path, bool as_bf16);

    // Host memory for micro-step i: B*T tokens, then B*T targets (-1: not counted).
    int *(*inputs)(Gpt *g, int micro_step);
    // Forward and backward of one micro-batch; its gradient is added to the shards.
    void (*micro_step)(Gpt *g, int micro_step);
    void (*update)(Gpt *g, const GptUpdate *u);
    GptStep (*finish_step)(Gpt *g);  // waits for the step
    // Sums over one micro-batch of every rank; loss and tokens hold one value a rank.
    void (*evaluate)(Gpt *g, double *loss, double *tokens);
    // Logits (V) after n tokens; every rank has to call with the same tokens.
    void (*logits)(Gpt *g, const int *tokens, int n, float *logits);
    // Timeline of what follows until trace_stop writes it.
    void (*trace_start)(Gpt *g);
    void (*trace_stop)(Gpt *g, const char *path);
} GptCode;
