// eval/validation.h: the mean loss over validation data.
#pragma once

#include "dataloader.h"
#include "gpt.h"
#include "lib/tokenizer.h"
#include "ranks.h"

typedef struct {
    double loss;  // nats a token
    double bits;  // bits a byte of the text; NAN: the texts of the tokens are not known
} Validation;

// Bytes that n targets stand for; end-of-text, which no text has, counts as one.
static inline uint64_t target_bytes(const Tokenizer *t, const int *targets, size_t n) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < n && t->V; i++)
        if (targets[i] >= 0)
            bytes += targets[i] == t->eot ? 1 : t->start[targets[i] + 1] - t->start[targets[i]];
    return bytes;
}

// Over the first `most` micro-batches, the same for any number of ranks: micro-batch m is computed
// by rank m % world. Every rank takes part; what fails on one is in its failure. tokenizer: V == 0
// if there is none.
static inline Validation validate(DataLoader *data, uint64_t most, const Tokenizer *tokenizer,
                                  const GptCode *code, Gpt *g, const GptConfig *config,
                                  Ranks *ranks, Failure *failure) {
    uint64_t batches = dataloader_batches(data), world = (uint64_t)ranks->world,
             B = (uint64_t)config->B;
    if (batches > most) batches = most;
    size_t BT = (size_t)config->B * (size_t)config->T;
    double loss = 0, tokens = 0, *losses = (double *)malloc_check(2 * sizeof(double) * world * B),
           *counts = losses + world * B;
    uint64_t bytes = 0;
    int *inputs = code->inputs(g, 0);
    for (uint64_t at = 0; at < batches; at += world) {
        uint64_t batch = at + (uint64_t)ranks->rank;
        DataSpan span = {batch * B, 0, 1};
        bool there = batch < batches && dataloader_fetch(data, span, inputs, failure);
        for (size_t i = 0; !there && i < BT; i++)
            inputs[i] = 0, inputs[BT + i] = -1;  // nothing for this rank
        bytes += target_bytes(tokenizer, inputs + BT, BT);
        code->evaluate(g, config->T, losses, counts);
        process_alive();
        for (uint64_t i = 0; i < world * B; i++) loss += losses[i], tokens += counts[i];
    }
    free(losses);
    ranks_sum(ranks, &bytes, 1);
    return (Validation){loss / tokens, bytes ? loss / log(2.0) / (double)bytes : NAN};
}
