// config.h: how a run's parameters are sharded, and what a step's sharding came to. Plain numbers,
// known to the program, the model, the ops and fsdp.h alike; no transformer, no device, no compute
// dtype.
#pragma once

#include "lib/buffers.h"

// Elements of the ordered exchange under way at a time: on CPUs they should stay in the cache.
#define EXCHANGE_ELEMENTS_CPU ((size_t)1 << 18)
#define EXCHANGE_ELEMENTS_GPU ((size_t)1 << 24)

typedef enum { MOMENTS_FP32, MOMENTS_FP64, MOMENTS_BF16 } MomentType;

typedef struct {
    int rank, world;
    int K;          // ranks in a shard group; rank % K is the own slice
    bool ordered;   // --reduce ordered
    bool resident;  // every unit has its own slot: gathered once after an update (ZeRO-2, ZeRO-1)
    bool local;     // gradients stay whole over the micro-steps, reduced once
    bool bf16_reduce;  // gradients travel as bf16
    bool bf16_grads;   // gradient shards are bf16
    MomentType moments;
    int gather_slots, grad_slots, prefetch;
    int nccl_ctas;      // of a collective, at most; 0: as NCCL chooses
    int micro_steps;    // per optimizer step
    bool audit;         // gradients are checksummed now and then, see Fsdp.audit
    bool forward_only;  // nothing is trained: no gradients, no moments
} FsdpConfig;

// Ranks of each communicator that the strategy uses. 0: it is not made, as one takes hundreds of
// MiB of a GPU.
typedef struct {
    int world, gather, reduce, replicas;
} FsdpCommRanks;

static inline FsdpCommRanks fsdp_comm_ranks(const FsdpConfig *c) {
    int replicas = c->world / c->K;
    FsdpCommRanks ranks = {c->world, 0, 0, 0};
    if (c->K > 1) ranks.gather = c->K;
    if (c->ordered || c->forward_only) return ranks;
    if (c->K > 1) ranks.reduce = c->K;
    if (replicas > 1) ranks.replicas = replicas;
    return ranks;
}

typedef struct {
    double gathered_bytes, reduced_bytes, allreduced_bytes;  // received from other ranks
    long collectives;
    double wait_ms;  // that the compute stream waited for collectives
} FsdpCounters;
