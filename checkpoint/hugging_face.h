// checkpoint/hugging_face.h: parameters from and to a folder of Hugging Face's transformers:
// config.json and model.safetensors of a GPT-2. Each rank reads and writes its own pieces. Larger
// models come in several files, which model.safetensors.index.json lists; it is written as one.
#pragma once

#include "lib/hf_gpt2.h"
#include "lib/safetensors.h"
#include "parameters.h"

typedef struct {
    int fd;
    char path[PATH_BYTES];
} HfFile;

typedef struct {
    const HfFile *file;  // NULL: none
    uint64_t at;         // byte of its first element
    SafeDtype dtype;
} HfTensor;

typedef struct {
    ModelConfig m;
    HfFile **files;  // (nfiles)
    int nfiles;
    HfTensor *tensors;  // (L, TENSORS)
    HfTensor head;      // lm_head.weight, where it stands beside wte.weight
} HfModel;

static inline HfTensor *hf_tensor(const HfModel *h, int id, int layer) {
    return &h->tensors[layer * TENSORS + id];
}

static inline HfModel hf_make(const ModelConfig *m) {
    HfModel h = {};
    h.m = *m;
    h.tensors = (HfTensor *)calloc((size_t)m->L * TENSORS, sizeof(HfTensor));
    if (!h.tensors) die("out of memory for the tensors of %d blocks", m->L);
    return h;
}

static inline HfFile *hf_add_file(HfModel *h, const char *path) {
    HfFile *file = (HfFile *)malloc_check(sizeof *file);
    h->files = (HfFile **)realloc(h->files, (size_t)(h->nfiles + 1) * sizeof(HfFile *));
    if (!h->files) die("out of memory for the names of %d files", h->nfiles + 1);
    h->files[h->nfiles++] = file;
    path_print(file->path, "%s", path);
    return file;
}

static inline void hf_close(HfModel *h) {
    for (int i = 0; i < h->nfiles; i++) {
        close(h->files[i]->fd);
        free(h->files[i]);
    }
    free(h->files);
    free(h->tensors);
}

// ---- opening: everything is checked but the elements -------------------------------------------

// A shape as text, to be printed by the caller.
typedef struct {
    char text[SAFETENSORS_DIMS * 22];
} HfShape;

static inline HfShape hf_print_shape(int dims, const uint64_t *shape) {
    HfShape s = {""};
    size_t used = 0;
    for (int i = 0; i < dims; i++)
        used += (size_t)snprintf(s.text + used, sizeof s.text - used, "%s%llu", i ? "," : "",
                                 (unsigned long long)shape[i]);
    return s;
}

static inline void hf_check_shape(const HfFile *file, const SafeTensor *t, int dims,
                                  const uint64_t *shape) {
    if (t->dims == dims && !memcmp(t->shape, shape, (size_t)dims * sizeof *shape)) return;
    die_all("%s: expected %.100s of shape [%s], as config.json has it, found [%s]", file->path,
            t->name, hf_print_shape(dims, shape).text, hf_print_shape(t->dims, t->shape).text);
}

static inline void hf_take_tensor(HfModel *h, const HfFile *file, const SafeTensor *t,
                                  uint64_t data) {
    int id = WTE, layer = 0;  // of the head too
    HfKind kind = hf_find(&h->m, t->name, &id, &layer);
    uint64_t shape[2];
    if (kind == HF_BUFFER) return;
    if (kind == HF_UNKNOWN)
        die_all("%s: %.100s is no tensor of a GPT-2 of %d layers", file->path, t->name, h->m.L);
    hf_check_shape(file, t, hf_shape(&h->m, id, shape), shape);
    HfTensor *own = kind == HF_TIED_HEAD ? &h->head : hf_tensor(h, id, layer);
    if (own->file) die_all("%s: %.100s is there a second time", file->path, t->name);
    own->file = file, own->at = data + t->begin;
    own->dtype = safe_dtypes[t->dtype].dtype;
    if (own->dtype == SAFE_OTHER)
        die_all("%s: expected %.100s as F32, F16 or BF16, found %s", file->path, t->name,
                safe_dtypes[t->dtype].name);
}

static inline void hf_open_file(HfModel *h, const char *folder, const char *name) {
    char path[PATH_BYTES];
    path_print(path, "%s/%s", folder, name);
    HfFile *file = hf_add_file(h, path);
    SafeHeader header = {};
    Failure failure;
    uint64_t data = 0;
    file->fd = open_check(file->path, O_RDONLY);
    if (!safetensors_read(&header, file->fd, file->path, &data, &failure))
        die_all("%s", failure.text);
    for (size_t i = 0; i < header.count; i++) hf_take_tensor(h, file, &header.tensors[i], data);
    safetensors_free(&header);
}

// Opens the files that an index maps names to; each lies beside it.
static inline void hf_open_files(HfModel *h, const char *folder, const char *index) {
    size_t bytes;
    char *text = read_all(index, SAFETENSORS_MOST, &bytes);
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error), *value;
    if (!root) die_all("%s:%d: %s", index, error.line, error.text);
    const char *tensor;
    json_t *map = json_object_get(root, "weight_map");
    if (!json_object_size(map)) die_all("%s: expected a weight_map from names to files", index);
    json_object_foreach(map, tensor, value) {
        const char *name = json_string_value(value);
        if (!name || !name[0] || strchr(name, '/'))
            die_all("%s: expected the name of a file for %.100s", index, tensor);
        bool open = false;
        for (int i = 0; i < h->nfiles; i++)
            open = open || !strcmp(path_name(h->files[i]->path), name);
        if (!open) hf_open_file(h, folder, name);
    }
    json_decref(root);
    free(text);
}

static inline void hf_check_complete(HfModel *h, const char *folder) {
    HfTensor *wte = hf_tensor(h, WTE, 0);
    if (!wte->file) *wte = h->head, h->head.file = NULL;  // tied: either may stand for both
    for (int id = 0; id < TENSORS; id++)
        for (int layer = 0; layer < tensor_layers(&h->m, id); layer++)
            if (!hf_tensor(h, id, layer)->file)
                die_all("%s: expected the tensor %s, found none", folder, hf_name(id, layer).text);
}

static inline HfModel hf_open(const char *folder) {
    char path[PATH_BYTES], index[PATH_BYTES];
    size_t bytes;
    Failure failure;
    ModelConfig m;
    path_print(path, "%s/config.json", folder);
    if (access(path, F_OK) != 0)
        die_all("%s: expected a Hugging Face GPT-2, found no config.json", folder);
    char *text = read_all(path, 1 << 24, &bytes);
    if (!hf_config_parse(&m, text, bytes, &failure)) die_all("%s: %s", path, failure.text);
    free(text);
    HfModel h = hf_make(&m);
    path_print(path, "%s/model.safetensors", folder);
    path_print(index, "%s/model.safetensors.index.json", folder);
    if (access(path, F_OK) == 0)
        hf_open_file(&h, folder, "model.safetensors");
    else if (access(index, F_OK) == 0)
        hf_open_files(&h, folder, index);
    else
        die_all("%s: expected model.safetensors or model.safetensors.index.json, found neither",
                folder);
    hf_check_complete(&h, folder);
    return h;
}

// Does --model name a folder?
static inline bool model_is_hf(const char *text) {
    return model_is_file(text) && is_folder(text);
}

// The sizes of the model in a folder.
static inline ModelConfig hf_model(const char *folder) {
    HfModel h = hf_open(folder);
    ModelConfig m = h.m;
    hf_close(&h);
    return m;
}

// What identifies the weights in a folder: some bytes of each file, of small ones all.
static inline uint64_t hf_checksum(const char *folder) {
    HfModel h = hf_open(folder);
    uint64_t sum = (uint64_t)h.nfiles;
    for (int i = 0; i < h.nfiles; i++)
        sum = sum * 31 + checksum_sample(h.files[i]->fd, (uint64_t)(CHECKSUM_BLOCKS / h.nfiles + 2),
                                         h.files[i]->path);
    hf_close(&h);
    return sum;
}

// ---- transposing -------------------------------------------------------------------------------

// A piece of a matrix (rows, C) of ours, which a file has as (C, rows): row c of the file is our
// column c. The piece touches `width` of our rows, from `row` on; in column c it has those from
// turn_begin(c) to turn_end(c). Elements pass through a block of some of the file's rows.
typedef struct {
    size_t rows, C;
    size_t first, n;       // the piece
    size_t row, column;    // of ours, where it begins
    size_t last, stop;     // and where it ends: the element behind it
    size_t width, stride;  // of the block's rows
} HfTurn;

#define HF_BLOCK ((size_t)1 << 20)  // elements

static inline HfTurn hf_turn(const ModelConfig *m, const GptPiece *piece) {
    HfTurn t;
    size_t end = piece->first + piece->n;
    t.rows = tensor_rows(m, piece->id), t.C = tensor_cols(m, piece->id);
    t.first = piece->first, t.n = piece->n;
    t.row = t.first / t.C, t.column = t.first % t.C;
    t.last = end / t.C, t.stop = end % t.C;
    t.stride = t.width = t.last + (t.stop > 0) - t.row;
    return t;
}

// Both count from `row`.
static inline size_t turn_begin(const HfTurn *t, size_t c) {
    return c < t->column;
}

static inline size_t turn_end(const HfTurn *t, size_t c) {
    return t->last - t->row + (c < t->stop);
}

// Rows of a block.
static inline size_t turn_height(const HfTurn *t) {
    return t->stride < HF_BLOCK ? HF_BLOCK / t->stride : 1;
}

// Copies between the file's rows c .. c + count - 1 in the block and the piece, in tiles that stay
// in the cache.
static inline void turn_copy(const HfTurn *t, float *block, float *piece, size_t c, size_t count,
                             bool to_block) {
    enum { TILE = 16 };
    for (size_t top = 0; top < count; top += TILE)
        for (size_t left = 0; left < t->width; left += TILE)
            for (size_t i = top; i < top + TILE && i < count; i++) {
                size_t begin = turn_begin(t, c + i), end = turn_end(t, c + i);
                if (begin < left) begin = left;
                if (end > left + TILE) end = left + TILE;
                for (size_t j = begin; j < end; j++) {
                    float *x = &block[i * t->stride + j];
                    float *y = &piece[(t->row + j) * t->C + c + i - t->first];
                    if (to_block)
                        *x = *y;
                    else
                        *y = *x;
                }
            }
}

// Elements of a piece that a file has: the rows that pad the vocabulary are not among them.
static inline size_t hf_elements(const ModelConfig *m, const GptPiece *p) {
    size_t end = p->id == WTE ? (size_t)m->V * (size_t)m->C : tensor_size(m, p->id);
    return p->first >= end ? 0 : p->n < end - p->first ? p->n : end - p->first;
}

// ---- loading -----------------------------------------------------------------------------------

#define HF_PIECE ((size_t)8192)  // elements that are converted at a time

// n elements of a tensor as they lie in its file.
static inline void hf_read(const HfTensor *t, float *dst, size_t n, size_t first) {
    uint16_t piece[HF_PIECE];
    size_t size = t->dtype == SAFE_F32 ? 4 : 2;
    uint64_t at = t->at + (uint64_t)first * size;
    if (size == 4) read_exact(t->file->fd, dst, n * size, at, t->file->path);
    for (size_t i = 0; size == 2 && i < n; i += HF_PIECE) {
        size_t count = n - i < HF_PIECE ? n - i : HF_PIECE;
        read_exact(t->file->fd, piece, count * size, at + i * size, t->file->path);
        safetensors_to_float(dst + i, piece, count, t->dtype);
    }
}

// Reads from the file's rows only what the piece needs, unless that is a good part of them: then
// whole rows, in large pieces.
static inline void hf_read_turned(const HfTensor *tensor, HfTurn t, float *dst) {
    bool whole = t.width * 4 >= t.rows;
    if (whole) t.stride = t.rows;
    size_t height = turn_height(&t);
    float *block = (float *)malloc_check(height * t.stride * sizeof(float));
    for (size_t c = 0; c < t.C; c += height) {
        size_t count = t.C - c < height ? t.C - c : height;
        if (whole) hf_read(tensor, block, (count - 1) * t.rows + t.width, c * t.rows + t.row);
        for (size_t i = 0; !whole && i < count; i++)
            hf_read(tensor, block + i * t.stride, t.width, (c + i) * t.rows + t.row);
        turn_copy(&t, block, dst, c, count, false);
    }
    free(block);
}

// Rows that pad the vocabulary are zero.
static inline void hf_read_piece(const HfModel *h, const HfTensor *tensor, float *dst,
                                 const GptPiece *p) {
    size_t n = hf_elements(&h->m, p);
    if (hf_transposed(p->id))
        hf_read_turned(tensor, hf_turn(&h->m, p), dst);
    else
        hf_read(tensor, dst, n, p->first);
    for (size_t i = n; i < p->n; i++) dst[i] = 0.0f;
}

// `name[row,column]` of element i of a piece, as the file has them.
typedef struct {
    char text[128];
} HfElement;

static inline HfElement hf_element(const HfModel *h, const GptPiece *p, size_t i) {
    HfElement e;
    size_t C = tensor_cols(&h->m, p->id), row = (p->first + i) / C, column = (p->first + i) % C;
    HfName name = hf_name(p->id, p->layer);
    if (tensor_table[p->id].cols == DIM_1)
        snprintf(e.text, sizeof e.text, "%s[%zu]", name.text, row);
    else if (hf_transposed(p->id))
        snprintf(e.text, sizeof e.text, "%s[%zu,%zu]", name.text, column, row);
    else
        snprintf(e.text, sizeof e.text, "%s[%zu,%zu]", name.text, row, column);
    return e;
}

// lm_head.weight has to be wte.weight again.
static inline void hf_check_head(const HfModel *h, const float *wte, const GptPiece *p) {
    float *head = (float *)malloc_check(p->n * sizeof(float));
    hf_read_piece(h, &h->head, head, p);
    for (size_t i = 0; i < p->n; i++)
        if (head[i] != wte[i])
            die("%s: expected " HF_HEAD " to be wte.weight, found %g and %g at %s",
                h->head.file->path, (double)head[i], (double)wte[i], hf_element(h, p, i).text);
    free(head);
}

static inline void hf_load_chunk(const Model *m, void *context, float *host, const GptPiece *c) {
    const HfModel *h = (const HfModel *)context;
    const HfTensor *tensor = hf_tensor(h, c->id, c->layer);
    hf_read_piece(h, tensor, host, c);
    size_t finite = finite_elements(host, c->n);
    if (finite < c->n)
        die("%s: expected finite weights, found %g at %s", tensor->file->path, (double)host[finite],
            hf_element(h, c, finite).text);
    if (c->id == WTE && h->head.file) hf_check_head(h, host, c);
    m->code->write(m->gpt, GPT_PARAMETERS, host, c->at, c->n);
}

// The folder's sizes are the model's (the program has made it so).
static inline void hf_load(const Model *m, const char *folder) {
    HfModel h = hf_open(folder);
    for_each_chunk(m, hf_load_chunk, &h);
    hf_close(&h);
}

// ---- saving ------------------------------------------------------------------------------------

static inline void hf_write(const HfTensor *t, const float *src, size_t n, size_t first) {
    write_exact(t->file->fd, src, n * sizeof(float), t->at + (uint64_t)first * sizeof(float),
                t->file->path);
}

// What other ranks own lies between the rows' elements: each row is written alone, unless the piece
// is the whole matrix.
static inline void hf_write_turned(const HfTensor *tensor, const HfTurn *t, float *src) {
    bool whole = t->n == t->rows * t->C;
    size_t height = turn_height(t);
    float *block = (float *)malloc_check(height * t->stride * sizeof(float));
    for (size_t c = 0; c < t->C; c += height) {
        size_t count = t->C - c < height ? t->C - c : height;
        turn_copy(t, block, src, c, count, true);
        if (whole) hf_write(tensor, block, count * t->rows, c * t->rows);
        for (size_t i = 0; !whole && i < count; i++) {
            size_t begin = turn_begin(t, c + i), end = turn_end(t, c + i);
            if (begin < end)
                hf_write(tensor, block + i * t->stride + begin, end - begin,
                         (c + i) * t->rows + t->row + begin);
        }
    }
    free(block);
}

static inline void hf_save_chunk(const Model *m, void *context, float *host, const GptPiece *c) {
    const HfModel *h = (const HfModel *)context;
    const HfTensor *tensor = hf_tensor(h, c->id, c->layer);
    m->code->read(m->gpt, GPT_PARAMETERS, host, c->at, c->n);
    if (!hf_transposed(c->id)) {
        hf_write(tensor, host, hf_elements(&h->m, c), c->first);
    } else {
        HfTurn t = hf_turn(&h->m, c);
        hf_write_turned(tensor, &t, host);
    }
}

// The tensors in the temporary form of FOLDER/model.safetensors, one behind the other from byte 0.
static inline HfModel hf_layout(const char *folder, const ModelConfig *m, json_t *header,
                                uint64_t *bytes) {
    HfModel h = hf_make(m);
    char path[PATH_BYTES], temporary[PATH_BYTES];
    path_print(path, "%s/model.safetensors", folder);
    file_temporary(temporary, path);
    HfFile *file = hf_add_file(&h, temporary);
    *bytes = 0;
    for (int layer = 0; layer < m->L; layer++)
        for (int id = 0; id < TENSORS; id++) {
            if (layer >= tensor_layers(m, id)) continue;
            uint64_t shape[2];
            int dims = hf_shape(m, id, shape);
            *hf_tensor(&h, id, layer) = (HfTensor){file, *bytes, SAFE_F32};
            safetensors_add(header, hf_name(id, layer).text, dims, shape, bytes);
        }
    return h;
}

// Lays the model out and opens the file, on `first` anew.
static inline HfModel hf_create(const char *folder, const ModelConfig *m, bool first) {
    // transformers wants to know whose it is
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    uint64_t bytes;
    size_t head;
    HfModel h = hf_layout(folder, m, header, &bytes);
    char *text = safetensors_text(header, &head);
    for (int i = 0; i < m->L * TENSORS; i++) h.tensors[i].at += head;
    h.files[0]->fd = open_shared(h.files[0]->path, first, head + bytes, text, head);
    free(text);
    json_decref(header);
    return h;
}

static inline void hf_write_config(const char *path, const ModelConfig *m, int end_of_text) {
    char staged[PATH_BYTES], *text = hf_config_text(m, end_of_text);
    Failure failure;
    file_temporary(staged, path);
    int fd = open_shared(staged, true, strlen(text), text, strlen(text));
    if (!sync_close_try(fd, staged, &failure)) die("%s", failure.text);
    free(text);
}

// The weights get their name last: without them a folder is no model.
static inline void hf_publish(const char *folder, const ModelConfig *m, int end_of_text) {
    char config[PATH_BYTES], weights[PATH_BYTES];
    const char *paths[] = {config, weights};
    path_print(config, "%s/config.json", folder);
    path_print(weights, "%s/model.safetensors", folder);
    hf_write_config(config, m, end_of_text);
    files_set_aside(paths, 2);
    publish(config);
    publish(weights);
}

// Writes the parameters to a folder that is there; returns when all ranks have written their part.
// end_of_text: its token, -1: unknown.
static inline void hf_save(const Model *m, const char *folder, int end_of_text) {
    const ModelConfig *sizes = &m->config->model;
    bool first = m->config->fsdp.rank == 0;
    HfModel h = {};
    parameters_check(m, folder);
    if (first) h = hf_create(folder, sizes, true);
    m->code->arrive(m->gpt);
    if (model_writes(m)) {
        if (!first) h = hf_create(folder, sizes, false);
        for_each_chunk(m, hf_save_chunk, &h);
        if (fsync(h.files[0]->fd) != 0)
            die("cannot write %s: %s", h.files[0]->path, strerror(errno));
        hf_close(&h);
    }
    m->code->arrive(m->gpt);
    if (first) hf_publish(folder, sizes, end_of_text);
}
