// lib/safetensors.h: the header of a .safetensors file, in and out: 8 bytes (little-endian) with
// the length of a JSON text, the text, then the tensors' elements, row by row, in little-endian.
//
//   {"__metadata__": {"format": "pt"},
//    "wte.weight": {"dtype": "F32", "shape": [257, 64], "data_offsets": [0, 65792]}, ...}
//
// Offsets count from the end of the text; the tensors fill the rest of the file without gaps
// (https://huggingface.co/docs/safetensors, "Format").
#pragma once

#include "bf16.h"
#include "files.h"

#include <jansson.h>

#define SAFETENSORS_MOST ((uint64_t)100000000)  // bytes of the text, as the format has it
enum { SAFETENSORS_LENGTH = 8, SAFETENSORS_DIMS = 8 };

typedef enum { SAFE_F32, SAFE_F16, SAFE_BF16, SAFE_OTHER } SafeDtype;

static const struct {
    const char *name;
    int bits;
    SafeDtype dtype;
} safe_dtypes[] = {
    {"F32", 32, SAFE_F32},      {"F16", 16, SAFE_F16},      {"BF16", 16, SAFE_BF16},
    {"F64", 64, SAFE_OTHER},    {"I64", 64, SAFE_OTHER},    {"U64", 64, SAFE_OTHER},
    {"C64", 64, SAFE_OTHER},    {"I32", 32, SAFE_OTHER},    {"U32", 32, SAFE_OTHER},
    {"I16", 16, SAFE_OTHER},    {"U16", 16, SAFE_OTHER},    {"I8", 8, SAFE_OTHER},
    {"U8", 8, SAFE_OTHER},      {"BOOL", 8, SAFE_OTHER},    {"F8_E4M3", 8, SAFE_OTHER},
    {"F8_E5M2", 8, SAFE_OTHER}, {"F8_E8M0", 8, SAFE_OTHER},
};
enum { SAFE_DTYPES = sizeof safe_dtypes / sizeof safe_dtypes[0] };

typedef struct {
    const char *name;  // in the header's JSON
    int dtype;         // row of safe_dtypes
    int dims;
    uint64_t shape[SAFETENSORS_DIMS];
    uint64_t begin, end;  // bytes of the data
} SafeTensor;

typedef struct {
    json_t *json;
    SafeTensor *tensors;  // (count), in the order of their data
    size_t count;
} SafeHeader;

// ---- reading -----------------------------------------------------------------------------------

static inline void safetensors_free(SafeHeader *h) {
    json_decref(h->json);
    free(h->tensors);
    *h = (SafeHeader){};
}

// An integer from 0; false if it is something else.
static inline bool safe_size(const json_t *value, uint64_t *size) {
    json_int_t n = json_integer_value(value);
    *size = (uint64_t)n;
    return json_is_integer(value) && n >= 0;
}

static inline bool safe_read_dtype(SafeTensor *t, const json_t *entry, Failure *failure) {
    const json_t *dtype = json_object_get(entry, "dtype");
    const char *name = json_string_value(dtype);
    for (t->dtype = 0; name && t->dtype < SAFE_DTYPES; t->dtype++)
        if (!strcmp(safe_dtypes[t->dtype].name, name)) return true;
    return fails(failure, "expected a dtype of %.100s such as F32, found %.100s", t->name,
                 name ? name : "none");
}

static inline bool safe_read_shape(SafeTensor *t, const json_t *entry, Failure *failure) {
    const json_t *shape = json_object_get(entry, "shape");
    size_t dims = json_array_size(shape);
    if (!json_is_array(shape) || dims > SAFETENSORS_DIMS)
        return fails(failure, "expected a shape of %.100s of at most %d dimensions", t->name,
                     SAFETENSORS_DIMS);
    t->dims = (int)dims;
    for (size_t i = 0; i < dims; i++)
        if (!safe_size(json_array_get(shape, i), &t->shape[i]))
            return fails(failure, "expected sizes from 0 in the shape of %.100s", t->name);
    return true;
}

// Elements of the shape; false if they are more than 64 bits can count.
static inline bool safe_elements(const SafeTensor *t, uint64_t *elements) {
    *elements = 1;
    bool fits = true;
    for (int i = 0; i < t->dims; i++)
        fits = !__builtin_mul_overflow(*elements, t->shape[i], elements) && fits;
    return fits;
}

static inline bool safe_read_offsets(SafeTensor *t, const json_t *entry, Failure *failure) {
    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (json_array_size(offsets) != 2 || !safe_size(json_array_get(offsets, 0), &t->begin) ||
        !safe_size(json_array_get(offsets, 1), &t->end) || t->begin > t->end)
        return fails(failure, "expected data_offsets [begin, end] of %.100s with 0 <= begin <= end",
                     t->name);
    uint64_t bytes;
    if (!safe_elements(t, &bytes) ||
        __builtin_mul_overflow(bytes, (uint64_t)safe_dtypes[t->dtype].bits / 8, &bytes) ||
        bytes != t->end - t->begin)
        return fails(failure, "%.100s: its data_offsets span %llu bytes, not those of its shape",
                     t->name, (unsigned long long)(t->end - t->begin));
    return true;
}

static inline int safe_compare(const void *a, const void *b) {
    const SafeTensor *x = (const SafeTensor *)a, *y = (const SafeTensor *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

// The tensors, sorted, have to fill data_bytes.
static inline bool safe_check_data(const SafeHeader *h, uint64_t data_bytes, Failure *failure) {
    uint64_t at = 0;
    for (size_t i = 0; i < h->count; at = h->tensors[i++].end)
        if (h->tensors[i].begin != at)
            return fails(failure, "%.100s begins at byte %llu of the data, %s byte %llu",
                         h->tensors[i].name, (unsigned long long)h->tensors[i].begin,
                         h->tensors[i].begin < at ? "inside the tensor that ends at"
                                                  : "expected to follow the one that ends at",
                         (unsigned long long)at);
    if (at != data_bytes)
        return fails(failure, "expected %llu bytes of data, found %llu; is it complete?",
                     (unsigned long long)at, (unsigned long long)data_bytes);
    return true;
}

static inline bool safe_read_entries(SafeHeader *h, Failure *failure) {
    const char *name;
    json_t *entry;
    json_object_foreach(h->json, name, entry) {
        if (!strcmp(name, "__metadata__")) continue;
        SafeTensor *t = &h->tensors[h->count];
        t->name = name;
        if (!json_is_object(entry))
            return fails(failure, "expected dtype, shape and data_offsets of %.100s", name);
        if (!safe_read_dtype(t, entry, failure) || !safe_read_shape(t, entry, failure) ||
            !safe_read_offsets(t, entry, failure))
            return false;
        h->count++;
    }
    return true;
}

// Reads the text of a header in front of data_bytes bytes of data. What is wrong is one line.
static inline bool safetensors_parse(SafeHeader *h, const char *text, size_t bytes,
                                     uint64_t data_bytes, Failure *failure) {
    json_error_t error;
    *h = (SafeHeader){};
    if (!bytes || text[0] != '{')
        return fails(failure, "expected a header that begins with `{`; is it a safetensors file?");
    h->json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!h->json) return fails(failure, "its header is no JSON: %s", error.text);
    size_t most = json_object_size(h->json);
    h->tensors = (SafeTensor *)malloc_check(most * sizeof *h->tensors);
    bool ok = safe_read_entries(h, failure);
    if (ok) qsort(h->tensors, h->count, sizeof *h->tensors, safe_compare);
    ok = ok && safe_check_data(h, data_bytes, failure);
    if (!ok) safetensors_free(h);
    return ok;
}

static inline uint64_t safe_length(const unsigned char bytes[SAFETENSORS_LENGTH]) {
    uint64_t n = 0;
    for (int i = SAFETENSORS_LENGTH - 1; i >= 0; i--) n = n << 8 | bytes[i];
    return n;
}

// Reads the header of an open file; *data becomes the byte at which the data begin.
static inline bool safetensors_read(SafeHeader *h, int fd, const char *path, uint64_t *data,
                                    Failure *failure) {
    unsigned char first[SAFETENSORS_LENGTH];
    uint64_t size = file_size(fd, path);
    if (size < sizeof first)
        return fails(failure, "%s: expected a safetensors file, found %llu bytes", path,
                     (unsigned long long)size);
    if (!read_try(fd, first, sizeof first, 0, path, failure)) return false;
    uint64_t bytes = safe_length(first), most = size - sizeof first;
    if (most > SAFETENSORS_MOST) most = SAFETENSORS_MOST;
    if (bytes > most)
        return fails(failure, "%s: expected a header of at most %llu bytes, found a length of %llu",
                     path, (unsigned long long)most, (unsigned long long)bytes);
    char *text = (char *)malloc_check(bytes);
    Failure why = {""};
    *data = sizeof first + bytes;
    bool ok = read_try(fd, text, bytes, sizeof first, path, failure);
    if (ok && !safetensors_parse(h, text, bytes, size - *data, &why))
        ok = fails(failure, "%s: %s", path, why.text);
    free(text);
    return ok;
}

// fp16: 5 bits of exponent, biased by 15, and 10 of fraction. Exact.
static inline float fp16_to_float(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, exponent = bits >> 10 & 31u;
    uint32_t fraction = bits & 0x3ffu, u = sign;
    if (exponent == 0) {  // a multiple of 2^-24
        float x = (float)fraction * 0x1p-24f;
        return sign ? -x : x;
    }
    u |= (exponent == 31 ? 255u : exponent + 127 - 15) << 23 | fraction << 13;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

// Elements of one of the three dtypes as fp32.
static inline void safetensors_to_float(float *dst, const void *src, size_t n, SafeDtype dtype) {
    const uint16_t *halves = (const uint16_t *)src;
    if (dtype == SAFE_F32) memcpy(dst, src, n * sizeof(float));
    for (size_t i = 0; dtype == SAFE_BF16 && i < n; i++) dst[i] = bf16_to_float(halves[i]);
    for (size_t i = 0; dtype == SAFE_F16 && i < n; i++) dst[i] = fp16_to_float(halves[i]);
}

// ---- writing -----------------------------------------------------------------------------------

// Adds a tensor of fp32 behind the ones there; *at is the end of the data.
static inline void safetensors_add(json_t *header, const char *name, int dims,
                                   const uint64_t *shape, uint64_t *at) {
    json_t *sizes = json_array();
    uint64_t bytes = sizeof(float), begin = *at;
    for (int i = 0; i < dims; i++) {
        json_array_append_new(sizes, json_integer((json_int_t)shape[i]));
        bytes *= shape[i];
    }
    *at += bytes;
    json_object_set_new(header, name,
                        json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", sizes,
                                  "data_offsets", (json_int_t)begin, (json_int_t)*at));
}

// All that stands in front of the data: length and text, padded to a multiple of 8 bytes. The
// caller frees it.
static inline char *safetensors_text(const json_t *header, size_t *bytes) {
    char *json = json_dumps(header, JSON_COMPACT);
    if (!json) die("out of memory for the header of a safetensors file");
    size_t n = strlen(json), padded = (n + 7) / 8 * 8;
    *bytes = SAFETENSORS_LENGTH + padded;
    char *text = (char *)malloc_check(*bytes);
    for (int i = 0; i < SAFETENSORS_LENGTH; i++) text[i] = (char)(padded >> 8 * i & 255);
    memcpy(text + SAFETENSORS_LENGTH, json, n);
    memset(text + SAFETENSORS_LENGTH + n, ' ', padded - n);
    free(json);
    return text;
}
