// generate/text.h: texts from a model, a token at a time. The prompt is one forward; a token after
// it costs one row through all products, as the model keeps the keys and values of those before.
// All ranks compute the same, and rank 0 says which token comes.
//
// Positions are absolute, so that the keys and values of a text cannot move: when the model has no
// position left, it begins again with the last half of what it has seen.
#pragma once

#include "gpt.h"
#include "lib/bpe.h"
#include "lib/clock.h"
#include "lib/sampler.h"
#include "ranks.h"

typedef struct {
    const GptCode *code;
    Gpt *gpt;
    Ranks *ranks;
    const Tokenizer *tokenizer;
    Sampler sampler;
    int T;      // tokens that the model sees at a time
    int first;  // the token before every text

    char *prompt;       // as it was given
    Tokens tokens;      // of the text so far: `first`, those of the prompt, those that were drawn
    int prompt_tokens;  // `first` included
    int from;           // the first token that the model sees; -1: it has seen none yet
    float *logits;      // (V)
} Writer;

typedef struct {
    char *text;           // with the prompt; the caller's to free
    size_t bytes, begin;  // begin: of what follows the prompt
    int tokens;           // that were drawn, end-of-text not counted
    bool ended;           // by end-of-text
    double prompt_ms;     // until the first token was drawn
    double ms;            // from then on
} Text;

// ---- prompts -----------------------------------------------------------------------------------

static inline void writer_start(Writer *w) {
    w->logits = (float *)malloc_check(sizeof(float) * (size_t)w->tokenizer->V);
}

static inline void writer_finish(Writer *w) {
    free(w->prompt);
    free(w->tokens.at);
    free(w->logits);
}

// What the texts that follow begin with.
static inline void writer_prompt(Writer *w, const char *text) {
    free(w->prompt);
    w->prompt = strdup_check(text);
    w->tokens.n = 0;
    tokens_add(&w->tokens, w->first);
    if (text[0]) bpe_encode_once(w->tokenizer, text, &w->tokens);
    w->prompt_tokens = (int)w->tokens.n;
}

// ---- tokens ------------------------------------------------------------------------------------

// The logits after the tokens so far.
static inline void writer_forward(Writer *w) {
    int n = (int)w->tokens.n, seen = w->from < 0 ? 0 : n - w->from;
    if (seen > 0 && seen <= w->T) {
        w->code->next_token(w->gpt, w->tokens.at[n - 1], w->logits);
        return;
    }
    int keep = seen ? (w->T + 1) / 2 : w->T;
    w->from = n > keep ? n - keep : 0;
    w->code->begin_text(w->gpt, w->tokens.at + w->from, n - w->from, w->logits);
}

// The next token, the same on all ranks; -1: the text ends.
static inline int writer_next(Writer *w, uint32_t stream) {
    writer_forward(w);
    process_alive();
    int next = sampler_next(&w->sampler, w->logits, w->tokenizer->V, stream, (uint64_t)w->tokens.n);
    ranks_broadcast(w->ranks, &next, sizeof next);
    if (next == w->tokenizer->eot) return -1;
    tokens_add(&w->tokens, next);
    return next;
}

// ---- texts -------------------------------------------------------------------------------------

// Prints what of the text is whole characters and has not been shown yet.
static inline void text_show(const Text *t, size_t *shown, bool all) {
    const char *rest = t->text + *shown;
    size_t n = t->bytes - *shown;
    if (!all) n = utf8_complete((const unsigned char *)rest, n);
    text_print(rest, n, stdout);
    *shown += n;
    if (fflush(stdout) != 0 || ferror(stdout)) die("cannot write to stdout: %s", strerror(errno));
}

// The prompt and at most `wanted` tokens after it. stream: the text's number, of which its random
// choices depend. live: rank 0 prints it as it comes.
static inline Text writer_write(Writer *w, int wanted, uint32_t stream, bool live) {
    Text t = {};
    FILE *f = open_memstream(&t.text, &t.bytes);
    if (!f) die("out of memory for a text");
    size_t shown = 0;
    double began = clock_ms();
    t.begin = strlen(w->prompt);
    fwrite(w->prompt, 1, t.begin, f);
    w->tokens.n = (size_t)w->prompt_tokens;
    w->from = -1;
    live = live && w->ranks->rank == 0;
    while (t.tokens < wanted) {
        int token = writer_next(w, stream);
        if (t.tokens == 0) t.prompt_ms = clock_ms() - began;
        if ((t.ended = token < 0)) break;
        const unsigned char *piece;
        size_t size = tokenizer_text(w->tokenizer, token, &piece);
        fwrite(piece, 1, size, f);
        if (fflush(f) != 0) die("out of memory for a text");
        if (live) text_show(&t, &shown, false);
        t.tokens++;
    }
    fclose(f);
    t.ms = clock_ms() - began - t.prompt_ms;
    if (live) text_show(&t, &shown, true);
    return t;
}
