// test/test_plan.cpp: --plan against what runs do. Tiny models train on forked ranks under every
// strategy; the plan's buffers, bytes on the wire and schedule are compared with theirs, exactly.
// Then the figures of published models, what is refused, and how the answer looks.
#include "../lib/clock.h"
#include "../plan/search.h"
#include "ranks.h"
#include "run.h"

#include <initializer_list>
#include <jansson.h>
#include <sys/mman.h>

extern const GptCode gpt_fp32_generic, gpt_bf16_generic;

// ---- tiny runs ---------------------------------------------------------------------------------

typedef struct {
    const char *name, *options;
    int world;
} Case;

static const Case cases[] = {
    {"ZeRO-3", "", 2},
    {"ZeRO-3 on three ranks, fast sums", "--reduce fast", 3},
    {"one rank", "", 1},
    {"one rank, bf16", "--precision bf16", 1},
    {"matrices, bf16", "--unit matrix --precision bf16 --reduce fast", 2},
    {"halves, one buffer of each", "--unit half --gather-buffers 1 --grad-buffers 1", 2},
    {"two layers a unit", "--unit layers:2 --gather-buffers 3", 2},
    {"layers recomputed, bf16 on the wire", "--recompute layer --reduce-dtype bf16", 2},
    {"groups of two layers recomputed", "--recompute every:2 --precision bf16", 2},
    {"norms recomputed, bf16 gradients", "--recompute norm --grad-dtype bf16", 2},
    {"GELU recomputed, fp64 moments", "--recompute gelu --precision fp64-moments", 2},
    {"ZeRO-2", "--shard grads", 2},
    {"ZeRO-1, fast sums", "--shard states --reduce fast", 3},
    {"ZeRO-0", "--shard none", 2},
    {"ZeRO-0, fast sums", "--shard none --reduce fast", 2},
    {"groups of two", "--shard hybrid:2", 4},
    {"groups of two, fast sums", "--shard hybrid:2 --reduce fast", 4},
    {"groups of two of six, bf16", "--shard hybrid:2 --reduce fast --precision bf16", 6},
    {"local sums", "--accumulate local --reduce fast", 2},
};
enum { MOST_SPANS = 4096 };

// What a run of one rank came to.
typedef struct {
    FsdpCounters counters;  // of the second step
    size_t allocated;       // on the device
    size_t host;
} Facts;

static ModelConfig tiny_model(void) {
    ModelConfig m = {};
    m.T = 8, m.L = 5, m.NH = 3, m.C = 12;
    model_set_vocab(&m, 37);
    return m;
}

static Options options_of(const Case *c, int micro_steps) {
    Options o;
    char text[512], *words[32] = {(char *)"test"}, *rest = text;
    int n = 1;
    // Texts of options point into argv; these have none.
    snprintf(text, sizeof text, "--batch 2 --logits-rows 5 --tokens-per-step %d %s",
             micro_steps * 16 * c->world, c->options);
    for (char *w; (w = strtok_r(rest, " ", &rest));) words[n++] = w;
    options_parse(&o, n, words);
    return o;
}

static GptConfig config_of(const Case *c, const Options *o, int rank) {
    GptConfig g;
    Conflict why = {};
    ModelConfig m = tiny_model();
    Place place = {rank, c->world, c->world};
    if (!settle(&g, o, &m, place, &why)) fail_msg("%s: %s", c->name, why.text);
    return g;
}

static bool in_bf16(const Options *o) {
    return options_dtypes(o).gather == DTYPE_BF16;
}

static const GptCode *code_of(const Options *o) {
    return in_bf16(o) ? &gpt_bf16_generic : &gpt_fp32_generic;
}

// One rank of a real run, in its own process: two steps, the second traced.
static void run_rank(const Case *c, int micro_steps, int rank, ncclUniqueId id, Facts *facts,
                     const char *trace) {
    Options o = options_of(c, micro_steps);
    GptConfig config = config_of(c, &o, rank);
    const GptCode *code = code_of(&o);
    Gpt *g = code->create(&config);
    code->join(g, id);
    code->start(g);
    for (long step = 0; step < 2; step++) {
        if (step == 1) code->trace_start(g, clock_ns());
        for (int i = 0; i < micro_steps; i++) {
            for (int k = 0; k < 32; k++) code->inputs(g, i)[k] = k % 37;
            code->micro_step(g, i);
        }
        GptUpdate u = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, step, 3, false, false};
        code->update(g, &u);
        facts->counters = code->finish_step(g, 0).counters;
    }
    code->trace_stop(g, trace);
    facts->allocated = cpu_allocated_bytes();
    facts->host = buffers_bytes(code->buffers(g), BUFFER_HOST);
    code->finish(g);
}

// The facts of the rank that is planned.
static Facts run_case(const Case *c, int micro_steps, const char *trace) {
    Facts *shared = (Facts *)mmap(NULL, (size_t)c->world * sizeof *shared, PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bool failed = on_ranks(c->world, [&](int rank, ncclUniqueId id) {
        char path[256];
        snprintf(path, sizeof path, rank == plan_rank(c->world) ? "%s" : "%s.%d", trace, rank);
        run_rank(c, micro_steps, rank, id, &shared[rank], path);
    });
    Facts facts = shared[plan_rank(c->world)];
    munmap(shared, (size_t)c->world * sizeof *shared);
    if (failed) fail_msg("a rank failed: %s", c->name);
    return facts;
}

// Any machine: what is compared does not depend on it.
static Cluster some_cpu(const Case *c) {
    Cluster cpu = {};
    cpu.cpu = true;
    cpu.per_node = c->world;
    for (int i = 0; i < WORK_KINDS; i++) cpu.seconds[i] = 1e-11;
    return cpu;
}

static int one_thread(const Options *, int) {
    return 1;
}

static Question question_of(const Case *c, const Options *o, const Cluster *cluster) {
    static Buffers none;
    Question q = {};
    q.options = o, q.model = tiny_model(), q.place = (Place){0, c->world, c->world};
    q.cluster = *cluster, q.real = code_of(o), q.usable = 1e12, q.more = &none;
    q.threads = one_thread;
    return q;
}

// ---- planned bytes -----------------------------------------------------------------------------

static void planned_bytes_are_allocated_bytes(void **) {
    char trace[128];
    snprintf(trace, sizeof trace, "%s/bytes.json", folder);
    for (const Case &c : cases)
        for (int micro_steps : {1, 2}) {
            Options o = options_of(&c, micro_steps);
            if (o.accumulate == ACCUMULATE_LOCAL && micro_steps == 1) continue;
            Facts facts = run_case(&c, micro_steps, trace);
            Cluster cpu = some_cpu(&c);
            Question q = question_of(&c, &o, &cpu);
            Plan p;
            Conflict why;
            if (!plan_make(&p, &q, &o, c.world, &why)) fail_msg("%s: %s", c.name, why.text);
            if (p.memory.buffers != (double)facts.allocated || p.memory.host != (double)facts.host)
                fail_msg("%s, %d micro-steps: planned %.0f bytes and %.0f of the host, allocated "
                         "%zu and %zu",
                         c.name, micro_steps, p.memory.buffers, p.memory.host, facts.allocated,
                         facts.host);
        }
}

static void expect_same_traffic(const Case *c, int micro_steps, const PlanStep *s,
                                const FsdpCounters *f) {
    if (s->gathered != f->gathered_bytes || s->reduced != f->reduced_bytes ||
        s->allreduced != f->allreduced_bytes || s->collectives != (double)f->collectives)
        fail_msg("%s, %d micro-steps: planned %.0f gathered, %.0f reduced, %.0f all-reduced bytes "
                 "in %.0f collectives; counted %.0f, %.0f, %.0f in %ld",
                 c->name, micro_steps, s->gathered, s->reduced, s->allreduced, s->collectives,
                 f->gathered_bytes, f->reduced_bytes, f->allreduced_bytes, f->collectives);
}

// Six micro-steps are more than are simulated.
static void planned_bytes_on_the_wire_are_counted_bytes(void **) {
    char trace[128];
    snprintf(trace, sizeof trace, "%s/wire.json", folder);
    for (const Case &c : cases)
        for (int micro_steps : {1, 2, 6}) {
            Options o = options_of(&c, micro_steps);
            if (o.accumulate == ACCUMULATE_LOCAL && micro_steps == 1) continue;
            Facts facts = run_case(&c, micro_steps, trace);
            Cluster cpu = some_cpu(&c);
            GptConfig config = config_of(&c, &o, plan_rank(c.world));
            PlanStep s = plan_step(&cpu, &config, in_bf16(&o), 1 << 20);
            expect_same_traffic(&c, micro_steps, &s, &facts.counters);
        }
}

// ---- planned schedule --------------------------------------------------------------------------

// "stream name" of every span in the order in which they were issued, a line each.
static char *schedule_of(const char *path) {
    size_t bytes;
    char *text = NULL, line[512];
    FILE *f = fopen_check(path, "r"), *out = open_memstream(&text, &bytes);
    while (fgets(line, sizeof line, f)) {
        char name[64];
        int pid, stream;
        if (sscanf(line, "{\"name\":\"%63[^\"]\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d", name, &pid,
                   &stream) == 3)
            fprintf(out, "%d %s\n", stream, name);
    }
    fclose(f);
    fclose(out);
    return text;
}

static void planned_schedule_is_the_traced_schedule(void **) {
    char real[128], planned[128];
    snprintf(real, sizeof real, "%s/real.json", folder);
    snprintf(planned, sizeof planned, "%s/planned.json", folder);
    for (const Case &c : cases) {
        Options o = options_of(&c, 2);
        run_case(&c, 2, real);
        GptConfig config = config_of(&c, &o, plan_rank(c.world));
        const GptCode *code = in_bf16(&o) ? &gpt_plan_bf16 : &gpt_plan_fp32;
        const Cluster clusters[] = {some_cpu(&c), cluster_of_gpu(gpu_named("h100-sxm"))};
        char *expected = schedule_of(real);
        for (const Cluster &cluster : clusters) {
            simulate_step(code, &cluster, config, 2, 1 << 20, planned);
            char *found = schedule_of(planned);
            if (lines_of(expected) < 20 || strcmp(expected, found))
                fail_msg("%s on %s: the schedule of a run is\n%sthe plan's is\n%s", c.name,
                         cluster.cpu ? "a CPU" : "H100", expected, found);
            free(found);
        }
        free(expected);
    }
}

// On a GPU's streams things happen at the same time, and none before what it waits for.
static void a_planned_trace_overlaps_and_keeps_the_order(void **) {
    char path[128], line[512];
    snprintf(path, sizeof path, "%s/big.json", folder);
    GptConfig c = {};
    Conflict why;
    Options o;
    options_default(&o);
    ModelConfig m = model_parse("gpt3:c5120");
    model_set_vocab(&m, 50257);
    o.reduce = REDUCE_FAST;
    options_choose_numbers(&o, true);
    assert_true(settle(&c, &o, &m, (Place){1, 16, 8}, &why));
    Cluster cluster = cluster_of_gpu(gpu_named("a100-80gb"));
    PlanStep s = simulate_step(&gpt_plan_bf16, &cluster, c, 1, 0, path);
    assert_true(s.times.overlapped > 0.5 * (s.times.overlapped + s.times.communicating));
    double gathered[64] = {0};
    int checked = 0;
    FILE *f = fopen_check(path, "r");
    while (fgets(line, sizeof line, f)) {
        int block;
        double at, took;
        const char *times = strstr(line, "\"ts\":");
        if (!times || sscanf(times, "\"ts\":%lf,\"dur\":%lf", &at, &took) != 2) continue;
        if (sscanf(line, "{\"name\":\"gather block %d\"", &block) == 1)
            gathered[block] = at + took;
        else if (sscanf(line, "{\"name\":\"forward block %d\"", &block) == 1 && gathered[block]) {
            checked++;
            if (at < gathered[block] - 0.01)
                fail_msg("block %d computes at %.3f us, its gather ends at %.3f", block, at,
                         gathered[block]);
        }
    }
    fclose(f);
    assert_true(checked > 20);
}

// ---- the simulator -----------------------------------------------------------------------------

static void work_of_one_stream_waits_for_anothers_event(void **) {
    Sim s = {};
    sim_start(&s, false, 0);
    int a = sim_stream(&s), b = sim_stream(&s);
    sim_work(&s, b, SIM_COLLECTIVE, 3, 0);
    long ready = sim_record(&s, b, 0);
    sim_work(&s, a, SIM_KERNEL, 1, 0);
    sim_wait(&s, a, ready, 0);
    sim_work(&s, a, SIM_KERNEL, 2, 0);
    sim_synchronize(&s, a);
    assert_true(fabs(s.host - 5) < 1e-9);
    assert_true(fabs(s.times.overlapped - 1) < 1e-9);
    assert_true(fabs(s.times.communicating - 2) < 1e-9);
    assert_true(fabs(s.times.computing - 2) < 1e-9);
}

// As NCCL_LAUNCH_ORDER_IMPLICIT has them: the second stream is free, its collective waits.
static void collectives_begin_in_the_order_of_issue(void **) {
    Sim s = {};
    sim_start(&s, false, 0);
    int a = sim_stream(&s), b = sim_stream(&s);
    sim_work(&s, a, SIM_KERNEL, 5, 0);
    sim_work(&s, a, SIM_COLLECTIVE, 2, 0);
    sim_work(&s, b, SIM_COLLECTIVE, 3, 0);
    sim_synchronize(&s, b);
    assert_true(fabs(s.host - 10) < 1e-9);  // the two share the links
}

static void collectives_share_links_and_slow_kernels_down(void **) {
    Sim s = {};
    sim_start(&s, false, 0.25);
    int a = sim_stream(&s), b = sim_stream(&s), c = sim_stream(&s);
    sim_work(&s, a, SIM_KERNEL, 3, 0);
    sim_work(&s, b, SIM_COLLECTIVE, 2, 0);
    sim_work(&s, c, SIM_COLLECTIVE, 2, 0);
    sim_synchronize_all(&s);
    assert_true(fabs(s.now - 4) < 1e-9);
}

static void a_host_that_is_late_leaves_the_device_idle(void **) {
    Sim s = {};
    sim_start(&s, false, 0);
    int a = sim_stream(&s);
    for (int i = 0; i < 10; i++) sim_work(&s, a, SIM_KERNEL, 1, 2);
    sim_synchronize(&s, a);
    assert_true(fabs(s.now - 21) < 1e-9);
    assert_true(fabs(s.times.idle - 11) < 1e-9);
}

// ---- communicators and collectives -------------------------------------------------------------

// The world's is always there.
static void only_the_communicators_that_a_strategy_uses_are_made(void **) {
    static const struct {
        const char *options;
        int world, comms;
    } strategies[] = {{"", 8, 2},
                      {"--reduce fast", 8, 3},
                      {"--shard grads --reduce fast", 8, 3},
                      {"--shard none", 8, 1},
                      {"--shard none --reduce fast", 8, 2},
                      {"--shard hybrid:4", 8, 2},
                      {"--shard hybrid:4 --reduce fast", 8, 4},
                      {"--shard hybrid:2 --reduce fast", 4, 4},
                      {"", 1, 1},
                      {"--reduce fast", 1, 1}};
    for (auto &s : strategies) {
        Case c = {"", s.options, s.world};
        Options o = options_of(&c, 2);
        Cluster gpus = cluster_of_gpu(gpu_named("h100-sxm"));
        Question q = question_of(&c, &o, &gpus);
        Plan p;
        Conflict why;
        if (!plan_make(&p, &q, &o, c.world, &why)) fail_msg("%s: %s", s.options, why.text);
        if (plan_device.ncomms != s.comms)
            fail_msg("%s on %d ranks: expected %d communicators, found %d", s.options, s.world,
                     s.comms, plan_device.ncomms);
        FsdpConfig forward = p.config.fsdp;
        forward.forward_only = true;  // nothing is reduced
        FsdpCommRanks n = fsdp_comm_ranks(&forward);
        if (n.reduce || n.replicas)
            fail_msg("%s on %d ranks, forward only: expected no communicator of gradients, found "
                     "%d and %d ranks",
                     s.options, s.world, n.reduce, n.replicas);
    }
}

// Two groups of two: neighbours talk within a node of two, replicas between nodes.
static void neighbours_use_the_links_and_replicas_the_network(void **) {
    Case c = {"", "--shard hybrid:2 --reduce fast", 4};
    Options o = options_of(&c, 1);
    Cluster gpus = cluster_of_gpu(gpu_named("a100-80gb"));
    gpus.per_node = 2;
    Question q = question_of(&c, &o, &gpus);
    Plan p;
    Conflict why;
    assert_true(plan_make(&p, &q, &o, c.world, &why));
    const PlanComm *comms = plan_device.comms;  // world, gather, reduce, replicas
    const int nodes[] = {2, 1, 1, 2}, ranks[] = {4, 2, 2, 2}, sharing[] = {1, 1, 1, 2};
    assert_int_equal(plan_device.ncomms, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(comms[i].group.nodes, nodes[i]);
        assert_int_equal(comms[i].group.ranks, ranks[i]);
        assert_int_equal(comms[i].group.sharing, sharing[i]);
    }
}

// A large all-gather takes its bytes over the slowest link; a small one a latency a step.
static void collectives_take_bandwidth_or_latency(void **) {
    Cluster c = cluster_of_gpu(gpu_named("a100-80gb"));
    Group node = group_of(&c, 8, true, 64), all = group_of(&c, 64, true, 64);
    double bytes = 8e9, link = 7. / 8 * bytes / 235e9, network = 63. / 64 * bytes / 180e9;
    assert_true(fabs(collective_seconds(&c, GATHER, &node, bytes) / link - 1) < 0.01);
    assert_true(fabs(collective_seconds(&c, GATHER, &all, bytes) / network - 1) < 0.02);
    assert_true(fabs(collective_seconds(&c, ALL_REDUCE, &node, bytes) / link - 2) < 0.02);
    double small = collective_seconds(&c, GATHER, &all, 1024);
    double expected = 1e-6 * (3.6 + 56 * 0.47 + 7 * 2.7);  // NCCL's LL
    if (!(fabs(small - expected) < 1e-6))
        fail_msg("1 KB to 64 ranks: expected %.1f us, found %.1f", 1e6 * expected, 1e6 * small);
}

static void checkpoints_come_as_often_as_loses_least(void **) {
    for (double failures : {1e-4, 1e-3, 1e-1}) {
        Case c = {"", "--reduce fast", 8};
        Options o = options_of(&c, 1);
        o.failures = (float)failures;
        Cluster gpus = cluster_of_gpu(gpu_named("a100-80gb"));
        Question q = question_of(&c, &o, &gpus);
        q.model = model_parse("gpt3:c12288");
        model_set_vocab(&q.model, 50257);
        o.seq = 8;
        Plan p;
        Conflict why;
        assert_true(plan_make(&p, &q, &o, c.world, &why));
        PlanFailures x = plan_failures(&p, &q);
        double period = 60 * x.minutes;
        assert_true(fabs(x.bytes / 12 / (double)p.parameters - 1) < 1e-9);
        assert_true(period >= x.writing);
        assert_true(plan_lost(&x, 2 * period) > x.lost);
        assert_true(period < x.writing + 60 || plan_lost(&x, period / 2) > x.lost);
    }
}

// Attention in fp32 has no tensor cores.
static void fp32_is_slower_than_bf16_in_products_and_attention(void **) {
    double seconds[2][WORK_KINDS];
    for (int bf16 = 0; bf16 < 2; bf16++) {
        GptConfig c = {};
        Conflict why;
        Options o;
        options_default(&o);
        options_choose_numbers(&o, true);
        ModelConfig m = model_parse("gpt2:d12");
        model_set_vocab(&m, 50257);
        assert_true(settle(&c, &o, &m, (Place){0, 1, 1}, &why));
        Cluster cluster = cluster_of_gpu(gpu_named("a100-80gb"));
        PlanStep s = plan_step(&cluster, &c, bf16, 0);
        memcpy(seconds[bf16], s.work, sizeof s.work);
    }
    for (int i = 0; i <= WORK_ATTENTION_BACKWARD; i++)
        if (!(seconds[0][i] > 5 * seconds[1][i]))
            fail_msg("%s: fp32 %.2f ms, bf16 %.2f ms: expected at least five times as long",
                     work_names[i], 1e3 * seconds[0][i], 1e3 * seconds[1][i]);
}

// ---- published models --------------------------------------------------------------------------

static double number_in(const char *text, const char *key) {
    json_t *root = json_loads(text, 0, NULL), *at = root;
    char path[128], *rest = path;
    snprintf(path, sizeof path, "%s", key);
    for (char *word; (word = strtok_r(rest, ".", &rest));) at = json_object_get(at, word);
    if (!json_is_number(at)) fail_msg("expected a number %s in %s", key, text);
    double x = json_number_value(at);
    json_decref(root);
    return x;
}

// Bytes of the buffers whose "owner" or "name" is this.
static double buffers_in(const char *text, const char *key, const char *value) {
    json_t *root = json_loads(text, 0, NULL), *row;
    size_t i;
    double bytes = 0;
    json_array_foreach(json_object_get(json_object_get(root, "memory"), "rows"), i, row) {
        if (strcmp(json_string_value(json_object_get(row, key)), value)) continue;
        bytes += (double)json_integer_value(json_object_get(row, "bytes"));
    }
    json_decref(root);
    return bytes;
}

#define GPT3 PROGRAM " --plan --json --gpu a100-80gb --model gpt3:c12288 --reduce fast --batch 1 "

static void state_of_175B_is_what_arithmetic_says(void **) {
    static const struct {
        int ranks;
        const char *moments;
        double gigabytes;
    } published[] = {{64, "fp64", 65.5},
                     {64, "fp32", 43.7},
                     {128, "fp32", 21.8},
                     {256, "fp32", 10.9},
                     {512, "fp32", 5.46}};
    for (auto &x : published) {
        static Outcome o;
        o = run(GPT3 "--ranks %d --moment-dtype %s", x.ranks, x.moments);
        double found = buffers_in(o.out, "owner", "state") * 1e-9;
        if (!(fabs(found / x.gigabytes - 1) < 0.005))
            fail_msg("%d ranks, moments %s: expected %.1f GB of state, found %.2f", x.ranks,
                     x.moments, x.gigabytes, found);
    }
}

// Two blocks of 96 stay at the turn of a micro-step, and the embedding is gathered once a step.
static void traffic_of_175B_is_what_arithmetic_says(void **) {
    static const struct {
        const char *options;
        double terabytes;
    } published[] = {{"--precision bf16 --reduce-dtype bf16", 1.05},
                     {"--precision bf16", 1.40},
                     {"--precision fp32", 2.10}};
    for (auto &x : published) {
        double bytes[2];
        for (int more = 0; more < 2; more++) {
            static Outcome o;
            o = run(GPT3 "--ranks 64 --recompute layer --tokens-per-step %d %s",
                    64 * 2048 * (4 + more), x.options);
            bytes[more] =
                number_in(o.out, "step.gathered_bytes") + number_in(o.out, "step.reduced_bytes");
        }
        double found = (bytes[1] - bytes[0]) * 1e-12, expected = x.terabytes * 63 / 64;
        if (!(fabs(found / expected - 1) < 0.03))
            fail_msg("%s: expected %.3f TB a micro-step, found %.3f", x.options, expected, found);
    }
}

static void best_finds_a_configuration_of_175B_that_fits_80_GB_with_room(void **) {
    static Outcome o;
    o = run("%s",
            "scripts/gpt.sh 175B-64xA100 --unit layer --grad-buffers 2 --recompute none --plan "
            "best --json");
    json_t *root = json_loads(o.out, 0, NULL), *best = json_object_get(root, "best");
    double usable = number_in(o.out, "memory.usable");
    if (json_array_size(best) == 0) fail_msg("found none: %s%s", o.out, o.err);
    for (size_t i = 0; i < json_array_size(best); i++) {
        double used = json_number_value(json_object_get(json_array_get(best, i), "used"));
        if (!(used < usable - 1e9))
            fail_msg("expected 1 GB free, found %.0f of %.0f", used, usable);
    }
    assert_true(number_in(o.out, "memory.used") > usable);
    json_decref(root);
}

static void an_impossible_plan_says_what_would_be_needed(void **) {
    static Outcome o;
    o = run(PROGRAM " --plan --ranks 8 --gpu a100-40gb --model gpt3:c12288 --precision bf16");
    if (o.status != 0 || !strstr(o.out, "DOES NOT FIT") ||
        !strstr(o.out, "what would make it fit") || !strstr(o.out, "--ranks 128"))
        fail_msg("found: %s%s", o.out, o.err);
}

// ---- how it is asked and answered --------------------------------------------------------------

static void nonsensical_plans_end_in_one_line(void **) {
    static const struct {
        const char *options, *expected;
    } wrong[] = {
        {"--gpus-per-node 0", "--gpus-per-node 0: expected an integer from 1"},
        {"--price -2", "--price -2: expected a number from 0"},
        {"--network -1", "--network -1: expected a number from 0"},
        {"--gpu a1000", "--gpu a1000: expected one of a100-40gb, a100-80gb"},
        {"--tokens 0.5", "--tokens 0.5: expected an integer"},
        {"--plan worst", "--plan worst: expected no|yes|best"},
        {"--failures 25", "--failures 25: expected a number from 0 to 24"},
        {"--ranks 3 --shard hybrid:2", "expected a divisor of the 3 ranks"},
        {"--gpu h100-sxm --ranks 12 --shard hybrid:node",
         "8 ranks on this node do not divide 12 ranks"},
        {"--cluster /nowhere/cluster", "/nowhere/cluster"},
        {"--gpu h200 --cluster x", "--gpu h200 --cluster x: expected one of them"},
        {"--price 2", "--price: a plan for this machine has no GPUs"},
        {"--network 100", "--network: a plan for this machine has no GPUs"},
    };
    for (auto &w : wrong) {
        char command[256];
        snprintf(command, sizeof command, PROGRAM " --plan %s", w.options);
        expect_refusal(command, w.expected);
    }
}

static void clusters_of_ones_own_are_read_and_checked(void **) {
    char path[128], command[256];
    static Outcome o;
    snprintf(path, sizeof path, "%s/cluster", folder);
    static const struct {
        const char *text, *wrong;
    } files[] = {{"gpu = h100-sxm  # ours\n\nnetwork = 400\nprice = 3.5\n", NULL},
                 {"gpu = h101\n", "cluster:1: h101: expected one of"},
                 {"gpu = h200\nspeed = 3\n", "cluster:2: speed: expected one of gpu, memory"},
                 {"tensor = fast\n", "cluster:1: tensor = fast: expected a number above 0"},
                 {"tensor 3\n", "cluster:1: expected a line `name = value`"},
                 {"sustained = 7\n", "cluster:1: sustained = 7: expected from 0.001 to 1"},
                 {"link = 1e-300\n", "cluster:1: link = 1e-300: expected from 0.001 to"},
                 {"network = 800\ngpu = h200\n", "cluster:2: gpu: expected it before"}};
    for (auto &x : files) {
        FILE *f = fopen_check(path, "w");
        fputs(x.text, f);
        fclose(f);
        snprintf(command, sizeof command,
                 PROGRAM " --plan --ranks 16 --model gpt3:c2048 --cluster %s", path);
        if (x.wrong) {
            expect_refusal(command, x.wrong);
            continue;
        }
        o = run("%s", command);
        if (o.status != 0 || !strstr(o.out, "16 x h100-sxm, 8 a node, 400 Gbit/s") ||
            !strstr(o.out, "cost "))
            fail_msg("found: %s%s", o.out, o.err);
    }
}

static void a_plan_is_readable_in_80_columns(void **) {
    static const char *const commands[] = {
        "scripts/gpt.sh 175B-64xA100 --plan --price 2",
        "scripts/gpt.sh 175B --ranks 8 --plan best",
        PROGRAM " --plan --gpu h200 --ranks 8",
        PROGRAM " --plan --gpu h200 --ranks 1 --model gpt3:c12288",
        PROGRAM " --plan --failures 0 --gpu h100-sxm --ranks 64 --model gpt3:c12288",
        PROGRAM " --plan --ranks 2",
        PROGRAM
        " --plan --ranks 4096 --gpu rtx-4090 --network 25 --model gpt3:c12288 --reduce fast "
        "--shard hybrid:8",
    };
    for (const char *command : commands) {
        static Outcome o;
        o = run("%s", command);
        if (o.status != 0 || lines_of(o.out) < 30) fail_msg("%s: %s%s", command, o.out, o.err);
        for (char *line = strtok(o.out, "\n"); line; line = strtok(NULL, "\n"))
            if (strlen(line) > 80) fail_msg("%s: %zu columns: %s", command, strlen(line), line);
    }
}

// A plan's sums are those of the ranks that it proposes; and its command can be pasted.
static void what_is_proposed_is_what_it_would_be(void **) {
    static Outcome o, again;
    o = run(PROGRAM " --plan --json --gpu a100-40gb --ranks 8 --model gpt3:c12288");
    const char *ranks = strstr(o.out, "--ranks ");
    assert_int_equal(o.status, 0);
    assert_non_null(ranks);
    json_error_t e;
    json_t *answer = json_loads(o.out, 0, &e), *change = NULL;
    size_t i;
    bool found = false;
    json_array_foreach(json_object_get(answer, "changes"), i, change) {
        const char *options = json_string_value(json_object_get(change, "options"));
        again = run(PROGRAM " --plan --json --gpu a100-40gb --model gpt3:c12288 %s%s", options,
                    strstr(options, "--ranks") ? "" : " --ranks 8");
        json_t *plan = json_loads(again.out, 0, &e);
        double used = json_number_value(json_object_get(json_object_get(plan, "memory"), "used"));
        double told = json_number_value(json_object_get(change, "used"));
        double time = number_in(again.out, "step.seconds") /
                      number_in(again.out, "tokens_per_step") * number_in(again.out, "ranks");
        if (!(used > 0) || used != told)
            fail_msg("%s: %g bytes were told, planned are %g", options, told, used);
        if (fabs(time / json_number_value(json_object_get(change, "token_seconds")) - 1) > 1e-6)
            fail_msg("%s: planned are %g GPU-seconds a token", options, time);
        found = true;
        json_decref(plan);
    }
    assert_true(found);
    json_decref(answer);
    o = run(PROGRAM " --plan best --gpu h100-sxm --ranks 8 --prompt 'it'\\''s; $x'");
    if (!strstr(o.out, "--prompt 'it'\\''s; $x'")) fail_msg("%s%s", o.out, o.err);
}

// What keeps the numbers is proposed where there is such, and --plan best finds nothing slower.
static void the_best_is_no_slower_than_what_would_make_it_fit(void **) {
    static const char *const runs[] = {
        "--gpu a100-80gb --ranks 64 --model gpt3:c12288 --recompute layer --reduce fast "
        "--moment-dtype fp64",
        "--gpu a100-40gb --ranks 16 --model gpt3:c5120"};
    static Outcome o;
    for (const char *options : runs) {
        o = run(PROGRAM " --plan best --json --precision bf16 %s", options);
        json_t *answer = json_loads(o.out, 0, NULL), *change;
        json_t *best = json_array_get(json_object_get(answer, "best"), 0);
        double seconds = json_number_value(json_object_get(best, "token_seconds"));
        size_t i, kept = 0;
        json_array_foreach(json_object_get(answer, "changes"), i, change) {
            const char *text = json_string_value(json_object_get(change, "options"));
            if (strstr(text, "-dtype") || strstr(text, "--ranks")) continue;
            kept++;
            if (!(seconds <= 1.002 * json_number_value(json_object_get(change, "token_seconds"))))
                fail_msg("%s: %s is faster than the best", options, text);
        }
        if (!kept) fail_msg("%s: expected a change that keeps the numbers in %s", options, o.out);
        json_decref(answer);
    }
}

static void a_plan_for_cpus_is_for_this_machine(void **) {
    static Outcome o;
    o = run(PROGRAM " --plan --json --ranks 16");
    assert_true(number_in(o.out, "cluster.gpus_per_node") == 16);
    o = run(PROGRAM
            " --plan --json --model gpt3:c12288");  // does not fit: no other ranks are tried
    assert_int_equal(o.status, 0);
}

static void a_run_that_only_fails_never_ends(void **) {
    Outcome o = run(PROGRAM " --plan --gpu a100-80gb --ranks 1024 --model gpt3:c12288 "
                            "--precision bf16 --recompute layer --failures 2");
    if (!strstr(o.out, "IT DOES NOT GET TO THE END")) fail_msg("found: %s", o.out);
}

// On a GPU as many rows of logits are planned as a run there has.
static void logits_have_more_rows_on_gpus_than_on_cpus(void **) {
    static const struct {
        const char *options;
        int rows;
    } runs[] = {{"--gpu h100-sxm --batch 32", 16384},
                {"--gpu h100-sxm --batch 2", 2048},
                {"--gpu h100-sxm --batch 32 --logits-rows 100", 100},
                {"--batch 32", 512}};
    for (auto &x : runs) {
        Outcome o = run(PROGRAM " --plan --json --precision bf16 --model "
                                "gpt2:L=1,C=64,NH=2,T=1024,V=50257 %s",
                        x.options);
        double bytes = buffers_in(o.out, "name", "logits");
        if (bytes != x.rows * 50304. * 2)
            fail_msg("%s: expected %d rows of logits, found %g bytes", x.options, x.rows, bytes);
    }
}

static void under_mpirun_one_rank_answers(void **) {
    for (int rank = 0; rank < 2; rank++) {
        Outcome o = run("OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=%d " PROGRAM " --plan", rank);
        if (o.status != 0 || (lines_of(o.out) > 0) != (rank == 0) ||
            (rank == 0 && !strstr(o.out, "2 ranks")))
            fail_msg("rank %d of 2: %s%s", rank, o.out, o.err);
    }
}

// Needs neither the ranks nor the memory nor a second, and says the same to people and programs.
static void text_and_json_say_the_same(void **) {
    static Outcome text, json;
    const char *options = "--plan --gpu h100-sxm --ranks 1024 --model gpt3:c12288 --precision bf16 "
                          "--reduce fast --tokens 3e11 --price 2";
    text = run(PROGRAM " %s", options);
    json = run(PROGRAM " %s --json", options);
    static const struct {
        const char *key, *format;
        double unit;
    } same[] = {{"memory.used", "%sthe peak %27.3f", 1 / (1024. * 1024 * 1024)},
                {"step.tokens_per_second", "%s%.0f tokens/s", 1},
                {"cluster.network_gbits", "%s, %.0f Gbit/s a node", 1},
                {"cluster.gpus_per_node", "%s, %.0f a node", 1},
                {"run.days", "%s: %.2f days", 1},
                {"run.cost", "%scost %.0f", 1}};
    for (auto &s : same) {
        char expected[128];
        snprintf(expected, sizeof expected, s.format, "", number_in(json.out, s.key) * s.unit);
        if (!strstr(text.out, expected))
            fail_msg("%s: expected `%s` in %s", s.key, expected, text.out);
    }
}

// The room that ops need is for each thread; ranks of a machine share its threads.
static void on_cpus_the_ops_have_room_for_the_threads_of_a_rank(void **) {
    double bytes[2];
    for (int threads = 1; threads <= 2; threads++)
        bytes[threads - 1] = number_in(
            run(PROGRAM " --plan --json --ranks 2 --threads %d", threads).out, "memory.used");
    if (!(bytes[0] < bytes[1])) fail_msg("1 thread: %g bytes, 2 threads: %g", bytes[0], bytes[1]);
}

int main(void) {
    omp_set_num_threads(1);  // ranks are forked, threads would not be
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planned_bytes_are_allocated_bytes),
        cmocka_unit_test(planned_bytes_on_the_wire_are_counted_bytes),
        cmocka_unit_test(planned_schedule_is_the_traced_schedule),
        cmocka_unit_test(a_planned_trace_overlaps_and_keeps_the_order),
        cmocka_unit_test(work_of_one_stream_waits_for_anothers_event),
        cmocka_unit_test(collectives_begin_in_the_order_of_issue),
        cmocka_unit_test(collectives_share_links_and_slow_kernels_down),
        cmocka_unit_test(a_host_that_is_late_leaves_the_device_idle),
        cmocka_unit_test(only_the_communicators_that_a_strategy_uses_are_made),
        cmocka_unit_test(neighbours_use_the_links_and_replicas_the_network),
        cmocka_unit_test(collectives_take_bandwidth_or_latency),
        cmocka_unit_test(fp32_is_slower_than_bf16_in_products_and_attention),
        cmocka_unit_test(checkpoints_come_as_often_as_loses_least),
        cmocka_unit_test(state_of_175B_is_what_arithmetic_says),
        cmocka_unit_test(traffic_of_175B_is_what_arithmetic_says),
        cmocka_unit_test(best_finds_a_configuration_of_175B_that_fits_80_GB_with_room),
        cmocka_unit_test(an_impossible_plan_says_what_would_be_needed),
        cmocka_unit_test(nonsensical_plans_end_in_one_line),
        cmocka_unit_test(clusters_of_ones_own_are_read_and_checked),
        cmocka_unit_test(a_plan_is_readable_in_80_columns),
        cmocka_unit_test(what_is_proposed_is_what_it_would_be),
        cmocka_unit_test(the_best_is_no_slower_than_what_would_make_it_fit),
        cmocka_unit_test(a_plan_for_cpus_is_for_this_machine),
        cmocka_unit_test(a_run_that_only_fails_never_ends),
        cmocka_unit_test(logits_have_more_rows_on_gpus_than_on_cpus),
        cmocka_unit_test(under_mpirun_one_rank_answers),
        cmocka_unit_test(text_and_json_say_the_same),
        cmocka_unit_test(on_cpus_the_ops_have_room_for_the_threads_of_a_rank),
    };
    return run_in_folder(tests);
}
