// cpu/runtime.cpp: see runtime.h.
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define HUGE_PAGE ((size_t)2 << 20)

struct CpuStream {
    unsigned flags;
};

struct CpuEvent {
    double ms;  // time of the record
};

// One address range, backed from its start on as far as it is handed out: nothing is taken of an
// address space that may be limited (ulimit -v) but what the buffers need.
static struct {
    char *base;
    size_t room, mapped, used, allocations, asked;
} arena;

static size_t round_up(size_t n, size_t unit) {
    return (n + unit - 1) / unit * unit;
}

// Finds a hole in the address space, the largest that a limit allows. Other mappings fill such a
// hole from its upper end on.
static bool arena_place(void) {
    const size_t physical = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    for (size_t room = round_up(4 * physical, HUGE_PAGE); room >= HUGE_PAGE; room /= 2) {
        void *p = mmap(NULL, room + HUGE_PAGE, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) continue;
        munmap(p, room + HUGE_PAGE);
        arena.base = (char *)round_up((size_t)p, HUGE_PAGE);
        arena.room = room;
        return true;
    }
    return false;
}

static bool arena_grow(size_t end) {
    const size_t more = round_up(end - arena.mapped, HUGE_PAGE);
    char *at = arena.base + arena.mapped;
    if (end > arena.room ||
        mmap(at, more, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) != at)
        return false;
    madvise(at, more, MADV_HUGEPAGE);
    arena.mapped += more;
    return true;
}

cudaError_t cudaMalloc(void **ptr, size_t bytes) {
    if (!arena.base && !arena_place()) return cudaErrorMemoryAllocation;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), unit = bytes >= page ? page : 64;
    size_t at = round_up(arena.used, bytes >= HUGE_PAGE ? HUGE_PAGE : unit);
    size_t end = at + round_up(bytes, unit);
    if (end > arena.mapped && !arena_grow(end)) return cudaErrorMemoryAllocation;
    *ptr = arena.base + at;
    arena.used = end;
    arena.asked += bytes;
    arena.allocations++;
    return cudaSuccess;
}

cudaError_t cudaFree(void *ptr) {
    // Nothing is freed before the process ends; the last free of a run returns everything at once.
    (void)ptr;
    if (arena.allocations && --arena.allocations == 0) {
        madvise(arena.base, arena.used, MADV_DONTNEED);
        arena.used = arena.asked = 0;
    }
    return cudaSuccess;
}

size_t cpu_allocation_count(void) {
    return arena.allocations;
}

size_t cpu_allocated_bytes(void) {
    return arena.asked;
}

cudaError_t cudaMallocHost(void **ptr, size_t bytes) {
    *ptr = aligned_alloc(64, round_up(bytes, 64));
    return *ptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void *ptr) {
    free(ptr);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    (void)device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int) {
    snprintf(properties->name, sizeof properties->name, "CPU");
    FILE *f = fopen("/proc/cpuinfo", "r");
    if (!f) return cudaSuccess;
    char line[256];
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "model name : %255[^\n]", properties->name) == 1) break;
    fclose(f);
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaSuccess                 ? "no error"
           : error == cudaErrorMemoryAllocation ? "out of memory"
                                                : "not ready";
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, cudaMemcpyKind) {
    memcpy(dst, src, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
    return cudaMemcpy(dst, src, bytes, kind);
}

cudaError_t cudaMemset(void *ptr, int value, size_t bytes) {
    memset(ptr, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *ptr, int value, size_t bytes, cudaStream_t) {
    return cudaMemset(ptr, value, bytes);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = *greatest = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    (void)priority;
    *stream = (cudaStream_t)malloc(sizeof **stream);
    if (!*stream) return cudaErrorMemoryAllocation;
    (*stream)->flags = flags;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
    *event = (cudaEvent_t)calloc(1, sizeof **event);
    return *event ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return cudaEventCreateWithFlags(event, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    event->ms = 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t) {
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t) {
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    *ms = (float)(end->ms - start->ms);
    return cudaSuccess;
}
