// emu.h: the CUDA device language as plain C++, for kernels that run on the CPU.
//
// Force-included before every converted source (g++ -include emulator/emu.h); production code
// never names it. NVIDIA's own headers stay in use: here are only the things that need nvcc.
// Device functions run on fibers (fibers.cpp), one block at a time. README.md says what is
// modelled and what is not.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <tuple>
#include <type_traits>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#undef __forceinline__
#undef __noinline__
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))

// The host program calls this in its own waiting loops (shared memory, MPI tests): runs at most one
// pending device operation and never blocks, so that ranks that wait for this one get on.
extern "C" void emu_progress(void);

namespace emu {

struct Site {
    const char *file;
    int line;
};
#define EMU_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

// What the running device thread sees; rewritten at each fiber switch.
struct Context {
    uint3 thread, block;
    dim3 block_dim, grid_dim;
    int linear;     // thread number within its block
    void *dynamic;  // the block's dynamic shared memory
    size_t dynamic_bytes;
};
extern Context ctx;

[[noreturn]] void device_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

// ---- barriers and warp operations --------------------------------------------------------------
enum BarrierVote { VOTE_OR, VOTE_AND, VOTE_COUNT };
void barrier(Site site);
int barrier_vote(int predicate, BarrierVote vote, Site site);

// A warp operation: each lane posts its operand, the last lane to arrive computes for all.
struct WarpLane {
    alignas(16) unsigned char in[48];
    alignas(16) unsigned char out[16];
    int argument;  // source lane of a shuffle, number of matrices of ldmatrix
};
struct WarpOp {
    const char *name;
    void (*compute)(WarpLane *lanes, uint32_t members);
};
extern const WarpOp warp_sync, warp_shuffle, warp_ballot, warp_match, warp_mma, warp_ldmatrix;
extern const WarpOp warp_add, warp_min, warp_max, warp_min_unsigned, warp_max_unsigned, warp_and,
    warp_or, warp_xor;
struct WarpData {
    const void *in;
    size_t in_bytes;
    void *out;
    size_t out_bytes;
    int argument;
};
void warp_exchange(const WarpOp &op, uint32_t mask, const WarpData &data, Site site);

enum Shuffle { SHUFFLE_INDEX, SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_XOR };
int shuffle_source(Shuffle kind, int argument, int width);

template <class T>
T shuffle(Shuffle kind, unsigned mask, T value, int argument, int width, Site site) {
    static_assert(sizeof(T) <= 16, "a shuffle moves at most 16 bytes");
    warp_exchange(warp_shuffle, mask,
                  {&value, sizeof(T), &value, sizeof(T), shuffle_source(kind, argument, width)},
                  site);
    return value;
}
template <class T> T warp_reduce(const WarpOp &op, unsigned mask, T value, Site site) {
    static_assert(sizeof(T) == 4, "__reduce_*_sync takes 32-bit integers");
    warp_exchange(op, mask, {&value, sizeof(T), &value, sizeof(T), 0}, site);
    return value;
}

// ---- memory ------------------------------------------------------------------------------------
// The race build reports accesses through the compiler's callbacks; these are for
// accesses it cannot see.
void note_access(const void *p, size_t bytes, bool write);
void note_atomic(const void *p, size_t bytes);
void note_fence(void);

void cp_async(void *shared, const void *global, size_t bytes, bool valid);
void cp_async_commit(void);
void cp_async_wait(int groups_left);

#if defined(EMU_RACE) || defined(EMU_COUNT)
#define EMU_UNCHECKED __attribute__((no_sanitize("thread"), noinline))
#else
#define EMU_UNCHECKED
#endif
template <class T, class F> EMU_UNCHECKED T read_modify_write(T *p, F f) {
    note_atomic(p, sizeof(T));
    T old = *p;
    *p = f(old);
    return old;
}

// ---- launches ----------------------------------------------------------------------------------
// kernel<<<grid, block, shared, stream>>>(args) becomes EMU_LAUNCH(kernel, ...)(args).
struct LaunchConfig {
    dim3 grid, block;
    size_t dynamic_bytes;
    cudaStream_t stream;
    const char *name;
    Site site;
};
struct Kernel {
    LaunchConfig config;
    const void *function = nullptr;
    size_t bytes = 0;  // of the most derived object: kernels may read their arguments there
    virtual ~Kernel() = default;
    virtual void run_thread() = 0;
};
void launch(std::shared_ptr<Kernel> kernel);

template <class Call, class... A> struct BoundKernel : Kernel {
    Call call;
    std::tuple<A...> arguments;  // copied at launch, as CUDA does
    BoundKernel(Call c, A... a) : call(c), arguments(a...) {}
    void run_thread() override {
        std::apply(call, arguments);
    }
};

// The kernel's address, by which cudaFuncSetAttribute knows it: of a function or of a template with
// its arguments written out; of a template with deduced arguments if they are exactly the
// parameters' types.
template <class... A> struct Types {};
template <class... A, class... P> const void *address_of(Types<A...>, void (*kernel)(P...)) {
    return (const void *)kernel;
}
template <class... A> const void *address_of(Types<A...>, void (*kernel)(A...)) {
    return (const void *)kernel;
}

template <class Call, class Address> struct Launcher {
    LaunchConfig config;
    Call call;
    Address address;
    template <class... A> void operator()(A... arguments) const {
        auto kernel = std::make_shared<BoundKernel<Call, A...>>(call, arguments...);
        kernel->config = config;
        if constexpr (std::is_invocable_v<Address, Types<A...>>)
            kernel->function = address(Types<A...>());
        kernel->bytes = sizeof(*kernel);
        launch(kernel);
    }
};
struct Named {
    const char *name;
    Site site;
    LaunchConfig operator()(dim3 grid, dim3 block, size_t bytes = 0,
                            cudaStream_t stream = nullptr) const {
        return {grid, block, bytes, stream, name, site};
    }
};
template <class Call, class Address>
Launcher<Call, Address> launcher(LaunchConfig config, Call call, Address address) {
    return {config, call, address};
}
#define EMU_STRIP(...) __VA_ARGS__
#define EMU_STRING(...) #__VA_ARGS__
#define EMU_LAUNCH(kernel, ...)                                                                    \
    emu::launcher(                                                                                 \
        emu::Named{EMU_STRING kernel, {__FILE__, __LINE__}}(__VA_ARGS__),                          \
        [](auto &...arguments) { EMU_STRIP kernel(arguments...); },                                \
        [](auto types) -> decltype(emu::address_of(types, EMU_STRIP kernel)) {                     \
            return emu::address_of(types, EMU_STRIP kernel);                                       \
        })

}  // namespace emu

// ---- built-in variables and functions ----------------------------------------------------------
#define threadIdx (emu::ctx.thread)
#define blockIdx (emu::ctx.block)
#define blockDim (emu::ctx.block_dim)
#define gridDim (emu::ctx.grid_dim)
constexpr int warpSize = 32;

inline void __syncthreads(EMU_SITE) {
    emu::barrier({file, line});
}
inline int __syncthreads_or(int p, EMU_SITE) {
    return emu::barrier_vote(p, emu::VOTE_OR, {file, line});
}
inline int __syncthreads_and(int p, EMU_SITE) {
    return emu::barrier_vote(p, emu::VOTE_AND, {file, line});
}
inline int __syncthreads_count(int p, EMU_SITE) {
    return emu::barrier_vote(p, emu::VOTE_COUNT, {file, line});
}
inline void __syncwarp(unsigned mask = ~0u, EMU_SITE) {
    emu::warp_exchange(emu::warp_sync, mask, {nullptr, 0, nullptr, 0, 0}, {file, line});
}
template <class T> T __shfl_sync(unsigned mask, T v, int lane, int width = 32, EMU_SITE) {
    return emu::shuffle(emu::SHUFFLE_INDEX, mask, v, lane, width, {file, line});
}
template <class T> T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32, EMU_SITE) {
    return emu::shuffle(emu::SHUFFLE_UP, mask, v, (int)delta, width, {file, line});
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32, EMU_SITE) {
    return emu::shuffle(emu::SHUFFLE_DOWN, mask, v, (int)delta, width, {file, line});
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int lanes, int width = 32, EMU_SITE) {
    return emu::shuffle(emu::SHUFFLE_XOR, mask, v, lanes, width, {file, line});
}
inline unsigned __ballot_sync(unsigned mask, int predicate, EMU_SITE) {
    return emu::warp_reduce(emu::warp_ballot, mask, (unsigned)(predicate != 0), {file, line});
}
inline int __any_sync(unsigned mask, int predicate, EMU_SITE) {
    return __ballot_sync(mask, predicate, file, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, EMU_SITE) {
    return __ballot_sync(mask, !predicate, file, line) == 0;
}
template <class T> unsigned __match_any_sync(unsigned mask, T v, EMU_SITE) {
    static_assert(sizeof(T) <= 8, "__match_any_sync compares at most 8 bytes");
    uint64_t bits = 0;
    unsigned same;
    memcpy(&bits, &v, sizeof(T));
    emu::warp_exchange(emu::warp_match, mask, {&bits, 8, &same, 4, 0}, {file, line});
    return same;
}
#define EMU_REDUCE(name, T, op)                                                                    \
    inline T name(unsigned mask, T v, EMU_SITE) {                                                  \
        return emu::warp_reduce(emu::op, mask, v, {file, line});                                   \
    }
EMU_REDUCE(__reduce_add_sync, int, warp_add)
EMU_REDUCE(__reduce_add_sync, unsigned, warp_add)
EMU_REDUCE(__reduce_min_sync, int, warp_min)
EMU_REDUCE(__reduce_min_sync, unsigned, warp_min_unsigned)
EMU_REDUCE(__reduce_max_sync, int, warp_max)
EMU_REDUCE(__reduce_max_sync, unsigned, warp_max_unsigned)
EMU_REDUCE(__reduce_and_sync, unsigned, warp_and)
EMU_REDUCE(__reduce_or_sync, unsigned, warp_or)
EMU_REDUCE(__reduce_xor_sync, unsigned, warp_xor)

inline void __threadfence() {
    emu::note_fence();
}
inline void __threadfence_block() {}
#define __trap() emu::device_error("__trap at %s:%d", __FILE__, __LINE__)

// ---- loads and stores with a cache hint --------------------------------------------------------
#define EMU_LOAD(name)                                                                             \
    template <class T> inline T name(const T *p) {                                                 \
        return *p;                                                                                 \
    }
#define EMU_STORE(name)                                                                            \
    template <class T> inline void name(T *p, std::common_type_t<T> v) {                           \
        *p = v;                                                                                    \
    }
EMU_LOAD(__ldg)
EMU_LOAD(__ldca)
EMU_LOAD(__ldcg)
EMU_LOAD(__ldcs)
EMU_LOAD(__ldlu)
EMU_LOAD(__ldcv)
EMU_STORE(__stwb)
EMU_STORE(__stcg)
EMU_STORE(__stcs)
EMU_STORE(__stwt)

// ---- atomics -----------------------------------------------------------------------------------
#define EMU_ATOMIC(name, T, expression)                                                            \
    inline T name(T *p, T v) {                                                                     \
        return emu::read_modify_write(p, [v](T old) -> T { return expression; });                  \
    }
#define EMU_ATOMIC_INTEGERS(name, expression)                                                      \
    EMU_ATOMIC(name, int, expression)                                                              \
    EMU_ATOMIC(name, unsigned, expression)                                                         \
    EMU_ATOMIC(name, unsigned long long, expression)
EMU_ATOMIC_INTEGERS(atomicAdd, old + v)
EMU_ATOMIC(atomicAdd, float, old + v)
EMU_ATOMIC(atomicAdd, double, old + v)
EMU_ATOMIC(atomicSub, int, old - v)
EMU_ATOMIC(atomicSub, unsigned, old - v)
EMU_ATOMIC_INTEGERS(atomicMin, v < old ? v : old)
EMU_ATOMIC_INTEGERS(atomicMax, v > old ? v : old)
EMU_ATOMIC_INTEGERS(atomicAnd, old &v)
EMU_ATOMIC_INTEGERS(atomicOr, old | v)
EMU_ATOMIC_INTEGERS(atomicXor, old ^ v)
EMU_ATOMIC_INTEGERS(atomicExch, ((void)old, v))
EMU_ATOMIC(atomicExch, float, ((void)old, v))
EMU_ATOMIC(atomicInc, unsigned, old >= v ? 0u : old + 1)
#define EMU_ATOMIC_CAS(T)                                                                          \
    inline T atomicCAS(T *p, T compare, T v) {                                                     \
        return emu::read_modify_write(p, [=](T old) -> T { return old == compare ? v : old; });    \
    }
EMU_ATOMIC_CAS(int)
EMU_ATOMIC_CAS(unsigned)
EMU_ATOMIC_CAS(unsigned long long)

// ---- arithmetic --------------------------------------------------------------------------------
// Fast forms are evaluated exactly; nothing is contracted to fma unless written so.
template <class To, class From> inline To emu_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
inline unsigned __float_as_uint(float x) {
    return emu_bits<unsigned>(x);
}
inline float __uint_as_float(unsigned x) {
    return emu_bits<float>(x);
}
inline int __float_as_int(float x) {
    return emu_bits<int>(x);
}
inline float __int_as_float(int x) {
    return emu_bits<float>(x);
}
inline long long __double_as_longlong(double x) {
    return emu_bits<long long>(x);
}
inline double __longlong_as_double(long long x) {
    return emu_bits<double>(x);
}
inline float rsqrtf(float x) {
    return 1.0f / sqrtf(x);
}
inline double rsqrt(double x) {
    return 1.0 / sqrt(x);
}
inline float __expf(float x) {
    return expf(x);
}
inline float __exp10f(float x) {
    return powf(10.0f, x);
}
inline float __logf(float x) {
    return logf(x);
}
inline float __log2f(float x) {
    return log2f(x);
}
inline float __powf(float x, float y) {
    return powf(x, y);
}
inline float __tanhf(float x) {
    return tanhf(x);
}
inline float __fdividef(float a, float b) {
    return a / b;
}
inline float __fdiv_rn(float a, float b) {
    return a / b;
}
inline float __frcp_rn(float a) {
    return 1.0f / a;
}
inline float __frsqrt_rn(float a) {
    return rsqrtf(a);
}
inline float __fsqrt_rn(float a) {
    return sqrtf(a);
}
inline float __fadd_rn(float a, float b) {
    return a + b;
}
inline float __fsub_rn(float a, float b) {
    return a - b;
}
inline float __fmul_rn(float a, float b) {
    return a * b;
}
inline float __fmaf_rn(float a, float b, float c) {
    return fmaf(a, b, c);
}
inline double __dadd_rn(double a, double b) {
    return a + b;
}
inline double __dsub_rn(double a, double b) {
    return a - b;
}
inline double __dmul_rn(double a, double b) {
    return a * b;
}
inline double __fma_rn(double a, double b, double c) {
    return fma(a, b, c);
}
inline float __saturatef(float x) {
    return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
}
inline int __float2int_rn(float x) {
    return (int)rintf(x);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((uint64_t)a * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x) {
    return __builtin_popcountll(x);
}
inline int __clz(int x) {
    return x ? __builtin_clz((unsigned)x) : 32;
}
inline int __clzll(long long x) {
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
template <class A, class B> inline std::common_type_t<A, B> min(A a, B b) {
    return b < a ? b : a;
}
template <class A, class B> inline std::common_type_t<A, B> max(A a, B b) {
    return b > a ? b : a;
}

// ---- runtime calls that take a kernel: nvcc's headers offer these forms to nvcc only -----------
template <class... P>
inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute a, int value) {
    return cudaFuncSetAttribute((const void *)kernel, a, value);
}
template <class... P>
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, void (*kernel)(P...)) {
    return cudaFuncGetAttributes(attributes, (const void *)kernel);
}
template <class... P>
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void (*kernel)(P...),
                                                                 int block_size,
                                                                 size_t dynamic_bytes) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, (const void *)kernel, block_size,
                                                         dynamic_bytes);
}
