// plan/memory.h: what lies in the memory of a rank's device: the program's own table of buffers,
// and what others take there besides.
#pragma once

#include "steps.h"

enum { MEMORY_ROWS = 64 };

// Buffers of one name: "residual 0" to "residual 95" are one row.
typedef struct {
    const char *owner;
    char name[40];
    int count;
    double bytes;
} MemoryRow;

typedef struct {
    MemoryRow rows[MEMORY_ROWS];
    int nrows;
    double buffers, host;                   // bytes of the device's rows and of the host's
    double rounding, context, blas, comms;  // others'; on CPUs context is all of the process's
    int ncomms;
    double used, usable;  // of a rank's device
} Memory;

// Sources:
//   context   CUDA's context and the code of a program's kernels: nvidia-smi shows 0.4 to 0.6 GiB
//             for a process that has just begun on A100 and H100
//   blas      code that cuBLASLt loads when it is first used; its workspace is in the table
//   comms     688 MiB for a communicator of more than two A100 with NVLink, 544 for two (NCCL issue
//             964), in proportion to the channels (issue 986). Sends between all ranks, as for
//             --reduce ordered: 3.3 GB more on 8 H100 (issue 1685), so 0.44 GiB for each peer of
//             the node
//   rounding  cudaMalloc and ncclMemAlloc give whole pages of 2 MiB (where ncclMemAlloc gives
//             larger ones it is not used, see nccl_memory_is_exact in fsdp.h)
#define MEMORY_CONTEXT (0.55 * (1 << 30))
#define MEMORY_BLAS (0.1 * (1 << 30))
#define MEMORY_COMM 688.0
#define MEMORY_COMM_OF_TWO 544.0
#define MEMORY_COMM_CHANNELS 24.0
#define MEMORY_PEER (0.44 * (1 << 30))
#define MEMORY_PAGE ((size_t)2 << 20)

static inline size_t round_to_pages(size_t bytes) {
    return (bytes + MEMORY_PAGE - 1) / MEMORY_PAGE * MEMORY_PAGE;
}

// The name without the number behind it.
static inline void memory_add(Memory *m, const Buffer *b) {
    char name[sizeof b->name];
    snprintf(name, sizeof name, "%s", b->name);
    size_t n = strlen(name);
    while (n && name[n - 1] >= '0' && name[n - 1] <= '9') n--;
    if (n && n < strlen(name) && name[n - 1] == ' ') name[n - 1] = 0;
    int i = 0;
    while (i < m->nrows && (strcmp(m->rows[i].name, name) || strcmp(m->rows[i].owner, b->owner)))
        i++;
    if (i == MEMORY_ROWS) die("plan: expected at most %d kinds of buffers", MEMORY_ROWS);
    MemoryRow *row = &m->rows[i];
    if (i == m->nrows) {
        row->owner = b->owner;
        memcpy(row->name, name, sizeof row->name);
        m->nrows++;
    }
    row->count++;
    row->bytes += (double)b->bytes;
    *(buffer_on_host(b) ? &m->host : &m->buffers) += (double)b->bytes;
    if (!buffer_on_host(b)) m->rounding += (double)(round_to_pages(b->bytes) - b->bytes);
}

// Bytes that NCCL takes for a communicator of so many ranks, `of_node` of them on one node. peers:
// each has sent to each.
static inline double memory_of_comm(const Gpu *g, int ranks, int of_node, bool peers) {
    if (ranks < 2) return 0;
    double mib = ranks == 2 ? MEMORY_COMM_OF_TWO : MEMORY_COMM;
    double channels = mib * (1 << 20) * g->channels / MEMORY_COMM_CHANNELS;
    return channels + (peers ? MEMORY_PEER * (of_node - 1) : 0);
}

// d: a device on which the run's communicators have been made and used.
static inline void memory_of_others(Memory *m, const Cluster *c, const PlanDevice *d) {
    if (c->cpu) {
        m->rounding = 0;
        return;
    }
    m->context = MEMORY_CONTEXT, m->blas = MEMORY_BLAS;
    for (int i = 0; i < d->ncomms; i++) {
        const PlanComm *comm = &d->comms[i];
        int ranks = comm->group.ranks, of_node = ranks / comm->group.nodes;
        if (ranks == 1) continue;
        m->ncomms++;
        m->comms += memory_of_comm(&c->gpu, ranks, of_node, comm->peers);
    }
}
