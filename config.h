// config.h: what is settled before a run: the sizes of the model and of a micro-batch,
// and how it is sharded. Plain numbers, known to the program, the model and fsdp.h alike;
// no device, no compute dtype.
#pragma once

#include "lib/buffers.h"
#include "lib/options.h"
#include "lib/tensors.h"

typedef enum { MOMENTS_FP32, MOMENTS_FP64, MOMENTS_BF16 } MomentType;

typedef struct {
    int rank, world;
    int K;             // ranks in a shard group; rank % K is the own slice
    bool ordered;      // --reduce ordered
    bool resident;     // every unit has its own slot, gathered once an update (ZeRO-2, ZeRO-1)
    bool local;        // gradients stay whole over the micro-steps, reduced once
    bool bf16_reduce;  // gradients travel as bf16
    bool bf16_grads;   // gradient shards are bf16
    MomentType moments;
    int gather_slots, grad_slots, prefetch;
    int micro_steps;  // per optimizer step
} FsdpConfig;

typedef struct {
    double gathered_bytes, reduced_bytes, allreduced_bytes;  // received from other ranks
    long collectives;
    double wait_ms;  // that the compute stream waited for collectives
} FsdpCounters;

typedef struct {
    ModelConfig model;
    int B, T;                    // sequences and tokens of a micro-batch
    int logits_rows;             // rows of logits that exist at a time
    int unit, unit_k;            // --unit
    int recompute, recompute_k;  // --recompute
    FsdpConfig fsdp;
} GptConfig;
