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

// One address range, reserved once and never committed by itself: the kernel backs what is touched.
static struct {
    char *base;
    size_t reserved, used, allocations, asked;
} arena;

static size_t physical_bytes(void) {
    return (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
}

static size_t round_up(size_t n, size_t unit) {
    return (n + unit - 1) / unit * unit;
}

static bool arena_reserve(void) {
    // As much as the address space of the process allows (ulimit -v).
    void *p = MAP_FAILED;
    for (arena.reserved = round_up(4 * physical_bytes(), HUGE_PAGE);
         p == MAP_FAILED && arena.reserved >= HUGE_PAGE;) {
        p = mmap(NULL, arena.reserved + HUGE_PAGE, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) arena.reserved = arena.reserved / 2 / HUGE_PAGE * HUGE_PAGE;
    }
    if (p == MAP_FAILED) return false;
    arena.base = (char *)round_up((size_t)p, HUGE_PAGE);
    madvise(arena.base, arena.reserved, MADV_HUGEPAGE);
    return true;
}

cudaError_t cudaMalloc(void **ptr, size_t bytes) {
    if (!arena.base && !arena_reserve()) return cudaErrorMemoryAllocation;
    size_t at = round_up(arena.used, bytes >= HUGE_PAGE ? HUGE_PAGE : 64);
    if (at + bytes > arena.reserved) return cudaErrorMemoryAllocation;
    *ptr = arena.base + at;
    arena.used = at + bytes;
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

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *total_bytes = *free_bytes = physical_bytes();
    FILE *f = fopen("/proc/meminfo", "r");
    if (!f) return cudaSuccess;
    char line[128];
    size_t kib;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %zu kB", &kib) == 1) *free_bytes = kib * 1024;
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

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
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
