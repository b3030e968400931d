// test/fuzz/fuzz_options.cpp: options, from a command line (input `-`, then a word a line) or from
// a config file; and the descriptor of a model that they give. What is accepted is saved and read
// back.
#include "fuzz.h"

#include "../../lib/options.h"
#include "../../lib/tensors.h"

static char text[1 << 12];

// Texts of a config file are kept for as long as the program runs; here that is one input.
static void end_program(void) {
    fuzz_file = NULL;  // closed by then
    die_now();
}

static void read_words(const char *) {
    Options o;
    char *words[64] = {(char *)"train_gpt"};
    int n = 1;
    for (char *w = strtok(text + 1, "\n"); w && n < 64; w = strtok(NULL, "\n")) words[n++] = w;
    options_parse(&o, n, words);
    if (!model_is_file(o.model)) model_parse(o.model);
}

static void read_config(const char *path) {
    Options o, again;
    options_default(&o);
    options_read_config(&o, path);
    options_save(&o, path);
    options_default(&again);
    options_read_config(&again, path);
    for (int i = 0; i < OPTION_ROWS; i++) {
        char a[64], b[64];
        const Option *row = &option_table[i];
        if (row->kind == KIND_GROUP || row->kind == KIND_TEXT) continue;
        option_print_value(&o, row, a, sizeof a);
        option_print_value(&again, row, b, sizeof b);
        if (strcmp(a, b)) abort();
    }
    end_program();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    snprintf(text, sizeof text, "%.*s", (int)size, (const char *)data);
    // These end the program with 0; and other files are not the fuzzer's to read.
    if (strstr(text, "-h") || strstr(text, "--version") || strstr(text, "--config")) return 0;
    if (size && data[0] == '-') return fuzz_reader(read_words, data, size);
    return fuzz_reader(read_config, data, size);
}
