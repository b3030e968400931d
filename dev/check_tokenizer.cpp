// dev/check_tokenizer.cpp: the tokens that lib/bpe.h makes of texts, for dev/check_tokenizer.py.
//
//   check_tokenizer TOKENIZER TEXTS TOKENS
//
// TEXTS and TOKENS hold texts and their tokens, each behind a count (int32). Prints the seconds of
// one thread for the last of the texts, the shortest of three times.
#include "lib/bpe.h"
#include "lib/clock.h"

int main(int argc, char **argv) {
    if (argc != 4) die("usage: check_tokenizer TOKENIZER TEXTS TOKENS");
    const Tokenizer tokenizer = tokenizer_open(argv[1]);
    const Bpe bpe = bpe_start(&tokenizer);
    BpeWork work = bpe_work_start(&bpe);
    FILE *from = fopen_check(argv[2], "r"), *to = fopen_check(argv[3], "w");
    double seconds = 0;
    for (int32_t bytes; fread(&bytes, sizeof bytes, 1, from) == 1;) {
        char *text = (char *)malloc_check((size_t)bytes);
        if (fread(text, 1, (size_t)bytes, from) != (size_t)bytes) die("%s ends early", argv[2]);
        Tokens tokens = {};
        for (int i = 0; i < 3; i++) {
            tokens.n = 0;
            double began = clock_ms();
            bpe_encode(&work, text, (size_t)bytes, &tokens);
            double took = 1e-3 * (clock_ms() - began);
            if (i == 0 || took < seconds) seconds = took;
        }
        const int32_t n = (int32_t)tokens.n;
        fwrite(&n, sizeof n, 1, to);
        fwrite(tokens.at, sizeof(int), tokens.n, to);
        free(text), free(tokens.at);
    }
    fclose_check(to, argv[3]);
    printf("%.6f\n", seconds);
}
