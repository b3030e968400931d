// plan/search.h: other options than those given, found by planning them: the cheapest changes with
// which a run fits, the micro-batch from which communication hides, and --plan best.
#pragma once

#include "plan.h"

enum { CHANGE_TEXT = 200 };

// Options in place of the given ones, and what they come to.
typedef struct {
    char text[CHANGE_TEXT];  // " --unit half --batch 1"
    Options options;
    int world;
    Plan plan;
} Change;

typedef struct {
    Change *list;  // sorted: the shortest time of a token first
    int count, room;
} Changes;

static inline double token_seconds(const Plan *p) {
    return p->step.seconds / p->tokens * p->config.fsdp.world;
}

#define AS_FAST 2e-3

static inline void changes_keep(Changes *c, const Change *x) {
    for (int i = 0; i < c->count; i++) {
        const Plan *other = &c->list[i].plan;
        double ratio = token_seconds(&x->plan) / token_seconds(other);
        // Of two that are as fast the smaller one is enough.
        if (strcmp(c->list[i].text, x->text) && fabs(ratio - 1) > AS_FAST) continue;
        if (x->plan.memory.used >= other->memory.used) return;
        c->count--;
        memmove(&c->list[i], &c->list[i + 1], (size_t)(c->count - i) * sizeof *x);
        i--;
    }
    int at = c->count;
    while (at > 0 && token_seconds(&x->plan) < token_seconds(&c->list[at - 1].plan)) at--;
    if (at == c->room) return;
    if (c->count < c->room) c->count++;
    memmove(&c->list[at + 1], &c->list[at], (size_t)(c->count - 1 - at) * sizeof *x);
    c->list[at] = *x;
}

// Sets an option. The tokens of a step stay what they are.
static inline bool change_set(Change *x, const char *name, const char *value) {
    char now[64];
    const Option *row = option_find(name);
    option_print_value(&x->options, row, now, sizeof now);
    if (!strcmp(now, value)) return false;
    size_t used = strlen(x->text);
    snprintf(x->text + used, sizeof x->text - used, " --%s %s", name, value);
    if (!strcmp(name, "ranks")) x->world = atoi(value);
    return option_set(&x->options, row, value);
}

#define ROOM (1024. * 1024 * 1024)  // bytes that what is proposed leaves free

// Does it fit with some room? Only then its time is known, and only roughly.
static inline bool change_fits(Change *x, const Question *q) {
    const Memory *m = &x->plan.memory;
    return plan_try(&x->plan, q, &x->options, x->world) && x->plan.fits &&
           (q->cluster.cpu || m->used + ROOM < m->usable);
}

// Says the tokens of a step where without it the command would take others.
static inline void change_tell_tokens(Change *x, const Question *q) {
    const GptConfig *c = &x->plan.config;
    uint64_t tokens = (uint64_t)x->plan.tokens, told = q->options->tokens_per_step;
    uint64_t micro = (uint64_t)c->B * (uint64_t)c->T * (uint64_t)x->world;
    size_t used = strlen(x->text);
    if (tokens != (told ? told : micro))
        snprintf(x->text + used, sizeof x->text - used, " --tokens-per-step %llu",
                 (unsigned long long)tokens);
}

// The real plans of those that are kept.
static inline void changes_plan(Changes *c, const Question *q) {
    Changes sorted = {(Change *)malloc_check((size_t)c->room * sizeof(Change)), 0, c->room};
    Conflict why;
    for (int i = 0; i < c->count; i++) {
        Change *x = &c->list[i];
        if (!plan_make(&x->plan, q, &x->options, x->world, &why)) continue;
        change_tell_tokens(x, q);
        changes_keep(&sorted, x);
    }
    free(c->list);
    *c = sorted;
}

// ---- what may be changed -----------------------------------------------------------------------

// Values that take less memory than those in front of them.
enum { SAVER_VALUES = 4, SINGLES_MOST = 48 };
typedef struct {
    const char *option, *values[SAVER_VALUES];
} MemorySaver;
static const MemorySaver savers[] = {{"gather-buffers", {"1"}},
                                     {"grad-buffers", {"1"}},
                                     {"unit", {"half", "matrix"}},
                                     {"logits-rows", {"4096", "1024", "512"}},
                                     {"recompute", {"gelu", "norm", "layer"}},
                                     {"shard", {"full"}}};
// These change what is trained.
static const MemorySaver number_savers[] = {
    {"reduce-dtype", {"bf16"}}, {"moment-dtype", {"fp32", "bf16"}}, {"grad-dtype", {"bf16"}}};
enum { SAVERS = sizeof savers / sizeof savers[0], NUMBER_SAVERS = 3 };

// The given options, in steps of as many tokens.
static inline Change unchanged(const Question *q, const Plan *base) {
    Change none = {};
    none.options = *q->options, none.world = q->place.world;
    none.options.tokens_per_step = (uint64_t)base->tokens;
    return none;
}

// The given options with one value each of a table: as many changes as returned, not yet planned.
static inline int table_changes(const Change *none, const MemorySaver *table, int rows,
                                Change *to) {
    int n = 0;
    for (int i = 0; i < rows; i++)
        for (int k = 0; k < SAVER_VALUES && table[i].values[k]; k++) {
            to[n] = *none;
            n += change_set(&to[n], table[i].option, table[i].values[k]);
        }
    return n;
}

// The same of all options that keep the numbers and the ranks.
static inline int single_changes(const Question *q, const Plan *base, Change *to) {
    const Change none = unchanged(q, base);
    int n = table_changes(&none, savers, SAVERS, to);
    char value[16];
    for (int B = base->config.B / 2; B > 0; B /= 2) {
        snprintf(value, sizeof value, "%d", B);
        to[n] = none;
        n += change_set(&to[n], "batch", value);
    }
    return n;
}

// Adds the options of b that a does not have already.
static inline bool change_both(Change *to, const Change *a, const Change *b) {
    char text[CHANGE_TEXT], *rest = text;
    *to = *a;
    snprintf(text, sizeof text, "%s", b->text);
    char *name = strtok_r(text, " ", &rest), *value = strtok_r(NULL, " ", &rest);
    if (!name || !value || strstr(to->text, name)) return false;
    return change_set(to, name + 2, value);
}

// ---- the micro-batch from which communication hides --------------------------------------------

#define HIDDEN_BELOW 0.03  // of the step is spent on communication alone
enum { HIDES_MOST = 256 };

// Does it hide with so many sequences in a step of one micro-step?
static inline bool batch_hides(const Question *q, const Plan *base, int batch) {
    Options o = *q->options;
    Conflict why;
    Plan p;
    o.batch = batch;
    o.tokens_per_step = (uint64_t)batch * (uint64_t)base->config.T * (uint64_t)q->place.world;
    if (!plan_settle(&p, q, &o, q->place.world, &why)) return false;
    p.step = simulate_step(plan_code(&p), &q->cluster, p.config, 1, p.cpu_workspace, NULL);
    return p.step.times.communicating < HIDDEN_BELOW * p.step.seconds;
}

// 0: none. The more sequences, the more there is to hide behind.
static inline int batch_that_hides(const Question *q, const Plan *base) {
    if (batch_hides(q, base, 1)) return 1;
    if (!batch_hides(q, base, HIDES_MOST)) return 0;
    int no = 1, yes = HIDES_MOST;
    while (yes - no > 1) {
        int middle = (no + yes) / 2;
        *(batch_hides(q, base, middle) ? &yes : &no) = middle;
    }
    return yes;
}

// ---- --plan best -------------------------------------------------------------------------------

// What is tried. Numbers stay as they are: they change what is trained. All of `grid` together,
// then from the best of them option by option.
typedef struct {
    const char *option, *values[12];
} Choice;
enum { CHOICE_VALUES = 12, BEST_ROUNDS = 2 };
static const Choice grid[] = {{"shard", {"full", "hybrid:node", "grads", "states", "none"}},
                              {"recompute", {"none", "gelu", "norm", "layer"}},
                              {"unit", {"layer", "matrix"}},
                              {"gather-buffers", {"1", "2"}},
                              {"grad-buffers", {"1", "2"}}};
static const Choice climb[] = {
    {"batch", {"1", "2", "3", "4", "6", "8", "12", "16", "24", "32", "64"}},
    {"recompute", {"none", "gelu", "norm", "layer"}},
    {"unit", {"layer", "half", "matrix", "layers:2", "layers:4"}},
    {"gather-buffers", {"1", "2", "3"}},
    {"grad-buffers", {"1", "2"}},
    {"logits-rows", {"512", "4096", "16384"}}};
enum { GRID = sizeof grid / sizeof grid[0], CLIMB = sizeof climb / sizeof climb[0] };

// x with one option changed; its text becomes all that differs from the question's options.
static inline bool change_again(Change *to, const Question *q, const Change *x, const char *name,
                                const char *value) {
    static const char *const tried[] = {"shard",          "batch",        "recompute",  "unit",
                                        "gather-buffers", "grad-buffers", "logits-rows"};
    Options changed = x->options;
    if (!option_set(&changed, option_find(name), value)) return false;
    *to = (Change){};
    to->options = *q->options, to->world = x->world;
    to->options.tokens_per_step = x->options.tokens_per_step;
    for (size_t i = 0; i < sizeof tried / sizeof tried[0]; i++) {
        char now[64];
        option_print_value(&changed, option_find(tried[i]), now, sizeof now);
        change_set(to, tried[i], now);
    }
    char ranks[16];
    snprintf(ranks, sizeof ranks, "%d", x->world);
    return x->world == q->place.world || change_set(to, "ranks", ranks);
}

static inline void best_of_grid(Changes *starts, const Question *q, const Change *from, int depth) {
    Change x;
    for (int k = 0; k < CHOICE_VALUES && grid[depth].values[k]; k++) {
        if (!change_again(&x, q, from, grid[depth].option, grid[depth].values[k])) continue;
        if (depth + 1 < GRID)
            best_of_grid(starts, q, &x, depth + 1);
        else if (change_fits(&x, q))
            changes_keep(starts, &x);
    }
}

static inline void best_from(Changes *out, const Question *q, Change at) {
    Change x;
    for (int round = 0; round < BEST_ROUNDS; round++)
        for (int i = 0; i < CLIMB; i++)
            for (int k = 0; k < CHOICE_VALUES && climb[i].values[k]; k++) {
                if (!change_again(&x, q, &at, climb[i].option, climb[i].values[k])) continue;
                if (!change_fits(&x, q)) continue;
                changes_keep(out, &x);
                if (token_seconds(&x.plan) < token_seconds(&at.plan)) at = x;
            }
}

// The best of the grid with the given micro-batch, half of it, and one sequence, with few rows of
// logits where it does not fit else; and from each of these the climb.
static inline void best_plans(Changes *out, const Question *q, const Plan *base) {
    const int B = base->config.B, batches[] = {B, (B + 1) / 2, 1};
    for (int i = 0; i < 3; i++) {
        if (i > 0 && batches[i] == batches[i - 1]) continue;
        Change start, from = unchanged(q, base);
        Changes grid_best = {&start, 0, 1};
        from.options.batch = batches[i];
        best_of_grid(&grid_best, q, &from, 0);
        from.options.logits_rows = 512;
        if (grid_best.count == 0) best_of_grid(&grid_best, q, &from, 0);
        if (grid_best.count == 0) continue;
        changes_keep(out, &start);
        best_from(out, q, start);
    }
}

// ---- what would make it fit --------------------------------------------------------------------

// The least memory that so many ranks do with, in steps of so many tokens; 0: of one micro-step.
static inline Change least_change(const Question *q, int world, uint64_t tokens) {
    char value[16];
    Change x = {};
    x.options = *q->options, x.world = q->place.world;
    x.options.tokens_per_step = tokens;
    snprintf(value, sizeof value, "%d", world);
    if (world != x.world) change_set(&x, "ranks", value);
    change_set(&x, "batch", "1"), change_set(&x, "unit", "matrix");
    change_set(&x, "gather-buffers", "1"), change_set(&x, "grad-buffers", "1");
    change_set(&x, "recompute", "layer"), change_set(&x, "logits-rows", "512");
    change_set(&x, "shard", "full");
    return x;
}

// The least that fits on so many ranks, and from there less of it as far as it goes.
static inline void least_that_fits(Changes *out, const Question *q, const Plan *base, int world) {
    Change x = least_change(q, world, (uint64_t)base->tokens);
    if (!change_fits(&x, q)) x = least_change(q, world, 0);
    if (!change_fits(&x, q)) return;
    changes_keep(out, &x);
    best_from(out, q, x);
}

// On the given ranks and with the given numbers: single changes, or else pairs, or else the least.
static inline void changes_that_keep(Changes *out, const Question *q, const Plan *base) {
    Change *singles = (Change *)calloc(SINGLES_MOST, sizeof *singles), x;
    if (!singles) die("out of memory for the plan's changes");
    int n = single_changes(q, base, singles);
    for (int i = 0; i < n; i++)
        if (change_fits(&singles[i], q)) changes_keep(out, &singles[i]);
    for (int i = 0; i < n && out->count == 0; i++)
        for (int k = 0; k < i; k++)
            if (change_both(&x, &singles[k], &singles[i]) && change_fits(&x, q))
                changes_keep(out, &x);
    free(singles);
    if (out->count == 0) least_that_fits(out, q, base, q->place.world);
}

// On more ranks: as many as it takes if nothing else changes, or else with the least, and then on
// twice as many.
static inline void changes_of_ranks(Changes *out, const Question *q, const Plan *base) {
    int most = 4096;
    bool found = false;
    for (int world = 2 * q->place.world; world <= most && !found; world *= 2) {
        char value[16];
        Change x = unchanged(q, base);
        snprintf(value, sizeof value, "%d", world);
        found = change_set(&x, "ranks", value) && change_fits(&x, q);
        if (found) changes_keep(out, &x);
    }
    for (int world = 2 * q->place.world; world <= most && !found; world *= 2) {
        if (out->count > 0) most = world;  // the last
        least_that_fits(out, q, base, world);
    }
}

// Changes with which the run fits. On CPUs the machine, and so the ranks, stay as they are.
static inline void changes_that_fit(Changes *out, const Question *q, const Plan *base) {
    Change numbers[NUMBER_SAVERS * SAVER_VALUES], none = unchanged(q, base), more;
    Changes one = {&more, 0, 1};
    changes_that_keep(out, q, base);
    int n = table_changes(&none, number_savers, NUMBER_SAVERS, numbers);
    for (int i = 0; i < n; i++)
        if (change_fits(&numbers[i], q)) changes_keep(out, &numbers[i]);
    if (q->cluster.cpu) return;
    changes_of_ranks(out->count ? &one : out, q, base);
    if (one.count) changes_keep(out, &more);
}
