// cpu/ops.h: the ops of ../ops.h as C loops with OpenMP, and matrix products by a library.
// Written to be compiled several times with different instruction sets into
// one program: everything is static.
#pragma once

#pragma GCC diagnostic ignored "-Wunused-function"  // a program need not use every op

#include "adamw.h"
#include "attention.h"
#include "classifier.h"
#include "encoder.h"
#include "gelu.h"
#include "layernorm.h"
#include "matmul.h"
#include "shard.h"

static size_t shared_part_bytes(const OpsDims *d) {
    size_t sums = ROW_CHUNKS * round_up((size_t)3 * d->C * sizeof(float), 64);  // of layernorm
    size_t orders = 2 * round_up((size_t)d->B * d->T * sizeof(int), 64);
    size_t packed = matmul_shared_bytes(d->B * d->T, d->C), most = sums > orders ? sums : orders;
    return most > packed ? most : packed;
}

static size_t thread_part_bytes(const OpsDims *d) {
    size_t attention = attention_room_bytes(d->T, d->C / d->NH), matmul = matmul_room_bytes();
    return GEMM_ROOM + round_up(attention > matmul ? attention : matmul, 4096);
}

static size_t ops_workspace_bytes(const OpsDims *d) {
    return round_up(shared_part_bytes(d), 4096) +
           (size_t)omp_get_max_threads() * thread_part_bytes(d) + 64;
}

// Numbers too small to be normal count as zero in the calling thread and in those that it starts:
// processors take a hundred times as long for them.
static inline void flush_subnormals(void) {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);  // FTZ, DAZ
#elif defined(__aarch64__)
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr | (uint64_t)1 << 24));  // FZ
#endif
}

static void ops_init(const OpsDims *d, void *room, size_t room_bytes, cudaStream_t stream) {
    (void)stream;
    if (room_bytes < ops_workspace_bytes(d))
        die("ops_init: expected a workspace of %zu bytes, found %zu", ops_workspace_bytes(d),
            room_bytes);
#pragma omp parallel
    flush_subnormals();
    workspace.threads = omp_get_max_threads();
    workspace.shared = (char *)round_up((size_t)room, 64);
    workspace.shared_bytes = round_up(shared_part_bytes(d), 4096);
    workspace.parts = workspace.shared + workspace.shared_bytes;
    workspace.part_bytes = thread_part_bytes(d);
    gemm_init();
}

static void ops_destroy(void) {
    gemm_destroy();
    memset(&workspace, 0, sizeof workspace);
}
