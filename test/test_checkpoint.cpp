// test/test_checkpoint.cpp: the checkpoint room by itself: the index, which checkpoints there are
// and which may go, damaged files, checksums of parts, outliers. Whole runs are test_resume.cpp's.
#pragma GCC diagnostic ignored "-Wunused-function"  // ranks.h: nothing is started here

#include <float.h>

#include "../checkpoint/load.h"
#include "../checkpoint/save.h"
#include "death.h"

extern const GptCode gpt_fp32_generic;

// ---- checksums ---------------------------------------------------------------------------------

static void a_checksum_is_the_sum_of_its_parts_however_they_are_cut(void **) {
    float x[1000];
    for (int i = 0; i < 1000; i++) x[i] = (float)i * 0.37f;
    uint64_t whole = checksum_part(x, 1000, sizeof *x, 0);
    for (size_t cut = 32; cut < 1000; cut += 32) {
        uint64_t parts = checksum_part(x, cut, sizeof *x, 0) +
                         checksum_part(x + cut, 1000 - cut, sizeof *x, cut);
        if (parts != whole) fail_msg("cut at %zu: expected %lx, found %lx", cut, whole, parts);
    }
}

static void a_checksum_sees_flips_and_exchanged_grains(void **) {
    float x[128];
    for (int i = 0; i < 128; i++) x[i] = (float)(i % 7);
    uint64_t before = checksum_part(x, 128, sizeof *x, 0);
    for (size_t bit = 0; bit < 8 * sizeof x; bit += 5) {
        ((unsigned char *)x)[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_true(checksum_part(x, 128, sizeof *x, 0) != before);
        ((unsigned char *)x)[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    float grain[32];
    memcpy(grain, x, sizeof grain);
    memcpy(x, x + 32, sizeof grain);
    memcpy(x + 32, grain, sizeof grain);
    assert_true(checksum_part(x, 128, sizeof *x, 0) != before);
}

// ---- outliers ----------------------------------------------------------------------------------

static void an_outlier_is_measured_against_the_window_and_does_not_enter_it(void **) {
    Outliers o = {};
    for (int i = 0; i < OUTLIERS_WINDOW; i++) {
        assert_true(isnan(outliers_score(&o, 100)));
        assert_false(outliers_add(&o, i % 2 ? 1 : 3, 3));  // mean 2, deviation 1
    }
    assert_float_equal(outliers_score(&o, 5), 3, 1e-12);
    assert_false(outliers_add(&o, 4.9, 3));
    Outliers before = o;
    assert_true(outliers_add(&o, 50, 3));
    assert_memory_equal(o.values, before.values, sizeof o.values);
    assert_true(outliers_add(&o, 50, 3));
    assert_memory_equal(o.values, before.values, sizeof o.values);
    assert_true(outliers_add(&o, 50, 3));  // the third in a row
    assert_memory_not_equal(o.values, before.values, sizeof o.values);
    assert_false(outliers_add(&o, 1000, 0));
}

// ---- the index ---------------------------------------------------------------------------------

static CheckpointIndex example(void) {
    CheckpointIndex x = {};
    x.model = {8, 0, 0, 2, 3, 12};
    model_set_vocab(&x.model, 37);
    x.T = 7;
    x.state.step = 12, x.state.samples = ((uint64_t)1 << 53) + 1, x.state.tokens = 99;
    x.state.skips = 4, x.state.skips_in_a_row = 1;
    for (int i = 0; i < 5; i++) outliers_add(&x.state.losses, 1.0 / (i + 3), 0);
    x.bytes[0] = 4, x.bytes[1] = 8, x.bytes[2] = 2;
    x.sums = (uint64_t *)calloc(checkpoint_sums(&x.model), sizeof(uint64_t));
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++)
        for (int id = 0; id < TENSORS; id++)
            for (int layer = 0; layer < tensor_layers(&x.model, id); layer++)
                x.sums[checkpoint_sum(&x.model, a, id, layer)] =
                    0xfedcba9876543210u + (uint64_t)(100 * a + 10 * id + layer);
    x.options = json_pack("{s:s, s:s}", "lr", "0.0006", "train", "gr\xc3\xbc\xc3\x9f.txt");
    x.data = json_pack("{s:s}", "kind", "text");
    return x;
}

static void an_index_is_read_back_as_it_was_written(void **) {
    CheckpointIndex x = example(), y;
    char *text = checkpoint_index_write(&x);
    Failure failure = {""};
    if (!checkpoint_index_read(&y, text, strlen(text), &failure)) fail_msg("%s", failure.text);
    assert_memory_equal(&x.state, &y.state, sizeof x.state);
    assert_memory_equal(&x.model, &y.model, sizeof x.model);
    assert_memory_equal(x.bytes, y.bytes, sizeof x.bytes);
    assert_memory_equal(x.sums, y.sums, checkpoint_sums(&x.model) * sizeof(uint64_t));
    assert_true(json_equal(x.options, y.options) && json_equal(x.data, y.data));
    char *again = checkpoint_index_write(&y);
    assert_string_equal(text, again);
    free(text), free(again);
    checkpoint_index_free(&x), checkpoint_index_free(&y);
}

// Each bit of each byte: refused, or the same index (in the spaces between the fields).
static void a_flipped_bit_of_an_index_is_refused_or_harmless(void **) {
    CheckpointIndex x = example(), y;
    char *text = checkpoint_index_write(&x);
    size_t n = strlen(text), refused = 0;
    for (size_t i = 0; i < 8 * n; i++) {
        Failure failure = {""};
        text[i / 8] = (char)(text[i / 8] ^ (1 << i % 8));
        if (!checkpoint_index_read(&y, text, n, &failure)) {
            refused++;
            assert_true(failure.text[0] && !strchr(failure.text, '\n'));
        } else {
            char *again = checkpoint_index_write(&y);
            text[i / 8] = (char)(text[i / 8] ^ (1 << i % 8));
            if (strcmp(again, text)) fail_msg("bit %zu of byte %zu is accepted", i % 8, i / 8);
            text[i / 8] = (char)(text[i / 8] ^ (1 << i % 8));
            free(again);
            checkpoint_index_free(&y);
        }
        text[i / 8] = (char)(text[i / 8] ^ (1 << i % 8));
    }
    assert_true(refused > 7 * n);
    for (size_t length = 0; length < n; length++) {
        Failure failure = {""};
        if (checkpoint_index_read(&y, text, length, &failure))
            fail_msg("cut after %zu of %zu bytes it is accepted", length, n);
    }
    free(text);
    checkpoint_index_free(&x);
}

static void other_formats_and_newer_versions_are_named(void **) {
    static const char *const cases[][2] = {
        {"{\"format\": \"torch\", \"version\": 1}",
         "expected the format `fsdp.c checkpoint`, found torch"},
        {"{}", "expected the format"},
        {"[1, 2]", "expected the format"},
        {"{\"format\": \"fsdp.c checkpoint\", \"version\": 2}", "version 2 is newer than"},
        {"{\"format\": \"fsdp.c checkpoint\", \"version\": 1}", "damaged"},
        {"{\"format\": \"fsdp.c checkpoint\", \"format\": \"x\"}", "duplicate"},
        {"", "line 1"},
        {"PK\x03\x04", "line 1"}};
    for (auto &c : cases) {
        CheckpointIndex x;
        Failure failure = {""};
        assert_false(checkpoint_index_read(&x, c[0], strlen(c[0]), &failure));
        if (!strstr(failure.text, c[1]))
            fail_msg("%s: expected `%s`, found %s", c[0], c[1], failure.text);
    }
}

// ---- the folder --------------------------------------------------------------------------------

static void make_checkpoint(const char *out, const char *name, bool complete) {
    char path[PATH_BYTES];
    path_print(path, "%s/checkpoints", out);
    mkdir(out, 0777), mkdir(path, 0777);
    path_print(path, "%s/checkpoints/%s", out, name);
    assert_int_equal(mkdir(path, 0777), 0);
    path_print(path, "%s/checkpoints/%s/%s", out, name, complete ? "index.json" : "model.bin");
    fclose_check(fopen_check(path, "w"), path);
}

static void expect_steps(const char *out, int count, const long *steps) {
    CheckpointList list = checkpoint_list(out);
    assert_int_equal(list.count, count);
    for (int i = 0; i < count; i++) assert_int_equal(list.steps[i], steps[i]);
    free(list.steps);
}

static void only_complete_checkpoints_count_and_old_ones_go(void **) {
    char out[PATH_BYTES];
    path_print(out, "%s/prune", folder);
    expect_steps(out, 0, NULL);
    static const char *const complete[] = {"step_00000020", "step_00000005", "step_00000010",
                                           "step_00000015", "step_1234567890"};
    for (const char *name : complete) make_checkpoint(out, name, true);
    make_checkpoint(out, "step_00000030", false);
    make_checkpoint(out, "step_00000040.tmp", true);
    make_checkpoint(out, "step_00000050.1", true);
    make_checkpoint(out, "step_7", true);
    static const long all[] = {5, 10, 15, 20, 1234567890}, left[] = {10, 20, 1234567890};
    expect_steps(out, 5, all);
    checkpoint_prune(out, 0, 0);
    expect_steps(out, 5, all);
    checkpoint_prune(out, 2, 10);
    expect_steps(out, 3, left);
    checkpoint_remove_unfinished(out);
    char path[PATH_BYTES];
    path_print(path, "%s/checkpoints/step_00000040.tmp", out);
    assert_int_not_equal(access(path, F_OK), 0);
}

static void a_run_that_goes_back_leaves_later_checkpoints_under_other_names(void **) {
    char out[PATH_BYTES], path[PATH_BYTES];
    path_print(out, "%s/aside", folder);
    static const char *const names[] = {"step_00000005", "step_00000010", "step_00000010.1"};
    for (const char *name : names) make_checkpoint(out, name, true);
    checkpoint_set_aside(out, 5);
    static const long left[] = {5};
    expect_steps(out, 1, left);
    path_print(path, "%s/checkpoints/step_00000010.2/index.json", out);
    assert_int_equal(access(path, F_OK), 0);
}

// ---- damaged files -----------------------------------------------------------------------------

// A model of a few KB and its checkpoint.
static struct {
    GptConfig config;
    Model model;
    CheckpointIndex index;
    char path[PATH_BYTES];
    int words;  // a file for what is said on stderr; all descriptors above it may be closed
} small;

// The same numbers for the same seed.
static void fill_small_model(unsigned seed) {
    const GptCode *code = small.model.code;
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++)
        for (size_t i = 0; i < code->shard_elements(small.model.gpt); i++) {
            float x = (float)rand_r(&seed) / (float)RAND_MAX;
            code->write(small.model.gpt, checkpoint_arrays[a].array, &x, i, 1);
        }
}

// Of what is in its tensors; the padding of the arrays is in no file.
static uint64_t small_model_checksum(void) {
    int count;
    const GptPiece *pieces = small.model.code->pieces(small.model.gpt, &count);
    uint64_t sum = 0;
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++)
        for (const GptPiece *p = pieces; p < pieces + count; p++)
            for (size_t i = 0; i < p->n; i++) {
                float x;
                small.model.code->read(small.model.gpt, checkpoint_arrays[a].array, &x, p->at + i,
                                       1);
                sum = 31 * sum + checksum_text((const char *)&x, sizeof x);
            }
    return sum;
}

static void save_small_model(void) {
    small.words = memfd_create("words", 0);
    GptConfig *c = &small.config;
    c->model = {2, 0, 0, 1, 1, 4};
    model_set_vocab(&c->model, 37);
    c->B = 1, c->T = 2, c->logits_rows = 2, c->unit = UNIT_LAYER;
    c->fsdp.world = c->fsdp.K = c->fsdp.micro_steps = 1;
    c->fsdp.gather_slots = c->fsdp.grad_slots = 2, c->fsdp.prefetch = 1, c->fsdp.ordered = true;
    small.model = {&gpt_fp32_generic, gpt_fp32_generic.create(c), c};
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    gpt_fp32_generic.join(small.model.gpt, id);
    gpt_fp32_generic.start(small.model.gpt);
    fill_small_model(1);
    CheckpointIndex x = example();
    x.model = c->model, x.T = c->T;
    for (uint64_t &bytes : x.bytes) bytes = sizeof(float);
    static Saver saver;
    static char out[PATH_BYTES];
    path_print(out, "%s/damaged", folder);
    mkdir(out, 0777);
    saver_plan(&saver, &small.model, false, out, 0, 0);
    saver_begin(&saver, &x);
    assert_false(saver_is_writing(&saver));
    assert_true(saver_advance(&saver, true));
    path_print(small.path, "%s", saver.path);
    small.index = checkpoint_open(small.path);
}

static jmp_buf refusal;

static void leave_refused_load(void) {
    longjmp(refusal, 1);
}

static void load_or_refuse(void) {
    Ranks ranks = {};
    ranks.world = 1;
    die_hook = leave_refused_load;
    if (setjmp(refusal) == 0) checkpoint_load(&small.model, &ranks, &small.index, small.path);
    die_hook = NULL;
}

// Loads the checkpoint in this process: 0, or the number of lines with which it is refused.
static int load_small_model(const char *expected) {
    const int before = dup(STDERR_FILENO);
    dup2(small.words, STDERR_FILENO);
    load_or_refuse();
    dup2(before, STDERR_FILENO);
    close_range((unsigned)before, ~0u, 0);  // with what a refused load has open
    char text[4096] = "";
    assert_true(pread(small.words, text, sizeof text - 1, 0) >= 0);
    assert_true(ftruncate(small.words, 0) == 0 && lseek(small.words, 0, SEEK_SET) == 0);
    int lines = 0;
    for (const char *c = text; (c = strchr(c, '\n')); c++) lines++;
    if (lines && !strstr(text, expected)) fail_msg("expected `%s`, found: %s", expected, text);
    return lines;
}

static void every_flipped_byte_of_a_checkpoint_is_refused(void **) {
    save_small_model();
    const uint64_t right = small_model_checksum();
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
        char file[PATH_BYTES];
        path_print(file, "%s/%s", small.path, checkpoint_arrays[a].file);
        int fd = open_check(file, O_RDWR);
        for (off_t at = 0; at < (off_t)checkpoint_file_bytes(&small.index, a); at++) {
            unsigned char byte, wrong;
            assert_int_equal(pread(fd, &byte, 1, at), 1);
            wrong = (unsigned char)(byte ^ 1 << at % 8);
            assert_int_equal(pwrite(fd, &wrong, 1, at), 1);
            if (load_small_model(checkpoint_arrays[a].file) != 1)
                fail_msg("%s: a flipped bit of byte %ld is accepted", file, (long)at);
            assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        }
        close(fd);
    }
    fill_small_model(2);
    assert_int_equal(load_small_model(""), 0);
    assert_true(small_model_checksum() == right);
}

static void a_checkpoint_cut_at_any_length_is_refused(void **) {
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
        char file[PATH_BYTES];
        size_t bytes;
        path_print(file, "%s/%s", small.path, checkpoint_arrays[a].file);
        char *whole = read_all(file, 1 << 20, &bytes);
        int fd = open_check(file, O_RDWR);
        for (size_t length = bytes; length-- > 0;) {
            assert_int_equal(ftruncate(fd, (off_t)length), 0);
            if (load_small_model("is it complete?") != 1)
                fail_msg("%s: cut after %zu of %zu bytes it is accepted", file, length, bytes);
        }
        assert_int_equal(pwrite(fd, whole, bytes, 0), (ssize_t)bytes);
        close(fd);
        free(whole);
    }
    assert_int_equal(load_small_model(""), 0);
}

static void the_first_element_that_is_not_finite_is_found(void **) {
    enum { N = 3000 };
    const float odd[] = {NAN, -NAN, INFINITY, -INFINITY};
    float x[N];
    for (int i = 0; i < N; i++) x[i] = i % 3 == 0 ? FLT_MAX : i % 3 == 1 ? -FLT_MAX : 1e-45f;
    assert_int_equal(finite_elements(x, N), N);
    for (int at = 0; at < N; at += 7) {
        float before = x[at];
        x[at] = odd[at % 4];
        assert_int_equal(finite_elements(x, N), at);
        assert_int_equal(finite_elements(x, (size_t)at), at);
        x[at] = before;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_checksum_is_the_sum_of_its_parts_however_they_are_cut),
        cmocka_unit_test(a_checksum_sees_flips_and_exchanged_grains),
        cmocka_unit_test(an_outlier_is_measured_against_the_window_and_does_not_enter_it),
        cmocka_unit_test(an_index_is_read_back_as_it_was_written),
        cmocka_unit_test(a_flipped_bit_of_an_index_is_refused_or_harmless),
        cmocka_unit_test(other_formats_and_newer_versions_are_named),
        cmocka_unit_test(only_complete_checkpoints_count_and_old_ones_go),
        cmocka_unit_test(a_run_that_goes_back_leaves_later_checkpoints_under_other_names),
        cmocka_unit_test(every_flipped_byte_of_a_checkpoint_is_refused),
        cmocka_unit_test(a_checkpoint_cut_at_any_length_is_refused),
        cmocka_unit_test(the_first_element_that_is_not_finite_is_found),
    };
    return run_in_folder(tests);
}
