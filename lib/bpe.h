// lib/bpe.h: text to tokens by byte-pair encoding, exactly as tiktoken's gpt2 encoding does it
// (Sennrich et al. 2016, "Neural machine translation of rare words with subword units"; Radford et
// al. 2019 for the bytes and the pattern).
//
// The text is cut into pieces (words, numbers, runs of other characters, spaces), and in each piece
// the neighbours whose joined bytes are the token of the lowest number are joined, the leftmost
// first, until no two neighbours make a token. So the order of the tokens is the order of the
// merges, and tokenizer.bin is all that is needed. The text of the end-of-text token is text like
// any other. Bytes that are no UTF-8 are pieces of their own; decoded, every text comes back to the
// byte.
#pragma once

#include "checksum.h"
#include "tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

// Unicode's White_Space: what tiktoken's \s means. PCRE2's \s has U+180E besides.
#define BPE_SPACE "\\p{Z}\\t-\\r\\x{85}"
#define BPE_PATTERN                                                                                \
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^" BPE_SPACE "\\p{L}\\p{N}]++|[" BPE_SPACE      \
    "]+(?![^" BPE_SPACE "])|[" BPE_SPACE "]"

enum { BPE_NONE = -1 };

// Read by any number of threads.
typedef struct {
    const Tokenizer *t;
    int *table;     // tokens by the hash of their bytes; BPE_NONE: free
    uint32_t mask;  // places of the table - 1
    pcre2_code *pattern;
} Bpe;

// Two neighbours that would make a token, as one number: the token, then where they begin.
typedef struct {
    uint64_t order;
    uint32_t end;  // where they end; no longer so if one of them has been joined to another
} BpePair;

// Of one thread.
typedef struct {
    const Bpe *bpe;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    uint32_t *next, *last;  // of the part that begins at a byte: where the next begins; of the byte
                            // where a part begins: where the one before begins
    BpePair *heap;
    size_t parts_room, heap_size;
} BpeWork;

// Tokens that grow as they come.
typedef struct {
    int *at;
    size_t n, room;
} Tokens;

static inline void tokens_add(Tokens *tokens, int token) {
    if (tokens->n == tokens->room) {
        tokens->room = tokens->room ? 2 * tokens->room : 1024;
        tokens->at = (int *)realloc_check(tokens->at, tokens->room * sizeof(int));
    }
    tokens->at[tokens->n++] = token;
}

// ---- the vocabulary ----------------------------------------------------------------------------

static inline int bpe_find(const Bpe *b, const unsigned char *text, size_t n) {
    const Tokenizer *t = b->t;
    for (uint32_t at = (uint32_t)XXH3_64bits(text, n) & b->mask;; at = (at + 1) & b->mask) {
        int token = b->table[at];
        if (token == BPE_NONE) return BPE_NONE;
        uint32_t start = t->start[token];
        if (t->start[token + 1] - start == n && !memcmp(t->bytes + start, text, n)) return token;
    }
}

static inline Bpe bpe_start(const Tokenizer *t) {
    uint32_t places = 1024;
    while (places < 4 * (uint32_t)t->V) places *= 2;
    Bpe b = {t, (int *)malloc_check(places * sizeof(int)), places - 1, NULL};
    for (uint32_t i = 0; i < places; i++) b.table[i] = BPE_NONE;
    for (int token = 0; token < t->V; token++) {
        const unsigned char *text = t->bytes + t->start[token];
        size_t n = t->start[token + 1] - t->start[token];
        if (token == t->eot || bpe_find(&b, text, n) != BPE_NONE) continue;  // the first one counts
        uint32_t at = (uint32_t)XXH3_64bits(text, n) & b.mask;
        while (b.table[at] != BPE_NONE) at = (at + 1) & b.mask;
        b.table[at] = token;
    }
    for (int i = 0; i < 256; i++) {
        unsigned char byte = (unsigned char)i;
        if (bpe_find(&b, &byte, 1) == BPE_NONE)
            die_all("the tokenizer has no token for the byte %d: no text can be encoded with it",
                    i);
    }
    int error;
    size_t where;
    b.pattern =
        pcre2_compile((PCRE2_SPTR)BPE_PATTERN, PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &error, &where, NULL);
    if (!b.pattern) die_all("PCRE2: error %d at place %zu of the pattern", error, where);
    pcre2_jit_compile(b.pattern, PCRE2_JIT_COMPLETE);  // else it is interpreted: slower, the same
    return b;
}

static inline void bpe_finish(Bpe *b) {
    free(b->table);
    pcre2_code_free(b->pattern);
}

static inline BpeWork bpe_work_start(const Bpe *b) {
    BpeWork w = {};
    w.bpe = b;
    w.match = pcre2_match_data_create(1, NULL);
    w.context = pcre2_match_context_create(NULL);
    w.stack = pcre2_jit_stack_create(32 * 1024, 1024 * 1024, NULL);
    if (!w.match || !w.context || !w.stack) die("out of memory for the tokenizer");
    pcre2_jit_stack_assign(w.context, NULL, w.stack);
    return w;
}

static inline void bpe_work_finish(BpeWork *w) {
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->context);
    pcre2_jit_stack_free(w->stack);
    free(w->next);
    free(w->last);
    free(w->heap);
}

// ---- merging the parts of a piece --------------------------------------------------------------

static inline bool bpe_before(BpePair a, BpePair b) {
    return a.order < b.order;
}

static inline void bpe_push(BpeWork *w, BpePair pair) {
    size_t at = w->heap_size++;
    while (at > 0 && bpe_before(pair, w->heap[(at - 1) / 2])) {
        w->heap[at] = w->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    w->heap[at] = pair;
}

static inline BpePair bpe_pop(BpeWork *w) {
    BpePair first = w->heap[0], moved = w->heap[--w->heap_size];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < w->heap_size; at = child) {
        if (child + 1 < w->heap_size && bpe_before(w->heap[child + 1], w->heap[child])) child++;
        if (!bpe_before(w->heap[child], moved)) break;
        w->heap[at] = w->heap[child];
    }
    w->heap[at] = moved;
    return first;
}

// The part at `first` and its next neighbour, if their bytes are a token.
static inline void bpe_offer(BpeWork *w, const unsigned char *piece, size_t n, uint32_t first) {
    if (first >= n || w->next[first] >= n) return;
    uint32_t end = w->next[w->next[first]];
    int token = bpe_find(w->bpe, piece + first, end - first);
    if (token != BPE_NONE) bpe_push(w, (BpePair){(uint64_t)token << 32 | first, end});
}

// n bytes without a cut. At most 3n pairs are ever offered: n at first, two for each of n merges.
static inline void bpe_merge(BpeWork *w, const unsigned char *piece, size_t n, Tokens *tokens) {
    if (n > UINT32_MAX / 4) die("a word of %zu bytes: expected at most 1 GiB", n);
    if (w->parts_room < n + 1) {
        w->parts_room = 2 * n + 64;
        w->next = (uint32_t *)realloc_check(w->next, w->parts_room * sizeof(uint32_t));
        w->last = (uint32_t *)realloc_check(w->last, w->parts_room * sizeof(uint32_t));
        w->heap = (BpePair *)realloc_check(w->heap, 3 * w->parts_room * sizeof(BpePair));
    }
    for (uint32_t i = 0; i < n; i++) w->next[i] = i + 1, w->last[i] = i - 1;
    w->last[n] = (uint32_t)n - 1;
    w->heap_size = 0;
    for (uint32_t i = 0; i + 1 < n; i++) bpe_offer(w, piece, n, i);
    while (w->heap_size > 0) {
        BpePair best = bpe_pop(w);
        uint32_t first = (uint32_t)best.order, second = w->next[first];
        // Has one of the two been joined to another since?
        if (second == 0 || second >= n || w->next[second] != best.end) continue;
        w->next[first] = best.end;
        w->next[second] = 0;  // no part begins there any more
        w->last[best.end] = first;
        if (first > 0) bpe_offer(w, piece, n, w->last[first]);
        bpe_offer(w, piece, n, first);
    }
    for (uint32_t i = 0; i < n; i = w->next[i])
        tokens_add(tokens, bpe_find(w->bpe, piece + i, w->next[i] - i));
}

// ---- cutting text into pieces ------------------------------------------------------------------

static inline void bpe_piece(BpeWork *w, const unsigned char *piece, size_t n, Tokens *tokens) {
    int whole = bpe_find(w->bpe, piece, n);  // as most words are
    if (whole != BPE_NONE)
        tokens_add(tokens, whole);
    else
        bpe_merge(w, piece, n, tokens);
}

// Adds the tokens of n bytes of text.
static inline void bpe_encode(BpeWork *w, const void *text, size_t n, Tokens *tokens) {
    const unsigned char *bytes = (const unsigned char *)text;
    const size_t *found = pcre2_get_ovector_pointer(w->match);
    for (size_t at = 0; at < n;) {
        int matches =
            pcre2_match(w->bpe->pattern, bytes, n, at, PCRE2_NO_UTF_CHECK, w->match, w->context);
        if (matches < 0 && matches != PCRE2_ERROR_NOMATCH)
            die("PCRE2: error %d at byte %zu of a text", matches, at);
        size_t begin = matches < 0 ? n : found[0], end = matches < 0 ? n : found[1];
        if (begin > at) bpe_piece(w, bytes + at, begin - at, tokens);  // no UTF-8
        if (end > begin) bpe_piece(w, bytes + begin, end - begin, tokens);
        at = end;
    }
}

// The tokens of one text, added.
static inline void bpe_encode_once(const Tokenizer *t, const char *text, Tokens *tokens) {
    Bpe b = bpe_start(t);
    BpeWork w = bpe_work_start(&b);
    bpe_encode(&w, text, strlen(text), tokens);
    bpe_work_finish(&w);
    bpe_finish(&b);
}
