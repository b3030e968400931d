// lib/buffers.h: THE table of device memory: every allocation of a run has a row,
// made once before step 0. The same rows are what the start-up table prints and what --plan
// counts without allocating.
#pragma once

#include "die.h"

#define BUFFERS_MAX (1 << 17)  // --recompute layer has room for as many blocks as a model may have

// What collectives do with it. Summed: over replicas.
typedef enum { BUFFER_STAYS, BUFFER_GATHERED, BUFFER_REDUCED, BUFFER_SUMMED } BufferTravel;

typedef struct {
    char name[40];
    const char *owner;  // state, gather, gradient, activations, host: groups of the printed table
    size_t bytes;
    void **pointer;  // where its address goes
    BufferTravel travel;
    void *registered;  // with the communicator that moves it
} Buffer;

#define BUFFER_HOST "host"  // owner of what lies in pinned host memory, not on the device

static inline bool buffer_on_host(const Buffer *row) {
    return !strcmp(row->owner, BUFFER_HOST);
}

typedef struct {
    Buffer rows[BUFFERS_MAX];
    int count;
    int blocks;  // of the model, for the message when the rows run out
} Buffers;

static inline void buffers_add_row(Buffers *b, BufferTravel travel, const char *owner,
                                   void *pointer, size_t bytes, const char *name, va_list args) {
    if (bytes == 0) return;
    if (b->count == BUFFERS_MAX)
        die_all("--model: %d blocks need more than %d buffers; use --recompute layer, which keeps "
                "one for each block, or fewer blocks",
                b->blocks, BUFFERS_MAX);
    Buffer *row = &b->rows[b->count++];
    *row = (Buffer){};
    vsnprintf(row->name, sizeof row->name, name, args);
    row->owner = owner;
    row->bytes = bytes;
    row->pointer = (void **)pointer;
    row->travel = travel;
}

__attribute__((format(printf, 5, 6))) static inline void
buffers_add(Buffers *b, const char *owner, void *pointer, size_t bytes, const char *name, ...) {
    va_list args;
    va_start(args, name);
    buffers_add_row(b, BUFFER_STAYS, owner, pointer, bytes, name, args);
    va_end(args);
}

// One that collectives move, or BUFFER_STAYS.
__attribute__((format(printf, 6, 7))) static inline void
buffers_add_moved(Buffers *b, BufferTravel travel, const char *owner, void *pointer, size_t bytes,
                  const char *name, ...) {
    va_list args;
    va_start(args, name);
    buffers_add_row(b, travel, owner, pointer, bytes, name, args);
    va_end(args);
}

// owner NULL: all.
static inline size_t buffers_bytes(const Buffers *b, const char *owner) {
    size_t sum = 0;
    for (int i = 0; i < b->count; i++)
        if (!owner || !strcmp(owner, b->rows[i].owner)) sum += b->rows[i].bytes;
    return sum;
}
