// lib/hf_gpt2.h: what Hugging Face's transformers calls the sizes (config.json) and tensors of a
// GPT-2, and which of its GPT-2s this program does not compute.
//
// Matrices of blocks are Conv1D there, stored (in, out): the transpose of ours. Names may begin
// with `transformer.`; wte.weight has V rows, without the padding of ours; lm_head.weight is the
// same matrix again.
#pragma once

#include "files.h"
#include "tensors.h"

#include <jansson.h>

// ---- tensors -----------------------------------------------------------------------------------

// Of a block: what follows `h.LAYER.`.
static const char *const hf_names[TENSORS] = {
    "wte.weight",         "wpe.weight",       "ln_1.weight",        "ln_1.bias",
    "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
    "ln_2.weight",        "ln_2.bias",        "mlp.c_fc.weight",    "mlp.c_fc.bias",
    "mlp.c_proj.weight",  "mlp.c_proj.bias",  "ln_f.weight",        "ln_f.bias",
};
#define HF_PREFIX "transformer."
#define HF_HEAD "lm_head.weight"
// Constants that older versions stored with the parameters of a block.
static const char *const hf_buffers[] = {"attn.bias", "attn.masked_bias"};

// Room for the longest name.
typedef struct {
    char text[64];
} HfName;

static inline HfName hf_name(int id, int layer) {
    HfName n;
    if (tensor_table[id].per_layer)
        snprintf(n.text, sizeof n.text, HF_PREFIX "h.%d.%s", layer, hf_names[id]);
    else
        snprintf(n.text, sizeof n.text, HF_PREFIX "%s", hf_names[id]);
    return n;
}

// Is it stored transposed?
static inline bool hf_transposed(int id) {
    return tensor_table[id].per_layer && tensor_table[id].cols != DIM_1;
}

// Shape of a tensor in a file; returns its dimensions.
static inline int hf_shape(const ModelConfig *m, int id, uint64_t shape[2]) {
    uint64_t rows = id == WTE ? (uint64_t)m->V : tensor_rows(m, id), cols = tensor_cols(m, id);
    shape[0] = hf_transposed(id) ? cols : rows;
    shape[1] = hf_transposed(id) ? rows : cols;
    return tensor_table[id].cols == DIM_1 ? 1 : 2;
}

typedef enum { HF_PARAMETER, HF_TIED_HEAD, HF_BUFFER, HF_UNKNOWN } HfKind;

// The number in `h.NUMBER.`, as decimals without leading zeros, and what follows; -1: none.
static inline int hf_layer(const char *name, const char **rest) {
    const char *digits = name + 2;
    size_t n = strncmp(name, "h.", 2) ? 0 : strspn(digits, "0123456789");
    if (n < 1 || n > 6 || (n > 1 && digits[0] == '0') || digits[n] != '.') return -1;
    *rest = digits + n + 1;
    return atoi(digits);
}

// What a name in a file stands for; a parameter has its id and layer.
static inline HfKind hf_find(const ModelConfig *m, const char *name, int *id, int *layer) {
    if (!strcmp(name, HF_HEAD)) return HF_TIED_HEAD;
    if (!strncmp(name, HF_PREFIX, strlen(HF_PREFIX))) name += strlen(HF_PREFIX);
    const char *rest = name;
    int number = hf_layer(name, &rest);
    if (number >= m->L) return HF_UNKNOWN;
    *layer = number < 0 ? 0 : number;
    for (*id = 0; *id < TENSORS; ++*id)
        if (tensor_table[*id].per_layer == (number >= 0) && !strcmp(hf_names[*id], rest))
            return HF_PARAMETER;
    for (size_t i = 0; i < sizeof hf_buffers / sizeof hf_buffers[0]; i++)
        if (number >= 0 && !strcmp(hf_buffers[i], rest)) return HF_BUFFER;
    return HF_UNKNOWN;
}

// ---- config.json -------------------------------------------------------------------------------

// What has to be as this program computes it; where the file says nothing, transformers' default
// is that.
static const struct {
    const char *name;
    bool value;
} hf_flags[] = {
    {"scale_attn_weights", true},       {"scale_attn_by_inverse_layer_idx", false},
    {"reorder_and_upcast_attn", false}, {"add_cross_attention", false},
    {"tie_word_embeddings", true},
};
enum { HF_FLAGS = sizeof hf_flags / sizeof hf_flags[0] };
#define HF_EPSILON 1e-5  // of LayerNorm

// The value as text, for a message.
static inline bool hf_refuse(const char *name, const char *expected, const json_t *found,
                             Failure *failure) {
    char *text = found ? json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    fails(failure, "expected \"%s\": %s, found %.100s", name, expected, text ? text : "none");
    free(text);
    return false;
}

static inline bool hf_read_size(const json_t *config, const char *name, int most, int *size,
                                Failure *failure) {
    const json_t *value = json_object_get(config, name);
    json_int_t n = json_integer_value(value);
    char expected[64];
    snprintf(expected, sizeof expected, "an integer from 1 to %d", most);
    if (!json_is_integer(value) || n < 1 || n > most)
        return hf_refuse(name, expected, value, failure);
    *size = (int)n;
    return true;
}

// The same GELU has two names.
static inline bool hf_check_activation(const json_t *config, Failure *failure) {
    const json_t *value = json_object_get(config, "activation_function");
    const char *name = json_string_value(value);
    return !value || (name && (!strcmp(name, "gelu_new") || !strcmp(name, "gelu_pytorch_tanh"))) ||
           hf_refuse("activation_function", "\"gelu_new\"", value, failure);
}

static inline bool hf_check_flags(const json_t *config, Failure *failure) {
    for (int i = 0; i < HF_FLAGS; i++) {
        const json_t *value = json_object_get(config, hf_flags[i].name);
        if (value && (!json_is_boolean(value) || json_is_true(value) != hf_flags[i].value))
            return hf_refuse(hf_flags[i].name, hf_flags[i].value ? "true" : "false", value,
                             failure);
    }
    return true;
}

static inline bool hf_check_rest(const json_t *config, const ModelConfig *m, Failure *failure) {
    const json_t *type = json_object_get(config, "model_type");
    const json_t *epsilon = json_object_get(config, "layer_norm_epsilon");
    const json_t *inner = json_object_get(config, "n_inner");
    if (!json_is_string(type) || strcmp(json_string_value(type), "gpt2"))
        return hf_refuse("model_type", "\"gpt2\"", type, failure);
    if (epsilon && json_number_value(epsilon) != HF_EPSILON)
        return hf_refuse("layer_norm_epsilon", "1e-05", epsilon, failure);
    if (inner && !json_is_null(inner) && json_integer_value(inner) != (json_int_t)4 * m->C)
        return hf_refuse("n_inner", "4 n_embd or null", inner, failure);
    return hf_check_activation(config, failure) && hf_check_flags(config, failure);
}

// The model that a config.json describes; what this program would compute otherwise is refused.
static inline bool hf_config_parse(ModelConfig *m, const char *text, size_t bytes,
                                   Failure *failure) {
    json_error_t error;
    json_t *config = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!config) return fails(failure, "line %d: %s", error.line, error.text);
    *m = (ModelConfig){};
    const char *const names[SIZES] = {"n_layer", "n_embd", "n_head", "n_positions", "vocab_size"};
    int *const fields[SIZES] = {&m->L, &m->C, &m->NH, &m->T, &m->V};
    bool ok = json_is_object(config) || fails(failure, "expected an object {...}");
    for (int i = 0; ok && i < SIZES; i++)
        ok = hf_read_size(config, names[i], model_sizes[i].most, fields[i], failure);
    if (ok && m->C % m->NH)
        ok = fails(failure, "expected n_embd to be a multiple of n_head, found %d and %d", m->C,
                   m->NH);
    ok = ok && hf_check_rest(config, m, failure);
    if (ok) model_set_vocab(m, m->V);
    json_decref(config);
    return ok;
}

// The config.json of a model, to be freed by the caller. end_of_text: its token, -1: unknown.
static inline char *hf_config_text(const ModelConfig *m, int end_of_text) {
    json_t *end = end_of_text < 0 ? json_null() : json_integer(end_of_text);
    json_t *config = json_pack(
        "{s:s, s:[s], s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:n, s:f, s:f, s:f, s:f, s:f, s:O,"
        " s:o}",
        "model_type", "gpt2", "architectures", "GPT2LMHeadModel", "activation_function", "gelu_new",
        "torch_dtype", "float32", "n_layer", m->L, "n_embd", m->C, "n_head", m->NH, "n_positions",
        m->T, "n_ctx", m->T, "vocab_size", m->V, "n_inner", "layer_norm_epsilon", HF_EPSILON,
        "initializer_range", 0.02, "attn_pdrop", 0.0, "embd_pdrop", 0.0, "resid_pdrop", 0.0,
        "bos_token_id", end, "eos_token_id", end);
    for (int i = 0; config && i < HF_FLAGS; i++)
        json_object_set_new(config, hf_flags[i].name, json_boolean(hf_flags[i].value));
    char *text = config ? json_dumps(config, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : NULL;
    if (!text) die("out of memory for config.json");
    json_decref(config);
    return text;
}
