// lib/tensors.h: the parameters of a GPT in one table: name, shape, does it decay, how it starts,
// which segment of a block it belongs to. Initialisation, sharding units, optimizer, model files
// and tests all read it. Also the model's sizes and the descriptors that users write for them.
#pragma once

#include "die.h"
#include "rng.h"

#include <math.h>

// ---- model -------------------------------------------------------------------------------------

typedef struct {
    int T;   // longest sequence
    int V;   // vocabulary; 0 until it is known
    int Vp;  // V rounded up to a multiple of 128: rows of wte
    int L;   // blocks
    int NH;  // attention heads
    int C;   // channels
} ModelConfig;

static inline void model_set_vocab(ModelConfig *m, int V) {
    m->V = V;
    m->Vp = (V + 127) / 128 * 128;
}

// ---- tensors -----------------------------------------------------------------------------------

// In the order of model files.
typedef enum {
    WTE,
    WPE,
    LN1W,
    LN1B,
    QKVW,
    QKVB,
    ATTPROJW,
    ATTPROJB,
    LN2W,
    LN2B,
    FCW,
    FCB,
    FCPROJW,
    FCPROJB,
    LNFW,
    LNFB,
    TENSORS
} TensorId;

typedef enum { DIM_1, DIM_C, DIM_3C, DIM_4C, DIM_Vp, DIM_T } TensorDim;
// NORMAL: std 0.02. RESIDUAL: std 0.02 / sqrt(2L), for what adds to the residual stream.
typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_RESIDUAL } TensorInit;
// The four pieces that a block can be cut into, each one weight matrix and what goes with it;
// tensors of one segment are neighbours in the table.
enum { SEGMENT_QKV, SEGMENT_ATTPROJ, SEGMENT_FC, SEGMENT_FCPROJ, SEGMENTS, NO_SEGMENT = -1 };

typedef struct {
    const char *name;
    TensorDim rows, cols;  // of one layer; a vector has cols DIM_1
    bool per_layer, decays;
    TensorInit init;
    int segment;  // NO_SEGMENT: not in a block
} Tensor;

static const Tensor tensor_table[TENSORS] = {
    {"wte", DIM_Vp, DIM_C, false, true, INIT_NORMAL, NO_SEGMENT},
    {"wpe", DIM_T, DIM_C, false, true, INIT_NORMAL, NO_SEGMENT},
    {"ln1w", DIM_C, DIM_1, true, false, INIT_ONE, SEGMENT_QKV},
    {"ln1b", DIM_C, DIM_1, true, false, INIT_ZERO, SEGMENT_QKV},
    {"qkvw", DIM_3C, DIM_C, true, true, INIT_NORMAL, SEGMENT_QKV},
    {"qkvb", DIM_3C, DIM_1, true, false, INIT_ZERO, SEGMENT_QKV},
    {"attprojw", DIM_C, DIM_C, true, true, INIT_RESIDUAL, SEGMENT_ATTPROJ},
    {"attprojb", DIM_C, DIM_1, true, false, INIT_ZERO, SEGMENT_ATTPROJ},
    {"ln2w", DIM_C, DIM_1, true, false, INIT_ONE, SEGMENT_FC},
    {"ln2b", DIM_C, DIM_1, true, false, INIT_ZERO, SEGMENT_FC},
    {"fcw", DIM_4C, DIM_C, true, true, INIT_NORMAL, SEGMENT_FC},
    {"fcb", DIM_4C, DIM_1, true, false, INIT_ZERO, SEGMENT_FC},
    {"fcprojw", DIM_C, DIM_4C, true, true, INIT_RESIDUAL, SEGMENT_FCPROJ},
    {"fcprojb", DIM_C, DIM_1, true, false, INIT_ZERO, SEGMENT_FCPROJ},
    {"lnfw", DIM_C, DIM_1, false, false, INIT_ONE, NO_SEGMENT},
    {"lnfb", DIM_C, DIM_1, false, false, INIT_ZERO, NO_SEGMENT},
};

static inline size_t tensor_dim(const ModelConfig *m, TensorDim dim) {
    size_t C = (size_t)m->C;
    switch (dim) {
    case DIM_1:
        return 1;
    case DIM_C:
        return C;
    case DIM_3C:
        return 3 * C;
    case DIM_4C:
        return 4 * C;
    case DIM_Vp:
        return (size_t)m->Vp;
    case DIM_T:
        return (size_t)m->T;
    }
    return 0;
}

static inline size_t tensor_rows(const ModelConfig *m, int id) {
    return tensor_dim(m, tensor_table[id].rows);
}

static inline size_t tensor_cols(const ModelConfig *m, int id) {
    return tensor_dim(m, tensor_table[id].cols);
}

// Elements of one layer.
static inline size_t tensor_size(const ModelConfig *m, int id) {
    return tensor_rows(m, id) * tensor_cols(m, id);
}

static inline int tensor_layers(const ModelConfig *m, int id) {
    return tensor_table[id].per_layer ? m->L : 1;
}

// All parameters, padded rows of wte included.
static inline size_t model_parameters(const ModelConfig *m) {
    size_t sum = 0;
    for (int id = 0; id < TENSORS; id++) sum += tensor_size(m, id) * (size_t)tensor_layers(m, id);
    return sum;
}

// Elements in front of (tensor, layer) in a model file: tensors in order, layers side by side.
static inline size_t tensor_offset(const ModelConfig *m, int id, int layer) {
    size_t sum = tensor_size(m, id) * (size_t)layer;
    for (int i = 0; i < id; i++) sum += tensor_size(m, i) * (size_t)tensor_layers(m, i);
    return sum;
}

// Initial values of elements first .. first + n - 1 of (tensor, layer): a function of the seed and
// the place alone. Rows V..Vp-1 of wte are zero.
static inline void tensor_init(float *dst, size_t n, const ModelConfig *m, int id, int layer,
                               size_t first, uint64_t seed) {
    TensorInit init = tensor_table[id].init;
    size_t end = id == WTE ? (size_t)m->V * (size_t)m->C : tensor_size(m, id), random = 0;
    if (init == INIT_NORMAL || init == INIT_RESIDUAL) {
        float std = init == INIT_NORMAL ? 0.02f : (float)(0.02 / sqrt(2.0 * m->L));
        random = first >= end ? 0 : n < end - first ? n : end - first;
        rng_normal_fill(dst, random, seed, (uint32_t)(layer * TENSORS + id), first, std);
    }
    for (size_t i = random; i < n; i++) dst[i] = init == INIT_ONE ? 1.0f : 0.0f;
}

// ---- descriptors -------------------------------------------------------------------------------

enum { SIZES = 5 };
static const struct {
    const char *name;
    int most;
} model_sizes[SIZES] = {
    {"L", 1 << 16}, {"C", 1 << 24}, {"NH", 1 << 24}, {"T", 1 << 24}, {"V", 1 << 24}};

static inline void model_check(const ModelConfig *m, const char *where) {
    const int sizes[SIZES] = {m->L, m->C, m->NH, m->T, m->V ? m->V : 1};  // V may still be unknown
    for (int i = 0; i < SIZES; i++)
        if (sizes[i] < 1 || sizes[i] > model_sizes[i].most)
            die_all("%s: %s must be from 1 to %d, found %d", where, model_sizes[i].name,
                    model_sizes[i].most, sizes[i]);
    if (m->C % m->NH)
        die_all("%s: C must be a multiple of the number of heads NH, found C=%d NH=%d", where, m->C,
                m->NH);
}

// L=6,C=384,... in any order, as in "gpt2:L=6,C=384,NH=6,T=256".
static inline void model_parse_sizes(ModelConfig *m, const char *sizes, const char *text) {
    int *const fields[SIZES] = {&m->L, &m->C, &m->NH, &m->T, &m->V};
    for (const char *c = sizes; *c;) {
        size_t length = strcspn(c, "=,");
        int field = 0;
        while (field < SIZES && (strlen(model_sizes[field].name) != length ||
                                 strncmp(c, model_sizes[field].name, length)))
            field++;
        if (field == SIZES || c[length] != '=')
            die_all("--model %s: expected L=.. C=.. NH=.. T=.. V=.., found `%.*s`", text,
                    (int)strcspn(c, ","), c);
        char *end;
        long value = strtol(c + length + 1, &end, 10);
        if (end == c + length + 1 || (*end && *end != ',') || value < 1 ||
            value > model_sizes[field].most)
            die_all("--model %s: %s must be an integer from 1 to %d", text, model_sizes[field].name,
                    model_sizes[field].most);
        if (*fields[field]) die_all("--model %s: %s is given twice", text, model_sizes[field].name);
        *fields[field] = (int)value;
        c = *end ? end + 1 : end;
    }
    for (int field = 0; field < SIZES - 1; field++)
        if (!*fields[field]) die_all("--model %s: %s is missing", text, model_sizes[field].name);
}

// "gpt2:d6" .. "gpt2:d84" (also "d12"), "gpt3:c384" .. "gpt3:c12288", or sizes one by one. V stays
// 0 where the text does not give it (model_set_vocab).
static inline ModelConfig model_parse(const char *text) {
    // Radford et al. 2019: 12 to 48. The others are llm.c's.
    static const ModelConfig gpt2[] = {{1024, 0, 0, 6, 6, 384},    {1024, 0, 0, 12, 12, 768},
                                       {1024, 0, 0, 24, 16, 1024}, {1024, 0, 0, 36, 20, 1280},
                                       {1024, 0, 0, 48, 25, 1600}, {1024, 0, 0, 60, 30, 1920},
                                       {1024, 0, 0, 72, 30, 2880}, {1024, 0, 0, 84, 36, 3456}};
    // Brown et al. 2020, table 2.1; where its rows do not multiply out (C=2048, 5140), the nearest
    // that do. 384 is llm.c's.
    static const ModelConfig gpt3[] = {
        {2048, 0, 0, 6, 6, 384},    {2048, 0, 0, 12, 12, 768},  {2048, 0, 0, 24, 16, 1024},
        {2048, 0, 0, 24, 16, 1536}, {2048, 0, 0, 24, 16, 2048}, {2048, 0, 0, 32, 32, 2560},
        {2048, 0, 0, 32, 32, 4096}, {2048, 0, 0, 40, 40, 5120}, {2048, 0, 0, 96, 96, 12288}};
    ModelConfig m = {0, 0, 0, 0, 0, 0};
    char known[16];  // a whole descriptor, so that nothing may follow it
    const char *name = !strncmp(text, "gpt2:", 5) ? text + 5 : text;
    if (!strncmp(text, "gpt3:c", 6)) {
        for (size_t i = 0; i < sizeof gpt3 / sizeof gpt3[0]; i++) {
            snprintf(known, sizeof known, "gpt3:c%d", gpt3[i].C);
            if (!strcmp(text, known)) m = gpt3[i];
        }
        if (!m.C)
            die_all("--model %s: expected gpt3:c384, c768, c1024, c1536, c2048, c2560, c4096, "
                    "c5120, c12288, or gpt2:L=..,C=..,NH=..,T=..",
                    text);
    } else if (name[0] == 'd') {
        for (size_t i = 0; i < sizeof gpt2 / sizeof gpt2[0]; i++) {
            snprintf(known, sizeof known, "d%d", gpt2[i].L);
            if (!strcmp(name, known)) m = gpt2[i];
        }
        if (!m.C)
            die_all("--model %s: expected gpt2:d6, d12, d24, d36, d48, d60, d72, d84, or "
                    "gpt2:L=..,C=..,NH=..,T=..",
                    text);
    } else if (name != text) {
        model_parse_sizes(&m, name, text);
    } else {
        die_all("--model %s: expected gpt2:d12, gpt3:c768, gpt2:L=..,C=..,NH=..,T=.., a model.bin "
                "or the "
                "folder of a Hugging Face model",
                text);
    }
    if (m.V) model_set_vocab(&m, m.V);
    char where[256];
    snprintf(where, sizeof where, "--model %s", text);
    model_check(&m, where);
    return m;
}

// True if --model names a file rather than a descriptor: a path, a name that ends in .bin, or
// whatever else is there under that name. What reads as a descriptor is one, whatever is there.
static inline bool model_is_file(const char *text) {
    size_t n = strlen(text);
    if (!strncmp(text, "gpt2:", 5) || !strncmp(text, "gpt3:", 5)) return false;
    if (text[0] == 'd' && n > 1 && strspn(text + 1, "0123456789") == n - 1) return false;
    if (strchr(text, '/') || (n > 4 && !strcmp(text + n - 4, ".bin"))) return true;
    return access(text, F_OK) == 0;
}
