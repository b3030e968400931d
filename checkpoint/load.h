// checkpoint/load.h: a checkpoint back into a model, on any number of ranks. Every rank reads its
// own pieces; the checksums of all ranks' pieces together have to be those of the index, so every
// byte that is used has been checked and none is read twice.
#pragma once

#include "folder.h"
#include "index.h"
#include "ranks.h"

// Reads PATH/index.json. Every rank reads it, so what is wrong is found alike on all.
static inline CheckpointIndex checkpoint_open(const char *path) {
    enum { MOST = 1 << 30 };
    char file[PATH_BYTES];
    path_print(file, "%s/index.json", path);
    int fd = open_check(file, O_RDONLY);
    uint64_t bytes = file_size(fd, file);
    if (bytes > MOST)
        die_all("%s: expected the index of a checkpoint, found %llu bytes", file,
                (unsigned long long)bytes);
    char *text = (char *)malloc_check(bytes);
    read_exact(fd, text, bytes, 0, file);
    close(fd);
    json_t *any = json_loadb(text, bytes, JSON_DECODE_ANY, NULL);
    if (!any) die_all("%s is %s: it is damaged", file, bytes ? "cut short or no JSON" : "empty");
    json_decref(any);
    CheckpointIndex x;
    Failure failure;
    if (!checkpoint_index_read(&x, text, bytes, &failure)) die_all("%s: %s", file, failure.text);
    model_check(&x.model, file);
    free(text);
    return x;
}

// Sizes of the files, and the header of model.bin, before anything is read from them.
static inline int checkpoint_open_array(const CheckpointIndex *x, const char *path, int a,
                                        char *file) {
    path_print(file, "%s/%s", path, checkpoint_arrays[a].file);
    int fd = open_check(file, O_RDONLY);
    uint64_t expected = checkpoint_file_bytes(x, a), bytes = file_size(fd, file);
    if (bytes != expected)
        die_all("%s: expected %llu bytes, found %llu; is it complete?", file,
                (unsigned long long)expected, (unsigned long long)bytes);
    if (!checkpoint_arrays[a].offset) return fd;
    int32_t header[256], found[256];
    model_file_header(header, &x->model, false);
    read_exact(fd, found, sizeof found, 0, file);
    if (memcmp(header, found, sizeof header))
        die_all("%s: its header is not that of the model in index.json: it is damaged", file);
    return fd;
}

// Reads one array's own pieces and adds their checksums to `sums`.
static inline void checkpoint_load_array(const Model *model, const CheckpointIndex *x, int a,
                                         int fd, const char *file, uint64_t *sums) {
    enum { PIECE = 1 << 20, AHEAD = 16 << 20 };  // bytes at a time, and that the disk is ahead
    size_t size = x->bytes[a], most = PIECE / size;
    void *host = malloc_check(PIECE);
    int count;
    const GptPiece *pieces = model->code->pieces(model->gpt, &count);
    for (int i = 0; i < count; i++) {
        const GptPiece *p = &pieces[i];
        for (size_t done = 0, n; done < p->n; done += n) {
            n = p->n - done < most ? p->n - done : most;
            size_t first = tensor_offset(&x->model, p->id, p->layer) + p->first + done;
            uint64_t offset = checkpoint_arrays[a].offset + first * size;
            file_read_ahead(fd, offset + AHEAD, n * size);
            read_exact(fd, host, n * size, offset, file);
            sums[checkpoint_sum(&x->model, a, p->id, p->layer)] +=
                checksum_part(host, n, size, p->first + done);
            model->code->write(model->gpt, checkpoint_arrays[a].array, host, p->at + done, n);
            process_alive();
        }
    }
    free(host);
}

static inline bool model_keeps(const Model *model, int a) {
    return model->code->element_bytes(model->gpt, checkpoint_arrays[a].array) > 0;
}

static inline void checkpoint_check_sums(const Model *model, const CheckpointIndex *x,
                                         const uint64_t *sums, const char *path) {
    for (int a = 0; a < CHECKPOINT_ARRAYS && model_keeps(model, a); a++)
        for (int id = 0; id < TENSORS; id++)
            for (int layer = 0; layer < tensor_layers(&x->model, id); layer++) {
                size_t at = checkpoint_sum(&x->model, a, id, layer);
                if (sums[at] != x->sums[at])
                    die_all("%s/%s: the checksum of %s, layer %d, does not match the index: the "
                            "file is damaged",
                            path, checkpoint_arrays[a].file, tensor_table[id].name, layer);
            }
}

// The model has the index's sizes and dtypes. What it does not keep stays in the files.
static inline void checkpoint_load(const Model *model, Ranks *ranks, const CheckpointIndex *x,
                                   const char *path) {
    size_t n = checkpoint_sums(&x->model);
    uint64_t *sums = (uint64_t *)calloc(n, sizeof(uint64_t));
    if (!sums) die("out of memory for the checksums of a checkpoint");
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
        char file[PATH_BYTES];
        if (!model_keeps(model, a)) continue;
        int fd = checkpoint_open_array(x, path, a, file);
        checkpoint_load_array(model, x, a, fd, file, sums);
        close(fd);
    }
    if (!model_writes(model)) memset(sums, 0, n * sizeof(uint64_t));  // replicas count once
    ranks_sum(ranks, sums, n);
    checkpoint_check_sums(model, x, sums, path);
    parameters_check(model, path);
    free(sums);
}
