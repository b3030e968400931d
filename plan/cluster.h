// plan/cluster.h: the machines that a plan is made for, and how long they take for a piece of the
// program's work: products by their shape (roofline.h), kernels by their bytes, collectives by
// NCCL's own model of its rings. CPUs by rates that were measured when the plan began.
#pragma once

#include "../lib/paths.h"
#include "../lib/work.h"
#include "roofline.h"

typedef struct {
    WorkKind kind;
    double units;
    double counted_flops;  // as for utilisation: attention's causal half, backward twice forward
    ProductWork product;   // of products; of attention the operands' bytes
    int launches;
} Work;

typedef enum { GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL } CollectiveKind;

typedef struct {
    char name[64];
    bool cpu;
    Gpu gpu;
    double seconds[WORK_KINDS];                      // of a unit, on this CPU with all its cores
    int per_node;                                    // ranks
    double network;                                  // bytes a second of a node, reached
    double price;                                    // of a GPU-hour
    bool tf32;                                       // of the run: fp32 products in TF32
    double host_launch, host_call, host_collective;  // seconds of the host
} Cluster;

// Shares and times that are the same on all GPUs:
//   network    nccl-tests on 8 x 200 Gbit/s: 0.9 and more of the line rate
//   host       a launch 2.2 us and more (NVIDIA's blog on CUDA graphs 2019), collectives about 10
//              us (NCCL's enqueue), an event or a wait a third of a launch
//   attention  flops that mma.sync gets from shared memory in a cycle of a multiprocessor: from the
//              kernel report, where A100 and H100 agree within 8 %
#define NETWORK_REACHED 0.90
#define HOST_LAUNCH 2.5e-6
#define HOST_CALL 0.8e-6
#define HOST_COLLECTIVE 10e-6
#define ATTENTION_FLOPS 1550.0
#define ATTENTION_BACKWARD_FLOPS 1700.0
#define ATTENTION_TENSOR 0.75  // and at most this share of the tensor cores' peak

static inline Cluster cluster_of_gpu(const Gpu *gpu) {
    Cluster c = {};
    snprintf(c.name, sizeof c.name, "%s", gpu->name);
    c.gpu = *gpu;
    c.per_node = 8;
    c.network = gpu->network / 8 * NETWORK_REACHED;
    c.host_launch = HOST_LAUNCH, c.host_call = HOST_CALL, c.host_collective = HOST_COLLECTIVE;
    return c;
}

// ---- work --------------------------------------------------------------------------------------

// The GPU as fp32 products see it: without tensor cores, or with half their rate in TF32.
static inline Gpu gpu_in_fp32(const Gpu *gpu, bool tf32) {
    Gpu g = *gpu;
    g.tensor /= 2;
    if (tf32) return g;
    g.tensor = 2.0 * g.fp32_lanes * g.multiprocessors * g.clock;
    g.product_reached = 0.90;
    g.mma_share = 1;
    return g;
}

static inline double attention_seconds(const Gpu *g, WorkKind kind, double flops) {
    double most = kind == WORK_ATTENTION ? ATTENTION_FLOPS : ATTENTION_BACKWARD_FLOPS,
           tensor = ATTENTION_TENSOR * g->tensor / g->clock / g->multiprocessors;
    return flops / (fmin(most, tensor) * g->clock * g->multiprocessors) * ATTENTION_BEYOND;
}

// A step has the same few products many times over; all tiles are tried for each but once.
typedef struct {
    ProductWork work;
    double tensor, dram;  // of the GPU that it was found for; 0: nothing found yet
    double seconds;
} ProductMemo;
enum { PRODUCT_MEMOS = 1024 };
ONE_OBJECT ProductMemo product_memos[PRODUCT_MEMOS];

static inline double product_seconds(const Gpu *g, const ProductWork *w) {
    const unsigned *words = (const unsigned *)(const void *)w;
    unsigned hash = 0;
    for (size_t i = 0; i < sizeof *w / sizeof *words; i++) hash = (hash + words[i]) * 2654435761u;
    ProductMemo *m = &product_memos[(hash >> 16) % PRODUCT_MEMOS];
    if (m->tensor == g->tensor && m->dram == g->dram && memcmp(&m->work, w, sizeof *w) == 0)
        return m->seconds;
    *m = (ProductMemo){*w, g->tensor, g->dram, product_time(g, w).seconds};
    return m->seconds;
}

// GPUs of one kind differ, as chips and cooling do, and all ranks wait for the slowest: its rate as
// a share of a typical one's. Clusters show 8 % of variation (Sinha et al. 2022, arXiv 2208.11035),
// read here as the whiskers of a box plot, 5.4 standard deviations; of n normal numbers the
// smallest is expected as many below the mean as the extreme value theorem says.
static inline double slowest_of(int n) {
    if (n < 2) return 1;
    double z = sqrt(2 * log(n));
    return 1 - 0.08 / 5.4 * (z - (log(log(n)) + log(4 * M_PI)) / (2 * z));
}

// ranks: of the run; of_node: that share a CPU's cores.
static inline double work_seconds(const Cluster *c, const Work *w, int ranks, int of_node) {
    if (c->cpu) return w->units * c->seconds[w->kind] * of_node;
    bool fp32 = w->product.operand_bytes == 4;
    Gpu g = fp32 ? gpu_in_fp32(&c->gpu, c->tf32 && w->kind <= WORK_WEIGHT) : c->gpu;
    g.product_reached *= g.sustained;
    double slow = 1 / slowest_of(ranks);
    if (w->kind <= WORK_WEIGHT) return slow * product_seconds(&g, &w->product);
    if (w->kind <= WORK_ATTENTION_BACKWARD)
        return slow * attention_seconds(&g, w->kind, w->units) + w->launches * g.launch;
    return w->units / (g.dram * g.dram_reached) + w->launches * g.launch;
}

// ---- collectives -------------------------------------------------------------------------------

// Who takes part: `ranks` neighbours, or every so-many-th rank.
typedef struct {
    int ranks, nodes;
    int sharing;  // groups like it that use the network of a node at the same time
} Group;

static inline Group group_of(const Cluster *c, int ranks, bool neighbours, int world) {
    int per_node = c->per_node < world ? c->per_node : world;
    Group g = {ranks, (ranks + per_node - 1) / per_node, 1};
    if (neighbours) return g;
    int stride = world / ranks, of_node = per_node / stride > 1 ? per_node / stride : 1;
    g.nodes = (ranks + of_node - 1) / of_node;
    g.sharing = per_node / of_node;
    return g;
}

// NCCL's protocols: microseconds to begin, and of a step within a node (NVLink, PCIe) and between
// nodes; share of the bandwidth. src/graph/tuning.cc of NCCL 2.12.
static const struct {
    double base, nvlink, pcie, network, share;
} protocols[] = {{3.6, 0.47, 1.0, 2.7, 0.25}, {10.0, 1.9, 2.5, 4.0, 0.92}, {8.4, 3.4, 5.7, 9.6, 1}};

// A sum along a tree, and back: for small all-reduces.
static inline double tree_seconds(const Group *g, double bytes, double rate) {
    double depth = g->nodes > 1 ? ceil(log2(g->nodes)) : 0, of_node = (double)g->ranks / g->nodes;
    return 1e-6 * (4.4 + 2 * ((of_node - 1) * 0.52 + depth * 5.0)) + 2 * bytes / (rate * 0.25);
}

// bytes: of the whole unit, of what is summed, or that a rank sends to all others together.
static inline double collective_seconds(const Cluster *c, CollectiveKind kind, const Group *g,
                                        double bytes) {
    if (g->ranks == 1) return 0;
    double rate = c->gpu.link, network = c->network / g->sharing, n = g->ranks;
    if (kind == ALL_TO_ALL) {
        double of_node = n / g->nodes, within = bytes * (of_node - 1) / (n - 1);
        return fmax(within / rate, (bytes - within) * of_node / c->network) + 8.4e-6 + n * 0.5e-6;
    }
    if (g->nodes > 1) rate = fmin(rate, network);
    double passes = kind == ALL_REDUCE ? 2 : 1, moved = passes * bytes * (n - 1) / n,
           best = INFINITY;
    double between = passes * (g->nodes - 1), within = passes * (n - 1) - between;
    for (size_t i = 0; i < sizeof protocols / sizeof protocols[0]; i++) {
        double step = c->gpu.nvlink ? protocols[i].nvlink : protocols[i].pcie;
        double latency = protocols[i].base + within * step + between * protocols[i].network;
        best = fmin(best, 1e-6 * latency + moved / (rate * protocols[i].share));
    }
    return kind == ALL_REDUCE ? fmin(best, tree_seconds(g, bytes, rate)) : best;
}

// On CPUs a rank copies what it receives, and all wait for all.
#define CPU_COLLECTIVE 20e-6
static inline double cpu_collective_seconds(const Cluster *c, double received, int ranks) {
    return received * 2 * c->seconds[WORK_COPY] * ranks + CPU_COLLECTIVE * ranks;
}

// ---- which cluster -----------------------------------------------------------------------------

// Lines `name = value` over a GPU of the table. Units as in data sheets.
static const struct {
    const char *name;
    size_t offset;
    double unit, most;
} cluster_fields[] = {
    {"memory", offsetof(Cluster, gpu.memory), 1e9, 1e6},  // GB
    {"dram", offsetof(Cluster, gpu.dram), 1e9, 1e6},      // GB/s
    {"dram-reached", offsetof(Cluster, gpu.dram_reached), 1, 1},
    {"tensor", offsetof(Cluster, gpu.tensor), 1e12, 1e6},  // Tflop/s
    {"product-reached", offsetof(Cluster, gpu.product_reached), 1, 1},
    {"sustained", offsetof(Cluster, gpu.sustained), 1, 1},
    {"link", offsetof(Cluster, gpu.link), 1e9, 1e6},  // GB/s that a ring reaches, each way
    {"network", offsetof(Cluster, network), 1e9 / 8 * NETWORK_REACHED, 1e6},  // Gbit/s
    {"watts", offsetof(Cluster, gpu.watts), 1, 1e6},
    {"price", offsetof(Cluster, price), 1, 1e6},
    {"host-launch", offsetof(Cluster, host_launch), 1e-6, 1e6},  // us
};
#define CLUSTER_LEAST 1e-3
enum { CLUSTER_FIELDS = sizeof cluster_fields / sizeof cluster_fields[0] };

static inline const Gpu *gpu_or_die(const char *where, const char *name) {
    const Gpu *gpu = gpu_named(name);
    if (gpu) return gpu;
    char all[256] = "";
    for (size_t i = 0; i < sizeof gpu_table / sizeof gpu_table[0]; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "",
                 gpu_table[i].name);
    die_all("%s %s: expected one of %s", where, name, all);
}

static inline void cluster_set(Cluster *c, const char *name, const char *value, const char *where) {
    char *end;
    double number = strtod(value, &end);
    if (!strcmp(name, "gpu")) {
        *c = cluster_of_gpu(gpu_or_die(where, value));
        return;
    }
    if (end == value || *end || !(number > 0) || isinf(number))
        die_all("%s %s = %s: expected a number above 0", where, name, value);
    for (int i = 0; i < CLUSTER_FIELDS; i++)
        if (!strcmp(name, cluster_fields[i].name)) {
            if (number < CLUSTER_LEAST || number > cluster_fields[i].most)
                die_all("%s %s = %s: expected from %g to %g", where, name, value, CLUSTER_LEAST,
                        cluster_fields[i].most);
            *(double *)(void *)((char *)c + cluster_fields[i].offset) =
                number * cluster_fields[i].unit;
            return;
        }
    char all[256] = "gpu";
    for (int i = 0; i < CLUSTER_FIELDS; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), ", %s", cluster_fields[i].name);
    die_all("%s %s: expected one of %s", where, name, all);
}

static inline Cluster cluster_read(const char *path) {
    FILE *f = fopen_check(path, "r");
    Cluster c = cluster_of_gpu(gpu_named("h100-sxm"));
    char line[256], name[64], value[64], rest, where[PATH_BYTES + 64];
    bool any = false;
    for (int number = 1; fgets(line, sizeof line, f); number++) {
        snprintf(where, sizeof where, "--cluster %s:%d:", path, number);
        line[strcspn(line, "#\n")] = 0;
        int found = sscanf(line, " %63[a-z0-9-] = %63[a-z0-9.+-] %c", name, value, &rest);
        if (found == 2 && any && !strcmp(name, "gpu"))
            die_all("%s gpu: expected it before the values that differ from its own", where);
        if (found == 2)
            any = true, cluster_set(&c, name, value, where);
        else if (line[strspn(line, " \t\r")])
            die_all("%s expected a line `name = value`, found: %s", where, line);
    }
    fclose(f);
    snprintf(c.name, sizeof c.name, "%.60s", c.gpu.name);
    return c;
}

// The GPU that is here, or H100.
static inline const Gpu *gpu_here(const char *device) {
    const Gpu *known = gpu_of_device(device), *other = gpu_named("h100-sxm");
    if (!known && device[0])
        fprintf(stderr,
                "train_gpt: --plan knows no figures of %s and takes those of %s; --gpu or "
                "--cluster gives others\n",
                device, other->name);
    return known ? known : other;
}

// device: what the driver calls the GPU that is here; "": none.
static inline Cluster cluster_of_options(const char *gpu, const char *file, double gbit,
                                         double price, const char *device) {
    if (gpu[0] && file[0]) die_all("--gpu %s --cluster %s: expected one of them", gpu, file);
    Cluster c = file[0]  ? cluster_read(file)
                : gpu[0] ? cluster_of_gpu(gpu_or_die("--gpu", gpu))
                         : cluster_of_gpu(gpu_here(device));
    if (gbit > 0) c.network = gbit * 1e9 / 8 * NETWORK_REACHED;
    if (price > 0) c.price = price;
    return c;
}
