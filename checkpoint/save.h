// checkpoint/save.h: checkpoints are written while the training goes on. Saving copies the rank's
// state to host memory, which the loop waits for, and starts a thread that writes the copy: every
// rank its own pieces, with their checksums, into files that all share. (A run that saves only
// because it ends has no room for a copy, and nothing to go on with: it writes at once.) When all
// ranks are done, rank 0 writes the index, flushes everything and gives the folder its name. Until
// then the folder is called .tmp, and the checkpoint before is untouched; old ones go after that.
//
// No thread of a rank talks to other ranks: that all have written is what the training loop tells
// (saver_advance), and what one has written comes to rank 0 through the folder itself.
// Whatever fails is kept until the loop asks for it, and ends the run there.
#pragma once

#include "folder.h"
#include "index.h"

#include <pthread.h>

typedef enum {
    SAVER_IDLE,
    SAVER_WRITING,    // this rank's pieces
    SAVER_WRITTEN,    // waits for the other ranks
    SAVER_PUBLISHING  // rank 0: index and name
} SaverState;

typedef struct {
    const Model *model;
    const char *out;                  // the checkpoints are in out/checkpoints
    int keep, keep_every;             // see checkpoint_prune
    bool background;                  // there are copies, and threads
    void *copies[CHECKPOINT_ARRAYS];  // the rank's arrays at the step that is saved
    size_t shard;                     // elements of each

    SaverState state;
    pthread_t thread;
    bool thread_done;  // set by the thread
    Failure failure;

    CheckpointIndex index;                     // of what is being saved
    char path[PATH_BYTES], stage[PATH_BYTES];  // its name, and the name until it is complete
    long saved;                                // step of the newest complete checkpoint, -1: none
} Saver;

// ---- plan --------------------------------------------------------------------------------------

// background: adds the host copies to the table of buffers.
static inline void saver_plan(Saver *s, const Model *model, bool background, const char *out,
                              int keep, int keep_every) {
    Buffers *b = model->code->buffers(model->gpt);
    *s = (Saver){};
    s->model = model;
    s->background = background;
    s->out = out;
    s->keep = keep, s->keep_every = keep_every;
    s->saved = -1;
    s->shard = model->code->shard_elements(model->gpt);
    for (int a = 0; background && model_writes(model) && a < CHECKPOINT_ARRAYS; a++)
        buffers_add(b, BUFFER_HOST, &s->copies[a],
                    s->shard * model->code->element_bytes(model->gpt, checkpoint_arrays[a].array),
                    "copy of %s for checkpoints", checkpoint_arrays[a].name);
}

// The state after `step` steps is on the disk already.
static inline void saver_has(Saver *s, const char *path, long step) {
    path_print(s->path, "%s", path);
    s->saved = step;
}

// ---- the thread of every rank: its pieces, and their checksums ---------------------------------

// The checksums of one rank, until the index has all of them.
static inline void saver_sums_path(const Saver *s, char *path, int rank) {
    path_print(path, "%s/checksums.%d", s->stage, rank);
}

static inline bool saver_write_file(const char *path, const void *data, size_t bytes,
                                    Failure *failure) {
    int fd = open_try(path, O_WRONLY | O_CREAT | O_TRUNC, failure);
    if (fd < 0) return false;
    bool written = write_try(fd, data, bytes, 0, path, failure);
    Failure ignored;
    return sync_close_try(fd, path, written ? failure : &ignored) && written;
}

// n elements of the state that is saved: in the copy, or read into `room`.
static inline const void *saver_data(const Saver *s, int a, size_t at, size_t n, void *room) {
    if (s->background) return (const char *)s->copies[a] + at * s->index.bytes[a];
    s->model->code->read(s->model->gpt, checkpoint_arrays[a].array, room, at, n);
    return room;
}

static inline bool saver_write_array(Saver *s, int a, int fd, const char *path) {
    enum { PIECE = 4 << 20 };  // bytes between two signs of life
    const ModelConfig *m = &s->index.model;
    size_t size = s->index.bytes[a], most = PIECE / size;
    int count;
    const GptPiece *pieces = s->model->code->pieces(s->model->gpt, &count);
    void *room = s->background ? NULL : malloc_check(PIECE);
    bool ok = true;
    for (int i = 0; ok && i < count; i++) {
        const GptPiece *p = &pieces[i];
        uint64_t *sum = &s->index.sums[checkpoint_sum(m, a, p->id, p->layer)];
        for (size_t done = 0, n; ok && done < p->n; done += n) {
            n = p->n - done < most ? p->n - done : most;
            const void *data = saver_data(s, a, p->at + done, n, room);
            size_t first = tensor_offset(m, p->id, p->layer) + p->first + done;
            *sum += checksum_part(data, n, size, p->first + done);
            const uint64_t offset = checkpoint_arrays[a].offset + first * size;
            ok = (checkpoint_arrays[a].array != GPT_PARAMETERS ||
                  chunk_is_finite(m, (const float *)data, n, p, p->first + done, &s->failure)) &&
                 write_try(fd, data, n * size, offset, path, &s->failure);
            // The disk begins at once, while the next piece is summed and copied.
            sync_file_range(fd, (off64_t)offset, (off64_t)(n * size), SYNC_FILE_RANGE_WRITE);
        }
    }
    free(room);
    return ok;
}

static inline void *saver_write_thread(void *argument) {
    Saver *s = (Saver *)argument;
    char path[PATH_BYTES];
    memset(s->index.sums, 0, checkpoint_sums(&s->index.model) * sizeof(uint64_t));
    bool ok = true;
    for (int a = 0; ok && a < CHECKPOINT_ARRAYS; a++) {
        path_print(path, "%s/%s", s->stage, checkpoint_arrays[a].file);
        int fd = open_try(path, O_WRONLY, &s->failure);
        Failure ignored;
        if (fd < 0 && access(s->stage, F_OK) != 0)
            fails(&s->failure,
                  "%s, which rank 0 has made, is not here: expected --out in a folder "
                  "that all nodes share",
                  s->stage);
        ok = fd >= 0 && saver_write_array(s, a, fd, path);
        if (fd >= 0) ok = sync_close_try(fd, path, ok ? &s->failure : &ignored) && ok;
    }
    if (ok) {
        saver_sums_path(s, path, s->model->config->fsdp.rank);
        saver_write_file(path, s->index.sums, checkpoint_sums(&s->index.model) * sizeof(uint64_t),
                         &s->failure);
    }
    __atomic_store_n(&s->thread_done, true, __ATOMIC_RELEASE);
    return NULL;
}

static inline void saver_start(Saver *s, void *(*work)(void *)) {
    s->thread_done = false;
    if (!s->background) {
        work(s);
        return;
    }
    int error = pthread_create(&s->thread, NULL, work, s);
    if (error) die("cannot start the thread that saves: %s", strerror(error));
}

// ---- rank 0 ------------------------------------------------------------------------------------

// Makes the folder and its files at their full size: what does not fit is known at once.
static inline void saver_make_stage(Saver *s) {
    char path[PATH_BYTES];
    Failure failure;
    checkpoint_folder(path, s->out);
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        die("cannot make the folder %s: %s", path, strerror(errno));
    checkpoint_remove_unfinished(s->out);
    checkpoint_make_way(s->stage);
    if (mkdir(s->stage, 0777) != 0) die("cannot make the folder %s: %s", s->stage, strerror(errno));
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++) {
        path_print(path, "%s/%s", s->stage, checkpoint_arrays[a].file);
        int fd = open_try(path, O_WRONLY | O_CREAT | O_EXCL, &failure);
        int32_t header[256];
        model_file_header(header, &s->index.model, false);
        if (fd < 0 || !reserve_try(fd, checkpoint_file_bytes(&s->index, a), path, &failure) ||
            (checkpoint_arrays[a].offset &&
             !write_try(fd, header, sizeof header, 0, path, &failure)) ||
            !sync_close_try(fd, path, &failure)) {
            checkpoint_remove(s->stage);
            die("%s", failure.text);
        }
    }
}

// Adds up the checksums that the ranks have left.
static inline bool saver_collect_sums(Saver *s) {
    size_t n = checkpoint_sums(&s->index.model);
    uint64_t *sums = s->index.sums, *one = (uint64_t *)malloc_check(n * sizeof(uint64_t));
    char path[PATH_BYTES];
    bool ok = true;
    memset(sums, 0, n * sizeof(uint64_t));
    for (int rank = 0; ok && rank < s->model->config->fsdp.K; rank++) {  // those of one replica
        saver_sums_path(s, path, rank);
        int fd = open_try(path, O_RDONLY, &s->failure);
        ok = fd >= 0 && read_try(fd, one, n * sizeof(uint64_t), 0, path, &s->failure);
        if (fd >= 0) close(fd);
        for (size_t i = 0; ok && i < n; i++) sums[i] += one[i];
        unlink(path);
    }
    free(one);
    return ok;
}

// Gives the folder its name. If there is one of that name already, the two change names, so that at
// no time there is none.
static inline bool saver_rename(Saver *s) {
    if (access(s->path, F_OK) != 0) {
        if (rename(s->stage, s->path) == 0) return true;
    } else if (renameat2(AT_FDCWD, s->stage, AT_FDCWD, s->path, RENAME_EXCHANGE) == 0) {
        checkpoint_remove(s->stage);
        return true;
    } else {  // the file system cannot exchange
        checkpoint_remove(s->path);
        checkpoint_make_way(s->path);
        if (rename(s->stage, s->path) == 0) return true;
    }
    return fails(&s->failure, "cannot rename %s to %s: %s", s->stage, s->path, strerror(errno));
}

static inline void *saver_publish_thread(void *argument) {
    Saver *s = (Saver *)argument;
    char path[PATH_BYTES], folder[PATH_BYTES];
    checkpoint_folder(folder, s->out);
    if (saver_collect_sums(s)) {
        char *text = checkpoint_index_write(&s->index);
        path_print(path, "%s/index.json", s->stage);
        if (saver_write_file(path, text, strlen(text), &s->failure) &&
            sync_folder_try(s->stage, &s->failure) && saver_rename(s) &&
            sync_folder_try(folder, &s->failure))
            checkpoint_prune(s->out, s->keep, s->keep_every);
        free(text);
    }
    __atomic_store_n(&s->thread_done, true, __ATOMIC_RELEASE);
    return NULL;
}

// ---- what the training loop calls, on all ranks alike ------------------------------------------

// Ends the run if the thread has failed; true if it has nothing more to do.
static inline bool saver_thread_done(Saver *s) {
    if (!__atomic_load_n(&s->thread_done, __ATOMIC_ACQUIRE)) return false;
    if (s->background) pthread_join(s->thread, NULL);
    if (s->failure.text[0]) die("checkpoint of step %ld: %s", s->index.state.step, s->failure.text);
    return true;
}

// Has this rank still something to write?
static inline bool saver_is_writing(Saver *s) {
    if (s->state == SAVER_WRITING && saver_thread_done(s)) s->state = SAVER_WRITTEN;
    return s->state == SAVER_WRITING;
}

// all_written: no rank is writing. Returns true once, when the checkpoint is complete, on rank 0.
static inline bool saver_advance(Saver *s, bool all_written) {
    if (s->state == SAVER_WRITTEN && all_written) {
        bool publishes = s->model->config->fsdp.rank == 0;
        s->state = publishes ? SAVER_PUBLISHING : SAVER_IDLE;
        if (publishes) saver_start(s, saver_publish_thread);
        s->saved = s->index.state.step;
    }
    if (s->state != SAVER_PUBLISHING || !saver_thread_done(s)) return false;
    s->state = SAVER_IDLE;
    return true;
}

// Saves the state after index->state.step steps; the index becomes the saver's. The saver is idle.
static inline void saver_begin(Saver *s, CheckpointIndex *index) {
    const Model *m = s->model;
    checkpoint_index_free(&s->index);
    s->index = *index;
    checkpoint_path(s->path, s->out, index->state.step);
    path_print(s->stage, "%s.tmp", s->path);
    s->failure.text[0] = 0;
    if (m->config->fsdp.rank == 0) saver_make_stage(s);
    m->code->arrive(m->gpt);
    s->state = model_writes(m) ? SAVER_WRITING : SAVER_WRITTEN;
    if (!model_writes(m)) return;
    for (int a = 0; s->background && a < CHECKPOINT_ARRAYS; a++)
        m->code->read(m->gpt, checkpoint_arrays[a].array, s->copies[a], 0, s->shard);
    saver_start(s, saver_write_thread);
}
