// plan/settle.h: options and a model to the settled numbers of a run. Everything is checked here,
// before anything is allocated; the plan's search asks for many settings, so that what does not go
// together is told and not died of.
#pragma once

#include "../gpt.h"

typedef struct {
    int rank, world;
    int node;  // ranks of a node
} Place;

typedef struct {
    char text[512];  // what is wrong; "": nothing
} Conflict;

__attribute__((format(printf, 2, 3))) static inline bool conflicts(Conflict *why,
                                                                   const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(why->text, sizeof why->text, format, args);
    va_end(args);
    return false;
}

static inline bool settle_shape(GptConfig *c, const Options *o, Conflict *why) {
    c->B = o->generate ? 1 : o->batch;
    c->T = o->seq ? o->seq : c->model.T;
    if (c->T > c->model.T)
        return conflicts(why, "--seq %d: the model knows at most %d positions (T in --model)", c->T,
                         c->model.T);
    if (c->B > (1 << 30) / c->T)
        return conflicts(why, "--batch %d x --seq %d: expected at most 2^30 tokens", c->B, c->T);
    c->logits_rows = o->generate ? 1 : o->logits_rows;
    c->writes = o->generate || o->sample_every;
    c->unit = o->unit, c->unit_k = o->unit_k;
    c->recompute = o->recompute, c->recompute_k = o->recompute_k;
    return true;
}

static inline bool settle_steps(GptConfig *c, const Options *o, int world, Conflict *why) {
    unsigned long long round =
        (unsigned long long)c->B * (unsigned long long)c->T * (unsigned long long)world;
    // Without a step it is of no matter what a step has.
    unsigned long long wanted = o->tokens_per_step && o->steps != 0 ? o->tokens_per_step : round;
    if (wanted % round)
        return conflicts(
            why,
            "--tokens-per-step %llu: expected a multiple of batch %d x seq %d x ranks %d = %llu; "
            "nearest: %llu",
            wanted, c->B, c->T, world, round,
            wanted < round ? round : (wanted + round / 2) / round * round);
    // Sums of all micro-batches.
    unsigned long long most = (1ull << 26) / (unsigned long long)world;
    if (wanted / round > most)
        return conflicts(why,
                         "--tokens-per-step %llu: expected at most %llu micro-steps on %d ranks, "
                         "found %llu",
                         wanted, most, world, wanted / round);
    c->fsdp.micro_steps = wanted < round ? 1 : (int)(wanted / round);
    return true;
}

// Ranks in a shard group.
static inline bool settle_group(GptConfig *c, const Options *o, Place p, Conflict *why) {
    c->fsdp.K = o->shard == SHARD_NONE          ? 1
                : o->shard == SHARD_HYBRID      ? o->shard_k
                : o->shard == SHARD_HYBRID_NODE ? p.node
                                                : p.world;
    if (p.world % c->fsdp.K == 0) return true;
    if (o->shard == SHARD_HYBRID)
        return conflicts(why, "--shard hybrid:%d: expected a divisor of the %d ranks", o->shard_k,
                         p.world);
    return conflicts(why, "--shard hybrid:node: %d ranks on this node do not divide %d ranks",
                     p.node, p.world);
}

// A run without steps keeps no gradients and no moments, unless it saves them. (A plan is of a run
// with steps.)
static inline bool only_forward(const Options *o) {
    bool saves = o->out[0] && (o->checkpoint_every || o->checkpoint_minutes);
    return o->steps == 0 && !saves && o->plan == PLAN_NO;
}

static inline bool settle_sharding(GptConfig *c, const Options *o, Place p, Conflict *why) {
    Dtypes d = options_dtypes(o);
    FsdpConfig *f = &c->fsdp;
    c->tf32 = o->precision == PRECISION_TF32 && d.gather == DTYPE_FP32;
    f->rank = p.rank, f->world = p.world;
    f->ordered = o->reduce != REDUCE_FAST;
    f->resident = o->shard == SHARD_GRADS || o->shard == SHARD_STATES;
    f->bf16_reduce = d.reduce == DTYPE_BF16;
    f->bf16_grads = d.grad == DTYPE_BF16;
    f->moments = d.moment == DTYPE_FP64   ? MOMENTS_FP64
                 : d.moment == DTYPE_BF16 ? MOMENTS_BF16
                                          : MOMENTS_FP32;
    f->gather_slots = o->gather_buffers;
    f->grad_slots = o->grad_buffers;
    f->nccl_ctas = o->nccl_ctas;
    f->prefetch = o->prefetch < 0 ? o->gather_buffers - 1 : o->prefetch;
    f->forward_only = only_forward(o);
    f->audit = o->audit_every > 0 && !f->forward_only;
    if (f->audit && f->world == 1)
        return conflicts(why, "--audit-every: expected at least 2 ranks, of which one computes "
                              "again what another has computed; found 1");
    if (f->prefetch >= o->gather_buffers && !f->resident)
        return conflicts(why,
                         "--prefetch %d: with --gather-buffers %d at most %d; one buffer holds the "
                         "unit in use",
                         o->prefetch, o->gather_buffers, o->gather_buffers - 1);
    if (o->accumulate == ACCUMULATE_LOCAL && f->ordered)
        return conflicts(why, "--accumulate local adds in another order than --reduce ordered "
                              "promises; use --reduce fast");
    // ZeRO-1 keeps whole gradients; in the order of the micro-batches they have to
    // be reduced one by one.
    f->local = o->accumulate == ACCUMULATE_LOCAL || (o->shard == SHARD_STATES && !f->ordered);
    return true;
}

// false: the options do not go together, and why says which.
static inline bool settle(GptConfig *c, const Options *o, const ModelConfig *m, Place p,
                          Conflict *why) {
    *c = (GptConfig){};
    c->model = *m;
    return settle_shape(c, o, why) && settle_steps(c, o, p.world, why) &&
           settle_group(c, o, p, why) && settle_sharding(c, o, p, why);
}
