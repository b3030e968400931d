// lib/shard.h: the head of llm.c's token shards: 256 numbers of 32 bits, of which the first are the
// magic, the version and how many tokens follow, of 16 or of 32 bits each.
#pragma once

#include <stdint.h>

enum {
    SHARD_HEADER_BYTES = 1024,
    SHARD_MAGIC = 20240520,  // tokens of 16 bits
    SHARD_VERSION = 1,
    SHARD32_MAGIC = 20240801,  // tokens of 32 bits
    SHARD32_VERSION = 7
};
