// memory.cpp: device and pinned memory, the device's limits, and the runtime calls about them.
//
// Both kinds live in address ranges of their own and are never handed out twice, so that a stale
// pointer stays recognisable. Every allocation is filled with NaN and has a red zone on both sides,
// checked after each kernel.
#include "core.h"

#include <cstdio>
#include <map>
#include <set>
#include <sys/mman.h>

#ifdef EMU_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace emu {

constexpr size_t ARENA_BYTES = (size_t)1 << 40, ALIGNMENT = 256, RED_ZONE = 256, PAGE = 4096;
constexpr unsigned char RED = 0xcb;
// compute capability 9.0 (CUDA C Programming Guide, "Technical Specifications
// per Compute Capability")
constexpr size_t SHARED_DEFAULT = 48 << 10, SHARED_OPT_IN = 227 << 10, SHARED_PER_SM = 228 << 10,
                 SHARED_RESERVED = 1 << 10;
constexpr int BLOCKS_PER_SM = 32, THREADS_PER_SM = 2048, THREADS_PER_BLOCK = 1024;

namespace {
struct Arena {
    char *base = nullptr;
    size_t used = 0, live_bytes = 0;
    std::map<const char *, Allocation> allocations;  // by begin

    bool contains(const void *p) const {
        return base && (const char *)p >= base && (const char *)p < base + ARENA_BYTES;
    }
    void *allocate(size_t bytes);
    void release(const char *function, void *p);
    const Allocation *find(const void *p) const;
};

// AddressSanitizer guards the red zones itself; elsewhere their contents are compared.
void make_red(char *p, size_t bytes) {
#ifdef EMU_ASAN
    __asan_poison_memory_region(p, bytes);
#else
    memset(p, RED, bytes);
#endif
}
void make_usable(char *p, size_t bytes) {
#ifdef EMU_ASAN
    __asan_unpoison_memory_region(p, bytes);
#endif
    if (!counters) memset(p, 0xff, bytes);  // NaN; what is only counted is not to take memory
}

void *Arena::allocate(size_t bytes) {
    if (!base) {
        base = (char *)mmap(nullptr, ARENA_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED) fatal("cannot reserve %zu bytes of address space", ARENA_BYTES);
    }
    size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (used + rounded + 2 * RED_ZONE > ARENA_BYTES)
        fatal("the emulator's address range is used up");
    char *begin = base + used + RED_ZONE;
    used += rounded + RED_ZONE;  // the next allocation's red zone follows ours
    make_red(begin - RED_ZONE, RED_ZONE);
    make_usable(begin, bytes);
    make_red(begin + bytes, rounded - bytes + RED_ZONE);
    if (race_detector) race_detector->forget(begin, bytes);
    allocations[begin] = {begin, bytes, true};
    live_bytes += bytes;
    return begin;
}

const Allocation *Arena::find(const void *p) const {
    auto after = allocations.upper_bound((const char *)p);
    if (after == allocations.begin()) return nullptr;
    const Allocation &a = (--after)->second;
    return a.live && (const char *)p < a.begin + a.bytes ? &a : nullptr;
}

// Freed pages become inaccessible: a later access is a report in every build.
void Arena::release(const char *function, void *p) {
    auto it = allocations.find((const char *)p);
    if (it == allocations.end()) fatal("%s(%p): not an allocation of its kind", function, p);
    Allocation &a = it->second;
    if (!a.live) fatal("%s(%p): already freed", function, p);
    a.live = false;
    live_bytes -= a.bytes;
    make_red(a.begin, a.bytes);
    size_t first = ((size_t)a.begin + PAGE - 1) / PAGE * PAGE,
           last = (size_t)(a.begin + a.bytes) / PAGE * PAGE;
    if (last > first) {
        madvise((void *)first, last - first, MADV_DONTNEED);
        mprotect((void *)first, last - first, PROT_NONE);
    }
}

Arena device, pinned;
long taken;  // of the device, by libraries

size_t free_memory() {
    return settings().memory - std::min(settings().memory, device.live_bytes + (size_t)taken);
}
cudaError_t last_error = cudaSuccess;
bool launch_failed = false;
int current_device = 0;
std::map<const void *, int> opted_in;  // kernel -> dynamic shared memory it may ask for
}  // namespace

bool is_device(const void *p) {
    return device.contains(p);
}
bool is_pinned(const void *p) {
    return pinned.contains(p);
}
bool take_memory(long bytes) {
    if (bytes > 0 && (size_t)bytes > free_memory()) return false;
    taken += bytes;
    return true;
}
const Allocation *find_allocation(const void *p) {
    return is_device(p) ? device.find(p) : is_pinned(p) ? pinned.find(p) : nullptr;
}

void device_range(const char *what, const void *p, size_t bytes, bool write) {
    if (!bytes) return;
    const Allocation *a = is_device(p) ? device.find(p) : nullptr;
    if (!a)
        fatal("%s %s %p, which is not in live device memory", what,
              write ? "writes to" : "reads from", p);
    size_t room = (size_t)(a->begin + a->bytes - (const char *)p);
    if (bytes > room)
        fatal("%s %s %zu bytes at %p, out of bounds: %zu bytes are left of that allocation of %zu",
              what, write ? "writes" : "reads", bytes, p, room, a->bytes);
    if (race_detector) race_detector->range(p, bytes, write);
}

void check_red_zones(const char *after) {
#ifdef EMU_ASAN
    (void)after;
#else
    static const std::vector<unsigned char> clean(RED_ZONE + ALIGNMENT, RED);
    for (const auto &entry : device.allocations) {
        const Allocation &a = entry.second;
        if (!a.live) continue;
        size_t behind = RED_ZONE + (ALIGNMENT - a.bytes % ALIGNMENT) % ALIGNMENT;
        bool before_ok = !memcmp(a.begin - RED_ZONE, clean.data(), RED_ZONE);
        if (before_ok && !memcmp(a.begin + a.bytes, clean.data(), behind)) continue;
        fatal("%s wrote out of bounds, just %s a device allocation of %zu bytes", after,
              before_ok ? "behind" : "before", a.bytes);
    }
#endif
}

cudaError_t set_error(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
}

void end_if_launch_failed() {
    if (launch_failed)
        fatal("a kernel launch failed (%s) and nobody asked cudaGetLastError",
              cudaGetErrorName(last_error));
}

static std::string limit_exceeded(const Kernel &kernel) {
    const LaunchConfig &c = kernel.config;
    dim3 g = c.grid, b = c.block;
    size_t threads = (size_t)b.x * b.y * b.z, fixed = static_shared_bytes(kernel.function);
    auto opt_in = opted_in.find(kernel.function);
    size_t allowed = opt_in != opted_in.end() ? (size_t)opt_in->second
                                              : SHARED_DEFAULT - std::min(SHARED_DEFAULT, fixed);
    if (threads < 1 || threads > THREADS_PER_BLOCK || b.z > 64)
        return text("a block of %u x %u x %u threads, at most %d (z: 64)", b.x, b.y, b.z,
                    THREADS_PER_BLOCK);
    if (g.x < 1 || g.y < 1 || g.z < 1 || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535)
        return text(
            "a grid of %u x %u x %u blocks, at least 1 and at most 2147483647 x 65535 x 65535", g.x,
            g.y, g.z);
    if (c.dynamic_bytes > allowed)
        return text("%zu bytes of dynamic shared memory, without cudaFuncSetAttribute at most %zu",
                    c.dynamic_bytes, allowed);
    if (c.dynamic_bytes + fixed > SHARED_OPT_IN)
        return text("%zu + %zu bytes of shared memory, at most %zu", c.dynamic_bytes, fixed,
                    SHARED_OPT_IN);
    return "";
}

// The launch fails as on a device: the error waits in cudaGetLastError.
void check_launch(const Kernel &kernel, cudaError_t *error) {
    *error = (cudaError_t)injected_failure("launch", cudaErrorLaunchFailure);
    std::string problem = limit_exceeded(kernel);
    if (!problem.empty()) {
        *error = kernel.config.dynamic_bytes > SHARED_DEFAULT ? cudaErrorInvalidValue
                                                              : cudaErrorInvalidConfiguration;
        fprintf(stderr, "emulator: launch of %s at %s:%d fails: %s\n", kernel.config.name,
                kernel.config.site.file, kernel.config.site.line, problem.c_str());
    }
    if (*error == cudaSuccess) return;
    set_error(*error);
    launch_failed = true;
}

}  // namespace emu

using namespace emu;

#define MAY_FAIL(code)                                                                             \
    if (int error = injected_failure(__func__, code)) return set_error((cudaError_t)error)

extern "C" {

cudaError_t cudaGetLastError() {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    launch_failed = false;
    return error;
}
cudaError_t cudaPeekAtLastError() {
    launch_failed = false;
    return last_error;
}

#define FOR_ERRORS(F)                                                                              \
    F(cudaSuccess, "no error")                                                                     \
    F(cudaErrorInvalidValue, "invalid argument")                                                   \
    F(cudaErrorMemoryAllocation, "out of memory")                                                  \
    F(cudaErrorInitializationError, "initialization error")                                        \
    F(cudaErrorInvalidConfiguration, "invalid configuration argument")                             \
    F(cudaErrorInvalidDevice, "invalid device ordinal")                                            \
    F(cudaErrorNoDevice, "no CUDA-capable device is detected")                                     \
    F(cudaErrorInvalidResourceHandle, "invalid resource handle")                                   \
    F(cudaErrorNotReady, "device not ready")                                                       \
    F(cudaErrorIllegalAddress, "an illegal memory access was encountered")                         \
    F(cudaErrorLaunchFailure, "unspecified launch failure")                                        \
    F(cudaErrorUnknown, "unknown error")
const char *cudaGetErrorName(cudaError_t error) {
#define NAME(e, s)                                                                                 \
    if (error == e) return #e;
    FOR_ERRORS(NAME)
    return "unrecognized error code";
}
const char *cudaGetErrorString(cudaError_t error) {
#define STRING(e, s)                                                                               \
    if (error == e) return s;
    FOR_ERRORS(STRING)
    return "unrecognized error code";
}

// ---- memory ------------------------------------------------------------------------------------
cudaError_t cudaMalloc(void **p, size_t bytes) {
    MAY_FAIL(cudaErrorMemoryAllocation);
    *p = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (bytes > free_memory()) return set_error(cudaErrorMemoryAllocation);
    *p = device.allocate(bytes);
    return cudaSuccess;
}
cudaError_t cudaFree(void *p) {
    MAY_FAIL(cudaErrorUnknown);
    if (!p) return cudaSuccess;
    wait_for_all();
    device.release("cudaFree", p);
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void **p, size_t bytes) {
    MAY_FAIL(cudaErrorMemoryAllocation);
    *p = bytes ? pinned.allocate(bytes) : nullptr;
    return cudaSuccess;
}
// What cudaMallocHost(T **, size_t) of the toolkit's C++ header calls.
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags) {
    if (flags != cudaHostAllocDefault)
        fatal("cudaHostAlloc: the emulator does not know flags %u", flags);
    return cudaMallocHost(p, bytes);
}
cudaError_t cudaFreeHost(void *p) {
    MAY_FAIL(cudaErrorUnknown);
    if (!p) return cudaSuccess;
    wait_for_all();
    pinned.release("cudaFreeHost", p);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    MAY_FAIL(cudaErrorUnknown);
    *total = settings().memory;
    *free_bytes = free_memory();
    return cudaSuccess;
}

// ---- devices -----------------------------------------------------------------------------------
cudaError_t cudaGetDeviceCount(int *count) {
    MAY_FAIL(cudaErrorNoDevice);
    *count = settings().devices;
    return *count ? cudaSuccess : set_error(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int d) {
    MAY_FAIL(cudaErrorInvalidDevice);
    if (d < 0 || d >= settings().devices) return set_error(cudaErrorInvalidDevice);
    if (d != current_device && device.live_bytes)
        fatal("cudaSetDevice after allocating: one device per process");
    current_device = d;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *d) {
    *d = current_device;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int d) {
    MAY_FAIL(cudaErrorInvalidDevice);
    if (d < 0 || d >= settings().devices) return set_error(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "CPU (emulated CUDA device)");
    p->major = 9;
    p->totalGlobalMem = settings().memory;
    p->sharedMemPerBlock = SHARED_DEFAULT;
    p->sharedMemPerBlockOptin = SHARED_OPT_IN;
    p->sharedMemPerMultiprocessor = SHARED_PER_SM;
    p->reservedSharedMemPerBlock = SHARED_RESERVED;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = THREADS_PER_BLOCK;
    p->maxThreadsPerMultiProcessor = THREADS_PER_SM;
    p->maxBlocksPerMultiProcessor = BLOCKS_PER_SM;
    p->multiProcessorCount = settings().multiprocessors;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = THREADS_PER_BLOCK;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->memoryBusWidth = 5120;
    p->l2CacheSize = 50 << 20;
    p->concurrentKernels = 1;
    p->asyncEngineCount = 3;
    p->unifiedAddressing = 1;
    return cudaSuccess;
}
// EMU_PCI_BUS: the bus of the first device, so that ranks on one of their own each can be told from
// ranks on the same one.
cudaError_t cudaDeviceGetPCIBusId(char *bus, int room, int d) {
    MAY_FAIL(cudaErrorInvalidDevice);
    if (d < 0 || d >= settings().devices) return set_error(cudaErrorInvalidDevice);
    if (room < 13) return set_error(cudaErrorInvalidValue);
    snprintf(bus, (size_t)room, "0000:%02x:00.0", (settings().pci_bus + d) & 255);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int d) {
    MAY_FAIL(cudaErrorInvalidDevice);
    cudaDeviceProp p;
    if (cudaError_t error = cudaGetDeviceProperties(&p, d)) return error;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = p.maxThreadsPerBlock;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = (int)p.sharedMemPerBlock;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)p.sharedMemPerBlockOptin;
        break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = (int)p.sharedMemPerMultiprocessor;
        break;
    case cudaDevAttrWarpSize:
        *value = p.warpSize;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = p.multiProcessorCount;
        break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = p.maxThreadsPerMultiProcessor;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = p.major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = p.minor;
        break;
    case cudaDevAttrClockRate:
        *value = 1000000;
        break;  // kHz
    case cudaDevAttrMemoryClockRate:
        *value = 1000000;
        break;  // kHz
    case cudaDevAttrGlobalMemoryBusWidth:
        *value = p.memoryBusWidth;
        break;
    case cudaDevAttrL2CacheSize:
        *value = p.l2CacheSize;
        break;
    default:
        fatal("cudaDeviceGetAttribute: the emulator does not know attribute %d", (int)attribute);
    }
    return cudaSuccess;
}

// ---- kernels -----------------------------------------------------------------------------------
cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value) {
    MAY_FAIL(cudaErrorInvalidValue);
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;  // a hint
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        fatal("cudaFuncSetAttribute: the emulator does not know attribute %d", (int)attribute);
    if (value < 0 || (size_t)value + static_shared_bytes(kernel) > SHARED_OPT_IN)
        return set_error(cudaErrorInvalidValue);
    opted_in[kernel] = value;
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *kernel) {
    MAY_FAIL(cudaErrorInvalidValue);
    memset(a, 0, sizeof *a);  // registers and local memory are the GPU compiler's: not known here
    a->sharedSizeBytes = static_shared_bytes(kernel);
    a->maxThreadsPerBlock = THREADS_PER_BLOCK;
    a->maxDynamicSharedSizeBytes =
        opted_in.count(kernel) ? opted_in[kernel] : (int)(SHARED_DEFAULT - a->sharedSizeBytes);
    a->binaryVersion = a->ptxVersion = 90;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel,
                                                          int block_size, size_t dynamic_bytes) {
    MAY_FAIL(cudaErrorInvalidValue);
    if (block_size < 1 || block_size > THREADS_PER_BLOCK) return set_error(cudaErrorInvalidValue);
    size_t shared = dynamic_bytes + static_shared_bytes(kernel) + SHARED_RESERVED;
    int by_threads = THREADS_PER_SM / ((block_size + 31) / 32 * 32),
        by_shared = (int)(SHARED_PER_SM / shared);
    *blocks = std::min(BLOCKS_PER_SM, std::min(by_threads, by_shared));
    return cudaSuccess;
}

}  // extern "C"
