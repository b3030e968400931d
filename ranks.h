// ranks.h: the processes of a run: who starts them, which one this is, and the few words that the
// hosts exchange. Data of the model never goes this way (see NCCL).
//
// Under mpirun the ranks come from MPI. With --ranks N this process forks N ranks and watches them:
// the first that fails takes the others down. Else there is one rank.
#pragma once

#include "lib/clock.h"
#include "lib/collectives.h"
#include "lib/machine.h"
#include "lib/stop.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#ifdef USE_MPI
#include <mpi.h>
#endif
#ifdef EMULATOR
extern "C" void emu_progress(void);  // device work goes on while a host waits for another host
#endif

#define RANKS_WORDS 512  // bytes of one exchange

// Shared by forked ranks: a barrier and room for one exchange.
typedef struct {
    int arrived, generation;
    alignas(64) char words[RANKS_WORDS];
} RanksShared;

// Shared by the ranks of a node.
typedef struct {
    int spoken;  // see die_spoken
    CollectiveLog logs[];
} RanksNode;

typedef struct {
    int rank, world;
    int local_rank, local_world;  // among the ranks of this node
    const char *launcher;         // for the start-up table
    Machine *machines;            // (local_world): what each rank of this node is given
    RanksShared *shared;          // forked ranks only
} Ranks;

static const char ranks_launcher_mpi[] = "mpirun";

// ---- start -------------------------------------------------------------------------------------

static size_t ranks_node_bytes(int ranks) {
    return sizeof(RanksNode) + sizeof(CollectiveLog) * (size_t)ranks;
}

// From now on the memory, which is zero, says what this rank does; it has started no thread.
static void ranks_join_node(RanksNode *node, const Ranks *r) {
    die_spoken = &node->spoken;
    collectives = (Collectives){r->local_world, node->logs, &node->logs[r->local_rank]};
    collectives.own->rank = r->rank;
}

static int ranks_variable(const char *name) {
    const char *text = getenv(name);
    return text ? atoi(text) : 0;
}

// Ranks that an MPI launcher has started, as far as it says so; 0: there is no launcher. The
// variables may be left over from another program that it started, such as the shell.
static int ranks_launched(void) {
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
    if (!getenv("OMPI_COMM_WORLD_SIZE") && !getenv("PMI_RANK") && !getenv("PMIX_RANK")) return 0;
    for (const char *name : sizes)
        if (ranks_variable(name) > 0) return ranks_variable(name);
    return process.rank + 1;
}

// Slurm's tasks that know nothing of each other would each train a model of their own.
static void ranks_check_slurm(int wanted) {
    int step = ranks_variable("SLURM_STEP_NUM_TASKS"), job = ranks_variable("SLURM_NTASKS");
    if (step > 1 || (!wanted && job > 1))
        die_all("Slurm has %d tasks here, but they were not started as ranks: use srun --mpi=pmix "
                "(srun --mpi=list shows what there is), mpirun, or --ranks N in one task",
                step > 1 ? step : job);
}

#ifdef USE_MPI
// MPI knows of calls by the main thread only (MPI_THREAD_FUNNELED). Another one, such as the
// watchdog's, just ends the process: a launcher takes the job down when a rank ends with a failure
// (mpirun; srun with --kill-on-bad-exit), and else every rank has a watchdog.
static void ranks_mpi_abort(void) {
    // The message has to reach the terminal before mpirun tears the job down.
    struct timespec pause = {0, 100 * 1000 * 1000};
    nanosleep(&pause, NULL);
    if (gettid() == getpid()) MPI_Abort(MPI_COMM_WORLD, 1);
}

// Is each rank in a container with process numbers of its own? Then what mpirun gave it is with
// the container's process 1 too.
static bool ranks_in_containers(void) {
    if (getpid() == 1 || access("/proc/self", F_OK) != 0) return true;
    char variables[65536];
    FILE *f = fopen("/proc/1/environ", "r");
    size_t n = f ? fread(variables, 1, sizeof variables, f) : 0;
    if (f) fclose(f);
    return memmem(variables, n, "OMPI_COMM_WORLD_RANK=", 21) != NULL;
}

static MPI_Win ranks_window = MPI_WIN_NULL;  // holds the RanksNode

// apart: in containers, where memory that MPI shares is not to be trusted.
static void ranks_share_node(const Ranks *r, MPI_Comm node, int apart) {
    MPI_Aint bytes = r->local_rank == 0 ? (MPI_Aint)ranks_node_bytes(r->local_world) : 0;
    int unit;
    void *shared;
    MPI_Allreduce(MPI_IN_PLACE, &apart, 1, MPI_INT, MPI_MAX, node);
    if (apart) return;
    MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, node, &shared, &ranks_window);
    MPI_Win_shared_query(ranks_window, 0, &bytes, &unit, &shared);
    if (r->local_rank == 0) memset(shared, 0, (size_t)bytes);
    MPI_Barrier(node);
    ranks_join_node((RanksNode *)shared, r);
    MPI_Barrier(node);
}

static void ranks_start_mpi(Ranks *r, const Machine *own) {
    int provided, apart = ranks_in_containers();
    // Open MPI's shared memory takes ranks for one and the same that have one process number.
    if (apart) setenv("OMPI_MCA_btl", "^vader,sm", 0);
    process.world = ranks_launched();
    process_waits(true);
    MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &r->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &r->world);
    MPI_Bcast(&process.run, 1, MPI_UNSIGNED, 0, MPI_COMM_WORLD);
    MPI_Comm node;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, r->rank, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &r->local_rank);
    MPI_Comm_size(node, &r->local_world);
    r->machines = (Machine *)malloc_check(sizeof *own * (size_t)r->local_world);
    MPI_Allgather(own, sizeof *own, MPI_BYTE, r->machines, sizeof *own, MPI_BYTE, node);
    ranks_share_node(r, node, apart);
    process_waits(false);
    MPI_Comm_free(&node);
    r->launcher = ranks_launcher_mpi;
    die_hook = ranks_mpi_abort;
}
#endif

// ---- forked ranks: the parent's part -----------------------------------------------------------

static pid_t *ranks_children;
static int ranks_nchildren;

static bool ranks_ignore_interrupt;  // as a script's shell wants it of what it starts with &

static void ranks_send_signal(int signal) {
    for (int i = 0; i < ranks_nchildren; i++)
        if (ranks_children[i] > 0) kill(ranks_children[i], signal);
}

// Ranks that ignore interrupts are asked to terminate, if it was no key that interrupts them.
static void ranks_forward_signal(int signal, siginfo_t *info, void *) {
    if (signal == SIGINT && ranks_ignore_interrupt && info->si_code == SI_KERNEL) return;
    ranks_send_signal(signal == SIGINT && ranks_ignore_interrupt ? SIGTERM : signal);
}

// Why the kernel or somebody else may have ended a rank.
static const char *ranks_likely_reason(int signal, double oom_kills) {
    if (signal != SIGKILL) return "";
    return machine_oom_kills("") > oom_kills
               ? ": the memory limit of its control group (container) was reached"
               : ": somebody's kill -9, or the machine was out of memory (see dmesg)";
}

// Waits for all ranks; returns the exit code of the job: 0 only if every rank ended with 0.
static int ranks_watch(void) {
    int code = 0;
    const double oom_kills = machine_oom_kills("");
    for (int left = ranks_nchildren; left > 0;) {
        int status, rank = 0;
        pid_t pid = wait(&status);
        if (pid < 0 && errno == EINTR) continue;
        if (pid < 0) break;
        while (rank < ranks_nchildren && ranks_children[rank] != pid) rank++;
        if (rank == ranks_nchildren) continue;
        ranks_children[rank] = 0;
        left--;
        if ((WIFEXITED(status) && WEXITSTATUS(status) == 0) || code != 0) continue;
        code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        if (WIFSIGNALED(status))
            fprintf(stderr,
                    "train_gpt: rank %d was ended by signal %d (%s)%s; stopping the other ranks\n",
                    rank, WTERMSIG(status), strsignal(WTERMSIG(status)),
                    ranks_likely_reason(WTERMSIG(status), oom_kills));
        ranks_send_signal(SIGKILL);
    }
    return code;
}

static void *ranks_map(size_t bytes, int n) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) die("cannot map memory shared by %d ranks: %s", n, strerror(errno));
    return p;
}

// Forks n ranks and returns in each of them; the parent never returns.
static void ranks_fork(Ranks *r, int n) {
    r->shared = (RanksShared *)ranks_map(sizeof(RanksShared), n);
    RanksNode *node = (RanksNode *)ranks_map(ranks_node_bytes(n), n);
    die_spoken = &node->spoken;
    ranks_children = (pid_t *)calloc((size_t)n, sizeof(pid_t));
    ranks_nchildren = n;
    pid_t parent = getpid();
    fflush(NULL);
    for (int i = 0; i < n; i++) {
        pid_t pid = fork();
        if (pid < 0) {
            ranks_send_signal(SIGKILL);
            die("cannot start rank %d of %d: %s", i, n, strerror(errno));
        }
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent) _exit(1);
            r->rank = r->local_rank = i;
            r->world = r->local_world = n;
            r->launcher = "--ranks";
            ranks_join_node(node, r);
            return;
        }
        ranks_children[i] = pid;
    }
    struct sigaction action = {};
    action.sa_sigaction = ranks_forward_signal;
    action.sa_flags = SA_SIGINFO;
    ranks_ignore_interrupt = stop_ignores(SIGINT);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    if (!stop_ignores(SIGHUP)) sigaction(SIGHUP, &action, NULL);
    _exit(ranks_watch());
}

// Sets process.rank before anything can fail, so that errors common to all ranks are printed once.
static void ranks_identify(void) {
    const char *names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (const char *name : names)
        if (getenv(name)) {
            process.rank = collectives_alone.rank = ranks_variable(name);
            return;
        }
}

static void ranks_end(int signal) {
    _exit(128 + signal);
}

// The kernel keeps every signal from process 1 of a container that it has no handler for.
static void ranks_answer_signals(void) {
    if (getpid() != 1) return;
    static const int signals[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};
    for (int s : signals) signal(s, ranks_end);
}

static void ranks_number_run(void) {
    if (getrandom(&process.run, sizeof process.run, 0) != (ssize_t)sizeof process.run)
        die("cannot draw a random number: %s", strerror(errno));
}

// Do the ranks come from a launcher, with MPI? wanted: --ranks, 0 = as launched.
static bool ranks_come_from_mpi(int wanted) {
    const int launched = ranks_launched();
    return launched > 1 || (launched && !wanted);
}

// own: what this process is given.
static Ranks ranks_start(int wanted, const Machine *own) {
    Ranks r = {0, 1, 0, 1, "one process", NULL, NULL};
    const int launched = ranks_launched();
    ranks_answer_signals();
    ranks_number_run();
    if (!launched) ranks_check_slurm(wanted);
    if (ranks_come_from_mpi(wanted)) {
#ifdef USE_MPI
        ranks_start_mpi(&r, own);
        if (wanted && wanted != r.world)
            die_all("--ranks %d: mpirun started %d; leave --ranks out under mpirun", wanted,
                    r.world);
        if (launched > r.world)
            die_all("the launcher started %d ranks, but MPI knows of %d here: use the mpirun of "
                    "the MPI that the program was built with",
                    launched, r.world);
#else
        die_all(
            "started by mpirun, but built without MPI: install libopenmpi-dev and run make again, "
            "or use --ranks N");
#endif
    } else if (wanted > 1) {
        ranks_fork(&r, wanted);
    }
    if (!r.machines) {  // forked ranks are given the same
        r.machines = (Machine *)malloc_check(sizeof *own * (size_t)r.local_world);
        for (int i = 0; i < r.local_world; i++) r.machines[i] = *own;
    }
    process.rank = r.rank;
    process.world = r.world;
    return r;
}

// For a plan: the ranks that --ranks or mpirun asks for, without starting any.
static Ranks ranks_imagined(int wanted, int per_node) {
    const char *mpi = getenv("OMPI_COMM_WORLD_SIZE");
    int world = wanted ? wanted : mpi ? atoi(mpi) : 1, node = world < per_node ? world : per_node;
    Ranks r = {process.rank, world, 0, node, "plan", NULL, NULL};
    return r;
}

// Are there ranks that answer (not in a plan)?
static inline bool ranks_started(const Ranks *r) {
    return r->shared || r->launcher == ranks_launcher_mpi;
}

static void ranks_finish(void) {
#ifdef USE_MPI
    int running;
    MPI_Initialized(&running);
    if (!running) return;
    die_spoken = NULL;
    collectives = (Collectives){1, &collectives_alone, &collectives_alone};
    if (ranks_window != MPI_WIN_NULL) MPI_Win_free(&ranks_window);
    MPI_Finalize();
#endif
}

// ---- words between hosts; every rank has to call -----------------------------------------------

// waited: pauses so far. Naps after a while: others may have a use for the core.
static inline void ranks_pause(int waited) {
#ifdef EMULATOR
    emu_progress();
#endif
    const struct timespec nap = {0, 50 * 1000};
    if (waited < 100)
        sched_yield();
    else
        nanosleep(&nap, NULL);
}

#ifdef USE_MPI
static void ranks_mpi_wait(MPI_Request *request) {
    process_waits(true);
    for (int done = 0, n = 0; !done; ranks_pause(n++)) MPI_Test(request, &done, MPI_STATUS_IGNORE);
    process_waits(false);
}
#endif

// Forked ranks only.
static void ranks_meet(Ranks *r) {
    int generation = __atomic_load_n(&r->shared->generation, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&r->shared->arrived, 1, __ATOMIC_ACQ_REL) == r->world) {
        r->shared->arrived = 0;
        __atomic_add_fetch(&r->shared->generation, 1, __ATOMIC_ACQ_REL);
        return;
    }
    process_waits(true);
    for (int n = 0; __atomic_load_n(&r->shared->generation, __ATOMIC_ACQUIRE) == generation; n++)
        ranks_pause(n);
    process_waits(false);
}

// Copies rank 0's bytes to all.
static inline void ranks_broadcast(Ranks *r, void *words, size_t bytes) {
    char *at = (char *)words;
    collective_begins("words of rank 0", "");
    for (size_t n; bytes > 0; at += n, bytes -= n) {
        n = bytes < RANKS_WORDS ? bytes : RANKS_WORDS;
#ifdef USE_MPI
        if (r->launcher == ranks_launcher_mpi) {
            MPI_Request request;
            MPI_Ibcast(at, (int)n, MPI_BYTE, 0, MPI_COMM_WORLD, &request);
            ranks_mpi_wait(&request);
        }
#endif
        if (!r->shared) continue;
        if (r->rank == 0) memcpy(r->shared->words, at, n);
        ranks_meet(r);
        memcpy(at, r->shared->words, n);
        ranks_meet(r);
    }
}

// Each of n values becomes the sum of all ranks' (modulo 2^64).
static inline void ranks_sum(Ranks *r, uint64_t *values, size_t n) {
    const size_t AT_A_TIME = RANKS_WORDS / sizeof(uint64_t);
    collective_begins("sum over the hosts", "");
    for (size_t i = 0, count; i < n; i += count) {
        count = n - i < AT_A_TIME ? n - i : AT_A_TIME;
#ifdef USE_MPI
        if (r->launcher == ranks_launcher_mpi) {
            MPI_Request request;
            MPI_Iallreduce(MPI_IN_PLACE, values + i, (int)count, MPI_UINT64_T, MPI_SUM,
                           MPI_COMM_WORLD, &request);
            ranks_mpi_wait(&request);
        }
#endif
        if (!r->shared) continue;
        uint64_t *sums = (uint64_t *)(void *)r->shared->words;
        if (r->rank == 0) memset(sums, 0, RANKS_WORDS);
        ranks_meet(r);
        for (size_t k = 0; k < count; k++)
            __atomic_add_fetch(&sums[k], values[i + k], __ATOMIC_RELAXED);
        ranks_meet(r);
        memcpy(values + i, sums, count * sizeof(uint64_t));
        ranks_meet(r);
    }
}

// Is it so on any rank?
static inline bool ranks_any(Ranks *r, bool here) {
    uint64_t count = here;
    ranks_sum(r, &count, 1);
    return count > 0;
}

// Compares what every rank has to say of itself, lines of `what<TAB>value`, with rank 0's: the
// first line that differs ends the job, on the rank where it does. The text of each rank has the
// same lines in the same order.
static inline void ranks_agree(Ranks *r, const char *text) {
    size_t bytes = strlen(text) + 1;
    uint64_t size = bytes;
    ranks_broadcast(r, &size, sizeof size);
    char *first = (char *)calloc(1, size);
    if (!first) die("out of memory for %zu bytes", (size_t)size);
    if (r->rank == 0) memcpy(first, text, bytes);
    ranks_broadcast(r, first, size);
    const char *a = first, *b = text;
    while (*a && *b) {
        size_t x = strcspn(a, "\n"), y = strcspn(b, "\n"), name = strcspn(a, "\t");
        if (x != y || memcmp(a, b, x)) {
            size_t same = strcspn(b, "\t");
            die("the ranks differ: %.*s is %.*s on rank %d and %.*s on rank 0", (int)name, a,
                (int)(y > same ? y - same - 1 : 0), b + same + 1, r->rank,
                (int)(x > name ? x - name - 1 : 0), a + name + 1);
        }
        a += x + (a[x] != 0), b += y + (b[y] != 0);
    }
    free(first);
}

// A moment near the call that all ranks agree on, in clock_ns() of this rank. The ranks of a
// machine have one clock. On another machine the time in which rank 0's word arrives, at its
// shortest, is taken for the difference of the clocks: off by the latency of the network.
static inline int64_t ranks_moment(Ranks *r) {
    enum { TRIES = 16 };
    char machine[64] = "", first[64];
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (f && !fgets(machine, sizeof machine, f)) machine[0] = 0;
    if (f) fclose(f);
    memcpy(first, machine, sizeof first);
    ranks_broadcast(r, first, sizeof first);
    int64_t now = 0, shortest = INT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        now = clock_ns();
        ranks_broadcast(r, &now, sizeof now);
        int64_t late = clock_ns() - now;
        if (late < shortest) shortest = late;
    }
    return strcmp(machine, first) ? now + shortest : now;
}
