// cpu/nccl.h: the NCCL calls the program uses, between processes on CPUs.
//
// Ranks of a node exchange through shared memory, ranks of different nodes through MPI.
// Buffers that a node's ranks share (cpu_share) are read where they lie.
// Every collective blocks until it is done; sums are taken in the order of the ranks,
// in fp32 for bf16 data.
// A call in which the ranks disagree (operation, count, type) is named on stderr and ends the job.
#pragma once

#include "runtime.h"

typedef struct ncclComm *ncclComm_t;
typedef enum {
    ncclSuccess = 0,
    ncclSystemError = 2,
    ncclInvalidArgument = 4,
    ncclInProgress = 7
} ncclResult_t;
typedef enum { ncclUint8, ncclInt32, ncclFloat32, ncclFloat64, ncclBfloat16 } ncclDataType_t;
typedef enum { ncclSum, ncclMax } ncclRedOp_t;
typedef struct {
    char internal[128];
} ncclUniqueId;

// Of a configuration nothing applies to CPUs.
typedef struct {
    int maxCTAs;
} ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER                                                                    \
    { 0 }

#define NCCL_SPLIT_NOCOLOR -1

ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config);
// config must be NULL.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *split, void *config);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
const char *ncclGetErrorString(ncclResult_t result);
// A call is over when it returns, so there is nothing to fail, or to give up, between calls.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error);
ncclResult_t ncclCommAbort(ncclComm_t comm);
const char *ncclGetLastError(ncclComm_t comm);

// Memory as from cudaMalloc; to register it changes nothing, cpu_share below does.
static inline ncclResult_t ncclMemAlloc(void **ptr, size_t bytes) {
    return cudaMalloc(ptr, bytes) == cudaSuccess ? ncclSuccess : ncclSystemError;
}
static inline ncclResult_t ncclMemFree(void *ptr) {
    return cudaFree(ptr) == cudaSuccess ? ncclSuccess : ncclSystemError;
}
static inline ncclResult_t ncclCommRegister(ncclComm_t, void *buffer, size_t, void **handle) {
    *handle = buffer;
    return ncclSuccess;
}
static inline ncclResult_t ncclCommDeregister(ncclComm_t, void *) {
    return ncclSuccess;
}

// In place as in NCCL: AllGather with send == recv + rank*count elements, ReduceScatter with
// recv == send + rank*count elements, AllReduce with send == recv.
ncclResult_t ncclAllGather(const void *send, void *recv, size_t sendcount, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t recvcount, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
// Send and Recv only inside a group in which every rank sends to and receives from every rank,
// itself included, the same number of bytes (an all-to-all).
ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

// Not in NCCL: lets the ranks of comm reach each other's buffer of this many bytes where it lies,
// until the communicator is destroyed. data: of cudaMalloc; its contents are lost.
// one: it becomes one memory for all. Who writes into it waits with cpu_barrier until all have
// come; an AllGather into it then has nothing to bring. Otherwise each rank keeps its own, and
// ReduceScatter and an all-to-all read what they are sent from there: on all ranks it lies at one
// offset of the buffer.
// False, on all ranks alike, if that cannot be (several nodes or containers, limits, less than a
// page): collectives copy what they send.
bool cpu_share(ncclComm_t comm, void *data, size_t bytes, bool one);
// Where rank 0 has what is at data in this rank's buffer, and the bytes from one rank's to the
// next; NULL: comm does not share it, or it is one for all.
const void *cpu_parts(ncclComm_t comm, const void *data, size_t bytes, size_t *stride);
// Returns when all ranks have called it, with the same count (of what they are about to move).
void cpu_barrier(ncclComm_t comm, size_t count);

// Not in NCCL: does the main thread wait for another rank? For the watchdog.
bool cpu_collective_waits(void);
