// test/test_resume.cpp: checkpoints of whole runs. A run that was stopped, anywhere and anyhow,
// goes on as if it had not been: the same bits in its checkpoints, logs, validations and samples,
// on any number of ranks. What cannot be continued is refused in one line and left as it is.
// ONLY=name runs one test, SEED=number repeats its moments.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

#include "run.h"

#ifndef BAD_DISK  // see bad_disk.cpp
#define BAD_DISK "build/test/bad_disk.so"
#endif

// 24 samples a step, for 1, 2, 3, 4, 6 and 8 ranks; ten steps are one epoch and a part of another.
#define MODEL " --model gpt2:L=2,C=12,NH=3,T=7"
#define DATA " --train test/reference/small/train.txt --val test/reference/small/val.txt"
#define BATCH " --batch 1 --tokens-per-step 168 --threads 1"
#define WATCH " --val-every 3 --val-batches 2 --sample-every 5 --sample-tokens 4"
#define RUN PROGRAM MODEL DATA BATCH WATCH " --checkpoint-every 1 --steps 10 "
enum { STEPS = 10 };

// The policies that keep different states, or come to different numbers.
static const char *const policies[] = {"", "--precision bf16", "--precision fp64-moments",
                                       "--precision bf16 --moment-dtype bf16"};
enum { POLICIES = 4 };

// FOLDER/ref0 ..: an uninterrupted run of each policy on one rank. FOLDER/start0 ..: its state
// before the first step.
static int make_references(void **) {
    if (make_folder_of_tests(NULL) != 0) return -1;
    for (int i = 0; i < POLICIES; i++) {
        Outcome o = run(RUN "%s --out %s/ref%d && " RUN "%s --out %s/start%d --steps 0",
                        policies[i], folder, i, policies[i], folder, i);
        if (o.status != 0) {
            print_error("policy `%s`: %s\n", policies[i], o.err);
            return -1;
        }
    }
    return 0;
}

// ---- what is compared --------------------------------------------------------------------------

static void expect_status(const Outcome *o, int expected, const char *what) {
    if (o->status != expected)
        fail_msg("%s: expected exit code %d, found %d: %s", what, expected, o->status, o->err);
}

static void expect_words(const char *text, const char *expected, const char *what) {
    if (!strstr(text, expected)) fail_msg("%s: expected `%s`, found: %s", what, expected, text);
}

// The two folders of runs hold the same: every checkpoint, main.log, and metrics.jsonl but for what
// it says of times and ranks. Options, and what has been set aside, may differ.
static void expect_same_runs(const char *a, const char *b, const char *what) {
    Outcome o = run("for d in %s/%s %s/%s; do "
                    "sed 's/,.ms.:.*,.tokens.:/,/; s/,.memory.:.*//' $d/metrics.jsonl "
                    ">$d/metrics; done; "
                    "diff -r -x '*.[0-9]' -x options.cfg -x metrics.jsonl %s/%s %s/%s",
                    folder, a, folder, b, folder, a, folder, b);
    if (o.status != 0) fail_msg("%s: expected the same files, found: %s%s", what, o.out, o.err);
}

// FOLDER/NAME becomes a copy of FOLDER/FROM.
static void copy_run(const char *from, const char *name) {
    Outcome o = run("rm -rf %s/%s && cp -r %s/%s %s/%s", folder, name, folder, from, folder, name);
    assert_int_equal(o.status, 0);
}

// ---- any step, any ranks -----------------------------------------------------------------------

// Ranks, strategies, units and policies in all pairs, and each step at least twice: the run goes on
// from the reference's checkpoint of that step and writes all later ones anew.
static void resumes_from_every_step_on_any_ranks_end_in_the_same_bits(void **) {
    static const int ranks[] = {1, 2, 3, 4, 6, 8}, groups[] = {1, 1, 3, 2, 3, 4};
    static const char *const shards[] = {"full", "grads", "states", "none", "hybrid"};
    static const char *const units[] = {"layer", "half", "matrix", "layers:2"};
    static const char *const others[] = {"", "--gather-buffers 3", "--gather-buffers 1",
                                         "--recompute layer --grad-buffers 1"};
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 5; j++) {
            int n = 5 * i + j, from = n % (STEPS + 1), policy = (i - j + 4 + (i > 3)) % POLICIES;
            char options[512], reference[16], group[16] = "";
            if (j == 4) snprintf(group, sizeof group, ":%d", groups[i]);
            snprintf(options, sizeof options, "%s --ranks %d --shard %s%s --unit %s %s",
                     policies[policy], ranks[i], shards[j], group, units[(i + j) % 4],
                     others[n % 4]);
            snprintf(reference, sizeof reference, "%s%d", from ? "ref" : "start", policy);
            copy_run(reference, "run");
            Outcome o = run(RUN "%s --out %s/run --resume %s/run/checkpoints/step_%08d", options,
                            folder, folder, from);
            expect_status(&o, 0, options);
            snprintf(reference, sizeof reference, "ref%d", policy);
            run("rm -rf %s/run/DONE_00000000 %s/run/checkpoints/step_00000000", folder, folder);
            expect_same_runs("run", reference, options);
        }
}

static void mpirun_goes_on_where_forked_ranks_have_stopped(void **) {
    if (system("command -v mpirun >/dev/null") != 0) skip();
    copy_run("ref0", "run");
    Outcome o = run("FSDP_RANKS_PER_NODE=2 " MPIRUN " -n 4 " RUN
                    "--shard hybrid:2 --out %s/run --resume %s/run/checkpoints/step_00000007",
                    folder, folder);
    expect_status(&o, 0, "mpirun");
    expect_same_runs("run", "ref0", "mpirun");
}

static void a_checkpoint_that_is_loaded_and_saved_is_the_same_to_the_byte(void **) {
    for (int i = 0; i < POLICIES; i++)
        for (int steps = 0; steps <= STEPS; steps += STEPS) {
            Outcome o =
                run(PROGRAM " --resume %s/ref%d/checkpoints/step_%08d --ranks 3 --shard %s "
                            "--steps %d %s --checkpoint-every 1 --threads 1 --out %s/again && "
                            "diff -r %s/again/checkpoints/step_%08d "
                            "%s/ref%d/checkpoints/step_%08d; s=$?; rm -r %s/again; exit $s",
                    folder, i, steps ? STEPS : 4, steps ? "full" : "hybrid:1", steps, policies[i],
                    folder, folder, steps ? STEPS : 4, folder, i, steps ? STEPS : 4, folder);
            if (o.status != 0)
                fail_msg("`%s`, --steps %d: expected the same checkpoint, found: %s%s", policies[i],
                         steps, o.out, o.err);
        }
}

static void a_run_that_goes_back_sets_later_checkpoints_aside(void **) {
    copy_run("ref0", "run");
    Outcome o = run(RUN "--steps 9 --out %s/run --resume %s/run/checkpoints/step_00000008 && "
                        "cd %s/run/checkpoints && test ! -e step_00000010 && "
                        "diff -r step_00000009.1 %s/ref0/checkpoints/step_00000009 && "
                        "diff -r step_00000010.1 %s/ref0/checkpoints/step_00000010",
                    folder, folder, folder, folder, folder);
    expect_status(&o, 0, "from step 8");
    expect_words(o.out, "--steps 9, in the checkpoint 10; the learning rate follows the new end",
                 "stdout");
    copy_run("ref0", "run");
    o = run(RUN "--steps 1 --out %s/run && cd %s/run/checkpoints && ls -d step_00000001.1 "
                "step_00000010.1 && "
                "test ! -e step_00000002",
            folder, folder);
    expect_status(&o, 0, "from the start");
}

// Its logs begin anew at its step: those that are there are of another way from step 8 on.
static void a_run_goes_on_from_what_was_set_aside_with_logs_of_its_own(void **) {
    copy_run("ref0", "run");
    Outcome o =
        run(RUN "--lr 0.01 --out %s/run --resume %s/run/checkpoints/step_00000008 && " RUN
                "--out %s/run --resume %s/run/checkpoints/step_00000009.1 && "
                "sed '/^s:[0-8] /d' %s/ref0/main.log | diff - %s/run/main.log && "
                "cd %s/run && diff -r checkpoints/step_00000010 "
                "%s/ref0/checkpoints/step_00000010 && test -e checkpoints/step_00000009.2 && "
                "head -n 8 main.log.2 | diff - <(head -n 8 %s/ref0/main.log)",
            folder, folder, folder, folder, folder, folder, folder, folder, folder);
    if (o.status != 0) fail_msg("found: %s%s", o.out, o.err);
}

// Only what comes after the checkpoint is written there.
static void a_run_goes_on_in_another_folder(void **) {
    copy_run("ref0", "last");
    Outcome o = run(RUN "--out %s/other --ranks 2 --resume %s/ref0/checkpoints/step_00000007 && "
                        "cd %s/last && rm -r checkpoints/step_0000000{1,2,3,4,5,6,7} && "
                        "sed -i '/^s:[0-6] /d' main.log && "
                        "sed -i '/^..step.:[0-6],/d' metrics.jsonl",
                    folder, folder, folder);
    expect_status(&o, 0, "in another folder");
    expect_same_runs("other", "last", "in another folder");
}

// ---- being asked to stop -----------------------------------------------------------------------

static unsigned seed;

static int random_below(int n) {
    return (int)((unsigned)rand_r(&seed) % (unsigned)n);
}

// Starts a run whose steps wait for a slow disk, and sends a signal to `whom` (a word of the shell;
// $pid is the job) at some moment after its first step. It ends with 75 and says how to go on.
static void stop_run(const char *launch, const char *options, const char *signal,
                     const char *whom) {
    int steps = 1 + random_below(5), ms = random_below(60);
    Outcome o = run("rm -rf %s/run; BAD_DISK=checkpoints BAD_DISK_SLOW_MS=10 LD_PRELOAD=" BAD_DISK
                    " %s " RUN "%s --out %s/run & pid=$!; { until test $(grep -c trl "
                    "%s/run/main.log) -ge %d; do sleep 0.01; done; } 2>/dev/null; sleep 0.%03d; "
                    "kill -%s %s; wait $pid",
                    folder, launch, options, folder, folder, steps, ms, signal, whom);
    char what[256];
    snprintf(what, sizeof what, "SIG%s to %s of `%s %s` %d ms after step %d", signal, whom, launch,
             options, ms, steps);
    expect_status(&o, 75, what);
    expect_words(o.err, "as asked, and saved; to go on: --resume auto --out ", what);
    o = run(RUN "--out %s/run --resume auto --ranks %d; ls %s/run/checkpoints", folder,
            1 + random_below(4), folder);
    expect_status(&o, 0, what);
    expect_same_runs("run", "ref0", what);
}

static void a_run_that_is_asked_to_stop_saves_and_goes_on_later(void **) {
    stop_run("", "", "TERM", "$pid");
    stop_run("", "--ranks 3", "USR1", "$pid");
    stop_run("", "--ranks 4 --shard hybrid:2", "TERM", "$(pgrep -P $pid | sed -n 3p)");
    stop_run("", "--ranks 2", "INT", "$(pgrep -P $pid | sed -n 1p)");
    stop_run("", "--ranks 2", "HUP", "$pid");
    if (system("command -v mpirun >/dev/null") != 0) return;
    stop_run(MPIRUN " -n 2", "", "TERM", "$(pgrep -P $pid -x train_gpt | sed -n 2p)");
}

static void a_run_under_nohup_outlives_its_terminal(void **) {
    Outcome o = run("rm -rf %s/run; BAD_DISK=checkpoints BAD_DISK_SLOW_MS=10 LD_PRELOAD=" BAD_DISK
                    " nohup " RUN "--out %s/run --ranks 2 >/dev/null & pid=$!; "
                    "until test -e %s/run/main.log; do sleep 0.01; done; "
                    "kill -HUP $pid; pkill -HUP -P $pid; wait $pid",
                    folder, folder, folder);
    expect_status(&o, 0, "SIGHUP under nohup");
    expect_same_runs("run", "ref0", "SIGHUP under nohup");
}

static void a_second_signal_ends_a_run_that_is_still_saving(void **) {
    Outcome o = run("rm -rf %s/run; BAD_DISK=checkpoints BAD_DISK_SLOW_MS=300 LD_PRELOAD=" BAD_DISK
                    " " RUN "--out %s/run --ranks 2 & pid=$!; until test -e "
                    "%s/run/checkpoints/step_00000002.tmp; do sleep 0.01; done; kill -TERM $pid; "
                    "sleep 1.2; kill -TERM $pid; wait $pid",
                    folder, folder, folder);
    expect_status(&o, 128 + SIGTERM, "a second signal");
    expect_words(o.err, "train_gpt: ended at once by a second signal: nothing is saved behind",
                 "stderr");
    if (lines_of(o.err) != 1) fail_msg("expected one line, found: %s", o.err);
    o = run(RUN "--out %s/run --resume auto", folder);
    expect_status(&o, 0, "after a second signal");
    expect_same_runs("run", "ref0", "after a second signal");
}

// ---- updates that are left out -----------------------------------------------------------------

#define SHORT PROGRAM " --model gpt2:L=1,C=8,NH=2,T=8 --batch 1 --tokens-per-step 16 --threads 1 "

// In a text of `ab` stands something else; it comes when the window of 128 norms is full.
static void outliers_are_left_out_also_by_a_run_that_goes_on(void **) {
    const char *options =
        "--schedule constant --checkpoint-every 1000 --lr 0.01 --skip-norm 6 --seed 1";
    Outcome o =
        run("(yes abababa | head -n 430; echo zqx~zqx; yes abababa | head -n 20) | "
            "tr -d '\\n' >%s/odd.txt; " SHORT "--train %s/odd.txt %s --steps 300 --out %s/whole",
            folder, folder, options, folder);
    expect_status(&o, 0, "an uninterrupted run");
    const char *line = strstr(o.err, "train_gpt: step ");
    int step = line ? atoi(line + 16) : 0;
    if (step < 129 || step > 299 || lines_of(o.err) != 1 ||
        !strstr(o.err, "an outlier; the update"))
        fail_msg("expected one outlier behind step 128, found: %s", o.err);
    o = run("a='" SHORT "--train %s/odd.txt %s --resume auto --out %s/parts'; "
            "$a --steps 90; $a --steps %d --ranks 2; $a --steps %d; $a --steps 300 --ranks 2; "
            "cd %s/parts; for f in model.bin moment_m.bin moment_v.bin; do "
            "cmp checkpoints/step_00000%d/$f checkpoints/step_00000%d/$f || exit 1; done; "
            "cmp main.log %s/whole/main.log && "
            "diff -r checkpoints/step_00000300 %s/whole/checkpoints/step_00000300",
            folder, options, folder, step - 1, step, folder, step - 1, step, folder, folder);
    expect_status(&o, 0, "a run in four parts");
}

// Saves first, and so does what goes on from the midst of the skipped steps.
static void ten_steps_without_a_gradient_end_the_run(void **) {
    const char *options = "--train test/reference/small/train.txt --checkpoint-every 1 --lr 1000 "
                          "--grad-clip 0 --weight-decay 1000 --steps 100 --ranks 2";
    Outcome o = run(SHORT "%s --out %s/nan", options, folder);
    expect_status(&o, 1, "a run that diverges");
    const char *last = strstr(o.err, "10 steps in a row without a finite gradient");
    if (!last || !strstr(last, "(the state is saved in ")) fail_msg("found: %s", o.err);
    int step = atoi(strstr(last, "/step_") + 6);
    copy_run("nan", "run");
    o = run(SHORT "%s --out %s/run --resume %s/run/checkpoints/step_%08d", options, folder, folder,
            step - 4);
    expect_status(&o, 1, "a run that goes on diverging");
    expect_words(o.err, "10 steps in a row", "stderr");
    expect_same_runs("run", "nan", "a run that goes on diverging");
    o = run(SHORT "%s --out %s/run --resume auto", options, folder);
    expect_status(&o, 1, "after the end");
    expect_words(o.err, "11 steps in a row", "stderr");
}

// ---- errors that leave the state whole ---------------------------------------------------------

static void a_stdout_that_takes_no_more_ends_the_run_when_it_has_saved(void **) {
    static const char *const cases[][2] = {
        {">/dev/full", "cannot write to stdout: No space left on device (the state is saved in "},
        {"| head -n 1", "cannot write to stdout: Broken pipe (the state is saved in "}};
    for (auto &c : cases) {
        Outcome o = run("rm -rf %s/run; " RUN "--ranks 2 --out %s/run %s; exit ${PIPESTATUS[0]}",
                        folder, folder, c[0]);
        expect_status(&o, 1, c[0]);
        expect_words(o.err, c[1], c[0]);
        o = run(RUN "--out %s/run --resume auto", folder);
        expect_status(&o, 0, c[0]);
        expect_same_runs("run", "ref0", c[0]);
    }
}

// The file ends after four bytes while the run goes on.
static void cut_while_running(const char *file) {
    const char *options = MODEL BATCH WATCH " --schedule constant --checkpoint-every 1000";
    char data[256];
    snprintf(data, sizeof data, "--train %s/train.txt --val %s/val.txt", folder, folder);
    Outcome o = run("rm -rf %s/run %s/whole; cp test/reference/small/{train,val}.txt %s; " PROGRAM
                    "%s %s --steps 100000 --ranks 2 --out %s/run & pid=$!; "
                    "{ until test $(grep -c trl %s/run/main.log) -ge 4; do sleep 0.01; done; } "
                    "2>/dev/null; truncate -s 4 %s/%s; wait $pid",
                    folder, folder, folder, options, data, folder, folder, folder, file);
    expect_status(&o, 1, file);
    const char *saved = strstr(o.err, "(the state is saved in ");
    if (!saved || !strstr(o.err, file) || !strstr(o.err, "is it complete?") || lines_of(o.err) != 1)
        fail_msg("%s: expected one line, found: %s", file, o.err);
    int end = atoi(strstr(saved, "/step_") + 6) + 3;
    o = run("cp test/reference/small/{train,val}.txt %s; " PROGRAM
            "%s %s --steps %d --out %s/whole && " PROGRAM
            "%s --steps %d --out %s/run --resume auto --checkpoint-every 1000 --threads 1 && "
            "cmp %s/run/main.log %s/whole/main.log && diff -r %s/run/checkpoints/step_%08d "
            "%s/whole/checkpoints/step_%08d",
            folder, options, data, end, folder, "", end, folder, folder, folder, folder, end,
            folder, end);
    expect_status(&o, 0, file);
}

static void data_that_are_cut_short_end_the_run_when_it_has_saved(void **) {
    cut_while_running("train.txt");
    cut_while_running("val.txt");
}

static void reads_that_fail_for_a_while_are_tried_again(void **) {
    static const char *const faults[][2] = {
        {"train.txt", "EIO:4"},     {"train.txt", "ESTALE:7"}, {"train.txt", "EINTR:1000"},
        {"train.txt", "short:500"}, {"moment_v.bin", "EIO:3"}, {"index.json", "ESTALE:2"}};
    for (auto &f : faults) {
        copy_run("ref0", "run");
        Outcome o = run("BAD_DISK=%s BAD_DISK_READS=%s LD_PRELOAD=" BAD_DISK " " RUN
                        "--ranks 2 --out %s/run --resume %s/run/checkpoints/step_00000006",
                        f[0], f[1], folder, folder);
        expect_status(&o, 0, f[1]);
        expect_same_runs("run", "ref0", f[1]);
    }
}

static void reads_that_fail_for_good_name_the_file(void **) {
    static const char *const faults[][2] = {
        {"BAD_DISK=train.txt BAD_DISK_READS=EIO:1000000",
         "test/reference/small/train.txt at byte 0: Input/output error, again and again"},
        {"BAD_DISK=moment_v.bin BAD_DISK_READS=ESTALE:1000000",
         "moment_v.bin at byte 0: Stale file handle, again and again"}};
    char command[1024];
    for (auto &f : faults) {
        snprintf(command, sizeof command,
                 "%s LD_PRELOAD=" BAD_DISK " " RUN
                 "--ranks 2 --resume %s/ref0/checkpoints/step_00000006",
                 f[0], folder);
        expect_refusal(command, f[1]);
    }
}

// ---- a disk that is full, or slow --------------------------------------------------------------

// Saves 5 to 10 are still to be made; any write of the first of them or a later one may be the one
// that finds the disk full. One line; the newest checkpoint is whole, and goes on.
static void a_full_disk_ends_the_run_in_one_line_and_harms_no_checkpoint(void **) {
    for (int room = 0; room < 250; room += 1 + room / 2) {
        copy_run("ref0", "run");
        char what[64];
        snprintf(what, sizeof what, "room for %d writes", room);
        Outcome o = run("cd %s/run/checkpoints && rm -r step_0000000{5,6,7,8,9} step_00000010 && "
                        "cd - >/dev/null && BAD_DISK=checkpoints BAD_DISK_ROOM=%d "
                        "LD_PRELOAD=" BAD_DISK " " RUN "--ranks 2 --out %s/run --resume auto",
                        folder, room, folder);
        expect_status(&o, 1, what);
        if (lines_of(o.err) != 1 || !strstr(o.err, "No space left on device"))
            fail_msg("%s: expected one line with `No space left on device`, found: %s", what,
                     o.err);
        o = run(RUN "--out %s/run --resume auto", folder);
        expect_status(&o, 0, what);
        expect_same_runs("run", "ref0", what);
    }
}

// A disk for the run alone, which grows when it is full.
static void a_run_on_a_small_disk_goes_on_when_the_disk_has_grown(void **) {
    if (system("unshare -m mount -t tmpfs none /mnt 2>/dev/null") != 0) {
        print_message("may not mount a disk of its own\n");
        skip();
    }
    Outcome o = run("mkdir -p %s/disk; rm -rf %s/run; unshare -m bash -c ' "
                    "mount -t tmpfs -o size=500k none %s/disk || exit 9; " RUN
                    "--ranks 2 --out %s/disk/run; [ $? = 1 ] || exit 9; "
                    "mount -o remount,size=8m %s/disk; " RUN
                    "--out %s/disk/run --resume auto && cp -r %s/disk/run %s/run'",
                    folder, folder, folder, folder, folder, folder, folder, folder);
    expect_status(&o, 0, "a small disk");
    expect_words(o.err, "No space left on device", "a small disk");
    if (lines_of(o.err) != 1) fail_msg("expected one line, found: %s", o.err);
    expect_same_runs("run", "ref0", "a small disk");
}

// Steps 6 to 8 are made while the state of step 5 is on its way.
static void training_goes_on_while_a_slow_disk_gets_the_state_of_the_call(void **) {
    Outcome o = run("BAD_DISK=checkpoints BAD_DISK_SLOW_MS=10 LD_PRELOAD=" BAD_DISK " " RUN
                    "--ranks 2 --checkpoint-every 5 --out %s/slow && cd %s/slow/checkpoints && "
                    "ls && for s in 05 10; do for f in model moment_m moment_v; do "
                    "cmp step_000000$s/$f.bin %s/ref0/checkpoints/step_000000$s/$f.bin || exit 9; "
                    "done; done",
                    folder, folder, folder);
    expect_status(&o, 0, "a slow disk");
    const char *step = strstr(o.out, "\nstep 8/10 | "), *saved = strstr(o.out, "step 5/10  saved");
    if (!step || !saved || saved < step)
        fail_msg("expected step 8 before step 5 is saved, found: %s", o.out);
}

// ---- which checkpoint, and which are kept ------------------------------------------------------

// llm.c's flags. The same command starts, goes on, and has nothing to do at the end.
static void the_newest_checkpoints_and_some_for_good_are_kept(void **) {
    Outcome o = {};
    for (int i = 0; i < 3; i++) {
        o = run(RUN "-n 1 -nk 2 -nm 4 -y 1 -x %d -o %s/keep", i ? STEPS : 5, folder);
        expect_status(&o, 0, "-n 1 -nk 2 -nm 4 -y 1");
        if (i == 1) copy_run("keep", "run");
    }
    expect_same_runs("keep", "run", "a run with nothing to do");
    o = run("cd %s/keep && ls checkpoints && ls | grep DONE_", folder);
    assert_int_equal(o.status, 0);
    assert_string_equal(o.out, "step_00000004\nstep_00000008\nstep_00000009\nstep_00000010\n"
                               "DONE_00000010\n");
}

// In a checkpoint that goes, in a folder of the name that the next gets while it is written, in
// another of that kind, and as empty files whose names only begin as that of a last step.
static void files_of_others_stay_where_checkpoints_go(void **) {
    Outcome o = run("cp -r %s/ref0 %s/others && cd %s/others && rm -r checkpoints/step_00000010 && "
                    "mkdir checkpoints/step_00000010.tmp checkpoints/step_00000099.tmp && "
                    "set +f; for f in step_00000001 step_00000010.tmp step_00000099.tmp; do "
                    "echo mine >checkpoints/$f/notes.txt; done && "
                    ": >DONE_notes && : >DONE_1 && cd - >/dev/null && " RUN
                    "--keep 2 --resume auto --out %s/others && cd %s/others && ls DONE_* && "
                    "cat checkpoints/*/notes.txt && ls -d checkpoints/*/ && "
                    "ls checkpoints/step_00000001; rm -r %s/others",
                    folder, folder, folder, folder, folder, folder);
    expect_status(&o, 0, "files of others");
    expect_words(o.out,
                 "DONE_00000010\nDONE_1\nDONE_notes\nmine\nmine\nmine\ncheckpoints/step_00000001/\n"
                 "checkpoints/step_00000009/\ncheckpoints/step_00000010.tmp.1/\n"
                 "checkpoints/step_00000010/\ncheckpoints/step_00000099.tmp/\nnotes.txt\n",
                 "files of others");
    expect_words(o.err, "step_00000001 is removed, the folder stays: Directory not empty\n",
                 "stderr");
    expect_words(o.err, "step_00000010.tmp holds files that are no checkpoint's", "stderr");
    if (lines_of(o.err) != 2) fail_msg("expected two lines, found: %s", o.err);
}

// From the middle of a run, with samples, as its options ask for.
static void a_conversion_leaves_the_runs_logs_as_they_are(void **) {
    Outcome o = run("cp -r %s/ref0 %s/convert && " PROGRAM " --out %s/convert --resume "
                    "%s/convert/checkpoints/step_00000005 --steps 0 --export-hf %s/convert.hf && "
                    "diff -r %s/ref0 %s/convert && rm -r %s/convert",
                    folder, folder, folder, folder, folder, folder, folder, folder);
    expect_status(&o, 0, "a conversion");
    if (!strstr(o.out, "convert.hf")) fail_msg("found: %s%s", o.out, o.err);
}

static void a_run_goes_on_with_its_checkpoints_unless_told_otherwise(void **) {
    copy_run("ref0", "run");
    Outcome o = run("rm -r %s/run/checkpoints/step_0000000{8,9} %s/run/checkpoints/step_00000010 "
                    "&& " PROGRAM " --out %s/run --resume auto --threads 1",
                    folder, folder, folder);
    expect_status(&o, 0, "from step 7");
    expect_same_runs("run", "ref0", "from step 7");
    o = run("rm -r %s/run/checkpoints/step_00000010 && " PROGRAM
            " --out %s/run --resume auto --checkpoint-every 0 && ls %s/run/checkpoints | tail -1",
            folder, folder, folder);
    expect_words(o.out, "no checkpoints are made: neither", "--checkpoint-every 0");
    expect_words(o.out, "--checkpoint-every 0, in the checkpoint 1\n", "--checkpoint-every 0");
    expect_words(o.out, "\nstep_00000009\n", "--checkpoint-every 0");
    o = run(PROGRAM " --resume %s/run/checkpoints/step_00000009", folder);
    expect_words(o.out, "no checkpoints are made: --out, their folder, is not given", "no --out");
    o = run(RUN "--keep 3 --steps 2 --out %s/keeps && " PROGRAM
                " --out %s/keeps --resume auto --steps 3 --checkpoint-every 0",
            folder, folder);
    expect_status(&o, 0, "--keep of the checkpoint");
}

static void a_run_goes_on_with_its_audits_and_says_what_they_cost(void **) {
    Outcome o = run(RUN "--ranks 2 --audit-every 2 --steps 2 --out %s/run2 && " PROGRAM
                        " --out %s/run2 --ranks 2 --steps 8 --resume auto",
                    folder, folder);
    expect_status(&o, 0, "--audit-every 2");
    expect_words(o.out, "\naudits           1 steps with one: ", "its start");
    expect_words(o.out, "\naudits           3 steps with one: ", "its end");
    expect_words(o.out, " ms each; 2 without: ", "its end");
    o = run(PROGRAM " --out %s/run2 --steps 9 --resume auto", folder);
    expect_status(&o, 0, "on one rank");
    expect_words(o.out, "--audit-every 0, in the checkpoint 2\n", "on one rank");
}

#define TOKENIZER "test/reference/tokenizer/tokenizer.bin"

// As large as the other, but two of its tokens have each other's number: those of the first two
// bytes, which stand 1025 and 1027 bytes into the file.
static void another_tokenizer_of_the_same_size_is_refused(void **) {
    Outcome o =
        run("cp " TOKENIZER " %s/other.bin && for at in 1025,1027 1027,1025; do dd if=" TOKENIZER
            " of=%s/other.bin bs=1 count=1 skip=${at%%,*} seek=${at#*,} "
            "conv=notrunc status=none; done; cmp -s %s/other.bin " TOKENIZER "; test $? = 1"
            " && cp test/reference/small/train.txt %s && " PROGRAM " --tokenizer " TOKENIZER
            " --train %s/train.txt --model gpt2:L=1,C=8,NH=2,T=16 --steps 2 --threads 1 "
            "--checkpoint-every 2 --out %s/words && cp " TOKENIZER " %s/same.bin",
            folder, folder, folder, folder, folder, folder, folder);
    expect_status(&o, 0, "--tokenizer");
    char command[1024];
    static const char *const ways[] = {"--generate 5", "--steps 3"};
    for (const char *way : ways) {
        snprintf(command, sizeof command,
                 PROGRAM " --out %s/words --resume auto --tokenizer %s/other.bin %s", folder,
                 folder, way);
        expect_refusal(command, "other.bin: its tokens are not those of the checkpoint ");
        o = run(PROGRAM " --out %s/words --resume auto --tokenizer %s/same.bin %s", folder, folder,
                way);
        expect_status(&o, 0, way);
    }
}

static void data_are_known_again_wherever_they_are(void **) {
    Outcome o = run("mkdir -p %s/here %s/there && cat README.md README.md >%s/here/book.txt && "
                    "cp %s/here/book.txt %s/there && " RUN
                    "--train %s/here/book.txt --steps 1 --out %s/book && " RUN
                    "--resume %s/book --train %s/there/book.txt --steps 2",
                    folder, folder, folder, folder, folder, folder, folder, folder, folder);
    expect_status(&o, 0, "a copy");
    if (strstr(o.out, "the training data are others")) fail_msg("a copy: %s", o.out);
    o = run(
        "printf '\\001' | dd of=%s/there/book.txt bs=1 seek=6000 conv=notrunc status=none && " RUN
        "--resume %s/book --train %s/there/book.txt --steps 2",
        folder, folder, folder);
    expect_words(o.out, "the training data are others than in the checkpoint", "another byte");
}

static void a_newest_checkpoint_without_an_index_is_named_and_passed_over(void **) {
    copy_run("ref0", "run");
    Outcome o = run("rm %s/run/checkpoints/step_00000010/index.json && " RUN
                    "--out %s/run --resume auto --ranks 2",
                    folder, folder);
    expect_words(o.err, "checkpoints/step_00000010 is passed over: it has no index.json\n",
                 "stderr");
    expect_words(o.out, "resume           step 9, ", "stdout");
    if (lines_of(o.err) != 1) fail_msg("expected one line, found: %s", o.err);
}

static void inputs_that_have_moved_since_are_said_to_be_the_checkpoints(void **) {
    Outcome o =
        run("mkdir %s/moves && cp test/reference/small/train.txt " TOKENIZER " %s/moves && " PROGRAM
            " --tokenizer %s/moves/tokenizer.bin --train %s/moves/train.txt "
            "--model gpt2:L=1,C=8,NH=2,T=16 --steps 2 --threads 1 --checkpoint-every 2 "
            "--out %s/moving && mv %s/moves/train.txt %s/moves/a.txt",
            folder, folder, folder, folder, folder, folder, folder);
    expect_status(&o, 0, "a run");
    char command[1024];
    snprintf(command, sizeof command, PROGRAM " --out %s/moving --resume auto --steps 3", folder);
    expect_refusal(command, "--train, as in the checkpoint: no file matches ");
    run("mv %s/moves/a.txt %s/moves/train.txt; mv %s/moves/tokenizer.bin %s/moves/b.bin", folder,
        folder, folder, folder);
    expect_refusal(command, "--tokenizer, as in the checkpoint: no file matches ");
    o = run("%s --tokenizer %s/moves/b.bin", command, folder);
    expect_status(&o, 0, "the file's new name");
}

static void options_that_differ_are_named_with_both_values(void **) {
    Outcome o = run(PROGRAM " --resume %s/ref0/checkpoints/step_00000006 --steps 8 --lr 0.001 "
                            "--batch 2 --val-every 0 --precision bf16 --threads 1 "
                            "--train test/reference/small/val.txt",
                    folder);
    expect_status(&o, 0, "other options");
    static const char *const words[] = {
        "\n  --lr 0.001, in the checkpoint 0.0003\n",
        "\n  --steps 8, in the checkpoint 10; the learning rate follows the new end\n",
        "\n  --batch 2, in the checkpoint 1\n",
        "\n  --precision bf16, in the checkpoint fp32\n",
        "\n  --val-every 0, in the checkpoint 3\n",
        "\n  --train test/reference/small/val.txt, in the checkpoint test/reference/small/train",
        "\n  the training data are others than in the checkpoint: samples come in another order"};
    for (const char *w : words) expect_words(o.out, w, "other options");
    if (strstr(o.out, "--seed") && strstr(o.out, "in the checkpoint 42"))
        fail_msg("an option that is the same is named: %s", o.out);
}

// Without a step to make it is of no matter how a step's tokens are divided.
static void a_checkpoint_is_exported_on_any_ranks(void **) {
    Outcome o = run(PROGRAM " --resume %s/ref0/checkpoints/step_00000006 --ranks 5 --threads 1 "
                            "--steps 0 --export-model %s/export.bin && "
                            "cmp %s/export.bin %s/ref0/checkpoints/step_00000006/model.bin",
                    folder, folder, folder, folder);
    expect_status(&o, 0, "--ranks 5 --steps 0");
    if (strstr(o.out, "learning rate")) fail_msg("expected no learning rate, found: %s", o.out);
}

// ---- what is refused ---------------------------------------------------------------------------

// FOLDER/run, the reference with some damage done in its folder, is not continued by a run with
// these options: one line, and nothing in it has changed afterwards.
static void expect_unresumed(const char *damage, const char *options, const char *expected) {
    char command[1024];
    copy_run("ref0", "run");
    Outcome o = run("cd %s/run/checkpoints && { %s; } && rm -rf %s/kept && cp -a %s/run %s/kept",
                    folder, damage, folder, folder, folder);
    if (o.status != 0) fail_msg("%s: %s", damage, o.err);
    snprintf(command, sizeof command, RUN "--ranks 2 --out %s/run --resume %s", folder, options);
    expect_refusal(command, expected);
    o = run("diff -r %s/run %s/kept", folder, folder);
    if (o.status != 0) fail_msg("%s, %s: the folder has changed: %s", damage, options, o.out);
}

#define NEWEST "step_00000010/"
#define FLIP(file, byte)                                                                           \
    "printf '\\377' | dd of=" NEWEST file " bs=1 seek=" #byte " conv=notrunc status=none"

static void what_cannot_be_continued_is_refused_and_left_as_it_is(void **) {
    static const char *const cases[][3] = {
        {"true", "auto --model gpt2:L=3,C=12,NH=3,T=7", "its model is L=2,C=12,NH=3,T=7,V=257"},
        {"true", "auto --moment-dtype fp64", "its moments are fp32, the options ask for fp64"},
        {"true", "auto --steps 9", "is at step 10 already"},
        {"true", "auto --ranks 5", "--tokens-per-step 168: expected a multiple"},
        {"true", "auto --train test/reference/tiny/train_*.bin --val= --sample-every 0",
         "its training data are text, --train is uint16 shard"},
        {"sed -i 's/.version.: 1/\"version\": 2/' " NEWEST "index.json", "auto",
         "index.json: version 2 is newer"},
        {"sed -i 's/.step.: 10/\"step\": 11/' " NEWEST "index.json", "auto", "it is damaged"},
        {"truncate -s 700 " NEWEST "index.json", "auto",
         "index.json is cut short or no JSON: it "
         "is damaged"},
        {"echo '{\"a\": 1}' >" NEWEST "index.json", "auto", "expected the format `fsdp.c"},
        {": >" NEWEST "index.json", "auto", "index.json is empty: it is damaged"},
        {"rm " NEWEST "moment_m.bin", "auto", "cannot read "},
        {"truncate -s -1 " NEWEST "moment_v.bin", "auto", "is it complete?"},
        {"truncate -s +4 " NEWEST "model.bin", "auto", "is it complete?"},
        {FLIP("model.bin", 30), "auto", "model.bin: its header is not that of the model"},
        {FLIP("model.bin", 20000), "auto", "model.bin: the checksum of "},
        {FLIP("moment_m.bin", 0), "auto", "moment_m.bin: the checksum of wte, layer 0, does not"},
        {FLIP("moment_v.bin", 33935), "auto", "moment_v.bin: the checksum of lnfb"},
        {"rm " NEWEST "model.bin; mkdir " NEWEST "model.bin", "auto",
         "expected a regular file, found a folder"},
        {"mv step_00000010 step_00000010.tmp; rm step_00000010.tmp/index.json",
         "%s/run/checkpoints/step_00000010.tmp",
         "step_00000010.tmp: this checkpoint was never completed"},
        {"rm " NEWEST "index.json", "%s/run/checkpoints/step_00000010", "found neither"},
        {"true", "%s/nowhere", "nowhere: No such file"},
        {"true", "test", "expected a checkpoint (index.json) or the --out of a run"},
        {"true", "README.md", "expected a checkpoint (index.json) or the --out of a run"},
    };
    char options[256];
    for (auto &c : cases) {
        snprintf(options, sizeof options, c[1], folder);
        expect_unresumed(c[0], options, c[2]);
    }
}

#define NOBODY "setpriv --reuid 65534 --regid 65534 --clear-groups "

// Root may read everything, so this is somebody else.
static void checkpoints_that_may_not_be_read_are_refused(void **) {
    const char *possible = NOBODY PROGRAM " --plan" MODEL DATA " >/dev/null 2>&1";
    if (getuid() != 0 || system(possible) != 0) skip();
    static const char *const cases[][2] = {{NEWEST "model.bin", "model.bin: Permission denied"},
                                           {NEWEST "index.json", "index.json: Permission denied"},
                                           {NEWEST, "step_00000010/index.json: Permission denied"},
                                           {".", "run/checkpoints: Permission denied"}};
    char command[1024];
    for (auto &c : cases) {
        copy_run("ref0", "run");
        Outcome o = run("chown -R 65534 %s/run && chmod 755 %s && cd %s/run/checkpoints && "
                        "chown root %s && chmod 600 %s",
                        folder, folder, folder, c[0], c[0]);
        expect_status(&o, 0, c[0]);
        snprintf(command, sizeof command, NOBODY RUN "--out %s/run --resume auto", folder);
        expect_refusal(command, c[1]);
    }
}

int main(void) {
    seed = getenv("SEED") ? (unsigned)atoi(getenv("SEED")) : (unsigned)time(NULL);
    print_message("SEED=%u\n", seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resumes_from_every_step_on_any_ranks_end_in_the_same_bits),
        cmocka_unit_test(mpirun_goes_on_where_forked_ranks_have_stopped),
        cmocka_unit_test(a_checkpoint_that_is_loaded_and_saved_is_the_same_to_the_byte),
        cmocka_unit_test(a_run_that_goes_back_sets_later_checkpoints_aside),
        cmocka_unit_test(a_run_goes_on_from_what_was_set_aside_with_logs_of_its_own),
        cmocka_unit_test(a_run_goes_on_in_another_folder),
        cmocka_unit_test(a_run_that_is_asked_to_stop_saves_and_goes_on_later),
        cmocka_unit_test(a_run_under_nohup_outlives_its_terminal),
        cmocka_unit_test(a_second_signal_ends_a_run_that_is_still_saving),
        cmocka_unit_test(outliers_are_left_out_also_by_a_run_that_goes_on),
        cmocka_unit_test(ten_steps_without_a_gradient_end_the_run),
        cmocka_unit_test(a_stdout_that_takes_no_more_ends_the_run_when_it_has_saved),
        cmocka_unit_test(data_that_are_cut_short_end_the_run_when_it_has_saved),
        cmocka_unit_test(reads_that_fail_for_a_while_are_tried_again),
        cmocka_unit_test(reads_that_fail_for_good_name_the_file),
        cmocka_unit_test(a_full_disk_ends_the_run_in_one_line_and_harms_no_checkpoint),
        cmocka_unit_test(a_run_on_a_small_disk_goes_on_when_the_disk_has_grown),
        cmocka_unit_test(training_goes_on_while_a_slow_disk_gets_the_state_of_the_call),
        cmocka_unit_test(the_newest_checkpoints_and_some_for_good_are_kept),
        cmocka_unit_test(files_of_others_stay_where_checkpoints_go),
        cmocka_unit_test(a_conversion_leaves_the_runs_logs_as_they_are),
        cmocka_unit_test(a_run_goes_on_with_its_checkpoints_unless_told_otherwise),
        cmocka_unit_test(a_run_goes_on_with_its_audits_and_says_what_they_cost),
        cmocka_unit_test(another_tokenizer_of_the_same_size_is_refused),
        cmocka_unit_test(data_are_known_again_wherever_they_are),
        cmocka_unit_test(a_newest_checkpoint_without_an_index_is_named_and_passed_over),
        cmocka_unit_test(inputs_that_have_moved_since_are_said_to_be_the_checkpoints),
        cmocka_unit_test(options_that_differ_are_named_with_both_values),
        cmocka_unit_test(a_checkpoint_is_exported_on_any_ranks),
        cmocka_unit_test(what_cannot_be_continued_is_refused_and_left_as_it_is),
        cmocka_unit_test(checkpoints_that_may_not_be_read_are_refused),
    };
    if (getenv("ONLY")) cmocka_set_test_filter(getenv("ONLY"));
    return remove_folder_unless(cmocka_run_group_tests(tests, make_references, NULL));
}
