// lib/launch.h: what the environment says of who has started this process, and as which of how
// many: an MPI launcher, torchrun (or whatever sets the same variables), or Slurm's srun. Which
// GPU a rank takes does not come from here (LOCAL_RANK, SLURM_LOCALID): ranks.h counts who shares
// a machine.
#pragma once

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum { LAUNCH_NONE, LAUNCH_MPI, LAUNCH_TORCHRUN, LAUNCH_SRUN } LaunchKind;

typedef struct {
    LaunchKind kind;
    int rank, world;  // of MPI's only as far as the launcher says so
    // Where rank 0 listens. Of torchrun's and Slurm's ranks.
    char host[256];
    int port;
    char fault[512];  // why these ranks cannot start; "": they can
} Launch;

static inline int launch_variable(const char *name) {
    const char *text = getenv(name);
    return text ? atoi(text) : 0;
}

static inline const char *launch_text(const char *name) {
    const char *text = getenv(name);
    return text ? text : "";
}

// Is this one of several tasks of srun? A batch script has a SLURM_PROCID too, but is no step.
static inline bool launch_is_srun(void) {
    return getenv("SLURM_PROCID") && launch_variable("SLURM_STEP_NUM_TASKS") > 1;
}

// ---- MPI ---------------------------------------------------------------------------------------

// The variables may be left over from another program that the launcher started, such as the shell.
static inline bool launch_is_mpi(void) {
    return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_RANK") || getenv("PMIX_RANK");
}

static inline void launch_mpi(Launch *l) {
    static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
    l->kind = LAUNCH_MPI;
    for (int i = 2; i >= 0; i--) {
        if (getenv(ranks[i])) l->rank = launch_variable(ranks[i]);
        if (launch_variable(sizes[i]) > 0) l->world = launch_variable(sizes[i]);
    }
    if (l->world <= l->rank) l->world = l->rank + 1;
}

// ---- torchrun ----------------------------------------------------------------------------------

// Does this look like one of several ranks? RANK or WORLD_SIZE alone may mean anything, but not
// where it is said at which address the ranks meet; srun's tasks may share that, and WORLD_SIZE.
static inline bool launch_is_torchrun(void) {
    const bool rank = getenv("RANK"), world = getenv("WORLD_SIZE");
    if (!rank && launch_is_srun()) return false;
    if (getenv("MASTER_ADDR") && getenv("MASTER_PORT")) return rank || world;
    return rank && launch_variable("WORLD_SIZE") > 1;
}

// -1: not there, or no number.
static inline int launch_count(const char *name) {
    char *end;
    const char *text = launch_text(name);
    const long n = strtol(text, &end, 10);
    return *text && !*end && n >= 0 && n <= 1000000 ? (int)n : -1;
}

// torchrun's agent keeps a store of its own at MASTER_PORT and says so in the last of these
// variables (torch/distributed/rendezvous.py, _torchelastic_use_agent_store); then rank 0 takes
// the port after it.
static inline void launch_torchrun(Launch *l) {
    const bool taken = !strcmp(launch_text("TORCHELASTIC_USE_AGENT_STORE"), "True");
    l->kind = LAUNCH_TORCHRUN;
    l->rank = launch_count("RANK"), l->world = launch_count("WORLD_SIZE");
    l->port = launch_variable("MASTER_PORT") + taken;
    snprintf(l->host, sizeof l->host, "%s", launch_text("MASTER_ADDR"));
    if (l->rank < 0 || l->world < 1 || l->rank >= l->world)
        snprintf(l->fault, sizeof l->fault,
                 "RANK=%.32s WORLD_SIZE=%.32s: expected the number of this rank, from 0, and how "
                 "many there are",
                 launch_text("RANK"), launch_text("WORLD_SIZE"));
    else if (!l->host[0] || l->port - taken < 1 || l->port > 65535)
        snprintf(
            l->fault, sizeof l->fault,
            "RANK=%d WORLD_SIZE=%d MASTER_ADDR=%s MASTER_PORT=%s: expected the host name and a "
            "free port of rank 0 in the last two (torchrun sets them)",
            l->rank, l->world, l->host, launch_text("MASTER_PORT"));
}

// ---- Slurm -------------------------------------------------------------------------------------

// The first host of Slurm's list: "gpu[07-09,12]-ib,gpu20" has "gpu07-ib".
static inline void launch_first_host(const char *list, char *host, size_t room) {
    size_t used = 0;
    bool inside = false, skips = false;  // brackets; what is behind the first number in them
    for (const char *c = list; *c && used + 1 < room; c++) {
        if (*c == '[')
            inside = true;
        else if (*c == ']')
            inside = skips = false;
        else if (inside && (*c == '-' || *c == ','))
            skips = true;
        else if (*c == ',')
            break;
        else if (!skips)
            host[used++] = *c;
    }
    host[used] = 0;
}

// Task 0 runs on the first node of the step. (SLURM_LAUNCH_NODE_IPADDR is where srun was called,
// which may be another machine.) The port comes from the job, so that jobs that share a node
// differ; it lies below those that the kernel gives to outgoing connections.
static inline void launch_srun(Launch *l) {
    static const char *const lists[] = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"};
    enum { FIRST_PORT = 20000, PORTS = 12000 };
    l->kind = LAUNCH_SRUN;
    l->rank = launch_variable("SLURM_PROCID"), l->world = launch_variable("SLURM_STEP_NUM_TASKS");
    snprintf(l->host, sizeof l->host, "%s", launch_text("MASTER_ADDR"));
    for (int i = 0; i < 2 && !l->host[0]; i++)
        launch_first_host(launch_text(lists[i]), l->host, sizeof l->host);
    const int job = launch_variable("SLURM_JOB_ID"), step = launch_variable("SLURM_STEP_ID");
    l->port = launch_variable("MASTER_PORT");
    if (!l->port) l->port = FIRST_PORT + (int)(((unsigned)job * 8 + (unsigned)step) % PORTS);
    if (!l->host[0] || l->port < 1 || l->port > 65535 || l->rank < 0 || l->rank >= l->world)
        snprintf(l->fault, sizeof l->fault,
                 "task %d of %d of srun: expected the step's hosts in SLURM_STEP_NODELIST, or rank "
                 "0's in MASTER_ADDR and MASTER_PORT, found \"%s\" and port %d",
                 l->rank, l->world, l->host, l->port);
}

// ------------------------------------------------------------------------------------------------

// has_mpi: the program is built with it. torchrun may have been started by an MPI launcher, once on
// each node, and leaves its variables to the ranks.
static inline Launch launch_look(bool has_mpi) {
    Launch l = {LAUNCH_NONE, 0, 1, "", 0, ""};
    const bool mpi = launch_is_mpi();
    if (launch_is_torchrun() && (getenv("TORCHELASTIC_RUN_ID") || !mpi))
        launch_torchrun(&l);
    else if (mpi && (has_mpi || !launch_is_srun()))
        launch_mpi(&l);
    else if (launch_is_srun())
        launch_srun(&l);
    return l;
}
