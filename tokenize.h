// tokenize.h: the texts that --train and --val name become token shards, before a run, if there is
// a --tokenizer. The ranks share the blocks of a text (lib/token_files.h); what has been made
// before is used again.
#pragma once

#include "dataloader.h"
#include "lib/clock.h"
#include "lib/replace.h"
#include "lib/token_files.h"
#include "ranks.h"

static void tokenize_report(const TokenFiles *f, int blocks, double ms) {
    double share = f->blocks ? (double)blocks / f->blocks : 1, mb = 1e-6 * (double)f->bytes * share;
    printf("tokenized        %s: %.0f %% of %.1f MB, %.1f MB/s, in %s\n", f->text, 100 * share,
           1e-6 * (double)f->bytes, ms > 0 ? 1e3 * mb / ms : 0, f->folder);
    fflush(stdout);
}

// Every rank makes the blocks rank, rank + world, ..., and all meet after each round.
static void tokenize_text(Ranks *r, const TokenFiles *f, const Bpe *bpe, bool report) {
    char made[PATH_BYTES];
    path_print(made, "%s.new", f->folder);
    int lock = r->rank == 0 ? token_files_begin(f) : -1;
    ranks_any(r, false);
    if (!is_folder(made))
        die("%s: rank 0 has made this folder and it is not here; --token-folder has to lie on a "
            "disk that all ranks share",
            made);
    uint64_t checksum = 0;
    double began = clock_ms();
    for (int first = 0; first < f->blocks; first += r->world) {
        int block = first + r->rank, done = first + r->world;
        if (block < f->blocks) checksum += token_files_block(f, bpe, block);
        ranks_any(r, false);
        if (report) tokenize_report(f, done < f->blocks ? done : f->blocks, clock_ms() - began);
    }
    ranks_sum(r, &checksum, 1);
    if (r->rank == 0) token_files_end(f, lock, checksum);
    ranks_any(r, false);
}

// What becomes of texts.
typedef struct {
    const Tokenizer *tokenizer;  // V == 0: they stay texts
    const char *folder;          // where their shards lie; "": beside them
    bool make;                   // shards that are not there, or end the run: a plan writes nothing
    bool report;                 // say what is done
} TextPolicy;

// The files that a pattern names; texts among them give way to their shards. Every rank calls.
static Paths tokenize_files(Ranks *r, const char *pattern, const TextPolicy *policy) {
    Paths found = {0, NULL}, shards = {0, NULL};
    paths_add_pattern(&found, pattern);
    if (!policy->tokenizer->V || data_file_open(found.names[0]).kind != DATA_TEXT) return found;
    Bpe bpe = {};
    process.patient++;
    for (int i = 0; i < found.count; i++) {
        const char *text = found.names[i];
        if (data_file_open(text).kind != DATA_TEXT)
            die_all("%s mixes kinds of data: %s is text, %s is none", pattern, found.names[0],
                    text);
        TokenFiles f = token_files(text, policy->folder, policy->tokenizer);
        bool ready = r->rank == 0 && token_files_ready(&f);
        ranks_broadcast(r, &ready, sizeof ready);
        if (!ready && !policy->make)
            die_all("%s: a plan needs its tokens, which the first run with it makes", text);
        if (!ready && r->rank == 0 && policy->folder[0]) make_folder(policy->folder);
        if (!ready && !bpe.t) bpe = bpe_start(policy->tokenizer);
        if (!ready) tokenize_text(r, &f, &bpe, policy->report && r->rank == 0);
        char path[PATH_BYTES];
        for (int block = 0; block < f.blocks; block++) {
            token_files_path(&f, "", block, path);
            paths_add(&shards, path);
        }
    }
    process.patient--;
    if (bpe.t) bpe_finish(&bpe);
    paths_free(&found);
    return shards;
}
