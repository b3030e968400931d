// instrument.cpp: the callbacks of g++ -fsanitize=thread, in the race and the count build: every
// access of instrumented code is told to the race detector or to the counters.
#include "core.h"

#if defined(EMU_RACE) || defined(EMU_COUNT)

namespace emu {
static inline void tell(const void *p, size_t bytes, bool write, bool atomic, const void *pc) {
    if (race_detector) race_detector->access(p, bytes, write, atomic, pc);
    if (counters) counters->access(p, bytes, write, atomic, pc);
}
}  // namespace emu

// ---- the compiler's callbacks -------------------------------------------------------------------
#define HERE __builtin_return_address(0)
#define ACCESS(n)                                                                                  \
    void __tsan_read##n(void *p) {                                                                 \
        emu::tell(p, n, false, false, HERE);                                                       \
    }                                                                                              \
    void __tsan_write##n(void *p) {                                                                \
        emu::tell(p, n, true, false, HERE);                                                        \
    }
#define UNALIGNED(n)                                                                               \
    void __tsan_unaligned_read##n(void *p) {                                                       \
        emu::tell(p, n, false, false, HERE);                                                       \
    }                                                                                              \
    void __tsan_unaligned_write##n(void *p) {                                                      \
        emu::tell(p, n, true, false, HERE);                                                        \
    }
// std::atomic and __atomic in host code (control planes in shared memory): plain atomics, not
// checked
#define FETCH(n, T, op)                                                                            \
    T __tsan_atomic##n##_fetch_##op(volatile T *p, T v, int) {                                     \
        return __atomic_fetch_##op(p, v, __ATOMIC_SEQ_CST);                                        \
    }
#define ATOMIC(n, T)                                                                               \
    T __tsan_atomic##n##_load(const volatile T *p, int) {                                          \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                               \
    }                                                                                              \
    void __tsan_atomic##n##_store(volatile T *p, T v, int) {                                       \
        __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                  \
    }                                                                                              \
    T __tsan_atomic##n##_exchange(volatile T *p, T v, int) {                                       \
        return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                        \
    }                                                                                              \
    int __tsan_atomic##n##_compare_exchange_strong(volatile T *p, T *c, T v, int, int) {           \
        return __atomic_compare_exchange_n(p, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);    \
    }                                                                                              \
    int __tsan_atomic##n##_compare_exchange_weak(volatile T *p, T *c, T v, int, int) {             \
        return __atomic_compare_exchange_n(p, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);    \
    }                                                                                              \
    T __tsan_atomic##n##_compare_exchange_val(volatile T *p, T c, T v, int, int) {                 \
        __atomic_compare_exchange_n(p, &c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);          \
        return c;                                                                                  \
    }                                                                                              \
    FETCH(n, T, add)                                                                               \
    FETCH(n, T, sub) FETCH(n, T, and) FETCH(n, T, or) FETCH(n, T, xor)

extern "C" {
void __tsan_init() {}
void __tsan_vptr_update(void *, void *) {}
void __tsan_vptr_read(void *) {}
void __tsan_atomic_thread_fence(int) {}
void __tsan_atomic_signal_fence(int) {}
void __tsan_read_range(void *p, size_t n) {
    emu::tell(p, n, false, false, HERE);
}
void __tsan_write_range(void *p, size_t n) {
    emu::tell(p, n, true, false, HERE);
}
// clang-format off
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
UNALIGNED(2) UNALIGNED(4) UNALIGNED(8) UNALIGNED(16)
ATOMIC(8, unsigned char) ATOMIC(16, unsigned short) ATOMIC(32, unsigned) ATOMIC(64, unsigned long)
    // clang-format on

    // The build renames the calls to these functions in instrumented objects (objcopy
    // --redefine-sym).
    void *emu_memcpy(void *to, const void *from, size_t n) {
    if (n) emu::tell(from, n, false, false, HERE), emu::tell(to, n, true, false, HERE);
    return memcpy(to, from, n);
}
void *emu_memmove(void *to, const void *from, size_t n) {
    if (n) emu::tell(from, n, false, false, HERE), emu::tell(to, n, true, false, HERE);
    return memmove(to, from, n);
}
void *emu_memset(void *p, int value, size_t n) {
    if (n) emu::tell(p, n, true, false, HERE);
    return memset(p, value, n);
}

#ifdef EMU_COUNT
// Likewise the special functions.
#define SPECIAL(name, T)                                                                           \
    T emu_##name(T x) {                                                                            \
        emu::counters->special_function(HERE);                                                     \
        return name(x);                                                                            \
    }
SPECIAL(expf, float)
SPECIAL(exp2f, float)
SPECIAL(logf, float)
SPECIAL(log2f, float)
SPECIAL(tanhf, float)
SPECIAL(exp, double)
SPECIAL(log, double)
#endif
}
#endif
