// ptx.cuh: the only inline PTX of the program: bf16 tensor-core multiply, ldmatrix, cp.async, ex2
// (sm_80 and up). No arithmetic of its own. The emulator executes the same wrappers on the CPU.
//
// Fragments of mma.m16n8k16 (PTX ISA, "Matrix fragments for mma.m16n8k16"), g = lane / 4,
// t = lane % 4, each register two bf16, lower column (A) or row (B) in the low half:
//   a[0] A[g][2t..]  a[1] A[g+8][2t..]  a[2] A[g][2t+8..]  a[3] A[g+8][2t+8..]   16 x 16, row-major
//   b[0] B[2t..][g]  b[1] B[2t+8..][g]                                           16 x 8, "col"
//   c, d: [0] C[g][2t]  [1] C[g][2t+1]  [2] C[g+8][2t]  [3] C[g+8][2t+1]         16 x 8, fp32
// ldmatrix: lane 8m + r passes the address (16-byte aligned, in shared memory) of row r
// of the 8 x 8 matrix m; r[m] of lane l gets row l/4, columns 2(l%4) and +1 of matrix m,
// with trans: of its transpose.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifndef EMULATOR
#include <cuda_runtime.h>
#endif

#ifdef EMULATOR
#define PTX_SITE , const char *file = __builtin_FILE(), int line = __builtin_LINE()
#else
#define PTX_SITE
#endif

// d = a * b + c, fp32 accumulation. d may be c. All 32 lanes.
__device__ inline void mma_m16n8k16_bf16(float d[4], const uint32_t a[4], const uint32_t b[2],
                                         const float c[4] PTX_SITE) {
#ifdef __CUDA_ARCH__
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};\n"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
          "f"(c[2]), "f"(c[3]));
#elif defined(EMULATOR)
    uint32_t in[10] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    memcpy(in + 6, c, 16);
    emu::warp_exchange(emu::warp_mma, ~0u, {in, sizeof in, d, 16, 0}, {file, line});
#else
    (void)d, (void)a, (void)b, (void)c;
#endif
}

#ifdef __CUDA_ARCH__
#define PTX_LDMATRIX_X2(form)                                                                      \
    asm volatile("ldmatrix.sync.aligned.m8n8.x2" form ".shared.b16 {%0, %1}, [%2];\n"              \
                 : "=r"(r[0]), "=r"(r[1])                                                          \
                 : "r"((uint32_t)__cvta_generic_to_shared(smem_row))                               \
                 : "memory")
#define PTX_LDMATRIX_X4(form)                                                                      \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" form ".shared.b16 {%0, %1, %2, %3}, [%4];\n"      \
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                                  \
                 : "r"((uint32_t)__cvta_generic_to_shared(smem_row))                               \
                 : "memory")
#elif defined(EMULATOR)
#define PTX_LDMATRIX(matrices, transposed)                                                         \
    if ((int)(emu::ctx.linear % 32) < 8 * (matrices)) emu::note_access(smem_row, 16, false);       \
    emu::warp_exchange(                                                                            \
        emu::warp_ldmatrix, ~0u,                                                                   \
        {&smem_row, sizeof smem_row, r, 4 * (matrices), (matrices) | ((transposed) << 8)},         \
        {file, line})
#define PTX_LDMATRIX_X2(form) PTX_LDMATRIX(2, sizeof(form) > 1)
#define PTX_LDMATRIX_X4(form) PTX_LDMATRIX(4, sizeof(form) > 1)
#else
#define PTX_LDMATRIX_X2(form) (void)r, (void)smem_row
#define PTX_LDMATRIX_X4(form) (void)r, (void)smem_row
#endif

// Two matrices: lanes 0..15 pass row addresses (the other lanes' are ignored). All 32 lanes.
__device__ inline void ldmatrix_x2(uint32_t r[2], const void *smem_row PTX_SITE) {
    PTX_LDMATRIX_X2("");
}
__device__ inline void ldmatrix_x2_trans(uint32_t r[2], const void *smem_row PTX_SITE) {
    PTX_LDMATRIX_X2(".trans");
}
__device__ inline void ldmatrix_x4(uint32_t r[4], const void *smem_row PTX_SITE) {
    PTX_LDMATRIX_X4("");
}
__device__ inline void ldmatrix_x4_trans(uint32_t r[4], const void *smem_row PTX_SITE) {
    PTX_LDMATRIX_X4(".trans");
}

// Starts a copy of 16 bytes, both sides 16-byte aligned. valid = false writes zeros: src-size is 0.
// `global` must be an address of the program's own even then: "src specifies a location in the
// global state space" (PTX ISA, cp.async), and none is excepted. The bytes may land at once or
// at the wait, not before the thread's next cp_async_wait that covers it may anyone read them,
// other threads only after a barrier.
__device__ inline void cp_async_16(void *smem, const void *global, bool valid) {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(smem)),
                 "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0)
                 : "memory");
#elif defined(EMULATOR)
    emu::cp_async(smem, global, 16, valid);
#else
    (void)smem, (void)global, (void)valid;
#endif
}

// 2^x to 2 units in the last place; what would be denormal is 0 (PTX ISA, ex2).
__device__ inline float exp2_approx(float x) {
#ifdef __CUDA_ARCH__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    float y = exp2f(x);
    return y < 1.17549435e-38f ? 0.0f : y;
#endif
}

// Closes the group of copies started since the last commit.
__device__ inline void cp_async_commit() {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.commit_group;\n" ::: "memory");
#elif defined(EMULATOR)
    emu::cp_async_commit();
#endif
}

// Waits until at most N of this thread's latest groups are in flight.
template <int N> __device__ inline void cp_async_wait() {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
#elif defined(EMULATOR)
    emu::cp_async_wait(N);
#endif
}
