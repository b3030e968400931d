// test/fuzz/fuzz_tokenizer.cpp: tokenizer.bin: opened, every token's text read and encoded again,
// or refused.
#include "fuzz.h"

#include "../../lib/bpe.h"

static void read_tokenizer(const char *path) {
    Tokenizer t = tokenizer_open(path);
    size_t bytes = 0;
    for (int token = 0; token < t.V; token++) {
        const unsigned char *text;
        size_t size = tokenizer_text(&t, token, &text);
        for (size_t i = 0; i < size; i++) bytes += text[i] + utf8_length(text + i, size - i);
    }
    Bpe bpe = bpe_start(&t);  // refuses a vocabulary without all bytes
    BpeWork w = bpe_work_start(&bpe);
    Tokens tokens = {};
    bpe_encode(&w, t.bytes, t.start[t.V], &tokens);
    size_t encoded = 0;
    for (size_t i = 0; i < tokens.n; i++)
        encoded += t.start[tokens.at[i] + 1] - t.start[tokens.at[i]];
    if (encoded != t.start[t.V] || bytes == SIZE_MAX) abort();
    free(tokens.at);
    bpe_work_finish(&w);
    bpe_finish(&bpe);
    tokenizer_close(&t);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    return fuzz_reader(read_tokenizer, data, size);
}
