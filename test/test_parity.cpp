// test/test_parity.cpp: the program against PyTorch (test/reference/, made by
// dev/make_reference.py): losses, norms and validation of 20 steps, every tensor's gradient of the
// first step, parameters at the end.
#include "../checkpoint/parameters.h"
#include "common.h"

#include <math.h>
#include <omp.h>

extern const GptCode gpt_fp32_generic;

#define PROGRAM "./train_gpt"

// Runs the program on one of the reference folders.
static void train(const char *which, const char *options, const char *out) {
    char command[1024];
    snprintf(command, sizeof command,
             PROGRAM " --config test/reference/%s/options.cfg --out %s/%s %s >%s/stdout 2>&1",
             which, folder, out, options, folder);
    if (system(command) != 0) fail_msg("failed: %s (see %s/stdout)", command, folder);
}

// Every line of main.log: step, tel or trl, norm.
static void compare_logs(const char *which, const char *precision, const char *out,
                         double tolerance) {
    char path[256], expected[256], found[256];
    snprintf(path, sizeof path, "test/reference/%s/main_%s.log", which, precision);
    FILE *f = fopen_check(path, "r");
    snprintf(path, sizeof path, "%s/%s/main.log", folder, out);
    FILE *g = fopen_check(path, "r");
    int lines = 0;
    while (fgets(expected, sizeof expected, f)) {
        if (!fgets(found, sizeof found, g)) fail_msg("%s ends; expected %s", path, expected);
        int step = -1, step2 = -2;
        char kind[8], kind2[8];
        double x = 0, x2 = NAN, lr, norm = 0, norm2 = 0;
        int n = sscanf(expected, "s:%d %3s:%lf lr:%lf norm:%lf", &step, kind, &x, &lr, &norm);
        int n2 = sscanf(found, "s:%d %3s:%lf lr:%lf norm:%lf", &step2, kind2, &x2, &lr, &norm2);
        if (n != n2 || step != step2 || strcmp(kind, kind2) ||
            !(fabs(x - x2) <= tolerance * fabs(x)) ||
            !(fabs(norm - norm2) <= 3 * tolerance * fabs(norm)))
            fail_msg("%s %s %s: expected %sfound %s", which, precision, out, expected, found);
        lines++;
    }
    assert_int_equal(lines, 22);
    fclose(f);
    fclose(g);
}

static void losses_and_norms_of_20_steps_are_pytorchs_in_fp32(void **) {
    train("tiny", "", "tiny");
    compare_logs("tiny", "fp32", "tiny", 1e-6);
    train("small", "", "small");
    compare_logs("small", "fp32", "small", 1e-6);
}

static void losses_and_norms_of_20_steps_are_pytorchs_in_bf16(void **) {
    train("tiny", "--precision bf16", "tiny16");
    compare_logs("tiny", "bf16", "tiny16", 2e-3);
    train("small", "--precision bf16", "small16");
    compare_logs("small", "bf16", "small16", 2e-3);
}

static void losses_are_pytorchs_on_sharded_ranks(void **) {
    train("tiny", "--ranks 2", "tiny2");
    compare_logs("tiny", "fp32", "tiny2", 1e-6);
    train("tiny", "--ranks 4 --unit matrix", "tiny4");
    compare_logs("tiny", "fp32", "tiny4", 1e-6);
    train("small", "--ranks 2 --recompute layer", "small2");
    compare_logs("small", "fp32", "small2", 1e-6);
}

// Reads fp32 values at an offset of a file.
static float *read_floats(const char *path, uint64_t offset, size_t n) {
    float *data = (float *)malloc_check(n * sizeof(float));
    int fd = open_check(path, O_RDONLY);
    read_exact(fd, data, n * sizeof(float), offset, path);
    close(fd);
    return data;
}

// Softmax does not see the biases of the keys: their gradient is zero but for rounding.
static bool is_key_bias(const ModelConfig *m, int id, size_t i) {
    return id == QKVB && i % (3 * (size_t)m->C) / (size_t)m->C == 1;
}

static void compare_tensors(const ModelConfig *m, const float *x, const float *y, double scale,
                            double tolerance, const char *what) {
    for (int id = 0; id < TENSORS; id++) {
        double difference = 0, size = 0;
        size_t from = tensor_offset(m, id, 0),
               n = tensor_size(m, id) * (size_t)tensor_layers(m, id);
        for (size_t i = 0; i < n; i++) {
            if (is_key_bias(m, id, i)) continue;
            double a = scale * x[from + i], b = y[from + i];
            difference += (a - b) * (a - b);
            size += b * b;
        }
        if (!(sqrt(difference) <= tolerance * sqrt(size)))
            fail_msg("%s of %s: relative difference %g, expected at most %g", what,
                     tensor_table[id].name, sqrt(difference / size), tolerance);
    }
}

static void check_gradients(const char *which) {
    char path[128], out[128];
    snprintf(path, sizeof path, "test/reference/%s/model.bin", which);
    ModelFile model = model_file_open(path);
    model_file_close(&model);
    char debug[128];
    snprintf(debug, sizeof debug, "test/reference/%s/debug_state.bin", which);
    int header[4], fd = open_check(debug, O_RDONLY);
    read_exact(fd, header, sizeof header, 0, debug);
    GptConfig c = {};
    c.model = model.m, c.B = header[2], c.T = header[3], c.logits_rows = 3;
    c.unit = UNIT_LAYER;
    FsdpConfig *f = &c.fsdp;
    f->world = f->K = f->micro_steps = 1;
    f->gather_slots = f->grad_slots = 2, f->prefetch = 1;
    f->ordered = true;
    size_t BT = (size_t)c.B * (size_t)c.T, n = model_parameters(&c.model);
    Gpt *g = gpt_fp32_generic.create(&c);
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    gpt_fp32_generic.join(g, id);
    gpt_fp32_generic.start(g);
    Model m = {&gpt_fp32_generic, g, &c};
    parameters_load(&m, path);
    read_exact(fd, gpt_fp32_generic.inputs(g, 0), 2 * BT * sizeof(int), 1024, debug);
    close(fd);
    gpt_fp32_generic.micro_step(g, 0);
    snprintf(out, sizeof out, "%s/gradients.bin", folder);
    model_file_save(&m, GPT_GRADIENTS, out, false);
    gpt_fp32_generic.finish(g);
    uint64_t at = 1024 + 2 * BT * sizeof(int) + (BT * (size_t)c.model.V + 1) * sizeof(float);
    float *found = read_floats(out, MODEL_HEADER_BYTES, n), *expected = read_floats(debug, at, n);
    compare_tensors(&c.model, found, expected, 1.0 / (double)BT, 1e-5, which);
    free(found);
    free(expected);
}

static void every_tensors_gradient_is_pytorchs(void **) {
    check_gradients("tiny");
    check_gradients("small");
}

static void parameters_after_20_steps_are_pytorchs(void **) {
    char options[256], path[128];
    snprintf(path, sizeof path, "%s/final.bin", folder);
    snprintf(options, sizeof options, "--ranks 4 --export-model %s", path);
    train("tiny", options, "final");
    ModelFile f = model_file_open("test/reference/tiny/final.bin");
    size_t n = model_parameters(&f.m);
    float *found = read_floats(path, MODEL_HEADER_BYTES, n),
          *expected = read_floats(f.path, MODEL_HEADER_BYTES, n);
    compare_tensors(&f.m, found, expected, 1.0, 1e-4, "final parameters");
    model_file_close(&f);
    free(found);
    free(expected);
}

int main(void) {
    omp_set_num_threads(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_and_norms_of_20_steps_are_pytorchs_in_fp32),
        cmocka_unit_test(losses_and_norms_of_20_steps_are_pytorchs_in_bf16),
        cmocka_unit_test(losses_are_pytorchs_on_sharded_ranks),
        cmocka_unit_test(every_tensors_gradient_is_pytorchs),
        cmocka_unit_test(parameters_after_20_steps_are_pytorchs),
    };
    return run_in_folder(tests);
}
