// generate/generate.h: --generate: texts to --prompt, or to each line of stdin, on stdout. Nothing
// is trained and nothing else is printed there; how fast it went stands on stderr.
#pragma once

#include "lib/logger.h"
#include "text.h"

#include <inttypes.h>

// What all texts together came to.
typedef struct {
    long texts, tokens;  // tokens: drawn after a text's first one
    double prompt_ms, ms;
} Speed;

// The next line of stdin, which rank 0 reads, on all ranks; NULL: there is none.
static inline char *read_prompt(Ranks *ranks) {
    char *line = NULL;
    size_t room = 0;
    int64_t n = 0;
    process.patient++;  // people take their time
    if (ranks->rank == 0) n = getline(&line, &room, stdin);
    if (ranks->rank == 0 && ferror(stdin)) die("cannot read stdin: %s", strerror(errno));
    ranks_broadcast(ranks, &n, sizeof n);
    process.patient--;
    if (n < 0) {
        free(line);
        return NULL;
    }
    line = (char *)realloc_check(line, (size_t)n + 1);
    ranks_broadcast(ranks, line, (size_t)n + 1);
    line[strcspn(line, "\r\n")] = 0;
    return line;
}

static inline void print_text_json(const Text *t, int sample) {
    printf("{\"prompt\":");
    json_string(stdout, t->text, t->begin);
    printf(",\"sample\":%d,\"text\":", sample);
    json_string(stdout, t->text + t->begin, t->bytes - t->begin);
    printf(",\"tokens\":%d,\"ended\":%s,\"prompt_ms\":%.3f,\"ms\":%.3f}\n", t->tokens,
           t->ended ? "true" : "false", t->prompt_ms, t->ms);
}

// stream: number of the first of the prompt's texts.
static inline void generate_texts(Writer *w, const Options *o, uint32_t stream, Speed *speed) {
    bool several = o->samples > 1 || !strcmp(o->prompt, "-"), first = w->ranks->rank == 0;
    if (first && w->prompt_tokens > w->T)
        fprintf(stderr, "train_gpt: a prompt of %d tokens: the model sees the last %d of them\n",
                w->prompt_tokens, w->T);
    for (int i = 0; i < o->samples; i++) {
        Text t = writer_write(w, o->generate, stream + (uint32_t)i, !o->json);
        if (first && o->json) print_text_json(&t, i);
        if (first && !o->json) printf(several ? "\n---\n" : "\n");
        if (first && (fflush(stdout) != 0 || ferror(stdout)))
            die("cannot write to stdout: %s", strerror(errno));
        speed->texts++;
        speed->tokens += t.tokens > 0 ? t.tokens - 1 : 0;
        speed->prompt_ms += t.prompt_ms, speed->ms += t.ms;
        free(t.text);
    }
}

// All texts that the options ask for.
static inline void generate(Writer *w, const Options *o) {
    Speed s = {};
    uint32_t stream = 0;
    if (strcmp(o->prompt, "-")) {
        generate_texts(w, o, stream, &s);
    } else {
        for (char *line; (line = read_prompt(w->ranks)) != NULL; stream += (uint32_t)o->samples) {
            writer_prompt(w, line);
            free(line);
            generate_texts(w, o, stream, &s);
        }
    }
    if (w->ranks->rank == 0 && s.tokens > 0)
        fprintf(stderr,
                "train_gpt: %ld text(s), %.0f ms until the first token of each; then %ld tokens, "
                "%.1f a second\n",
                s.texts, s.prompt_ms / (double)s.texts, s.tokens, 1e3 * (double)s.tokens / s.ms);
}
