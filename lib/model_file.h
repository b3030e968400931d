// lib/model_file.h: llm.c's model.bin, read and written piece by piece, so that no rank ever holds
// a whole model. 256 int32 of header, then all parameters in the order of tensors.h, fp32 or bf16.
// What is written appears under its name only when it is complete and on the disk.
#pragma once

#include "bf16.h"
#include "checksum.h"
#include "replace.h"
#include "tensors.h"

enum { MODEL_MAGIC = 20240326, MODEL_FP32 = 3, MODEL_BF16 = 5, MODEL_HEADER_BYTES = 1024 };

typedef struct {
    int fd;
    bool bf16;  // dtype of the file; the pieces that are read and written are always fp32
    ModelConfig m;
    char path[PATH_BYTES];  // what is open: the file, or its temporary form
} ModelFile;

static inline uint64_t model_file_size(const ModelConfig *m, bool bf16) {
    return MODEL_HEADER_BYTES + (uint64_t)model_parameters(m) * (bf16 ? 2 : 4);
}

static inline void model_file_header(int32_t header[256], const ModelConfig *m, bool bf16) {
    const int32_t used[] = {
        MODEL_MAGIC, bf16 ? MODEL_BF16 : MODEL_FP32, m->T, m->V, m->L, m->NH, m->C, m->Vp};
    memset(header, 0, MODEL_HEADER_BYTES);
    memcpy(header, used, sizeof used);
}

// Byte in the file at which element `first` of (tensor, layer) stands.
static inline uint64_t model_file_offset(const ModelFile *f, int id, int layer, size_t first) {
    return MODEL_HEADER_BYTES +
           (uint64_t)(tensor_offset(&f->m, id, layer) + first) * (f->bf16 ? 2 : 4);
}

// Opens for reading and checks magic, version, sizes and length.
static inline ModelFile model_file_open(const char *path) {
    ModelFile f;
    int32_t header[256];
    path_print(f.path, "%s", path);
    f.fd = open_check(path, O_RDONLY);
    uint64_t bytes = file_size(f.fd, path);
    if (bytes < sizeof header)
        die_all("%s: expected a model.bin, found a file of %llu bytes", path,
                (unsigned long long)bytes);
    read_exact(f.fd, header, sizeof header, 0, path);
    if (header[0] != MODEL_MAGIC)
        die_all("%s: expected a model.bin (magic %d), found magic %d", path, MODEL_MAGIC,
                header[0]);
    if (header[1] != MODEL_FP32 && header[1] != MODEL_BF16)
        die_all("%s: expected version %d (fp32) or %d (bf16), found %d", path, MODEL_FP32,
                MODEL_BF16, header[1]);
    f.bf16 = header[1] == MODEL_BF16;
    f.m.T = header[2], f.m.L = header[4], f.m.NH = header[5], f.m.C = header[6];
    f.m.V = header[3] > 0 ? header[3] : -1;
    model_check(&f.m, path);
    model_set_vocab(&f.m, f.m.V);
    if (header[7] != f.m.Vp)
        die_all("%s: expected a padded vocabulary of %d for V=%d, found %d", path, f.m.Vp, f.m.V,
                header[7]);
    uint64_t expected = model_file_size(&f.m, f.bf16);
    if (bytes != expected)
        die_all("%s: expected %llu bytes for its sizes, found %llu; is it complete?", path,
                (unsigned long long)expected, (unsigned long long)bytes);
    return f;
}

// Opens the temporary form of PATH for writing. `first` is true on the one rank that creates it,
// with its header and full size; the others open it after that.
static inline ModelFile model_file_create(const char *path, const ModelConfig *m, bool bf16,
                                          bool first) {
    ModelFile f;
    f.bf16 = bf16, f.m = *m;
    file_temporary(f.path, path);
    int32_t header[256];
    model_file_header(header, m, bf16);
    f.fd = open_shared(f.path, first, model_file_size(m, bf16), header, sizeof header);
    return f;
}

#define MODEL_FILE_PIECE ((size_t)8192)  // elements that are converted at a time

// Elements first .. first + n - 1 of (tensor, layer). Padded rows of wte come as zeros
// whatever the file says.
static inline void model_file_read(const ModelFile *f, float *dst, size_t n, int id, int layer,
                                   size_t first) {
    uint64_t at = model_file_offset(f, id, layer, first);
    uint16_t piece[MODEL_FILE_PIECE];
    if (!f->bf16) read_exact(f->fd, dst, n * sizeof(float), at, f->path);
    for (size_t i = 0; f->bf16 && i < n; i += MODEL_FILE_PIECE) {
        size_t count = n - i < MODEL_FILE_PIECE ? n - i : MODEL_FILE_PIECE;
        read_exact(f->fd, piece, count * 2, at + i * 2, f->path);
        for (size_t j = 0; j < count; j++) dst[i + j] = bf16_to_float(piece[j]);
    }
    size_t end = (size_t)f->m.V * (size_t)f->m.C;
    if (id != WTE || first + n <= end) return;
    for (size_t i = first < end ? end - first : 0; i < n; i++) dst[i] = 0.0f;
}

static inline void model_file_write(const ModelFile *f, const float *src, size_t n, int id,
                                    int layer, size_t first) {
    uint64_t at = model_file_offset(f, id, layer, first);
    uint16_t piece[MODEL_FILE_PIECE];
    if (!f->bf16) write_exact(f->fd, src, n * sizeof(float), at, f->path);
    for (size_t i = 0; f->bf16 && i < n; i += MODEL_FILE_PIECE) {
        size_t count = n - i < MODEL_FILE_PIECE ? n - i : MODEL_FILE_PIECE;
        for (size_t j = 0; j < count; j++) piece[j] = bf16_from_float(src[i + j]);
        write_exact(f->fd, piece, count * 2, at + i * 2, f->path);
    }
}

// Ends reading, or a rank's part in writing: what it wrote is on the disk afterwards.
static inline void model_file_close(ModelFile *f) {
    Failure failure;
    if (!sync_close_try(f->fd, f->path, &failure)) die("%s", failure.text);
    f->fd = -1;
}

// What identifies the weights: some bytes of the file, of a small one all.
static inline uint64_t model_file_checksum(const char *path) {
    ModelFile f = model_file_open(path);
    uint64_t sum = checksum_sample(f.fd, CHECKSUM_BLOCKS, path);
    model_file_close(&f);
    return sum;
}
