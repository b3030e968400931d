// test/test_program.cpp: the program as a user runs it: ranks with and without MPI give
// the same losses, files come out right, and whatever is wrong ends in one line,
// a non-zero exit, and nothing written.
#include "../lib/die.h"

#include <math.h>
#include <signal.h>
#include <time.h>
#include <vector>

#include "run.h"
#include "trace.h"

#define TINY "--model gpt2:L=2,C=12,NH=3,T=7,V=37 --train test/reference/tiny/train_*.bin "

#define SMALL "--model gpt2:L=1,C=8,NH=2,T=16 --train test/reference/small/train.txt --batch 1 "

static void expect_refusal_of(const char *options, const char *expected) {
    char command[1024];
    snprintf(command, sizeof command, PROGRAM " %s", options);
    expect_refusal(command, expected);
}

static void bad_options_and_files_end_in_one_line(void **) {
    static const struct {
        const char *options, *expected;
    } cases[] = {
        {"--train nowhere_*.bin", "no file matches nowhere_*.bin"},
        {"", "--train: expected token shards or text files, found none; --help lists"},
        {"--out /nowhere --resume auto",
         "and no checkpoint to go on from in --out /nowhere; --help"},
        {SMALL "--keep 2", "no checkpoints are made"},
        {SMALL "--keep-every 2 --out /nowhere", "no checkpoints are made"},
        {"-y 2", "-y 2: expected 0 or 1, as in llm.c; a folder is given with --resume"},
        {TINY "--stepz 3", "did you mean --steps"},
        {TINY "--batch 0", "--batch 0: expected an integer from 1"},
        {TINY "--batch two", "--batch two"},
        {TINY "--seq 8", "at most 7 positions"},
        {TINY "--batch 2 --tokens-per-step 15", "multiple of batch 2 x seq 7"},
        {TINY "--ranks 2 --batch 2 --tokens-per-step 14", "nearest: 28"},
        {TINY "--ranks 8 --shard hybrid:3", "divisor of the 8 ranks"},
        {TINY "--prefetch 2", "at most 1"},
        {TINY "--gather-buffers 1 --prefetch 1", "at most 0"},
        {TINY "--accumulate local", "--reduce fast"},
        {TINY "--shard partly", "--shard partly"},
        {TINY "--sample-every 1", "--tokenizer"},
        {TINY "--nccl-ctas 4", "there are no thread blocks on CPUs"},
        {TINY "--checkpoint-every 2", "--out, which is not given"},
        {TINY "--steps 0 --trace trace.json", "no step to trace"},
        {TINY "--out README.md", "README.md: expected a folder, found a file"},
        {TINY "--export-hf README.md", "README.md: expected a folder, found a file"},
        {TINY "--batch 5000 --ranks 4", "less than one step of 20000; use a smaller --batch or"},
        {TINY "--batch 2 --tokens-per-step 14e5", "use a smaller --tokens-per-step, or give"},
        {"--model gpt2:L=2,C=13,NH=3,T=7,V=37 --train test/reference/tiny/train_*.bin",
         "multiple of the number of heads"},
        {"--model gpt2:L=2,C=12,NH=3,T=7,V=9 --train test/reference/tiny/train_*.bin",
         "below the vocabulary V=9"},
        {"--model gpt2:L=2,C=12,NH=3,T=7,V=9 --train test/reference/small/train.txt", "text data"},
        {"--model nowhere.bin --train test/reference/tiny/train_*.bin", "nowhere.bin"},
        {"--model test/reference/tiny/val_000000.bin --train test/reference/tiny/train_*.bin",
         "magic"},
        {"--train test/reference/tiny/model.bin", "token shard"},
        {TINY "--out /proc/nowhere", "/proc/nowhere"},
        {TINY "--config nowhere.cfg", "nowhere.cfg"},
        {"--model gpt3:c12288 --train test/reference/small/train.txt --seq 64 --steps 1",
         "MiB are needed"},
        {TINY "--batch 2 --tokens-per-step 27", "nearest: 28"},
        {TINY "--val test/reference/small/val.txt", "same kind of data"},
        {TINY "--export-model nowhere/model.bin", "--export-model nowhere/model.bin"},
        {TINY "--export-model test", "found a folder"},
        {TINY "--trace nowhere/trace.json", "--trace nowhere/trace.json"},
        {TINY "--steps 2 >/dev/full", "cannot write to stdout"},
        {TINY "--plan >/dev/full", "cannot write to stdout"},
        {"--help >/dev/full", "cannot write to stdout"},
        {"--version >/dev/full", "cannot write to stdout"},
        {"--model test/reference/small/model.bin --steps 0 --export-model /dev/full", "a device"},
        {"--model gpt2:L=1,C=8,NH=2,T=16,V=50257 --train test/reference/small/train.txt",
         "with --tokenizer and GPT-2's tokenizer.bin it is read as GPT-2's tokens"},
        {"--model test/reference/tiny/model.bin --train test/reference/small/train.txt",
         "has a vocabulary of 37 tokens, test/reference/small/train.txt is text data, read as"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_refusal_of(cases[i].options, cases[i].expected);
}

static void bad_shards_end_in_one_line(void **) {
    char options[512];
    run("head -c 1500 test/reference/tiny/train_000001.bin > %s/short.bin; : > %s/empty.bin; "
        "head -c 100 test/reference/tiny/model.bin > %s/model.bin",
        folder, folder, folder);
    const char *cases[][2] = {{"short.bin", "is it complete?"}, {"empty.bin", "no file has the"}};
    for (auto &c : cases) {
        snprintf(options, sizeof options, "--model gpt2:L=2,C=12,NH=3,T=7,V=37 --train %s/%s",
                 folder, c[0]);
        expect_refusal_of(options, c[1]);
    }
    snprintf(options, sizeof options,
             "--model %s/model.bin --train test/reference/tiny/train_*.bin", folder);
    expect_refusal_of(options, "expected a model.bin");
}

// The loss column of --json lines.
static int losses_of(const char *text, double *losses, int most) {
    int n = 0;
    for (const char *p = text; n < most && (p = strstr(p, "\"loss\":")); p++)
        losses[n++] = atof(p + 7);
    return n;
}

static void expect_same_losses(const char *a, const char *b) {
    double x[32], y[32];
    int n = losses_of(a, x, 32);
    if (n == 0 || n != losses_of(b, y, 32) || memcmp(x, y, sizeof(double) * (size_t)n))
        fail_msg("expected the same losses, found\n%s\nand\n%s", a, b);
}

static void forked_ranks_and_mpirun_give_the_same_losses(void **) {
    const char *options = TINY "--batch 1 --tokens-per-step 84 --steps 6 --json";
    static Outcome one, four, mpi, nodes;
    one = run(PROGRAM " %s", options);
    four = run(PROGRAM " %s --ranks 4", options);
    assert_int_equal(one.status, 0);
    assert_int_equal(four.status, 0);
    expect_same_losses(one.out, four.out);
    if (system("command -v mpirun >/dev/null") != 0) return;
    mpi = run(MPIRUN " -n 4 " PROGRAM " %s", options);
    if (mpi.status != 0) fail_msg("mpirun failed: %s", mpi.err);
    expect_same_losses(one.out, mpi.out);
    nodes = run("FSDP_RANKS_PER_NODE=2 " MPIRUN " -n 6 " PROGRAM " %s --shard hybrid:2", options);
    if (nodes.status != 0) fail_msg("mpirun failed: %s", nodes.err);
    expect_same_losses(one.out, nodes.out);
}

static void threads_and_vector_levels_do_what_they_promise(void **) {
    const char *options = "--model gpt2:L=2,C=64,NH=4,T=64 --train test/reference/small/train.txt "
                          "--batch 2 --steps 4 --json";
    static Outcome one, two;
    one = run(PROGRAM " %s --threads 1", options);
    two = run(PROGRAM " %s --threads 2", options);
    expect_same_losses(one.out, two.out);
    static const char *const levels[] = {"generic", "avx2", "avx512"};
    for (const char *level : levels) {
        Outcome o = run("FSDP_SIMD=%s " PROGRAM " %s", level, options);
        if (strstr(o.err, "as far as this processor has it")) continue;
        double x[32] = {0}, y[32] = {0};
        int n = losses_of(o.out, x, 32);
        assert_int_equal(n, losses_of(one.out, y, 32));
        for (int i = 0; i < n; i++)
            if (!(fabs(x[i] - y[i]) <= 1e-5 * y[i]))
                fail_msg("%s: expected %.9g, found %.9g", level, y[i], x[i]);
    }
}

// Sends a signal to one of three ranks (which: from 1) of a run of `steps` steps. The job must end
// within seconds, not with 0, with these words in the one line that the program says, and leave no
// rank behind.
static void stop_a_rank(const char *launch, const char *signal, int which, int steps,
                        const char *const words[2]) {
    char command[1024], err[4096];
    snprintf(command, sizeof command,
             "set -f; rm -f %s/steps; %s --steps %d --batch 1 --timeout 2 " TINY
             ">%s/steps 2>%s/stopped & pid=$!; for i in `seq 300`; do "
             "grep -q '^step 9/' %s/steps && break; sleep 0.1; done; "
             "kill -%s `pgrep -P $pid -x train_gpt | sed -n %dp` || kill -KILL $pid; wait $pid",
             folder, launch, steps, folder, folder, folder, signal, which);
    time_t began = time(NULL);
    int status = system(command);
    if (status == 0 || time(NULL) - began > 40)
        fail_msg("status %d after %ld s", status, (long)(time(NULL) - began));
    snprintf(command, sizeof command, "%s/stopped", folder);
    read_text(command, err, sizeof err);
    for (int i = 0; i < 2; i++)
        if (!strstr(err, words[i])) fail_msg("expected `%s`, found: %s", words[i], err);
    char *first = strstr(err, "train_gpt: ");
    if (!first || strstr(first + 1, "train_gpt: ")) fail_msg("expected one line, found: %s", err);
    // The brackets keep the shell that runs this from finding itself.
    snprintf(command, sizeof command, "pgrep -f 'train_gpt.*steps [%d]%d' >/dev/null",
             steps / 100000, steps % 100000);
    assert_int_not_equal(system(command), 0);
}

// A rank that dies takes the job down, with a line that names it.
static void a_killed_rank_ends_the_job(void **) {
    static const char *const words[] = {"rank 1 was ended by signal 9", "stopping the other ranks"};
    stop_a_rank(PROGRAM " --ranks 3", "KILL", 2, 123456, words);
}

// A rank that stands still is named within the time limit, by one of the others.
static void a_silent_rank_ends_the_job(void **) {
    static const char *const words[] = {"no progress for 2 seconds; missing: rank 2 at collective ",
                                        "; ranks 0, 1 at collective "};
    stop_a_rank(PROGRAM " --ranks 3", "STOP", 3, 123457, words);
}

static void a_silent_rank_under_mpirun_ends_the_job(void **) {
    if (system("command -v mpirun >/dev/null") != 0) skip();
    static const char *const words[] = {"no progress for 2 seconds; missing: rank ", "; ranks "};
    stop_a_rank(MPIRUN " -n 3 " PROGRAM, "STOP", 3, 123459, words);
}

// The others wait for it in MPI_Init.
static void a_rank_that_never_starts_ends_the_job(void **) {
    if (system("command -v mpirun >/dev/null") != 0) skip();
    Outcome o = run(MPIRUN " -n 2 bash -fc '[ $OMPI_COMM_WORLD_RANK = 0 ] || kill -STOP $$; "
                           "exec " PROGRAM " --timeout 2 --steps 1 " TINY "'");
    if (o.status != 1 ||
        !strstr(o.err, "no progress for 2 seconds; rank 0 before the first collective; missing "
                       "at the start: rank 1"))
        fail_msg("status %d: %s", o.status, o.err);
}

// OMP_PROC_BIND, by itself, binds every process to the first cores.
static void forked_ranks_are_bound_to_cores_of_their_own(void **) {
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2) skip();
    Outcome o = run("OMP_PROC_BIND=true " PROGRAM " " TINY
                    "--ranks 2 --threads 1 --steps 123458 >/dev/null & pid=$!; sleep 1; "
                    "for rank in $(pgrep -P $pid); do grep Cpus_allowed_list /proc/$rank/status; "
                    "done | sort -u; kill $pid; wait");
    if (lines_of(o.out) != 2) fail_msg("expected two sets of cores, found: %s", o.out);
}

static void what_a_run_writes_can_be_read_back(void **) {
    static Outcome o;
    o = run(
        PROGRAM
        " " TINY
        "--val test/reference/tiny/val_000000.bin --steps 4 --val-every 2 --ranks 2 --out %s/run "
        "--export-model %s/run/model.bin",
        folder, folder);
    assert_int_equal(o.status, 0);
    char text[4096], path[128];
    snprintf(path, sizeof path, "%s/run/main.log", folder);
    read_text(path, text, sizeof text);
    assert_int_equal(lines_of(text), 4 + 3);
    assert_non_null(strstr(text, "s:0 tel:"));
    assert_non_null(strstr(text, "s:3 trl:"));
    assert_non_null(strstr(text, "s:4 tel:"));
    // The exported model goes on where the run ended; the saved options repeat the run.
    double end = atof(strstr(text, "s:4 tel:") + 8);
    o = run(PROGRAM " --model %s/run/model.bin --train test/reference/tiny/train_*.bin --val "
                    "test/reference/tiny/val_000000.bin --steps 1 --json",
            folder);
    assert_int_equal(o.status, 0);
    char *val = strstr(o.out, "\"val_loss\":");
    assert_non_null(val);
    assert_true(fabs(atof(val + 11) - end) <= 1e-6 * end);
    o = run(PROGRAM " --config %s/run/options.cfg --out %s/again --export-model %s/model2.bin && "
                    "cmp %s/run/main.log %s/again/main.log && cmp %s/run/model.bin %s/model2.bin",
            folder, folder, folder, folder, folder, folder, folder);
    if (o.status != 0) fail_msg("a repeated run differs: %s%s", o.out, o.err);
}

static void a_tokenizer_has_the_vocabulary_of_the_model(void **) {
    char options[512];
    run("(printf '\\x48\\xd7\\x34\\x01\\2\\0\\0\\0\\3\\0\\0\\0\\2\\0\\0\\0' | sed 's/H/\\xc8/'; "
        "head -c 1008 /dev/zero; printf '\\1a\\1b\\1c') >%s/three.bin",
        folder);
    snprintf(options, sizeof options, TINY "--tokenizer %s/three.bin", folder);
    expect_refusal_of(options,
                      "three.bin has 3 tokens, the model 37: expected the same vocabulary");
}

static void a_plan_can_be_read_by_programs(void **) {
    Outcome o = run(PROGRAM " " TINY "--plan --json --ranks 4 --steps 3");
    static const char *const expected[] = {
        "\"parameters\": 5412", "\"ranks\": 4", "\"batch\": 4",    "\"seq\": 7",
        "\"micro_steps\": 1",   "\"steps\": 3", "\"samples\": 113"};
    for (const char *e : expected)
        if (o.status != 0 || lines_of(o.out) != 1 || !strstr(o.out, e))
            fail_msg("expected %s, found: %s%s", e, o.out, o.err);
}

// T is 16: of both prompts the model sees the same.
static void of_a_prompt_that_is_too_long_the_end_counts(void **) {
    static Outcome o;
    char rest[2][256];
    const char *prompts[] = {"XXXXXXXXXXXX and the last are seen", "OOOO and the last are seen"};
    for (int i = 0; i < 2; i++) {
        o = run(PROGRAM " " SMALL "--steps 0 --sample-every 1 --sample-tokens 20 --temperature 0 "
                        "--prompt '%s'",
                prompts[i]);
        const char *at = strstr(o.out, prompts[i]);
        char expected[100];
        snprintf(expected, sizeof expected,
                 "\nprompt           %zu tokens; of them the model sees "
                 "the last 16\n",
                 strlen(prompts[i]) + 1);
        if (!at || !strstr(o.out, expected)) fail_msg("expected %s, found: %s", expected, o.out);
        snprintf(rest[i], sizeof rest[i], "%s", at + strlen(prompts[i]));
    }
    assert_string_equal(rest[0], rest[1]);
}

static void a_run_that_learned_nothing_does_not_succeed(void **) {
    Outcome o = run(PROGRAM " " SMALL "--steps 8 --lr 1000 --grad-clip 0 --weight-decay 1000 "
                            "--log-every 9 --export-model %s/nothing.bin",
                    folder);
    const char *expected =
        "were skipped, for want of a finite gradient: use a smaller --lr or look";
    if (o.status != 1 || !strstr(o.err, expected))
        fail_msg("expected `%s`, found: %s%s", expected, o.out, o.err);
}

// Longer than the time limit of silent ranks: one step, and each write of the model.
static void slow_work_is_not_silence(void **) {
    Outcome o = run(PROGRAM " --model gpt2:L=2,C=128,NH=4,T=128 --train "
                            "test/reference/small/train.txt --batch 500 --steps 1 --timeout 1");
    const char *ms = strstr(o.out, " ms |");
    while (ms && ms > o.out && ms[-1] != ' ') ms--;
    if (o.status != 0) fail_msg("found: %s%s", o.out, o.err);
    if (!ms) fail_msg("expected a step, found: %s", o.out);
    if (atof(ms) < 1500) print_message("a step of %.0f ms says nothing here\n", atof(ms));
    o = run("BAD_DISK=json BAD_DISK_SLOW_MS=1500 LD_PRELOAD=build/test/bad_disk.so " PROGRAM
            " " SMALL "--steps 1 --timeout 1 --ranks 2 --export-hf %s/slow --out %s/slow "
            "--checkpoint-every 1",
            folder, folder);
    if (o.status != 0) fail_msg("found: %s%s", o.out, o.err);
}

// One sample has a token beyond the vocabulary: a run that ends before it does not see it.
static void what_lies_behind_the_last_step_is_not_read(void **) {
    Outcome o =
        run("cp test/reference/tiny/train_000001.bin %s/bad.bin; printf '\\143' | dd of=%s/bad.bin "
            "bs=1 seek=1450 conv=notrunc status=none; for n in 71 $(" PROGRAM
            " --model gpt2:L=1,C=8,NH=2,T=7,V=37 --train %s/bad.bin --batch 1 --steps 71 --json "
            "2>%s/why | wc -l); do echo steps $n; " PROGRAM
            " --model gpt2:L=1,C=8,NH=2,T=7,V=37 --train %s/bad.bin --batch 1 --steps $n "
            "--log-every 99 >/dev/null; echo rc $?; done; cat %s/why >&2",
            folder, folder, folder, folder, folder, folder);
    int all = 0, before = 0;
    if (sscanf(o.out, "steps 71 rc %d steps %d rc 0", &all, &before) != 2 || all != 1 || before < 1)
        fail_msg("expected 71 steps to fail and those before the bad one to pass, found: %s%s",
                 o.out, o.err);
    if (!strstr(o.err, "below the vocabulary V=37, found 99")) fail_msg("found: %s", o.err);
}

// Every line that --json prints is an object, also of a run that diverges and of samples.
static void json_output_is_json(void **) {
    static Outcome o;
    o = run(PROGRAM " --model gpt2:L=1,C=8,NH=2,T=16 --train test/reference/small/train.txt --val "
                    "test/reference/small/val.txt --batch 1 --steps 8 --lr 1000 --grad-clip 0 "
                    "--val-every 1 --sample-every 4 --sample-tokens 9 --json --export-model "
                    "%s/json.bin",
            folder);
    assert_int_equal(o.status, 0);
    char *line = strtok(o.out, "\n");
    for (int n = 0; line; n++, line = strtok(NULL, "\n"))
        if (line[0] != '{' || line[strlen(line) - 1] != '}' || strstr(line, "nan") ||
            strstr(line, "inf"))
            fail_msg("line %d is no JSON object: %s", n, line);
}

// A file of the run must not get the number of a closed stdout.
static void a_closed_stdout_does_not_end_in_the_log(void **) {
    static Outcome o;
    o = run(PROGRAM " " TINY "--steps 3 --out %s/closed >&- 2>&-", folder);
    assert_int_equal(o.status, 0);
    char text[4096], path[128];
    snprintf(path, sizeof path, "%s/closed/main.log", folder);
    read_text(path, text, sizeof text);
    assert_int_equal(lines_of(text), 3);
    assert_null(strstr(text, "step"));
}

static void expect_words(const char *where, const char *text, const char *expected) {
    if (!strstr(text, expected)) fail_msg("%s: expected `%s`, found: %s", where, expected, text);
}

// The second step is 2 for people and 1 in the files. A loss that is not a number is `nan`,
// whatever its sign.
static void people_count_steps_from_one(void **) {
    static Outcome o;
    static char log[4096], path[128];
    o = run(PROGRAM " " SMALL "--val test/reference/small/val.txt --val-every 4 --sample-every 4 "
                    "--steps 8 --lr 1000 --grad-clip 0 --weight-decay 1000 --sample-tokens 3 "
                    "--out %s/diverged",
            folder);
    assert_int_equal(o.status, 1);
    snprintf(path, sizeof path, "%s/diverged/main.log", folder);
    read_text(path, log, sizeof log);
    expect_words("stdout", o.out, "\nstep 8/8 | loss nan");
    expect_words("stdout", o.out, "\nstep 8/8  validation loss nan");
    expect_words("stdout", o.out, "\n--- sample at step 8/8 ---");
    expect_words("stderr", o.err, "train_gpt: step 8/8: loss nan");
    expect_words("main.log", log, "\ns:7 trl:nan");
    expect_words("main.log", log, "\ns:8 tel:nan");
    if (strstr(o.out, "-nan") || strstr(o.err, "-nan") || strstr(log, "-nan"))
        fail_msg("-nan: %s%s%s", o.out, o.err, log);
}

static void progress_lines_come_every_so_often_and_the_files_have_all(void **) {
    static Outcome o;
    static char log[4096], path[128];
    o = run(PROGRAM " " SMALL "--steps 7 --log-every 3 --out %s/sparse | grep -o '^step [0-9]*'",
            folder);
    assert_string_equal(o.out, "step 1\nstep 3\nstep 6\nstep 7\n");
    snprintf(path, sizeof path, "%s/sparse/main.log", folder);
    read_text(path, log, sizeof log);
    assert_int_equal(lines_of(log), 7);
}

static void no_steps_validate_sample_and_export(void **) {
    static Outcome o;
    o = run(PROGRAM " " SMALL "--val test/reference/small/val.txt --sample-every 1 "
                    "--sample-tokens 3 --steps 0 --export-model %s/start.bin",
            folder);
    assert_int_equal(o.status, 0);
    expect_words("stdout", o.out, "step 0/0  validation loss 5.");
    expect_words("stdout", o.out, "--- sample at step 0/0 ---");
    if (strstr(o.out, "| loss")) fail_msg("a step was made: %s", o.out);
    o = run(PROGRAM " --model %s/start.bin --steps 0 --sample-every 1 --sample-tokens 3", folder);
    expect_words("without data", o.out, "--- sample at step 0/0 ---");
}

static void the_table_says_that_the_warm_up_is_too_long(void **) {
    static Outcome o;
    o = run(PROGRAM " " SMALL "--steps 3 --warmup 10 --lr 1");
    expect_words("stdout", o.out,
                 "warm-up 10 steps, longer than the run: 1.00e-01 at step 1, "
                 "3.00e-01 at step 3\n");
    o = run(PROGRAM " " SMALL "--steps 4 --warmup 2 --lr 1 --schedule linear --final-lr 0");
    expect_words("stdout", o.out,
                 "learning rate    linear, warm-up 2 steps: 5.00e-01 at step 1, "
                 "1.00e+00 at step 2, 5.00e-01 at step 4\n");
}

static void the_table_says_what_the_files_give(void **) {
    static Outcome o;
    o = run(": >%s/d1.txt; cp test/reference/small/val.txt %s/d2.txt; " PROGRAM " " SMALL
            "--steps 1 --val %s/d1.txt,%s/d2.txt --val-batches 3",
            folder, folder, folder, folder);
    expect_words(
        "stdout", o.out,
        "\ndata             1299 tokens in 1 file(s), 81 samples; 1 steps = 0.01 epochs\n");
    expect_words("stdout", o.out, "tokens in 2 file(s), 1 of them too short for a sample ");
    expect_words("stdout", o.out, " samples; 3 of ");
    o = run("head -c 40 test/reference/small/val.txt >%s/s1.txt; cp %s/s1.txt %s/s2.txt; head -c "
            "160 test/reference/small/val.txt >%s/s3.txt; " PROGRAM
            " --model gpt2:L=1,C=8,NH=2,T=64 --train '%s/s*.txt' --steps 1 --batch 5",
            folder, folder, folder, folder, folder);
    expect_words("stdout", o.out,
                 "243 tokens in 3 file(s), 2 of them too short for a sample (33.7 % of the tokens, "
                 "which are not used), 2 samples; 1 steps = 2.50 epochs; a step has each sample "
                 "2.5 times\n");
}

// In the text, `z` follows the end-of-text token, and `a` a newline.
static void samples_of_text_begin_on_a_new_line(void **) {
    static Outcome o;
    o = run("(printf zzzzzzzz; yes ab | head -n 24) >%s/lines.txt; " PROGRAM
            " --model gpt2:L=1,C=32,NH=2,T=8 --train %s/lines.txt --batch 8 --steps 100 --lr 1e-2 "
            "--log-every 100 --sample-every 100 --temperature 0 --sample-tokens 9",
            folder, folder);
    expect_words("stdout", o.out, "--- sample at step 100/100 ---\nab\nab\nab\n");
}

// The parameters of a model.bin; good until the next call.
static const float *parameters_of(const char *name, size_t *n) {
    static float file[1 << 16];
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "r");
    size_t read = f ? fread(file, sizeof *file, sizeof file / sizeof *file, f) : 0;
    if (f) fclose(f);
    assert_true(read > 256 && read < sizeof file / sizeof *file);
    *n = read - 256;
    return file + 256;  // behind the header
}

static double norm_of(const std::vector<float> &x) {
    double sum = 0;
    for (float y : x) sum += (double)y * y;
    return sqrt(sum);
}

// As the two models say, and the same bits on any number of ranks, in every strategy.
static void the_update_is_measured_against_the_parameters(void **) {
    static const char *const options[] = {"",
                                          "--ranks 2",
                                          "--ranks 3 --unit half",
                                          "--ranks 4 --shard hybrid:2",
                                          "--ranks 4 --shard none",
                                          "--ranks 2 --reduce fast",
                                          "--grad-dtype bf16"};
    static const char run_of_two[] = PROGRAM
        " " TINY "--batch 1 --tokens-per-step 84 --lr 0.01 --warmup 0 --schedule constant --json "
        "--ratio-every 1 ";
    size_t n;
    run("%s --steps 1 --export-model %s/one.bin", run_of_two, folder);
    const float *at = parameters_of("one.bin", &n);
    std::vector<float> change(at, at + n);
    run("%s --steps 2 --export-model %s/two.bin", run_of_two, folder);
    at = parameters_of("two.bin", &n);
    std::vector<float> reached(at, at + n);
    for (size_t i = 0; i < n; i++) change[i] -= reached[i];
    const double expected = norm_of(change) / norm_of(reached);
    char first[64] = "";
    for (const char *o : options) {
        Outcome x = run("%s --steps 2 %s", run_of_two, o);
        const char *line = strstr(x.out, "{\"step\":1,"),
                   *field = line ? strstr(line, "\"update_ratio\":") : NULL;
        if (!field) fail_msg("%s: found %s%s", o, x.out, x.err);
        double found = atof(field + strlen("\"update_ratio\":"));
        bool exact = !strstr(o, "fast") && !strstr(o, "bf16");
        if (!(fabs(found - expected) < (exact ? 1e-5 : 1e-2) * expected))
            fail_msg("%s: expected %g, found %g", o, expected, found);
        if (!first[0]) snprintf(first, sizeof first, "%.*s", (int)strcspn(field, ","), field);
        if (exact && strncmp(first, field, strlen(first)))
            fail_msg("%s: expected %s, found %.*s", o, first, (int)strcspn(field, ","), field);
    }
    Outcome x = run("%s --steps 3 --ratio-every 2 | grep -o 'update_ratio.:[n0]'", run_of_two);
    assert_string_equal(x.out, "update_ratio\":n\nupdate_ratio\":0\nupdate_ratio\":n\n");
}

static void traces_of_ranks_fit_together(void **) {
    char path[128];
    Outcome o =
        run(PROGRAM " --model gpt2:L=4,C=64,NH=2,T=32 --train test/reference/small/train.txt "
                    "--ranks 2 --threads 1 --steps 3 --trace %s/trace.json",
            folder);
    if (o.status != 0) fail_msg("%s", o.err);
    snprintf(path, sizeof path, "%s/trace.json", folder);
    check_traces(path);
}

static void every_rank_takes_part_in_a_validation_smaller_than_the_ranks(void **) {
    static Outcome one, five;
    const char *options =
        TINY "--val test/reference/tiny/val_000000.bin --batch 4 --steps 1 --val-batches 2 "
             "--tokens-per-step 140 --json";
    one = run(PROGRAM " %s", options);
    five = run(PROGRAM " %s --ranks 5", options);
    char *a = strstr(one.out, "\"val_loss\":"), *b = strstr(five.out, "\"val_loss\":");
    if (!a || !b || atof(a + 11) != atof(b + 11))
        fail_msg("expected one validation loss, found\n%s\n%s", one.out, five.out);
}

static void state_of_a_rank_is_bytes_per_parameter_over_ranks(void **) {
    static const struct {
        const char *options, *expected;
    } cases[] = {{"--precision fp32", "16.0 bytes a parameter / 64 ranks"},
                 {"--precision bf16", "16.0 bytes a parameter / 64 ranks"},
                 {"--precision fp64-moments", "24.0 bytes a parameter / 64 ranks"},
                 {"--moment-dtype bf16", "12.0 bytes a parameter / 64 ranks"}};
    for (auto &c : cases) {
        static Outcome o;
        o = run(PROGRAM " --plan --gpu h100-sxm --ranks 64 --model gpt3:c12288 %s", c.options);
        char *line = strstr(o.out, c.expected);
        double padding = 100;
        if (!line || sscanf(strchr(line, '='), "= %*f GiB, %lf %% padding", &padding) != 1 ||
            padding > 1)
            fail_msg("expected `%s` and less than 1 %% padding, found: %s", c.expected, o.out);
    }
}

// ---- nothing of the user's is lost -------------------------------------------------------------

#define BOOK "--model gpt2:L=1,C=8,NH=2,T=16 --batch 1 --steps 2 --train %s/book.txt "

static void results_that_are_read_or_written_already_are_refused(void **) {
    static const char *const cases[][2] = {
        {"--export-model D/book.txt", "--export-model D/book.txt: expected a file of its own, "
                                      "found that of --train"},
        {"--trace D/book.txt", "that of --train"},
        {"--trace D/soft", "that of --train"},
        {"--trace D/hard", "that of --train"},
        {"--export-model D/other/../other/book.txt", "that of --train"},
        {"--plan --trace D/book.txt", "that of --train"},
        {"--export-model D/x --trace D/x", "--export-model D/x: expected a file of its own, found "
                                           "that of --trace"},
        {"--export-model D/dangling --trace D/target", "that of --trace"},
        {"--out D/new/run --trace D/new/./run/main.log", "that of --trace"},
        {"--out D/o --export-model D/o/options.cfg", "that of --export-model"},
        {"--out D/o --export-model D/o/checkpoints/step_00000009", "that of --out"},
        {"--export-hf D/h --trace D/h/config.json", "that of --trace"},
        {"--ranks 2 --trace D/t --export-model D/t.rank-1", "that of --trace"},
        {"--config D/a.cfg --config D/b.cfg --trace D/a.cfg", "that of --config"},
        {"--trace D/both >D/both", "that of stdout"},
        {"--export-model ./train_gpt", "that of the program"},
        {"--export-model /dev/null", "--export-model /dev/null: expected a file, found a device"},
        {"--trace D/pipe", "expected a file, found a pipe"},
        {"--out D/odd", "D/odd/main.log: expected a file, found a folder"},
    };
    run("cp test/reference/small/train.txt %s/book.txt; cd %s; mkdir -p odd/main.log other; "
        "ln -s ../book.txt other; ln -s book.txt soft; ln book.txt hard; ln -s target dangling; "
        "mkfifo pipe; touch a.cfg b.cfg",
        folder, folder);
    for (auto &c : cases) {
        char options[1024], expected[256];
        snprintf(options, sizeof options, BOOK, folder);
        for (const char *at = c[0]; *at; at++)
            snprintf(options + strlen(options), sizeof options - strlen(options), "%.*s",
                     *at == 'D' ? (int)strlen(folder) : 1, *at == 'D' ? folder : at);
        const char *rest = strstr(c[1], ": expected");
        snprintf(expected, sizeof expected, "%s", rest ? rest : c[1]);
        expect_refusal_of(options, expected);
    }
    Outcome o =
        run("cmp test/reference/small/train.txt %s/book.txt; cd %s; ls new o h x", folder, folder);
    if (o.out[0] || lines_of(o.err) != 4) fail_msg("found: %s%s", o.out, o.err);
}

// Of three runs, and of a user whose files have the names that a program might choose.
static void results_leave_what_is_there_and_follow_links(void **) {
    run("mkdir -p %s/mine; cp test/reference/small/train.txt %s/book.txt; cd %s/mine; "
        "for f in probe tmp; do echo mine >m.bin.$f; echo mine >t.$f; done; "
        "ln -s real.bin m.bin; mkdir h; echo mine >h/config.json.1; echo mine >DONE_00000002",
        folder, folder, folder);
    for (int i = 0; i < 3; i++) {
        Outcome o = run(PROGRAM " " BOOK "--seed %d --export-model %s/mine/m.bin --trace "
                                "%s/mine/t --export-hf %s/mine/h --ranks 2",
                        folder, i, folder, folder, folder);
        if (o.status != 0) fail_msg("%s", o.err);
    }
    Outcome o = run("cd %s/mine; set +f; cat *.probe *.tmp h/config.json.1; readlink m.bin; ls; "
                    "ls h; cmp real.bin real.bin.1; cmp real.bin.1 real.bin.2",
                    folder);
    const char *expected = "mine\nmine\nmine\nmine\nmine\nreal.bin\nDONE_00000002\nh\nm.bin\n"
                           "m.bin.probe\nm.bin.tmp\nreal.bin\nreal.bin.1\nreal.bin.2\n";
    if (strncmp(o.out, expected, strlen(expected)))
        fail_msg("expected %s, found: %s", expected, o.out);
    if (!strstr(o.out, "\nconfig.json\nconfig.json.1\nconfig.json.2\nconfig.json.3\n"
                       "model.safetensors\nmodel.safetensors.2\nmodel.safetensors.3\n"
                       "real.bin real.bin.1 differ"))
        fail_msg("expected three models, found: %s", o.out);
    o = run("cd %s/mine; set +f; grep -l compute t* | wc -l", folder);  // of 3 runs of 2 ranks
    if (strcmp(o.out, "6\n")) fail_msg("expected 6 traces, found %s", o.out);
}

static void runs_at_once_in_one_folder_lose_nothing(void **) {
    run("cp test/reference/small/train.txt %s/book.txt", folder);
    char command[1024];
    snprintf(command, sizeof command,
             PROGRAM " " BOOK "--out %s/shared --steps 123461 >/dev/null & pid=$!; "
                     "for i in $(seq 100); do test -s %s/shared/main.log && break; sleep 0.1; "
                     "done; " PROGRAM " " BOOK "--out %s/shared; code=$?; "
                     "kill -KILL $pid; { wait; } 2>/dev/null; exit $code",
             folder, folder, folder, folder, folder);
    expect_refusal(command, "/shared: another run is writing there");
    Outcome o = run(PROGRAM " " BOOK "--out %s/shared && for i in 1 2 3 4; do " PROGRAM " " BOOK
                            "--seed $i --export-model %s/twice.bin & done; wait; set +f; "
                            "ls %s/twice* | wc -l; "
                            "for f in %s/twice*; do cmp %s/twice.bin $f; done | wc -l",
                    folder, folder, folder, folder, folder, folder, folder);
    if (!strstr(o.out, "\n4\n3\n")) fail_msg("expected 4 models, found: %s%s", o.out, o.err);
}

// ---- texts with a tokenizer --------------------------------------------------------------------

#define TOKENS                                                                                     \
    "--tokenizer test/reference/tokenizer/tokenizer.bin --model gpt2:L=1,C=8,NH=2,T=16 --batch 1 " \
    "--tokens-per-step 96 --steps 2 --val-batches 3 --json "

// The losses of each line of a run.
static const char *losses_of(const Outcome *o, char *losses, size_t room) {
    size_t n = 0;
    for (const char *at = o->out; (at = strstr(at, "loss\":")) != NULL; at++)
        n += (size_t)snprintf(losses + n, n < room ? room - n : 0, "%.9g ", atof(at + 6));
    return losses;
}

static void texts_are_tokenized_once_and_alike_on_any_ranks(void **) {
    static char first[1024], again[1024];
    run("cp test/reference/small/train.txt %s/a.txt; cp test/reference/small/val.txt %s/b.txt",
        folder, folder);
    static Outcome o;
    o = run(PROGRAM " " TOKENS "--train '%s/a.txt,%s/b.txt' --val %s/b.txt", folder, folder,
            folder);
    if (o.status != 0) fail_msg("%s", o.err);
    losses_of(&o, first, sizeof first);
    if (strlen(first) < 3 * 10) fail_msg("expected the losses of 2 steps, found: %s", o.out);
    o = run("stat -c %%Y-%%i %s/?.txt.tokens-*/*; " PROGRAM " " TOKENS
            "--train '%s/a.txt,%s/b.txt' --val %s/b.txt --ranks 3 && stat -c %%Y-%%i "
            "%s/?.txt.tokens-*/*",
            folder, folder, folder, folder, folder);
    assert_string_equal(losses_of(&o, again, sizeof again), first);
    // made by three ranks, in another folder
    o = run(PROGRAM
            " " TOKENS
            "--train '%s/a.txt,%s/b.txt' --val %s/b.txt --ranks 3 --token-folder %s/not/there; ls "
            "%s/not/there",
            folder, folder, folder, folder, folder);
    assert_string_equal(losses_of(&o, again, sizeof again), first);
    if (!strstr(o.out, "a.txt.tokens-") || !strstr(o.out, "b.txt.tokens-"))
        fail_msg("expected the tokens in the folder, found: %s%s", o.out, o.err);
}

static void texts_that_cannot_be_tokenized_are_refused(void **) {
    run("cp test/reference/small/train.txt %s/a.txt; cp test/reference/small/train.txt %s/new.txt",
        folder, folder);
    char command[1024];
    const struct {
        const char *options, *expected;
    } cases[] = {
        {"--train '%s/a.txt,test/reference/tiny/train_000001.bin'", "mixes kinds of data"},
        {"--train %s/a.txt --model gpt2:L=1,C=8,NH=2,T=16,V=257", "expected the same vocabulary"},
        {"--train %s/a.txt --token-folder /proc/nowhere", "cannot make the folder /proc/nowhere"},
        {"--train %s/new.txt --plan", "a plan needs its tokens"},
    };
    for (auto &c : cases) {
        int n = snprintf(command, sizeof command, PROGRAM " " TOKENS);
        snprintf(command + n, sizeof command - (size_t)n, c.options, folder);
        expect_refusal(command, c.expected);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_options_and_files_end_in_one_line),
        cmocka_unit_test(bad_shards_end_in_one_line),
        cmocka_unit_test(forked_ranks_and_mpirun_give_the_same_losses),
        cmocka_unit_test(threads_and_vector_levels_do_what_they_promise),
        cmocka_unit_test(a_killed_rank_ends_the_job),
        cmocka_unit_test(a_silent_rank_ends_the_job),
        cmocka_unit_test(a_silent_rank_under_mpirun_ends_the_job),
        cmocka_unit_test(a_rank_that_never_starts_ends_the_job),
        cmocka_unit_test(forked_ranks_are_bound_to_cores_of_their_own),
        cmocka_unit_test(what_a_run_writes_can_be_read_back),
        cmocka_unit_test(a_tokenizer_has_the_vocabulary_of_the_model),
        cmocka_unit_test(a_plan_can_be_read_by_programs),
        cmocka_unit_test(of_a_prompt_that_is_too_long_the_end_counts),
        cmocka_unit_test(a_run_that_learned_nothing_does_not_succeed),
        cmocka_unit_test(slow_work_is_not_silence),
        cmocka_unit_test(what_lies_behind_the_last_step_is_not_read),
        cmocka_unit_test(json_output_is_json),
        cmocka_unit_test(a_closed_stdout_does_not_end_in_the_log),
        cmocka_unit_test(people_count_steps_from_one),
        cmocka_unit_test(progress_lines_come_every_so_often_and_the_files_have_all),
        cmocka_unit_test(no_steps_validate_sample_and_export),
        cmocka_unit_test(the_table_says_that_the_warm_up_is_too_long),
        cmocka_unit_test(the_table_says_what_the_files_give),
        cmocka_unit_test(samples_of_text_begin_on_a_new_line),
        cmocka_unit_test(the_update_is_measured_against_the_parameters),
        cmocka_unit_test(traces_of_ranks_fit_together),
        cmocka_unit_test(every_rank_takes_part_in_a_validation_smaller_than_the_ranks),
        cmocka_unit_test(state_of_a_rank_is_bytes_per_parameter_over_ranks),
        cmocka_unit_test(results_that_are_read_or_written_already_are_refused),
        cmocka_unit_test(results_leave_what_is_there_and_follow_links),
        cmocka_unit_test(runs_at_once_in_one_folder_lose_nothing),
        cmocka_unit_test(texts_are_tokenized_once_and_alike_on_any_ranks),
        cmocka_unit_test(texts_that_cannot_be_tokenized_are_refused),
    };
    return run_in_folder(tests);
}
