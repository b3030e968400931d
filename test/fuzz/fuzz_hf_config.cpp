// test/fuzz/fuzz_hf_config.cpp: config.json: a model that this program can compute, or a refusal.
#include "../../lib/hf_gpt2.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ModelConfig m, again;
    Failure failure = {""};
    if (!hf_config_parse(&m, (const char *)data, size, &failure))
        return failure.text[0] ? 0 : (abort(), 0);
    model_check(&m, "config.json");
    char *text = hf_config_text(&m, m.V - 1);
    if (!hf_config_parse(&again, text, strlen(text), &failure) || memcmp(&m, &again, sizeof m))
        abort();
    free(text);
    return 0;
}
