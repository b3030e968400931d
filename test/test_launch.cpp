// test/test_launch.cpp: ranks that torchrun or Slurm has started, without MPI: who they are
// (lib/launch.h), how they find each other (lib/star.h), and the program under both.
#include "../lib/launch.h"
#include "../lib/star.h"
#include "run.h"

#include <arpa/inet.h>
#include <sys/stat.h>

#define OPTIONS                                                                                    \
    "--model gpt2:L=2,C=12,NH=3,T=7,V=37 --train 'test/reference/tiny/train_*.bin' --batch 1 "     \
    "--json "
#define STEPS OPTIONS "--tokens-per-step 84 --steps 3 "

// ---- who has started this process --------------------------------------------------------------

static void the_first_host_of_slurms_lists_is_found(void **) {
    static const char *const lists[][2] = {{"node1", "node1"},
                                           {"a,b", "a"},
                                           {"gpu[07-09,12]-ib,gpu20", "gpu07-ib"},
                                           {"rack[3-4]n[01,05-07]", "rack3n01"},
                                           {"n[5]", "n5"},
                                           {"", ""}};
    for (auto &l : lists) {
        char host[64];
        launch_first_host(l[0], host, sizeof host);
        assert_string_equal(host, l[1]);
    }
    char shortest[4];
    launch_first_host("node[1-2]", shortest, sizeof shortest);
    assert_string_equal(shortest, "nod");
}

// The environment of this process, without the launchers' variables, and with these.
static Launch look(const char *variables, bool has_mpi) {
    static const char *const all[] = {"RANK",
                                      "WORLD_SIZE",
                                      "MASTER_ADDR",
                                      "MASTER_PORT",
                                      "TORCHELASTIC_RUN_ID",
                                      "TORCHELASTIC_USE_AGENT_STORE",
                                      "SLURM_PROCID",
                                      "SLURM_JOB_ID",
                                      "SLURM_STEP_NUM_TASKS",
                                      "SLURM_STEP_ID",
                                      "SLURM_STEP_NODELIST",
                                      "OMPI_COMM_WORLD_RANK",
                                      "PMIX_RANK",
                                      "SLURM_JOB_NODELIST",
                                      "OMPI_COMM_WORLD_SIZE",
                                      "PMI_RANK",
                                      "PMI_SIZE"};
    char text[512], *rest = text, *word;
    snprintf(text, sizeof text, "%s", variables);
    for (const char *name : all) unsetenv(name);
    while ((word = strsep(&rest, " "))) {
        char *value = strchr(word, '=');
        if (value) *value = 0, setenv(word, value + 1, 1);
    }
    return launch_look(has_mpi);
}

static void the_launcher_is_known_by_its_variables(void **) {
    static const struct {
        const char *variables;
        bool has_mpi;
        LaunchKind kind;
        int rank, world;
        const char *host;
        int port;
    } cases[] = {
        {"", true, LAUNCH_NONE, 0, 1, "", 0},
        {"WORLD_SIZE=4", true, LAUNCH_NONE, 0, 1, "", 0},
        {"SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 MASTER_ADDR=h MASTER_PORT=5 WORLD_SIZE=2", false,
         LAUNCH_SRUN, 1, 2, "h", 5},
        {"RANK=2 WORLD_SIZE=3 MASTER_ADDR=h MASTER_PORT=29500", true, LAUNCH_TORCHRUN, 2, 3, "h",
         29500},
        {"RANK=0 WORLD_SIZE=3 MASTER_ADDR=h MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=True",
         true, LAUNCH_TORCHRUN, 0, 3, "h", 29501},
        {"RANK=0 WORLD_SIZE=3 MASTER_ADDR=h MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=False",
         true, LAUNCH_TORCHRUN, 0, 3, "h", 29500},
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", true, LAUNCH_MPI, 1, 2, "", 0},
        {"PMI_RANK=1", true, LAUNCH_MPI, 1, 2, "", 0},
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 RANK=0 WORLD_SIZE=8 MASTER_ADDR=h "
         "MASTER_PORT=1",
         true, LAUNCH_MPI, 1, 2, "", 0},
        {"PMIX_RANK=0 RANK=5 WORLD_SIZE=8 MASTER_ADDR=h MASTER_PORT=1 TORCHELASTIC_RUN_ID=x", true,
         LAUNCH_TORCHRUN, 5, 8, "h", 1},
        {"SLURM_PROCID=0 SLURM_JOB_ID=7 SLURM_JOB_NODELIST=a", true, LAUNCH_NONE, 0, 1, "", 0},
        {"SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_JOB_ID=7 SLURM_STEP_ID=1 "
         "SLURM_STEP_NODELIST=n[2-3]",
         true, LAUNCH_SRUN, 3, 4, "n2", 20057},
        {"SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_JOB_NODELIST=n[2-3] MASTER_ADDR=h "
         "MASTER_PORT=5",
         true, LAUNCH_SRUN, 3, 4, "h", 5},
        {"SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NODELIST=n PMIX_RANK=3", true,
         LAUNCH_MPI, 3, 4, "", 0},
        {"SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NODELIST=n PMIX_RANK=3", false,
         LAUNCH_SRUN, 3, 4, "n", 20000},
    };
    for (auto &c : cases) {
        Launch l = look(c.variables, c.has_mpi);
        if (l.kind != c.kind || l.rank != c.rank || l.world != c.world || strcmp(l.host, c.host) ||
            l.port != c.port || l.fault[0])
            fail_msg("%s: found kind %d, rank %d of %d at %s:%d %s", c.variables, l.kind, l.rank,
                     l.world, l.host, l.port, l.fault);
    }
    look("", true);
}

// ---- the star ----------------------------------------------------------------------------------

static void read_all(const Star *s, int i, void *words, size_t bytes) {
    struct pollfd ready = s->sockets[STAR_WORDS][i];
    for (size_t got = 0; got < bytes;) {
        poll(&ready, 1, -1);
        got += star_read(s, i, (char *)words + got, bytes - got);
    }
}

// Each rank sends its number, and gets the sum.
static int exchange(int rank, int world, int port) {
    Star s = {};
    long sum = rank, x;
    star_join(&s, rank, world, "localhost", port, 20);
    if (rank) {
        star_write(&s, 0, &sum, sizeof sum);
        read_all(&s, 0, &sum, sizeof sum);
    }
    for (int i = 1; !rank && i < world; i++) read_all(&s, i, &x, sizeof x), sum += x;
    for (int i = 1; !rank && i < world; i++) star_write(&s, i, &sum, sizeof sum);
    star_leave(&s);
    return sum != (long)world * (world - 1) / 2;
}

static void ranks_of_64_nodes_find_each_other(void **) {
    enum { WORLD = 512 };
    int port = free_port(), failed = 0;
    for (int i = WORLD - 1; i >= 0; i--) {
        pid_t pid = fork();
        if (pid < 0) fail_msg("cannot fork: %s", strerror(errno));
        if (pid == 0) _exit(exchange(i, WORLD, port));
    }
    for (int i = 0, status; i < WORLD; i++)
        if (wait(&status) < 0 || status != 0) failed++;
    assert_int_equal(failed, 0);
}

// ---- the program -------------------------------------------------------------------------------

static void expect_same_losses(const Outcome *a, const Outcome *b) {
    const char *x = a->out, *y = b->out;
    int n = 0;
    for (; (x = strstr(x, "\"loss\":")) && (y = strstr(y, "\"loss\":")); x++, y++, n++)
        if (strncmp(x, y, strcspn(x, ","))) break;
    if (x || n != 3)
        fail_msg("expected the same losses, found\n%s\nand\n%s%s", a->out, b->out, b->err);
}

static void ranks_of_torchrun_and_srun_train_as_forked_ones(void **) {
    static const char *const launchers[] = {TORCHRUN, SRUN};
    static Outcome forked, launched;
    forked = run(PROGRAM " " STEPS);
    for (const char *launcher : launchers)
        for (int ranks = 2; ranks <= 3; ranks++) {
            launched = run_tasks(ranks, launcher, PROGRAM " " STEPS, ":");
            expect_text(launched, ranks == 2 ? "codes 0 0\n" : "codes 0 0 0\n");
            expect_same_losses(&forked, &launched);
        }
}

// The agent listens at MASTER_PORT itself.
static void torchruns_own_store_is_left_alone(void **) {
    struct sockaddr_in at = {};
    socklen_t bytes = sizeof at;
    int agent = socket(AF_INET, SOCK_STREAM, 0);
    at.sin_family = AF_INET;
    assert_true(bind(agent, (struct sockaddr *)&at, bytes) == 0 && listen(agent, 1) == 0 &&
                getsockname(agent, (struct sockaddr *)&at, &bytes) == 0);
    char variables[256];
    snprintf(variables, sizeof variables,
             TORCHRUN "MASTER_PORT=%d TORCHELASTIC_USE_AGENT_STORE=True", ntohs(at.sin_port));
    Outcome o = run_tasks(2, variables, PROGRAM " " STEPS, ":");
    close(agent);
    expect_text(o, "codes 0 0\n");
}

// Checkpoints, samples and the end of a run that is asked to stop go by the same words.
static void a_run_that_is_asked_to_stop_goes_on_under_another_launcher(void **) {
    char command[512];
    snprintf(command, sizeof command,
             PROGRAM " " OPTIONS "--tokens-per-step 84 --lr 0.001 --checkpoint-every 1000 --resume "
                     "auto --out %s/stops --steps ",
             folder);
    char first[1024];
    snprintf(first, sizeof first, "%s 1000000 >/dev/null", command);
    Outcome o = run_tasks(2, TORCHRUN, first, "sleep 2; kill -TERM ${p[0]} ${p[1]}");
    expect_text(o, "codes 75 75\n");
    expect_text(o, "as asked, and saved; to go on: --resume auto --out ");
    snprintf(
        first, sizeof first,
        "bash -c 'exec \"$@\" --steps $((1 + $(ls %s/stops/checkpoints | grep -o [1-9].*)))' x "
        "%s 1",
        folder, command);
    o = run_tasks(3, SRUN, first, ":");
    expect_text(o, "codes 0 0 0\n");
}

// The shell adds lines of its own when a task is killed.
static void expect_end(const Outcome *o, const char *codes, const char *line) {
    int lines = 0;
    for (const char *at = o->err; (at = strstr(at, "train_gpt: ")); at++) lines++;
    if (!strstr(o->out, codes) || !strstr(o->err, line) || lines != 1)
        fail_msg("expected `%s` and one line with `%s`, found: %s%s", codes, line, o->out, o->err);
}

static void ranks_that_do_not_fit_together_end_in_one_line(void **) {
    static const struct {
        int ranks;
        const char *variables, *codes, *line;
    } cases[] = {
        {2, TORCHRUN "WORLD_SIZE=$((2 + i))", "codes 1 1\n",
         "rank 1 was started as one of 3, rank 0 as one of 2"},
        {3, TORCHRUN "RANK=$((i > 0))", "codes 1 1 1\n", "two processes were started as rank 1"},
        {1, TORCHRUN "WORLD_SIZE=3", "codes 1\n", "expected 3 ranks, 2 have not come to port"},
        {1, TORCHRUN "RANK=1 WORLD_SIZE=2", "codes 1\n", "rank 0 does not answer at localhost"},
        {1, TORCHRUN "RANK=2 WORLD_SIZE=2", "codes 1\n",
         "RANK=2 WORLD_SIZE=2: expected the number of this rank"},
        {1, TORCHRUN "RANK= WORLD_SIZE=2", "codes 1\n", "RANK= WORLD_SIZE=2: expected"},
        {1, TORCHRUN "RANK=1 WORLD_SIZE=", "codes 1\n", "RANK=1 WORLD_SIZE=: expected"},
        {1, TORCHRUN "RANK=0 WORLD_SIZE=abc", "codes 1\n", "RANK=0 WORLD_SIZE=abc: expected"},
        {1, TORCHRUN "RANK=1.5 WORLD_SIZE=2", "codes 1\n", "RANK=1.5 WORLD_SIZE=2: expected"},
        {1, TORCHRUN "RANK=1 WORLD_SIZE=1", "codes 1\n", "RANK=1 WORLD_SIZE=1: expected"},
        {1, "RANK=0 WORLD_SIZE=2", "codes 1\n", "expected the host name and a free port"},
        {1, TORCHRUN "WORLD_SIZE=2 MASTER_PORT=70000", "codes 1\n", "MASTER_PORT=70000: expected"},
        {1, "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2", "codes 1\n", "SLURM_STEP_NODELIST"},
    };
    for (auto &c : cases) {
        Outcome o = run_tasks(c.ranks, c.variables, PROGRAM " " STEPS "--timeout 2", ":");
        expect_end(&o, c.codes, c.line);
    }
    Outcome o = run_tasks(2, TORCHRUN, PROGRAM " " STEPS "--ranks 3", ":");
    expect_end(&o, "codes 1 1\n", "--ranks 3: RANK and WORLD_SIZE started 2");
}

static void a_port_that_is_taken_is_named(void **) {
    Outcome o = run_tasks(1, TORCHRUN "WORLD_SIZE=2", PROGRAM " " STEPS "--timeout 2",
                          "sleep 0.5; env RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost "
                          "MASTER_PORT=$port " PROGRAM " " STEPS);
    expect_text(o, "rank 0 cannot listen at port");
}

// A port scanner, say: it sends too little, something else, or nothing.
static void other_programs_that_connect_are_left_alone(void **) {
    Outcome o = run_tasks(1, TORCHRUN "WORLD_SIZE=2", PROGRAM " " STEPS,
                          "sleep 0.5; echo GET / >/dev/tcp/localhost/$port; "
                          "head -c 100 /dev/zero >/dev/tcp/localhost/$port; "
                          ": >/dev/tcp/localhost/$port; i=1; n=2; env " TORCHRUN PROGRAM " " STEPS);
    expect_text(o, "codes 0\n");
}

static void a_rank_that_ends_takes_the_others_along(void **) {
    char options[256];
    snprintf(options, sizeof options, PROGRAM " " OPTIONS "--steps 100000 >/dev/null");
    Outcome o = run_tasks(3, TORCHRUN, options, "sleep 2; kill -9 ${p[1]}");
    expect_end(&o, "codes 1 137 1\n", "rank 1 has ended without a word");
    o = run_tasks(3, TORCHRUN, options, "sleep 2; kill -9 ${p[0]}");
    expect_end(&o, "codes 137 1 1\n", "rank 0 has ended without a word");
    // One that says why: the others are silent.
    o = run_tasks(3, TORCHRUN, PROGRAM " " STEPS "--seed $((i == 2))", ":");
    expect_end(&o, "codes 1 1 1\n", "the ranks differ: --seed is 1 on rank 2 and 0 on rank 0");
}

// Each rank of a machine of its own has its copies.
static void inputs_are_the_same_by_what_they_hold(void **) {
    static const char reads[] =
        PROGRAM " " STEPS "--model %s/$i/model.bin --train %s/$i/train_000001.bin "
                "--val %s/$i/val_000000.bin --tokenizer %s/$i/tokenizer.bin --json";
    static const struct {
        const char *changed, *line;  // in the middle of a file of rank 1
    } cases[] = {{"", ""},
                 {"model.bin", "the ranks differ: the weights is of model.bin ("},
                 {"train_000001.bin", "the ranks differ: the training data is 1 files, the first "},
                 {"val_000000.bin", "the ranks differ: the validation data is 1 files, the "},
                 {"tokenizer.bin", "the ranks differ: the tokenizer is 37 tokens ("}};
    char command[1024];
    snprintf(command, sizeof command, reads, folder, folder, folder, folder);
    static unsigned char tokenizer[1024 + 2 * 37];
    const uint32_t header[] = {20240328, 2, 37, 36};
    memcpy(tokenizer, header, sizeof header);
    for (int i = 0; i < 37; i++) tokenizer[1024 + 2 * i] = 1, tokenizer[1025 + 2 * i] = 'a' + i;
    write_file(temporary("tokenizer.bin"), tokenizer, sizeof tokenizer);
    for (auto &c : cases) {
        Outcome o =
            run(PROGRAM " " STEPS "--export-model %s/model.bin >/dev/null && "
                        "for i in 0 1; do mkdir -p %s/$i && cp %s/model.bin %s/tokenizer.bin "
                        "test/reference/tiny/val_000000.bin "
                        "test/reference/tiny/train_000001.bin %s/$i; done && "
                        "if [ '%s' ]; then printf '\001' | dd of=%s/1/%s bs=1 seek=1061 "
                        "conv=notrunc status=none; fi",
                folder, folder, folder, folder, folder, c.changed, folder, c.changed);
        if (o.status != 0) fail_msg("%s", o.err);
        o = run_tasks(2, TORCHRUN, command, ":");
        if (c.changed[0])
            expect_end(&o, "codes 1 1\n", c.line);
        else
            expect_text(o, "codes 0 0\n");
    }
}

static void ranks_without_shared_memory_need_mpi_on_cpus(void **) {
    if (system("unshare --pid --fork --mount-proc true 2>/dev/null") != 0) skip();
    Outcome o = run_tasks(2, TORCHRUN, "unshare --pid --fork --mount-proc " PROGRAM " " STEPS, ":");
    expect_text(o, "without MPI the ranks of the CPU build have to be on one machine");
    expect_text(o, "codes 1 1\n");
}

// ---- the batch file ----------------------------------------------------------------------------

// A Slurm that runs all tasks here, with what srun sets for them.
static const char fake_srun[] =
    "#!/usr/bin/env bash\n"
    "while [[ $1 == --* ]]; do echo \"srun $1\" >&2; shift; done\n"
    "for i in $(seq 0 $((SLURM_NTASKS - 1))); do\n"
    "    SLURM_PROCID=$i SLURM_STEP_NUM_TASKS=$SLURM_NTASKS SLURM_STEP_ID=0 \\\n"
    "    SLURM_STEP_NODELIST=localhost \"$@\" &\n"
    "done\n"
    "trap 'kill -USR1 $(jobs -p)' USR1\n"
    "code=0\n"
    "for task in $(jobs -p); do\n"
    "    while kill -0 $task 2>/dev/null; do wait $task; c=$?; done\n"
    "    [ $c = 0 ] || code=$c\n"
    "done\n"
    "exit $code\n";

static void put_program(const char *name, const char *text) {
    const char *path = write_file(temporary(name), text, strlen(text));
    assert_int_equal(chmod(path, 0755), 0);
}

static void the_batch_file_trains_and_puts_a_stopped_job_back(void **) {
    put_program("srun", fake_srun);
    put_program("scontrol", "#!/bin/sh\necho \"scontrol $*\"\n");
    Outcome o = run("bash -n scripts/slurm/train.sbatch");
    assert_int_equal(o.status, 0);
    const char *batch = "export PATH=%s:$PATH SLURM_NTASKS=3 SLURM_JOB_ID=%d; "
                        "bash scripts/slurm/train.sbatch " OPTIONS "--out %s/job --steps %s";
    char command[1024];
    snprintf(command, sizeof command, batch, folder, free_port(), folder, "3");
    o = run("%s", command);
    if (o.status != 0) fail_msg("exit code %d: %s", o.status, o.err);
    expect_text(o, "srun --kill-on-bad-exit=1\nsrun --mpi=none\n");
    snprintf(command, sizeof command, batch, folder, free_port(), folder, "1000000");
    o = run("%s --out %s/stopped >%s/steps & sleep 3; kill -USR1 $!; wait $!; echo code $?; "
            "tail -1 %s/steps",
            command, folder, folder, folder);
    expect_text(o, "code 75\nscontrol requeue");
    snprintf(command, sizeof command, batch, folder, free_port(), folder, "4");
    o = run("export MPI=pmix; %s", command);
    expect_text(o, "srun --mpi=pmix\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_host_of_slurms_lists_is_found),
        cmocka_unit_test(the_launcher_is_known_by_its_variables),
        cmocka_unit_test(ranks_of_64_nodes_find_each_other),
        cmocka_unit_test(ranks_of_torchrun_and_srun_train_as_forked_ones),
        cmocka_unit_test(torchruns_own_store_is_left_alone),
        cmocka_unit_test(a_run_that_is_asked_to_stop_goes_on_under_another_launcher),
        cmocka_unit_test(ranks_that_do_not_fit_together_end_in_one_line),
        cmocka_unit_test(a_port_that_is_taken_is_named),
        cmocka_unit_test(other_programs_that_connect_are_left_alone),
        cmocka_unit_test(a_rank_that_ends_takes_the_others_along),
        cmocka_unit_test(inputs_are_the_same_by_what_they_hold),
        cmocka_unit_test(ranks_without_shared_memory_need_mpi_on_cpus),
        cmocka_unit_test(the_batch_file_trains_and_puts_a_stopped_job_back),
    };
    return run_in_folder(tests);
}
