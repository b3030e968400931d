// cpu/host.h: the processor as a rank's device: how many threads the rank runs and on which cores,
// and whether its memory suffices.
#pragma once

#include "../lib/machine.h"

#include <malloc.h>
#include <omp.h>
#include <sys/resource.h>

// What a rank takes besides the buffers of its table: code, tables, the libraries' own memory.
#define HOST_PROCESS_BYTES ((size_t)48 << 20)
// Of a rank's staging areas in its four communicators.
#define HOST_COLLECTIVES_BYTES ((size_t)8 << 20)

// The cores that the process was given; OMP_PROC_BIND has bound it to the first of its places by
// now.
static CoreMask host_cores(void) {
    if (omp_get_proc_bind() == omp_proc_bind_false || !omp_get_num_places())
        return machine_cores(0);
    CoreMask m = {};
    for (int place = 0; place < omp_get_num_places(); place++) {
        int cores[MACHINE_CORES], n = omp_get_place_num_procs(place);
        if (n > MACHINE_CORES) continue;
        omp_get_place_proc_ids(place, cores);
        for (int i = 0; i < n; i++) m.bits[cores[i] / 64] |= (uint64_t)1 << (cores[i] % 64);
    }
    return m;
}

static Machine host_look(void) {
    Machine m = machine_look("");
    m.cores = host_cores();
    return m;
}

// Threads that wait at the end of a parallel region poll, some milliseconds long unless the
// environment says otherwise; where others use the machine too, that takes the core from those that
// they wait for. The library reads the environment before main: the program starts itself anew.
static void host_limit_polling(char **argv) {
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    setenv("GOMP_SPINCOUNT", "2000", 1);  // some tens of microseconds
    const CoreMask cores = host_cores();
    sched_setaffinity(0, sizeof cores, (const cpu_set_t *)(const void *)&cores);
    char program[4096];  // its own path, and not /proc/self/exe: a process is named after it
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0) return;
    program[n] = 0;
    execv(program, argv);  // if that cannot be, things work as well, but slower
}

// wanted: --threads, 0 = what OMP_NUM_THREADS says, else what fits the cores. ranks: of this node.
static Threads host_threads(int wanted, const Machine *ranks, int n, int me) {
    const char *variable = getenv("OMP_NUM_THREADS");
    const Machine *m = &ranks[me];
    Threads t = {wanted, "--threads"};
    if (!wanted && variable && atoi(variable) > 0) {
        t.n = omp_get_max_threads();
        snprintf(t.why, sizeof t.why, "OMP_NUM_THREADS");
    } else if (!wanted) {
        const double share = machine_share_of_cores(ranks, n, me);
        t.n = machine_threads(ranks, n, me);
        if (m->cpu.amount / machine_cpu_sharers(ranks, n, me) < share)
            snprintf(t.why, sizeof t.why, "a control group allows %.3g cores", m->cpu.limit);
        else
            snprintf(t.why, sizeof t.why, "%d cores", cores_count(&m->cores));
    }
    if (t.n > omp_get_thread_limit()) t.n = omp_get_thread_limit();
    return t;
}

// The same of each of n ranks that are all allowed what this process is.
static Threads host_threads_alike(int wanted, int n) {
    const Machine here = host_look();
    Machine *ranks = (Machine *)malloc_check((size_t)n * sizeof *ranks);
    for (int i = 0; i < n; i++) ranks[i] = here;
    const Threads t = host_threads(wanted, ranks, n, 0);
    free(ranks);
    return t;
}

// mpirun binds a rank to one core unless it is told otherwise. Says so where that wastes cores.
static void host_report_idle_cores(const Threads *t, const Machine *ranks, int n, int me) {
    const int idle = machine_idle_cores(ranks, n, me), own = cores_count(&ranks[me].cores);
    const bool chosen =
        t->n <= own && (!strcmp(t->why, "--threads") || !strcmp(t->why, "OMP_NUM_THREADS"));
    if (idle == 0 || chosen) return;
    fprintf(stderr,
            "train_gpt: mpirun has bound this rank to %d core(s), and %d core(s) of this node have "
            "no rank: use "
            "them with mpirun --bind-to none, or start more ranks\n",
            own, idle);
}

// OMP_PROC_BIND binds to the same cores in every process, from the first on: forked ranks would
// share them. Here each takes its own, thread after thread, whatever order was asked for.
static void host_bind_threads(int local_rank) {
    const int places = omp_get_num_places();
    if (!places || omp_get_proc_bind() == omp_proc_bind_false) return;
#pragma omp parallel
    {
        int thread = local_rank * omp_get_num_threads() + omp_get_thread_num();
        int cores[MACHINE_CORES], place = thread % places;
        CoreMask set = {};
        omp_get_place_proc_ids(place, cores);
        for (int i = 0; i < omp_get_place_num_procs(place); i++)
            set.bits[cores[i] / 64] |= (uint64_t)1 << (cores[i] % 64);
        sched_setaffinity(0, sizeof set, (cpu_set_t *)(void *)&set);
    }
}

static void host_refuse(double needed, const char *by, double left, const char *of) {
    const double MIB = 1 << 20;
    die_all("%.1f MiB are needed %s and %.1f MiB are %s; use more nodes, a smaller --batch, "
            "--recompute layer or a smaller model (--plan shows what takes the memory)",
            needed / MIB, by, left / MIB, of);
}

// table: bytes of the buffers of a rank. Every rank of the node comes to the same result.
static void host_check_memory(size_t table, const Machine *ranks, int n) {
    const double each = (double)(table + HOST_PROCESS_BYTES + HOST_COLLECTIVES_BYTES);
    char by[96], of[96];
    if (each * n > ranks[0].available)
        host_refuse(each * n, "on this node", ranks[0].available, "free");
    for (int i = 0; i < n; i++) {
        const GroupLimit *m = &ranks[i].memory;
        const int sharers = machine_memory_sharers(ranks, n, i);
        if (each * sharers <= m->amount) continue;
        snprintf(by, sizeof by, "by the %d rank(s) of this control group (container)", sharers);
        snprintf(of, sizeof of, "left of its limit of %.1f MiB", m->limit / (1 << 20));
        host_refuse(each * sharers, by, m->amount, of);
    }
}

// The same against this process's address space (ulimit -v). Besides the table it takes stacks of
// threads, and the collectives' memory of every rank of the node.
static void host_check_address_space(size_t table, int threads, int local_world) {
    struct rlimit limit, stack;
    double pages = 0;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    if (getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur == RLIM_INFINITY)
        stack.rlim_cur = 8 << 20;
    mallopt(M_ARENA_MAX, 1);  // it would take 64 MiB for each thread
    machine_read_number("/proc/self", "statm", &pages);
    const double left = (double)limit.rlim_cur - pages * (double)sysconf(_SC_PAGESIZE);
    const double needed = (double)(table + HOST_PROCESS_BYTES) +
                          (double)stack.rlim_cur * (threads - 1) +
                          (double)HOST_COLLECTIVES_BYTES * local_world;
    char of[96];
    snprintf(of, sizeof of, "left of its address space (ulimit -v %llu)",
             (unsigned long long)limit.rlim_cur / 1024);
    if (needed > left) host_refuse(needed, "by each rank", left, of);
}
