// lib/rng.h: random numbers that are a function of their position, so that nothing depends on who
// draws them or in what order. Philox 4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random
// numbers: as easy as 1, 2, 3"), normals by Box-Muller, and a permutation of [0, n) that needs no
// memory (Feistel network with cycle walking: Black & Rogaway 2002).
//
// Logarithm, sine and cosine are series written out here: the compiler vectorises them, and the
// initial weights are the same bits with every C library.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    uint32_t x[4];
} Philox;

// Ten rounds of the counter under the key.
static inline Philox philox(Philox counter, uint32_t key0, uint32_t key1) {
    uint32_t a = counter.x[0], b = counter.x[1], c = counter.x[2], d = counter.x[3];
    for (int round = 0; round < 10; round++) {
        uint64_t ma = (uint64_t)0xD2511F53u * a, mc = (uint64_t)0xCD9E8D57u * c;
        a = (uint32_t)(mc >> 32) ^ b ^ key0;
        c = (uint32_t)(ma >> 32) ^ d ^ key1;
        b = (uint32_t)mc, d = (uint32_t)ma;
        key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
    }
    Philox out = {{a, b, c, d}};
    return out;
}

// What a number is for keeps the streams of one seed apart.
enum { RNG_INIT = 1, RNG_SAMPLE = 2 };

static inline Philox rng_block(uint64_t seed, uint32_t purpose, uint32_t stream, uint64_t index) {
    Philox counter = {{(uint32_t)index, (uint32_t)(index >> 32), stream, purpose}};
    return philox(counter, (uint32_t)seed, (uint32_t)(seed >> 32));
}

// Uniform in [0, 1), 32 bits, for the index-th use of the stream.
static inline double rng_uniform(uint64_t seed, uint32_t purpose, uint32_t stream, uint64_t index) {
    return rng_block(seed, purpose, stream, index).x[0] * (1.0 / 4294967296.0);
}

// ln of a number in (0, 1] made of the upper 31 bits, within 1e-6.
static inline float rng_log(uint32_t bits) {
    float u = ((float)(int32_t)(bits >> 1) + 0.5f) * (1.0f / 2147483648.0f);
    int32_t i;
    memcpy(&i, &u, sizeof i);
    int32_t exponent =
        (i - 0x3f3504f3) >> 23;  // so that the mantissa m lies in [sqrt(1/2), sqrt(2))
    i -= exponent * (1 << 23);
    float m;
    memcpy(&m, &i, sizeof m);
    float s = (m - 1.0f) / (m + 1.0f), z = s * s;  // ln m = 2 artanh s
    float series = 1.0f + z * (1 / 3.0f + z * (1 / 5.0f + z * (1 / 7.0f + z * (1 / 9.0f))));
    return (float)exponent * 0.69314718056f + 2.0f * s * series;
}

// sin and cos of 2 pi bits / 2^32: the nearest quarter turn, and a Taylor series
// within an eighth of it.
static inline void rng_sincos(uint32_t bits, float *sine, float *cosine) {
    uint32_t quarter = (bits + 0x20000000u) >> 30;
    float x = (float)(int32_t)(bits - (quarter << 30)) * (float)(6.283185307179586 / 4294967296.0);
    float z = x * x;
    float s =
        x * (1 + z * (-1 / 6.0f + z * (1 / 120.0f + z * (-1 / 5040.0f + z * (1 / 362880.0f)))));
    float c = 1 + z * (-1 / 2.0f + z * (1 / 24.0f + z * (-1 / 720.0f + z * (1 / 40320.0f))));
    float s_turned = quarter & 1 ? c : s, c_turned = quarter & 1 ? s : c;
    *sine = quarter & 2 ? -s_turned : s_turned;
    *cosine = (quarter + 1) & 2 ? -c_turned : c_turned;
}

enum { RNG_BLOCKS = 64, RNG_PIECE = 4 * RNG_BLOCKS };  // Philox blocks and normals made at a time

// rng_block(seed, purpose, stream, index + i) for i in [0, RNG_BLOCKS), word by word: out[word][i].
static inline void rng_blocks(uint32_t out[4][RNG_BLOCKS], uint64_t seed, uint32_t purpose,
                              uint32_t stream, uint64_t index) {
    for (int i = 0; i < RNG_BLOCKS; i++) {
        uint64_t at = index + (uint64_t)i;
        out[0][i] = (uint32_t)at, out[1][i] = (uint32_t)(at >> 32);
        out[2][i] = stream, out[3][i] = purpose;
    }
    for (int round = 0; round < 10; round++) {
        uint32_t key0 = (uint32_t)seed + (uint32_t)round * 0x9E3779B9u;
        uint32_t key1 = (uint32_t)(seed >> 32) + (uint32_t)round * 0xBB67AE85u;
        for (int i = 0; i < RNG_BLOCKS; i++) {
            uint64_t ma = (uint64_t)0xD2511F53u * out[0][i], mc = (uint64_t)0xCD9E8D57u * out[2][i];
            out[0][i] = (uint32_t)(mc >> 32) ^ out[1][i] ^ key0;
            out[2][i] = (uint32_t)(ma >> 32) ^ out[3][i] ^ key1;
            out[1][i] = (uint32_t)mc, out[3][i] = (uint32_t)ma;
        }
    }
}

// Normals first .. first + RNG_PIECE - 1 of a stream; first is a multiple of 4. Loops of one kind
// of arithmetic each, which compilers turn into vector code.
static inline void rng_normal_piece(float *dst, uint64_t seed, uint32_t stream, uint64_t first,
                                    float std) {
    uint32_t r[4][RNG_BLOCKS];
    float radius[RNG_BLOCKS], sine[RNG_BLOCKS], cosine[RNG_BLOCKS];
    rng_blocks(r, seed, RNG_INIT, stream, first / 4);
    for (int pair = 0; pair < 4; pair += 2) {
        for (int i = 0; i < RNG_BLOCKS; i++) radius[i] = -2.0f * rng_log(r[pair][i]);
        for (int i = 0; i < RNG_BLOCKS; i++) rng_sincos(r[pair + 1][i], &sine[i], &cosine[i]);
        for (int i = 0; i < RNG_BLOCKS; i++) radius[i] = std * sqrtf(radius[i]);
        for (int i = 0; i < RNG_BLOCKS; i++) {
            dst[4 * i + pair] = radius[i] * cosine[i];
            dst[4 * i + pair + 1] = radius[i] * sine[i];
        }
    }
}

// dst[i] = normal first + i of the stream, times std. A piece of a tensor is the same numbers
// however the tensor is cut.
static inline void rng_normal_fill(float *dst, size_t n, uint64_t seed, uint32_t stream,
                                   uint64_t first, float std) {
    uint64_t start = first - first % 4;
    int64_t pieces = (int64_t)((first + n - start + RNG_PIECE - 1) / RNG_PIECE);
#pragma omp parallel for schedule(static) if (pieces > 16)  // starting threads costs, too
    for (int64_t p = 0; p < pieces; p++) {
        float piece[RNG_PIECE];
        uint64_t at = start + (uint64_t)p * RNG_PIECE;
        uint64_t from = at < first ? first : at;
        uint64_t to = at + RNG_PIECE < first + n ? at + RNG_PIECE : first + n;
        rng_normal_piece(piece, seed, stream, at, std);
        memcpy(dst + (from - first), piece + (from - at), (to - from) * sizeof(float));
    }
}

// Murmur3's 64-bit finaliser.
static inline uint64_t rng_mix(uint64_t x) {
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
    return x ^ (x >> 33);
}

// Where element i of [0, n) goes in the shuffle of this (seed, epoch): a bijection of [0, n).
static inline uint64_t rng_permute(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t i) {
    int half = 1;  // bits of a half of the network's block; 2^(2 half) >= n
    while (half < 32 && n > (uint64_t)1 << (2 * half)) half++;
    uint64_t mask = ((uint64_t)1 << half) - 1;
    uint64_t key = rng_mix(rng_mix(seed + 0x9E3779B97F4A7C15ull) + epoch);
    do {  // what falls outside [0, n) goes round again; at most 3 of 4 do
        uint64_t left = i >> half, right = i & mask;
        for (uint64_t round = 0; round < 8; round++) {
            uint64_t f = rng_mix(key + round * 0x9E3779B97F4A7C15ull + right) & mask;
            uint64_t old = left;
            left = right, right = old ^ f;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}
