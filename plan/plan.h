// plan/plan.h: --plan: does a run fit, how long does a step take, what will all of it cost. The
// memory is the program's own table, the time its own schedule on the plan's device (device.h).
#pragma once

#ifdef _OPENMP
#include <omp.h>
#endif

#include "memory.h"
#include "settle.h"

// Who asks for a plan, and of what.
typedef struct {
    const Options *options;
    ModelConfig model;
    Place place;
    Cluster cluster;
    const GptCode *real;  // on CPUs: the code that will run, for the room that its ops need
    double usable;        // bytes of a rank's memory
    double process;       // on CPUs: bytes of a rank beside its buffers
    int (*threads)(const Options *, int ranks);  // on CPUs: of each of so many ranks
    const Buffers *more;  // a table with other rooms' rows behind the `own` ones of the model
    int own;
    long steps;      // of the run; -1: not known
    size_t samples;  // of the training data
} Question;

typedef struct {
    GptConfig config;
    bool bf16;
    size_t parameters;
    double bytes_per_parameter;
    size_t cpu_workspace;
    Memory memory;
    bool fits;
    PlanStep step;
    double tokens;  // of a step
    double mfu, hfu, peak;
} Plan;

static inline const GptCode *plan_code(const Plan *p) {
    return p->bf16 ? &gpt_plan_bf16 : &gpt_plan_fp32;
}

// The room of the CPU's ops: what the code that will run puts into its own table.
static inline size_t plan_cpu_workspace(const Question *q, const GptConfig *c) {
    if (!q->cluster.cpu) return 0;
#ifdef _OPENMP
    int all = omp_get_max_threads();
    omp_set_num_threads(q->threads(q->options, c->fsdp.world));
#endif
    Gpt *g = q->real->create(c);
    const Buffers *b = q->real->buffers(g);
    size_t bytes = 0;
    for (int i = 0; i < b->count; i++)
        if (!strcmp(b->rows[i].name, "workspace of the ops")) bytes = b->rows[i].bytes;
    q->real->forget(g);
#ifdef _OPENMP
    omp_set_num_threads(all);
#endif
    return bytes;
}

// false: the options do not go together.
static inline bool plan_settle(Plan *p, const Question *q, const Options *o, int world,
                               Conflict *why) {
    *p = (Plan){};
    Place place = {plan_rank(world), world,
                   q->cluster.per_node < world ? q->cluster.per_node : world};
    Options chosen = *o;
    options_choose_sums(&chosen, !q->cluster.cpu, world > q->cluster.per_node);
    if (!settle(&p->config, &chosen, &q->model, place, why)) return false;
    p->bf16 = options_dtypes(o).gather == DTYPE_BF16;
    p->parameters = model_parameters(&q->model);
    p->cpu_workspace = plan_cpu_workspace(q, &p->config);
    p->tokens = (double)p->config.B * p->config.T * world * p->config.fsdp.micro_steps;
    return true;
}

static inline void plan_memory(Plan *p, const Question *q) {
    Memory *m = &p->memory;
    plan_begin(&q->cluster, &p->config, p->cpu_workspace);
    Gpt *g = plan_code(p)->create(&p->config);
    const Buffers *b = plan_code(p)->buffers(g);
    for (int i = 0; i < b->count; i++) memory_add(m, &b->rows[i]);
    for (int i = q->own; i < q->more->count; i++) memory_add(m, &q->more->rows[i]);
    p->bytes_per_parameter = plan_code(p)->bytes_per_parameter(g);
    plan_code(p)->forget(g);
}

static inline void plan_verdict(Plan *p, const Question *q) {
    Memory *m = &p->memory;
    memory_of_others(m, &q->cluster, &plan_device);
    if (q->cluster.cpu) m->context = q->process;
    m->used =
        m->buffers + (q->cluster.cpu ? m->host : 0) + m->rounding + m->context + m->blas + m->comms;
    m->usable = q->usable;
    p->fits = m->used <= m->usable;
}

// As llm.c counts them: 6 a parameter, and attention's causal half.
static inline double plan_flops_a_token(const GptConfig *c) {
    const ModelConfig *m = &c->model;
    return 6.0 * (double)model_parameters(m) + 6.0 * m->L * (double)m->C * c->T;
}

// Those of its products, if nothing is computed again. (llm.c counts all parameters.)
static inline double plan_products_a_token(const GptConfig *c) {
    const ModelConfig *m = &c->model;
    double weights = 12.0 * m->L * (double)m->C * m->C + (double)m->Vp * m->C;
    return 6.0 * weights + 6.0 * m->L * (double)m->C * c->T;
}

static inline void plan_utilisation(Plan *p, const Question *q) {
    const Gpu g = p->bf16 ? q->cluster.gpu : gpu_in_fp32(&q->cluster.gpu, p->config.tf32);
    double world = p->config.fsdp.world;
    p->peak = q->cluster.cpu ? 0 : g.tensor;
    if (p->peak == 0) return;
    double rank_tokens = p->tokens / world, rate = p->step.seconds * p->peak;
    double again = p->step.flops - rank_tokens * plan_products_a_token(&p->config);
    p->mfu = rank_tokens * plan_flops_a_token(&p->config) / rate;
    p->hfu = p->mfu + fmax(again, 0) / rate;
}

// A plan of the options on so many ranks; false: they do not go together.
static inline bool plan_make(Plan *p, const Question *q, const Options *o, int world,
                             Conflict *why) {
    if (!plan_settle(p, q, o, world, why)) return false;
    plan_memory(p, q);
    p->step = plan_step(&q->cluster, &p->config, p->bf16, p->cpu_workspace);
    plan_verdict(p, q);
    plan_utilisation(p, q);
    return true;
}

// The same for those who try many: without the time if the buffers alone are too large, else with
// the time of a step of two micro-steps for each two.
static inline bool plan_try(Plan *p, const Question *q, const Options *o, int world) {
    Conflict why;
    if (!plan_settle(p, q, o, world, &why)) return false;
    plan_memory(p, q);
    int n = p->config.fsdp.micro_steps, tried = n < 2 ? n : 2;
    plan_verdict(p, q);  // no communicators yet
    if (!p->fits) return true;
    p->step = simulate_step(plan_code(p), &q->cluster, p->config, tried, p->cpu_workspace, NULL);
    p->step.seconds *= (double)n / tried;
    plan_verdict(p, q);
    return true;
}

// ---- what follows from a step ------------------------------------------------------------------

static inline double plan_communication(const Plan *p) {
    return p->step.times.overlapped + p->step.times.communicating;
}

// Share of the collectives' time in which the compute stream works.
static inline double plan_hidden(const Plan *p) {
    double all = plan_communication(p);
    return all > 0 ? p->step.times.overlapped / all : 1;
}

// What takes longest of what could go on at the same time.
static inline const char *plan_bound(const Plan *p, const Question *q) {
    const SimTimes *t = &p->step.times;
    double compute = t->computing + t->overlapped, wire = plan_communication(p);
    if (t->idle > compute && t->idle > wire) return "the host, which issues work too slowly";
    if (t->sharding > compute && t->sharding > wire) return "casts, sums and AdamW";
    if (wire <= compute) return "computation";
    if (q->cluster.cpu) return "copies between the ranks";
    return p->config.fsdp.world > q->cluster.per_node ? "the network" : "the links of the node";
}

// ---- failures: Young 1974, Daly 2006 -----------------------------------------------------------

// The default of --failures: 419 unexpected interruptions in 54 days on 16,384 GPUs (Llama 3 405B,
// arXiv 2407.21783, table 5). OPT-175B had about three times as many (arXiv 2205.01068).

typedef struct {
    double bytes;             // of a checkpoint
    double writing;           // seconds until it is on the disk, in the background
    double blocking;          // seconds that the training stands still for the copy
    double between_failures;  // seconds
    double minutes;           // between checkpoints
    double lost;              // share of the time
} PlanFailures;

#define COPY_TO_HOST 20e9     // bytes a second: PCIe 4.0 to pinned memory
#define RESTART_SECONDS 600.  // until the step after a failure: the queue, the start, the load

// Share of the time that is lost with so many seconds between checkpoints: their copies, and in a
// failure half a period, the time until the last one was written, and the start.
static inline double plan_lost(const PlanFailures *x, double period) {
    double in_failure = period / 2 + x->writing + RESTART_SECONDS;
    return fmin(1, x->blocking / period + in_failure / x->between_failures);
}

static inline PlanFailures plan_failures(const Plan *p, const Question *q) {
    const Options *o = q->options;
    const FsdpConfig *f = &p->config.fsdp;
    PlanFailures x = {};
    double grad = f->bf16_grads ? 2 : 4;
    int nodes = (f->world + q->cluster.per_node - 1) / q->cluster.per_node;
    int groups = f->world / f->K, writers = nodes / groups > 1 ? nodes / groups : 1;
    x.bytes = (p->bytes_per_parameter - grad) * (double)p->parameters;
    x.writing = x.bytes / (1e9 * (double)o->write_speed * writers);
    x.blocking = x.bytes / f->K / COPY_TO_HOST;
    x.between_failures = 86400 / (fmax(1e-12, (double)o->failures) * f->world);
    double best = fmax(sqrt(2 * x.blocking * x.between_failures), x.writing);
    x.minutes = fmax(1, ceil(best / 60));
    x.lost = plan_lost(&x, 60 * x.minutes);
    return x;
}
