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
    "0.01 --json --precision fp32 "

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

static void a_gpu_computes_in_bf16_unless_told_and_in_tf32_if_told(void **) {
    static Outcome o, fp32;
    o = run(EMULATED "/plain/train_gpt --plan --model gpt2:L=1,C=32,NH=2,T=16,V=37");
    assert_int_equal(o.status, 0);
    assert_non_null(strstr(o.out, "bf16 cuda"));
    fp32 = run(EMULATED "/plain/train_gpt " OPTIONS "--steps 2");
    o = run(EMULATED "/plain/train_gpt " OPTIONS "--steps 2 --precision tf32");
    compare("tf32", &o, &fp32, 3e-3);
    double x, y;
    numbers_of(o.out, "\"loss\":", &x, 1), numbers_of(fp32.out, "\"loss\":", &y, 1);
    assert_true(x != y);
    o = run("./train_gpt " OPTIONS "--steps 2 --precision tf32");
    assert_int_not_equal(o.status, 0);
    assert_non_null(strstr(o.err, "--precision tf32: expected a GPU"));
}

#define ALL                                                                                        \
    "--model gpt2:L=2,C=32,NH=2,T=16 --train test/reference/small/train.txt --val "                \
    "test/reference/small/val.txt --ranks 2 --batch 1 --tokens-per-step 32 --val-every 2 "         \
    "--val-batches 2 --sample-every 3 --sample-tokens 4 --checkpoint-every 1 --audit-every 2 "     \
    "--skip-norm 100 --skip-loss 100 "

#define RACE EMULATED "/race/train_gpt " OPTIONS "--ranks 2 --tokens-per-step 32 --steps 2 "

static void the_race_build_finds_nothing(void **) {
    static const char *const options[] = {
        "", "--precision bf16 --unit half --recompute every:2 --tokens-per-step 64 --nccl-ctas 4",
        "--shard none --reduce fast"};
    for (const char *o : options) {
        static Outcome found;
        found = run(EMULATED "/race/train_gpt " OPTIONS "--ranks 2 --steps 2 %s", o);
        if (found.status != 0) fail_msg("%s: exit code %d: %s", o, found.status, found.err);
    }
}

static void text_is_the_cpu_devices_and_races_with_nothing(void **) {
    static Outcome expected, found;
    const char *options =
        "--precision fp32 --generate 24 --temperature 1 --prompt 'In the' --model";
    char model[128];
    snprintf(model, sizeof model, "%s/model.bin", folder);
    found =
        run("./train_gpt --model gpt2:L=2,C=32,NH=2,T=16 --batch 8 --steps 30 --lr 0.01 --train "
            "test/reference/small/train.txt --export-model %s",
            model);
    assert_int_equal(found.status, 0);
    expected = run("./train_gpt %s %s", options, model);
    static const char *const forms[][2] = {
        {"plain", ""}, {"plain", "--ranks 2 --shard full"}, {"race", "--ranks 2"}};
    for (auto &f : forms) {
        found = run(EMULATED "/%s/train_gpt %s %s %s", f[0], options, model, f[1]);
        if (found.status != 0 || strcmp(found.out, expected.out))
            fail_msg("%s %s: expected %s, found exit code %d: %s%s", f[0], f[1], expected.out,
                     found.status, found.out, found.err);
    }
    found = run(EMULATED "/race/train_gpt %s %s --precision bf16", options, model);
    if (found.status != 0) fail_msg("bf16: exit code %d: %s", found.status, found.err);
}

static void every_wait_that_is_left_out_is_found(void **) {
    static const char *const defects[] = {"slot freed", "updated",  "gathered", "gradient freed",
                                          "filled",     "sendable", "arrived",  "added"};
    for (const char *d : defects) {
        static Outcome found;
        // One gradient slot: with two the next wait would imply the one left out.
        found = run("FSDP_DEFECT='%s' " RACE "--grad-buffers 1", d);
        if (found.status != FOUND)
            fail_msg("without the wait `%s`: expected a report, found exit code %d: %s", d,
                     found.status, found.err);
    }
}

// Those of gpt.cu; some show as an event that is asked for its time too early.
static void every_wait_of_the_model_that_is_left_out_is_found(void **) {
    static const struct {
        const char *name, *options;
    } defects[] = {{"losses", ""},
                   {"step", ""},
                   {"evaluated", ""},
                   {"logits", ""},
                   {"checksum", "--shard none"},
                   {"written", "--val-every 0 --sample-every 0"}};
    for (auto &d : defects) {
        static Outcome found;
        found = run("FSDP_DEFECT=%s " EMULATED "/race/train_gpt " ALL "--steps 3 --out %s/%s %s",
                    d.name, folder, d.name, d.options);
        bool reported = found.status == FOUND || strstr(found.err, "emulator [rank") ||
                        strstr(found.err, "device not ready");
        if (found.status == 0 || !reported)
            fail_msg("without the wait `%s`: expected a report, found exit code %d: %s", d.name,
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
    // The first is what the communicators are connected with.
    found = run("EMU_FAIL=ncclMemAlloc:2 " EMULATED "/plain/train_gpt " OPTIONS "--ranks 2");
    if (!strstr(found.err, "cannot allocate gather slot 0")) fail_msg("found: %s", found.err);
    found = run("EMU_MEMORY=1e8 " EMULATED "/plain/train_gpt " OPTIONS "--steps 1 --ranks 2");
    if (found.status == 0 || !strstr(found.err, "MiB of buffers are needed on each GPU, and 95.4 "
                                                "are free on the fullest; use more ranks"))
        fail_msg("exit code %d: %s", found.status, found.err);
    found = run("EMU_DEVICES=1 " EMULATED "/plain/train_gpt " OPTIONS "--steps 1 --ranks 2");
    if (found.status == 0 || !strstr(found.err, "ranks 0 and 1 share the GPU 0000:00:00.0"))
        fail_msg("exit code %d: %s", found.status, found.err);
    found = run("EMU_DEVICES=0 " EMULATED "/plain/train_gpt " OPTIONS "--steps 2");
    if (found.status == 0 || !strstr(found.err, "make DEVICE=cpu"))
        fail_msg("exit code %d: %s", found.status, found.err);
}

// The number before `after` in the text.
static double number_before(const char *text, const char *after) {
    const char *p = strstr(text, after);
    while (p && p > text && strchr("0123456789.", p[-1])) p--;
    return p ? atof(p) : NAN;
}
static const char NEEDED[] = " MiB of buffers are needed on each GPU";

// With so little of memory that the buffers of a run do not fit.
static double mib_of_buffers(const char *options) {
    static Outcome o;
    o = run("EMU_MEMORY=1e6 " EMULATED "/plain/train_gpt " OPTIONS "--steps 1 %s", options);
    const double needed = number_before(o.err, NEEDED);
    if (o.status != 1 || !(needed > 1)) fail_msg("exit code %d: %s", o.status, o.err);
    return needed;
}

// How much code cuBLASLt loads is an estimate.
static void buffers_that_fit_are_tried_whatever_cublaslt_may_take(void **) {
    static Outcome found;
    found = run("EMU_MEMORY=%.0f " EMULATED "/plain/train_gpt " OPTIONS "--steps 1 --ranks 2",
                (mib_of_buffers("--ranks 2") + 10) * 1048576);
    const char *warning = strstr(found.err, "that may be too little, as cuBLASLt takes some 102.4");
    const char *rest = strchr(found.err, '\n');
    if (found.status != 0 || !warning || !rest || rest[1])
        fail_msg("expected one warning, found exit code %d: %s", found.status, found.err);
}

static void the_fullest_gpu_of_all_ranks_counts(void **) {
    static Outcome o;
    o = run(MPIRUN " -n 1 " EMULATED "/plain/train_gpt " OPTIONS
                   "--steps 1 : -n 1 env EMU_MEMORY=%.0f " EMULATED "/plain/train_gpt " OPTIONS
                   "--steps 1",
            (mib_of_buffers("--ranks 2") + 10) * 1048576);
    if (o.status != 0 || !strstr(o.err, "on the fullest: that may be too little"))
        fail_msg("expected rank 0 to warn of rank 1's GPU, found exit code %d: %s", o.status,
                 o.err);
}

// Each connection of NCCL takes 1 GiB, far more than the buffers. With room for so many of them and
// half a MiB too little for the buffers.
static bool is_refused_with(int connections, double buffers, const char *options) {
    static Outcome o;
    o = run("EMU_NCCL_MEMORY=1073741824 EMU_MEMORY=%.0f " EMULATED "/plain/train_gpt " OPTIONS
            "--steps 1 %s",
            connections * 1073741824.0 + (buffers - 0.5) * 1048576, options);
    return o.status == 1 && strstr(o.err, " besides what NCCL takes; use more ranks");
}

// Where that just fits, all that a step connects has been connected.
static void what_nccl_takes_is_known_before_there_are_buffers(void **) {
    static const char *const options[] = {
        "--ranks 2",
        "--ranks 3 --precision bf16 --reduce-dtype bf16",
        "--ranks 2 --shard none",
        "--ranks 4 --shard hybrid:2 --reduce fast",
        "--ranks 2 --reduce fast --precision bf16 --reduce-dtype bf16 --unit half",
        "--ranks 2 --reduce fast --accumulate local --tokens-per-step 64 --val-every 1",
    };
    static Outcome o;
    for (const char *more : options) {
        const double buffers = mib_of_buffers(more);
        int n = 1;
        while (n < 16 && !is_refused_with(n, buffers, more)) n++;
        o = run("EMU_NCCL_MEMORY=1073741824 EMU_MEMORY=%.0f " EMULATED "/plain/train_gpt " OPTIONS
                "--steps 1 %s",
                n * 1073741824.0 + (buffers + 0.5) * 1048576, more);
        if (n == 16 || o.status != 0)
            fail_msg("%s: of %d connections: exit code %d: %s", more, n, o.status, o.err);
    }
}

// NCCL 2.27 would take 512 MiB for each of them, which no plan counts.
static void an_older_nccl_takes_no_more_memory(void **) {
    static Outcome expected, found;
    const char *options = OPTIONS "--steps 2 --ranks 2";
    expected = run(EMULATED "/plain/train_gpt %s", options);
    found = run("EMU_NCCL_VERSION=22703 EMU_MEMORY=1e9 " EMULATED "/plain/train_gpt %s", options);
    compare("NCCL 2.27", &found, &expected, 0);
    if (!strstr(found.err, "NCCL is older than 2.28")) fail_msg("found: %s", found.err);
    if (strstr(expected.err, "NCCL is older")) fail_msg("found: %s", expected.err);
}

// A byte of one replica's parameters is another one after every update: with checkpoints, and at
// the end of a run without.
static void replicas_that_have_drifted_apart_are_neither_saved_nor_a_result(void **) {
    static const char *const options[] = {
        "--shard none --ranks 2 --checkpoint-every 1 --out",
        "--shard hybrid:2 --reduce fast --ranks 4 --export-model"};
    for (const char *o : options) {
        static Outcome found;
        found =
            run("FSDP_DEFECT=drift " EMULATED "/plain/train_gpt " OPTIONS "--steps 2 %s %s/drift",
                o, folder);
        const char *line = strstr(found.err, "are replicas, and their parameters differ");
        if (found.status != 1 || !line || strstr(line + 1, "train_gpt:"))
            fail_msg("%s: expected one line of replicas, found exit code %d: %s", o, found.status,
                     found.err);
        found = run("bash -c 'cd %s; ls -d drift/checkpoints/* || test -f drift'", folder);
        if (found.status == 0) fail_msg("%s: expected nothing saved, found: %s", o, found.out);
        found = run("rm -rf %s/drift", folder);
    }
}

// There are three kernels of attention on tensor cores, launched eight times in each step.
static void attention_asks_for_its_shared_memory_once(void **) {
    for (int call = 3; call <= 4; call++) {
        Outcome o = run("EMU_FAIL=cudaFuncSetAttribute:%d " EMULATED "/plain/train_gpt " OPTIONS
                        "--precision bf16 --steps 2",
                        call);
        if ((o.status == 0) != (call == 4) || (call == 3 && !strstr(o.err, "attention: expected ")))
            fail_msg("call %d: exit code %d: %s", call, o.status, o.err);
    }
}

// ---- all that the program does besides ---------------------------------------------------------

// Validation, samples, checkpoints, audits and decisions about outliers.
// Trains to step 4 in FOLDER/NAME, from the newest checkpoint there, and exports.
static void train_all(const char *build, const char *environment, const char *name) {
    static Outcome o;
    o = run("%s " EMULATED "/%s/train_gpt " ALL "--steps 4 --out %s/%s --resume auto --trace "
            "%s/%s/trace --export-model %s/%s/model.bin --export-hf %s/%s/hf",
            environment, build, folder, name, folder, name, folder, name, folder, name);
    if (o.status != 0) fail_msg("%s build, %s: exit code %d: %s", build, name, o.status, o.err);
}

// A run in two parts, under another schedule, and one of the race build end in the same bits.
static void all_that_the_program_does_is_right_in_the_emulator(void **) {
    static Outcome o;
    train_all("plain", "EMU_SEED=11", "whole");
    o = run("bash -c 'cd %s && for n in parts race; do cp -r whole $n; rm -r $n/hf $n/model.bin "
            "$n/trace* $n/checkpoints/step_0000000[34]; done'",
            folder);
    if (o.status != 0) fail_msg("%s", o.err);
    train_all("plain", "EMU_SCHEDULE=random EMU_SEED=12", "parts");
    train_all("race", "EMU_SEED=13", "race");
    static const char *const names[] = {"parts", "race"};
    for (const char *name : names) {
        o = run("diff -r -x 'trace*' -x 'options.cfg*' -x metrics.jsonl %s/whole %s/%s", folder,
                folder, name);
        if (o.status != 0) fail_msg("%s: expected the same files, found: %s", name, o.out);
    }
    o = run("test -s %s/race/trace -a -s %s/race/trace.rank-1", folder, folder);
    assert_int_equal(o.status, 0);
}

// Its whole first steps are run by the race build too, and an update that is left out.
static void the_race_build_finds_nothing_in_a_run_that_diverges(void **) {
    static Outcome o;
    o = run(EMULATED "/race/train_gpt " ALL "--steps 5 --out %s/nan --lr 1000 --weight-decay 1000 "
                     "--grad-clip 0",
            folder);
    if (o.status != 1 || !strstr(o.err, "the update is skipped") ||
        !strstr(o.err, "updates were skipped, for want of a finite gradient"))
        fail_msg("expected skipped updates, found exit code %d: %s", o.status, o.err);
}

// ---- collectives that fail, or never end -------------------------------------------------------

// The watchdog asks the four communicators in turn, five times a second.
static void a_collective_that_fails_while_it_runs_ends_the_job(void **) {
    static Outcome o;
    o = run("EMU_FAIL=1@ncclCommGetAsyncError:11 " EMULATED "/plain/train_gpt " OPTIONS
            "--ranks 2 --steps 100000");
    if (o.status != 1 || !strstr(o.err, "train_gpt: [rank 1, step ") ||
        !strstr(o.err, "] NCCL, communicator gather: remote process exited or there was a network "
                       "error: ncclCommGetAsyncError fails on demand"))
        fail_msg("exit code %d: %s", o.status, o.err);
}

static void a_call_that_fails_says_what_nccl_says(void **) {
    static Outcome o;
    o = run("EMU_FAIL=1@ncclAllGather:9 " EMULATED "/plain/train_gpt " OPTIONS "--ranks 2");
    if (o.status != 1 || !strstr(o.err, "unhandled system error: ncclAllGather fails on demand\n"))
        fail_msg("exit code %d: %s", o.status, o.err);
}

// Hosts issue collectives ahead of the device, so all may have come to the same one.
static void a_rank_that_stands_still_ends_the_job(void **) {
    static Outcome o;
    o = run("bash -fc '" EMULATED "/plain/train_gpt " OPTIONS
            "--ranks 3 --steps 100000 --timeout 3 >%s/steps & while kill -0 $! && ! grep -q "
            "step.:3 %s/steps; do sleep 0.1; done; kill -STOP $(pgrep -P $! | sed -n 2p); wait $!'",
            folder, folder);
    if (o.status != 1 || !strstr(o.err, "no progress for 3 seconds; ") ||
        !strstr(o.err, " at collective "))
        fail_msg("exit code %d: %s", o.status, o.err);
}

// As Slurm or CUDA_VISIBLE_DEVICES give them: every rank sees one device, and each another.
static void ranks_that_each_see_a_gpu_of_their_own_train(void **) {
    if (system("command -v mpirun >/dev/null") != 0) skip();
    static Outcome found;
    found = run(MPIRUN " -n 1 env EMU_DEVICES=1 EMU_PCI_BUS=1 " EMULATED "/plain/train_gpt " OPTIONS
                       "--steps 1 : -n 1 env EMU_DEVICES=1 EMU_PCI_BUS=2 " EMULATED
                       "/plain/train_gpt " OPTIONS "--steps 1");
    if (found.status != 0) fail_msg("exit code %d: %s", found.status, found.err);
}

// The id of NCCL's communicator and the hosts' words go by sockets, as under torchrun and srun.
static void ranks_without_mpi_train_as_forked_ones(void **) {
    static const char *const launchers[] = {TORCHRUN, SRUN};
    const char *options = OPTIONS "--tokens-per-step 96 --steps 3";
    char command[512];
    snprintf(command, sizeof command, EMULATED "/plain/train_gpt %s", options);
    for (int ranks = 2; ranks <= 3; ranks++) {
        static Outcome forked, launched;
        forked = run("%s --ranks %d", command, ranks);
        launched = run_tasks(ranks, launchers[ranks - 2], command, ":");
        expect_text(launched, ranks == 2 ? "codes 0 0\n" : "codes 0 0 0\n");
        compare(launchers[ranks - 2], &launched, &forked, 0);
    }
}

// Without NCCL's word for it too: the socket of the rank that has gone closes.
static void a_killed_rank_ends_the_others_without_mpi(void **) {
    static Outcome o;
    o = run_tasks(3, TORCHRUN, EMULATED "/plain/train_gpt " OPTIONS "--steps 100000 >/dev/null",
                  "sleep 3; kill -9 ${p[1]}");
    expect_text(o, "codes 1 137 1\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_are_the_cpu_devices_in_fp32_under_every_schedule),
        cmocka_unit_test(losses_are_the_cpu_devices_in_bf16_under_every_schedule),
        cmocka_unit_test(a_gpu_computes_in_bf16_unless_told_and_in_tf32_if_told),
        cmocka_unit_test(the_race_build_finds_nothing),
        cmocka_unit_test(text_is_the_cpu_devices_and_races_with_nothing),
        cmocka_unit_test(every_wait_that_is_left_out_is_found),
        cmocka_unit_test(every_wait_of_the_model_that_is_left_out_is_found),
        cmocka_unit_test(a_swapped_collective_is_named),
        cmocka_unit_test(an_audit_finds_a_flipped_bit_and_names_ranks_and_unit),
        cmocka_unit_test(a_device_that_fails_ends_in_one_line),
        cmocka_unit_test(buffers_that_fit_are_tried_whatever_cublaslt_may_take),
        cmocka_unit_test(the_fullest_gpu_of_all_ranks_counts),
        cmocka_unit_test(what_nccl_takes_is_known_before_there_are_buffers),
        cmocka_unit_test(an_older_nccl_takes_no_more_memory),
        cmocka_unit_test(replicas_that_have_drifted_apart_are_neither_saved_nor_a_result),
        cmocka_unit_test(attention_asks_for_its_shared_memory_once),
        cmocka_unit_test(all_that_the_program_does_is_right_in_the_emulator),
        cmocka_unit_test(the_race_build_finds_nothing_in_a_run_that_diverges),
        cmocka_unit_test(a_collective_that_fails_while_it_runs_ends_the_job),
        cmocka_unit_test(a_call_that_fails_says_what_nccl_says),
        cmocka_unit_test(a_rank_that_stands_still_ends_the_job),
        cmocka_unit_test(ranks_that_each_see_a_gpu_of_their_own_train),
        cmocka_unit_test(ranks_without_mpi_train_as_forked_ones),
        cmocka_unit_test(a_killed_rank_ends_the_others_without_mpi),
    };
    return run_in_folder(tests);
}
