// ranks.h: the processes of a run: who starts them, which one this is, and the few words that the
// hosts exchange. Data of the model never goes this way (see NCCL).
//
// Under mpirun the ranks come from MPI; under torchrun and srun they find each other by sockets
// (lib/star.h). With --ranks N this process forks N ranks and watches them: the first that fails
// takes the others down. Else there is one rank.
#pragma once

#include "lib/clock.h"
#include "lib/collectives.h"
#include "lib/launch.h"
#include "lib/machine.h"
#include "lib/star.h"
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
    uint64_t token;  // random, of ranks that torchrun or srun has started
    int spoken;      // see die_spoken
    CollectiveLog logs[];
} RanksNode;

typedef struct {
    int rank, world;
    int local_rank, local_world;  // among the ranks of this node
    const char *launcher;         // for the start-up table
    Machine *machines;            // (local_world): what each rank of this node is given
    RanksShared *shared;          // forked ranks only
    Star *star;                   // of torchrun's and Slurm's ranks only
} Ranks;

static const char ranks_launcher_mpi[] = "mpirun";
static Launch ranks_launch;  // see ranks_identify
#ifdef USE_MPI
static const bool ranks_have_mpi = true;
#else
static const bool ranks_have_mpi = false;
#endif

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
    process.world = ranks_launch.world;
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

// ---- ranks that torchrun or srun has started ---------------------------------------------------

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

static Star ranks_star;

static void ranks_star_end(void) {
    star_say_end(&ranks_star);
}

// For the watchdog: has another rank ended?
static inline bool ranks_failed(char *text, size_t room) {
    return star_failed(&ranks_star, text, room);
}

static void ranks_star_read(int from, void *words, size_t bytes) {
    process_waits(true);
    int waited = 0;
    for (size_t got = 0, n; got < bytes; got += n) {
        n = star_read(&ranks_star, from, (char *)words + got, bytes - got);
        if (!n) ranks_pause(waited++);
    }
    process_waits(false);
}

// Rank 0's words to all.
static void ranks_star_broadcast(const Ranks *r, void *words, size_t bytes) {
    if (r->rank) ranks_star_read(0, words, bytes);
    for (int i = 1; r->rank == 0 && i < r->world; i++) star_write(&ranks_star, i, words, bytes);
}

static void ranks_star_sum(const Ranks *r, uint64_t *values, size_t n) {
    if (r->rank) star_write(&ranks_star, 0, values, n * sizeof *values);
    for (int i = 1; r->rank == 0 && i < r->world; i++)
        for (size_t k = 0; k < n; k++) {
            uint64_t value;
            ranks_star_read(i, &value, sizeof value);
            values[k] += value;
        }
    ranks_star_broadcast(r, values, n * sizeof *values);
}

// What a rank tells all others of itself. The file is for a RanksNode of as many ranks as there
// are; it is the right one if it holds the token.
typedef struct {
    char machine[MACHINE_NAME];
    unsigned run;
    int64_t pid, fd;
    uint64_t token;
    Machine given;
} RanksCard;

static RanksCard ranks_own_card(const Machine *own, int world) {
    RanksCard c;
    memset(&c, 0, sizeof c);  // also between the fields: it travels as bytes
    machine_name(c.machine);
    c.run = process.run, c.given = *own;
    c.pid = getpid(), c.fd = memfd_create("fsdp-node", MFD_CLOEXEC);
    if (c.fd < 0 || ftruncate((int)c.fd, (off_t)ranks_node_bytes(world)) ||
        getrandom(&c.token, sizeof c.token, 0) != (ssize_t)sizeof c.token ||
        pwrite((int)c.fd, &c.token, sizeof c.token, 0) != (ssize_t)sizeof c.token)
        die("shared memory: cannot create a file of %zu bytes for it, %s", ranks_node_bytes(world),
            strerror(errno));
    return c;
}

// The memory of the first rank of the node; NULL where it cannot be opened, as between containers.
static RanksNode *ranks_open_node(const RanksCard *first, int world) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/fd/%ld", (long)first->pid, (long)first->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return NULL;
    void *p = mmap(NULL, ranks_node_bytes(world), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    struct stat s;
    bool right = p != MAP_FAILED && stat(path, &s) == 0 &&
                 (size_t)s.st_size == ranks_node_bytes(world) &&
                 ((RanksNode *)p)->token == first->token;
    return right ? (RanksNode *)p : NULL;
}

static void ranks_start_star(Ranks *r, const Machine *own, int seconds) {
    const Launch *l = &ranks_launch;
    if (l->fault[0]) die_all("%s", l->fault);
    r->rank = l->rank, r->world = l->world, r->star = &ranks_star;
    r->launcher = l->kind == LAUNCH_SRUN ? "srun" : "RANK and WORLD_SIZE";
    die_hook = ranks_star_end;
    star_join(&ranks_star, r->rank, r->world, l->host, l->port, seconds);
    process.world = r->world;
    RanksCard *cards = (RanksCard *)malloc_check(sizeof *cards * (size_t)r->world);
    RanksCard mine = cards[r->rank] = ranks_own_card(own, r->world);
    if (r->rank) star_write(&ranks_star, 0, &mine, sizeof mine);
    for (int i = 1; r->rank == 0 && i < r->world; i++) ranks_star_read(i, &cards[i], sizeof *cards);
    ranks_star_broadcast(r, cards, sizeof *cards * (size_t)r->world);
    process.run = cards[0].run;
    r->local_world = 0;
    r->machines = (Machine *)malloc_check(sizeof(Machine) * (size_t)r->world);
    const RanksCard *first = NULL;
    for (int i = 0; i < r->world; i++) {
        if (strcmp(cards[i].machine, mine.machine)) continue;
        if (!first) first = &cards[i];
        if (i == r->rank) r->local_rank = r->local_world;
        r->machines[r->local_world++] = cards[i].given;
    }
    RanksNode *node = ranks_open_node(first, r->world);
    uint64_t apart = !node;
    ranks_star_sum(r, &apart, 1);  // all have tried
    if (!apart) ranks_join_node(node, r);
    ranks_star_sum(r, &apart, 1);  // all have joined
    close((int)mine.fd);
    free(cards);
}

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
    ranks_launch = launch_look(ranks_have_mpi);
    process.rank = collectives_alone.rank = ranks_launch.rank;
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

// Do the ranks come from a launcher? wanted: --ranks, 0 = as launched.
static bool ranks_are_launched(int wanted) {
    const Launch *l = &ranks_launch;
    return l->world > 1 || l->fault[0] || (l->kind == LAUNCH_MPI && !wanted);
}

// A batch script would train alone on what Slurm has reserved for many.
static void ranks_check_slurm(int wanted) {
    int tasks = launch_variable("SLURM_NTASKS");
    if (!wanted && tasks > 1 && !getenv("WORLD_SIZE"))
        die_all("Slurm has %d tasks here, and this process is none of them: start it with srun or "
                "mpirun, or use --ranks N",
                tasks);
}

static void ranks_start_launched(Ranks *r, int wanted, const Machine *own, int seconds) {
    const int launched = ranks_launch.world;
    if (ranks_launch.kind != LAUNCH_MPI) {
        ranks_start_star(r, own, seconds);
    } else {
#ifdef USE_MPI
        ranks_start_mpi(r, own);
#else
        die_all(
            "started by mpirun, but built without MPI: install libopenmpi-dev and run make again, "
            "or use --ranks N, torchrun or srun --mpi=none");
#endif
    }
    if (wanted && wanted != r->world)
        die_all("--ranks %d: %s started %d; leave --ranks out under a launcher", wanted,
                r->launcher, r->world);
    if (launched > r->world)
        die_all("the launcher started %d ranks, but MPI knows of %d here: use the mpirun of the "
                "MPI that the program was built with, or srun --mpi=none",
                launched, r->world);
}

// own: what this process is given. seconds: that ranks may take to find each other.
static Ranks ranks_start(int wanted, const Machine *own, int seconds) {
    Ranks r = {0, 1, 0, 1, "one process", NULL, NULL, NULL};
    ranks_answer_signals();
    ranks_number_run();
    if (ranks_launch.kind == LAUNCH_NONE) ranks_check_slurm(wanted);
    if (ranks_are_launched(wanted))
        ranks_start_launched(&r, wanted, own, seconds);
    else if (wanted > 1)
        ranks_fork(&r, wanted);
    if (!r.machines) {  // forked ranks are given the same
        r.machines = (Machine *)malloc_check(sizeof *own * (size_t)r.local_world);
        for (int i = 0; i < r.local_world; i++) r.machines[i] = *own;
    }
    process.rank = r.rank;
    process.world = r.world;
    return r;
}

// For a plan: the ranks that --ranks or a launcher asks for, without starting any.
static Ranks ranks_imagined(int wanted, int per_node) {
    int world = wanted ? wanted : ranks_launch.world, node = world < per_node ? world : per_node;
    Ranks r = {process.rank, world, 0, node, "plan", NULL, NULL, NULL};
    return r;
}

// Are there ranks that answer (not in a plan)?
static inline bool ranks_started(const Ranks *r) {
    return r->shared || r->star || r->launcher == ranks_launcher_mpi;
}

static void ranks_finish(Ranks *r) {
    if (r->star) {
        __atomic_store_n(&ranks_star.leaves, true, __ATOMIC_RELEASE);
        uint64_t all = 0;
        ranks_star_sum(r, &all, 1);
        die_hook = NULL;
        star_leave(&ranks_star);
    }
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
        if (r->star) ranks_star_broadcast(r, at, n);
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
        if (r->star) ranks_star_sum(r, values + i, count);
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

static inline uint64_t ranks_least(Ranks *r, uint64_t here) {
    uint64_t least = here, *all = (uint64_t *)calloc((size_t)r->world, sizeof *all);
    if (!all) die("out of memory for a number of each of %d ranks", r->world);
    all[r->rank] = here;
    ranks_sum(r, all, (size_t)r->world);
    for (int i = 0; i < r->world; i++)
        if (all[i] < least) least = all[i];
    free(all);
    return least;
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
    char machine[MACHINE_NAME], first[MACHINE_NAME];
    machine_name(machine);
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
