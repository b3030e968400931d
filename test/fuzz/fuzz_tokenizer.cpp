// test/fuzz/fuzz_tokenizer.cpp: tokenizer.bin: opened, every token's text read and cut into tokens
// again, or refused.
#include "fuzz.h"

#include "../../lib/tokenizer.h"

static void read_tokenizer(const char *path) {
    Tokenizer t = tokenizer_open(path);
    size_t bytes = 0;
    for (int token = 0; token < t.V; token++) {
        const unsigned char *text;
        size_t size = tokenizer_text(&t, token, &text);
        for (size_t i = 0; i < size; i++) bytes += text[i] + utf8_length(text + i, size - i);
    }
    char first[300] = "";
    const unsigned char *text;
    size_t size = tokenizer_text(&t, 0, &text);
    memcpy(first, text, size);
    int tokens[300];
    if (t.V <= 64 && tokenizer_encode(&t, first, tokens, 300) > size + bytes) abort();
    tokenizer_close(&t);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    return fuzz_reader(read_tokenizer, data, size);
}
