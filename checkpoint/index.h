// checkpoint/index.h: what a checkpoint says of itself. A checkpoint is a folder:
//
//   model.bin      parameters, a model.bin of llm.c (fp32): --model and llm.c read it as it is
//   moment_m.bin   AdamW's m, and
//   moment_v.bin   AdamW's v: the same tensors in the same order, without a header, as they are
//                  kept
//   index.json     step, model, position in the data, effective options, and of every tensor its
//                  name, layer, shape, first element and the checksum of its elements in each file
//
// Neither the files nor the index depend on how the state was sharded. One file for all ranks, and
// not one for each, because any number of ranks then reads its own slices with no detour, parts of
// it are useful to others, and 512 ranks do not leave 1,500 files a checkpoint.
// index.json ends with a checksum of itself; it is written last.
#pragma once

#include "lib/checksum.h"
#include "lib/files.h"
#include "lib/model_file.h"
#include "lib/outliers.h"
#include "parameters.h"

#include <inttypes.h>
#include <jansson.h>

#define CHECKPOINT_FORMAT "fsdp.c checkpoint"
enum { CHECKPOINT_VERSION = 1, CHECKPOINT_ARRAYS = 3 };

static const struct {
    GptArray array;
    const char *name, *file;
    uint64_t offset;  // of the first element in the file
} checkpoint_arrays[CHECKPOINT_ARRAYS] = {
    {GPT_PARAMETERS, "parameters", "model.bin", MODEL_HEADER_BYTES},
    {GPT_MOMENT_M, "m", "moment_m.bin", 0},
    {GPT_MOMENT_V, "v", "moment_v.bin", 0},
};

// Where a run stands, besides what its ranks hold. The same on all ranks.
typedef struct {
    long step;                  // optimizer steps done
    uint64_t samples;           // of the training data, in the global order, used up
    uint64_t tokens;            // trained on
    int skips, skips_in_a_row;  // updates left out
    Outliers losses, norms;     // for --skip-loss and --skip-norm
} TrainState;

typedef struct {
    TrainState state;
    ModelConfig model;
    int T;                            // tokens of a sample
    size_t bytes[CHECKPOINT_ARRAYS];  // of an element
    uint64_t *sums;                   // (CHECKPOINT_ARRAYS, L, TENSORS), see checkpoint_sum
    json_t *options;                  // name: value, as a config file has them
    json_t *data;                     // of the training data: kind, files, tokens, ...; or null
    uint64_t checksum;                // of the index, once it has been read
} CheckpointIndex;

// Where the checksum of a tensor stands.
static inline size_t checkpoint_sums(const ModelConfig *m) {
    return (size_t)CHECKPOINT_ARRAYS * (size_t)m->L * TENSORS;
}

static inline size_t checkpoint_sum(const ModelConfig *m, int array, int id, int layer) {
    return ((size_t)array * (size_t)m->L + (size_t)layer) * TENSORS + (size_t)id;
}

static inline void checkpoint_index_free(CheckpointIndex *x) {
    free(x->sums);
    json_decref(x->options);
    json_decref(x->data);
    *x = (CheckpointIndex){};
}

static inline const char *checkpoint_dtype(size_t bytes) {
    return bytes == 8 ? "fp64" : bytes == 2 ? "bf16" : "fp32";
}

static inline uint64_t checkpoint_file_bytes(const CheckpointIndex *x, int array) {
    return checkpoint_arrays[array].offset + model_parameters(&x->model) * x->bytes[array];
}

// ---- to JSON -----------------------------------------------------------------------------------

static inline json_t *index_outliers(const Outliers *o) {
    json_t *values = json_array();
    for (int i = 0; i < o->count; i++) json_array_append_new(values, json_real(o->values[i]));
    return json_pack("{s:o, s:i, s:i}", "values", values, "next", o->next, "in_a_row", o->in_a_row);
}

static inline json_t *index_state(const CheckpointIndex *x) {
    const TrainState *s = &x->state;
    return json_pack("{s:I, s:i, s:I, s:i, s:i, s:o, s:o}", "samples", (json_int_t)s->samples,
                     "sample_tokens", x->T, "tokens", (json_int_t)s->tokens, "skipped", s->skips,
                     "skipped_in_a_row", s->skips_in_a_row, "losses", index_outliers(&s->losses),
                     "norms", index_outliers(&s->norms));
}

static inline json_t *index_tensors(const CheckpointIndex *x) {
    const ModelConfig *m = &x->model;
    json_t *all = json_array();
    for (int id = 0; id < TENSORS; id++)
        for (int layer = 0; layer < tensor_layers(m, id); layer++) {
            json_t *sums = json_array();
            for (int a = 0; a < CHECKPOINT_ARRAYS; a++)
                json_array_append_new(
                    sums, json_sprintf("%016" PRIx64, x->sums[checkpoint_sum(m, a, id, layer)]));
            json_array_append_new(
                all, json_pack("{s:s, s:i, s:[I, I], s:I, s:o}", "name", tensor_table[id].name,
                               "layer", layer, "shape", (json_int_t)tensor_rows(m, id),
                               (json_int_t)tensor_cols(m, id), "first",
                               (json_int_t)tensor_offset(m, id, layer), "checksums", sums));
        }
    return all;
}

static inline json_t *index_arrays(const CheckpointIndex *x) {
    json_t *all = json_array();
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++)
        json_array_append_new(
            all, json_pack("{s:s, s:s, s:s, s:I}", "name", checkpoint_arrays[a].name, "file",
                           checkpoint_arrays[a].file, "dtype", checkpoint_dtype(x->bytes[a]),
                           "offset", (json_int_t)checkpoint_arrays[a].offset));
    return all;
}

static inline char *index_text(const json_t *root) {
    char *text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    if (!text) die("out of memory for the index of a checkpoint");
    return text;
}

static inline json_t *index_checksum(const json_t *root) {
    char *text = index_text(root);
    json_t *sum = json_sprintf("%016" PRIx64, checksum_text(text, strlen(text)));
    free(text);
    return sum;
}

// The whole file, to be freed by the caller.
static inline char *checkpoint_index_write(const CheckpointIndex *x) {
    const ModelConfig *m = &x->model;
    json_t *root =
        json_pack("{s:s, s:i, s:I, s:{s:i, s:i, s:i, s:i, s:i}, s:o, s:O, s:O, s:o, s:o}", "format",
                  CHECKPOINT_FORMAT, "version", CHECKPOINT_VERSION, "step",
                  (json_int_t)x->state.step, "model", "L", m->L, "C", m->C, "NH", m->NH, "T", m->T,
                  "V", m->V, "state", index_state(x), "options", x->options, "data", x->data,
                  "arrays", index_arrays(x), "tensors", index_tensors(x));
    if (!root) die("out of memory for the index of a checkpoint");
    json_object_set_new(root, "checksum", index_checksum(root));
    char *text = index_text(root);
    json_decref(root);
    return text;
}

// ---- from JSON: whatever is wrong is one line --------------------------------------------------

static inline json_int_t index_integer(const json_t *object, const char *name, json_int_t min,
                                       json_int_t max, Failure *failure) {
    const json_t *value = json_object_get(object, name);
    json_int_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < min || n > max)
        fails(failure, "expected an integer `%s` from %lld to %lld", name, (long long)min,
              (long long)max);
    return n;
}

static inline void index_read_outliers(const json_t *object, Outliers *o, Failure *failure) {
    const json_t *values = json_object_get(object, "values");
    o->count = (int)json_array_size(values);
    if (!json_is_array(values) || o->count > OUTLIERS_WINDOW) {
        fails(failure, "expected `values`, an array of at most %d numbers", OUTLIERS_WINDOW);
        o->count = 0;
    }
    for (int i = 0; i < o->count; i++)
        o->values[i] = json_number_value(json_array_get(values, (size_t)i));
    o->next = (int)index_integer(object, "next", 0, OUTLIERS_WINDOW - 1, failure);
    o->in_a_row = (int)index_integer(object, "in_a_row", 0, 1 << 30, failure);
}

static inline void index_read_state(CheckpointIndex *x, const json_t *root, Failure *failure) {
    const json_int_t most = (json_int_t)1 << 62;
    const json_t *state = json_object_get(root, "state");
    TrainState *s = &x->state;
    s->step = (long)index_integer(root, "step", 0, 1 << 30, failure);
    s->samples = (uint64_t)index_integer(state, "samples", 0, most, failure);
    s->tokens = (uint64_t)index_integer(state, "tokens", 0, most, failure);
    s->skips = (int)index_integer(state, "skipped", 0, 1 << 30, failure);
    s->skips_in_a_row = (int)index_integer(state, "skipped_in_a_row", 0, 1 << 30, failure);
    x->T = (int)index_integer(state, "sample_tokens", 1, 1 << 24, failure);
    index_read_outliers(json_object_get(state, "losses"), &s->losses, failure);
    index_read_outliers(json_object_get(state, "norms"), &s->norms, failure);
}

static inline void index_read_model(CheckpointIndex *x, const json_t *root, Failure *failure) {
    const json_t *model = json_object_get(root, "model");
    int *const fields[SIZES] = {&x->model.L, &x->model.C, &x->model.NH, &x->model.T, &x->model.V};
    for (int i = 0; i < SIZES; i++)
        *fields[i] =
            (int)index_integer(model, model_sizes[i].name, 1, model_sizes[i].most, failure);
    model_set_vocab(&x->model, x->model.V);
}

static inline void index_read_arrays(CheckpointIndex *x, const json_t *root, Failure *failure) {
    const json_t *arrays = json_object_get(root, "arrays");
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
        const json_t *array = json_array_get(arrays, (size_t)a);
        const char *dtype = json_string_value(json_object_get(array, "dtype"));
        for (size_t bytes = 2; bytes <= 8; bytes *= 2)
            if (dtype && !strcmp(dtype, checkpoint_dtype(bytes))) x->bytes[a] = bytes;
        if (!x->bytes[a])
            fails(failure, "expected the dtype of %s to be fp32, bf16 or fp64, found %s",
                  checkpoint_arrays[a].name, dtype ? dtype : "none");
    }
}

static inline void index_read_sums(CheckpointIndex *x, const json_t *root, Failure *failure) {
    const json_t *tensors = json_object_get(root, "tensors");
    size_t at = 0;
    x->sums = (uint64_t *)calloc(checkpoint_sums(&x->model), sizeof(uint64_t));
    if (!x->sums) die("out of memory for the checksums of a checkpoint");
    for (int id = 0; id < TENSORS; id++)
        for (int layer = 0; layer < tensor_layers(&x->model, id); layer++, at++)
            for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
                const json_t *sums = json_object_get(json_array_get(tensors, at), "checksums");
                const char *text = json_string_value(json_array_get(sums, (size_t)a));
                uint64_t *sum = &x->sums[checkpoint_sum(&x->model, a, id, layer)];
                if (!text || sscanf(text, "%16" SCNx64, sum) != 1) {
                    fails(failure, "expected a checksum of %s, layer %d", tensor_table[id].name,
                          layer);
                    return;
                }
            }
}

// The index's own checksum, taken out of it.
static inline bool index_is_whole(json_t *root) {
    json_t *found = json_incref(json_object_get(root, "checksum"));
    json_object_del(root, "checksum");
    json_t *expected = index_checksum(root);
    bool whole = json_equal(found, expected) == 1;
    json_decref(found);
    json_decref(expected);
    return whole;
}

static inline bool index_check_format(json_t *root, Failure *failure) {
    const char *format = json_string_value(json_object_get(root, "format"));
    if (!format || strcmp(format, CHECKPOINT_FORMAT))
        return fails(failure, "expected the format `%s`, found %s", CHECKPOINT_FORMAT,
                     format ? format : "none");
    json_int_t version = json_integer_value(json_object_get(root, "version"));
    if (version > CHECKPOINT_VERSION)
        return fails(failure, "version %lld is newer than this program's %d; use a newer train_gpt",
                     (long long)version, CHECKPOINT_VERSION);
    if (version != CHECKPOINT_VERSION)
        return fails(failure, "expected version %d, found %lld", CHECKPOINT_VERSION,
                     (long long)version);
    return index_is_whole(root) || fails(failure, "its checksum does not match: it is damaged");
}

// Reads what checkpoint_index_write has written; bytes of text, which need not end in 0.
static inline bool checkpoint_index_read(CheckpointIndex *x, const char *text, size_t bytes,
                                         Failure *failure) {
    *x = (CheckpointIndex){};
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root) return fails(failure, "line %d: %s", error.line, error.text);
    Failure found = {""};
    x->checksum = checksum_text(text, bytes);
    if (index_check_format(root, &found)) {
        index_read_state(x, root, &found);
        index_read_model(x, root, &found);
        index_read_arrays(x, root, &found);
        if (!found.text[0]) index_read_sums(x, root, &found);
        x->options = json_incref(json_object_get(root, "options"));
        x->data = json_incref(json_object_get(root, "data"));
        if (!json_is_object(x->options)) fails(&found, "expected an object `options`");
        if (!json_is_object(x->data) && !json_is_null(x->data))
            fails(&found, "expected an object `data`, or null");
    }
    json_decref(root);
    if (!found.text[0]) return true;
    *failure = found;
    checkpoint_index_free(x);
    return false;
}
