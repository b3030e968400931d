// plan/steps.h: the program's own steps on the plan's device: two of them, of which the second is
// looked at, as the first begins with nothing gathered. The micro-steps in the middle of a step are
// alike: with many of them a step of three and one of four are simulated, and the rest is
// arithmetic.
#pragma once

#include "../gpt.h"
#include "recorder.h"

extern const GptCode gpt_plan_fp32, gpt_plan_bf16;

// Of one step, of one rank. Everything grows evenly with the micro-steps. Only doubles: see
// steps_between.
typedef struct {
    double seconds;
    SimTimes times;
    double flops;             // that utilisation counts, those computed again among them
    double work[WORK_KINDS];  // seconds alone
    double gathered, reduced, allreduced, collectives;  // bytes received, and calls
} PlanStep;

enum { PLAN_STEPS_MOST = 4 };  // micro-steps that are simulated

// Makes the device ready for a run.
static inline void plan_begin(const Cluster *cluster, const GptConfig *c, size_t cpu_workspace) {
    PlanDevice *d = &plan_device;
    Sim sim = d->sim;  // its memory is given back
    *d = (PlanDevice){};
    d->sim = sim;
    d->cluster = *cluster;
    d->cluster.tf32 = c->tf32;
    d->world = c->fsdp.world, d->rank = c->fsdp.rank, d->K = c->fsdp.K;
    d->exchange_elements = cluster->cpu ? EXCHANGE_ELEMENTS_CPU : EXCHANGE_ELEMENTS_GPU;
    d->cpu_workspace = cpu_workspace;
    double interference =
        cluster->cpu ? 0 : (double)cluster->gpu.channels / cluster->gpu.multiprocessors;
    sim_start(&d->sim, cluster->cpu, interference);
}

static inline void run_step(const GptCode *code, Gpt *g, int micro_steps, long step,
                            FsdpCounters *counters) {
    GptUpdate u = {};
    u.grad_clip = 1, u.step = step;
    for (int i = 0; i < micro_steps; i++) code->micro_step(g, i);
    code->update(g, &u);
    *counters = code->finish_step(g, 0).counters;
}

// trace: a file for the timeline of the step; NULL: none.
static inline PlanStep simulate_step(const GptCode *code, const Cluster *cluster, GptConfig c,
                                     int micro_steps, size_t cpu_workspace, const char *trace) {
    PlanDevice *d = &plan_device;
    PlanStep s = {};
    FsdpCounters counters;
    ncclUniqueId id = {};
    c.fsdp.micro_steps = micro_steps;
    plan_begin(cluster, &c, cpu_workspace);
    Gpt *g = code->create(&c);
    code->join(g, id);
    code->start(g);
    run_step(code, g, micro_steps, 0, &counters);
    double began = d->sim.host;
    d->sim.times = (SimTimes){};
    d->flops = 0;
    memset(d->work, 0, sizeof d->work);
    if (trace) code->trace_start(g, (int64_t)(1e9 * began));
    run_step(code, g, micro_steps, 1, &counters);
    s.seconds = d->sim.host - began;
    s.times = d->sim.times;
    s.flops = d->flops;
    memcpy(s.work, d->work, sizeof s.work);
    s.gathered = counters.gathered_bytes, s.reduced = counters.reduced_bytes;
    s.allreduced = counters.allreduced_bytes, s.collectives = (double)counters.collectives;
    if (trace) code->trace_stop(g, trace);
    code->finish(g);
    return s;
}

// A step of n micro-steps from one of three and one of four.
static inline PlanStep steps_between(const PlanStep *three, const PlanStep *four, int n) {
    PlanStep s;
    const double *a = (const double *)three, *b = (const double *)four;
    double *to = (double *)&s;
    for (size_t i = 0; i < sizeof s / sizeof(double); i++) to[i] = a[i] + (n - 3) * (b[i] - a[i]);
    return s;
}

static inline PlanStep plan_step(const Cluster *cluster, const GptConfig *c, bool bf16,
                                 size_t cpu_workspace) {
    const GptCode *code = bf16 ? &gpt_plan_bf16 : &gpt_plan_fp32;
    int n = c->fsdp.micro_steps;
    if (n <= PLAN_STEPS_MOST) return simulate_step(code, cluster, *c, n, cpu_workspace, NULL);
    PlanStep three = simulate_step(code, cluster, *c, 3, cpu_workspace, NULL),
             four = simulate_step(code, cluster, *c, 4, cpu_workspace, NULL);
    return steps_between(&three, &four, n);
}
