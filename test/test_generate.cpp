// test/test_generate.cpp: text from a model: with the keys and values of earlier tokens kept, the
// logits are those of a whole forward; --generate prints the same text on any number of ranks, and
// what it says of prompts, ends and full contexts holds.
#include "../checkpoint/parameters.h"
#include "../lib/rng.h"
#include "../lib/utf8.h"
#include "run.h"

#include <math.h>
#include <omp.h>

extern const GptCode gpt_fp32_generic, gpt_bf16_generic;

// ---- logits ------------------------------------------------------------------------------------

enum { TOKENS = 70, VOCAB = 37 };  // T: two blocks of the prompt's padding, the second cut short

static GptConfig config_of(int recompute, bool forward_only, bool resident) {
    GptConfig c = {};
    c.model.T = TOKENS, c.model.L = 3, c.model.NH = 2, c.model.C = 32;
    model_set_vocab(&c.model, VOCAB);
    c.B = forward_only ? 1 : 2, c.T = TOKENS, c.logits_rows = 5, c.unit = UNIT_HALF;
    c.recompute = recompute, c.recompute_k = 2, c.writes = true;
    c.fsdp.world = c.fsdp.K = 1, c.fsdp.ordered = true;
    c.fsdp.forward_only = forward_only, c.fsdp.resident = resident;
    c.fsdp.gather_slots = c.fsdp.grad_slots = 1, c.fsdp.micro_steps = 1;
    return c;
}

static Gpt *start_gpt(const GptCode *code, const GptConfig *config) {
    ncclUniqueId id;
    omp_set_num_threads(2);
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    Gpt *g = code->create(config);
    code->join(g, id);
    code->start(g);
    Model model = {code, g, config};
    parameters_init(&model, 7);
    return g;
}

static void expect_close(const char *what, int position, const float *found, const float *expected,
                         double tolerance) {
    for (int i = 0; i < VOCAB; i++)
        if (!(fabs(found[i] - expected[i]) <= tolerance))
            fail_msg("%s, logit %d after %d tokens: expected %.9g, found %.9g", what, i, position,
                     (double)expected[i], (double)found[i]);
}

// The logits are about 0.1 in size, and of two sums in another order.
static void check_kept(const GptCode *code, const GptConfig *config, double tolerance) {
    Gpt *g = start_gpt(code, config);
    int tokens[TOKENS];
    float whole[TOKENS + 1][VOCAB], kept[VOCAB];
    for (int i = 0; i < TOKENS; i++) tokens[i] = (int)(rng_mix((uint64_t)i + 5) % VOCAB);
    for (int n = 1; n <= TOKENS; n++) code->begin_text(g, tokens, n, whole[n]);
    static const int prompts[] = {1, 63, 65};
    for (int first : prompts) {
        code->begin_text(g, tokens, first, kept);
        expect_close(code->name, first, kept, whole[first], 0);
        for (int n = first + 1; n <= TOKENS; n++) {
            code->next_token(g, tokens[n - 1], kept);
            expect_close(code->name, n, kept, whole[n], tolerance);
        }
    }
    // The last token counts, and so does the first.
    code->begin_text(g, tokens, TOKENS - 1, kept);
    code->next_token(g, (tokens[TOKENS - 1] + 1) % VOCAB, kept);
    double most = 0;
    for (int i = 0; i < VOCAB; i++) most = fmax(most, fabs(kept[i] - whole[TOKENS][i]));
    if (most < 10 * tolerance) fail_msg("%s: another token changed nothing: %g", code->name, most);
    code->finish(g);
}

static void kept_keys_and_values_give_the_logits_of_a_whole_forward(void **) {
    static const int recompute[] = {RECOMPUTE_NONE, RECOMPUTE_NORM, RECOMPUTE_LAYER,
                                    RECOMPUTE_EVERY};
    for (int r : recompute) {
        GptConfig c = config_of(r, false, false);
        check_kept(&gpt_fp32_generic, &c, 1e-6);
        check_kept(&gpt_bf16_generic, &c, 4e-3);
    }
    for (int resident = 0; resident < 2; resident++) {
        GptConfig c = config_of(RECOMPUTE_NONE, true, resident);
        check_kept(&gpt_fp32_generic, &c, 1e-6);
        check_kept(&gpt_bf16_generic, &c, 4e-3);
    }
}

// Parameters as fp32 (and as what computes), keys and values, and a few rows of activations.
static void a_model_that_only_writes_keeps_neither_gradients_nor_moments(void **) {
    GptConfig c = config_of(RECOMPUTE_NONE, true, true);
    Gpt *g = gpt_bf16_generic.create(&c);
    const Buffers *b = gpt_bf16_generic.buffers(g);
    size_t state = buffers_bytes(b, "state"), parameters = model_parameters(&c.model);
    assert_true(state >= 4 * parameters && state < 4 * parameters + 4 * 1024);
    assert_int_equal(buffers_bytes(b, "gradient"), 0);
    assert_int_equal(gpt_bf16_generic.element_bytes(g, GPT_MOMENT_V), 0);
    size_t kept = 0;
    for (int i = 0; i < b->count; i++)
        if (strstr(b->rows[i].name, "keys and values")) kept += b->rows[i].bytes;
    assert_int_equal(kept, (size_t)c.model.L * TOKENS * 3 * (size_t)c.model.C * 2);
}

// ---- the program -------------------------------------------------------------------------------

// A byte model that has learned a little, T 16.
#define MODEL "gpt2:L=2,C=32,NH=2,T=16"
static char model[128];

static int make_model(void **state) {
    if (make_folder_of_tests(state) != 0) return -1;
    snprintf(model, sizeof model, "%s/model.bin", folder);
    Outcome o = run(PROGRAM " --model " MODEL " --train test/reference/small/train.txt --batch 8 "
                            "--steps 60 --lr 1e-2 --export-model %s",
                    model);
    if (o.status != 0) print_error("%s", o.err);
    return o.status;
}

static Outcome write_text(const char *options) {
    Outcome o = run(PROGRAM " --model %s %s", model, options);
    if (o.status != 0) fail_msg("%s: exit code %d: %s", options, o.status, o.err);
    return o;
}

static void a_text_is_the_same_on_any_number_of_ranks(void **) {
    static Outcome one, other;
    const char *options = "--prompt 'In the' --generate 40 --samples 2 --temperature 1";
    one = write_text(options);
    if (strncmp(one.out, "In the", 6) || lines_of(one.out) < 4)
        fail_msg("expected two texts, found: %s", one.out);
    static const char *const more[] = {"--ranks 2",
                                       "--ranks 3",
                                       "--ranks 2 --shard full",
                                       "--ranks 2 --shard none",
                                       "--ranks 4 --shard hybrid:2 --unit matrix",
                                       "--ranks 3 --shard full --gather-buffers 1"};
    for (const char *m : more) {
        char all[256];
        snprintf(all, sizeof all, "%s %s", options, m);
        other = write_text(all);
        if (strcmp(one.out, other.out))
            fail_msg("%s: expected %s, found %s", m, one.out, other.out);
    }
    other = write_text("--prompt 'In the' --generate 40 --samples 2 --temperature 1 --seed 43");
    assert_string_not_equal(one.out, other.out);
    char *second = strstr(one.out, "\n---\n") + 5;
    if (!strncmp(one.out, second, 46)) fail_msg("twice the same text: %s", one.out);
}

// T is 16: of both prompts the model sees the same, and it runs out of positions.
static void the_last_tokens_of_a_long_prompt_count(void **) {
    static Outcome o[2];
    const char *prompts[] = {"XXXXXXXXXXXX and the last are seen", "OOOO and the last are seen"};
    for (int i = 0; i < 2; i++) {
        char options[128], expected[128];
        snprintf(options, sizeof options, "--generate 50 --temperature 0 --prompt '%s'",
                 prompts[i]);
        snprintf(expected, sizeof expected,
                 "train_gpt: a prompt of %zu tokens: the model sees the last 16 of them\n",
                 strlen(prompts[i]) + 1);
        o[i] = write_text(options);
        expect_text(o[i], expected);
        assert_int_equal(strlen(o[i].out), strlen(prompts[i]) + 50 + 1);
    }
    assert_string_equal(strstr(o[0].out, " and the"), strstr(o[1].out, " and the"));
}

static void each_line_of_stdin_is_a_prompt(void **) {
    static Outcome o, one;
    o = run("printf 'In the\\n\\nand he\\r\\nlast' | " PROGRAM
            " --model %s --prompt - --generate 9 "
            "--temperature 0",
            model);
    assert_int_equal(o.status, 0);
    char *at = o.out;
    static const char *const prompts[] = {"In the", "", "and he", "last"};
    for (const char *prompt : prompts) {
        char options[128], *end = strstr(at, "\n---\n");
        snprintf(options, sizeof options, "--generate 9 --temperature 0 --prompt '%s'", prompt);
        one = write_text(options);
        one.out[strlen(one.out) - 1] = 0;
        if (!end || strncmp(at, one.out, strlen(one.out)) || end != at + strlen(one.out))
            fail_msg("prompt `%s`: expected %s, found %s", prompt, one.out, at);
        at = end + 5;
    }
    assert_string_equal(at, "");
    one = run("printf 'In the\\n\\nand he\\r\\nlast' | " PROGRAM " --model %s --prompt - "
              "--generate 9 --temperature 0 --ranks 2",
              model);
    assert_string_equal(one.out, o.out);
    one = run(PROGRAM " --model %s --prompt - --generate 9 </dev/null", model);
    if (one.status != 0 || one.out[0]) fail_msg("no prompts: %d %s", one.status, one.out);
}

static void a_text_comes_as_json(void **) {
    static Outcome o;
    o = write_text("--prompt 'In \"the' --generate 5 --samples 2 --json --top-k 3 --top-p 0.9");
    char *line = strtok(o.out, "\n");
    for (int i = 0; i < 2; i++, line = strtok(NULL, "\n")) {
        char begin[64];
        snprintf(begin, sizeof begin, "{\"prompt\":\"In \\\"the\",\"sample\":%d,\"text\":\"", i);
        if (!line || strncmp(line, begin, strlen(begin)) || line[strlen(line) - 1] != '}' ||
            !strstr(line, "\"tokens\":5,\"ended\":false,"))
            fail_msg("expected %s..., found %s", begin, line ? line : "no line");
    }
    assert_null(line);
}

// A model that has learned `abc`, then end-of-text, and nothing else.
static void end_of_text_ends_a_text(void **) {
    static Outcome o;
    enum { V = 258, EOT = 257, SHARD = 300 };  // bytes, one token more, end-of-text
    static unsigned char tokenizer[1024 + 2 * V], shard[1024 + 2 * SHARD];
    const uint32_t names[4] = {20240328, 2, V, EOT}, data[3] = {20240520, 1, SHARD};
    const uint16_t cycle[4] = {EOT, 'a', 'b', 'c'};
    memcpy(tokenizer, names, sizeof names);
    for (int i = 0; i < V; i++)
        tokenizer[1024 + 2 * i] = 1, tokenizer[1025 + 2 * i] = (unsigned char)i;
    write_file(temporary("tokenizer.bin"), tokenizer, sizeof tokenizer);
    memcpy(shard, data, sizeof data);
    for (int i = 0; i < SHARD; i++) memcpy(shard + 1024 + 2 * i, &cycle[i % 4], 2);
    write_file(temporary("abc.bin"), shard, sizeof shard);
    o = run(PROGRAM
            " --model gpt2:L=1,C=16,NH=2,T=16,V=258 --train %s/abc.bin --steps 60 --lr 3e-2 "
            "--batch 4 --export-model %s/abc_model.bin",
            folder, folder);
    assert_int_equal(o.status, 0);
    o = run(PROGRAM " --model %s/abc_model.bin --tokenizer %s/tokenizer.bin --generate 20 "
                    "--temperature 0 --prompt a --json",
            folder, folder);
    if (!strstr(o.out, "\"text\":\"bc\",\"tokens\":2,\"ended\":true")) fail_msg("found: %s", o.out);
    o = run(PROGRAM " --model %s/abc_model.bin --tokenizer %s/tokenizer.bin --generate 20 "
                    "--temperature 0",
            folder, folder);
    assert_string_equal(o.out, "abc\n");
}

static void a_checkpoint_writes_what_its_model_writes(void **) {
    static Outcome o, from;
    o = run(PROGRAM " --model " MODEL " --train test/reference/small/train.txt --batch 8 --steps 9 "
                    "--lr 1e-2 --out %s/run --checkpoint-every 9 --moment-dtype bf16 "
                    "--tokens-per-step 256 --export-model %s/nine.bin",
            folder, folder);
    assert_int_equal(o.status, 0);
    const char *options = "--prompt In --generate 30 --temperature 1";
    o = run(PROGRAM " --model %s/nine.bin %s", folder, options);
    from = run(PROGRAM " --resume %s/run %s --ranks 3", folder, options);
    if (from.status != 0) fail_msg("%s", from.err);
    assert_string_equal(from.out, o.out);
}

// Samples of a training are what --generate writes from the same parameters.
static void samples_are_written_alike(void **) {
    static Outcome o, sample;
    o = write_text("--prompt In --generate 30 --temperature 1");
    sample = write_text("--steps 0 --sample-every 1 --sample-tokens 30 --prompt In "
                        "--temperature 1 --recompute layer");
    if (!strstr(sample.out, o.out)) fail_msg("expected %s, found %s", o.out, sample.out);
}

static void what_cannot_be_written_ends_in_one_line(void **) {
    char command[512];
    const struct {
        const char *options, *expected;
    } cases[] = {
        {"--generate 5 --train test/reference/small/train.txt", "leave out --train"},
        {"--generate -1", "--generate -1: expected an integer from 0"},
        {"--generate 5 --top-p 1.5", "--top-p 1.5: expected a number from 0 to 1"},
        {"--generate 5 >/dev/full", "cannot write to stdout"},
        {"--steps 0 --sample-every 1 --prompt -", "--prompt -: lines of stdin"},
        {"--generate 5 --model " MODEL, "expected a trained model"},
        {"--generate 5 --model test/reference/tiny/model.bin", "needs --tokenizer"},
    };
    for (auto &c : cases) {
        snprintf(command, sizeof command, PROGRAM " --model %s %s", model, c.options);
        expect_refusal(command, c.expected);
    }
}

// ---- UTF-8 -------------------------------------------------------------------------------------

static void text_is_shown_in_whole_characters(void **) {
    static const struct {
        const char *text;
        size_t complete;
    } cases[] = {{"", 0},
                 {"abc", 3},
                 {"ab\xc3", 2},
                 {"ab\xc3\xa4", 4},
                 {"\xe2\x82", 0},
                 {"\xe2\x82\xac", 3},
                 {"a\xf0\x9f\x98", 1},
                 {"a\xf0\x9f\x98\x80", 5},
                 {"a\x80\x80", 3},
                 {"\x80\x80\x80\x80", 4},
                 {"\xe2y", 2},
                 {"\xff", 1},
                 {"\xc0", 1}};
    for (auto &c : cases) {
        size_t n = utf8_complete((const unsigned char *)c.text, strlen(c.text));
        if (n != c.complete) fail_msg("%s: expected %zu, found %zu", c.text, c.complete, n);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_keys_and_values_give_the_logits_of_a_whole_forward),
        cmocka_unit_test(a_model_that_only_writes_keeps_neither_gradients_nor_moments),
        cmocka_unit_test(a_text_is_the_same_on_any_number_of_ranks),
        cmocka_unit_test(the_last_tokens_of_a_long_prompt_count),
        cmocka_unit_test(each_line_of_stdin_is_a_prompt),
        cmocka_unit_test(a_text_comes_as_json),
        cmocka_unit_test(end_of_text_ends_a_text),
        cmocka_unit_test(a_checkpoint_writes_what_its_model_writes),
        cmocka_unit_test(samples_are_written_alike),
        cmocka_unit_test(what_cannot_be_written_ends_in_one_line),
        cmocka_unit_test(text_is_shown_in_whole_characters),
    };
    return remove_folder_unless(cmocka_run_group_tests(tests, make_model, NULL));
}
