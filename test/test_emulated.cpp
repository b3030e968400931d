// test/test_emulated.cpp: the CUDA program, run by the emulator, trains as the CPU device does,
// under every schedule of its streams; the race build finds nothing in it, and finds each
// wait that is left out.
#include "../lib/die.h"
#define LIMIT "300"
#include "run.h"

#include <math.h>

#ifndef EMULATED  // the folder with the emulated programs
#define EMULATED "build/cpu/emu"
#endif
enum { FOUND = 66 };  // exit code of the emulator's reports

#define OPTIONS                                                                                    \
    "--model gpt2:L=4,C=32,NH=2,T=16,V=37 --train test/reference/tiny/train_*.bin --batch 1 --lr " \
    "0.01 --json "

static int numbers_of(const char *text, const char *name, double *x, int most) {
    int n = 0;
    for (const char *p = text; n < most && (p = strstr(p, name)); p++)
        x[n++] = atof(p + strlen(name));
    return n;
}

static void compare(const char *what, const Outcome *found, const Outcome *expected,
                    double tolerance) {
    static const char *const names[] = {"\"loss\":", "\"norm\":"};
    if (found->status != 0) fail_msg("%s: exit code %d: %s", what, found->status, found->err);
    for (int k = 0; k < 2; k++) {
        double x[16] = {0}, y[16] = {0};
        int n = numbers_of(found->out, names[k], x, 16);
        if (n == 0 || n != numbers_of(expected->out, names[k], y, 16))
            fail_msg("%s: %s", what, found->err);
        for (int i = 0; i < n; i++)
            if (!(fabs(x[i] - y[i]) <= tolerance * fabs(y[i])))
                fail_msg("%s: %s of step %d: expected %.9g, found %.9g", what, names[k], i, y[i],
                         x[i]);
    }
}

// Same micro-batches on any number of ranks: 4 a step.
static void check(const char *environment, int ranks, const char *more, double tolerance) {
    static Outcome expected, found;
    const char *options = OPTIONS "--tokens-per-step 64 --steps 3";
    expected = run("./train_gpt %s %s --ranks %d", options, more, ranks);
    assert_int_equal(expected.status, 0);
    found = run("env %s " EMULATED "/plain/train_gpt %s %s --ranks %d", environment, options, more,
                ranks);
    char what[512];
    snprintf(what, sizeof what, "%s, %d ranks %s", environment, ranks, more);
    compare(what, &found, &expected, tolerance);
}

// Bounds: fp32 differs in the order of sums; bf16 also in where intermediate values are rounded.
static const double FP32 = 2e-5, BF16 = 5e-3;

static void losses_are_the_cpu_devices_in_fp32_under_every_schedule(void **) {
    check("EMU_SCHEDULE=eager", 1, "", FP32);
    check("EMU_SCHEDULE=lazy", 2, "--unit half", FP32);
    check("EMU_SCHEDULE=random EMU_SEED=2", 2, "--unit matrix --gather-buffers 3 --prefetch 2",
          FP32);
    check("EMU_SCHEDULE=priority EMU_SEED=3", 2, "--recompute layer", FP32);
    check("EMU_SCHEDULE=priority EMU_SEED=4", 4,
          "--shard hybrid:2 --gather-buffers 1 --grad-buffers 1", FP32);
    check("EMU_SCHEDULE=priority EMU_SEED=5", 4, "--reduce fast --shard states", FP32);
}

static void losses_are_the_cpu_devices_in_bf16_under_every_schedule(void **) {
    check("EMU_SCHEDULE=eager", 1, "--precision bf16", BF16);
    check("EMU_SCHEDULE=priority EMU_SEED=6", 2, "--precision bf16 --recompute norm", BF16);
    check("EMU_SCHEDULE=random EMU_SEED=7", 4,
          "--precision bf16 --reduce-dtype bf16 --moment-dtype bf16", BF16);
}

#define RACE EMULATED "/race/train_gpt " OPTIONS "--ranks 2 --tokens-per-step 32 --steps 2 "

static void the_race_build_finds_nothing(void **) {
    static const char *const options[] = {
        "", "--precision bf16 --unit half --recompute every:2 --tokens-per-step 64",
        "--shard none --reduce fast"};
    for (const char *o : options) {
        static Outcome found;
        found = run(EMULATED "/race/train_gpt " OPTIONS "--ranks 2 --steps 2 %s", o);
        if (found.status != 0) fail_msg("%s: exit code %d: %s", o, found.status, found.err);
    }
}

static void every_wait_that_is_left_out_is_found(void **) {
    static const char *const defects[] = {"slot freed", "updated", "gathered", "gradient freed",
                                          "filled"};
    for (const char *d : defects) {
        static Outcome found;
        // One gradient slot: with two the next wait would imply the one left out.
        found = run("FSDP_DEFECT='%s' " RACE "--grad-buffers 1", d);
        if (found.status != FOUND)
            fail_msg("without the wait `%s`: expected a report, found exit code %d: %s", d,
                     found.status, found.err);
    }
}

static void a_swapped_collective_is_named(void **) {
    static Outcome found;
    found = run("FSDP_DEFECT=swapped EMU_STALL_SECONDS=10 " EMULATED "/plain/train_gpt " OPTIONS
                "--ranks 2 --steps 2");
    if (found.status == 0 || !strstr(found.err, "AllReduce"))
        fail_msg("exit code %d: %s", found.status, found.err);
}

// One bit of one gradient of rank 1 flips in the second step, which is audited.
static void an_audit_finds_a_flipped_bit_and_names_ranks_and_unit(void **) {
    for (int ranks = 2; ranks <= 3; ranks++) {
        static Outcome found;
        const char *options = OPTIONS "--steps 2 --audit-every 2";
        found = run("FSDP_DEFECT=flip " EMULATED "/plain/train_gpt %s --ranks %d", options, ranks);
        if (found.status == 0 || !strstr(found.err, "different gradients of block 1 from") ||
            !strstr(found.err, ranks == 3 ? "ranks 1 and 2" : "ranks 1 and 0"))
            fail_msg("exit code %d: %s", found.status, found.err);
    }
    static Outcome plain, audited;
    const char *options = OPTIONS "--steps 2 --ranks 2";
    plain = run(EMULATED "/plain/train_gpt %s", options);
    audited = run(EMULATED "/race/train_gpt %s --audit-every 1", options);
    compare("with audits", &audited, &plain, 0);
}

static void a_device_that_fails_ends_in_one_line(void **) {
    static Outcome found;
    found = run("EMU_FAIL=cudaMalloc:3 " EMULATED "/plain/train_gpt " OPTIONS "--steps 2");
    if (!strstr(found.err, "cannot allocate")) fail_msg("found: %s", found.err);
    found = run("EMU_DEVICES=0 " EMULATED "/plain/train_gpt " OPTIONS "--steps 2");
    if (found.status == 0 || !strstr(found.err, "make DEVICE=cpu"))
        fail_msg("exit code %d: %s", found.status, found.err);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_are_the_cpu_devices_in_fp32_under_every_schedule),
        cmocka_unit_test(losses_are_the_cpu_devices_in_bf16_under_every_schedule),
        cmocka_unit_test(the_race_build_finds_nothing),
        cmocka_unit_test(every_wait_that_is_left_out_is_found),
        cmocka_unit_test(a_swapped_collective_is_named),
        cmocka_unit_test(an_audit_finds_a_flipped_bit_and_names_ranks_and_unit),
        cmocka_unit_test(a_device_that_fails_ends_in_one_line),
    };
    return run_in_folder(tests);
}
