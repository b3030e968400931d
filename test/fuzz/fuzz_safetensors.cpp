// test/fuzz/fuzz_safetensors.cpp: a whole .safetensors file: the header is read or refused; what is
// read holds what the format promises, and written again it reads the same.
#include "../../lib/hf_gpt2.h"
#include "../../lib/safetensors.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const ModelConfig m = {5, 11, 128, 2, 2, 4};
    SafeHeader h;
    Failure failure = {""};
    uint64_t begins = 0, at = 0;
    const char *path = fuzz_path(data, size);
    if (!safetensors_read(&h, fuzz_fd, path, &begins, &failure)) {
        if (!failure.text[0] || strlen(failure.text) >= sizeof failure.text) abort();
        return 0;
    }
    for (size_t i = 0; i < h.count; i++) {
        const SafeTensor *t = &h.tensors[i];
        int id, layer;
        uint64_t elements;
        if (t->begin != at || t->end < at || !safe_elements(t, &elements)) abort();
        if (hf_find(&m, t->name, &id, &layer) == HF_PARAMETER && (layer < 0 || layer >= m.L))
            abort();
        at = t->end;
    }
    if (begins + at != size) abort();
    size_t bytes;
    free(safetensors_text(h.json, &bytes));
    if (bytes % 8) abort();
    safetensors_free(&h);
    return 0;
}
