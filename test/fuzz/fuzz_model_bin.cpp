// test/fuzz/fuzz_model_bin.cpp: llm.c's model.bin: opened and read element by element, or refused.
#include "fuzz.h"

#include "../../lib/model_file.h"

static void read_model(const char *path) {
    ModelFile f = model_file_open(path);
    for (int id = 0; id < TENSORS; id++)
        for (int layer = 0; layer < tensor_layers(&f.m, id); layer++) {
            size_t n = tensor_size(&f.m, id);
            float *x = (float *)malloc_check(n * sizeof(float));
            model_file_read(&f, x, n, id, layer, 0);
            free(x);
        }
    close(f.fd);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    return fuzz_reader(read_model, data, size);
}
