// dataloader.h: files to micro-batches of tokens. Files are llm.c token shards (uint16 or uint32)
// or plain text, read as bytes: token 256 (end of text), then the file's bytes.
//
// A sample is T tokens and, as targets, the same tokens one further on. It lies within one file, so
// that a file without T+1 tokens gives none; samples of a file follow each other every T tokens, so
// the last target of one is the first token of the next. A micro-batch is B neighbours of the
// global order of samples, and a sample of that order is a function of its number alone: no
// position is kept, so any number of ranks and any resumed run get the same data. With shuffling
// the order goes on for ever, each epoch a new permutation of all samples; without, it ends, and
// rows behind the end have target -1.
//
// One thread reads a step ahead. What it cannot read is reported by the fetch of that step: the run
// is whole then, and can be saved.
#pragma once

#include "lib/checksum.h"
#include "lib/foreign.h"
#include "lib/paths.h"
#include "lib/rng.h"
#include "lib/shard.h"

#include <pthread.h>

enum { TEXT_EOT = 256, TEXT_VOCAB = 257, SHARD_VOCAB = 50257 };
typedef enum { DATA_TEXT, DATA_UINT16, DATA_UINT32 } DataKind;
typedef enum { AHEAD_EMPTY, AHEAD_READING, AHEAD_READY, AHEAD_STOP } DataAhead;

// The micro-batches of one rank in a step: number k is samples first + k*stride .. + B - 1.
typedef struct {
    uint64_t first, stride;
    int count;
} DataSpan;

typedef struct {
    const char *path;
    DataKind kind;
    uint64_t tokens;
    uint64_t first_sample;  // in the unshuffled order
} DataFile;

// Descriptors kept open; a data set may have more files than a process may open.
enum { OPEN_FILES = 64 };

typedef struct {
    int B, T, V;
    uint64_t seed;
    bool shuffle;
    uint64_t samples, tokens;     // of an epoch; tokens of all files
    uint64_t short_tokens;        // of the short files
    int file_count, short_files;  // short: no sample in them
    DataFile *files;
    struct {
        int file, fd;  // file -1: none
    } open_files[OPEN_FILES];
    void *raw;  // one sample as it lies in the file

    // Read-ahead: one thread, one step.
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool has_thread;
    DataAhead ahead;
    DataSpan ahead_span;
    int *ahead_inputs;  // (ahead_span.count,2,B,T): tokens and targets of each micro-batch
    int ahead_room;     // micro-batches it has room for
    bool ahead_ok;
    Failure ahead_failure;
} DataLoader;

// ---- files -------------------------------------------------------------------------------------

static inline const char *data_kind_name(DataKind kind) {
    return kind == DATA_TEXT ? "text" : kind == DATA_UINT16 ? "uint16 shard" : "uint32 shard";
}

static inline size_t data_token_bytes(DataKind kind) {
    return kind == DATA_TEXT ? 1 : kind == DATA_UINT16 ? 2 : 4;
}

static inline bool data_is_named_bin(const char *path) {
    size_t length = strlen(path);
    return length > 4 && !strcmp(path + length - 4, ".bin");
}

// A file without a shard's header: text, or it ends the run with what it looks like.
static inline void data_check_text(int fd, uint64_t bytes, const char *path) {
    unsigned char head[FOREIGN_BYTES];
    size_t n = bytes < sizeof head ? (size_t)bytes : sizeof head;
    bool is_bin = data_is_named_bin(path);
    read_exact(fd, head, n, 0, path);
    const char *kind = foreign_kind(head, n);
    if (!kind && is_bin) kind = "text; give it a name that does not end in .bin";
    if (kind) die_all("%s: expected %s, found %s", path, is_bin ? "a token shard" : "text", kind);
}

// Kind and number of tokens of one file, with its header checked against its size.
static inline DataFile data_file_open(const char *path) {
    DataFile file = {path, DATA_TEXT, 0, 0};
    int fd = open_check(path, O_RDONLY);
    uint64_t bytes = file_size(fd, path);
    uint32_t header[3] = {0, 0, 0};
    if (bytes >= sizeof header) read_exact(fd, header, sizeof header, 0, path);
    const bool is_shard = header[0] == SHARD_MAGIC || header[0] == SHARD32_MAGIC;
    if (!is_shard && bytes) data_check_text(fd, bytes, path);
    close(fd);
    if (!bytes && data_is_named_bin(path)) {  // a shard without a token
        file.kind = DATA_UINT16;
        return file;
    }
    if (!is_shard) {
        file.tokens = bytes + 1;
        return file;
    }
    file.kind = header[0] == SHARD_MAGIC ? DATA_UINT16 : DATA_UINT32;
    file.tokens = header[2];
    uint32_t version = file.kind == DATA_UINT16 ? SHARD_VERSION : SHARD32_VERSION;
    if (header[1] != version)
        die_all("%s: expected version %u of a token shard, found %u", path, version, header[1]);
    uint64_t expected = SHARD_HEADER_BYTES + file.tokens * data_token_bytes(file.kind);
    if (bytes != expected)
        die_all("%s: expected %llu bytes for %llu tokens, found %llu; is it complete?", path,
                (unsigned long long)expected, (unsigned long long)file.tokens,
                (unsigned long long)bytes);
    return file;
}

// Is the first file that the pattern names a text?
static inline bool data_is_text(const char *pattern) {
    Paths found = {0, NULL};
    paths_add_pattern(&found, pattern);
    DataKind kind = data_file_open(found.names[0]).kind;
    paths_free(&found);
    return kind == DATA_TEXT;
}

// pattern: for messages. The files become the loader's.
static inline void dataloader_open_files(DataLoader *dl, const char *pattern, Paths found, int B,
                                         int T, int V, uint64_t seed, bool shuffle) {
    memset(dl, 0, sizeof *dl);
    dl->B = B, dl->T = T, dl->V = V, dl->seed = seed, dl->shuffle = shuffle;
    dl->file_count = found.count;
    dl->files = (DataFile *)malloc_check((size_t)found.count * sizeof(DataFile));
    for (int i = 0; i < dl->file_count; i++) {
        DataFile *file = &dl->files[i];
        *file = data_file_open(found.names[i]);
        if (file->tokens && file->kind != dl->files[0].kind)
            die_all("%s mixes kinds of data: %s is %s, %s is %s", pattern, dl->files[0].path,
                    data_kind_name(dl->files[0].kind), file->path, data_kind_name(file->kind));
        file->first_sample = dl->samples;
        uint64_t samples = file->tokens ? (file->tokens - 1) / (uint64_t)T : 0;
        dl->short_files += samples == 0;
        dl->short_tokens += samples == 0 ? file->tokens : 0;
        dl->samples += samples;
        dl->tokens += file->tokens;
    }
    free(found.names);  // the files keep each of them
    if (!dl->samples)
        die_all("%s: no file has the %d tokens of one sample (T=%d and one more); found %llu in %d "
                "file(s)",
                pattern, T + 1, T, (unsigned long long)dl->tokens, dl->file_count);
    for (int i = 0; i < OPEN_FILES; i++) dl->open_files[i].file = -1;
    dl->raw = malloc_check(((size_t)T + 1) * 4);
    pthread_mutex_init(&dl->mutex, NULL);
    pthread_cond_init(&dl->changed, NULL);
}

static inline void dataloader_open(DataLoader *dl, const char *pattern, int B, int T, int V,
                                   uint64_t seed, bool shuffle) {
    Paths found = {0, NULL};
    paths_add_pattern(&found, pattern);
    dataloader_open_files(dl, pattern, found, B, T, V, seed, shuffle);
}

// ---- samples -----------------------------------------------------------------------------------

static inline int data_descriptor(DataLoader *dl, int file, Failure *failure) {
    int slot = file % OPEN_FILES;
    if (dl->open_files[slot].file == file) return dl->open_files[slot].fd;
    if (dl->open_files[slot].file >= 0) close(dl->open_files[slot].fd);
    int fd = open_try(dl->files[file].path, O_RDONLY, failure);
    dl->open_files[slot].file = fd < 0 ? -1 : file;
    return dl->open_files[slot].fd = fd;
}

// The file that holds a sample of the unshuffled order.
static inline int data_find_file(const DataLoader *dl, uint64_t sample) {
    int low = 0, high = dl->file_count - 1;  // the last file whose first sample is not behind it
    while (low < high) {
        int middle = high - (high - low) / 2;
        if (dl->files[middle].first_sample <= sample)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

// Tokens first .. first + T of a file: T tokens and their T targets.
static inline bool data_read_sample(DataLoader *dl, int index, uint64_t first, int *tokens,
                                    int *targets, Failure *failure) {
    const DataFile *file = &dl->files[index];
    int fd = data_descriptor(dl, index, failure), T = dl->T;
    if (fd < 0) return false;
    size_t size = data_token_bytes(file->kind);
    // Token 0 of a text is not in the file: the bytes begin one place later,
    // and one less is read there.
    int made = file->kind == DATA_TEXT && first == 0;
    uint64_t at =
        file->kind == DATA_TEXT ? first + (uint64_t)made - 1 : SHARD_HEADER_BYTES + first * size;
    if (!read_try(fd, dl->raw, (size_t)(T + 1 - made) * size, at, file->path, failure))
        return false;
    for (int t = 0; t <= T; t++) {
        uint32_t token;
        if (t < made)
            token = TEXT_EOT;
        else if (file->kind == DATA_TEXT)
            token = ((const uint8_t *)dl->raw)[t - made];
        else if (file->kind == DATA_UINT16)
            token = ((const uint16_t *)dl->raw)[t];
        else
            token = ((const uint32_t *)dl->raw)[t];
        if (token >= (uint32_t)dl->V)
            return fails(failure,
                         "%s: expected tokens below the vocabulary V=%d, found %u at token %llu",
                         file->path, dl->V, token, (unsigned long long)(first + (uint64_t)t));
        if (t < T) tokens[t] = (int)token;
        if (t > 0) targets[t - 1] = (int)token;
    }
    return true;
}

// Samples first .. first + B - 1: tokens (B,T), targets (B,T).
static inline bool data_read_batch(DataLoader *dl, uint64_t first, int *tokens, int *targets,
                                   Failure *failure) {
    for (int b = 0; b < dl->B; b++, tokens += dl->T, targets += dl->T) {
        uint64_t sample = first + (uint64_t)b;
        if (!dl->shuffle && sample >= dl->samples) {
            for (int t = 0; t < dl->T; t++) tokens[t] = 0, targets[t] = -1;
            continue;
        }
        if (dl->shuffle)
            sample = rng_permute(dl->seed, sample / dl->samples, dl->samples, sample % dl->samples);
        int file = data_find_file(dl, sample);
        uint64_t at = (sample - dl->files[file].first_sample) * (uint64_t)dl->T;
        if (!data_read_sample(dl, file, at, tokens, targets, failure)) return false;
    }
    return true;
}

// inputs (span.count,2,B,T).
static inline bool data_read_span(DataLoader *dl, DataSpan span, int *inputs, Failure *failure) {
    size_t BT = (size_t)dl->B * (size_t)dl->T;
    for (int k = 0; k < span.count; k++, inputs += 2 * BT)
        if (!data_read_batch(dl, span.first + (uint64_t)k * span.stride, inputs, inputs + BT,
                             failure))
            return false;
    return true;
}

// ---- what the training loop calls --------------------------------------------------------------

// Reads the first and the last sample of the files (of CHECK_FILES, evenly chosen, if there are
// more), so that tokens beyond the vocabulary are found at start-up. Before any prefetch.
static inline void dataloader_check(DataLoader *dl) {
    enum { CHECK_FILES = 64 };
    int count = dl->file_count < CHECK_FILES ? dl->file_count : CHECK_FILES;
    int *tokens = (int *)malloc_check(2 * (size_t)dl->T * sizeof(int));
    Failure failure;
    for (int i = 0; i < count; i++) {
        int index = (int)((int64_t)i * (dl->file_count - 1) / (count > 1 ? count - 1 : 1));
        uint64_t all = dl->files[index].tokens, T = (uint64_t)dl->T;
        if (all <= T) continue;  // too short for a sample
        if (!data_read_sample(dl, index, 0, tokens, tokens + T, &failure) ||
            !data_read_sample(dl, index, ((all - 1) / T - 1) * T, tokens, tokens + T, &failure))
            die_all("%s", failure.text);
    }
    free(tokens);
}

// What identifies the data: names without their folders, sizes, and the bytes of the files, of
// large ones some.
static inline uint64_t dataloader_checksum(DataLoader *dl) {
    enum { FILES = 64 };
    uint64_t sum = checksum_text("", 0);
    Failure failure;
    int count = dl->file_count < FILES ? dl->file_count : FILES;
    for (int i = 0; i < dl->file_count; i++) {
        const DataFile *f = &dl->files[i];
        const char *name = path_name(f->path);
        sum = sum * 31 + checksum_text(name, strlen(name)) + f->tokens;
    }
    for (int i = 0; i < count; i++) {
        int index = (int)((int64_t)i * (dl->file_count - 1) / (count > 1 ? count - 1 : 1));
        int fd = data_descriptor(dl, index, &failure);
        if (fd < 0) die_all("%s", failure.text);
        sum = sum * 31 +
              checksum_sample(fd, (uint64_t)(CHECKSUM_BLOCKS / count), dl->files[index].path);
    }
    return sum;
}

// Micro-batches of an epoch, the last one perhaps not full.
static inline uint64_t dataloader_batches(const DataLoader *dl) {
    return (dl->samples + (uint64_t)dl->B - 1) / (uint64_t)dl->B;
}

static inline void *data_ahead_thread(void *argument) {
    DataLoader *dl = (DataLoader *)argument;
    pthread_mutex_lock(&dl->mutex);
    while (dl->ahead != AHEAD_STOP) {
        if (dl->ahead == AHEAD_READING) {
            pthread_mutex_unlock(&dl->mutex);
            dl->ahead_ok = data_read_span(dl, dl->ahead_span, dl->ahead_inputs, &dl->ahead_failure);
            pthread_mutex_lock(&dl->mutex);
            dl->ahead = AHEAD_READY;
            pthread_cond_broadcast(&dl->changed);
        } else {
            pthread_cond_wait(&dl->changed, &dl->mutex);
        }
    }
    pthread_mutex_unlock(&dl->mutex);
    return NULL;
}

// Waits until the thread has nothing to do; the mutex is held on return.
static inline void data_ahead_wait(DataLoader *dl) {
    pthread_mutex_lock(&dl->mutex);
    while (dl->ahead == AHEAD_READING) pthread_cond_wait(&dl->changed, &dl->mutex);
}

static inline bool data_same_span(DataSpan a, DataSpan b) {
    return a.first == b.first && a.stride == b.stride && a.count == b.count;
}

static inline size_t data_span_bytes(const DataLoader *dl, DataSpan span) {
    return (size_t)span.count * 2 * (size_t)dl->B * (size_t)dl->T * sizeof(int);
}

// Starts reading in the background, for the next dataloader_fetch.
static inline void dataloader_prefetch(DataLoader *dl, DataSpan span) {
    data_ahead_wait(dl);
    if (!dl->has_thread) {
        int error = pthread_create(&dl->thread, NULL, data_ahead_thread, dl);
        if (error) die("cannot start the data loader's thread: %s", strerror(error));
        dl->has_thread = true;
    }
    if (dl->ahead_room < span.count) {
        free(dl->ahead_inputs);
        dl->ahead_inputs = (int *)malloc_check(data_span_bytes(dl, span));
        dl->ahead_room = span.count;
    }
    dl->ahead = AHEAD_READING;
    dl->ahead_span = span;
    pthread_cond_broadcast(&dl->changed);
    pthread_mutex_unlock(&dl->mutex);
}

// inputs (span.count,2,B,T): tokens and targets of each micro-batch; targets are -1 behind the end.
static inline bool dataloader_fetch(DataLoader *dl, DataSpan span, int *inputs, Failure *failure) {
    data_ahead_wait(dl);
    bool ok;
    if (dl->ahead == AHEAD_READY && data_same_span(dl->ahead_span, span)) {
        ok = dl->ahead_ok;
        if (!ok) *failure = dl->ahead_failure;
        if (ok) memcpy(inputs, dl->ahead_inputs, data_span_bytes(dl, span));
    } else {
        ok = data_read_span(dl, span, inputs, failure);
    }
    pthread_mutex_unlock(&dl->mutex);
    return ok;
}

// Waits for the read-ahead; false if it has failed.
static inline bool dataloader_wait(DataLoader *dl, Failure *failure) {
    data_ahead_wait(dl);
    bool ok = dl->ahead != AHEAD_READY || dl->ahead_ok;
    if (!ok) *failure = dl->ahead_failure;
    pthread_mutex_unlock(&dl->mutex);
    return ok;
}

static inline void dataloader_close(DataLoader *dl) {
    data_ahead_wait(dl);
    dl->ahead = AHEAD_STOP;
    pthread_cond_broadcast(&dl->changed);
    pthread_mutex_unlock(&dl->mutex);
    if (dl->has_thread) pthread_join(dl->thread, NULL);
    for (int i = 0; i < OPEN_FILES; i++)
        if (dl->open_files[i].file >= 0) close(dl->open_files[i].fd);
    for (int i = 0; i < dl->file_count; i++) free((char *)dl->files[i].path);
    free(dl->files);
    free(dl->raw);
    free(dl->ahead_inputs);
    pthread_mutex_destroy(&dl->mutex);
    pthread_cond_destroy(&dl->changed);
}
