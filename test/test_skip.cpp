// test/test_skip.cpp: a gradient that is not finite on one rank skips the update on all of them,
// and training goes on. Includes the model's source, to reach into one rank's gradient.
#include "../gpt.cu"

#include "../checkpoint/parameters.h"
#include "common.h"
#include "ranks.h"

enum { RANKS = 3 };

// Trains three steps; in the second, rank 1's gradient of one element becomes `bad`.
// Dies unless the norm said so, and if parameters and moments are unchanged by that step
// and changed by the others.
static void run_rank(int rank, ncclUniqueId id, float bad, bool ordered) {
    GptConfig c = {};
    c.model.T = 7, c.model.L = 2, c.model.NH = 3, c.model.C = 12;
    model_set_vocab(&c.model, 37);
    c.B = 2, c.T = 7, c.logits_rows = 5, c.unit = UNIT_LAYER;
    FsdpConfig *f = &c.fsdp;
    f->rank = rank, f->world = f->K = RANKS, f->ordered = ordered;
    f->gather_slots = f->grad_slots = 2, f->prefetch = f->micro_steps = 1;
    Gpt *g = gpt_create(&c);
    gpt_join(g, id);
    gpt_start(g);
    Model model = {&gpt_fp32_generic, g, &c};
    parameters_init(&model, 7);
    size_t bytes = g->f.shard * sizeof(float);
    char *before = (char *)malloc_check(3 * bytes);
    for (long step = 0; step < 3; step++) {
        const void *state[] = {g->f.p, g->f.m, g->f.v};
        for (int i = 0; i < 3; i++) memcpy(before + (size_t)i * bytes, state[i], bytes);
        int *inputs = gpt_inputs(g, 0);
        for (int i = 0; i < 28; i++) inputs[i] = (i * 5 + rank) % 37;
        gpt_micro_step(g, 0);
        if (step == 1 && rank == 1) ((float *)g->f.g)[3] = bad;
        GptUpdate u = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, step, 3, false, false};
        gpt_update(g, &u);
        GptStep s = gpt_finish_step(g, 0);
        bool finite = isfinite(s.norm);
        if (finite != (step != 1)) die("step %ld: norm %g", step, s.norm);
        for (int i = 0; i < 3; i++)
            if ((memcmp(before + (size_t)i * bytes, state[i], bytes) == 0) != (step == 1))
                die("step %ld: state %d is %s", step, i, step == 1 ? "changed" : "unchanged");
        for (size_t i = 0; i < g->f.shard; i++)
            if (!isfinite(g->f.p[i])) die("parameter %zu is not finite", i);
    }
    gpt_finish(g);
}

static void check(float bad, bool ordered) {
    auto rank_of = [&](int rank, ncclUniqueId id) { run_rank(rank, id, bad, ordered); };
    assert_int_equal(on_ranks(RANKS, rank_of), 0);
}

static void a_nan_on_one_rank_skips_the_update_on_all(void **) {
    check(NAN, true);
    check(NAN, false);
}

static void an_infinity_on_one_rank_skips_the_update_on_all(void **) {
    check(INFINITY, true);
    check(-INFINITY, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_nan_on_one_rank_skips_the_update_on_all),
        cmocka_unit_test(an_infinity_on_one_rank_skips_the_update_on_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
