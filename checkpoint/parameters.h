// checkpoint/parameters.h: parameters in and out of a model, each rank its own pieces: drawn from
// the seed, or read from and written to llm.c's model.bin. No rank ever holds a whole model.
#pragma once

#include "gpt.h"
#include "lib/model_file.h"

// A model that has been started: what every function of this room works on.
typedef struct {
    const GptCode *code;
    Gpt *gpt;
    const GptConfig *config;
} Model;

// Replicas hold the same state: only the first one writes, and only it counts in checksums.
static inline bool model_writes(const Model *m) {
    return m->config->fsdp.rank / m->config->fsdp.K == 0;
}

#define PARAMETERS_CHUNK ((size_t)1 << 18)  // elements between host and device; stays in caches

// Calls f for each chunk of each own piece; host has room for a chunk.
typedef void (*ChunkFunction)(const Model *m, void *context, float *host, const GptPiece *chunk);

static inline void for_each_chunk(const Model *m, ChunkFunction f, void *context) {
    float *host = (float *)malloc_check(PARAMETERS_CHUNK * sizeof(float));
    int count;
    const GptPiece *pieces = m->code->pieces(m->gpt, &count);
    for (int i = 0; i < count; i++) {
        GptPiece chunk = pieces[i];
        for (size_t done = 0; done < pieces[i].n; done += chunk.n) {
            chunk.first = pieces[i].first + done, chunk.at = pieces[i].at + done;
            chunk.n = pieces[i].n - done < PARAMETERS_CHUNK ? pieces[i].n - done : PARAMETERS_CHUNK;
            f(m, context, host, &chunk);
            process_alive();
        }
    }
    free(host);
}

static inline void init_chunk(const Model *m, void *seed, float *host, const GptPiece *c) {
    tensor_init(host, c->n, &m->config->model, c->id, c->layer, c->first, *(const uint64_t *)seed);
    m->code->write(m->gpt, GPT_PARAMETERS, host, c->at, c->n);
}

// Initial parameters, a function of the seed alone.
static inline void parameters_init(const Model *m, uint64_t seed) {
    for_each_chunk(m, init_chunk, &seed);
}

// The number of the first element that is infinite or NaN; n: none.
static inline size_t finite_elements(const float *x, size_t n) {
    enum { BLOCK = 1 << 10 };  // looked at as integers and without a branch each: in vectors
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        int32_t bits[BLOCK], found = 0;
        memcpy(bits, x + i, sizeof bits);
        for (int k = 0; k < BLOCK; k++) found |= (bits[k] & 0x7fffffff) >= 0x7f800000;
        if (found) break;
    }
    while (i < n && isfinite(x[i])) i++;
    return i;
}

// What is wrong with the elements of a chunk, or of a part of one; false if one is infinite or NaN.
static inline bool chunk_is_finite(const ModelConfig *m, const float *x, size_t n,
                                   const GptPiece *c, size_t first, Failure *failure) {
    size_t finite = finite_elements(x, n), columns = tensor_cols(m, c->id);
    if (finite == n) return true;
    return fails(failure, "expected finite weights, found %g in %s of layer %d at [%zu,%zu]",
                 (double)x[finite], tensor_table[c->id].name, c->layer, (first + finite) / columns,
                 (first + finite) % columns);
}

static inline void check_chunk(const Model *m, void *what, float *host, const GptPiece *c) {
    Failure failure;
    m->code->read(m->gpt, GPT_PARAMETERS, host, c->at, c->n);
    if (!chunk_is_finite(&m->config->model, host, c->n, c, c->first, &failure))
        die("%s: %s", (const char *)what, failure.text);
}

// A model with a weight that is infinite or NaN is none. what: file or folder, for the message.
// Returns when all ranks have looked.
static inline void parameters_check(const Model *m, const char *what) {
    for_each_chunk(m, check_chunk, (void *)what);
    m->code->arrive(m->gpt);
}

static inline void load_chunk(const Model *m, void *context, float *host, const GptPiece *c) {
    const ModelFile *file = (const ModelFile *)context;
    model_file_read(file, host, c->n, c->id, c->layer, c->first);
    Failure failure;
    if (!chunk_is_finite(&m->config->model, host, c->n, c, c->first, &failure))
        die("%s: %s", file->path, failure.text);
    m->code->write(m->gpt, GPT_PARAMETERS, host, c->at, c->n);
}

// The file's sizes are the model's (the program has made it so).
static inline void parameters_load(const Model *m, const char *path) {
    ModelFile file = model_file_open(path);
    for_each_chunk(m, load_chunk, &file);
    model_file_close(&file);
}

typedef struct {
    ModelFile file;
    GptArray array;
} SaveContext;

// Elements of one of the rank's arrays as fp32.
static inline void read_as_float(const Model *m, GptArray array, float *host, size_t at, size_t n) {
    size_t size = m->code->element_bytes(m->gpt, array);
    void *raw = malloc_check(n * size);
    m->code->read(m->gpt, array, raw, at, n);
    for (size_t i = 0; i < n; i++)
        host[i] = size == 8   ? (float)((double *)raw)[i]
                  : size == 2 ? bf16_to_float(((uint16_t *)raw)[i])
                              : ((float *)raw)[i];
    free(raw);
}

static inline void save_chunk(const Model *m, void *context, float *host, const GptPiece *c) {
    SaveContext *save = (SaveContext *)context;
    read_as_float(m, save->array, host, c->at, c->n);
    model_file_write(&save->file, host, c->n, c->id, c->layer, c->first);
}

// Writes one of the four arrays as a model.bin; returns when all ranks have written their part.
static inline void model_file_save(const Model *m, GptArray array, const char *path, bool as_bf16) {
    SaveContext c = {};
    c.array = array;
    bool first = m->config->fsdp.rank == 0;
    if (array == GPT_PARAMETERS) parameters_check(m, path);
    if (first) c.file = model_file_create(path, &m->config->model, as_bf16, true);
    m->code->arrive(m->gpt);
    if (model_writes(m)) {
        if (!first) c.file = model_file_create(path, &m->config->model, as_bf16, false);
        for_each_chunk(m, save_chunk, &c);
        model_file_close(&c.file);
    }
    m->code->arrive(m->gpt);
    if (first) publish(path);
}
