// lib/checksum.h: a checksum of a tensor that can be taken in parts: XXH3 (xxHash, 64 bits) of each
// grain of 32 elements, seeded with the grain's number, all added up modulo 2^64. Parts begin at
// multiples of a grain, as the slices of ranks do, so the sum over the ranks' slices is the same
// for any number of ranks, and a wrong, lost or misplaced grain changes it.
#pragma once

#include "files.h"

#include <stddef.h>
#include <stdint.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#define CHECKSUM_GRAIN ((size_t)32)  // elements

// Of n elements of `size` bytes; first: number of the first of them in the tensor.
static inline uint64_t checksum_part(const void *data, size_t n, size_t size, size_t first) {
    const char *bytes = (const char *)data;
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i += CHECKSUM_GRAIN) {
        size_t count = n - i < CHECKSUM_GRAIN ? n - i : CHECKSUM_GRAIN;
        sum += XXH3_64bits_withSeed(bytes + i * size, count * size, (first + i) / CHECKSUM_GRAIN);
    }
    return sum;
}

static inline uint64_t checksum_text(const char *text, size_t bytes) {
    return XXH3_64bits(text, bytes);
}

#define CHECKSUM_BLOCKS 256  // that are enough to tell files apart

// Of a file of any size in little time: of all its bytes if they are at most `blocks` blocks of 64
// KiB, else of so many blocks, the first, the last and others at equal distances (blocks >= 2).
static inline uint64_t checksum_sample(int fd, uint64_t blocks, const char *path) {
    enum { BLOCK = 1 << 16 };
    const uint64_t bytes = file_size(fd, path), all = (bytes + BLOCK - 1) / BLOCK;
    char *block = (char *)malloc_check(BLOCK);
    uint64_t sum = bytes;
    if (blocks > all) blocks = all;
    for (uint64_t k = 0; k < blocks; k++) {
        const uint64_t at = blocks == all ? k * BLOCK : (bytes - BLOCK) * k / (blocks - 1);
        const size_t n = bytes - at < BLOCK ? (size_t)(bytes - at) : (size_t)BLOCK;
        read_exact(fd, block, n, at, path);
        sum = sum * 31 + checksum_text(block, n);
    }
    free(block);
    return sum;
}

static inline uint64_t checksum_file(const char *path) {
    size_t bytes;
    char *text = read_all(path, UINT64_MAX, &bytes);
    uint64_t sum = checksum_text(text, bytes);
    free(text);
    return sum;
}
