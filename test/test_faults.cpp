// test/test_faults.cpp: runs whose processes are killed at random moments and during saves, one or
// several times. The job ends within seconds, not with 0, and leaves no process and no shared
// memory; what goes on from its newest checkpoint ends in the bits of the uninterrupted run.
// FAULTS=number of repeats, SEED=number repeats the moments.
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

#define RUN                                                                                        \
    PROGRAM " --model gpt2:L=2,C=12,NH=3,T=7 --train test/reference/small/train.txt --batch 1 "    \
            "--tokens-per-step 168 --threads 1 --checkpoint-every 1 --steps 8 "

static unsigned seed;
static bool mpi;

static int random_below(int n) {
    return (int)((unsigned)rand_r(&seed) % (unsigned)n);
}

// How it is launched, and who is killed: words of the shell, where $pid is the job.
static const struct {
    const char *launch, *options, *whom;
} victims[] = {
    {"", "--ranks 3", "$pid"},
    {"", "--ranks 4 --shard hybrid:2", "$(pgrep -P $pid | sed -n 2p)"},
    {"", "", "$pid"},
    {MPIRUN " -n 2", "", "$pid"},
    {MPIRUN " -n 3", "--shard states", "$(pgrep -P $pid -x train_gpt | sed -n 3p)"},
};

// Starts or continues FOLDER/run and kills somebody after `ms`, or as soon as a checkpoint is being
// written. Prints what of it is left ten seconds later.
static void kill_once(int victim, bool saving, int ms) {
    char what[256];
    snprintf(what, sizeof what, "victim %d, %s %d ms", victim, saving ? "saving," : "after", ms);
    Outcome o =
        run("ls /dev/shm >%s/before; BAD_DISK=checkpoints BAD_DISK_SLOW_MS=%d LD_PRELOAD=" BAD_DISK
            " %s " RUN "%s --out %s/run --resume auto >/dev/null 2>&1 & pid=$!; "
            "if [ %d = 1 ]; then while kill -0 $pid && ! ls %s/run/checkpoints | grep -q tmp; do "
            "sleep 0.01; done; fi 2>/dev/null; sleep 0.%03d; kill -9 %s 2>/dev/null; wait $pid; "
            "status=$?; for i in {1..100}; do left=$(pgrep -f '^./train_gpt.*%s/run'); "
            "[ -z \"$left\" ] && break; sleep 0.1; done; set +f; "
            "shm=$(ls /dev/shm | grep -vxFf %s/before | while read f; do "
            "cat /proc/[0-9]*/maps 2>/dev/null | grep -q /dev/shm/$f || echo $f; done); "
            "echo left $left $shm; exit $status",
            folder, random_below(4) * 4, victims[victim].launch, victims[victim].options, folder,
            saving, folder, saving ? random_below(40) : ms, victims[victim].whom, folder, folder);
    if (strcmp(o.out, "left\n")) fail_msg("%s: processes or shared memory are %s", what, o.out);
    char done[128];
    snprintf(done, sizeof done, "%s/run/DONE_00000008", folder);
    if (o.status == 0 && access(done, F_OK) != 0) fail_msg("%s: found exit code 0", what);
}

static void a_killed_run_leaves_nothing_behind_and_goes_on_to_the_same_bits(void **) {
    int repeats = getenv("FAULTS") ? atoi(getenv("FAULTS")) : 20;
    Outcome o = run(RUN "--out %s/whole", folder);
    assert_int_equal(o.status, 0);
    for (int i = 0; i < repeats; i++) {
        run("rm -rf %s/run", folder);
        int victim = i % (mpi ? 5 : 3), kills = 1 + random_below(2);
        // A job that is killed while MPI starts may leave MPI's own files: wait until it trains.
        bool saving = i % 2 || victim >= 3;
        for (int k = 0; k < kills; k++) kill_once(victim, saving, random_below(999));
        o = run(RUN "--out %s/run --resume auto --ranks %d && diff -r -x '*.[0-9]' -x options.cfg "
                    "-x metrics.jsonl -x '*.tmp' %s/run %s/whole",
                folder, 1 + random_below(4), folder, folder);
        if (o.status != 0)
            fail_msg("repeat %d: expected the uninterrupted run's end, found: %s%s", i, o.out,
                     o.err);
    }
}

int main(void) {
    seed = getenv("SEED") ? (unsigned)atoi(getenv("SEED")) : (unsigned)time(NULL);
    mpi = system("command -v mpirun >/dev/null") == 0;
    print_message("SEED=%u\n", seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_run_leaves_nothing_behind_and_goes_on_to_the_same_bits),
    };
    return run_in_folder(tests);
}
