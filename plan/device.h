// plan/device.h: the third device behind the names of the CUDA runtime and NCCL: one that does
// nothing and notes how long it would take. The program's own gpt.cu and fsdp.h are compiled
// against it (DEVICE_PLAN), so that a plan's schedule is the program's, not a copy of it. Memory on
// the device is addresses that nobody follows; memory of the host is real.
#pragma once

#include "../cpu/bf16.h"
#include "recorder.h"

#include <stddef.h>
#include <stdint.h>

#define __host__
#define __device__

// ---- the runtime -------------------------------------------------------------------------------

typedef struct PlanStream {
    int index;
} * cudaStream_t;
typedef struct PlanEvent {
    long record;  // the last one, -1: none
} * cudaEvent_t;
typedef enum { cudaSuccess = 0 } cudaError_t;
typedef enum {
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice
} cudaMemcpyKind;
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };

static inline const char *cudaGetErrorString(cudaError_t) {
    return "out of memory";
}

static inline void plan_work(cudaStream_t stream, const Work *w) {
    PlanDevice *d = &plan_device;
    double seconds = work_seconds(&d->cluster, w, d->world, plan_ranks_of_node());
    d->work[w->kind] += seconds;
    if (w->kind <= WORK_ATTENTION_BACKWARD) d->flops += w->counted_flops;
    sim_work(&d->sim, stream->index, SIM_KERNEL, seconds, w->launches * d->cluster.host_launch);
}

static inline void plan_bytes(cudaStream_t stream, WorkKind kind, double bytes, int launches) {
    Work w = {};
    w.kind = kind, w.units = bytes, w.launches = launches;
    plan_work(stream, &w);
}

static inline cudaError_t cudaMalloc(void **ptr, size_t bytes) {
    const size_t first = (size_t)1 << 40;  // no address of the host's
    *ptr = (void *)(first + plan_device.allocated);
    plan_device.allocated += bytes;
    return cudaSuccess;
}

static inline cudaError_t cudaFree(void *) {
    return cudaSuccess;
}

static inline cudaError_t cudaMallocHost(void **ptr, size_t bytes) {
    *ptr = calloc(bytes, 1);
    if (!*ptr) die("out of memory for the plan: asked for %zu bytes", bytes);
    return cudaSuccess;
}

static inline cudaError_t cudaFreeHost(void *ptr) {
    free(ptr);
    return cudaSuccess;
}

static inline cudaError_t cudaMemset(void *, int, size_t) {
    return cudaSuccess;
}

static inline cudaError_t cudaMemsetAsync(void *, int, size_t bytes, cudaStream_t stream) {
    plan_bytes(stream, WORK_COPY, (double)bytes, 1);
    return cudaSuccess;
}

// What is read back is zeros.
static inline cudaError_t cudaMemcpy(void *dst, const void *, size_t bytes, cudaMemcpyKind kind) {
    if (kind == cudaMemcpyDeviceToHost) memset(dst, 0, bytes);
    return cudaSuccess;
}

// Host memory is read and written at PCIe's rate, an eighth of the slowest table's DRAM.
static inline cudaError_t cudaMemcpyAsync(void *, const void *, size_t bytes, cudaMemcpyKind,
                                          cudaStream_t stream) {
    plan_bytes(stream, WORK_COPY, (plan_device.cluster.cpu ? 2.0 : 64.0) * (double)bytes, 1);
    return cudaSuccess;
}

static inline cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = *greatest = 0;
    return cudaSuccess;
}

static inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int) {
    *stream = (cudaStream_t)malloc(sizeof **stream);
    if (!*stream) die("out of memory for a stream of the plan");
    (*stream)->index = sim_stream(&plan_device.sim);
    return cudaSuccess;
}

static inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    free(stream);
    return cudaSuccess;
}

static inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    sim_synchronize(&plan_device.sim, stream->index);
    return cudaSuccess;
}

static inline cudaError_t cudaDeviceSynchronize(void) {
    sim_synchronize_all(&plan_device.sim);
    return cudaSuccess;
}

static inline cudaError_t cudaEventCreate(cudaEvent_t *event) {
    *event = (cudaEvent_t)malloc(sizeof **event);
    if (!*event) die("out of memory for an event of the plan");
    (*event)->record = -1;
    return cudaSuccess;
}

static inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
    return cudaEventCreate(event);
}

static inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
    free(event);
    return cudaSuccess;
}

static inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    event->record = sim_record(&plan_device.sim, stream->index, plan_device.cluster.host_call);
    return cudaSuccess;
}

static inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    if (event->record >= 0)
        sim_wait(&plan_device.sim, stream->index, event->record, plan_device.cluster.host_call);
    return cudaSuccess;
}

static inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    Sim *s = &plan_device.sim;
    s->host = fmax(s->host, sim_time(s, event->record));
    return cudaSuccess;
}

static inline cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    Sim *s = &plan_device.sim;
    *ms = (float)(1e3 * (sim_time(s, end->record) - sim_time(s, start->record)));
    return cudaSuccess;
}

// The host's clock in a trace.
#define timeline_clock_ns plan_clock_ns
static inline int64_t plan_clock_ns(void) {
    return (int64_t)(1e9 * plan_device.sim.host);
}

// ---- NCCL --------------------------------------------------------------------------------------

typedef PlanComm *ncclComm_t;
typedef enum { ncclSuccess = 0, ncclInProgress = 7 } ncclResult_t;
typedef enum { ncclUint8, ncclInt32, ncclFloat32, ncclFloat64, ncclBfloat16 } ncclDataType_t;
typedef enum { ncclSum, ncclMax } ncclRedOp_t;
typedef struct {
    char internal[128];
} ncclUniqueId;

static inline const char *ncclGetErrorString(ncclResult_t) {
    return "no error";
}

static inline const char *ncclGetLastError(ncclComm_t) {
    return "";
}

static inline ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t *error) {
    return *error = ncclSuccess;
}

static inline ncclResult_t ncclCommAbort(ncclComm_t) {
    return ncclSuccess;
}

static inline size_t plan_type_bytes(ncclDataType_t type) {
    return type == ncclUint8 ? 1 : type == ncclBfloat16 ? 2 : type == ncclFloat64 ? 8 : 4;
}

static inline ncclComm_t plan_comm(int ranks, bool neighbours) {
    PlanDevice *d = &plan_device;
    if (d->ncomms == PLAN_COMMS) die("plan: expected at most %d communicators", PLAN_COMMS);
    PlanComm *c = &d->comms[d->ncomms++];
    *c = (PlanComm){group_of(&d->cluster, ranks, neighbours, d->world), false};
    return c;
}

typedef struct {
    int maxCTAs;
} ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER                                                                    \
    { 0 }

static inline ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId, int,
                                                  ncclConfig_t *) {
    *comm = plan_comm(nranks, true);
    return ncclSuccess;
}

static inline ncclResult_t ncclMemAlloc(void **ptr, size_t bytes) {
    cudaMalloc(ptr, bytes);
    return ncclSuccess;
}

static inline ncclResult_t ncclMemFree(void *) {
    return ncclSuccess;
}

static inline ncclResult_t ncclCommRegister(ncclComm_t, void *buffer, size_t, void **handle) {
    *handle = buffer;
    return ncclSuccess;
}

static inline ncclResult_t ncclCommDeregister(ncclComm_t, void *) {
    return ncclSuccess;
}

// What the other ranks' colours are is not said. Of the second rank, in groups of K: with its
// neighbours it has the key of its place among them, with its likes in other groups that of its
// group.
static inline ncclResult_t ncclCommSplit(ncclComm_t, int color, int key, ncclComm_t *split,
                                         void *) {
    const PlanDevice *d = &plan_device;
    bool neighbours = key < d->K && color * d->K + key == d->rank;
    *split = plan_comm(neighbours ? d->K : d->world / d->K, neighbours);
    return ncclSuccess;
}

static inline ncclResult_t ncclCommDestroy(ncclComm_t) {
    return ncclSuccess;
}

// bytes: as collective_seconds counts them; received: by this rank.
static inline ncclResult_t plan_collective(CollectiveKind kind, PlanComm *comm, double bytes,
                                           double received, cudaStream_t stream) {
    PlanDevice *d = &plan_device;
    const Cluster *c = &d->cluster;
    comm->peers = comm->peers || kind == ALL_TO_ALL;
    double seconds = c->cpu ? cpu_collective_seconds(c, received, plan_ranks_of_node())
                            : collective_seconds(c, kind, &comm->group, bytes);
    sim_work(&d->sim, stream->index, SIM_COLLECTIVE, seconds, c->host_collective);
    return ncclSuccess;
}

static inline ncclResult_t ncclAllGather(const void *, void *, size_t count, ncclDataType_t type,
                                         ncclComm_t comm, cudaStream_t stream) {
    double bytes = (double)(count * plan_type_bytes(type)), n = comm->group.ranks;
    return plan_collective(GATHER, comm, bytes * n, bytes * (n - 1), stream);
}

static inline ncclResult_t ncclReduceScatter(const void *, void *, size_t count,
                                             ncclDataType_t type, ncclRedOp_t, ncclComm_t comm,
                                             cudaStream_t stream) {
    double bytes = (double)(count * plan_type_bytes(type)), n = comm->group.ranks;
    return plan_collective(REDUCE_SCATTER, comm, bytes * n, bytes * (n - 1), stream);
}

static inline ncclResult_t ncclAllReduce(const void *, void *, size_t count, ncclDataType_t type,
                                         ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
    double bytes = (double)(count * plan_type_bytes(type)), n = comm->group.ranks;
    return plan_collective(ALL_REDUCE, comm, bytes, bytes * (n - 1), stream);
}

static inline ncclResult_t ncclGroupStart(void) {
    plan_device.exchanged = 0;
    return ncclSuccess;
}

static inline ncclResult_t ncclSend(const void *, size_t count, ncclDataType_t type, int peer,
                                    ncclComm_t comm, cudaStream_t) {
    if (peer != plan_device.rank) plan_device.exchanged += count * plan_type_bytes(type);
    plan_device.exchanging = comm;
    return ncclSuccess;
}

// Ends the group: as every rank sends what it receives, the last of its calls says on which stream.
static inline ncclResult_t ncclRecv(void *, size_t, ncclDataType_t, int peer, ncclComm_t comm,
                                    cudaStream_t stream) {
    PlanDevice *d = &plan_device;
    if (peer == d->world - 1)
        return plan_collective(ALL_TO_ALL, comm, (double)d->exchanged, (double)d->exchanged,
                               stream);
    return ncclSuccess;
}

static inline ncclResult_t ncclGroupEnd(void) {
    return ncclSuccess;
}
