// plan/print.h: a plan for people, in 80 columns, and for programs, as JSON.
#pragma once

#include "search.h"

#include <jansson.h>
#include <limits.h>
#include <malloc.h>

#define GIB (1024. * 1024 * 1024)

// All that is said.
typedef struct {
    const Question *q;
    Plan plan;
    Changes changes;  // with which it fits, if it does not
    Changes best;     // of --plan best
    int hides;        // see batch_that_hides
    PlanFailures failures;
    double run_tokens, run_seconds;  // of the whole run, failures among it
    const char *run_why;
    bool ends;  // it does not where it fails faster than it starts again
} Answer;

static inline void answer_run(Answer *a) {
    const Options *o = a->q->options;
    a->run_tokens = o->tokens         ? (double)o->tokens
                    : a->q->steps > 0 ? (double)a->q->steps * a->plan.tokens
                                      : 20.0 * (double)a->plan.parameters;
    a->run_why = o->tokens ? "--tokens" : a->q->steps > 0 ? "its steps" : "20 a parameter";
    a->run_seconds = a->run_tokens / a->plan.tokens * a->plan.step.seconds;
    a->failures = plan_failures(&a->plan, a->q);
    a->ends = a->q->cluster.cpu || a->failures.lost < 0.99;
    if (!a->q->cluster.cpu && a->ends) a->run_seconds /= 1 - a->failures.lost;
}

// ---- text --------------------------------------------------------------------------------------

static inline void print_row(const char *owner, const char *name, int count, double bytes,
                             double of) {
    char times[16] = "";
    if (count > 1) snprintf(times, sizeof times, "%d x", count);
    printf("  %-12s %-34s %7s %9.3f %6.1f %%\n", owner, name, times, bytes / GIB, 100 * bytes / of);
}

static inline void print_memory(const Plan *p, bool cpu) {
    const Memory *m = &p->memory;
    printf("\nmemory of a rank%49s %8s\n", "GiB", "share");
    int small = 0;
    double small_bytes = 0;
    for (int i = 0; i < m->nrows; i++) {
        const MemoryRow *row = &m->rows[i];
        if (!strcmp(row->owner, BUFFER_HOST)) continue;
        bool shown = row->bytes > 0.001 * m->used;
        if (shown) print_row(row->owner, row->name, row->count, row->bytes, m->used);
        small += shown ? 0 : row->count, small_bytes += shown ? 0 : row->bytes;
    }
    if (small) print_row("", "smaller ones", small, small_bytes, m->used);
    if (cpu) print_row("others", "the process, collectives", 0, m->context, m->used);
    if (!cpu) {
        char comms[40];
        snprintf(comms, sizeof comms, "NCCL, %d communicator%s", m->ncomms,
                 m->ncomms == 1 ? "" : "s");
        print_row("others", "CUDA's context and code", 0, m->context, m->used);
        print_row("others", "cuBLASLt's code", 0, m->blas, m->used);
        print_row("others", comms, 0, m->comms, m->used);
        print_row("others", "rounding to pages of 2 MiB", 0, m->rounding, m->used);
    }
    printf("  %-55s %9.3f\n", "together, from the start on: the peak", m->used / GIB);
    printf("  of %.1f GiB: %s, %.1f GiB %s\n", m->usable / GIB, p->fits ? "fits" : "DOES NOT FIT",
           fabs(m->usable - m->used) / GIB, p->fits ? "left" : "too much");
    printf("  host memory besides: %.3f GiB\n", m->host / GIB);
}

static inline void print_share(const char *what, double seconds, double all) {
    printf("  %-55s %9.4f %6.1f %%\n", what, seconds, 100 * seconds / all);
}

static inline void print_bytes(const char *what, double bytes) {
    bool tera = bytes >= 1e11;
    printf("%s %.3f %s", what, bytes / (tera ? 1e12 : 1e9), tera ? "TB" : "GB");
}

static inline void print_time(const Answer *a) {
    const Plan *p = &a->plan;
    const PlanStep *s = &p->step;
    printf("\ntime of a step%51s %8s\n", "seconds", "share");
    print_share("computation alone", s->times.computing, s->seconds);
    print_share("computation, and communication hidden beside it", s->times.overlapped, s->seconds);
    print_share("communication alone", s->times.communicating, s->seconds);
    print_share("casts, sums and AdamW alone", s->times.sharding, s->seconds);
    print_share("nothing: the host is late", s->times.idle, s->seconds);
    print_share("together", s->seconds, s->seconds);
    printf("  where the kernels' time goes, each as if it were alone:\n");
    for (int i = 0; i < WORK_KINDS; i++)
        if (s->work[i] > 0.005 * s->seconds) print_share(work_names[i], s->work[i], s->seconds);
    printf("  a rank receives");
    print_bytes("", s->gathered), print_bytes(" gathered,", s->reduced);
    printf(" reduced");
    if (s->allreduced > 1e6) print_bytes(",", s->allreduced), printf(" all-reduced");
    printf("\n  %.0f %% of the communication is hidden\n", 100 * plan_hidden(p));
    printf("  the step is bound by %s\n", plan_bound(p, a->q));
    bool beside = p->config.fsdp.world > 1 && !a->q->cluster.cpu;
    if (beside && a->hides)
        printf("  communication hides (alone in under %.0f %% of a step) from --batch %d on,\n"
               "  whether or not that fits\n",
               100 * HIDDEN_BELOW, a->hides);
    else if (beside)
        printf("  communication does not hide up to --batch %d\n", HIDES_MOST);
    printf("  %.0f tokens/s", p->tokens / s->seconds);
    if (p->peak > 0)
        printf(", MFU %.1f %%, HFU %.1f %% of %.0f Tflop/s", 100 * p->mfu, 100 * p->hfu,
               p->peak * 1e-12);
    printf("\n");
}

static inline void print_run(const Answer *a) {
    const Plan *p = &a->plan;
    const PlanFailures *f = &a->failures;
    double world = p->config.fsdp.world, hours = a->run_seconds / 3600;
    printf("\nthe run: %.4g tokens (%s), %.0f steps: %.2f days\n", a->run_tokens, a->run_why,
           ceil(a->run_tokens / p->tokens), hours / 24);
    if (a->q->cluster.cpu) return;
    printf("  %.0f GPU-hours", hours * world);
    if (a->q->cluster.price > 0) printf(", cost %.0f", hours * world * a->q->cluster.price);
    printf(", %.1f MWh at %.0f W a GPU\n", hours * world * a->q->cluster.gpu.watts * 1e-6,
           a->q->cluster.gpu.watts);
    if (a->q->options->failures == 0) return;
    printf("  a failure every %.1f hours; a checkpoint of %.1f GB is written in %.0f s:\n",
           f->between_failures / 3600, f->bytes * 1e-9, f->writing);
    if (a->ends)
        printf("  best --checkpoint-minutes %.0f; %.1f %% of the time is lost, %.1f hours\n",
               f->minutes, 100 * f->lost, f->lost * hours);
    else
        printf("  it fails faster than it starts again: IT DOES NOT GET TO THE END\n");
}

// A word as a shell reads it back: in quotes where it has to be. Returns its length, at most four
// times that of the text.
static inline int shell_word(char *word, const char *text) {
    const char *plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=,+-@%";
    if (*text && !text[strspn(text, plain)]) return sprintf(word, "%s", text);
    char *at = word;
    *at++ = '\'';
    for (; *text; text++)
        if (*text == '\'')
            at += sprintf(at, "'\\''");
        else
            *at++ = *text;
    strcpy(at, "'");
    return (int)(at + 1 - word);
}

// What a user has to type, beyond what this program would do anyway, in lines of so many columns.
static inline void print_command(FILE *to, const Question *q, const Options *o, int world,
                                 int columns) {
    Options standard;
    options_default(&standard);
    options_choose_numbers(&standard, !q->cluster.cpu);
    const char *start =
        world > q->cluster.per_node ? "mpirun -n %d ./train_gpt" : "./train_gpt --ranks %d";
    int column = 2 + fprintf(to, start, world);
    for (int i = 0; i < OPTION_ROWS; i++) {
        const Option *row = &option_table[i];
        char value[PATH_BYTES], usual[PATH_BYTES], word[4 * PATH_BYTES + 64];
        if (row->kind == KIND_GROUP && !strcmp(row->name, "Planning"))
            while (i + 1 < OPTION_ROWS && option_table[i + 1].kind != KIND_GROUP) i++;
        if (!option_is_saved(row) || row == option_find("ranks") || row == option_find("json"))
            continue;
        option_print_value(o, row, value, sizeof value);
        option_print_value(&standard, row, usual, sizeof usual);
        if (!strcmp(value, usual)) continue;
        int length = snprintf(word, sizeof word, " --%s ", option_name(row).text);
        length += shell_word(word + length, value);
        if (column + length > columns - 3) column = fprintf(to, " \\\n   ") - 3;
        column += fprintf(to, "%s", word);
    }
}

// Options, from a column on; lines that follow begin in the fourth.
static inline void print_wrapped(const char *text, int column) {
    for (const char *end; *text; text = end) {
        end = strstr(text + 1, " --");
        if (!end) end = text + strlen(text);
        int length = (int)(end - text);
        if (column + length > 80) column = printf("\n   ") - 1;
        column += printf("%.*s", length, text);
    }
    printf("\n");
}

static inline void print_changes(const Answer *a) {
    if (!a->plan.fits && a->changes.count == 0)
        printf("\nno change was found with which it fits, on up to 4096 ranks\n");
    if (a->changes.count)
        printf("\nwhat would make it fit, with the GPU time (ranks x time) of a token then\n");
    bool other_numbers = false;
    for (int i = 0; i < a->changes.count; i++) {
        const Change *x = &a->changes.list[i];
        printf("  %+6.1f %%  %6.1f GiB",
               100 * (token_seconds(&x->plan) / token_seconds(&a->plan) - 1),
               x->plan.memory.used / GIB);
        bool numbers = strstr(x->text, "-dtype ") != NULL;
        other_numbers |= numbers;
        printf("%s", numbers ? " *" : "  ");
        print_wrapped(x->text, 23);
    }
    if (other_numbers) printf("  * keeps or adds up other numbers: another training\n");
    if (a->best.count) printf("\nthe fastest found that fit\n");
    for (int i = 0; i < a->best.count; i++) {
        const Plan *p = &a->best.list[i].plan;
        printf("  %.4f s a step, ", p->step.seconds);
        if (p->peak > 0) printf("MFU %.1f %%, ", 100 * p->mfu);
        printf("%.1f of %.1f GiB\n  ", p->memory.used / GIB, p->memory.usable / GIB);
        print_command(stdout, a->q, &a->best.list[i].options, a->best.list[i].world, 80);
        printf("\n");
    }
}

static const char *const plan_dtypes[] = {"", "fp32", "bf16", "fp64"};

static inline double network_gbits(const Cluster *c) {
    return c->network * 8e-9 / NETWORK_REACHED;
}

static inline void print_head(const Answer *a, const char *code) {
    const Plan *p = &a->plan;
    const GptConfig *c = &p->config;
    const FsdpConfig *f = &c->fsdp;
    const Cluster *cluster = &a->q->cluster;
    const ModelConfig *m = &c->model;
    Dtypes d = options_dtypes(a->q->options);
    double exact = p->bytes_per_parameter * (double)p->parameters / f->K, state = 0;
    for (int i = 0; i < p->memory.nrows; i++)
        if (!strcmp(p->memory.rows[i].owner, "state")) state += p->memory.rows[i].bytes;
    printf("plan      %s\n", a->q->options->model);
    printf("model     L=%d C=%d NH=%d T=%d V=%d, %zu parameters\n", m->L, m->C, m->NH, m->T, m->V,
           p->parameters);
    printf("code      %s\n", code);
    printf("cluster   %d x %s, %d a node", f->world, cluster->name, cluster->per_node);
    if (!cluster->cpu) printf(", %.0f Gbit/s a node", network_gbits(cluster));
    printf("\nsharding  groups of %d ranks, %d replicas; %s sums\n", f->K, f->world / f->K,
           f->ordered ? "ordered" : "fast");
    printf("numbers   gather %s, reduce %s, gradients %s, moments %s\n", plan_dtypes[d.gather],
           plan_dtypes[d.reduce], plan_dtypes[d.grad], plan_dtypes[d.moment]);
    printf("batch     B %d x T %d x %d ranks x %d micro-steps = %.0f tokens a step\n", c->B, c->T,
           f->world, f->micro_steps, p->tokens);
    printf("state     %.1f bytes a parameter / %d ranks = %.2f GiB, %.2f %% padding\n",
           p->bytes_per_parameter, f->K, exact / GIB, 100 * (state / exact - 1));
}

static inline void print_answer(const Answer *a, const char *code) {
    print_head(a, code);
    print_memory(&a->plan, a->q->cluster.cpu);
    print_time(a);
    print_run(a);
    print_changes(a);
}

// ---- JSON --------------------------------------------------------------------------------------

static inline json_t *json_memory(const Plan *p) {
    const Memory *m = &p->memory;
    json_t *rows = json_array();
    for (int i = 0; i < m->nrows; i++)
        json_array_append_new(rows, json_pack("{s:s,s:s,s:i,s:I}", "owner", m->rows[i].owner,
                                              "name", m->rows[i].name, "count", m->rows[i].count,
                                              "bytes", (json_int_t)m->rows[i].bytes));
    return json_pack(
        "{s:o,s:I,s:I,s:I,s:I,s:I,s:i,s:I,s:I,s:I,s:b,s:f}", "rows", rows, "buffers",
        (json_int_t)m->buffers, "host", (json_int_t)m->host, "context", (json_int_t)m->context,
        "cublas", (json_int_t)m->blas, "nccl", (json_int_t)m->comms, "communicators", m->ncomms,
        "rounding", (json_int_t)m->rounding, "used", (json_int_t)m->used, "usable",
        (json_int_t)m->usable, "fits", (int)p->fits, "bytes_per_parameter", p->bytes_per_parameter);
}

static inline json_t *json_step(const Answer *a) {
    const Plan *p = &a->plan;
    const PlanStep *s = &p->step;
    const SimTimes *t = &s->times;
    json_t *work = json_object();
    for (int i = 0; i < WORK_KINDS; i++)
        json_object_set_new(work, work_names[i], json_real(s->work[i]));
    return json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:o,s:I,s:I,s:I,s:I,s:f,s:s,s:i,s:f,s:f,s:f}",
                     "seconds", s->seconds, "computing", t->computing, "overlapped", t->overlapped,
                     "communicating", t->communicating, "sharding", t->sharding, "idle", t->idle,
                     "work", work, "gathered_bytes", (json_int_t)s->gathered, "reduced_bytes",
                     (json_int_t)s->reduced, "allreduced_bytes", (json_int_t)s->allreduced,
                     "collectives", (json_int_t)s->collectives, "hidden", plan_hidden(p), "bound",
                     plan_bound(p, a->q), "batch_that_hides", a->hides, "tokens_per_second",
                     p->tokens / s->seconds, "mfu", p->mfu, "hfu", p->hfu);
}

static inline json_t *json_command(const Question *q, const Options *o, int world) {
    char *text;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);
    if (!to) die("out of memory for a command");
    print_command(to, q, o, world, INT_MAX);
    fclose(to);
    json_t *command = json_string(text);
    free(text);
    return command;
}

static inline json_t *json_changes(const Question *q, const Changes *c) {
    json_t *list = json_array();
    for (int i = 0; i < c->count; i++) {
        const Change *x = &c->list[i];
        json_array_append_new(list, json_pack("{s:s,s:o,s:i,s:f,s:f,s:I}", "options", x->text + 1,
                                              "command", json_command(q, &x->options, x->world),
                                              "ranks", x->world, "seconds", x->plan.step.seconds,
                                              "token_seconds", token_seconds(&x->plan), "used",
                                              (json_int_t)x->plan.memory.used));
    }
    return list;
}

static inline json_t *json_cluster(const Cluster *c) {
    return json_pack("{s:s,s:i,s:f,s:f}", "name", c->name, "gpus_per_node", c->per_node,
                     "network_gbits", network_gbits(c), "price", c->price);
}

static inline json_t *json_dtypes(const Options *o) {
    Dtypes d = options_dtypes(o);
    return json_pack("{s:s,s:s,s:s,s:s}", "gather", plan_dtypes[d.gather], "reduce",
                     plan_dtypes[d.reduce], "gradients", plan_dtypes[d.grad], "moments",
                     plan_dtypes[d.moment]);
}

static inline json_t *json_run(const Answer *a) {
    const PlanFailures *f = &a->failures;
    const Cluster *c = &a->q->cluster;
    double gpu_hours = a->run_seconds / 3600 * a->plan.config.fsdp.world;
    return json_pack("{s:f,s:f,s:b,s:f,s:f,s:f,s:f,s:{s:f,s:f,s:f,s:f,s:f}}", "tokens",
                     a->run_tokens, "steps", ceil(a->run_tokens / a->plan.tokens), "ends",
                     (int)a->ends, "days", a->run_seconds / 86400, "gpu_hours", gpu_hours, "cost",
                     gpu_hours * c->price, "mwh", gpu_hours * c->gpu.watts * 1e-6, "checkpoints",
                     "bytes", f->bytes, "seconds", f->writing, "minutes", f->minutes,
                     "hours_between_failures", f->between_failures / 3600, "lost", f->lost);
}

static inline void print_json(const Answer *a, const char *code) {
    const Plan *p = &a->plan;
    const GptConfig *c = &p->config;
    json_t *root = json_pack(
        "{s:s,s:I,s:s,s:o,s:o,s:i,s:i,s:i,s:i,s:i,s:I,s:I,s:I,s:o,s:o,s:o,s:o,s:o}", "model",
        a->q->options->model, "parameters", (json_int_t)p->parameters, "code", code, "cluster",
        json_cluster(&a->q->cluster), "dtypes", json_dtypes(a->q->options), "ranks", c->fsdp.world,
        "group", c->fsdp.K, "batch", c->B, "seq", c->T, "micro_steps", c->fsdp.micro_steps,
        "tokens_per_step", (json_int_t)p->tokens, "steps", (json_int_t)a->q->steps, "samples",
        (json_int_t)a->q->samples, "memory", json_memory(p), "step", json_step(a), "run",
        json_run(a), "changes", json_changes(a->q, &a->changes), "best",
        json_changes(a->q, &a->best));
    if (!root || json_dumpf(root, stdout, JSON_REAL_PRECISION(9)) != 0)
        die("cannot write the plan as JSON");
    printf("\n");
    json_decref(root);
}

// ---- what main calls ---------------------------------------------------------------------------

static inline Changes changes_room(int room) {
    Changes c = {(Change *)malloc_check((size_t)room * sizeof(Change)), 0, room};
    return c;
}

// trace: of the step, to this file; "": none. code: what will run, in words.
static inline void answer(const Question *q, const char *code) {
    const Options *o = q->options;
    Answer a = {};
    Conflict why = {};
    mallopt(M_MMAP_THRESHOLD,
            1 << 20);  // a Gpt's tables are mostly empty: zero pages of the system
    a.q = q;
    if (!plan_make(&a.plan, q, o, q->place.world, &why)) die_all("%s", why.text);
    a.changes = changes_room(6), a.best = changes_room(5);
    if (!a.plan.fits) changes_that_fit(&a.changes, q, &a.plan), changes_plan(&a.changes, q);
    if (o->plan == PLAN_BEST) best_plans(&a.best, q, &a.plan), changes_plan(&a.best, q);
    if (q->place.world > 1 && !q->cluster.cpu) a.hides = batch_that_hides(q, &a.plan);
    answer_run(&a);
    if (o->json)
        print_json(&a, code);
    else
        print_answer(&a, code);
    if (o->trace[0]) {
        int n = a.plan.config.fsdp.micro_steps, shown = n < PLAN_STEPS_MOST ? n : PLAN_STEPS_MOST;
        simulate_step(plan_code(&a.plan), &q->cluster, a.plan.config, shown, a.plan.cpu_workspace,
                      o->trace);
        if (!o->json) printf("\nwrote %s: %d of a step's %d micro-steps\n", o->trace, shown, n);
    }
    free(a.changes.list), free(a.best.list);
}
