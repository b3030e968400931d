// test/fuzz/fuzz_shard.cpp: training data, a token shard or a text: opened, checked and read sample
// by sample, or refused.
#include "fuzz.h"

#include "../../dataloader.h"

static void read_data(const char *path) {
    enum { B = 2, T = 5, V = 300 };
    DataLoader dl;
    Failure failure;
    dataloader_open(&dl, path, B, T, V, 42, true);
    dataloader_check(&dl);
    int inputs[2 * B * T];
    uint64_t most = dl.samples < 20 ? dl.samples : 20;
    for (uint64_t sample = 0; sample + B <= most; sample += B) {
        DataSpan span = {sample, B, 1};
        if (!dataloader_fetch(&dl, span, inputs, &failure)) break;
        for (int i = 0; i < 2 * B * T; i++)
            if (inputs[i] < 0 || inputs[i] >= V) abort();
    }
    dataloader_close(&dl);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    return fuzz_reader(read_data, data, size);
}
