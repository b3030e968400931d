// test/test_dataloader.cpp: dataloader.h by itself: what is read, in which order, and what is
// refused. Writes to a temporary folder; reads test/reference/.
#include "../dataloader.h"
#include "death.h"

// A shard whose tokens count up from `first`; token_bytes 2 or 4.
static const char *write_shard(const char *name, uint32_t first, uint32_t count, int token_bytes) {
    static unsigned char bytes[1024 + 4 * 65536];
    uint32_t header[256] = {token_bytes == 2 ? 20240520u : 20240801u, token_bytes == 2 ? 1u : 7u,
                            count};
    memcpy(bytes, header, 1024);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t token = first + i;
        memcpy(bytes + 1024 + (size_t)token_bytes * i, &token, (size_t)token_bytes);
    }
    return write_file(temporary(name), bytes, 1024 + (size_t)token_bytes * count);
}

// Micro-batch m of the global order.
static DataSpan span_of(const DataLoader *dl, uint64_t m) {
    return {m * (uint64_t)dl->B, 0, 1};
}

static void prefetch_batch(DataLoader *dl, uint64_t m) {
    dataloader_prefetch(dl, span_of(dl, m));
}

// tokens, targets (B,T).
static void fetch_batch(DataLoader *dl, uint64_t m, int *tokens, int *targets) {
    size_t BT = (size_t)dl->B * (size_t)dl->T;
    int *inputs = (int *)malloc_check(2 * BT * sizeof(int));
    Failure failure;
    if (!dataloader_fetch(dl, span_of(dl, m), inputs, &failure)) die_all("%s", failure.text);
    memcpy(tokens, inputs, BT * sizeof(int));
    memcpy(targets, inputs + BT, BT * sizeof(int));
    free(inputs);
}

// ---- what is read ------------------------------------------------------------------------------

static void text_is_bytes_after_an_end_of_text(void **) {
    DataLoader dl;
    int x[8], y[8];
    const char *path = write_file(temporary("t.txt"), "abc\xff\ndef\0", 9);
    dataloader_open(&dl, path, 2, 4, 257, 1, false);
    assert_true(dl.samples == 2 && dl.tokens == 10);
    fetch_batch(&dl, 0, x, y);
    const int tokens[8] = {256, 'a', 'b', 'c', 255, '\n', 'd', 'e'};
    const int targets[8] = {'a', 'b', 'c', 255, '\n', 'd', 'e', 'f'};
    assert_memory_equal(x, tokens, sizeof x);
    assert_memory_equal(y, targets, sizeof y);
    dataloader_close(&dl);
    assert_true(data_is_text(path));
}

static void both_kinds_of_shard_give_their_tokens(void **) {
    for (int bytes = 2; bytes <= 4; bytes += 2) {
        DataLoader dl;
        int x[6], y[6];
        const char *path = write_shard("one.bin", bytes == 2 ? 65500 : 100000, 8, bytes);
        dataloader_open(&dl, path, 2, 3, 200000, 1, false);
        assert_true(dl.samples == 2);
        fetch_batch(&dl, 0, x, y);
        for (int i = 0; i < 6; i++) {
            assert_int_equal(x[i], (bytes == 2 ? 65500 : 100000) + i);
            assert_int_equal(y[i], x[i] + 1);
        }
        dataloader_close(&dl);
        assert_false(data_is_text(path));
    }
}

// Shards of odd lengths; the last is too short for a sample and gives none.
static void open_three_shards(DataLoader *dl, int B, int T, uint64_t seed, bool shuffle) {
    write_shard("s_1.bin", 0, 101, 2);
    write_shard("s_2.bin", 1000, 58, 2);
    write_shard("s_3.bin", 2000, 5, 2);
    dataloader_open(dl, temporary("s_*.bin"), B, T, 50257, seed, shuffle);
}

static void the_last_target_of_a_sample_is_the_first_token_of_the_next(void **) {
    DataLoader dl;
    int x[7], y[7], last = -1;
    open_three_shards(&dl, 1, 7, 1, false);
    assert_true(dl.samples == 14 + 8);  // (101 - 1) / 7 and (58 - 1) / 7
    for (uint64_t m = 0; m < dl.samples; m++) {
        fetch_batch(&dl, m, x, y);
        for (int t = 0; t < 7; t++) assert_int_equal(y[t], x[t] + 1);
        if (m != 0 && m != 14) assert_int_equal(x[0], last);  // 14: the second file begins
        last = y[6];
    }
    dataloader_close(&dl);
}

static void a_name_with_brackets_is_a_file_before_it_is_a_pattern(void **) {
    DataLoader dl;
    write_file(temporary("book[1].txt"), "the one with brackets", 21);
    write_file(temporary("book1.txt"), "another", 7);
    dataloader_open(&dl, temporary("book[1].txt"), 1, 4, 257, 1, false);
    assert_true(dl.file_count == 1 && dl.tokens == 22);
    dataloader_close(&dl);
    assert_int_equal(unlink(temporary("book[1].txt")), 0);
    dataloader_open(&dl, temporary("book[1].txt"), 1, 4, 257, 1, false);
    assert_true(dl.file_count == 1 && dl.tokens == 8);
    dataloader_close(&dl);
}

static void folders_that_match_are_left_out(void **) {
    DataLoader dl;
    assert_int_equal(mkdir(temporary("mixed_1"), 0700), 0);
    write_file(temporary("mixed_2"), "some text", 9);
    const char *pattern = temporary("mixed_*");
    assert_true(data_is_text(pattern));
    dataloader_open(&dl, pattern, 1, 4, 257, 1, false);
    assert_true(dl.file_count == 1 && dl.tokens == 10);
    dataloader_close(&dl);
}

static void empty_and_short_files_give_no_sample_and_are_counted(void **) {
    DataLoader dl;
    int x[4], y[4];
    write_file(temporary("some_1.txt"), "", 0);
    write_file(temporary("some_2.txt"), "abcdefgh", 8);
    write_file(temporary("some_3.txt"), "abc", 3);
    write_file(temporary("some_4.txt"), "ABCDEFGH", 8);
    write_file(temporary("some_5.txt"), "", 0);
    dataloader_open(&dl, temporary("some_*.txt"), 1, 4, 257, 1, false);
    assert_true(dl.file_count == 5 && dl.short_files == 3 && dl.samples == 4);
    dataloader_check(&dl);
    const int expected[4][4] = {
        {256, 'a', 'b', 'c'}, {'d', 'e', 'f', 'g'}, {256, 'A', 'B', 'C'}, {'D', 'E', 'F', 'G'}};
    for (uint64_t i = 0; i < 4; i++) {
        fetch_batch(&dl, i, x, y);
        assert_memory_equal(x, expected[i], sizeof x);
    }
    dataloader_close(&dl);
}

// ---- order -------------------------------------------------------------------------------------

static void every_sample_comes_exactly_once_in_an_epoch(void **) {
    DataLoader dl;
    enum { B = 2, T = 7, EPOCHS = 5 };  // 22 samples: 11 micro-batches an epoch
    int x[B * T], y[B * T], order[EPOCHS][22], differs = 0;
    open_three_shards(&dl, B, T, 42, true);
    assert_true(dataloader_batches(&dl) == 11);
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        int seen[22] = {0};
        for (int m = 0; m < 11; m++) {
            fetch_batch(&dl, (uint64_t)(epoch * 11 + m), x, y);
            for (int b = 0; b < B; b++) {
                int first = x[b * T], sample = first < 1000 ? first / T : 14 + (first - 1000) / T;
                assert_int_equal(first < 1000 ? first % T : (first - 1000) % T, 0);
                assert_int_equal(seen[sample]++, 0);
                order[epoch][m * B + b] = sample;
            }
        }
        differs += memcmp(order[epoch], order[0], sizeof order[0]) != 0;
    }
    assert_int_equal(differs, EPOCHS - 1);
    dataloader_close(&dl);
}

// B that does not divide the samples: micro-batches run across the end of an epoch.
static void micro_batches_cut_one_global_order_whatever_their_size(void **) {
    DataLoader one, many;
    enum { T = 7, B = 5, SAMPLES = 90 };
    int x1[T], y1[T], x[B * T], y[B * T];
    open_three_shards(&one, 1, T, 9, true);
    open_three_shards(&many, B, T, 9, true);
    for (uint64_t sample = 0; sample < SAMPLES; sample++) {
        fetch_batch(&one, sample, x1, y1);
        if (sample % B == 0) fetch_batch(&many, sample / B, x, y);
        assert_memory_equal(x1, x + sample % B * T, sizeof x1);
        assert_memory_equal(y1, y + sample % B * T, sizeof y1);
    }
    dataloader_close(&one);
    dataloader_close(&many);
}

// The same step on 1, 2, 3 or 6 ranks, each reading only its own micro-batches,
// in any order and resumed.
static void a_step_is_the_same_samples_for_any_number_of_ranks(void **) {
    enum { B = 2, T = 7, PER_STEP = 6, STEPS = 12 };
    static int expected[STEPS * PER_STEP][B * T];
    int x[B * T], y[B * T];
    DataLoader dl;
    open_three_shards(&dl, B, T, 3, true);
    for (int m = 0; m < STEPS * PER_STEP; m++) fetch_batch(&dl, (uint64_t)m, expected[m], y);
    dataloader_close(&dl);
    const int worlds[] = {1, 2, 3, 6};
    for (int w = 0; w < 4; w++)
        for (int rank = 0; rank < worlds[w]; rank++) {
            open_three_shards(&dl, B, T, 3, true);
            for (int step = 7; step < STEPS; step++)  // as if resumed in the second epoch
                for (int micro = 0; micro < PER_STEP / worlds[w]; micro++) {
                    int m = step * PER_STEP + micro * worlds[w] + rank;
                    fetch_batch(&dl, (uint64_t)m, x, y);
                    prefetch_batch(&dl, (uint64_t)(m + worlds[w]));
                    assert_memory_equal(x, expected[m], sizeof x);
                }
            dataloader_close(&dl);
        }
}

static void seeds_give_different_orders(void **) {
    DataLoader a, b;
    int x[22 * 7], y[22 * 7], other[22 * 7];
    open_three_shards(&a, 22, 7, 1, true);
    open_three_shards(&b, 22, 7, 2, true);
    fetch_batch(&a, 0, x, y);
    fetch_batch(&b, 0, other, y);
    assert_memory_not_equal(x, other, sizeof x);
    dataloader_close(&a);
    dataloader_close(&b);
}

static void reading_ahead_changes_nothing(void **) {
    DataLoader plain, ahead;
    enum { B = 3, T = 7 };
    int x[B * T], y[B * T], x2[B * T], y2[B * T];
    open_three_shards(&plain, B, T, 5, true);
    open_three_shards(&ahead, B, T, 5, true);
    uint64_t at = 0;
    for (int i = 0; i < 500; i++) {
        if (i % 3) prefetch_batch(&ahead, i % 5 ? at : at + 1);  // right and wrong guesses
        fetch_batch(&plain, at, x, y);
        fetch_batch(&ahead, at, x2, y2);
        assert_memory_equal(x, x2, sizeof x);
        assert_memory_equal(y, y2, sizeof y);
        at = (at * 7 + 3) % 1000;
    }
    dataloader_close(&plain);
    dataloader_close(&ahead);
}

static void rows_behind_the_end_of_a_validation_set_count_for_nothing(void **) {
    DataLoader dl;
    enum { B = 4, T = 7 };
    int x[B * T], y[B * T], counted = 0;
    open_three_shards(&dl, B, T, 1, false);
    for (uint64_t m = 0; m < 8;
         m++) {  // 22 samples: the sixth micro-batch has two, two more have none
        fetch_batch(&dl, m, x, y);
        for (int i = 0; i < B * T; i++) {
            assert_true(x[i] >= 0 && x[i] < 50257);
            assert_true(y[i] == (m * B * T + (uint64_t)i < 22 * T ? x[i] + 1 : -1));
            counted += y[i] >= 0;
        }
    }
    assert_int_equal(counted, 22 * T);
    assert_true(dataloader_batches(&dl) == 6);
    dataloader_close(&dl);
}

// ---- many and large files ----------------------------------------------------------------------

static void more_files_than_open_descriptors_are_read(void **) {
    enum { FILES = 150, T = 3 };
    for (int i = 0; i < FILES; i++) {
        char name[32];
        snprintf(name, sizeof name, "many_%03d.bin", i);
        write_shard(name, (uint32_t)(i * 10), 7, 2);
    }
    DataLoader dl;
    int x[T], y[T];
    dataloader_open(&dl, temporary("many_*.bin"), 1, T, 50257, 1, true);
    assert_true(dl.samples == 2 * FILES);
    int seen[2 * FILES] = {0};
    for (uint64_t m = 0; m < dl.samples; m++) {
        fetch_batch(&dl, m, x, y);
        seen[x[0] / 10 * 2 + (x[0] % 10 != 0)]++;
        assert_int_equal(y[T - 1], x[0] + T);
    }
    for (int i = 0; i < 2 * FILES; i++) assert_int_equal(seen[i], 1);
    dataloader_close(&dl);
}

// A sparse file of 6 GB: positions pass 2^32 bytes.
static void tokens_beyond_four_gigabytes_are_found(void **) {
    const char *path = temporary("large.bin");
    const uint32_t count = 3000000000u;
    int fd = open_check(path, O_RDWR | O_CREAT | O_TRUNC);
    uint32_t header[256] = {20240520, 1, count};
    write_exact(fd, header, sizeof header, 0, path);
    uint16_t tail[5] = {11, 12, 13, 14, 15};
    write_exact(fd, tail, sizeof tail, 1024 + 2 * ((uint64_t)count - 5), path);
    close(fd);
    DataLoader dl;
    int x[4], y[4];
    dataloader_open(&dl, path, 1, 4, 50257, 1, false);
    assert_true(dl.samples == (count - 1) / 4);
    uint64_t last = dl.samples - 1, at = count - 5;
    fetch_batch(&dl, last, x, y);
    for (uint64_t t = 0; t < 4; t++)
        assert_int_equal(x[t], last * 4 + t < at ? 0 : 11 + last * 4 + t - at);
    assert_int_equal(x[3], 14 - (int)((count - 1) % 4));
    dataloader_close(&dl);
    unlink(path);
}

// ---- what is refused ---------------------------------------------------------------------------

static void run_open(const void *pattern) {
    DataLoader dl;
    dataloader_open(&dl, (const char *)pattern, 1, 8, 50257, 1, true);
}

static void run_epoch(const void *pattern) {
    DataLoader dl;
    int x[8], y[8];
    dataloader_open(&dl, (const char *)pattern, 1, 8, 257, 1, true);
    for (uint64_t m = 0; m < dl.samples; m++) fetch_batch(&dl, m, x, y);
}

static void run_epoch_ahead(const void *pattern) {
    DataLoader dl;
    int x[8], y[8];
    dataloader_open(&dl, (const char *)pattern, 1, 8, 257, 1, true);
    for (uint64_t m = 0; m < dl.samples; m++) {
        prefetch_batch(&dl, m);
        fetch_batch(&dl, m, x, y);
    }
}

// Changes one word of a good shard's header or its length.
static void expect_bad_shard(int word, uint32_t value, size_t cut, const char *expected) {
    char bytes[1024 + 200];
    uint32_t header[256] = {20240520, 1, 100};
    header[word] = value;
    memset(bytes, 0, sizeof bytes);
    memcpy(bytes, header, 1024);
    expect_death(run_open, write_file(temporary("bad.bin"), bytes, sizeof bytes - cut), expected);
}

static void bad_files_end_in_one_line(void **) {
    expect_death(run_open, temporary("nothing*.bin"), "no file matches");
    expect_death(run_open, "/nowhere/x.bin", "no file matches /nowhere/x.bin");
    expect_death(run_open, "/dev/zero", "/dev/zero: expected a regular file, found a device");
    const char *pipe = temporary("pipe.txt");
    assert_int_equal(mkfifo(pipe, 0600), 0);
    alarm(20);
    expect_death(run_open, pipe, "pipe.txt: expected a regular file, found a pipe");
    alarm(0);
    expect_death(run_open, write_file(temporary("empty.bin"), "", 0),
                 "no file has the 9 tokens of one sample");
    expect_death(run_open, write_file(temporary("empty.txt"), "", 0),
                 "no file has the 9 tokens of one sample (T=8 and one more); found 1 in 1 file(s)");
    expect_death(run_open, write_file(temporary("short.txt"), "1234567", 7),
                 "no file has the 9 tokens of one sample (T=8 and one more); found 8 in 1 file(s)");
    expect_death(run_open, folder, "found only 1 folder(s); to take all files of one: /tmp/test_");
    expect_bad_shard(0, 20240326, 0, "expected a token shard, found a model.bin, which --model");
    expect_bad_shard(1, 2, 0, "expected version 1 of a token shard, found 2");
    expect_bad_shard(2, 101, 0, "expected 1226 bytes for 101 tokens, found 1224; is it complete?");
    expect_bad_shard(2, 100, 1, "expected 1224 bytes for 100 tokens, found 1223");
    expect_bad_shard(2, 99, 0, "expected 1222 bytes for 99 tokens, found 1224");
    expect_bad_shard(2, 0, 200, "no file has the 9 tokens");
    expect_bad_shard(2, 0xffffffff, 0, "expected 8589935614 bytes for 4294967295 tokens");
    expect_death(run_open, write_file(temporary("tiny.bin"), "x", 1), "expected a token shard");
}

// Numbers as nanoGPT and NumPy write them, texts in UTF-16 and UTF-32, archives.
static void foreign_data_are_recognised(void **) {
    static const struct {
        const char *bytes;
        size_t n;
        const char *expected;
    } magics[] = {{"\x93NUMPY\1\0", 8, "a NumPy array (.npy); a token shard has a header"},
                  {"\x1f\x8b\x08", 3, "a file packed by gzip; gunzip it"},
                  {"PK\3\4", 4, "an archive (zip, .npz"},
                  {"\xc8\xd7\x34\x01", 4, "a tokenizer.bin, which --tokenizer takes"},
                  {"\x8a\xd8\x34\x01", 4, "HellaSwag examples"},
                  {"\xff\xfe"
                   "a\0b\0",
                   6, "text in UTF-16; iconv -f UTF-16 -t UTF-8"},
                  {"\xff\xfe\0\0a\0\0\0", 8, "text in UTF-32"}};
    char expected[200];
    for (auto &m : magics)
        for (int bin = 0; bin < 2; bin++) {
            snprintf(expected, sizeof expected, "expected %s, found %s",
                     bin ? "a token shard" : "text", m.expected);
            expect_death(run_open, write_file(temporary(bin ? "f.bin" : "f.txt"), m.bytes, m.n),
                         expected);
        }
    uint32_t tokens[2000], state = 1;
    uint16_t narrow[2000], wide[4000];
    const char *text = "It was the best of times, it was the worst of times.\n";
    for (int i = 0; i < 2000; i++) {  // of GPT-2's, every eighth one below 256
        state = state * 1664525 + 1013904223;
        narrow[i] = (uint16_t)(tokens[i] = (state >> 8) % (i % 8 ? 50257 : 256));
    }
    for (int i = 0; i < 4000; i++) wide[i] = (uint16_t)text[i % 53];
    expect_death(run_open, write_file(temporary("n.bin"), narrow, sizeof narrow),
                 "expected a token shard, found numbers of 16 bits without a header");
    expect_death(run_open, write_file(temporary("n.txt"), narrow, sizeof narrow),
                 "expected text, found numbers of 16 bits without a header, as nanoGPT writes");
    expect_death(run_open, write_file(temporary("t.bin"), tokens, sizeof tokens),
                 "found numbers of 32 or 64 bits without a header");
    expect_death(run_open, write_file(temporary("le.txt"), wide, sizeof wide),
                 "text in UTF-16, low byte fi");
    expect_death(run_open, write_file(temporary("be.txt"), (char *)wide + 1, sizeof wide - 2),
                 "text in UTF-16, high byte first");
    expect_death(run_open, write_file(temporary("book.bin"), text, 53),
                 "expected a token shard, found text; give it a name that does not end in .bin");
}

static void mixed_kinds_are_refused(void **) {
    write_shard("mix_1.bin", 0, 50, 2);
    write_shard("mix_2.bin", 0, 50, 4);
    expect_death(run_open, temporary("mix_*"), "mixes kinds of data");
    write_file(temporary("mix_2.bin.txt"), "some text that is long enough", 29);
    unlink(temporary("mix_2.bin"));
    expect_death(run_open, temporary("mix_*"), "mix_1.bin is uint16 shard");
}

static void a_token_beyond_the_vocabulary_is_named(void **) {
    const char *expected =
        "over.bin: expected tokens below the vocabulary V=257, found 257 at token 57";
    const char *path = write_shard("over.bin", 200, 65, 2);
    expect_death(run_epoch, path, expected);
    expect_death(run_epoch_ahead, path, expected);
}

// Opens and checks only: nothing else is read.
static void run_check(const void *pattern) {
    DataLoader dl;
    dataloader_open(&dl, (const char *)pattern, 2, 8, 257, 1, true);
    dataloader_check(&dl);
}

static void a_token_beyond_the_vocabulary_is_found_at_start(void **) {
    enum { FILES = 150 };
    for (int i = 0; i < FILES; i++) {
        char name[32];
        snprintf(name, sizeof name, "start_%03d.bin", i);
        write_shard(name, 100, i == 7 ? 3 : 65, 2);  // one is too short for a sample
    }
    const char *pattern = temporary("start_*.bin");
    DataLoader dl;
    dataloader_open(&dl, pattern, 2, 8, 257, 1, true);
    dataloader_check(&dl);
    int x[16], y[16];
    fetch_batch(&dl, 3, x, y);
    assert_int_equal(y[0], x[0] + 1);
    dataloader_close(&dl);
    write_shard("start_149.bin", 200, 65, 2);  // 257 is in the last sample of the last file
    expect_death(run_check, pattern,
                 "start_149.bin: expected tokens below the vocabulary V=257, found 257");
    write_shard("start_000.bin", 300, 65, 2);
    expect_death(run_check, pattern, "start_000.bin: expected tokens below the vocabulary V=257");
}

static void run_truncated(const void *path) {
    DataLoader dl;
    int x[8], y[8];
    dataloader_open(&dl, (const char *)path, 1, 8, 50257, 1, false);
    if (truncate((const char *)path, 1024 + 20) != 0) return;
    fetch_batch(&dl, 2, x, y);
}

static void a_file_that_shrinks_during_the_run_is_named(void **) {
    expect_death(run_truncated, write_shard("cut.bin", 0, 50, 2), "cut.bin ends at byte");
}

// ---- the reference's data ----------------------------------------------------------------------

// x and y of debug_state.bin are the first step as dev/order.py cuts it from the shards.
static void the_first_step_is_the_one_python_trained_on(void **) {
    const struct {
        const char *folder, *train;
        int B, T, V, micro_batches;
        uint64_t seed;
    } cases[] = {{"test/reference/tiny", "test/reference/tiny/train_*.bin", 2, 7, 37, 4, 1234},
                 {"test/reference/small", "test/reference/small/train.txt", 2, 32, 257, 2, 42}};
    for (int i = 0; i < 2; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/debug_state.bin", cases[i].folder);
        int fd = open_check(path, O_RDONLY), header[4], B = cases[i].B, T = cases[i].T;
        read_exact(fd, header, sizeof header, 0, path);
        assert_int_equal(header[2], B * cases[i].micro_batches);
        assert_int_equal(header[3], T);
        static int xy[1024], x[64], y[64];
        size_t half = (size_t)header[2] * (size_t)T;
        read_exact(fd, xy, 2 * half * 4, 1024, path);
        close(fd);
        DataLoader dl;
        dataloader_open(&dl, cases[i].train, B, T, cases[i].V, cases[i].seed, true);
        for (size_t m = 0; m < (size_t)cases[i].micro_batches; m++) {
            size_t n = (size_t)B * (size_t)T;
            fetch_batch(&dl, m, x, y);
            assert_memory_equal(x, xy + m * n, n * 4);
            assert_memory_equal(y, xy + half + m * n, n * 4);
        }
        dataloader_close(&dl);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_bytes_after_an_end_of_text),
        cmocka_unit_test(both_kinds_of_shard_give_their_tokens),
        cmocka_unit_test(the_last_target_of_a_sample_is_the_first_token_of_the_next),
        cmocka_unit_test(a_name_with_brackets_is_a_file_before_it_is_a_pattern),
        cmocka_unit_test(folders_that_match_are_left_out),
        cmocka_unit_test(empty_and_short_files_give_no_sample_and_are_counted),
        cmocka_unit_test(every_sample_comes_exactly_once_in_an_epoch),
        cmocka_unit_test(micro_batches_cut_one_global_order_whatever_their_size),
        cmocka_unit_test(a_step_is_the_same_samples_for_any_number_of_ranks),
        cmocka_unit_test(seeds_give_different_orders),
        cmocka_unit_test(reading_ahead_changes_nothing),
        cmocka_unit_test(rows_behind_the_end_of_a_validation_set_count_for_nothing),
        cmocka_unit_test(more_files_than_open_descriptors_are_read),
        cmocka_unit_test(tokens_beyond_four_gigabytes_are_found),
        cmocka_unit_test(bad_files_end_in_one_line),
        cmocka_unit_test(foreign_data_are_recognised),
        cmocka_unit_test(mixed_kinds_are_refused),
        cmocka_unit_test(a_token_beyond_the_vocabulary_is_named),
        cmocka_unit_test(a_token_beyond_the_vocabulary_is_found_at_start),
        cmocka_unit_test(a_file_that_shrinks_during_the_run_is_named),
        cmocka_unit_test(the_first_step_is_the_one_python_trained_on),
    };
    return run_in_folder(tests);
}
