// eval/hellaswag.h: --eval: which of several endings does the model find likeliest after a context?
// (Zellers et al. 2019.) The file is llm.c's: uint16 words, a header of 256 int32, then of each
// example
//   65535, its bytes (these words included), its number, label, endings, tokens of the context, the
//   context; then of each ending its tokens' number and its tokens.
//
// A row is the context and one ending; its score is the mean loss over the ending's tokens, and the
// ending of the least score is the answer (acc_norm). Micro-batch m has rows m B .. m B + B - 1 and
// is computed by rank m % world, so that the score does not depend on the ranks.
#pragma once

#include "gpt.h"
#include "lib/checksum.h"
#include "lib/files.h"
#include "ranks.h"

#include <math.h>

enum {
    EVAL_MAGIC = 20240522,
    EVAL_VERSION = 1,
    EVAL_HEADER_BYTES = 1024,
    EVAL_EXAMPLE = 65535,
    EVAL_WORDS = 6  // of an example before its context
};

typedef struct {
    const uint16_t *context, *ending;
    int before, tokens;  // of the context, of the ending
} EvalRow;

typedef struct {
    int first, rows;  // its endings are these rows
    int label;        // the right one
} EvalExample;

typedef struct {
    const char *path;
    uint16_t *words;
    EvalExample *examples;
    EvalRow *rows;
    int nexamples, nrows;
    int longest;  // tokens of the longest row
    uint64_t checksum;
} Eval;

// ---- the file ----------------------------------------------------------------------------------

// Where reading stands: `left` words of an example at `at`.
typedef struct {
    const Eval *e;
    int example;
    const uint16_t *at;
    size_t left;
} EvalCursor;

NORETURN static inline void eval_die(const EvalCursor *c, const char *what) {
    die_all("%s, example %d: %s", c->e->path, c->example, what);
}

static inline const uint16_t *eval_take(EvalCursor *c, size_t n) {
    if (n > c->left) eval_die(c, "it ends before its tokens do");
    const uint16_t *words = c->at;
    c->at += n, c->left -= n;
    return words;
}

// n tokens below the vocabulary V.
static inline const uint16_t *eval_take_tokens(EvalCursor *c, int n, int V) {
    const uint16_t *tokens = eval_take(c, (size_t)n);
    if (n == 0) eval_die(c, "expected tokens of a context and of each ending, found none");
    for (int i = 0; i < n; i++)
        if (tokens[i] >= V)
            die_all("%s, example %d: expected tokens below the vocabulary V=%d, found %u",
                    c->e->path, c->example, V, tokens[i]);
    return tokens;
}

static inline void eval_read_row(Eval *e, EvalCursor *c, const uint16_t *context, int before,
                                 int V) {
    int room = e->nrows;
    if ((room & (room - 1)) == 0)
        e->rows =
            (EvalRow *)realloc_check(e->rows, sizeof *e->rows * (size_t)(room ? 2 * room : 1));
    EvalRow *row = &e->rows[e->nrows++];
    row->context = context, row->before = before;
    row->tokens = *eval_take(c, 1);
    row->ending = eval_take_tokens(c, row->tokens, V);
    if (before + row->tokens > e->longest) e->longest = before + row->tokens;
}

// Returns the words of the example.
static inline size_t eval_read_example(Eval *e, int number, const uint16_t *words, size_t left,
                                       int V) {
    EvalCursor c = {e, number, words, left};
    const uint16_t *head = eval_take(&c, EVAL_WORDS);
    size_t size = head[1] / sizeof(uint16_t);
    if (head[0] != EVAL_EXAMPLE) eval_die(&c, "expected 65535 where it begins");
    if (head[2] != (number & 0xffff))
        eval_die(&c, "it has the number of another: the file is damaged");
    if (size > left || size < EVAL_WORDS || head[1] % 2)
        eval_die(&c, "its size does not fit the file");
    if (head[4] < 2 || head[3] >= head[4])
        die_all("%s, example %d: expected a label below the number of endings, found %u of %u",
                e->path, number, head[3], head[4]);
    c.left = size - EVAL_WORDS;
    EvalExample *x = &e->examples[number];
    x->first = e->nrows, x->rows = head[4], x->label = head[3];
    const uint16_t *context = eval_take_tokens(&c, head[5], V);
    for (int i = 0; i < x->rows; i++) eval_read_row(e, &c, context, head[5], V);
    if (c.left) eval_die(&c, "words follow after its last ending");
    return size;
}

// All of the file. T: tokens that the model sees.
static inline Eval eval_open(const char *path, int V, int T) {
    Eval e = {};
    int32_t header[256];
    int fd = open_check(path, O_RDONLY);
    uint64_t bytes = file_size(fd, path);
    if (bytes < EVAL_HEADER_BYTES || bytes > INT32_MAX)
        die_all("--eval %s: expected a file of examples (.bin), found %llu bytes", path,
                (unsigned long long)bytes);
    read_exact(fd, header, sizeof header, 0, path);
    if (header[0] != EVAL_MAGIC)
        die_all("--eval %s: expected a file of examples (magic %d), found magic %d", path,
                EVAL_MAGIC, header[0]);
    if (header[1] != EVAL_VERSION)
        die_all("--eval %s: expected version %d, found %d", path, EVAL_VERSION, header[1]);
    size_t left = (size_t)(bytes - EVAL_HEADER_BYTES) / sizeof(uint16_t), at = 0;
    if (header[2] < 1 || (size_t)header[2] > left / EVAL_WORDS)
        die_all("--eval %s: expected at least one example, and room for each, found %d in %llu "
                "bytes",
                path, header[2], (unsigned long long)bytes);
    e.path = path, e.nexamples = header[2];
    e.words = (uint16_t *)malloc_check(left * sizeof(uint16_t));
    e.examples = (EvalExample *)malloc_check((size_t)e.nexamples * sizeof *e.examples);
    read_exact(fd, e.words, left * sizeof(uint16_t), EVAL_HEADER_BYTES, path);
    close(fd);
    e.checksum = checksum_text((const char *)e.words, left * sizeof(uint16_t));
    for (int i = 0; i < e.nexamples; i++)
        at += eval_read_example(&e, i, e.words + at, left - at, V);
    if (at != left || bytes % 2)
        die_all("--eval %s: %llu bytes follow after the last example", path,
                (unsigned long long)(bytes - EVAL_HEADER_BYTES - at * sizeof(uint16_t)));
    if (e.longest > T)
        die_all("--eval %s: its longest row has %d tokens, the model sees %d: use a larger --seq "
                "or another model",
                path, e.longest, T);
    return e;
}

static inline void eval_close(Eval *e) {
    free(e->words);
    free(e->examples);
    free(e->rows);
}

// ---- the score ---------------------------------------------------------------------------------

// tokens (T) and targets (T) of a row: the context's last token foretells the ending's first.
static inline void eval_fill(const EvalRow *row, int T, int *tokens, int *targets) {
    for (int t = 0; t < T; t++) tokens[t] = 0, targets[t] = -1;
    if (!row) return;
    for (int t = 0; t < row->before; t++) tokens[t] = row->context[t];
    for (int t = 0; t < row->tokens; t++) {
        tokens[row->before + t] = row->ending[t];
        targets[row->before + t - 1] = row->ending[t];
    }
}

// Examples whose right ending has the least mean loss; the first of equal ones counts.
static inline int eval_count(const Eval *e, const double *means) {
    int right = 0;
    for (int i = 0; i < e->nexamples; i++) {
        const EvalExample *x = &e->examples[i];
        int best = 0;
        for (int k = 1; k < x->rows; k++)
            if (means[x->first + k] < means[x->first + best]) best = k;
        right += best == x->label;
    }
    return right;
}

// How many examples the model gets right. Every rank takes part, and is told.
static inline int eval_run(const Eval *e, const GptCode *code, Gpt *g, const GptConfig *config,
                           const Ranks *ranks) {
    int B = config->B, world = ranks->world, padded = (e->longest + 63) / 64 * 64,
        T = padded < config->T ? padded : config->T;
    double *means = (double *)malloc_check(sizeof(double) * (size_t)e->nrows);
    double *losses = (double *)malloc_check(2 * sizeof(double) * (size_t)world * (size_t)B),
           *counts = losses + world * B;
    for (int first = 0; first < e->nrows; first += world * B) {
        int *tokens = code->inputs(g, 0), *targets = tokens + B * T;
        for (int b = 0; b < B; b++) {
            int row = first + ranks->rank * B + b;
            eval_fill(row < e->nrows ? &e->rows[row] : NULL, T, tokens + b * T, targets + b * T);
        }
        code->evaluate(g, T, losses, counts);
        process_alive();
        for (int i = 0; i < world * B && first + i < e->nrows; i++)
            means[first + i] = losses[i] / counts[i];
    }
    int right = eval_count(e, means);
    free(means);
    free(losses);
    return right;
}
