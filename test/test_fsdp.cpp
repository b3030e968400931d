// test/test_fsdp.cpp: the same training whatever the ranks, strategy, units, buffers,
// recomputation. Every case forks its ranks, trains a tiny GPT for ten steps and compares losses,
// norms and all of parameters, gradients, m and v with one unsharded rank that sees the same
// micro-batches.
#include "../checkpoint/parameters.h"
#include "common.h"

#include <initializer_list>
#include <math.h>
#include <sys/mman.h>

#include "../lib/clock.h"
#include "ranks.h"
#include "trace.h"

extern const GptCode gpt_fp32_generic, gpt_bf16_generic;

enum { STEPS = 10, ARRAYS = 4, MOST_RANKS = 8 };

typedef struct {
    int world, micro_steps, K;
    bool ordered, resident, local, bf16, bf16_reduce, bf16_grads;
    MomentType moments;
    int gather_slots, grad_slots, prefetch, unit, unit_k, recompute, recompute_k, L;
    bool train_only;    // no validation between the steps
    const char *trace;  // where rank 0 writes the timeline of the last step (rank_path)
    int64_t began;      // 0 of the traces
} Case;

typedef struct {
    double loss[STEPS], norm[STEPS], val[STEPS];
    FsdpCounters counters[MOST_RANKS];  // of the last step
    size_t allocated_late, allocated, in_table;
} Result;

static ModelConfig tiny_model(int L) {
    ModelConfig m = {};
    m.T = 7, m.L = L, m.NH = 3, m.C = 12;
    model_set_vocab(&m, 37);
    return m;
}

static GptConfig config_of(const Case *c, int rank) {
    GptConfig g = {};
    g.model = tiny_model(c->L);
    g.B = 2, g.T = 7, g.logits_rows = 5;
    g.unit = c->unit, g.unit_k = c->unit_k;
    g.recompute = c->recompute, g.recompute_k = c->recompute_k;
    FsdpConfig *f = &g.fsdp;
    f->rank = rank, f->world = c->world, f->K = c->K, f->micro_steps = c->micro_steps;
    f->ordered = c->ordered, f->resident = c->resident, f->local = c->local;
    f->bf16_reduce = c->bf16_reduce, f->bf16_grads = c->bf16_grads, f->moments = c->moments;
    f->gather_slots = c->gather_slots, f->grad_slots = c->grad_slots, f->prefetch = c->prefetch;
    return g;
}

static void fill_batch(int *inputs, uint64_t batch) {
    for (uint64_t i = 0; i < 14; i++) {
        inputs[i] = (int)(rng_mix(batch * 15 + i + 1) % 37);
        inputs[14 + i] = (int)(rng_mix(batch * 15 + i + 2) % 37);
    }
}

static void array_path(char *path, const char *name, int array) {
    snprintf(path, 128, "%s/%s.%d", folder, name, array);
}

// One rank of a case, in its own process.
static void run_rank(const Case *c, int rank, ncclUniqueId id, Result *out, const char *name) {
    const GptCode *code = c->bf16 ? &gpt_bf16_generic : &gpt_fp32_generic;
    GptConfig config = config_of(c, rank);
    Gpt *g = code->create(&config);
    code->join(g, id);
    code->start(g);
    Model model = {code, g, &config};
    parameters_init(&model, 7);
    size_t allocations = 0;
    for (long step = 0; step < STEPS; step++) {
        process.step = step;
        if (step == 1) allocations = cpu_allocation_count();
        if (c->trace && step == STEPS - 1) {
            if (rank == 1) usleep(30 * 1000);  // the others begin long before it
            code->trace_start(g, c->began);
        }
        for (int m = 0; m < c->micro_steps; m++) {
            fill_batch(code->inputs(g, m),
                       (uint64_t)((step * c->micro_steps + m) * c->world + rank));
            code->micro_step(g, m);
        }
        GptUpdate u = {1e-2f * (float)(step + 1) / STEPS,
                       0.9f,
                       0.95f,
                       1e-8f,
                       0.1f,
                       0.5f,
                       step,
                       3,
                       false,
                       false};
        code->update(g, &u);
        GptStep s = code->finish_step(g, 0);
        if (c->trace && step == STEPS - 1) {
            char path[PATH_BYTES];
            rank_path(path, c->trace, rank);
            code->trace_stop(g, path);
        }
        double loss[2 * MOST_RANKS] = {0}, tokens[2 * MOST_RANKS] = {1, 1};
        fill_batch(code->inputs(g, 0), 1000);
        if (!c->train_only) code->evaluate(g, 7, loss, tokens);
        out->counters[rank] = s.counters;
        if (rank == 0)
            out->loss[step] = s.loss, out->norm[step] = s.norm,
            out->val[step] = (loss[0] + loss[1]) / (tokens[0] + tokens[1]);
    }
    out->allocated_late = cpu_allocation_count() - allocations;
    out->allocated = cpu_allocated_bytes();
    out->in_table =
        buffers_bytes(code->buffers(g), NULL) - buffers_bytes(code->buffers(g), BUFFER_HOST);
    for (int a = 0; a < ARRAYS; a++) {
        char path[128];
        array_path(path, name, a);
        model_file_save(&model, (GptArray)a, path, false);
    }
    code->finish(g);
}

static void describe(const Case *c, char *text, size_t room) {
    snprintf(text, room,
             "ranks %d, micro-steps %d, K %d, %s%s%s%s%s%s, moments %d, gather slots %d, grad "
             "slots %d, prefetch %d, unit "
             "%d:%d, recompute %d:%d, L %d",
             c->world, c->micro_steps, c->K, c->ordered ? "ordered" : "fast",
             c->resident ? ", resident" : "", c->local ? ", local" : "", c->bf16 ? ", bf16" : "",
             c->bf16_reduce ? ", bf16 reduce" : "", c->bf16_grads ? ", bf16 gradients" : "",
             c->moments, c->gather_slots, c->grad_slots, c->prefetch, c->unit, c->unit_k,
             c->recompute, c->recompute_k, c->L);
}

static void run_case(const Case *c, const char *name, Result *result) {
    Result *shared = (Result *)mmap(NULL, sizeof(Result), PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bool failed =
        on_ranks(c->world, [&](int rank, ncclUniqueId id) { run_rank(c, rank, id, shared, name); });
    *result = *shared;
    munmap(shared, sizeof(Result));
    char text[512];
    describe(c, text, sizeof text);
    if (failed) fail_msg("a rank failed: %s", text);
}

// The unsharded single rank that sees the same micro-batches. Kept: many cases share one.
static const Result *reference_of(const Case *c, char *name) {
    static struct {
        bool made;
        Result result;
    } made[64][2][2][2][3][6];
    Case r = {};
    r.world = 1, r.micro_steps = c->world * c->micro_steps, r.K = 1, r.ordered = true;
    r.bf16 = c->bf16, r.bf16_reduce = c->bf16_reduce, r.bf16_grads = c->bf16_grads,
    r.moments = c->moments;
    r.gather_slots = 2, r.grad_slots = 2, r.prefetch = 1, r.unit = UNIT_LAYER, r.L = c->L;
    sprintf(name, "reference-%d-%d-%d-%d-%d-%d", r.micro_steps, r.bf16, r.bf16_reduce, r.bf16_grads,
            r.moments, r.L);
    auto *slot = &made[r.micro_steps][r.bf16][r.bf16_reduce][r.bf16_grads][r.moments][r.L];
    if (!slot->made) run_case(&r, name, &slot->result);
    slot->made = true;
    return &slot->result;
}

static float *read_array(const char *name, int array, size_t *n) {
    char path[128];
    array_path(path, name, array);
    int fd = open_check(path, O_RDONLY);
    size_t bytes = (size_t)file_size(fd, path) - 1024;
    float *data = (float *)malloc_check(bytes);
    read_exact(fd, data, bytes, 1024, path);
    close(fd);
    *n = bytes / sizeof(float);
    return data;
}

static void compare_arrays(const char *name, const char *reference, double tolerance,
                           const char *text) {
    for (int a = 0; a < ARRAYS; a++) {
        size_t n, m;
        float *x = read_array(name, a, &n), *y = read_array(reference, a, &m);
        assert_int_equal(n, m);
        double difference = 0, size = 0;
        for (size_t i = 0; i < n; i++) {
            if (tolerance == 0 && memcmp(&x[i], &y[i], sizeof *x) && !(x[i] == 0 && y[i] == 0))
                fail_msg("array %d, element %zu: expected %.9g, found %.9g: %s", a, i, (double)y[i],
                         (double)x[i], text);
            difference += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
            size += (double)y[i] * y[i];
        }
        if (!(sqrt(difference) <= tolerance * sqrt(size)))
            fail_msg("array %d: relative difference %g, expected at most %g: %s", a,
                     sqrt(difference / size), tolerance, text);
        free(x);
        free(y);
    }
}

static void compare_numbers(const char *what, const double *x, const double *y, double tolerance,
                            const char *text) {
    for (int i = 0; i < STEPS; i++)
        if (!(fabs(x[i] - y[i]) <= tolerance * fabs(y[i])))
            fail_msg("%s of step %d: expected %.17g, found %.17g: %s", what, i, y[i], x[i], text);
}

// Tolerance 0: the same bits.
static void check(const Case *c, double tolerance) {
    char text[512], reference_name[64];
    Result result;
    describe(c, text, sizeof text);
    const Result *reference = reference_of(c, reference_name);
    run_case(c, "case", &result);
    compare_numbers("loss", result.loss, reference->loss, tolerance, text);
    compare_numbers("norm", result.norm, reference->norm, tolerance, text);
    compare_numbers("validation", result.val, reference->val, tolerance, text);
    compare_arrays("case", reference_name, 10 * tolerance, text);
    if (result.allocated != result.in_table)
        fail_msg("%zu bytes allocated, %zu in the table: %s", result.allocated, result.in_table,
                 text);
    if (result.allocated_late)
        fail_msg("%zu allocations after step 1: %s", result.allocated_late, text);
}

// Case i of a walk through all settings: ranks, strategies and units in full, the rest in turn.
static Case case_number(int i) {
    static const int worlds[] = {1, 2, 3, 4, 5, 8};
    int world = worlds[i % 6], strategy = i / 6 % 5, unit = i / 30 % 4, mix = i * 7 + i / 6;
    Case c = {};
    c.world = world;
    c.micro_steps = 1 + mix % 3;
    c.K = strategy == 3 ? 1 : strategy == 4 && world % 2 == 0 ? 2 : world;
    c.resident = strategy == 1 || strategy == 2;
    c.gather_slots = 1 + mix / 3 % 3;
    c.prefetch = mix / 2 % c.gather_slots;
    c.grad_slots = 1 + mix / 5 % 2;
    c.unit = unit, c.unit_k = 2;
    c.recompute = mix / 4 % 5, c.recompute_k = 2;
    c.L = 3;
    return c;
}

static void every_strategy_gives_the_bits_of_one_unsharded_rank(void **) {
    for (int i = 0; i < 120; i++) {
        Case c = case_number(i);
        c.ordered = true;
        check(&c, 0);
    }
}

static void every_dtype_gives_the_bits_of_one_rank(void **) {
    for (int i = 0; i < 60; i++) {
        Case c = case_number(2 * i + 1);
        c.ordered = true;
        c.bf16 = i % 4 != 0;
        c.bf16_reduce = i % 3 == 0;
        c.bf16_grads = i % 5 == 0;
        c.moments = (MomentType)(i % 3);
        check(&c, 0);
    }
}

static void fast_sums_agree_with_one_rank(void **) {
    for (int i = 0; i < 60; i++) {
        Case c = case_number(2 * i);
        c.local = c.K > 1 && i / 15 % 2 == 0;
        check(&c, 1e-6);
    }
}

// ZeRO-3 on four ranks, a block a unit, two gather slots.
static Case plain_case(void) {
    Case c = {};
    c.world = c.K = 4, c.micro_steps = 1, c.gather_slots = 2, c.grad_slots = 2, c.prefetch = 1;
    c.unit = UNIT_LAYER, c.L = 4;
    c.train_only = true;
    return c;
}

static size_t padded(size_t elements, size_t to) {
    return (elements + to - 1) / to * to;
}

static void traffic_is_what_the_schedule_says(void **) {
    Case c = plain_case();
    Result r;
    run_case(&c, "traffic", &r);
    const size_t sizes[] = {12, 12, 36 * 12, 36, 12 * 12, 12, 12, 12, 48 * 12, 48, 12 * 48, 12};
    size_t block = 0, quantum = 4 * 32;
    for (size_t s : sizes) block += padded(s, 32);
    block = padded(block, quantum);
    size_t embedding = padded(128 * 12 + padded(7 * 12, 32), quantum), norm = padded(64, quantum);
    // Three quarters of a unit come from the others. Each block is gathered for the forward;
    // at the turn the last two are still there, so the backward gathers two of four. The tied
    // embedding is reduced twice.
    double gathered = (double)(embedding + norm + (4 + 2) * block) * sizeof(float) * 3 / 4;
    double reduced = (double)(2 * embedding + norm + 4 * block) * sizeof(float) * 3 / 4;
    for (int rank = 0; rank < 4; rank++) {
        assert_true(r.counters[rank].gathered_bytes == gathered);
        assert_true(r.counters[rank].reduced_bytes == reduced);
        assert_true(r.counters[rank].allreduced_bytes == 3 * sizeof(double));
        assert_int_equal(r.counters[rank].collectives, 2 + 6 + 2 + 1 + 4 + 1);
    }
}

// The order in which a step's work is issued, one line a span.
static void issued_order(bool ordered, char *order, size_t room) {
    char path[128], line[512];
    snprintf(path, sizeof path, "%s/trace.json", folder);
    Case c = plain_case();
    c.trace = path, c.began = clock_ns(), c.ordered = ordered;
    Result r;
    run_case(&c, "traced", &r);
    FILE *f = fopen_check(path, "r");
    for (order[0] = 0; fgets(line, sizeof line, f);) {
        char name[64];
        int lane;
        if (sscanf(line, "{\"name\":\"%63[^\"]\",\"ph\":\"X\",\"pid\":0,\"tid\":%d", name, &lane) !=
            2)
            continue;
        static const char *const lanes[] = {"compute", "gather ", "reduce ", "messages"};
        snprintf(order + strlen(order), room - strlen(order), "%s  %s\n", lanes[lane], name);
    }
    fclose(f);
}

// Against a file that a human has read; with ordered sums each reduction has its messages besides.
static void a_step_is_issued_in_the_order_on_record(void **) {
    char line[512], unit[64], found[8192];
    for (bool ordered : {false, true}) {
        char expected[8192] = "";
        FILE *f = fopen_check("test/reference/step_order.txt", "r");
        while (fgets(line, sizeof line, f)) {
            strcat(expected, line);
            if (!ordered || sscanf(line, "reduce   reduce %63[^\n]", unit) != 1) continue;
            snprintf(line, sizeof line, "messages  exchange %s\n", unit);
            strcat(expected, line);
        }
        fclose(f);
        issued_order(ordered, found, sizeof found);
        assert_string_equal(found, expected);
    }
}

static void a_rank_that_comes_late_is_late_in_its_trace(void **) {
    char path[128];
    snprintf(path, sizeof path, "%s/late.json", folder);
    Case c = plain_case();
    c.trace = path, c.began = clock_ns();
    Result r;
    run_case(&c, "late", &r);
    check_traces(path);
}

int main(void) {
    omp_set_num_threads(1);  // ranks are forked, threads would not be
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_gives_the_bits_of_one_unsharded_rank),
        cmocka_unit_test(every_dtype_gives_the_bits_of_one_rank),
        cmocka_unit_test(fast_sums_agree_with_one_rank),
        cmocka_unit_test(traffic_is_what_the_schedule_says),
        cmocka_unit_test(a_step_is_issued_in_the_order_on_record),
        cmocka_unit_test(a_rank_that_comes_late_is_late_in_its_trace),
    };
    return run_in_folder(tests);
}
