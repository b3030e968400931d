// checkpoint/audit.h: silent corruption, found before it is saved. Every kernel is deterministic,
// so the gradients of a micro-batch are the same bits on whichever rank computes them. In an
// audited step rank r+1 computes rank r's first micro-batch once more, and the two compare
// checksums of every unit's gradient; replicas compare those of their shards, also before every
// checkpoint and at the end of a run. A difference ends the run, with nothing saved from that step.
// (Hochschild et al. 2021, "Cores that don't count".)
#pragma once

#include "parameters.h"
#include "ranks.h"

static inline int audit_neighbour(const Ranks *r) {
    return (r->rank + r->world - 1) % r->world;
}

// Every rank's value of something. all (world).
static inline void audit_gather(Ranks *r, uint64_t *all, uint64_t own) {
    memset(all, 0, (size_t)r->world * sizeof *all);
    all[r->rank] = own;
    ranks_sum(r, all, (size_t)r->world);
}

// Another rank is about to say why, and ends the job.
NORETURN static inline void audit_end(void) {
    sleep(10);
    die_now();
}

// After the step whose first micro-batch was recorded and replayed. Where the checksums of all
// ranks add up to the same sums there is nothing to look for.
static inline void audit_gradients(const Model *m, Ranks *r) {
    size_t n = 2 * (size_t)m->code->units(m->gpt);
    uint64_t *sums = (uint64_t *)malloc_check(3 * n * sizeof(uint64_t)), *difference = sums + 2 * n;
    uint64_t *all = (uint64_t *)malloc_check((size_t)r->world * sizeof(uint64_t));
    m->code->audited(m->gpt, sums);
    for (size_t i = 0; i < n; i++) difference[i] = rng_mix(sums[i]) - rng_mix(sums[n + i]);
    ranks_sum(r, difference, n);
    bool found = false;
    for (size_t i = 0; i < n; i++) {
        if (difference[i] == 0) continue;
        audit_gather(r, all, sums[i]);
        int before = audit_neighbour(r);
        if (all[before] != sums[n + i])
            die("audit: ranks %d and %d compute different gradients of %s from the same "
                "micro-batch; one of the two is broken. Nothing is saved from this step",
                before, r->rank, m->code->unit_name(m->gpt, (int)(i / 2)));
        found = true;
    }
    if (found) audit_end();
    free(sums);
    free(all);
}

// Replicas hold the same shards. All ranks see where they differ, so that none goes on to save.
static inline void audit_replicas(const Model *m, Ranks *r) {
    static const GptArray arrays[] = {GPT_PARAMETERS, GPT_MOMENT_M, GPT_MOMENT_V};
    static const char *const names[] = {"parameters", "moments m", "moments v"};
    const int K = m->config->fsdp.K;
    if (K == r->world || m->config->fsdp.forward_only) return;
    uint64_t *all = (uint64_t *)malloc_check((size_t)r->world * sizeof(uint64_t));
    for (int a = 0; a < 3; a++) {
        audit_gather(r, all, m->code->checksum(m->gpt, arrays[a]));
        int i = K;
        while (i < r->world && all[i] == all[i % K]) i++;
        if (i == r->rank)
            die("audit: ranks %d and %d are replicas, and their %s differ. Nothing is saved from "
                "this step",
                i % K, i, names[a]);
        if (i < r->world) audit_end();
    }
    free(all);
}

// ---- what they cost ----------------------------------------------------------------------------

// The milliseconds and the number of the steps without and with an audit.
typedef struct {
    double ms[2];
    long steps[2];
} AuditCost;

static inline void audit_cost_add(AuditCost *c, bool audited, double ms) {
    c->ms[audited] += ms;
    c->steps[audited]++;
}

static inline void audit_cost_print(const AuditCost *c) {
    if (!c->steps[1]) return;
    printf("audits           %ld steps with one: %.1f ms each", c->steps[1],
           c->ms[1] / (double)c->steps[1]);
    if (c->steps[0]) printf("; %ld without: %.1f ms", c->steps[0], c->ms[0] / (double)c->steps[0]);
    printf("\n");
}
