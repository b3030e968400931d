// lib/foreign.h: what a file may be that is given as text or as token shard and is neither: told
// from its first bytes, with what to do about it.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { FOREIGN_BYTES = 1 << 16 };  // of a file that are looked at

#define FOREIGN_MAGIC(text) text, sizeof text - 1
#define FOREIGN_TOKENS                                                                             \
    "a token shard has a header of 1024 bytes, which write_shard in dev/formats.py writes"
static const struct {
    const char *bytes;
    size_t n;
    const char *what;
} foreign_magics[] = {
    {FOREIGN_MAGIC("\x93NUMPY"), "a NumPy array (.npy); " FOREIGN_TOKENS},
    {FOREIGN_MAGIC("\x1f\x8b"), "a file packed by gzip; gunzip it"},
    {FOREIGN_MAGIC("\x28\xb5\x2f\xfd"), "a file packed by zstd; unzstd it"},
    {FOREIGN_MAGIC("\xfd"
                   "7zXZ"),
     "a file packed by xz; unxz it"},
    {FOREIGN_MAGIC("BZh"), "a file packed by bzip2; bunzip2 it"},
    {FOREIGN_MAGIC("PK\x03\x04"), "an archive (zip, .npz, .pt, .docx); take the text out of it"},
    {FOREIGN_MAGIC("PAR1"), "a Parquet table; take its column of texts out of it"},
    {FOREIGN_MAGIC("%PDF"), "a PDF; pdftotext makes a text of it"},
    {FOREIGN_MAGIC("\x89HDF"), "an HDF5 file; " FOREIGN_TOKENS},
    {FOREIGN_MAGIC("GGUF"), "a model of llama.cpp's; expected data"},
    {FOREIGN_MAGIC("\xc6\xd7\x34\x01"), "a model.bin, which --model takes; expected data"},
    {FOREIGN_MAGIC("\xc7\xd7\x34\x01"), "a debug_state.bin of llm.c's; expected data"},
    {FOREIGN_MAGIC("\xc8\xd7\x34\x01"), "a tokenizer.bin, which --tokenizer takes; expected data"},
    {FOREIGN_MAGIC("\x8a\xd8\x34\x01"), "HellaSwag examples of llm.c's, for --eval; expected data"},
    {FOREIGN_MAGIC("\xff\xfe\0\0"),
     "text in UTF-32; iconv -f UTF-32 -t UTF-8 makes it text in UTF-8"},
    {FOREIGN_MAGIC("\xff\xfe"), "text in UTF-16; iconv -f UTF-16 -t UTF-8 makes it text in UTF-8"},
    {FOREIGN_MAGIC("\xfe\xff"), "text in UTF-16; iconv -f UTF-16 -t UTF-8 makes it text in UTF-8"},
};

// Of the bytes at `first`, `first` + `stride`, ... : how many are zero, how many control characters
// that a text does not have.
typedef struct {
    size_t bytes, zeros, controls;
} ForeignCount;

static inline ForeignCount foreign_count(const unsigned char *head, size_t n, size_t first,
                                         size_t stride) {
    ForeignCount c = {0, 0, 0};
    for (size_t i = first; i < n; i += stride) {
        c.bytes++, c.zeros += head[i] == 0;
        c.controls += head[i] < 32 && !strchr("\t\n\v\f\r\x1b", head[i]);
    }
    return c;
}

// Text has no zero bytes; numbers of 16 and 32 bits have many, and texts in UTF-16 one in two.
static inline const char *foreign_numbers(const unsigned char *head, size_t n) {
    ForeignCount all = foreign_count(head, n, 0, 1), low = foreign_count(head, n, 0, 2),
                 high = foreign_count(head, n, 1, 2), third = foreign_count(head, n, 2, 4),
                 fourth = foreign_count(head, n, 3, 4);
    if (all.zeros < 8 || all.zeros * 100 <= all.bytes) return NULL;
    if ((third.zeros + fourth.zeros) * 20 > (third.bytes + fourth.bytes) * 19)
        return "numbers of 32 or 64 bits without a header; " FOREIGN_TOKENS;
    if (high.zeros * 5 > high.bytes * 2 && low.controls * 20 < low.bytes)
        return "text in UTF-16, low byte first; iconv -f UTF-16LE -t UTF-8 makes it text in UTF-8";
    if (low.zeros * 5 > low.bytes * 2 && high.controls * 20 < high.bytes)
        return "text in UTF-16, high byte first; iconv -f UTF-16BE -t UTF-8 makes it text in UTF-8";
    return "numbers of 16 bits without a header, as nanoGPT writes tokens, or other binary "
           "data; " FOREIGN_TOKENS;
}

// The first n bytes of a file, up to FOREIGN_BYTES. NULL: it may well be text.
static inline const char *foreign_kind(const unsigned char *head, size_t n) {
    for (size_t i = 0; i < sizeof foreign_magics / sizeof foreign_magics[0]; i++)
        if (n >= foreign_magics[i].n && !memcmp(head, foreign_magics[i].bytes, foreign_magics[i].n))
            return foreign_magics[i].what;
    return foreign_numbers(head, n);
}
