// lib/machine.h: what this machine gives a process: the cores it may run on, and how much of the
// processors and of the memory its control groups (Linux cgroups, versions 1 and 2) leave it.
// Ranks of one node exchange their Machine, as plain bytes, and share out what they have in common.
#pragma once

#include "files.h"

#include <math.h>
#include <sched.h>

enum { MACHINE_CORES = 4096 };  // the most a machine may have
typedef struct {
    uint64_t bits[MACHINE_CORES / 64];
} CoreMask;

// A limit of a control group. Groups that have one number are the same group.
typedef struct {
    double amount;   // cores; or bytes not yet in use; INFINITY: no limit
    double limit;    // the limit itself
    uint64_t group;  // inode of the group's folder
} GroupLimit;

typedef struct {
    CoreMask cores;          // that the process may run on
    CoreMask launcher;       // the same for the process that has started it
    GroupLimit cpu, memory;  // the tightest
    double available;        // bytes that the kernel can still give to anybody
} Machine;

// Of a rank.
typedef struct {
    int n;
    char why[64];  // for the start-up table
} Threads;

// ---- cores -------------------------------------------------------------------------------------

// pid 0: this process. No core where the answer is not to be had.
static inline CoreMask machine_cores(pid_t pid) {
    CoreMask m = {};
    if (sched_getaffinity(pid, sizeof m, (cpu_set_t *)(void *)&m) != 0) m = (CoreMask){};
    return m;
}

// Of the cores on which `launcher` may run, those that this process could have: a cpuset may
// withhold some of them.
static inline CoreMask machine_cores_of_launcher(pid_t launcher) {
    CoreMask mine = machine_cores(0), wish = machine_cores(launcher), got = mine;
    if (launcher > 0 && sched_setaffinity(0, sizeof wish, (cpu_set_t *)(void *)&wish) == 0) {
        got = machine_cores(0);
        sched_setaffinity(0, sizeof mine, (cpu_set_t *)(void *)&mine);
    }
    return got;
}

static inline int cores_count(const CoreMask *m) {
    int n = 0;
    for (int i = 0; i < MACHINE_CORES / 64; i++) n += __builtin_popcountll(m->bits[i]);
    return n;
}

static inline bool cores_has(const CoreMask *m, int core) {
    return m->bits[core / 64] >> (core % 64) & 1;
}

// The same for all processes of a machine, in whatever container: the number that its kernel drew
// at boot, else the host's name.
enum { MACHINE_NAME = 128 };
static inline void machine_name(char name[MACHINE_NAME]) {
    memset(name, 0, MACHINE_NAME);
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (!f || !fgets(name, MACHINE_NAME, f)) gethostname(name, MACHINE_NAME - 1);
    if (f) fclose(f);
}

// ---- control groups ----------------------------------------------------------------------------
// Every path starts with `root`: "" but in tests.

// The first number of a file; false if there is none ("max" is none).
static inline bool machine_read_number(const char *folder, const char *name, double *x) {
    char path[PATH_BYTES + 32];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "r");
    if (!f) return false;
    bool found = fscanf(f, "%lf", x) == 1;
    fclose(f);
    return found;
}

// The number behind `key` in a file of lines "key number"; 0 if there is none.
static inline double machine_read_field(const char *folder, const char *name, const char *key) {
    char path[PATH_BYTES + 32], line[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "r");
    double x = 0;
    size_t length = strlen(key);
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, key, length) && line[length] == ' ') x = atof(line + length);
    if (f) fclose(f);
    return x;
}

// Is `word` one of the words of a list with commas?
static inline bool machine_lists(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *p = list; (p = strstr(p, word)) != NULL; p += length)
        if ((p == list || p[-1] == ',') && (p[length] == ',' || !p[length])) return true;
    return false;
}

// The path of the process's group in the hierarchy of version 1 that has `controller`, or in that
// of version 2 (controller ""). False if there is no such hierarchy.
static inline bool machine_group_path(const char *root, const char *controller,
                                      char path[PATH_BYTES]) {
    char name[PATH_BYTES], line[PATH_BYTES + 256];
    path_print(name, "%s/proc/self/cgroup", root);
    FILE *f = fopen(name, "r");
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f)) {  // NUMBER:CONTROLLERS:PATH
        char *controllers = strchr(line, ':'), *at = controllers ? strchr(controllers + 1, ':') : 0;
        if (!at) continue;
        *at++ = 0;
        at[strcspn(at, "\n")] = 0;
        found = controller[0] ? machine_lists(controllers + 1, controller) : !controllers[1];
        if (found) path_print(path, "%s", at);
    }
    if (f) fclose(f);
    return found;
}

// Where that hierarchy is mounted, and which of its groups is to be seen there: a container may
// see its own as the topmost.
static inline bool machine_group_mount(const char *root, const char *controller,
                                       char mount[PATH_BYTES], char top[PATH_BYTES]) {
    char name[PATH_BYTES], line[2 * PATH_BYTES], kind[32], options[PATH_BYTES];
    path_print(name, "%s/proc/self/mountinfo", root);
    FILE *f = fopen(name, "r");
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f)) {
        // ID PARENT MAJOR:MINOR TOP MOUNT ... - KIND SOURCE OPTIONS
        char *rest = strstr(line, " - ");
        char at[PATH_BYTES];
        if (!rest || sscanf(line, "%*s %*s %*s %4095s %4095s", top, at) != 2) continue;
        if (sscanf(rest, " - %31s %*s %4095s", kind, options) != 2) continue;
        found = controller[0] ? !strcmp(kind, "cgroup") && machine_lists(options, controller)
                              : !strcmp(kind, "cgroup2");
        if (found) path_print(mount, "%s%s", root, at);
    }
    if (f) fclose(f);
    return found;
}

// The folder of the process's group; `topmost` gets the length of the part that is the mount.
static inline bool machine_group_folder(const char *root, const char *controller,
                                        char folder[PATH_BYTES], size_t *topmost) {
    char path[PATH_BYTES], mount[PATH_BYTES], top[PATH_BYTES];
    if (!machine_group_path(root, controller, path) ||
        !machine_group_mount(root, controller, mount, top))
        return false;
    size_t above = strcmp(top, "/") ? strlen(top) : 0;
    const char *below = !strncmp(path, top, above) ? path + above : "";
    path_print(folder, "%s%s", mount, strcmp(below, "/") ? below : "");
    *topmost = strlen(mount);
    struct stat s;
    if (stat(folder, &s) != 0) folder[*topmost] = 0;  // a path of another namespace
    return true;
}

// Cores that a group may use on average.
static inline bool machine_cpu_limit(const char *folder, bool v2, double *amount, double *limit) {
    double quota, period = 0;
    char path[PATH_BYTES + 32];
    if (v2) {
        snprintf(path, sizeof path, "%s/cpu.max", folder);  // "QUOTA PERIOD" or "max PERIOD"
        FILE *f = fopen(path, "r");
        bool found = f && fscanf(f, "%lf %lf", &quota, &period) == 2;
        if (f) fclose(f);
        if (!found) return false;
    } else if (!machine_read_number(folder, "cpu.cfs_quota_us", &quota) ||
               !machine_read_number(folder, "cpu.cfs_period_us", &period)) {
        return false;
    }
    if (quota <= 0 || period <= 0) return false;
    *amount = *limit = quota / period;
    return true;
}

// Bytes that a group may still take: what it uses for files that nobody has open can be dropped.
static inline bool machine_memory_limit(const char *folder, bool v2, double *amount,
                                        double *limit) {
    double used = 0;
    if (!machine_read_number(folder, v2 ? "memory.max" : "memory.limit_in_bytes", limit) ||
        *limit >= 1e18)  // version 1 writes a huge number for "none"
        return false;
    machine_read_number(folder, v2 ? "memory.current" : "memory.usage_in_bytes", &used);
    used -= machine_read_field(folder, "memory.stat", v2 ? "inactive_file" : "total_inactive_file");
    *amount = used < *limit ? *limit - used : 0;
    return true;
}

// The tightest limit of the process's group and those above it, in either version.
static inline GroupLimit machine_limit(const char *root, const char *controller,
                                       bool (*read)(const char *folder, bool v2, double *amount,
                                                    double *limit)) {
    GroupLimit tightest = {INFINITY, INFINITY, 0};
    for (int version = 1; version <= 2; version++) {
        char folder[PATH_BYTES];
        size_t topmost;
        if (!machine_group_folder(root, version == 1 ? controller : "", folder, &topmost)) continue;
        while (true) {
            struct stat s;
            double amount, limit;
            if (read(folder, version == 2, &amount, &limit) && amount < tightest.amount &&
                stat(folder, &s) == 0)
                tightest = (GroupLimit){amount, limit, (uint64_t)s.st_ino};
            char *end = strrchr(folder, '/');
            if (strlen(folder) <= topmost || !end) break;
            *end = 0;
        }
    }
    return tightest;
}

// How often the kernel has ended a process of the group for want of memory.
static inline double machine_oom_kills(const char *root) {
    char folder[PATH_BYTES];
    size_t topmost;
    double kills = 0;
    if (machine_group_folder(root, "memory", folder, &topmost))
        kills += machine_read_field(folder, "memory.oom_control", "oom_kill");
    if (machine_group_folder(root, "", folder, &topmost))
        kills += machine_read_field(folder, "memory.events", "oom_kill");
    return kills;
}

static inline Machine machine_look(const char *root) {
    Machine m;
    memset(&m, 0, sizeof m);  // also between the fields: it travels as bytes
    m.cores = machine_cores(0);
    m.launcher = machine_cores_of_launcher(getppid());
    m.cpu = machine_limit(root, "cpu", machine_cpu_limit);
    m.memory = machine_limit(root, "memory", machine_memory_limit);
    char proc[PATH_BYTES];
    path_print(proc, "%s/proc", root);
    m.available = 1024 * machine_read_field(proc, "meminfo", "MemAvailable:");
    return m;
}

// ---- what the ranks of a node have in common ---------------------------------------------------

// The cores of rank `me`, each divided by the ranks that may run on it.
static inline double machine_share_of_cores(const Machine *ranks, int n, int me) {
    double share = 0;
    for (int core = 0; core < MACHINE_CORES; core++) {
        if (!cores_has(&ranks[me].cores, core)) continue;
        int sharers = 0;
        for (int i = 0; i < n; i++) sharers += cores_has(&ranks[i].cores, core);
        share += 1.0 / sharers;
    }
    return share;
}

// Ranks whose processor time has the same limit as that of rank `me`.
static inline int machine_cpu_sharers(const Machine *ranks, int n, int me) {
    int sharers = 0;
    for (int i = 0; i < n; i++) sharers += ranks[i].cpu.group == ranks[me].cpu.group;
    return sharers;
}

// Ranks whose memory has the same limit as that of rank `me`.
static inline int machine_memory_sharers(const Machine *ranks, int n, int me) {
    int sharers = 0;
    for (int i = 0; i < n; i++) sharers += ranks[i].memory.group == ranks[me].memory.group;
    return sharers;
}

// Threads that fit rank `me`: its share of the cores, and of the processor time if that is limited.
static inline int machine_threads(const Machine *ranks, int n, int me) {
    double threads = machine_share_of_cores(ranks, n, me) + 1e-6;  // of thirds may be 0.999...
    double quota = ranks[me].cpu.amount / machine_cpu_sharers(ranks, n, me) + 1e-6;
    if (quota < threads) threads = quota;
    return threads < 1 ? 1 : (int)threads;
}

// Cores on which what started the ranks may run, but none of the ranks.
static inline int machine_idle_cores(const Machine *ranks, int n, int me) {
    CoreMask idle = ranks[me].launcher;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < MACHINE_CORES / 64; k++) idle.bits[k] &= ~ranks[i].cores.bits[k];
    return cores_count(&idle);
}
