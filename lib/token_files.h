// lib/token_files.h: a text as token shards, made once. The shards of TEXT lie in the folder
// TEXT.tokens-XXXXXXXX (the tokenizer's checksum), beside the text or in a folder that the user
// names; index.json in it says which text they are of, and its place says that they are complete.
//
// A text is cut into blocks of some 64 MB, a shard each, at places where the tokens of the parts
// are the tokens of the whole: so any number of processes can share the work, and a text may be
// larger than memory. The first token of a text is end-of-text, as in llm.c's shards.
#pragma once

#include "bpe.h"
#include "files.h"
#include "shard.h"

#include <jansson.h>
#include <sys/file.h>

enum { TOKEN_FILES_FORMAT = 1 };
#ifndef TOKEN_BLOCK
#define TOKEN_BLOCK ((uint64_t)64 << 20)  // bytes of text
#endif
#define TOKEN_CHUNK ((size_t)256 << 10)  // what a thread encodes at a time

typedef struct {
    const char *text;
    char folder[PATH_BYTES];
    uint64_t bytes, modified_ns;  // of the text
    uint64_t tokenizer;           // checksum of the tokenizer's tokens
    int blocks;
} TokenFiles;

// cache: the folder for them; "": that of the text.
static inline TokenFiles token_files(const char *text, const char *cache, const Tokenizer *t) {
    TokenFiles f = {};
    f.text = text;
    f.tokenizer = tokenizer_checksum(t);
    struct stat s;
    if (stat(text, &s) != 0) die_all("cannot read %s: %s", text, strerror(errno));
    f.bytes = (uint64_t)s.st_size;
    f.modified_ns = (uint64_t)s.st_mtim.tv_sec * 1000000000 + (uint64_t)s.st_mtim.tv_nsec;
    f.blocks = (int)((f.bytes + TOKEN_BLOCK - 1) / TOKEN_BLOCK);
    if (!f.blocks) f.blocks = 1;
    path_print(f.folder, "%s%s%s.tokens-%08x", cache, cache[0] ? "/" : "",
               cache[0] ? path_name(text) : text, (unsigned)f.tokenizer);
    return f;
}

static inline void token_files_path(const TokenFiles *f, const char *state, int block, char *path) {
    path_print(path, "%s%s/%06d.bin", f->folder, state, block);
}

// ---- where a text may be cut -------------------------------------------------------------------

// Unicode's White_Space.
static inline bool is_white_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 32 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

// The UTF-8 character at text[0]; 0 if there is none.
static inline uint32_t utf8_character(const unsigned char *text, size_t n) {
    static const unsigned char bits[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    size_t length = n ? utf8_length(text, n) : 0;
    uint32_t c = text[0] & bits[length];
    for (size_t i = 1; i < length; i++) c = c << 6 | (text[i] & 0x3f);
    return length ? c : 0;
}

// The UTF-8 character that ends before text[at]; 0 if there is none.
static inline uint32_t utf8_character_before(const unsigned char *text, size_t at) {
    for (size_t length = 1; length <= 4 && length <= at; length++)
        if (utf8_length(text + at - length, length) == length)
            return utf8_character(text + at - length, length);
    return 0;
}

static inline bool is_ascii_letter(unsigned char c) {
    return (c | 32) >= 'a' && (c | 32) <= 'z';
}

// Between two characters that are no spaces a newline is a piece of its own, and a space between
// two letters begins one: no piece goes on past such a newline or up over such a space.
static inline bool token_cut_at(const unsigned char *text, size_t n, size_t at) {
    if (at < 2 || at + 1 >= n) return false;
    if (text[at] == ' ') return is_ascii_letter(text[at - 1]) && is_ascii_letter(text[at + 1]);
    if (text[at - 1] != '\n') return false;
    uint32_t before = utf8_character_before(text, at - 1),
             behind = utf8_character(text + at, n - at);
    return before && behind && !is_white_space(before) && !is_white_space(behind);
}

// The first cut at `at` or behind it; n if there is none.
static inline size_t token_cut(const unsigned char *text, size_t n, size_t at) {
    while (at < n && !token_cut_at(text, n, at)) at++;
    return at < n ? at : n;
}

// The same of a file, from byte `at` on.
static inline uint64_t token_cut_of_file(int fd, const TokenFiles *f, uint64_t at) {
    const size_t WINDOW = 64 << 10, BEFORE = 8;  // BEFORE: what a cut needs to see before it
    if (at == 0) return 0;
    unsigned char *window = (unsigned char *)malloc_check(WINDOW);
    uint64_t found = f->bytes;
    for (; at < found; at += WINDOW - 2 * BEFORE) {
        uint64_t from = at - BEFORE, left = f->bytes - from;
        size_t n = left < WINDOW ? (size_t)left : WINDOW;
        read_exact(fd, window, n, from, f->text);
        size_t last = n == left ? n : n - BEFORE, cut = token_cut(window, n, BEFORE);
        if (cut < last) found = from + cut;
    }
    free(window);
    return found;
}

// ---- encoding ----------------------------------------------------------------------------------

// Adds the tokens of n bytes, encoded by all threads.
static inline void token_encode(const Bpe *b, const unsigned char *text, size_t n, Tokens *tokens) {
    size_t chunks = n / TOKEN_CHUNK + 1;
    Tokens *parts = (Tokens *)calloc(chunks, sizeof(Tokens));
    if (!parts) die("out of memory for the tokens of %zu bytes", n);
#pragma omp parallel
    {
        BpeWork w = bpe_work_start(b);
#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < chunks; i++) {
            size_t begin = i ? token_cut(text, n, i * TOKEN_CHUNK) : 0;
            size_t end = i + 1 < chunks ? token_cut(text, n, (i + 1) * TOKEN_CHUNK) : n;
            if (begin < end) bpe_encode(&w, text + begin, end - begin, &parts[i]);
            process_alive();
        }
        bpe_work_finish(&w);
    }
    for (size_t i = 0; i < chunks; i++) {
        for (size_t k = 0; k < parts[i].n; k++) tokens_add(tokens, parts[i].at[k]);
        free(parts[i].at);
    }
    free(parts);
}

// A shard of llm.c's: tokens of 16 bits, or of 32 where the vocabulary has more than 65,536.
static inline void token_write(const char *path, const Tokens *tokens, int V) {
    bool wide = V > 65536;
    if (tokens->n > UINT32_MAX) die("%s: %zu tokens in a shard", path, tokens->n);
    uint32_t header[SHARD_HEADER_BYTES / 4] = {SHARD_MAGIC, SHARD_VERSION, (uint32_t)tokens->n};
    if (wide) header[0] = SHARD32_MAGIC, header[1] = SHARD32_VERSION;
    uint16_t *narrow = (uint16_t *)malloc_check(tokens->n * 2 + 2);
    for (size_t i = 0; i < tokens->n; i++) narrow[i] = (uint16_t)tokens->at[i];
    const void *data = wide ? (const void *)tokens->at : narrow;
    FILE *out = fopen_check(path, "w");
    if (fwrite(header, sizeof header, 1, out) != 1 ||
        fwrite(data, wide ? 4 : 2, tokens->n, out) != tokens->n)
        die("cannot write %s: %s", path, strerror(errno));
    fclose_check(out, path);
    free(narrow);
}

// The text of a block, to be freed by the caller.
static inline unsigned char *token_files_text(const TokenFiles *f, int block, size_t *n) {
    int fd = open_check(f->text, O_RDONLY);
    uint64_t ends[2];
    for (int i = 0; i < 2; i++) {
        uint64_t at = (uint64_t)(block + i) * TOKEN_BLOCK;
        ends[i] = at < f->bytes ? token_cut_of_file(fd, f, at) : f->bytes;
    }
    *n = (size_t)(ends[1] - ends[0]);
    unsigned char *text = (unsigned char *)malloc_check(*n + 1);
    if (*n) read_exact(fd, text, *n, ends[0], f->text);
    close(fd);
    return text;
}

// The checksums of the blocks are added up.
static inline uint64_t token_files_checksum(const unsigned char *text, size_t n, int block) {
    return XXH3_64bits_withSeed(text, n, (uint64_t)block);
}

// Writes the shard of a block; returns the checksum of its text.
static inline uint64_t token_files_block(const TokenFiles *f, const Bpe *b, int block) {
    size_t n;
    unsigned char *text = token_files_text(f, block, &n);
    Tokens tokens = {};
    if (block == 0) tokens_add(&tokens, b->t->eot);
    token_encode(b, text, n, &tokens);
    char path[PATH_BYTES];
    token_files_path(f, ".new", block, path);
    token_write(path, &tokens, b->t->V);
    uint64_t sum = token_files_checksum(text, n, block);
    free(text);
    free(tokens.at);
    return sum;
}

// ---- the folder --------------------------------------------------------------------------------

static inline void token_files_remove(const char *folder) {
    if (!folder_remove(folder)) die_all("cannot remove %s: %s", folder, strerror(errno));
}

// Are the shards there, and those of this text? A text with another date is read for that.
static inline bool token_files_ready(const TokenFiles *f) {
    char path[PATH_BYTES], sum[20];
    path_print(path, "%s/index.json", f->folder);
    json_t *index = json_load_file(path, 0, NULL);
    if (!index) return false;
    const char *tokenizer = "", *checksum = "";
    json_int_t format = 0, bytes = 0, modified = 0;
    json_unpack(index, "{s:I, s:s, s:s, s:I, s:I}", "format", &format, "tokenizer", &tokenizer,
                "checksum", &checksum, "bytes", &bytes, "modified_ns", &modified);
    snprintf(sum, sizeof sum, "%016llx", (unsigned long long)f->tokenizer);
    bool ready =
        format == TOKEN_FILES_FORMAT && !strcmp(tokenizer, sum) && (uint64_t)bytes == f->bytes;
    if (ready && (uint64_t)modified != f->modified_ns) {
        uint64_t total = 0;
        for (int block = 0; block < f->blocks; block++) {
            size_t n;
            unsigned char *text = token_files_text(f, block, &n);
            total += token_files_checksum(text, n, block);
            free(text);
            process_alive();
        }
        snprintf(sum, sizeof sum, "%016llx", (unsigned long long)total);
        ready = !strcmp(checksum, sum);
    }
    json_decref(index);
    return ready;
}

// Makes FOLDER.new, and takes it for this process until token_files_end: what a run that was ended
// has left there goes, what another run is making stays. Returns the descriptor that holds it.
static inline int token_files_begin(const TokenFiles *f) {
    char made[PATH_BYTES], lock[PATH_BYTES];
    path_print(made, "%s.new", f->folder);
    path_print(lock, "%s.lock", f->folder);
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        die_all("cannot keep the tokens of %s at %s: %s; name a folder for them with "
                "--token-folder",
                f->text, f->folder, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        die_all("%s: another run is making the tokens of %s just now", made, f->text);
    token_files_remove(made);
    if (mkdir(made, 0777) != 0) die_all("cannot make %s: %s", made, strerror(errno));
    return fd;
}

// checksum: of all blocks.
static inline void token_files_end(const TokenFiles *f, int lock_fd, uint64_t checksum) {
    char made[PATH_BYTES], path[PATH_BYTES];
    path_print(made, "%s.new", f->folder);
    path_print(path, "%s/index.json", made);
    json_t *index = json_pack(
        "{s:I, s:s, s:o, s:o, s:I, s:I, s:i}", "format", (json_int_t)TOKEN_FILES_FORMAT, "text",
        f->text, "tokenizer", json_sprintf("%016llx", (unsigned long long)f->tokenizer), "checksum",
        json_sprintf("%016llx", (unsigned long long)checksum), "bytes", (json_int_t)f->bytes,
        "modified_ns", (json_int_t)f->modified_ns, "shards", f->blocks);
    if (!index || json_dump_file(index, path, JSON_INDENT(1)) != 0)
        die("cannot write %s: %s", path, strerror(errno));
    json_decref(index);
    token_files_remove(f->folder);
    if (rename(made, f->folder) != 0)
        die("cannot rename %s to %s: %s", made, f->folder, strerror(errno));
    path_print(path, "%s.lock", f->folder);
    unlink(path);
    close(lock_fd);
}
