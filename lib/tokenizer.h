// lib/tokenizer.h: tokens to text; lib/bpe.h has the other way. Either bytes (257 tokens: 256 bytes
// and end-of-text), or llm.c's tokenizer.bin, versions 1 and 2: a header, then per token one length
// byte and that many bytes.
#pragma once

#include "checksum.h"
#include "files.h"
#include "utf8.h"

enum {
    TOKENIZER_MAGIC = 20240328,
    BYTE_VOCAB = 257,
    BYTE_EOT = 256,
    GPT2_VOCAB = 50257,
    GPT2_EOT = 50256
};

typedef struct {
    int V, eot;
    unsigned char *bytes;  // the texts of all tokens, one behind the other
    uint32_t *start;       // (V+1) where each begins in bytes
} Tokenizer;

static inline Tokenizer tokenizer_of_bytes(void) {
    static const char eot[] = "<|endoftext|>";
    Tokenizer t = {BYTE_VOCAB, BYTE_EOT, NULL, NULL};
    t.bytes = (unsigned char *)malloc_check(256 + sizeof eot);
    t.start = (uint32_t *)malloc_check((BYTE_VOCAB + 1) * sizeof(uint32_t));
    for (uint32_t i = 0; i <= 256; i++) t.start[i] = i;
    for (int i = 0; i < 256; i++) t.bytes[i] = (unsigned char)i;
    memcpy(t.bytes + 256, eot, sizeof eot - 1);
    t.start[BYTE_VOCAB] = 256 + sizeof eot - 1;
    return t;
}

static inline Tokenizer tokenizer_open(const char *path) {
    enum { HEADER = 1024 };
    int fd = open_check(path, O_RDONLY);
    uint64_t bytes = file_size(fd, path);
    uint32_t header[HEADER / 4];
    if (bytes < HEADER || bytes > UINT32_MAX)
        die_all("%s: expected a tokenizer.bin, found a file of %llu bytes", path,
                (unsigned long long)bytes);
    read_exact(fd, header, HEADER, 0, path);
    if (header[0] != TOKENIZER_MAGIC)
        die_all("%s: expected a tokenizer.bin (magic %d), found magic %u", path, TOKENIZER_MAGIC,
                header[0]);
    if (header[1] != 1 && header[1] != 2)
        die_all("%s: expected version 1 or 2, found %u", path, header[1]);
    // Version 1 was written for GPT-2 only and leaves the end-of-text token out of its header.
    uint32_t V = header[2], eot = header[1] == 1 ? (uint32_t)GPT2_EOT : header[3];
    if (header[1] == 1 && V != GPT2_VOCAB)
        die_all("%s: expected a vocabulary of %d in version 1, found %u", path, GPT2_VOCAB, V);
    if (V < 1 || V > bytes || eot >= V)
        die_all("%s: vocabulary %u and end-of-text token %u do not fit the file", path, V, eot);
    Tokenizer t = {(int)V, (int)eot, NULL, NULL};
    size_t length = (size_t)(bytes - HEADER), at = 0;
    t.bytes = (unsigned char *)malloc_check(length);
    t.start = (uint32_t *)malloc_check((V + 1) * sizeof(uint32_t));
    read_exact(fd, t.bytes, length, HEADER, path);
    close(fd);
    // Closes the gaps that the length bytes leave: what is written never passes what is read.
    t.start[0] = 0;
    for (uint32_t i = 0; i < V; i++) {
        size_t size = at < length ? t.bytes[at] : 0;
        if (!size || at + 1 + size > length)
            die_all("%s: expected %u tokens, the file ends or has no text at token %u", path, V, i);
        memmove(t.bytes + t.start[i], t.bytes + at + 1, size);
        t.start[i + 1] = t.start[i] + (uint32_t)size;
        at += 1 + size;
    }
    if (at != length) die_all("%s: %zu bytes follow after the last token", path, length - at);
    return t;
}

// What identifies it: the texts of its tokens, whatever the version of its file.
static inline uint64_t tokenizer_checksum(const Tokenizer *t) {
    size_t n = (size_t)t->V + 1;
    return checksum_text((const char *)t->bytes, t->start[t->V]) * 31 +
           checksum_text((const char *)t->start, n * sizeof t->start[0]) + (uint64_t)t->eot;
}

static inline void tokenizer_close(Tokenizer *t) {
    free(t->bytes);
    free(t->start);
}

// The token's bytes (not ended by 0); returns how many.
static inline size_t tokenizer_text(const Tokenizer *t, int token, const unsigned char **text) {
    if (token < 0 || token >= t->V)
        die("token %d is outside the tokenizer's vocabulary of %d", token, t->V);
    *text = t->bytes + t->start[token];
    return t->start[token + 1] - t->start[token];
}

// Prints what a model wrote for a terminal: control characters other than newline and tab, and
// bytes that are no UTF-8, become '?'.
static inline void text_print(const char *text, size_t n, FILE *f) {
    const unsigned char *c = (const unsigned char *)text;
    for (size_t i = 0; i < n;) {
        size_t length = utf8_length(c + i, n - i);
        bool control = (c[i] < 32 && c[i] != '\n' && c[i] != '\t') || c[i] == 127;
        if (length && !control)
            fwrite(c + i, 1, length, f);
        else
            fputc('?', f);
        i += length ? length : 1;
    }
}
