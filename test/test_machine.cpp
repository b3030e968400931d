// test/test_machine.cpp: what a machine gives: lib/machine.h on made-up machines, and the program
// under real limits: bound cores, control groups, ulimit, containers' process numbers, launchers'
// variables. What a machine does not let us set up is skipped.
#include "../lib/machine.h"
#include "run.h"

#include <signal.h>

#define TINY "--model gpt2:L=2,C=12,NH=3,T=7,V=37 --train 'test/reference/tiny/train_*.bin' "

static void put(const char *name, const char *text) {
    char path[256], command[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(command, sizeof command, "mkdir -p $(dirname %s)", path);
    assert_int_equal(system(command), 0);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

// ---- lib/machine.h -----------------------------------------------------------------------------

// Lines of mountinfo as the kernel writes them.
#define MOUNT(top, at, kind, options)                                                              \
    "31 23 0:28 " top " " at " rw,relatime shared:9 - " kind " none rw," options "\n"

static void expect_limit(GroupLimit found, double amount, double limit) {
    if (found.amount != amount || found.limit != limit)
        fail_msg("expected %g of %g, found %g of %g", amount, limit, found.amount, found.limit);
}

static void the_tightest_of_nested_groups_of_version_2_counts(void **) {
    put("v2/proc/self/cgroup", "0::/pod/box\n");
    put("v2/proc/self/mountinfo", MOUNT("/", "/sys/fs/cgroup", "cgroup2", "nsdelegate"));
    put("v2/sys/fs/cgroup/pod/box/cpu.max", "max 100000\n");
    put("v2/sys/fs/cgroup/pod/cpu.max", "150000 100000\n");
    put("v2/sys/fs/cgroup/pod/box/memory.max", "1000000\n");
    put("v2/sys/fs/cgroup/pod/box/memory.current", "400000\n");
    put("v2/sys/fs/cgroup/pod/box/memory.stat", "anon 1\ninactive_file 100000\nactive_file 7\n");
    put("v2/sys/fs/cgroup/pod/memory.max", "900000\n");
    put("v2/sys/fs/cgroup/pod/memory.current", "500000\n");
    put("v2/sys/fs/cgroup/pod/memory.stat", "inactive_file 0\n");
    put("v2/sys/fs/cgroup/pod/box/memory.events", "oom 3\noom_kill 2\n");
    put("v2/proc/meminfo", "MemTotal: 9 kB\nMemAvailable:      5000 kB\n");
    char root[128];
    snprintf(root, sizeof root, "%s/v2", folder);
    Machine m = machine_look(root);
    expect_limit(m.cpu, 1.5, 1.5);
    expect_limit(m.memory, 400000, 900000);
    assert_true(m.available == 5000 * 1024.0);
    assert_true(machine_oom_kills(root) == 2);
}

static void groups_of_version_1_are_found_where_they_are_mounted(void **) {
    // As in a container: the hierarchy of memory is mounted from the container's group on.
    put("v1/proc/self/cgroup", "4:memory:/docker/abc/job\n3:cpuset:/docker/abc\n2:cpu,cpuacct:/\n");
    put("v1/proc/self/mountinfo",
        MOUNT("/", "/sys/fs/cgroup/cpu,cpuacct", "cgroup", "cpu,cpuacct")
            MOUNT("/docker/abc", "/sys/fs/cgroup/memory", "cgroup", "memory"));
    put("v1/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n");
    put("v1/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("v1/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
    put("v1/sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000\n");
    put("v1/sys/fs/cgroup/memory/memory.usage_in_bytes", "700000\n");
    put("v1/sys/fs/cgroup/memory/memory.stat", "total_inactive_file 200000\n");
    char root[128];
    snprintf(root, sizeof root, "%s/v1", folder);
    Machine m = machine_look(root);
    expect_limit(m.cpu, 0.5, 0.5);
    expect_limit(m.memory, 1500000, 2000000);
    put("v1/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    expect_limit(machine_look(root).cpu, INFINITY, INFINITY);
    // A path of another namespace: what is mounted is the own group.
    put("v1/proc/self/cgroup", "4:memory:/elsewhere\n");
    expect_limit(machine_look(root).memory, 1500000, 2000000);
}

static void a_machine_without_groups_has_no_limits(void **) {
    Machine m = machine_look("/nowhere");
    expect_limit(m.cpu, INFINITY, INFINITY);
    expect_limit(m.memory, INFINITY, INFINITY);
    assert_true(cores_count(&m.cores) > 0);
}

static Machine with_cores(int first, int end, double quota, uint64_t group) {
    Machine m = {};
    for (int i = first; i < end; i++) m.cores.bits[i / 64] |= (uint64_t)1 << (i % 64);
    for (int i = 0; i < 128; i++) m.launcher.bits[i / 64] |= (uint64_t)1 << (i % 64);
    m.cpu = {quota, quota, group};
    return m;
}

static void threads_share_out_cores_and_quotas(void **) {
    const double none = INFINITY;
    Machine one = with_cores(0, 64, none, 0);
    assert_int_equal(machine_threads(&one, 1, 0), 64);
    assert_int_equal(machine_idle_cores(&one, 1, 0), 64);
    // Two sockets of 64 cores; two ranks on one, one on the other.
    Machine sockets[] = {with_cores(0, 64, none, 0), with_cores(64, 128, none, 0),
                         with_cores(0, 64, none, 0)};
    assert_int_equal(machine_threads(sockets, 3, 0), 32);
    assert_int_equal(machine_threads(sockets, 3, 1), 64);
    assert_int_equal(machine_idle_cores(sockets, 3, 0), 0);
    // Three ranks on four cores; four cores allowed to two ranks of 64.
    Machine three[] = {with_cores(0, 4, none, 0), with_cores(0, 4, none, 0),
                       with_cores(0, 4, none, 0)};
    assert_int_equal(machine_threads(three, 3, 2), 1);
    Machine pod[] = {with_cores(0, 64, 4, 7), with_cores(0, 64, 4, 7)};
    assert_int_equal(machine_threads(pod, 2, 0), 2);
    // The same limits of two groups, and half a core.
    Machine pods[] = {with_cores(0, 64, 4, 7), with_cores(0, 64, 4, 8)};
    assert_int_equal(machine_threads(pods, 2, 0), 4);
    Machine half = with_cores(0, 2, 0.5, 7);
    assert_int_equal(machine_threads(&half, 1, 0), 1);
}

// ---- threads of the program --------------------------------------------------------------------

static void a_run_has_the_threads_it_was_given(void **) {
    int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    char words[64];
    Outcome o = run(PROGRAM " " TINY "--steps 1");
    snprintf(words, sizeof words, "on this node, %d threads each (%d cores)", cores, cores);
    expect_text(o, words);
    o = run("OMP_NUM_THREADS=3 " PROGRAM " " TINY "--steps 1");
    expect_text(o, "3 threads each (OMP_NUM_THREADS)");
    o = run("OMP_NUM_THREADS=3 " PROGRAM " " TINY "--steps 1 --threads 2");
    expect_text(o, "2 threads each (--threads)");
    o = run("taskset -c 0 " PROGRAM " " TINY "--steps 1");
    expect_text(o, "1 threads each (1 cores)");
    o = run("OMP_PROC_BIND=true " PROGRAM " " TINY "--steps 1");
    expect_text(o, words);
}

static void idle_cores_of_mpirun_are_named(void **) {
    if (system("command -v mpirun >/dev/null") != 0 || sysconf(_SC_NPROCESSORS_ONLN) < 2) skip();
    Outcome o = run(MPIRUN " -n 1 --bind-to core " PROGRAM " " TINY "--steps 1");
    expect_text(o, "mpirun has bound this rank to 1 core(s)");
    o = run(MPIRUN " -n 1 --bind-to none " PROGRAM " " TINY "--steps 1");
    if (strstr(o.err, "mpirun has bound")) fail_msg("expected no such line, found: %s", o.err);
    o = run(MPIRUN " -n 1 --bind-to core " PROGRAM " " TINY "--steps 1 --threads 1");
    if (strstr(o.err, "mpirun has bound")) fail_msg("expected no such line, found: %s", o.err);
}

// Milliseconds of processor time of a process; 0 if there is none.
static long processor_ms(pid_t pid) {
    char path[64];
    long user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    if (fscanf(f, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user, &system) !=
        2)
        user = system = 0;
    fclose(f);
    return (user + system) * 1000 / sysconf(_SC_CLK_TCK);
}

static void a_rank_that_waits_for_another_leaves_its_core_to_others(void **) {
    Outcome o = run(PROGRAM " " TINY "--ranks 2 --steps 123463 >/dev/null & pid=$!; sleep 2; "
                            "set -- $(pgrep -P $pid); kill -STOP $2; sleep 0.5; echo $pid $1");
    int parent = 0, waiting = 0;
    assert_int_equal(sscanf(o.out, "%d %d", &parent, &waiting), 2);
    long before = processor_ms(waiting);
    sleep(2);
    long used = processor_ms(waiting) - before;
    kill(parent, SIGKILL);
    if (before == 0 || used > 200)
        fail_msg("%ld ms of processor time before, %ld ms in 2 s of waiting", before, used);
}

static void threads_that_wait_poll_shortly_unless_the_user_has_a_policy(void **) {
    static const struct {
        const char *given, *expected;
    } cases[] = {{"", "GOMP_SPINCOUNT=2000"},
                 {"GOMP_SPINCOUNT=17", "GOMP_SPINCOUNT=17"},
                 {"OMP_WAIT_POLICY=active", "OMP_WAIT_POLICY=active"}};
    for (auto &c : cases) {
        Outcome o = run("env -u GOMP_SPINCOUNT %s " PROGRAM " " TINY "--steps 123464 >/dev/null & "
                        "pid=$!; sleep 1; tr '\\0' '\\n' </proc/$pid/environ | "
                        "grep -E 'GOMP_SPIN|OMP_WAIT'; kill -9 $pid",
                        c.given);
        o.out[strcspn(o.out, "\n")] = 0;
        assert_string_equal(o.out, c.expected);
    }
}

// In every form the losses are those of fp32 as far as bf16 goes, and its name is in the table.
static void products_of_bf16_can_be_widened(void **) {
    static const char *const forms[] = {"native", "widened"};
    for (const char *form : forms) {
        Outcome o = run("FSDP_PRODUCTS=%s " PROGRAM " " TINY "--steps 1 --precision bf16", form);
        double loss = 0;
        char *at = strstr(o.out, "loss ");
        if (at) sscanf(at, "loss %lf", &loss);
        if (!(loss > 3.6197 - 0.02 && loss < 3.6197 + 0.02))
            fail_msg("%s: %s%s", form, o.out, o.err);
        expect_text(o, !strcmp(form, "widened") ? "products widened to fp32" : "products ");
    }
    Outcome o = run("FSDP_PRODUCTS=fast " PROGRAM " " TINY "--steps 1 --precision bf16");
    expect_text(o, "FSDP_PRODUCTS=fast: expected native or widened");
    assert_int_equal(o.status, 1);
}

// ---- control groups ----------------------------------------------------------------------------

// Runs a command in a new group with a limit on cpu (hundredths of a core) or memory (MiB), version
// 1 or 2; skips where none can be made.
static Outcome run_in_group(const char *kind, int limit, const char *command) {
    put("in_group",
        "kind=$1 limit=$2\n"
        "try() {\n"
        "  mkdir $1/fsdp-test-$$ && cd_group=$1/fsdp-test-$$ || return 1\n"
        "  if [ $kind = cpu ]; then\n"
        "    echo $((limit * 1000)) >$cd_group/cpu.cfs_quota_us ||\n"
        "      echo $((limit * 1000)) 100000 >$cd_group/cpu.max\n"
        "  else\n"
        "    echo ${limit}M >$cd_group/memory.limit_in_bytes || echo ${limit}M "
        ">$cd_group/memory.max\n"
        "  fi && return 0\n"
        "  rmdir $cd_group; return 1\n"
        "}\n"
        "{ try /sys/fs/cgroup/$kind || try /sys/fs/cgroup; } 2>/dev/null || exit 77\n"
        "(echo $BASHPID >$cd_group/cgroup.procs && eval \"$3\"); code=$?\n"
        "for i in 1 2 3 4 5 6 7 8 9; do rmdir $cd_group 2>/dev/null && break; sleep 0.2; done\n"
        "exit $code\n");
    Outcome o = run("bash %s/in_group %s %d \"%s\"", folder, kind, limit, command);
    if (o.status == 77) skip();
    return o;
}

static void a_processor_quota_limits_the_threads(void **) {
    Outcome o = run_in_group("cpu", 50, PROGRAM " " TINY "--steps 1");
    expect_text(o, "1 threads each (a control group allows 0.5 cores)");
}

#define MEDIUM "--model gpt2:L=8,C=512,NH=8,T=64 --train README.md --batch 4 "

static void a_memory_limit_is_named_before_the_start(void **) {
    Outcome o = run_in_group("memory", 300, PROGRAM " " MEDIUM "--steps 1 --ranks 2");
    expect_text(o, "by the 2 rank(s) of this control group (container)");
    expect_text(o, "left of its limit of 300.0 MiB");
    assert_int_equal(o.status, 1);
}

// Others take the memory of the group while the ranks, the largest of all, run.
static void a_rank_ended_for_want_of_memory_gets_the_reason(void **) {
    Outcome o = run_in_group(
        "memory", 1000,
        PROGRAM " " MEDIUM "--steps 100000 --ranks 2 >/dev/null & pid=\\$!; sleep 2; "
                "for i in 1 2 3 4; do head -c 100M /dev/zero | tail -c 100M | sleep 20 & done; "
                "wait \\$pid; code=\\$?; kill \\$(jobs -p); exit \\$code");
    expect_text(o, "was ended by signal 9 (Killed): the memory limit of its control group");
    assert_int_equal(o.status, 128 + 9);
}

static void a_killed_rank_gets_the_likely_reasons(void **) {
    Outcome o = run(PROGRAM " " TINY "--steps 123459 --ranks 2 >/dev/null & pid=$!; sleep 1; "
                            "kill -9 $(pgrep -P $pid | head -1); wait $pid");
    expect_text(o, "somebody's kill -9, or the machine was out of memory");
}

// ---- ulimit ------------------------------------------------------------------------------------

static void a_file_beyond_its_limit_is_named(void **) {
    Outcome o =
        run("ulimit -f 20480; " PROGRAM " " MEDIUM "--steps 1 --export-model %s/model.bin", folder);
    expect_text(o, "model.bin");
    expect_text(o, "File too large");
    assert_int_equal(o.status, 1);
}

static void expect_same_losses(const Outcome *a, const Outcome *b) {
    const char *x = a->out, *y = b->out;
    int n = 0;
    for (; (x = strstr(x, "\"loss\":")) && (y = strstr(y, "\"loss\":")); x++, y++, n++)
        if (strncmp(x, y, strcspn(x, ","))) break;
    if (x || n != 3) fail_msg("expected the same losses, found\n%s\nand\n%s", a->out, b->out);
}

// What the ranks share are files of no folder, but files: with a limit between what collectives
// cannot do without (4 MiB for two ranks) and a slot, the ranks copy instead.
static void ranks_that_may_not_share_their_slots_copy(void **) {
    static const char *const precisions[] = {"fp32", "bf16"};
    static Outcome shared, copied;
    const char *options = "--model gpt2:L=1,C=384,NH=6,T=64 --train README.md --batch 1 --steps 3 "
                          "--ranks 2 --json";
    for (const char *precision : precisions) {
        shared = run(PROGRAM " %s --precision %s", options, precision);
        copied = run("ulimit -f 9216; " PROGRAM " %s --precision %s", options, precision);
        expect_same_losses(&shared, &copied);
    }
}

// From too little for anything to plenty, every limit either suffices or is refused by name.
static void no_limit_of_the_address_space_ends_in_a_crash(void **) {
    static const char *const options[] = {"--threads 8", "--threads 1 --ranks 4 --precision bf16"};
    for (const char *option : options) {
        int refused = 0, ran = 0;
        for (int mib = 60; mib <= 340; mib += 20) {
            Outcome o = run("ulimit -v %d; " PROGRAM " --model gpt2:L=2,C=128,NH=4,T=64 --train "
                            "README.md --batch 2 --steps 2 %s",
                            mib * 1024, option);
            if (o.status == 0)
                ran++;
            else if (o.status == 1 && (strstr(o.err, "left of its address space (ulimit -v") ||
                                       strstr(o.err, "out of memory: asked for")))
                refused++;
            else
                fail_msg("ulimit -v of %d MiB, %s: code %d: %s", mib, option, o.status, o.err);
        }
        if (!refused || !ran) fail_msg("%s: %d limits refused, %d sufficed", option, refused, ran);
    }
}

// ---- containers and launchers ------------------------------------------------------------------

static void process_1_of_a_container_answers_signals(void **) {
    if (system("unshare --pid --fork true 2>/dev/null") != 0) skip();
    static const char *const names[] = {"TERM", "INT"};
    for (const char *name : names) {
        Outcome o = run("unshare --pid --fork " PROGRAM " " TINY "--steps 123461 >/dev/null 2>&1 & "
                        "sleep 1; pid=$(pgrep -P $!); kill -%s $pid; sleep 1; "
                        "kill -0 $pid 2>/dev/null && kill -9 $pid && echo ignored it",
                        name);
        if (strstr(o.out, "ignored it")) fail_msg("SIG%s: %s", name, o.out);
    }
}

static void an_interrupt_reaches_ranks_that_a_script_started_behind_itself(void **) {
    Outcome o = run(PROGRAM " " TINY "--steps 123462 --ranks 2 >/dev/null & pid=$!; sleep 1; "
                            "kill -INT $pid; sleep 2; kill -9 $pid 2>/dev/null && echo ignored it");
    if (strstr(o.out, "ignored it")) fail_msg("%s", o.out);
}

// Each rank is process 1 of its namespace, with a /proc of its own or the machine's; or the third
// process.
static void ranks_in_containers_of_their_own_send_messages(void **) {
    static const char *const containers[] = {
        "unshare --pid --fork", "unshare --pid --fork --mount-proc",
        "unshare --pid --fork --mount-proc bash -c 'true & \"$@\"; exit $?' inner"};
    if (system("command -v mpirun >/dev/null") != 0) skip();
    if (system("unshare --pid --fork --mount-proc true 2>/dev/null") != 0) skip();
    static Outcome one, apart;
    const char *options = TINY "--batch 1 --tokens-per-step 84 --steps 3 --json";
    one = run(PROGRAM " %s", options);
    for (const char *container : containers) {
        apart = run(MPIRUN " -n 3 %s " PROGRAM " %s", container, options);
        if (apart.status != 0) fail_msg("%s: %s", container, apart.err);
        expect_same_losses(&one, &apart);
    }
}

static void variables_left_over_from_a_launcher_do_not_forbid_ranks(void **) {
    static const char *const variables[] = {"PMI_RANK=0 PMI_SIZE=1", "PMI_RANK=0", "PMIX_RANK=0",
                                            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1"};
    for (const char *v : variables) {
        Outcome o = run("%s " PROGRAM " " TINY "--steps 1 --ranks 2", v);
        expect_text(o, "2 (--ranks), 2 on this node");
    }
    Outcome o = run("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 " PROGRAM " " TINY
                    "--steps 1 --ranks 2");
    assert_int_not_equal(o.status, 0);
}

static void a_batch_script_without_srun_is_refused(void **) {
    Outcome o = run("SLURM_PROCID=0 SLURM_NTASKS=2 " PROGRAM " " TINY "--steps 1");
    expect_text(o, "Slurm has 2 tasks here, and this process is none of them");
    assert_int_equal(o.status, 1);
    o = run("SLURM_PROCID=0 SLURM_NTASKS=2 " PROGRAM " " TINY "--steps 1 --ranks 1");
    assert_int_equal(o.status, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tightest_of_nested_groups_of_version_2_counts),
        cmocka_unit_test(groups_of_version_1_are_found_where_they_are_mounted),
        cmocka_unit_test(a_machine_without_groups_has_no_limits),
        cmocka_unit_test(threads_share_out_cores_and_quotas),
        cmocka_unit_test(a_run_has_the_threads_it_was_given),
        cmocka_unit_test(idle_cores_of_mpirun_are_named),
        cmocka_unit_test(a_rank_that_waits_for_another_leaves_its_core_to_others),
        cmocka_unit_test(threads_that_wait_poll_shortly_unless_the_user_has_a_policy),
        cmocka_unit_test(products_of_bf16_can_be_widened),
        cmocka_unit_test(a_processor_quota_limits_the_threads),
        cmocka_unit_test(a_memory_limit_is_named_before_the_start),
        cmocka_unit_test(a_rank_ended_for_want_of_memory_gets_the_reason),
        cmocka_unit_test(a_killed_rank_gets_the_likely_reasons),
        cmocka_unit_test(a_file_beyond_its_limit_is_named),
        cmocka_unit_test(ranks_that_may_not_share_their_slots_copy),
        cmocka_unit_test(no_limit_of_the_address_space_ends_in_a_crash),
        cmocka_unit_test(process_1_of_a_container_answers_signals),
        cmocka_unit_test(an_interrupt_reaches_ranks_that_a_script_started_behind_itself),
        cmocka_unit_test(ranks_in_containers_of_their_own_send_messages),
        cmocka_unit_test(variables_left_over_from_a_launcher_do_not_forbid_ranks),
        cmocka_unit_test(a_batch_script_without_srun_is_refused),
    };
    return run_in_folder(tests);
}
