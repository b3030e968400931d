// lib/utf8.h: which bytes are a character in UTF-8 (Unicode 15, table 3-7: no overlong forms, no
// halves of UTF-16 pairs, nothing beyond U+10FFFF).
#pragma once

#include <stddef.h>

#define UTF8_REPLACEMENT "\xef\xbf\xbd"  // U+FFFD, for bytes that are none

// Bytes of the character that text begins with, 0 if it begins with none.
static inline size_t utf8_length(const unsigned char *text, size_t n) {
    const unsigned char first = text[0];
    size_t length = first < 0x80   ? 1
                    : first < 0xc2 ? 0
                    : first < 0xe0 ? 2
                    : first < 0xf0 ? 3
                    : first < 0xf5 ? 4
                                   : 0;
    if (length > n) return 0;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xc0) != 0x80) return 0;
    if ((first == 0xe0 && text[1] < 0xa0) || (first == 0xed && text[1] > 0x9f)) return 0;
    if ((first == 0xf0 && text[1] < 0x90) || (first == 0xf4 && text[1] > 0x8f)) return 0;
    return length;
}

// How much of text, from its start, does not end within a character: what may follow decides
// nothing about it.
static inline size_t utf8_complete(const unsigned char *text, size_t n) {
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        const unsigned char c = text[n - back];
        const size_t length = c < 0xc2 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 1;
        if (length > back) return n - back;
        if ((c & 0xc0) != 0x80) break;
    }
    return n;
}
