// kernels/ops.cuh: the ops of ../ops.h as CUDA kernels, and matrix products by cuBLASLt.
#pragma once

#include "adamw.cuh"
#include "attention.cuh"
#include "classifier.cuh"
#include "encoder.cuh"
#include "gelu.cuh"
#include "layernorm.cuh"
#include "matmul.cuh"
#include "shard.cuh"

static size_t ops_workspace_bytes(const OpsDims *d) {
    return ops_room_bytes(d->B, d->T, d->C, d->NH) + PRODUCT_WORKSPACE;
}

static void ops_init(const OpsDims *d, void *room, size_t room_bytes, cudaStream_t stream) {
    if (room_bytes < ops_workspace_bytes(d))
        die("ops_init: expected a workspace of %zu bytes, found %zu", ops_workspace_bytes(d),
            room_bytes);
    workspace.room = (char *)room;
    workspace.bytes = ops_room_bytes(d->B, d->T, d->C, d->NH);
    (void)stream;  // every op is given its stream
    for (vocabulary_bits = 1; d->V > 1 << vocabulary_bits;) vocabulary_bits++;
    products_init((char *)room + workspace.bytes, d->tf32);
}

static void ops_destroy(void) {
    products_destroy();
    memset(&workspace, 0, sizeof workspace);
}
