// test/test_eval.cpp: --eval: the score of a set whose answers are known, the same on any number of
// ranks, and what is wrong with a file in one line; runs without steps that only evaluate.
#include "run.h"

#include <math.h>

// A model of three tokens without order: 0 and 1 with 0.45 each, 2 with 0.1.
enum { VOCAB = 3, TRAINED = 4096 };
static char model[128];

static void write_words(const char *path, const int32_t *header, const uint16_t *words, size_t n) {
    static unsigned char bytes[1 << 16];
    memset(bytes, 0, 1024);
    memcpy(bytes, header, 16);
    memcpy(bytes + 1024, words, 2 * n);
    write_file(path, bytes, 1024 + 2 * n);
}

static int make_model(void **state) {
    static uint16_t tokens[TRAINED];
    const int32_t header[4] = {20240520, 1, TRAINED, 0};
    if (make_folder_of_tests(state) != 0) return -1;
    srand(1);
    for (uint16_t &t : tokens) t = (uint16_t)(rand() % 10 == 0 ? 2 : rand() % 2);
    write_words(temporary("random.bin"), header, tokens, TRAINED);
    snprintf(model, sizeof model, "%s/model.bin", folder);
    Outcome o = run(PROGRAM " --model gpt2:L=1,C=16,NH=2,T=16,V=3 --train %s/random.bin --batch 8 "
                            "--steps 60 --lr 1e-2 --export-model %s",
                    folder, model);
    if (o.status != 0) print_error("%s", o.err);
    return o.status;
}

typedef struct {
    uint16_t words[4096];
    size_t n;
    int examples;
} Set;

static void set_add(Set *s, uint16_t label, int endings, const uint16_t *lengths,
                    const uint16_t *tokens) {
    static const uint16_t context[] = {0, 1, 1, 0};
    uint16_t *at = s->words + s->n, *begin = at;
    *at++ = 65535, *at++ = 0, *at++ = (uint16_t)s->examples++;
    *at++ = label, *at++ = (uint16_t)endings, *at++ = 4;
    for (uint16_t t : context) *at++ = t;
    for (int i = 0; i < endings; i++) {
        *at++ = lengths[i];
        for (int k = 0; k < lengths[i]; k++) *at++ = *tokens++;
    }
    begin[1] = (uint16_t)(2 * (at - begin));
    s->n += (size_t)(at - begin);
}

static void set_write(const Set *s, const char *name) {
    const int32_t header[4] = {20240522, 1, s->examples, 0};
    write_words(temporary(name), header, s->words, s->n);
}

// The mean loss of a likely ending is 0.8 a token, that of token 2 is 2.3: the long one has the
// least mean, though not the least sum. In every fourth example another one is called right.
static Set known_set(void) {
    Set s = {};
    const uint16_t lengths[] = {1, 6, 3, 1}, tokens[] = {2, 0, 1, 0, 1, 1, 0, 2, 2, 2, 2};
    for (int i = 0; i < 20; i++) set_add(&s, i % 4 == 3 ? 2 : 1, 4, lengths, tokens);
    return s;
}

static double number_after(const char *text, const char *name) {
    const char *at = strstr(text, name);
    if (!at) fail_msg("expected %s, found: %s", name, text);
    return atof(at + strlen(name));
}

static void a_known_set_has_its_score_on_any_number_of_ranks(void **) {
    Set s = known_set();
    set_write(&s, "known.bin");
    static const char *const forms[] = {"--batch 3",
                                        "--batch 3 --ranks 2",
                                        "--batch 3 --ranks 3 --shard grads",
                                        "--batch 3 --ranks 2 --shard none --precision fp32",
                                        "--batch 8 --ranks 2 --precision bf16",
                                        "--batch 200"};
    for (const char *f : forms) {
        Outcome o = run(PROGRAM " --model %s --steps 0 --eval %s/known.bin %s", model, folder, f);
        if (o.status != 0 || !strstr(o.out, "step 0/0  eval 0.7500 (15 of 20)"))
            fail_msg("%s: expected 15 of 20, found: %s%s", f, o.out, o.err);
    }
}

// Four endings of equal length, a random set: the scores themselves, on any number of ranks.
static void the_score_of_any_set_is_the_same_on_any_number_of_ranks(void **) {
    Set s = {};
    srand(2);
    for (int i = 0; i < 60; i++) {
        uint16_t lengths[4], tokens[24];
        for (uint16_t &l : lengths) l = (uint16_t)(1 + rand() % 6);
        for (uint16_t &t : tokens) t = (uint16_t)(rand() % 3);
        set_add(&s, (uint16_t)(rand() % 4), 4, lengths, tokens);
    }
    set_write(&s, "any.bin");
    static Outcome one, many;
    const char *options = "--steps 0 --json --batch 5 --eval";
    one = run(PROGRAM " --model %s %s %s/any.bin", model, options, folder);
    assert_int_equal(one.status, 0);
    static const char *const forms[] = {"--ranks 2", "--ranks 3 --unit matrix",
                                        "--ranks 4 --shard hybrid:2"};
    for (const char *f : forms) {
        many = run(PROGRAM " --model %s %s %s/any.bin %s", model, options, folder, f);
        if (strcmp(many.out, one.out)) fail_msg("%s: %s, found %s", f, one.out, many.out);
    }
}

static void every_validation_has_a_score_in_the_logs(void **) {
    Set s = known_set();
    set_write(&s, "known.bin");
    Outcome o = run(PROGRAM " --model %s --train %s/random.bin --steps 4 --lr 1e-6 --val-every 2 "
                            "--eval %s/known.bin --out %s/run --ranks 2",
                    model, folder, folder, folder);
    if (o.status != 0) fail_msg("%s", o.err);
    expect_text(o, "step 2/4  eval 0.7500 (15 of 20)");
    const char *log = read_file(temporary("run/main.log"));
    if (!strstr(log, "s:0 eval:0.75\n") || !strstr(log, "s:4 eval:0.75\n")) fail_msg("%s", log);
    log = read_file(temporary("run/metrics.jsonl"));
    if (!strstr(log, "{\"step\":2,\"eval\":0.75,\"right\":15,\"examples\":20}\n"))
        fail_msg("%s", log);
}

// The model's loss is that of the best one, 0.949 nats: it has learned how often each token comes.
static void without_steps_a_model_is_evaluated(void **) {
    Outcome o =
        run(PROGRAM " --model %s --steps 0 --val %s/random.bin --val-batches 1000", model, folder);
    assert_int_equal(o.status, 0);
    double loss = number_after(o.out, "validation loss "),
           perplexity = number_after(o.out, "perplexity ");
    if (!(fabs(loss - 0.949) < 0.05) || !(fabs(perplexity - exp(loss)) < 0.005 * perplexity))
        fail_msg("expected 0.949, found: %s", o.out);
    o = run(PROGRAM " --model test/reference/small/model.bin --steps 0 --ranks 2 --val "
                    "test/reference/small/val.txt");
    assert_int_equal(o.status, 0);
    loss = number_after(o.out, "validation loss ");
    double bits = number_after(strstr(o.out, "validation loss"), "(");
    if (!(fabs(bits - loss / log(2)) < 0.001)) fail_msg("%s", o.out);
    if (strstr(o.out, "gradient 0.0 MiB") == NULL) fail_msg("gradients are kept: %s", o.out);
    // of tokens of several bytes: but for the last 7 of its tokens the whole text
    o = run("cp test/reference/small/train.txt %s/text; " PROGRAM
            " --model gpt2:L=1,C=8,NH=2,T=16 --batch 1 --tokenizer "
            "test/reference/tokenizer/tokenizer.bin --val %s/text --val-batches 100 --steps 0 "
            "--ranks 2",
            folder, folder);
    assert_int_equal(o.status, 0);
    loss = number_after(o.out, "validation loss ");
    bits = number_after(strstr(o.out, "validation loss"), "(");
    double tokens = number_after(o.out, "validation       "),
           bytes = (double)strlen(read_file("test/reference/small/train.txt"));
    if (!(fabs(bits / (loss / log(2) * tokens / bytes) - 1) < 0.02))
        fail_msg("%g tokens of %g bytes: %s", tokens, bytes, o.out);
}

static void a_checkpoint_is_evaluated_by_any_number_of_ranks(void **) {
    Set s = known_set();
    set_write(&s, "known.bin");
    static Outcome o, again;
    o = run(PROGRAM " --model %s --train %s/random.bin --val %s/random.bin --steps 2 --lr 1e-6 "
                    "--tokens-per-step 256 --batch 8 --ranks 2 --eval %s/known.bin --out %s/saved "
                    "--checkpoint-every 2",
            model, folder, folder, folder, folder);
    if (o.status != 0) fail_msg("%s", o.err);
    again = run(PROGRAM " --resume %s/saved --steps 0 --ranks 3 --val %s/random.bin --eval "
                        "%s/known.bin",
                folder, folder, folder);
    if (again.status != 0) fail_msg("%s", again.err);
    expect_text(again, "step 2/2  eval 0.7500 (15 of 20)");
    double before = number_after(strstr(o.out, "step 2/2  val"), "validation loss "),
           now = number_after(again.out, "step 2/2  validation loss ");
    assert_true(before == now);
}

static void a_malformed_file_ends_in_one_line(void **) {
    Set good = known_set();
    const size_t size = good.words[1] / 2;
    const struct {
        size_t at;
        uint16_t word;
        const char *expected;
    } cases[] = {
        {0, 1, "example 0: expected 65535 where it begins"},
        {1, 7, "example 0: its size does not fit the file"},
        {1, (uint16_t)(2 * size - 2), "example 0: it ends before its tokens do"},
        {1, (uint16_t)(2 * size + 2), "example 0: words follow after its last ending"},
        {2, 5, "example 0: it has the number of another"},
        {3, 4, "example 0: expected a label below the number of endings, found 4 of 4"},
        {4, 1, "found 1 of 1"},
        {5, 0, "example 0: expected tokens of a context and of each ending, found none"},
        {6, 3, "example 0: expected tokens below the vocabulary V=3, found 3"},
        {10, 0, "example 0: expected tokens of a context and of each ending, found none"},
    };
    char command[512];
    snprintf(command, sizeof command, PROGRAM " --model %s --steps 0 --ranks 2 --eval %s/bad.bin",
             model, folder);
    for (auto &c : cases) {
        Set bad = good;
        bad.words[c.at] = c.word;
        set_write(&bad, "bad.bin");
        expect_refusal(command, c.expected);
    }
    Set longer = good, shorter = good;
    longer.n += 3, shorter.n -= 1;
    set_write(&longer, "bad.bin");
    expect_refusal(command, "6 bytes follow after the last example");
    set_write(&shorter, "bad.bin");
    expect_refusal(command, "example 19: its size does not fit the file");
    const int32_t headers[][4] = {{20240520, 1, 20, 0}, {20240522, 2, 20, 0}, {20240522, 1, 0, 0}};
    const char *expected[] = {"found magic 20240520", "expected version 1, found 2",
                              "at least one example"};
    for (int i = 0; i < 3; i++) {
        write_words(temporary("bad.bin"), headers[i], good.words, good.n);
        expect_refusal(command, expected[i]);
    }
    Set wide = {};
    const uint16_t lengths[] = {13, 1}, tokens[14] = {0};
    set_add(&wide, 0, 2, lengths, tokens);
    set_write(&wide, "bad.bin");
    expect_refusal(command, "its longest row has 17 tokens, the model sees 16");
    snprintf(command, sizeof command, PROGRAM " --model %s --steps 0 --eval %s/none.bin", model,
             folder);
    expect_refusal(command, "none.bin");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_known_set_has_its_score_on_any_number_of_ranks),
        cmocka_unit_test(the_score_of_any_set_is_the_same_on_any_number_of_ranks),
        cmocka_unit_test(every_validation_has_a_score_in_the_logs),
        cmocka_unit_test(without_steps_a_model_is_evaluated),
        cmocka_unit_test(a_checkpoint_is_evaluated_by_any_number_of_ranks),
        cmocka_unit_test(a_malformed_file_ends_in_one_line),
    };
    return remove_folder_unless(cmocka_run_group_tests(tests, make_model, NULL));
}
