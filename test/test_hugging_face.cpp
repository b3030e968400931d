// test/test_hugging_face.cpp: models of Hugging Face's transformers in and out: the logits are
// those that transformers computes (test/reference/hugging_face/, made by
// dev/make_hf_reference.py), an exported model comes back bit by bit on any number of ranks, and
// whatever is wrong with a folder ends in one line.
#include "../checkpoint/hugging_face.h"

#include <math.h>
#include <omp.h>

#include "death.h"
#include "run.h"

#define REFERENCE "test/reference/hugging_face"
extern const GptCode gpt_fp32_generic;

// ---- the model in this process -----------------------------------------------------------------

// One rank that holds the model of a folder.
static GptConfig config_of(const char *path) {
    GptConfig c = {};
    c.model = hf_model(path);
    c.B = 1, c.T = c.model.T, c.logits_rows = 3, c.unit = UNIT_LAYER, c.writes = true;
    FsdpConfig *f = &c.fsdp;
    f->world = f->K = f->micro_steps = 1;
    f->gather_slots = f->grad_slots = 2, f->prefetch = 1;
    f->ordered = true;
    return c;
}

static Gpt *load_folder(const char *path, GptConfig *c) {
    *c = config_of(path);
    Gpt *g = gpt_fp32_generic.create(c);
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    gpt_fp32_generic.join(g, id);
    gpt_fp32_generic.start(g);
    Model m = {&gpt_fp32_generic, g, c};
    hf_load(&m, path);
    return g;
}

// expected.txt: T tokens, then V logits behind each.
static void expect_logits(const char *path) {
    GptConfig c;
    Gpt *g = load_folder(path, &c);
    char name[256];
    snprintf(name, sizeof name, "%s/expected.txt", path);
    FILE *f = fopen_check(name, "r");
    int tokens[8], T = c.model.T, V = c.model.V;
    float logits[64];
    for (int t = 0; t < T; t++) assert_int_equal(fscanf(f, "%d", &tokens[t]), 1);
    for (int t = 0; t < T; t++) {
        if (t == 0)
            gpt_fp32_generic.begin_text(g, tokens, 1, logits);
        else
            gpt_fp32_generic.next_token(g, tokens[t], logits);
        for (int v = 0; v < V; v++) {
            double expected;
            assert_int_equal(fscanf(f, "%lf", &expected), 1);
            if (!(fabs(logits[v] - expected) <= 1e-5))
                fail_msg("%s, token %d, logit %d: expected %.9g, found %.9g", path, t, v, expected,
                         logits[v]);
        }
    }
    fclose(f);
    gpt_fp32_generic.finish(g);
}

static void logits_are_those_of_transformers(void **) {
    expect_logits(REFERENCE "/fp32");
}

static void halves_several_files_and_names_without_prefix_are_read(void **) {
    expect_logits(REFERENCE "/fp16");
    expect_logits(REFERENCE "/bf16");
}

static void every_half_is_the_number_it_stands_for(void **) {
    for (unsigned bits = 0; bits < 1 << 16; bits++) {
        int exponent = (int)(bits >> 10 & 31);
        double fraction = bits & 1023, sign = bits >> 15 ? -1 : 1;
        double expected = exponent == 0   ? sign * ldexp(fraction, -24)
                          : exponent < 31 ? sign * ldexp(1024 + fraction, exponent - 25)
                          : fraction == 0 ? sign * INFINITY
                                          : NAN;
        float found = fp16_to_float((uint16_t)bits);
        if (isnan(expected) ? !isnan(found)
                            : found != expected || signbit(found) != signbit(expected))
            fail_msg("%#x: expected %g, found %g", bits, expected, found);
    }
}

// ---- variants of the reference -----------------------------------------------------------------

// What differs from REFERENCE/fp32. An added tensor gets its offsets by two %llu, and a copy of the
// data's last bytes; those are wte.weight's.
struct Variant {
    const char *config = NULL, *config_becomes = NULL;
    const char *header = NULL, *header_becomes = NULL;
    const char *added = NULL;
    size_t added_bytes = 0;
    size_t element = 0;  // of the data; 0: none
    float becomes = 0;
};

// Replaces the first `from` in a text that has room for it.
static void replace(char *text, const char *from, const char *to) {
    char *at = strstr(text, from);
    if (!at) fail_msg("no `%s` in %s", from, text);
    memmove(at + strlen(to), at + strlen(from), strlen(at + strlen(from)) + 1);
    memcpy(at, to, strlen(to));
}

static void write_bytes(const char *path, const void *bytes, size_t n, const char *mode) {
    FILE *f = fopen_check(path, mode);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose_check(f, path);
}

static void write_safetensors(const char *path, const char *header, const void *data, size_t n) {
    size_t length = strlen(header);
    unsigned char first[SAFETENSORS_LENGTH] = {(unsigned char)length, (unsigned char)(length >> 8)};
    write_bytes(path, first, sizeof first, "w");
    write_bytes(path, header, length, "a");
    write_bytes(path, data, n, "a");
}

// A folder with the variant; the same each time.
static const char *make_variant(const Variant *v) {
    static char path[128], name[256], header[8192], config[4096];
    snprintf(path, sizeof path, "%s/variant", folder);
    mkdir(path, 0777);
    read_text(REFERENCE "/fp32/config.json", config, sizeof config);
    if (v->config) replace(config, v->config, v->config_becomes);
    snprintf(name, sizeof name, "%s/config.json", path);
    write_bytes(name, config, strlen(config), "w");

    size_t bytes;
    char *whole = read_all(REFERENCE "/fp32/model.safetensors", 1 << 20, &bytes);
    size_t length = safe_length((unsigned char *)whole), size = bytes - 8 - length;
    char *data = (char *)malloc_check(size + v->added_bytes);
    snprintf(header, sizeof header, "%.*s", (int)length, whole + 8);
    memcpy(data, whole + 8 + length, size);
    memcpy(data + size, data + size - v->added_bytes, v->added_bytes);
    if (v->element) memcpy(data + v->element * sizeof(float), &v->becomes, sizeof(float));
    if (v->header) replace(header, v->header, v->header_becomes);
    if (v->added) {
        char added[512];
        snprintf(added, sizeof added, v->added, (unsigned long long)size,
                 (unsigned long long)(size + v->added_bytes));
        replace(header, "}}", added);
    }
    snprintf(name, sizeof name, "%s/model.safetensors", path);
    write_safetensors(name, header, data, size + v->added_bytes);
    free(data);
    free(whole);
    return path;
}

static void run_load(const void *path) {
    GptConfig c;
    load_folder((const char *)path, &c);
}

static void expect_refused(const Variant *v, const char *expected) {
    expect_death(run_load, make_variant(v), expected);
}

// ---- what is accepted --------------------------------------------------------------------------

#define HEAD                                                                                       \
    "},\"lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[11,4],\"data_offsets\":[%llu,%llu]}}"
enum { WTE_BYTES = 11 * 4 * 4 };

static void a_head_that_is_wte_again_and_old_buffers_change_nothing(void **) {
    static const Variant variants[] = {
        {.added = HEAD, .added_bytes = WTE_BYTES},
        {.header = "transformer.wte.weight", .header_becomes = "lm_head.weight"},
        {.added = "},\"transformer.h.1.attn.bias\":{\"dtype\":\"BOOL\",\"shape\":[1,1,5,5],"
                  "\"data_offsets\":[%llu,%llu]}}",
         .added_bytes = 25},
        {.added = "},\"h.0.attn.masked_bias\":{\"dtype\":\"F32\",\"shape\":[],"
                  "\"data_offsets\":[%llu,%llu]}}",
         .added_bytes = 4},
        {.config = "gelu_new", .config_becomes = "gelu_pytorch_tanh"},
        {.config = "\"n_inner\": null", .config_becomes = "\"n_inner\": 16"},
        {.config = "\"layer_norm_epsilon\": 1e-05,", .config_becomes = ""},
    };
    for (const Variant &v : variants) {
        const char *path = make_variant(&v);
        Outcome o = run("cp " REFERENCE "/fp32/expected.txt %s", path);
        assert_int_equal(o.status, 0);
        expect_logits(path);
    }
}

// ---- there and back ----------------------------------------------------------------------------

// All ways to cut the model give the same files, and the parameters come back bit by bit.
static void an_exported_model_is_the_same_on_any_number_of_ranks_and_comes_back(void **) {
    static const char *const models[] = {"small/model.bin", "tiny/model.bin"};
    static const char *const cuts[] = {"--ranks 2", "--ranks 3 --unit matrix", "--ranks 5",
                                       "--ranks 4 --shard hybrid:2", "--ranks 2 --shard none"};
    for (const char *model : models) {
        Outcome o = run(PROGRAM " --model test/reference/%s --steps 0 --export-model %s/model.bin "
                                "--export-hf %s/one",
                        model, folder, folder);
        if (o.status) fail_msg("%s: expected an export, found: %s", model, o.err);
        for (const char *cut : cuts) {
            o = run("rm -rf %s/again; " PROGRAM
                    " --model %s/one --steps 0 %s --export-hf %s/again --export-model "
                    "%s/again.bin && cmp %s/one/model.safetensors "
                    "%s/again/model.safetensors && cmp %s/one/config.json "
                    "%s/again/config.json && cmp %s/model.bin %s/again.bin",
                    folder, folder, cut, folder, folder, folder, folder, folder, folder, folder,
                    folder);
            if (o.status)
                fail_msg("%s %s: expected the same, found: %s%s", model, cut, o.out, o.err);
        }
    }
    Outcome o = run("ls %s/again", folder);
    assert_string_equal(o.out, "config.json\nmodel.safetensors\n");
}

// Lengths in whole 8 bytes, the tensors without gaps, the names and shapes of transformers.
static void an_exported_file_is_as_the_format_has_it(void **) {
    Outcome o = run(PROGRAM " --model " REFERENCE "/bf16 --steps 0 --export-hf %s/spec", folder);
    assert_int_equal(o.status, 0);
    char path[128];
    snprintf(path, sizeof path, "%s/spec/model.safetensors", folder);
    SafeHeader found, expected;
    Failure failure;
    uint64_t data;
    int fd = open_check(REFERENCE "/fp32/model.safetensors", O_RDONLY);
    assert_true(safetensors_read(&expected, fd, "", &data, &failure));
    close(fd);
    fd = open_check(path, O_RDONLY);
    assert_true(safetensors_read(&found, fd, path, &data, &failure));
    close(fd);
    assert_int_equal(data % 8, 0);
    assert_int_equal(found.count, expected.count);
    json_t *format = json_object_get(json_object_get(found.json, "__metadata__"), "format");
    assert_string_equal(json_string_value(format), "pt");
    for (size_t i = 0; i < expected.count; i++) {
        const SafeTensor *x = &expected.tensors[i];
        json_t *y = json_object_get(found.json, x->name);
        if (!y || !json_equal(json_object_get(json_object_get(expected.json, x->name), "shape"),
                              json_object_get(y, "shape")))
            fail_msg("expected %s with the shape that transformers writes", x->name);
    }
    safetensors_free(&found);
    safetensors_free(&expected);
}

// Piece k of a matrix that is cut at these elements.
typedef struct {
    size_t pieces, first[4];
} Cut;

static GptPiece piece_of(const Cut *cut, size_t k, size_t n) {
    size_t first = cut->first[k], end = k + 1 < cut->pieces ? cut->first[k + 1] : n;
    GptPiece p = {FCW, 0, first, 0, end - first};
    return p;
}

// Element i of the file is the number i + 1; it takes several blocks.
static void pieces_of_any_cut_are_transposed(void **) {
    static const Cut cuts[] = {
        {1, {0}}, {2, {0, 600000}}, {3, {0, 32, 1200000}}, {4, {0, 704, 1376, 1900000}}};
    ModelConfig m = {8, 9, 128, 1, 1, 700};
    HfFile file;
    path_print(file.path, "%s/matrix", folder);
    size_t rows = tensor_rows(&m, FCW), C = tensor_cols(&m, FCW), n = rows * C;
    assert_true(n > HF_BLOCK);
    float *ours = (float *)malloc_check(2 * n * sizeof(float)), *found = ours + n;
    for (size_t i = 0; i < n; i++) ours[i] = (float)((i % C) * rows + i / C + 1);
    for (const Cut &cut : cuts) {
        file.fd = open_check(file.path, O_RDWR | O_CREAT | O_TRUNC);
        HfTensor tensor = {&file, 0, SAFE_F32};
        for (size_t k = 0; k < cut.pieces; k++) {
            GptPiece p = piece_of(&cut, k, n);
            HfTurn t = hf_turn(&m, &p);
            hf_write_turned(&tensor, &t, ours + p.first);
        }
        read_exact(file.fd, found, n * sizeof(float), 0, file.path);
        for (size_t i = 0; i < n; i++)
            if (found[i] != (float)(i + 1))
                fail_msg("%zu pieces: expected %zu, found %.9g", cut.pieces, i + 1, found[i]);
        for (size_t k = 0; k < cut.pieces; k++) {
            GptPiece p = piece_of(&cut, k, n);
            hf_read_turned(&tensor, hf_turn(&m, &p), found);
            assert_memory_equal(found, ours + p.first, p.n * sizeof(float));
        }
        close(file.fd);
    }
    free(ours);
}

// ---- what is refused ---------------------------------------------------------------------------

static void headers_that_are_wrong_are_refused(void **) {
    static const struct {
        const char *text;
        uint64_t data;
        const char *expected;
    } cases[] = {
        {"", 0, "begins with `{`"},
        {" {}", 0, "begins with `{`"},
        {"[]", 0, "begins with `{`"},
        {"{", 0, "no JSON"},
        {"{} x", 0, "no JSON"},
        {"{\"a\":1,\"a\":2}", 0, "duplicate"},
        {"{\"a\":1}", 0, "expected dtype, shape and data_offsets of a"},
        {"{\"a\":{}}", 0, "expected a dtype of a such as F32, found none"},
        {"{\"a\":{\"dtype\":\"F33\"}}", 0, "such as F32, found F33"},
        {"{\"a\":{\"dtype\":7}}", 0, "such as F32, found none"},
        {"{\"a\":{\"dtype\":\"F32\"}}", 0, "expected a shape of a"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1]}}", 0, "at most 8 dimensions"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1]}}", 0, "expected sizes from 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0]}}", 0, "expected sizes from 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999]}}", 0, "no JSON"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "expected data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4,
         "expected data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4,
         "expected data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4,
         "expected data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
         "span 4 bytes, not those of its shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0,
         "not those of its shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387905],\"data_offsets\":[0,4]}}", 4,
         "not those of its shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 3, "is it complete?"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 5, "is it complete?"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8,
         "a begins at byte 4 of the data, expected to follow the one that ends at byte 0"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,5]}}",
         5, "b begins at byte 3 of the data, inside the tensor that ends at byte 4"},
    };
    for (auto &c : cases) {
        SafeHeader h;
        Failure failure = {""};
        if (safetensors_parse(&h, c.text, strlen(c.text), c.data, &failure) ||
            !strstr(failure.text, c.expected))
            fail_msg("%s: expected `%s`, found `%s`", c.text, c.expected, failure.text);
    }
    SafeHeader h;
    Failure failure;
    const char *fine = "{\"__metadata__\":{\"a\":\"b\"},\"z\":{\"dtype\":\"F16\",\"shape\":[],"
                       "\"data_offsets\":[0,2]},\"e\":{\"dtype\":\"F64\",\"shape\":[0,3],"
                       "\"data_offsets\":[0,0]}}  ";
    assert_true(safetensors_parse(&h, fine, strlen(fine), 2, &failure));
    assert_int_equal(h.count, 2);
    safetensors_free(&h);
}

static bool reads(const char *path, Failure *failure) {
    SafeHeader h;
    uint64_t data;
    int fd = open_check(path, O_RDONLY);
    bool ok = safetensors_read(&h, fd, path, &data, failure);
    close(fd);
    if (ok) safetensors_free(&h);
    return ok;
}

static void a_file_cut_anywhere_or_with_a_length_that_cannot_be_is_refused(void **) {
    size_t bytes;
    char *whole = read_all(REFERENCE "/fp32/model.safetensors", 1 << 20, &bytes);
    char path[128];
    snprintf(path, sizeof path, "%s/cut.safetensors", folder);
    write_bytes(path, whole, bytes, "w");
    Failure failure;
    assert_true(reads(path, &failure));
    for (size_t n = bytes; n-- > 0;) {
        assert_int_equal(truncate(path, (off_t)n), 0);
        if (reads(path, &failure)) fail_msg("accepted when cut to %zu bytes", n);
    }
    static const uint64_t lengths[] = {0, 1, 1 << 20, 1ull << 40, UINT64_MAX, UINT64_MAX - 7};
    for (uint64_t length : lengths) {
        memcpy(whole, &length, sizeof length);
        write_bytes(path, whole, bytes, "w");
        if (reads(path, &failure))
            fail_msg("accepted with a header of %llu", (unsigned long long)length);
    }
    uint64_t huge = SAFETENSORS_MOST + 1;
    memcpy(whole, &huge, sizeof huge);
    write_bytes(path, whole, bytes, "w");
    assert_int_equal(truncate(path, (off_t)huge * 2), 0);
    assert_false(reads(path, &failure));
    assert_non_null(strstr(failure.text, "at most 100000000 bytes"));
    free(whole);
}

// Every byte of the header, turned to others: read or refused, in either case without harm.
static void a_damaged_header_does_no_harm(void **) {
    size_t bytes;
    char *whole = read_all(REFERENCE "/fp32/model.safetensors", 1 << 20, &bytes);
    size_t length = safe_length((unsigned char *)whole), accepted = 0;
    for (size_t i = 0; i < length; i++)
        for (int bit = 1; bit < 256; bit *= 2) {
            SafeHeader h;
            Failure failure;
            whole[8 + i] ^= (char)bit;
            if (safetensors_parse(&h, whole + 8, length, bytes - 8 - length, &failure)) {
                accepted++;  // say, another letter in a name
                safetensors_free(&h);
            }
            whole[8 + i] ^= (char)bit;
        }
    assert_true(accepted > 0 && accepted < length * 8);
    free(whole);
}

static void models_that_are_computed_otherwise_are_refused(void **) {
    static const char *const cases[][3] = {
        {"\"model_type\": \"gpt2\"", "\"model_type\": \"gpt_neo\"",
         "expected \"model_type\": \"gpt2\", found \"gpt_neo\""},
        {"gelu_new", "relu", "expected \"activation_function\": \"gelu_new\", found \"relu\""},
        {"\"gelu_new\"", "7", "found 7"},
        {"1e-05", "1e-06", "expected \"layer_norm_epsilon\": 1e-05"},
        {"\"n_inner\": null", "\"n_inner\": 15",
         "expected \"n_inner\": 4 n_embd or null, found 15"},
        {"\"scale_attn_weights\": true", "\"scale_attn_weights\": false",
         "expected \"scale_attn_weights\": true, found false"},
        {"inverse_layer_idx\": false", "inverse_layer_idx\": true", "inverse_layer_idx\": false"},
        {"upcast_attn\": false", "upcast_attn\": true", "\"reorder_and_upcast_attn\": false"},
        {"cross_attention\": false", "cross_attention\": 1", "\"add_cross_attention\": false"},
        {"embeddings\": true", "embeddings\": false", "\"tie_word_embeddings\": true"},
        {"\"n_layer\": 2", "\"n_layer\": 0", "\"n_layer\": an integer from 1 to 65536, found 0"},
        {"\"n_layer\": 2", "\"n_layer\": 2.5", "found 2.5"},
        {"\"n_layer\": 2,", "", "\"n_layer\": an integer from 1 to 65536, found none"},
        {"\"n_head\": 2", "\"n_head\": 3", "n_embd to be a multiple of n_head, found 4 and 3"},
        {"\"vocab_size\": 11", "\"vocab_size\": 1e9", "\"vocab_size\": an integer from 1 to"},
        {"\"n_layer\": 2", "\"n_layer\": 2, \"n_layer\": 2", "duplicate"},
        {"{", "[", "config.json: line"},
    };
    for (auto &c : cases) {
        Variant v = {.config = c[0], .config_becomes = c[1]};
        expect_refused(&v, c[2]);
    }
}

static void tensors_that_are_not_the_models_are_refused(void **) {
    static const struct {
        Variant v;
        const char *expected;
    } cases[] = {
        {{.header = "transformer.ln_f.bias", .header_becomes = "transformer.ln_f.bia2"},
         "transformer.ln_f.bia2 is no tensor of a GPT-2 of 2 layers"},
        {{.config = "\"n_layer\": 2", .config_becomes = "\"n_layer\": 1"},
         "transformer.h.1.attn.c_attn.bias is no tensor of a GPT-2 of 1 layers"},
        {{.config = "\"n_layer\": 2", .config_becomes = "\"n_layer\": 3"},
         "expected the tensor transformer.h.2.ln_1.weight, found none"},
        {{.header = "transformer.h.1.ln_1.bias", .header_becomes = "transformer.h.01.ln_1.bias"},
         "transformer.h.01.ln_1.bias is no tensor"},
        {{.header = "transformer.wte.weight", .header_becomes = "h.0.attn.bias"},
         "expected the tensor transformer.wte.weight, found none"},
        {{.header = "transformer.ln_f.bias", .header_becomes = "ln_f.weight"},
         "ln_f.weight is there a second time"},
        {{.header = "\"shape\":[4,12]", .header_becomes = "\"shape\":[12,4]"},
         "expected transformer.h.0.attn.c_attn.weight of shape [4,12], as config.json has it, "
         "found "
         "[12,4]"},
        {{.header = "\"shape\":[12]", .header_becomes = "\"shape\":[12,1]"},
         "of shape [12], as config.json has it, found [12,1]"},
        {{.header = "\"shape\":[12]", .header_becomes = "\"shape\":[1,1,1,1,1,1,1,12]"},
         "found [1,1,1,1,1,1,1,12]"},
        {{.config = "\"vocab_size\": 11", .config_becomes = "\"vocab_size\": 12"},
         "expected transformer.wte.weight of shape [12,4]"},
        {{.header = "F32", .header_becomes = "I32"},
         "expected transformer.h.0.attn.c_attn.bias as F32, F16 or BF16, found I32"},
        {{.element = 448 / 4 + 2 * 16 + 5, .becomes = NAN},
         "expected finite weights, found nan at transformer.h.0.mlp.c_fc.weight[2,5]"},
        {{.element = 1984 / 4 + 4 * 4 + 1, .becomes = INFINITY},
         "expected finite weights, found inf at transformer.wpe.weight[4,1]"},
        {{.element = 1952 / 4 + 3, .becomes = -INFINITY},
         "expected finite weights, found -inf at transformer.ln_f.bias[3]"},
        {{.added = HEAD, .added_bytes = WTE_BYTES, .element = 2064 / 4 + 10 * 4 + 3, .becomes = 7},
         "expected lm_head.weight to be wte.weight, found"},
    };
    for (auto &c : cases) expect_refused(&c.v, c.expected);
}

static void folders_that_are_no_model_are_refused(void **) {
    char path[128];
    run("mkdir -p %s/none %s/weights %s/lost; cp " REFERENCE "/fp32/config.json %s/weights; "
        "cp " REFERENCE "/fp16/config.json " REFERENCE "/fp16/model.safetensors.index.json %s/lost",
        folder, folder, folder, folder, folder);
    snprintf(path, sizeof path, "%s/none", folder);
    expect_death(run_load, path, "expected a Hugging Face GPT-2, found no config.json");
    snprintf(path, sizeof path, "%s/weights", folder);
    expect_death(run_load, path,
                 "expected model.safetensors or model.safetensors.index.json, found neither");
    snprintf(path, sizeof path, "%s/lost", folder);
    expect_death(run_load, path, ".safetensors: No such file or directory");
}

static void indexes_that_are_wrong_are_refused(void **) {
    static const char *const cases[][2] = {
        {"{", "index.json:1: "},
        {"{}", "expected a weight_map"},
        {"{\"weight_map\": {}}", "expected a weight_map"},
        {"{\"weight_map\": {\"wte.weight\": 3}}", "expected the name of a file for wte.weight"},
        {"{\"weight_map\": {\"wte.weight\": \"../x\"}}", "expected the name of a file for"},
        {"{\"weight_map\": {\"wte.weight\": \"\"}}", "expected the name of a file for"},
        {"{\"weight_map\": {\"a\": \"a.safetensors\", \"b\": \"b.safetensors\"}}",
         "is there a second time"},
    };
    char path[128], name[192];
    run("mkdir -p %s/index; cp " REFERENCE
        "/fp32/config.json %s/index; for x in a b; do cp " REFERENCE
        "/fp32/model.safetensors %s/index/$x.safetensors; done",
        folder, folder, folder);
    snprintf(path, sizeof path, "%s/index", folder);
    snprintf(name, sizeof name, "%s/model.safetensors.index.json", path);
    for (auto &c : cases) {
        write_bytes(name, c[0], strlen(c[0]), "w");
        expect_death(run_load, path, c[1]);
    }
}

static void a_model_bin_with_a_number_that_is_none_is_refused(void **) {
    ModelFile f = model_file_open("test/reference/tiny/model.bin");
    uint64_t at = model_file_offset(&f, FCW, 1, 5 * 12 + 7);
    model_file_close(&f);
    char path[128], command[512];
    snprintf(path, sizeof path, "%s/nan.bin", folder);
    run("cp test/reference/tiny/model.bin %s", path);
    float nan = NAN;
    int fd = open_check(path, O_RDWR);
    write_exact(fd, &nan, sizeof nan, at, path);
    close(fd);
    snprintf(command, sizeof command, PROGRAM " --ranks 2 --steps 0 --model %s", path);
    expect_refusal(command, "expected finite weights, found nan in fcw of layer 1 at [5,7]");
}

static void run_export_of_a_nan(const void *to_folder) {
    GptConfig c;
    Gpt *g = load_folder(REFERENCE "/fp32", &c);
    const Model m = {&gpt_fp32_generic, g, &c};
    const float nan = NAN;
    int count;
    const GptPiece *p = gpt_fp32_generic.pieces(g, &count);
    while (p->id != FCB) p++;
    gpt_fp32_generic.write(g, GPT_PARAMETERS, &nan, p->at + 3, 1);
    if (to_folder)
        hf_save(&m, folder, -1);
    else
        model_file_save(&m, GPT_PARAMETERS, "broken.bin", false);
}

static void a_model_with_a_weight_that_is_no_number_is_not_written(void **) {
    static Outcome before, o;
    before = run("ls -a %s", folder);
    expect_death(run_export_of_a_nan, folder,
                 "expected finite weights, found nan in fcb of layer ");
    expect_death(run_export_of_a_nan, NULL,
                 "broken.bin: expected finite weights, found nan in fcb");
    o = run("ls -a %s", folder);
    assert_string_equal(o.out, before.out);
    assert_int_equal(access("broken.bin", F_OK), -1);
}

// All weights are numbers, and the loss is none: the learning rate has no part in it.
static void a_model_that_overflows_is_not_blamed_on_the_learning_rate(void **) {
    ModelFile f = model_file_open("test/reference/tiny/model.bin");
    uint64_t at = model_file_offset(&f, LNFW, 0, 0);
    model_file_close(&f);
    char path[128], logs[128], log[4096];
    snprintf(path, sizeof path, "%s/huge.bin", folder);
    run("cp test/reference/tiny/model.bin %s", path);
    float huge[12];
    for (float &x : huge) x = 3e38f;
    int fd = open_check(path, O_RDWR);
    write_exact(fd, huge, sizeof huge, at, path);
    close(fd);
    for (int steps = 5; steps <= 20; steps += 15) {  // ten in a row end the run
        Outcome o = run(PROGRAM " --train test/reference/tiny/train_*.bin --model %s --steps %d "
                                "--out %s/huge%d",
                        path, steps, folder, steps);
        const char *expected = "before any update; look at the weights of --model";
        if (!o.status || !strstr(o.err, expected) || strstr(o.err, "--lr"))
            fail_msg("expected `%s`, found: %s", expected, o.err);
        snprintf(logs, sizeof logs, "%s/huge%d/main.log", folder, steps);
        read_text(logs, log, sizeof log);
        if (lines_of(log) != (steps < 10 ? steps : 10))
            fail_msg("expected each step in the log, found: %s", log);
    }
}

static void a_checkpoint_is_exported_without_training(void **) {
    Outcome o = run(PROGRAM " --ranks 2 --model gpt2:L=2,C=16,NH=2,T=16 --batch 1 --steps 2 "
                            "--train test/reference/small/train.txt --out %s/run -n 2",
                    folder);
    if (o.status) fail_msg("expected a checkpoint, found: %s", o.err);
    o = run(PROGRAM " --ranks 2 --resume %s/run/checkpoints/step_00000002 --export-hf %s/run/hf "
                    "--steps 0 && " PROGRAM " --model %s/run/hf --steps 0 --export-model "
                    "%s/run/hf.bin && cmp %s/run/hf.bin %s/run/checkpoints/step_00000002/model.bin",
            folder, folder, folder, folder, folder, folder);
    if (o.status) fail_msg("expected the checkpoint's parameters, found: %s%s", o.out, o.err);
}

// Found on one rank alone or by all alike: one line, and no rank hangs.
static void ranks_end_together_on_a_bad_model(void **) {
    char command[512];
    Variant nan = {.element = 2240 / 4 - 1, .becomes = NAN};
    snprintf(command, sizeof command, PROGRAM " --ranks 3 --steps 0 --model %s",
             make_variant(&nan));
    expect_refusal(command, "found nan at transformer.wte.weight[10,3]");
    Variant shape = {.config = "\"n_embd\": 4", .config_becomes = "\"n_embd\": 8"};
    snprintf(command, sizeof command, PROGRAM " --ranks 3 --steps 0 --model %s",
             make_variant(&shape));
    expect_refusal(command, "as config.json has it");
    expect_refusal(PROGRAM " --model " REFERENCE "/fp32 --steps 0 --export-hf /proc/nowhere",
                   "/proc/nowhere");
    expect_refusal(PROGRAM " --model " REFERENCE "/fp32 --steps 0 --export-hf README.md",
                   "--export-hf README.md");
}

int main(void) {
    omp_set_num_threads(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_transformers),
        cmocka_unit_test(halves_several_files_and_names_without_prefix_are_read),
        cmocka_unit_test(every_half_is_the_number_it_stands_for),
        cmocka_unit_test(a_head_that_is_wte_again_and_old_buffers_change_nothing),
        cmocka_unit_test(an_exported_model_is_the_same_on_any_number_of_ranks_and_comes_back),
        cmocka_unit_test(an_exported_file_is_as_the_format_has_it),
        cmocka_unit_test(pieces_of_any_cut_are_transposed),
        cmocka_unit_test(headers_that_are_wrong_are_refused),
        cmocka_unit_test(a_file_cut_anywhere_or_with_a_length_that_cannot_be_is_refused),
        cmocka_unit_test(a_damaged_header_does_no_harm),
        cmocka_unit_test(models_that_are_computed_otherwise_are_refused),
        cmocka_unit_test(tensors_that_are_not_the_models_are_refused),
        cmocka_unit_test(folders_that_are_no_model_are_refused),
        cmocka_unit_test(indexes_that_are_wrong_are_refused),
        cmocka_unit_test(a_model_bin_with_a_number_that_is_none_is_refused),
        cmocka_unit_test(a_model_with_a_weight_that_is_no_number_is_not_written),
        cmocka_unit_test(a_model_that_overflows_is_not_blamed_on_the_learning_rate),
        cmocka_unit_test(a_checkpoint_is_exported_without_training),
        cmocka_unit_test(ranks_end_together_on_a_bad_model),
    };
    return run_in_folder(tests);
}
