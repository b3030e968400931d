// test/test_tokenizer.cpp: text to tokens as tiktoken does it, and texts kept as token shards. The
// expected tokens are tiktoken's (dev/make_tokenizer_reference.py).
#define TOKEN_BLOCK ((uint64_t)100000)  // bytes: a text of some blocks is small
#include "../lib/token_files.h"
#include "death.h"

#define REFERENCE "test/reference/tokenizer/"

static Tokenizer tokenizer;
static Bpe bpe;

static int open_tokenizer(void **state) {
    tokenizer = tokenizer_open(REFERENCE "tokenizer.bin");
    bpe = bpe_start(&tokenizer);
    return make_folder_of_tests(state);
}

static Tokens encode(const void *text, size_t n) {
    BpeWork w = bpe_work_start(&bpe);
    Tokens tokens = {};
    bpe_encode(&w, text, n, &tokens);
    bpe_work_finish(&w);
    return tokens;
}

static void expect_tokens(const Tokens *found, const int *expected, size_t n, const char *text) {
    for (size_t i = 0; i < n || i < found->n; i++)
        if (i >= n || i >= found->n || found->at[i] != expected[i])
            fail_msg("`%s`: token %zu: expected %d of %zu, found %d of %zu", text, i,
                     i < n ? expected[i] : -1, n, i < found->n ? found->at[i] : -1, found->n);
}

// ---- encoding ----------------------------------------------------------------------------------

static void hostile_texts_have_the_tokens_of_tiktoken(void **) {
    size_t bytes;
    char *cases = read_all(REFERENCE "cases.bin", 1 << 20, &bytes), *at = cases;
    int count = 0;
    for (; at < cases + bytes; count++) {
        int32_t length, n;
        memcpy(&length, at, 4);
        const char *text = at + 4;
        memcpy(&n, text + length, 4);
        int *expected = (int *)malloc_check((size_t)n * sizeof(int) + 1);
        memcpy(expected, text + length + 4, (size_t)n * sizeof(int));
        Tokens found = encode(text, (size_t)length);
        char *printed = strndup(text, (size_t)length);
        expect_tokens(&found, expected, (size_t)n, printed);
        free(printed), free(expected), free(found.at);
        at += 8 + length + 4 * n;
    }
    assert_true(count > 200);
    free(cases);
}

static void a_word_of_a_megabyte_has_the_tokens_of_tiktoken(void **) {
    enum { N = 1000000 };
    char *word = (char *)malloc_check(N);
    for (uint64_t k = 0; k < N; k++) word[k] = (char)('a' + k * k / 7 % 26);
    Tokens found = encode(word, N);
    uint64_t sum = 0, expected_sum;
    size_t expected;
    for (size_t i = found.n; i-- > 0;) sum = sum * 31 + (uint64_t)found.at[i];
    FILE *f = fopen_check(REFERENCE "long.txt", "r");
    assert_int_equal(fscanf(f, "%zu %" SCNu64, &expected, &expected_sum), 2);
    fclose(f);
    assert_int_equal(found.n, expected);
    assert_true(sum == expected_sum);
    free(word), free(found.at);
}

// Also what is no UTF-8: tiktoken knows no such text.
static void every_text_comes_back_to_the_byte(void **) {
    unsigned seed = 1;
    unsigned char text[200];
    for (int round = 0; round < 2000; round++) {
        size_t n = (size_t)rand_r(&seed) % sizeof text, at = 0;
        for (size_t i = 0; i < n; i++)
            text[i] = (unsigned char)(round % 2 ? rand_r(&seed)
                                                : "a 1\xc3\xa9\xff\n\xe2"[rand_r(&seed) % 8]);
        Tokens found = encode(text, n);
        for (size_t i = 0; i < found.n; i++) {
            const unsigned char *piece;
            size_t size = tokenizer_text(&tokenizer, found.at[i], &piece);
            assert_true(at + size <= n && !memcmp(text + at, piece, size));
            at += size;
        }
        assert_int_equal(at, n);
        free(found.at);
    }
}

static void run_bpe_start(const void *t) {
    bpe_start((const Tokenizer *)t);
}

static void bytes_are_a_vocabulary_and_one_without_all_bytes_is_refused(void **) {
    Tokenizer t = tokenizer_of_bytes();
    Bpe b = bpe_start(&t);
    BpeWork w = bpe_work_start(&b);
    Tokens found = {};
    const char text[] = "caf\xc3\xa9 \xff\n<|endoftext|>";
    bpe_encode(&w, text, strlen(text), &found);
    assert_int_equal(found.n, strlen(text));
    for (size_t i = 0; i < found.n; i++) assert_int_equal(found.at[i], (unsigned char)text[i]);
    free(found.at);
    bpe_work_finish(&w);
    bpe_finish(&b);
    memcpy(t.bytes + 7, "x", 1);
    expect_death(run_bpe_start, &t, "the tokenizer has no token for the byte 7");
    tokenizer_close(&t);
}

// ---- texts kept as shards ----------------------------------------------------------------------

// Words, numbers, spaces of all kinds and letters of more than one byte; n bytes or a little more.
static char *make_text(size_t n, unsigned seed, const char *const *words, size_t count) {
    char *text = (char *)malloc_check(n + 64);
    size_t at = 0;
    while (at < n) at += (size_t)sprintf(text + at, "%s", words[(unsigned)rand_r(&seed) % count]);
    return text;
}

static Tokens shards_of(const TokenFiles *f) {
    Tokens all = {};
    for (int block = 0; block < f->blocks; block++) {
        char path[PATH_BYTES];
        size_t bytes;
        token_files_path(f, "", block, path);
        char *shard = read_all(path, 1 << 24, &bytes);
        const uint32_t *header = (const uint32_t *)shard;
        assert_true(header[0] == SHARD_MAGIC && header[1] == SHARD_VERSION);
        assert_int_equal(bytes, SHARD_HEADER_BYTES + 2 * (size_t)header[2]);
        const uint16_t *tokens = (const uint16_t *)(shard + SHARD_HEADER_BYTES);
        for (uint32_t i = 0; i < header[2]; i++) tokens_add(&all, tokens[i]);
        free(shard);
    }
    return all;
}

static void make_shards(const TokenFiles *f) {
    int lock = token_files_begin(f);
    uint64_t sum = 0;
    for (int block = f->blocks; block-- > 0;) sum += token_files_block(f, &bpe, block);
    token_files_end(f, lock, sum);
}

static const char *const pieces[] = {
    "word", " word", "\n", "\n\n",     " \n",          "\t",           "1984",
    ", ",   "'s",    "  ", "\xc3\xa9", "\xe3\x80\x80", "\xe6\xbc\xa2", "\xf0\x9f\x98\x80",
    "\xff"};
enum { PIECES = sizeof pieces / sizeof pieces[0] };

// Wherever a text may be cut, the tokens of the parts are those of the whole.
static void a_text_is_cut_only_where_no_token_crosses(void **) {
    int cuts = 0;
    for (unsigned seed = 1; seed <= 300; seed++) {
        char *text = make_text(150, seed, pieces, PIECES);
        size_t n = strlen(text);
        Tokens whole = encode(text, n);
        for (size_t at = 0; at < n; at++) {
            if (!token_cut_at((const unsigned char *)text, n, at)) continue;
            Tokens parts = encode(text, at), behind = encode(text + at, n - at);
            for (size_t i = 0; i < behind.n; i++) tokens_add(&parts, behind.at[i]);
            expect_tokens(&parts, whole.at, whole.n, text);
            free(parts.at), free(behind.at);
            cuts++;
        }
        free(whole.at), free(text);
    }
    assert_true(cuts > 300);
}

// In blocks, in chunks and by any number of threads, the tokens are those of the whole text.
static void the_shards_of_a_text_are_its_tokens(void **) {
    static const char *const chinese[] = {"\xe6\xbc\xa2", "\xe5\xad\x97", "\xe3\x80\x82\n",
                                          "\xe3\x80\x80"};
    static const char *const one_line[] = {"word", " word", " 7", "-"};
    static const char *const no_cut[] = {"x"};
    static const struct {
        const char *const *words;
        size_t count, bytes;
    } cases[] = {{pieces, PIECES, 0},  {pieces, PIECES, 1},   {pieces, PIECES, 1000000},
                 {chinese, 4, 600000}, {one_line, 4, 700000}, {no_cut, 1, 300000}};
    for (auto &c : cases) {
        char *text = make_text(c.bytes, 7, c.words, c.count);
        const char *path = write_file(temporary("text.txt"), text, strlen(text));
        TokenFiles f = token_files(path, "", &tokenizer);
        assert_false(token_files_ready(&f));
        make_shards(&f);
        assert_true(token_files_ready(&f));
        Tokens found = shards_of(&f), whole = encode(text, strlen(text)), expected = {};
        tokens_add(&expected, tokenizer.eot);
        for (size_t i = 0; i < whole.n; i++) tokens_add(&expected, whole.at[i]);
        expect_tokens(&found, expected.at, expected.n, "the shards");
        free(found.at), free(whole.at), free(expected.at), free(text);
        token_files_remove(f.folder);
    }
}

static void run_token_files_begin(const void *f) {
    token_files_begin((const TokenFiles *)f);
}

static void shards_are_used_again_until_the_text_or_the_tokenizer_changes(void **) {
    const char *path = write_file(temporary("again.txt"), "some text\nof two lines\n", 23);
    TokenFiles f = token_files(path, "", &tokenizer);
    make_shards(&f);
    // another date, the same text
    struct timespec dates[2] = {{1000000000, 0}, {1000000000, 0}};
    assert_int_equal(utimensat(AT_FDCWD, path, dates, 0), 0);
    f = token_files(path, "", &tokenizer);
    assert_true(token_files_ready(&f));
    // another text of the same size
    write_file(path, "Some text\nof two lines\n", 23);
    f = token_files(path, "", &tokenizer);
    assert_false(token_files_ready(&f));
    make_shards(&f);
    assert_true(token_files_ready(&f));
    Tokenizer bytes = tokenizer_of_bytes();
    TokenFiles other = token_files(path, "", &bytes);
    assert_string_not_equal(other.folder, f.folder);
    tokenizer_close(&bytes);

    // what a run has left half done goes; what another is making stays
    int lock = token_files_begin(&f);
    expect_death(run_token_files_begin, &f, "another run is making the tokens of");
    close(lock);
    make_shards(&f);
    assert_true(token_files_ready(&f));
    TokenFiles elsewhere = token_files(path, folder, &tokenizer);
    assert_string_equal(elsewhere.folder, f.folder);
    elsewhere = token_files(path, "/nowhere", &tokenizer);
    expect_death(run_token_files_begin, &elsewhere, "name a folder for them with --token-folder");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_texts_have_the_tokens_of_tiktoken),
        cmocka_unit_test(a_word_of_a_megabyte_has_the_tokens_of_tiktoken),
        cmocka_unit_test(every_text_comes_back_to_the_byte),
        cmocka_unit_test(bytes_are_a_vocabulary_and_one_without_all_bytes_is_refused),
        cmocka_unit_test(a_text_is_cut_only_where_no_token_crosses),
        cmocka_unit_test(the_shards_of_a_text_are_its_tokens),
        cmocka_unit_test(shards_are_used_again_until_the_text_or_the_tokenizer_changes),
    };
    return remove_folder_unless(cmocka_run_group_tests(tests, open_tokenizer, NULL));
}
