// gpt.h: the model as the program sees it. gpt.cu is compiled once per compute dtype (and, on CPUs,
// per SIMD level); each copy is one GptCode, and the program picks one at start.
#pragma once

#include "config.h"
#include "device.h"
#include "lib/options.h"
#include "lib/tensors.h"

typedef struct {
    ModelConfig model;
    int B, T;                    // sequences and tokens of a micro-batch
    int logits_rows;             // rows of logits that exist at a time
    bool tf32;                   // fp32 products round their operands to TF32
    int unit, unit_k;            // --unit
    int recompute, recompute_k;  // --recompute
    bool writes;                 // texts, see begin_text
    FsdpConfig fsdp;
} GptConfig;

typedef struct Gpt Gpt;

// What is kept of every parameter, each in a flat array of the rank's own.
typedef enum { GPT_PARAMETERS, GPT_GRADIENTS, GPT_MOMENT_M, GPT_MOMENT_V, GPT_ARRAYS } GptArray;

// Elements of one tensor that this rank owns: a rank's arrays are its pieces, and padding.
typedef struct {
    int id, layer;
    size_t first;  // element of (tensor id, layer); a multiple of FSDP_ALIGN
    size_t at;     // the same element in the rank's arrays
    size_t n;
} GptPiece;

// What a step came to, the same on all ranks.
typedef struct {
    double loss;     // mean over all tokens of the step
    double norm;     // of the gradient, before clipping
    double ratio;    // of the update's norm to the parameters'; NaN: not measured, or no update
    uint32_t notes;  // of all ranks together (or), see finish_step
    FsdpCounters counters;
} GptStep;

// What gpt->update needs besides the state.
typedef struct {
    float lr, beta1, beta2, eps, weight_decay, grad_clip;
    long step;  // from 0
    uint64_t seed;
    bool skip;   // leave parameters and moments as they are
    bool ratio;  // measure GptStep.ratio: moves 40 bytes a parameter (with fp32 moments)
} GptUpdate;

typedef struct {
    const char *name;  // e.g. "bf16 avx512"
    // Lays everything out, without touching the device.
    Gpt *(*create)(const GptConfig *config);
    // Until start, other rooms may add rows of their own.
    Buffers *(*buffers)(Gpt *g);
    double (*bytes_per_parameter)(const Gpt *g);
    // Joins the other ranks. What NCCL takes of the device's memory is gone then.
    void (*join)(Gpt *g, ncclUniqueId id);
    // Allocates the buffers of the table.
    void (*start)(Gpt *g);
    // For another thread than the one that computes: has a collective failed that this one may wait
    // for? Gives up all of them; the process has to end then.
    bool (*failed)(const Gpt *g, char *text, size_t room);
    void (*give_up)(Gpt *g);
    void (*finish)(Gpt *g);
    void (*forget)(Gpt *g);  // one that has not been started
    // On CPUs: seconds that a unit of each kind of work (lib/work.h) takes here, measured at shapes
    // like the config's. NULL: not known.
    void (*rates)(const GptConfig *config, double *seconds);
    // The rank's pieces in the order of its arrays, and their elements as they lie there (see
    // element_bytes; 0: not kept): from the device to dst once all work is done, and back before
    // any begins.
    const GptPiece *(*pieces)(const Gpt *g, int *count);
    size_t (*shard_elements)(const Gpt *g);  // of each of the rank's arrays
    size_t (*element_bytes)(const Gpt *g, GptArray array);
    void (*read)(Gpt *g, GptArray array, void *dst, size_t at, size_t n);
    void (*write)(Gpt *g, GptArray array, const void *src, size_t at, size_t n);
    void (*arrive)(Gpt *g);  // waits until every rank has come here

    // Host memory for micro-step i: B*T tokens, then B*T targets (-1: not counted).
    int *(*inputs)(Gpt *g, int micro_step);
    // Forward and backward of one micro-batch; its gradient is added to the shards.
    void (*micro_step)(Gpt *g, int micro_step);
    // Waits for loss and norm of a step before its update, for those who decide by them.
    GptStep (*measure)(Gpt *g);
    void (*update)(Gpt *g, const GptUpdate *u);
    // Waits for the step. notes: bits that this rank has to tell the others.
    GptStep (*finish_step)(Gpt *g, uint32_t notes);
    // Audits. record: note the checksums of the gradients of the micro-step that follows, or no
    // more. replay: compute the gradients of the micro-batch in inputs(g, micro_steps) and note
    // their checksums, nothing else. audited: both, (2, units, 2), the second index for tied
    // weights. checksum: of one of the rank's arrays.
    void (*record)(Gpt *g, bool on);
    void (*replay)(Gpt *g);
    void (*audited)(Gpt *g, uint64_t *sums);
    uint64_t (*checksum)(Gpt *g, GptArray array);
    int (*units)(const Gpt *g);
    const char *(*unit_name)(const Gpt *g, int unit);
    // Sums over each sequence of one micro-batch of every rank: loss and tokens are (world, B). Its
    // sequences have T tokens, at most config's; they and their targets lie in inputs(g, 0).
    void (*evaluate)(Gpt *g, int T, double *loss, double *tokens);
    // A text, token by token: logits (V) after its first n tokens, at most T, and after each one
    // that follows. Every rank has to call with the same tokens, and nothing else may be computed
    // in between.
    void (*begin_text)(Gpt *g, const int *tokens, int n, float *logits);
    void (*next_token)(Gpt *g, int token, float *logits);
    // Timeline of what follows until trace_stop writes it. Its 0 is the moment zero of clock_ns().
    void (*trace_start)(Gpt *g, int64_t zero);
    void (*trace_stop)(Gpt *g, const char *path);
} GptCode;
