// test/test_lib.cpp: lib/ by itself: options, learning rates, random numbers, tensors, model files,
// tokenizers, sampling, logs, the watchdog. Reads test/reference/, writes to a temporary folder.
#include "../lib/buffers.h"
#include "../lib/logger.h"
#include "../lib/model_file.h"
#include "../lib/options.h"
#include "../lib/outcome.h"

#include "../lib/paths.h"
#include "../lib/peak.h"
#include "../lib/sampler.h"
#include "../lib/tokenizer.h"
#include "../lib/watchdog.h"
#include "death.h"

#include <signal.h>
#include <sys/resource.h>

// ---- options -----------------------------------------------------------------------------------

// Parses a command line whose words are separated by spaces; they stay, for the
// options point at them.
static Options parse(const char *line) {
    static char kept[1 << 16], *end = kept;
    char *words = strcpy(end, line), *argv[64] = {(char *)"train_gpt"};
    end += strlen(line) + 1;
    assert_true(end < kept + sizeof kept - 1024);
    int argc = 1;
    for (char *w = strtok(words, " "); w && argc < 64; w = strtok(NULL, " ")) argv[argc++] = w;
    Options o;
    options_parse(&o, argc, argv);
    return o;
}

static void run_parse(const void *line) {
    parse((const char *)line);
}

static void expect_parse_death(const char *line, const char *expected) {
    expect_death(run_parse, line, expected);
}

static void assert_same_options(const Options *a, const Options *b) {
    for (int i = 0; i < OPTION_ROWS; i++) {
        if (!option_is_saved(&option_table[i])) continue;
        char x[512], y[512];
        option_print_value(a, &option_table[i], x, sizeof x);
        option_print_value(b, &option_table[i], y, sizeof y);
        if (strcmp(x, y)) fail_msg("--%s: %s is not %s", option_name(&option_table[i]).text, x, y);
    }
}

// A value other than the default for each option.
static void other_value(const Option *row, char *text, size_t bytes) {
    OptionChoice c;
    switch (row->kind) {
    case KIND_INT:
    case KIND_SIZE:
        snprintf(text, bytes, "%.0f", row->max < 1e6 ? row->max : 54321);
        break;
    case KIND_REAL:
        snprintf(text, bytes, "%.9g", 0.7654321 * (row->max < 1 ? row->max : 1));
        break;
    case KIND_CHOICE: {
        int last = 0;
        while (option_choice(row, last + 1, &c)) last++;
        option_choice(row, last, &c);
        snprintf(text, bytes, "%s%s", c.name, c.takes_k ? ":3" : "");
        break;
    }
    case KIND_FLAG:
        snprintf(text, bytes, "1");
        break;
    default:
        snprintf(text, bytes, "/a/b=c_%s", row->name);
        break;
    }
}

static void every_option_has_its_default_and_takes_another_value(void **) {
    Options o;
    options_default(&o);
    for (int i = 0; i < OPTION_ROWS; i++) {
        const Option *row = &option_table[i];
        if (row->kind == KIND_GROUP || !option_is_saved(row)) continue;
        char text[64], line[128], back[512];
        option_print_value(&o, row, back, sizeof back);
        Options again = o;
        assert_true(option_set(&again, row, back));
        assert_same_options(&o, &again);

        other_value(row, text, sizeof text);
        const char *forms[] = {"--%s %s", "--%s=%s", "-%s %s"};
        for (int form = 0; form < (row->alias[0] ? 3 : 2); form++) {
            OptionName name = option_name(row);
            // llm.c's -y knows no folders
            if (form == 2 && row == option_find("resume")) snprintf(text, sizeof text, "1");
            snprintf(line, sizeof line, forms[form], form < 2 ? name.text : row->alias, text);
            Options changed = parse(line);
            option_print_value(&changed, row, back, sizeof back);
            if (row->kind == KIND_REAL)
                assert_true(strtof(back, NULL) == strtof(text, NULL));
            else
                assert_string_equal(back, text);
        }
    }
}

static void every_option_refuses_what_is_not_its_value(void **) {
    for (int i = 0; i < OPTION_ROWS; i++) {
        const Option *row = &option_table[i];
        if (row->kind == KIND_GROUP || row->kind == KIND_TEXT) continue;
        Options o;
        options_default(&o);
        const char *never[] = {"", "abc", "1x", "1 ", " 1", "0x10", "nan", "inf", "--3", "1e999"};
        for (size_t j = 0; j < sizeof never / sizeof never[0]; j++)
            if (option_set(&o, row, never[j])) fail_msg("--%s took `%s`", row->name, never[j]);
        char text[64];
        if (row->kind == KIND_INT || row->kind == KIND_REAL || row->kind == KIND_SIZE) {
            snprintf(text, sizeof text, "%.17g", row->min - (row->kind == KIND_REAL ? 0.5 : 1));
            if (option_set(&o, row, text)) fail_msg("--%s took %s", row->name, text);
            snprintf(text, sizeof text, "%.0f", row->max * 1.5 + 1);
            if (option_set(&o, row, text)) fail_msg("--%s took %s", row->name, text);
        }
    }
}

static void auto_follows_from_the_device_and_the_nodes(void **) {
    const struct {
        const char *line;
        bool gpu, many;
        int precision, reduce, rows;
    } cases[] = {{"", false, true, PRECISION_FP32, REDUCE_ORDERED, 512},
                 {"", true, false, PRECISION_BFLOAT16, REDUCE_ORDERED, 16384},
                 {"", true, true, PRECISION_BFLOAT16, REDUCE_FAST, 16384},
                 {"--precision fp32", true, true, PRECISION_FP32, REDUCE_FAST, 16384},
                 {"--precision tf32", true, false, PRECISION_TF32, REDUCE_ORDERED, 16384},
                 {"--logits-rows 100", true, false, PRECISION_BFLOAT16, REDUCE_ORDERED, 100},
                 {"--logits-rows 100", false, false, PRECISION_FP32, REDUCE_ORDERED, 100},
                 {"--reduce ordered", true, true, PRECISION_BFLOAT16, REDUCE_ORDERED, 16384}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Options o = parse(cases[i].line);
        options_choose_numbers(&o, cases[i].gpu);
        options_choose_sums(&o, cases[i].gpu, cases[i].many);
        assert_int_equal(o.precision, cases[i].precision);
        assert_int_equal(o.reduce, cases[i].reduce);
        assert_int_equal(o.logits_rows, cases[i].rows);
    }
}

static void llmc_numbers_stand_for_choices(void **) {
    const struct {
        const char *line, *value, *name;
    } cases[] = {{"-z 0", "none", "shard"},
                 {"-z 1", "states", "shard"},
                 {"-z 2", "grads", "shard"},
                 {"-z 3", "full", "shard"},
                 {"-r 0", "none", "recompute"},
                 {"-r 1", "gelu", "recompute"},
                 {"-r 2", "norm", "recompute"},
                 {"-k wsd", "wsd", "schedule"},
                 {"-z hybrid:4", "hybrid:4", "shard"},
                 {"-z hybrid:node", "hybrid:node", "shard"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char value[64];
        Options o = parse(cases[i].line);
        option_print_value(&o, option_find(cases[i].name), value, sizeof value);
        assert_string_equal(value, cases[i].value);
    }
    assert_int_equal(parse("--shard hybrid:4").shard, SHARD_HYBRID);
    assert_int_equal(parse("--shard hybrid:4").shard_k, 4);
    assert_int_equal(parse("--shard none").shard, SHARD_NONE);
    assert_int_equal(parse("--unit layers:2").unit, UNIT_LAYERS);
    assert_int_equal(parse("--recompute every:2").recompute, RECOMPUTE_EVERY);
    assert_int_equal(parse("--precision bf16").precision, PRECISION_BFLOAT16);
    assert_int_equal(parse("--moment-dtype fp64").moment_dtype, DTYPE_FP64);
    assert_int_equal(parse("--schedule cosine").schedule, SCHEDULE_COSINE);
}

static void a_flag_stands_alone_or_takes_0_or_1(void **) {
    assert_true(parse("--overfit").overfit);
    assert_true(parse("-a 1 -b 2").overfit);
    assert_false(parse("-a 0").overfit);
    assert_false(parse("--overfit=off").overfit);
    assert_int_equal(parse("--overfit --batch 3").batch, 3);
}

static void sizes_may_be_written_with_an_exponent(void **) {
    const struct {
        const char *text;
        uint64_t value;
    } good[] = {{"1e6", 1000000},
                {"1E+6", 1000000},
                {"1.5e3", 1500},
                {"0e5", 0},
                {"524288", 524288},
                {"1e15", 1000000000000000ull},
                {"9007199254740993e0", 9007199254740993ull},  // 2^53 + 1: no double
                {"18446744073709551615", UINT64_MAX}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        uint64_t value;
        if (!option_size(good[i].text, &value) || value != good[i].value)
            fail_msg("%s was not read", good[i].text);
    }
    const char *bad[] = {"1e",     "e6",    "1e-3", "0.5",  "1.5",
                         "1.25e1", "1e6x",  "1e 6", ".5e1", "1e+",
                         "1e6.0",  "+1e6",  "1ee6", "2e19", "18446744073709551616",
                         "1e99",   "1..5e3"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t value;
        if (option_size(bad[i], &value)) fail_msg("%s was taken", bad[i]);
    }
    assert_true(parse("--tokens-per-step 5e5").tokens_per_step == 500000);
    expect_parse_death("--tokens-per-step 1e16",
                       "expected an integer from 0 to 1000000000000000\n");
    expect_parse_death("--seed x", "expected an integer from 0 to 18446744073709551615\n");
}

static void flags_of_llmc_that_are_not_here_are_explained(void **) {
    const char *const cases[][2] = {
        {"-f 1", "-f, in llm.c `TF32 products`: use --precision"},
        {"-w 0", "parameter shards are always fp32"},
        {"-w", "parameter shards are always fp32"},
        {"-h 1", "-h, in llm.c `HellaSwag evaluation`: use --eval FILE"},
        {"-pn 8", "use mpirun -n N or --ranks N"},
        {"--pn 8", "unknown option --pn"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_parse_death(cases[i][0], cases[i][1]);
    for (int i = 0; i < LLMC_FLAGS; i++) assert_null(option_find_alias(llmc_flags[i].flag));
}

static void flags_of_llmc_that_ask_for_nothing_pass(void **) {
    Options plain = parse("-b 3 -x 7");
    Options neutral = parse("-y 0 -b 3 -ge 1 -sl 0.0 -sg 0 -w 1 -h 0 -n 0 -lg -1 -pm mpi -x 7");
    assert_same_options(&plain, &neutral);
    expect_parse_death("-w 1x", "-w, in llm.c");
    expect_parse_death("-w", "-w, in llm.c");
}

static void flags_of_llmc_mean_what_they_mean_there(void **) {
    Options o = parse("-n 2000 -nk 5 -nm 50000 -y 1 -sl 7.0 -sg 6 -ge 1 -af 1");
    assert_true(o.checkpoint_every == 2000 && o.keep == 5 && o.keep_every == 50000 && o.overfit);
    assert_string_equal(o.resume, "1");
    assert_true(o.skip_loss == 7 && o.skip_norm == 6);
}

static void names_of_other_trainers_lead_to_ours(void **) {
    expect_parse_death("--learning-rate 1e-3", "--learning-rate: did you mean --lr?");
    expect_parse_death("--max_iters 100", "--max_iters: did you mean --steps?");
    expect_parse_death("--batch-size 8", "--batch-size: did you mean --batch?");
    expect_parse_death("--block-size=64", "--block-size: did you mean --seq?");
    expect_parse_death("-x2", "unknown option -x2: did you mean -x 2?");
    expect_parse_death("-sl2.5", "unknown option -sl2.5: did you mean -sl 2.5?");
    expect_parse_death("-b=4", "unknown option -b=4: did you mean -b 4?");
    expect_parse_death("--save_steps=4", "did you mean --checkpoint-every?");
    expect_parse_death("--gpus=4", "did you mean --ranks?");
    expect_parse_death("-steps 2", "unknown option -steps: did you mean --steps?");
    for (size_t i = 0; i < sizeof other_names / sizeof other_names[0]; i++) {
        if (option_find(other_names[i].theirs)) fail_msg("%s is ours", other_names[i].theirs);
        if (!option_find(other_names[i].ours)) fail_msg("%s is not ours", other_names[i].ours);
    }
}

static void all_unknown_options_are_named_at_once(void **) {
    expect_parse_death(
        "-w 0 --batch 2 --learning-rate -1 -ge 1 --zzzzzzzzzzzz x -x2",
        "unknown options -w, in llm.c `fp32 master weights`: leave it out, parameter shards are "
        "always fp32; --learning-rate: did you mean --lr?; "
        "--zzzzzzzzzzzz: --help lists all options; -x2: did you mean -x 2?\n");
}

static void run_parse_to_stdout(const void *line) {
    assert_non_null(freopen(temporary("said"), "w", stdout));
    parse((const char *)line);
}

static void help_and_version_answer_and_end(void **) {
    const char *const cases[][2] = {{"--version", "fsdp.c " VERSION "\n"},
                                    {"--help", "--tokens-per-step, -d"},
                                    {"-h", "--tokens-per-step, -d"},
                                    {"--batch 3 --nonsense --help", "--tokens-per-step, -d"}};
    for (auto &c : cases) {
        fflush(NULL);
        int status;
        pid_t child = fork();
        if (child == 0) {
            run_parse_to_stdout(c[0]);
            _exit(1);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        if (status != 0) fail_msg("%s: expected status 0, found %#x", c[0], (unsigned)status);
        const char *said = read_file(temporary("said"));
        if (!strstr(said, c[1])) fail_msg("%s: expected %s, found %s", c[0], c[1], said);
    }
}

static void bad_command_lines_end_in_one_line(void **) {
    expect_parse_death("--bacth 3", "unknown option --bacth: did you mean --batch?");
    expect_parse_death("--tokens_per_step 3", "did you mean --tokens-per-step?");
    expect_parse_death("--zzzzzzzzzzzz 3", "unknown option --zzzzzzzzzzzz: --help lists");
    expect_parse_death("-Q 3", "unknown option -Q");
    expect_parse_death("book.txt", "expected an option, found `book.txt`\n");
    expect_parse_death("--train a.txt b.txt", "found `b.txt`; quote globs, so that the shell");
    expect_parse_death("--json maybe", "--json maybe: expected 0 or 1\n");
    expect_parse_death("--batch", "--batch needs a value");
    expect_parse_death("--train --val x", "--train needs a value, found --val");
    expect_parse_death("--batch 0", "--batch 0: expected an integer from 1 to 65536");
    expect_parse_death("-b four", "--batch four: expected an integer");
    expect_parse_death("--batch=", "--batch (empty): expected an integer");
    expect_parse_death("--lr -1", "--lr -1: expected a number from 0 to 1000");
    expect_parse_death("--beta1 1", "--beta1 1: expected a number");
    expect_parse_death("--seed -1", "--seed -1: expected an integer");
    expect_parse_death("--schedule cosin", "expected constant|linear|cosine|wsd");
    expect_parse_death("--shard hybrid", "expected full|grads|states|none|hybrid:node|hybrid:K");
    expect_parse_death("--shard hybrid:0", "--shard hybrid:0: expected");
    expect_parse_death("--overfit=2", "--overfit 2: expected 0 or 1");
    expect_parse_death("--config /nowhere/x.cfg", "cannot read /nowhere/x.cfg: No such file");
}

static void help_lists_every_option_and_its_range(void **) {
    const char *path = temporary("help.txt");
    FILE *f = fopen_check(path, "w");
    options_help(f);
    fclose_check(f, path);
    const char *help = read_file(path);
    for (int i = 0; i < OPTION_ROWS; i++) {
        char line[64];
        bool group = option_table[i].kind == KIND_GROUP;
        snprintf(line, sizeof line, "%s%s", group ? "\n" : "  --",
                 group ? option_table[i].name : option_name(&option_table[i]).text);
        if (!strstr(help, line)) fail_msg("--help does not list %s", line);
    }
    assert_non_null(strstr(help, "an integer from 1 to 65536 [4]"));
    assert_non_null(strstr(help, "constant|linear|cosine|wsd [cosine]"));
}

static void options_survive_the_config_file(void **) {
    Options o, back;
    options_default(&o);
    for (int i = 0; i < OPTION_ROWS; i++) {
        if (!option_is_saved(&option_table[i])) continue;
        static char texts[OPTION_ROWS][64];
        other_value(&option_table[i], texts[i], sizeof texts[i]);
        assert_true(option_set(&o, &option_table[i], texts[i]));
    }
    o.prompt = "  \"In the # beginning\"\\n,\nGod = ";
    o.lr = 0.1f + 0.2f;
    o.seed = UINT64_MAX;
    const char *path = temporary("options.cfg");
    options_save(&o, path);
    options_default(&back);
    options_read_config(&back, path);
    assert_same_options(&o, &back);
    assert_string_equal(back.prompt, o.prompt);
    assert_true(back.lr == o.lr && back.seed == UINT64_MAX);
}

static void of_options_given_twice_the_later_holds(void **) {
    assert_int_equal(parse("--batch 2 --batch 3").batch, 3);
    assert_int_equal(parse("-b 3 --batch=2").batch, 2);
    assert_false(parse("--json --json=0").json);
    Options o = parse("--recompute every:2 --recompute none");
    assert_int_equal(o.recompute, RECOMPUTE_NONE);
    expect_parse_death("--batch 0 --batch 3", "--batch 0: expected");
    const char first[] =
        "\xef\xbb\xbf# a comment\n\nbatch = 3\nlr=1e-3\t# rate\n  train = \"a b.txt\"\nsteps = "
        "7\n";
    const char second[] = "\xef\xbb\xbf"
                          "batch = 6\r\n";
    write_file(temporary("first.cfg"), first, sizeof first - 1);
    write_file(temporary("second.cfg"), second, sizeof second - 1);
    char line[1024];
    snprintf(line, sizeof line, "--steps 8 --lr 1 --config %s --steps 9 --config %s",
             temporary("first.cfg"), temporary("second.cfg"));
    o = parse(line);
    assert_int_equal(o.batch, 6);
    assert_int_equal(o.steps, 9);  // behind the file: the line
    assert_true(o.lr == 1e-3f);    // in front of it: the file
    assert_string_equal(o.train, "a b.txt");
}

static void bad_config_files_end_in_one_line(void **) {
    const char *const cases[][2] = {
        {"batch 3\n", "bad.cfg:1: expected a line `name = value`"},
        {"\nbtach = 3\n", "bad.cfg:2: unknown option btach: did you mean batch?"},
        {"batch = 0\n", "bad.cfg:1: --batch 0: expected"},
        {"train = \"x\n", "bad.cfg:1: the quotes of the value of train do not match"},
        {"train = \"x\" y\n", "quotes"},
        {"batch = 3\n\nbatch = 3\n", "bad.cfg:3: batch stands in line 1 already"},
        {"config = x\n", "config belongs on the command line"},
    };
    const char *path = temporary("bad.cfg");
    char command[300];
    snprintf(command, sizeof command, "--config %s", path);
    write_file(path, "batch = 3\nlr = 1\0\n", 19);
    expect_parse_death(command, "bad.cfg:2: expected text, found a byte 0; is it UTF-16?");
    write_file(path,
               "\xff\xfe"
               "b\0\n\0",
               6);
    expect_parse_death(command, "bad.cfg:1: expected text, found a byte 0; is it UTF-16?");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_file(path, cases[i][0], strlen(cases[i][0]));
        char line[300];
        snprintf(line, sizeof line, "--config %s", path);
        expect_parse_death(line, cases[i][1]);
    }
}

static void precision_policies_come_to_dtypes(void **) {
    Options o = parse("--precision bf16");
    Dtypes d = options_dtypes(&o);
    assert_true(d.gather == DTYPE_BF16 && d.reduce == DTYPE_FP32 && d.grad == DTYPE_FP32 &&
                d.moment == DTYPE_FP32);
    o = parse("--precision fp64-moments --gather-dtype bf16");
    d = options_dtypes(&o);
    assert_true(d.gather == DTYPE_BF16 && d.moment == DTYPE_FP64);
    assert_int_equal(4 + dtype_bytes(d.grad) + 2 * dtype_bytes(d.moment), 24);
}

// ---- death -------------------------------------------------------------------------------------

static void run_die(const void *) {
    process.rank = 3;
    process.step = 17;
    die("expected %d\nfound %d", 1, 2);
}

static void run_die_named(const void *name) {
    die_all("cannot read %s", (const char *)name);
}

static void run_die_all(const void *) {
    process.rank = 2;
    die_all("alone");
}

static void print_hook(void) {
    _exit(7);
}

static void run_hook(const void *) {
    die_hook = print_hook;
    die("with a hook");
}

static void die_names_rank_and_step_in_one_line(void **) {
    expect_death(run_die, NULL, "train_gpt: [rank 3, step 18] expected 1\\x0afound 2\n");
    expect_death(run_die_all, NULL, "train_gpt: [rank 2] alone\n");
    expect_death(run_hook, NULL, "with a hook\n");
}

static void messages_command_nothing_to_the_terminal(void **) {
    expect_death(run_die_named, "a\033[2J\t\177\r caf\xc3\xa9",
                 "cannot read a\\x1b[2J\\x09\\x7f\\x0d caf\xc3\xa9\n");
    static char name[4000];
    memset(name, '\a', sizeof name - 1);  // every byte grows fourfold; still one line
    expect_death(run_die_named, name, "cannot read \\x07\\x07");
}

static void run_fopen(const void *path) {
    fopen_check((const char *)path, "r");
}

static void run_config(const void *path) {
    Options o;
    options_default(&o);
    options_read_config(&o, (const char *)path);
}

// A read of a pipe without a writer waits for ever.
static void only_regular_files_are_read(void **) {
    const char *pipe = temporary("a_pipe");
    assert_int_equal(mkfifo(pipe, 0600), 0);
    alarm(20);
    void (*const runs[])(const void *) = {
        run_fopen, run_config, [](const void *path) { model_file_open((const char *)path); },
        [](const void *path) { tokenizer_open((const char *)path); }};
    for (auto run : runs) {
        expect_death(run, pipe, "a_pipe: expected a regular file, found a pipe");
        expect_death(run, "/dev/zero", "cannot read /dev/zero: expected a regular file, found a");
        expect_death(run, folder, "expected a regular file, found a folder");
    }
    alarm(0);
}

// ---- paths -------------------------------------------------------------------------------------

static void run_paths(const void *pattern) {
    Paths p = {0, NULL};
    paths_add_pattern(&p, (const char *)pattern);
}

// Patterns are tried inside the folder paths/; `found` has the names with spaces between them.
static void expect_paths(const char *pattern, const char *found) {
    Paths p = {0, NULL};
    char names[1024] = "";
    paths_add_pattern(&p, pattern);
    for (int i = 0; i < p.count; i++) {
        if (i) strcat(names, " ");
        strcat(names, p.names[i]);
    }
    paths_free(&p);
    if (strcmp(names, found)) fail_msg("%s: expected %s, found %s", pattern, found, names);
}

static void commas_and_braces_name_several_files(void **) {
    char before[512];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(mkdir(temporary("paths"), 0700) || mkdir(temporary("paths/sub"), 0700), 0);
    assert_int_equal(chdir(temporary("paths")), 0);
    const char *const files[] = {"a.txt", "b.txt", "c.bin", "x,y.txt", "sub/a.txt", "{z}.txt"};
    for (const char *name : files) write_file(name, "x", 1);
    expect_paths("a.txt", "a.txt");
    expect_paths("b.txt,a.txt", "b.txt a.txt");
    expect_paths("b.txt,./[ac].*,sub/*", "b.txt ./a.txt ./c.bin sub/a.txt");
    expect_paths("{b,a}.txt", "b.txt a.txt");
    expect_paths("{sub/,}a.txt", "sub/a.txt a.txt");
    expect_paths("{{a,b}.txt,c.bin},sub/{a,*}.txt", "a.txt b.txt c.bin sub/a.txt sub/a.txt");
    expect_paths("x,y.txt", "x,y.txt");
    expect_paths("{z}.txt", "{z}.txt");
    expect_death(run_paths, "a.txt,d.txt", "no file matches d.txt\n");
    expect_death(run_paths, "{a,d}.txt", "no file matches d.txt\n");
    expect_death(run_paths, "a.txt,", "no file matches (empty)\n");
    expect_death(run_paths, "a.txt,sub", "sub: expected files, found only 1 folder(s)");
    expect_death(run_paths, "{a.txt", "no file matches {a.txt\n");
    assert_int_equal(chdir(before), 0);
}

// ---- watchdog ----------------------------------------------------------------------------------

static void burn(double seconds) {
    struct timespec t = {0, 0};
    while ((double)t.tv_sec + 1e-9 * (double)t.tv_nsec < seconds)
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
}

static void run_silent(const void *) {
    Watchdog w = {};
    process.world = 2;
    watchdog_start(&w, 1);
    sleep(20);
}

// Waits for ranks in a loop of its own, not in a collective.
static void run_waiting(const void *) {
    Watchdog w = {};
    process.world = 2;
    process_waits(true);
    w.waits = [] { return false; };
    watchdog_start(&w, 1);
    sleep(20);
}

static void work_and_files_may_take_any_time(void **) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        Watchdog w = {};
        process.world = 2;
        w.waits = [] { return false; };
        watchdog_start(&w, 1);
        sleep(2);  // work
        process_waits(true);
        process.patient++;
        sleep(2);  // waits for a rank that is at its files
        _exit(0);
    }
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
}

static void a_silent_job_ends_and_a_stopped_one_goes_on(void **) {
    expect_death(
        run_silent, NULL,
        "no progress for 1 seconds; rank 0 before the first collective; missing at the start: "
        "rank 1 (--timeout sets the limit)\n");
    expect_death(run_waiting, NULL, "no progress for 1 seconds; rank 0 before the first");
    int ends[2], status;
    char byte;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        Watchdog w = {};
        process.world = 2;
        watchdog_start(&w, 2);
        if (write(ends[1], "", 1) != 1) _exit(3);
        burn(0.4);  // stopped in here, and still busy when the watchdog looks again
        process_alive();
        watchdog_stop(&w);
        _exit(0);
    }
    assert_int_equal(read(ends[0], &byte, 1), 1);
    usleep(100 * 1000);
    kill(child, SIGSTOP);
    usleep(3500 * 1000);
    kill(child, SIGCONT);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (status != 0) fail_msg("the stopped job ended with status %#x", (unsigned)status);
    close(ends[0]);
    close(ends[1]);
}

// ---- buffers -----------------------------------------------------------------------------------

static void run_buffers(const void *per_block) {
    static Buffers b;
    void *p;
    b.blocks = model_sizes[0].most;
    for (int i = 0; i < b.blocks * *(const int *)per_block; i++)
        buffers_add(&b, "activations", &p, 1, "residual %d", i);
    die("%d buffers", b.count);
}

static void the_largest_model_has_a_buffer_for_each_block(void **) {
    const int one = 1, many = 3;
    expect_death(run_buffers, &one, "65536 buffers");
    expect_death(run_buffers, &many,
                 "65536 blocks need more than 131072 buffers; use --recompute layer");
}

// ---- schedules ---------------------------------------------------------------------------------

// By the formulas of doc/formats, worked out apart: lr 6e-4, final 0.1, warm-up 10, 100 steps.
static void learning_rates_match_the_tables(void **) {
    const long steps[] = {0, 4, 9, 10, 25, 55, 79, 80, 85, 99};
    const struct {
        ScheduleType type;
        double lr[10];
    } tables[] = {
        {SCHEDULE_CONSTANT,
         {6e-05, 0.0003, 0.0006, 0.0006, 0.0006, 0.0006, 0.0006, 0.0006, 0.0006, 0.0006}},
        {SCHEDULE_LINEAR,
         {6e-05, 0.0003, 0.0006, 0.0006, 0.00051, 0.00033, 0.000186, 0.00018, 0.00015, 6.6e-05}},
        {SCHEDULE_COSINE,
         {6e-05, 0.0003, 0.0006, 0.0006, 0.000563826859022, 0.00033, 0.000129350897121,
          0.000123168000358, 9.61731409782e-05, 6.01644767048e-05}},
        {SCHEDULE_WSD,
         {6e-05, 0.0003, 0.0006, 0.0006, 0.0006, 0.0006, 0.0006, 0.0006, 0.00033,
          7.36731053803e-05}},
    };
    for (int i = 0; i < 4; i++) {
        Schedule s = {tables[i].type, 6e-4, 0.1, 10, 100};
        for (int j = 0; j < 10; j++) {
            double lr = schedule_lr(&s, steps[j]);
            if (fabs(lr - tables[i].lr[j]) > 1e-9 * tables[i].lr[j])
                fail_msg("schedule %d step %ld: %.12g is not %.12g", i, steps[j], lr,
                         tables[i].lr[j]);
        }
    }
}

static void no_step_leaves_the_range_of_learning_rates(void **) {
    for (int type = 0; type < 4; type++)
        for (long steps = 0; steps <= 20; steps += 5)
            for (long warmup = 0; warmup <= 30; warmup += 10)
                for (long step = -5; step < 2000; step += 1 + step / 50) {
                    Schedule s = {(ScheduleType)type, 1.0, 0.25, warmup, steps};
                    double lr = schedule_lr(&s, step), low = step < warmup ? 1e-9 : 0.25;
                    if (!(lr >= low && lr <= 1.0))
                        fail_msg("type %d warmup %ld steps %ld step %ld: %g", type, warmup, steps,
                                 step, lr);
                }
}

// ---- random numbers ----------------------------------------------------------------------------

// Vectors published with the generator (Random123, philox 4x32 with 10 rounds).
static void philox_gives_its_published_numbers(void **) {
    const uint32_t cases[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1}};
    for (int i = 0; i < 3; i++) {
        const uint32_t *c = cases[i];
        Philox out = philox((Philox){{c[0], c[1], c[2], c[3]}}, c[4], c[5]);
        assert_memory_equal(out.x, c + 6, sizeof out.x);
    }
    static uint32_t many[4][RNG_BLOCKS];
    rng_blocks(many, 0x123456789abcdefull, 3, 77, 0xfffffff0ull);
    for (uint32_t i = 0; i < RNG_BLOCKS; i++) {
        Philox one = rng_block(0x123456789abcdefull, 3, 77, 0xfffffff0ull + i);
        for (int word = 0; word < 4; word++) assert_int_equal(many[word][i], one.x[word]);
    }
}

// Each pair of normals against Box-Muller in double.
static void normals_follow_box_muller(void **) {
    enum { N = 4096 };
    static float x[N];
    rng_normal_fill(x, N, 42, 5, 0, 2.0f);
    for (uint64_t i = 0; i < N; i += 2) {
        Philox r = rng_block(42, RNG_INIT, 5, i / 4);
        uint32_t length = r.x[i % 4], angle = r.x[i % 4 + 1];
        double radius = 2 * sqrt(-2 * log(((length >> 1) + 0.5) / 2147483648.0));
        double turn = 2 * M_PI * angle / 4294967296.0;
        assert_true(fabs(x[i] - radius * cos(turn)) < 1e-5 * (1 + radius));
        assert_true(fabs(x[i + 1] - radius * sin(turn)) < 1e-5 * (1 + radius));
    }
}

static void normals_have_the_moments_of_a_normal_distribution(void **) {
    enum { N = 1 << 20 };
    float *x = (float *)malloc_check(N * sizeof(float));
    rng_normal_fill(x, N, 1, 2, 0, 1.0f);
    double moments[5] = {0, 0, 0, 0, 0};
    int within = 0;
    for (int i = 0; i < N; i++) {
        double power = 1;
        for (int k = 1; k < 5; k++) moments[k] += power *= x[i];
        within += fabsf(x[i]) < 1;
    }
    // Five standard errors of each estimate.
    assert_true(fabs(moments[1] / N) < 5 * sqrt(1.0 / N));
    assert_true(fabs(moments[2] / N - 1) < 5 * sqrt(2.0 / N));
    assert_true(fabs(moments[3] / N) < 5 * sqrt(15.0 / N));
    assert_true(fabs(moments[4] / N - 3) < 5 * sqrt(96.0 / N));
    assert_true(fabs((double)within / N - 0.6826895) < 5 * sqrt(0.2167 / N));
    free(x);
}

static void normals_do_not_depend_on_how_a_tensor_is_cut(void **) {
    enum { N = 3000 };
    static float whole[N], pieces[N];
    uint64_t base = 0xffffff00ull;  // the pieces cross 2^32
    rng_normal_fill(whole, N, 9, 1, base, 0.02f);
    for (size_t cut = 1; cut < 700; cut += 37) {
        for (size_t at = 0; at < N; at += cut)
            rng_normal_fill(pieces + at, at + cut < N ? cut : N - at, 9, 1, base + at, 0.02f);
        assert_memory_equal(whole, pieces, sizeof whole);
    }
    for (size_t i = 0; i < N; i++) pieces[i] = 7;
    rng_normal_fill(pieces + 10, 301, 9, 1, base + 3, 0.02f);
    assert_memory_equal(pieces + 10, whole + 3, 301 * sizeof(float));
    for (size_t i = 0; i < N; i++) assert_true((pieces[i] == 7) == (i < 10 || i >= 311));
    rng_normal_fill(pieces, N, 9, 2, base, 0.02f);
    assert_memory_not_equal(whole, pieces, sizeof whole);
    rng_normal_fill(pieces, N, 10, 1, base, 0.02f);
    assert_memory_not_equal(whole, pieces, sizeof whole);
}

static void permutations_are_bijections(void **) {
    static unsigned char seen[5000];
    for (uint64_t n = 1; n < 5000; n += 1 + n / 7)
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            memset(seen, 0, n);
            for (uint64_t i = 0; i < n; i++) {
                uint64_t j = rng_permute(42, epoch, n, i);
                assert_true(j < n && !seen[j]);
                seen[j] = 1;
            }
        }
}

// For a random permutation of n: about one fixed point, and neighbours n/3 apart on average.
static void permutations_look_random(void **) {
    enum { N = 10007 };
    int fixed = 0, same = 0;
    double distance = 0;
    for (uint64_t i = 0; i < N; i++) {
        uint64_t a = rng_permute(7, 0, N, i), b = rng_permute(7, 0, N, (i + 1) % N);
        fixed += a == i;
        same += a == rng_permute(7, 1, N, i);
        distance += fabs((double)a - (double)b) / N;
    }
    assert_true(fixed < 8 && same < 8);
    assert_true(fabs(distance / N - 1.0 / 3) < 0.015);
}

static void permutations_match_the_second_implementation(void **) {
    FILE *f = fopen_check("test/reference/order.txt", "r");
    char line[256];
    int lines = 0;
    while (fgets(line, sizeof line, f)) {
        unsigned long long seed, epoch, n, i, expected;
        if (line[0] == '#') continue;
        assert_int_equal(sscanf(line, "%llu %llu %llu %llu %llu", &seed, &epoch, &n, &i, &expected),
                         5);
        assert_true(rng_permute(seed, epoch, n, i) == expected);
        lines++;
    }
    fclose(f);
    assert_true(lines > 50);
}

// ---- tensors -----------------------------------------------------------------------------------

static ModelConfig model(const char *text, int V) {
    ModelConfig m = model_parse(text);
    if (!m.V) model_set_vocab(&m, V);
    return m;
}

static void parameter_counts_are_the_published_ones(void **) {
    const struct {
        const char *text;
        size_t parameters;
    } cases[] = {{"gpt2:d12", 124475904}, {"d12", 124475904},       {"gpt2:d24", 354871296},
                 {"gpt2:d36", 774090240}, {"gpt2:d48", 1557686400}, {"gpt3:c12288", 174604836864}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ModelConfig m = model(cases[i].text, 50257);
        assert_int_equal(m.Vp, 50304);
        assert_true(model_parameters(&m) == cases[i].parameters);
    }
    ModelConfig m = model("gpt3:c12288", 50257);
    size_t block = 0;
    for (int id = 0; id < TENSORS; id++)
        if (tensor_table[id].per_layer) block += tensor_size(&m, id);
    assert_true(block == 1812099072);
    // A model that no machine holds: sizes are counted in size_t.
    m = model("gpt2:L=128,C=25600,NH=160,T=2048", 50257);
    assert_true(model_parameters(&m) > 1000000000000 && tensor_offset(&m, LNFB, 0) > 1000000000000);
}

static void gpt3_sizes_are_those_of_the_paper(void **) {
    const int expected[][4] = {{768, 12, 12, 64},   {1024, 24, 16, 64},  {1536, 24, 16, 96},
                               {2048, 24, 16, 128}, {2560, 32, 32, 80},  {4096, 32, 32, 128},
                               {5120, 40, 40, 128}, {12288, 96, 96, 128}};
    for (int i = 0; i < 8; i++) {
        char text[32];
        snprintf(text, sizeof text, "gpt3:c%d", expected[i][0]);
        ModelConfig m = model(text, 50257);
        assert_true(m.C == expected[i][0] && m.L == expected[i][1] && m.NH == expected[i][2]);
        assert_true(m.C / m.NH == expected[i][3] && m.T == 2048);
    }
}

static void other_depths_are_scaled_as_in_llmc(void **) {
    const struct {
        const char *text;
        int L, NH, C, T;
    } cases[] = {{"d6", 6, 6, 384, 1024},
                 {"gpt2:d60", 60, 30, 1920, 1024},
                 {"gpt2:d72", 72, 30, 2880, 1024},
                 {"d84", 84, 36, 3456, 1024},
                 {"gpt3:c384", 6, 6, 384, 2048}};
    for (auto &c : cases) {
        ModelConfig m = model(c.text, 50257);
        if (m.L != c.L || m.NH != c.NH || m.C != c.C || m.T != c.T)
            fail_msg("%s: expected L=%d NH=%d C=%d T=%d, found L=%d NH=%d C=%d T=%d", c.text, c.L,
                     c.NH, c.C, c.T, m.L, m.NH, m.C, m.T);
    }
}

static void run_model_parse(const void *text) {
    model_parse((const char *)text);
}

static void bad_model_descriptors_end_in_one_line(void **) {
    const char *const cases[][2] = {
        {"gpt2:d13", "expected gpt2:d6, d12, d24, d36, d48, d60, d72, d84, or"},
        {"gpt3:c700", "expected gpt3:c384, c768"},
        {"gpt2:d12x", "expected gpt2:d6, d12, d24"},
        {"d12,", "expected gpt2:d6, d12, d24"},
        {"gpt2:d012", "expected gpt2:d6, d12, d24"},
        {"gpt3:c768junk", "expected gpt3:c384, c768"},
        {"gpt2:L=65537,C=12,NH=3,T=7", "L must be an integer from 1 to 65536"},
        {"bert", "--model bert: expected gpt2:d12"},
        {"gpt2:L=2,C=12,NH=5,T=7",
         "C must be a multiple of the number of heads NH, found C=12 NH=5"},
        {"gpt2:L=2,C=12,NH=3", "T is missing"},
        {"gpt2:L=2,C=12,NH=3,T=7,X=3", "found `X=3`"},
        {"gpt2:L=2,C=12,NH=3,T=0", "T must be an integer from 1"},
        {"gpt2:L=2,C=12,NH=3,T=7x", "T must be an integer from 1"},
        {"gpt2:L=2,L=2,C=12,NH=3,T=7", "L is given twice"},
        {"gpt2:L=2,C=99999999999,NH=3,T=7", "C must be an integer from 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_death(run_model_parse, cases[i][0], cases[i][1]);
}

static void files_and_descriptors_of_models_are_told_apart(void **) {
    const char *const files[] = {"model.bin", "folder/model", "./d12", "d12.bin", "test"};
    const char *const descriptors[] = {"d12",  "gpt2:d12", "gpt3:c768",    "gpt2:L=1", "bert",
                                       "d12x", ".bin",     "gpt2:a/b.bin", ""};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (!model_is_file(files[i])) fail_msg("%s is a file", files[i]);
    for (size_t i = 0; i < sizeof descriptors / sizeof descriptors[0]; i++)
        if (model_is_file(descriptors[i])) fail_msg("%s is no file", descriptors[i]);
    char back[4096];
    assert_non_null(getcwd(back, sizeof back));
    write_file(temporary("weights"), "x", 1);
    write_file(temporary("d12"), "x", 1);
    write_file(temporary("gpt2:d12"), "x", 1);
    assert_int_equal(chdir(folder), 0);
    bool weights = model_is_file("weights"), d12 = model_is_file("d12"),
         gpt2 = model_is_file("gpt2:d12");
    assert_int_equal(chdir(back), 0);
    assert_true(weights && !d12 && !gpt2);
}

static void segments_are_neighbours_and_cover_a_block(void **) {
    int segment = 0, matrices = 0;
    for (int id = LN1W; id <= FCPROJB; id++) {
        assert_true(tensor_table[id].segment == segment || tensor_table[id].segment == segment + 1);
        segment = tensor_table[id].segment;
        matrices += tensor_table[id].decays;
    }
    assert_int_equal(segment, SEGMENTS - 1);
    assert_int_equal(matrices, SEGMENTS);
    for (int id = 0; id < TENSORS; id++)
        assert_int_equal(tensor_table[id].decays, tensor_table[id].cols != DIM_1);
}

static void initial_weights_follow_gpt2_and_do_not_depend_on_the_cut(void **) {
    ModelConfig m = model("gpt2:L=8,C=64,NH=4,T=32,V=37", 0);
    for (int id = 0; id < TENSORS; id++) {
        size_t n = tensor_size(&m, id);
        float *x = (float *)malloc_check(n * sizeof(float)),
              *y = (float *)malloc_check(n * sizeof(float));
        int layer = tensor_layers(&m, id) - 1;
        tensor_init(x, n, &m, id, layer, 0, 42);
        for (size_t at = 0; at < n; at += 1000)
            tensor_init(y + at, n - at < 1000 ? n - at : 1000, &m, id, layer, at, 42);
        assert_memory_equal(x, y, n * sizeof(float));
        size_t used = id == WTE ? (size_t)m.V * m.C : n;
        double sum = 0, squares = 0;
        for (size_t i = 0; i < used; i++) sum += x[i], squares += (double)x[i] * x[i];
        for (size_t i = used; i < n; i++) assert_true(x[i] == 0);
        const char *name = tensor_table[id].name;
        size_t length = strlen(name);
        bool norm_weight = name[0] == 'l' && name[length - 1] == 'w';
        double std = !tensor_table[id].decays ? 0 : strstr(name, "proj") ? 0.02 / sqrt(16) : 0.02;
        assert_true(fabs(sum / used - norm_weight) <= 5 * std / sqrt((double)used));
        assert_true(fabs(sqrt(squares / used) - (norm_weight ? 1 : std)) <= 0.05 * std);
        if (layer > 0 && std > 0) {
            tensor_init(y, n, &m, id, layer - 1, 0, 42);
            assert_memory_not_equal(x, y, n * sizeof(float));
        }
        free(x);
        free(y);
    }
}

// ---- outcome -----------------------------------------------------------------------------------

static void run_outcome(const void *outcome) {
    outcome_check((const RunOutcome *)outcome);
}

static void a_run_succeeds_if_it_has_learned(void **) {
    RunOutcome o = {};
    for (int i = 0; i < 20; i++) outcome_add(&o, i != 7 && i != 9, 0);
    o.loss = 3;
    outcome_check(&o);  // two of twenty
    outcome_add(&o, false, 1);
    expect_death(run_outcome, &o, "the last 1 updates were skipped, for want of a finite gradient");
    outcome_add(&o, true, 0);
    expect_death(run_outcome, &o,
                 "3 of 22 updates were skipped, more than one in 10, for want of a "
                 "finite gradient: use a smaller --lr");
    o = {};
    o.loss = NAN;
    expect_death(run_outcome, &o, "the last loss is nan: expected a number");
    outcome_add(&o, false, 1);
    expect_death(run_outcome, &o, "before any update; look at the weights of --model");
    o.goes_on = true;
    expect_death(run_outcome, &o, "use a smaller --lr");
}

// ---- model files -------------------------------------------------------------------------------

static void model_files_survive_the_round_trip_in_pieces(void **) {
    for (int bf16 = 0; bf16 < 2; bf16++) {
        ModelConfig m = model("gpt2:L=2,C=12,NH=3,T=7,V=37", 0);
        const char *path = temporary("model.bin");
        unlink(path);
        ModelFile f = model_file_create(path, &m, bf16, true);
        ModelFile other = model_file_create(path, &m, bf16, false);  // as a second rank
        static float x[4096], y[4096];
        for (int id = 0; id < TENSORS; id++)
            for (int layer = 0; layer < tensor_layers(&m, id); layer++) {
                size_t n = tensor_size(&m, id), half = n / 3;
                tensor_init(x, n, &m, id, layer, 0, 5);
                model_file_write(&other, x + half, n - half, id, layer, half);
                model_file_write(&f, x, half, id, layer, 0);
            }
        model_file_close(&f);
        model_file_close(&other);
        assert_int_equal(access(path, F_OK), -1);  // not there before it is complete
        publish(path);

        f = model_file_open(path);
        assert_int_equal(f.bf16, bf16);
        assert_memory_equal(&f.m, &m, sizeof m);
        for (int id = 0; id < TENSORS; id++)
            for (int layer = 0; layer < tensor_layers(&m, id); layer++) {
                size_t n = tensor_size(&m, id), half = n / 2;
                tensor_init(x, n, &m, id, layer, 0, 5);
                model_file_read(&f, y, half, id, layer, 0);
                model_file_read(&f, y + half, n - half, id, layer, half);
                for (size_t i = 0; i < n; i++)
                    assert_true(bf16 ? fabsf(x[i] - y[i]) <= fabsf(x[i]) / 256 : x[i] == y[i]);
            }
        model_file_close(&f);
        assert_int_equal(access(temporary("model.bin.00000000.tmp"), F_OK), -1);
    }
}

static void model_files_of_124m_have_llmcs_sizes(void **) {
    ModelConfig m = model("gpt2:d12", 50257);
    assert_true(model_file_size(&m, false) == 497904640);
    assert_true(model_file_size(&m, true) == 248952832);
    ModelFile f = {-1, false, m, ""};
    assert_true(model_file_offset(&f, WTE, 0, 0) == 1024);
    assert_true(model_file_offset(&f, WPE, 0, 1) == 1024 + 4 * (50304ull * 768 + 1));
    assert_true(model_file_offset(&f, LNFB, 0, 767) == 497904640 - 4);
}

// The reference models were written by Python.
static void model_files_of_python_are_read(void **) {
    ModelFile f = model_file_open("test/reference/tiny/model.bin");
    assert_true(!f.bf16 && f.m.T == 7 && f.m.V == 37 && f.m.Vp == 128 && f.m.L == 2 &&
                f.m.NH == 3 && f.m.C == 12);
    float x[12];
    model_file_read(&f, x, 12, LNFW, 0, 0);
    for (int i = 0; i < 12; i++) assert_true(fabsf(x[i] - 1) < 0.3f);
    model_file_read(&f, x, 12, WTE, 0, 36 * 12 + 6);  // half a row of tokens, half a padded row
    for (int i = 0; i < 12; i++) assert_true((x[i] != 0) == (i < 6));
    model_file_close(&f);
    f = model_file_open("test/reference/small/model.bin");
    assert_true(f.bf16 && f.m.V == 257 && f.m.C == 64);
    model_file_close(&f);
}

static void padded_rows_of_a_model_file_come_as_zeros(void **) {
    ModelConfig m = model("gpt2:L=1,C=4,NH=2,T=3,V=37", 0);
    const char *path = temporary("padded.bin");
    float x[128 * 4];
    for (int i = 0; i < 128 * 4; i++) x[i] = 1;
    ModelFile f = model_file_create(path, &m, false, true);
    model_file_write(&f, x, 128 * 4, WTE, 0, 0);
    model_file_close(&f);
    publish(path);
    f = model_file_open(path);
    model_file_read(&f, x, 128 * 4, WTE, 0, 0);
    for (int i = 0; i < 128 * 4; i++) assert_true(x[i] == (i < 37 * 4));
    model_file_close(&f);
}

static void bf16_rounds_to_nearest_even(void **) {
    const struct {
        uint32_t in;
        uint16_t out;
    } cases[] = {{0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82},
                 {0x3f808001, 0x3f81}, {0x7f7fffff, 0x7f80}, {0x7f800000, 0x7f80},
                 {0x80000000, 0x8000}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        float x;
        memcpy(&x, &cases[i].in, 4);
        assert_int_equal(bf16_from_float(x), cases[i].out);
    }
    assert_true(isnan(bf16_to_float(bf16_from_float(NAN))));
}

static void run_model_open(const void *path) {
    model_file_open((const char *)path);
}

static void bad_model_files_end_in_one_line(void **) {
    static char bytes[22672];
    int fd = open_check("test/reference/tiny/model.bin", O_RDONLY);
    assert_int_equal(file_size(fd, ""), sizeof bytes);
    const struct {
        int field, value;
        size_t size;
        const char *expected;
    } cases[] = {{0, 1, sizeof bytes, "expected a model.bin (magic 20240326), found magic 1"},
                 {1, 4, sizeof bytes, "expected version 3 (fp32) or 5 (bf16), found 4"},
                 {1, 3, sizeof bytes - 4, "expected 22672 bytes for its sizes, found 22668"},
                 {1, 3, 100, "expected a model.bin, found a file of 100 bytes"},
                 {1, 5, sizeof bytes, "expected 11848 bytes"},
                 {4, 0, sizeof bytes, "L must be from 1"},
                 {4, 70000, sizeof bytes, "L must be from 1 to 65536, found 70000"},
                 {3, 0, sizeof bytes, "V must be from 1"},
                 {5, 5, sizeof bytes, "multiple of the number of heads"},
                 {6, 1 << 30, sizeof bytes, "C must be from 1"},
                 {7, 64, sizeof bytes, "expected a padded vocabulary of 128 for V=37, found 64"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        read_exact(fd, bytes, sizeof bytes, 0, "model.bin");
        memcpy(bytes + 4 * cases[i].field, &cases[i].value, 4);
        const char *path = temporary("bad.bin");
        write_file(path, bytes, cases[i].size);
        expect_death(run_model_open, path, cases[i].expected);
    }
    close(fd);
    expect_death(run_model_open, "/nowhere/model.bin",
                 "cannot read /nowhere/model.bin: No such file");
}

// ---- tokenizer, sampler ------------------------------------------------------------------------

static void write_tokenizer(const char *path, uint32_t version, uint32_t V, uint32_t eot,
                            const char *texts, size_t n) {
    static char bytes[1024 + 200000];
    uint32_t header[256] = {TOKENIZER_MAGIC, version, V, eot};
    memcpy(bytes, header, 1024);
    memcpy(bytes + 1024, texts, n);
    write_file(path, bytes, 1024 + n);
}

static void run_tokenizer_open(const void *path) {
    tokenizer_open((const char *)path);
}

static void tokenizers_give_the_text_of_tokens(void **) {
    const char texts[] = "\1a\3abc\2\0b\2bc\3EOT";
    const char *path = temporary("tokenizer.bin");
    write_tokenizer(path, 2, 5, 4, texts, sizeof texts - 1);
    Tokenizer t = tokenizer_open(path);
    assert_true(t.V == 5 && t.eot == 4);
    const unsigned char *text;
    assert_true(tokenizer_text(&t, 1, &text) == 3 && !memcmp(text, "abc", 3));
    assert_true(tokenizer_text(&t, 2, &text) == 2 && !memcmp(text, "\0b", 2));
    tokenizer_close(&t);

    t = tokenizer_of_bytes();
    assert_true(t.V == 257 && t.eot == 256);
    for (int i = 0; i < 256; i++)
        assert_true(tokenizer_text(&t, i, &text) == 1 && text[0] == (unsigned char)i);
    assert_true(tokenizer_text(&t, 256, &text) == 13);
    tokenizer_close(&t);
}

static void samples_are_printed_as_valid_text(void **) {
    const char *path = temporary("print.txt");
    FILE *f = fopen_check(path, "w");
    const char text[] =
        "a\t\n\033[1m\177 caf\xc3\xa9 \xe6\x97\xa5 \xf0\x9f\x99\x82 \xc3( \xff \xc0\x80 \xe6\x97";
    text_print(text, sizeof text - 1, f);
    fclose_check(f, path);
    assert_string_equal(read_file(path),
                        "a\t\n?[1m? caf\xc3\xa9 \xe6\x97\xa5 \xf0\x9f\x99\x82 ?( ? ?? ??");
}

static void tokenizer_version_1_is_gpt2s(void **) {
    static char texts[2 * 50257];
    for (int i = 0; i < 50257; i++) texts[2 * i] = 1, texts[2 * i + 1] = (char)i;
    const char *path = temporary("tokenizer.bin");
    write_tokenizer(path, 1, 50257, 0, texts, sizeof texts);
    Tokenizer t = tokenizer_open(path);
    assert_true(t.V == 50257 && t.eot == 50256);
    tokenizer_close(&t);
}

static void bad_tokenizers_end_in_one_line(void **) {
    const char texts[] = "\1a\3abc";
    const char *path = temporary("bad.bin");
    write_tokenizer(path, 3, 2, 0, texts, 6);
    expect_death(run_tokenizer_open, path, "expected version 1 or 2, found 3");
    write_tokenizer(path, 1, 2, 0, texts, 6);
    expect_death(run_tokenizer_open, path, "expected a vocabulary of 50257 in version 1");
    write_tokenizer(path, 2, 3, 0, texts, 6);
    expect_death(run_tokenizer_open, path, "the file ends or has no text at token 2");
    write_tokenizer(path, 2, 2, 0, texts, 5);
    expect_death(run_tokenizer_open, path, "the file ends or has no text at token 1");
    write_tokenizer(path, 2, 1, 0, texts, 6);
    expect_death(run_tokenizer_open, path, "4 bytes follow after the last token");
    write_tokenizer(path, 2, 2, 2, texts, 6);
    expect_death(run_tokenizer_open, path, "vocabulary 2 and end-of-text token 2 do not fit");
    write_tokenizer(path, 2, 1u << 31, 0, texts, 6);
    expect_death(run_tokenizer_open, path, "do not fit the file");
    write_file(path, texts, 6);
    expect_death(run_tokenizer_open, path, "expected a tokenizer.bin, found a file of 6 bytes");
    expect_death(run_tokenizer_open, "test/reference/tiny/model.bin", "found magic 20240326");
}

// The logits are used up.
static int draw(const Sampler *s, const float *logits, int V, uint32_t stream, uint64_t position) {
    float copy[64];
    memcpy(copy, logits, sizeof(float) * (size_t)V);
    return sampler_next(s, copy, V, stream, position);
}

static void samples_follow_the_softmax(void **) {
    const float logits[5] = {1.0f, -2.0f, 0.5f, 2.0f, -1e30f};
    enum { N = 100000 };
    Sampler s = {1.3f, 0, 1, 42};
    double sum = 0;
    int counts[5] = {0, 0, 0, 0, 0};
    for (int i = 0; i < 5; i++) sum += exp(logits[i] / 1.3);
    for (uint64_t i = 0; i < N; i++) counts[draw(&s, logits, 5, 1, i)]++;
    for (int i = 0; i < 5; i++) {
        double p = exp(logits[i] / 1.3) / sum;
        assert_true(fabs(counts[i] - N * p) <= 5 * sqrt(N * p * (1 - p)));
    }
}

static void top_k_and_temperature_narrow_the_choice(void **) {
    const float logits[5] = {1.0f, -2.0f, 0.5f, 2.0f, -3.0f};
    Sampler s = {5.0f, 2, 1, 42};
    int counts[5] = {0, 0, 0, 0, 0};
    for (uint64_t i = 0; i < 1000; i++) counts[draw(&s, logits, 5, 0, i)]++;
    assert_true(counts[3] > 400 && counts[0] > 300 && counts[0] + counts[3] == 1000);
    s.top_k = 1;
    assert_int_equal(draw(&s, logits, 5, 0, 1), 3);
    s = (Sampler){0.0f, 0, 1, 42};
    for (uint64_t i = 0; i < 100; i++) assert_int_equal(draw(&s, logits, 5, 0, i), 3);
}

// Probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625 in another order.
static void top_p_keeps_the_fewest_tokens_that_have_the_share(void **) {
    const float l = logf(2), logits[5] = {-3 * l, -4 * l, -l, -2 * l, -4 * l};
    const struct {
        float top_p;
        int top_k;
        bool kept[5];
    } cases[] = {
        {0, 0, {0, 0, 1, 0, 0}},     {0.49f, 0, {0, 0, 1, 0, 0}}, {0.51f, 0, {0, 0, 1, 1, 0}},
        {0.74f, 0, {0, 0, 1, 1, 0}}, {0.76f, 0, {1, 0, 1, 1, 0}}, {0.88f, 0, {1, 1, 1, 1, 1}},
        {1, 0, {1, 1, 1, 1, 1}},     {0.6f, 2, {0, 0, 1, 0, 0}},  {0.7f, 2, {0, 0, 1, 1, 0}},
    };
    for (auto &c : cases) {
        Sampler s = {1, c.top_k, c.top_p, 42};
        double sum = 0;
        int counts[5] = {0, 0, 0, 0, 0};
        enum { N = 4000 };
        for (int i = 0; i < 5; i++) sum += c.kept[i] ? exp(logits[i]) : 0;
        for (uint64_t i = 0; i < N; i++) counts[draw(&s, logits, 5, 3, i)]++;
        for (int i = 0; i < 5; i++) {
            double p = c.kept[i] ? exp(logits[i]) / sum : 0;
            if (!(fabs(counts[i] - N * p) <= 5 * sqrt(N * p * (1 - p))))
                fail_msg("top-p %g, top-k %d: expected token %d %.0f times in %d, found %d",
                         (double)c.top_p, c.top_k, i, N * p, (int)N, counts[i]);
        }
    }
}

static void samples_are_a_function_of_seed_text_and_position(void **) {
    float logits[64];
    for (int i = 0; i < 64; i++) logits[i] = 0;
    Sampler a = {1.0f, 0, 1, 1}, b = {1.0f, 0, 1, 2};
    int seeds = 0, streams = 0, positions = 0;
    for (uint64_t i = 0; i < 640; i++) {
        int x = draw(&a, logits, 64, 0, i);
        assert_int_equal(x, draw(&a, logits, 64, 0, i));
        seeds += x == draw(&b, logits, 64, 0, i);
        streams += x == draw(&a, logits, 64, 1, i);
        positions += x == draw(&a, logits, 64, 0, i + 1);
    }
    assert_true(seeds < 40 && streams < 40 && positions < 40);  // 10 are expected
}

// ---- logs --------------------------------------------------------------------------------------

static StepMetrics metrics(long step) {
    StepMetrics m;
    memset(&m, 0, sizeof m);
    m.step = step, m.steps = 10;
    m.loss = 1.0 / 3, m.norm = 2.0 / 3, m.lr = 1e-4 / 3, m.ms = 12.5;
    m.tokens_per_second = 1000, m.mfu = NAN, m.comm_share = 0.25;
    m.update_ratio = 1e-3, m.elapsed = 1234.5, m.epoch = 0.25, m.skipped = 2;
    m.gathered = 1048577, m.collectives = 7, m.tokens = 640, m.memory = 1 << 20;
    return m;
}

// Options whose --out is a folder in the temporary one; good until the next call.
static Options *options_of(const char *name) {
    static Options o;
    static char out[256];
    options_default(&o);
    snprintf(out, sizeof out, "%s", temporary(name));
    o.out = out;
    return &o;
}

// A whole run of steps first .. end - 1.
static void log_run(const Options *o, long first, long end) {
    Logger l;
    logger_open(&l, o, first > 0, first);
    for (long step = first; step < end; step++) {
        StepMetrics m = metrics(step);
        logger_step(&l, &m);
    }
    logger_close(&l);
}

static void logs_keep_every_digit_of_a_float(void **) {
    Logger l;
    logger_open(&l, options_of("run/deep"), false, 0);
    StepMetrics m = metrics(0);
    logger_step(&l, &m);
    logger_validation(&l, 1, NAN);
    logger_validation(&l, 1, 4.0 / 3);
    const char sample[] = "a\"\\\n\t\xff\u00e9\u20ac\U0001f600\xed\xa0\x80\xe2\x82";
    logger_sample(&l, 1, sample, sizeof sample - 1);
    logger_close(&l);
    int step;
    float loss, lr, norm;
    char *log = read_file(temporary("run/deep/main.log"));
    assert_int_equal(sscanf(log, "s:%d trl:%f lr:%f norm:%f", &step, &loss, &lr, &norm), 4);
    assert_true(loss == 1.0f / 3 && norm == 2.0f / 3 && lr == (float)(1e-4 / 3));
    assert_non_null(strstr(log, "\ns:1 tel:1.33333333\n"));
    assert_string_equal(
        read_file(temporary("run/deep/metrics.jsonl")),
        "{\"step\":0,\"steps\":10,\"loss\":0.333333333,\"norm\":0.666666667,\"lr\":3.33333333e-05,"
        "\"ms\":12.5,\"tokens_per_second\":1000,\"mfu\":null,\"comm_share\":0.25,"
        "\"update_ratio\":0.001,\"elapsed\":1234.5,\"epoch\":0.25,"
        "\"gathered\":1048577,\"reduced\":0,\"allreduced\":0,\"skipped\":2,\"collectives\":7,"
        "\"tokens\":640,"
        "\"memory\":1048576}\n{\"step\":1,\"val_loss\":null}\n"
        "{\"step\":1,\"val_loss\":1.33333333}\n{\"step\":1,\"sample\":\"a\\\"\\\\\\n\\u0009\ufffd"
        "\u00e9\u20ac\U0001f600\ufffd\ufffd\ufffd\ufffd\ufffd\"}\n");
}

static void a_resumed_run_leaves_no_line_twice(void **) {
    Options *o = options_of("resumed");
    log_run(o, 0, 5);
    FILE *f = fopen_check(temporary("resumed/main.log"), "a");
    fputs("s:1", f);  // killed in the middle of the line of step 12
    fclose_check(f, "main.log");
    o->batch = 3;
    log_run(o, 3, 6);
    const char *const files[] = {"resumed/main.log", "resumed/metrics.jsonl"};
    for (int i = 0; i < 2; i++) {
        long expected = 0;
        for (char *line = strtok(read_file(temporary(files[i])), "\n"); line;
             line = strtok(NULL, "\n"))
            assert_int_equal(logger_line_step(line), expected++);
        assert_int_equal(expected, 6);
    }
    log_run(o, 3, 6);
    // Each part's options are kept, those of the last two are the same.
    assert_int_equal(access(temporary("resumed/options.cfg.2"), F_OK), -1);
    assert_non_null(strstr(read_file(temporary("resumed/options.cfg")), "\nbatch = 3\n"));
    assert_non_null(strstr(read_file(temporary("resumed/options.cfg.1")), "\nbatch = 4\n"));
    assert_int_equal(access(temporary("resumed/main.log.1"), F_OK), -1);
}

static void an_earlier_run_keeps_its_files_under_a_number(void **) {
    Options *o = options_of("numbered");
    log_run(o, 0, 1);
    write_file(temporary("numbered/metrics.jsonl.2"), "mine", 4);  // 2 is taken
    for (long run = 2; run < 4; run++) {
        for (int failed = 0; failed < 3; failed++) log_run(o, 0, 0);  // these fail before a line
        o->batch = (int)run;
        log_run(o, 0, run);
    }
    const struct {
        const char *number, *batch;
        long lines;
    } cases[] = {{".1", "\nbatch = 4\n", 1}, {".3", "\nbatch = 2\n", 2}, {"", "\nbatch = 3\n", 3}};
    for (auto &c : cases) {
        const char *const names[] = {"main.log", "metrics.jsonl"};
        char name[64];
        for (const char *file : names) {
            snprintf(name, sizeof name, "numbered/%s%s", file, c.number);
            long lines = 0;
            for (const char *text = read_file(temporary(name)); *text; text++)
                lines += *text == '\n';
            assert_int_equal(lines, c.lines);
        }
        snprintf(name, sizeof name, "numbered/options.cfg%s", c.number);
        assert_non_null(strstr(read_file(temporary(name)), c.batch));
    }
    assert_string_equal(read_file(temporary("numbered/metrics.jsonl.2")), "mine");
    assert_int_equal(access(temporary("numbered/main.log.2"), F_OK), -1);
    assert_int_equal(access(temporary("numbered/main.log.4"), F_OK), -1);
    assert_int_equal(access(temporary("numbered/options.cfg.00000000.tmp"), F_OK), -1);
}

// From here on no file of this process may be larger than that, as on a disk without space.
static void limit_files(rlim_t bytes) {
    struct rlimit limit = {bytes, bytes};
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(0);
}

static void a_full_disk_takes_no_earlier_file(void **) {
    Options *o = options_of("full");
    log_run(o, 0, 2);
    expect_death(
        [](const void *options) {
            limit_files(100);
            Logger l;
            logger_open(&l, (const Options *)options, false, 0);
        },
        o, "full/options.cfg.00000000.tmp: File too large");
    expect_death(
        [](const void *options) {
            Logger l;
            logger_open(&l, (const Options *)options, false, 0);
            limit_files(100);
            logger_validation(&l, 0, 1.0);
        },
        o, "full/options.cfg.00000000.tmp: File too large");
    assert_int_equal(access(temporary("full/main.log.1"), F_OK), -1);
    assert_non_null(strstr(read_file(temporary("full/main.log")), "s:1 "));
}

static void run_logger(const void *where) {
    Options o;
    options_default(&o);
    o.out = (const char *)where;
    Logger l;
    logger_open(&l, &o, false, 0);
}

static void unwritable_logs_end_in_one_line(void **) {
    expect_death(run_logger, "/proc/nowhere", "cannot make the folder /proc/nowhere");
    // A folder that takes no file is found at start, even by root.
    expect_death(run_logger, "/proc", "cannot write /proc/options.cfg.00000000.tmp");
    // /dev/full takes no byte, as a disk without space.
    expect_death(
        [](const void *) {
            Logger full;
            memset(&full, 0, sizeof full);
            full.log = fopen_check("/dev/full", "a");
            full.metrics = fopen_check("/dev/null", "a");
            snprintf(full.log_path, sizeof full.log_path, "/dev/full");
            logger_validation(&full, 1, 2.0);
        },
        NULL, "cannot write /dev/full: No space left on device");
}

static void the_quickstart_names_the_text_that_is_too_small(void **) {
    const char *path = temporary("small.txt");
    write_file(path, "too small", 9);
    char command[512];
    const char *said = temporary("said");
    snprintf(command, sizeof command, "scripts/quickstart.sh --text %s >%s 2>&1", path, said);
    assert_int_not_equal(system(command), 0);
    char expected[512];
    snprintf(expected, sizeof expected,
             "quickstart: --text %s: expected at least 2000 bytes, found 9\n", path);
    assert_string_equal(read_file(said), expected);
}

// Of data sheets, by what drivers report.
static void devices_have_the_peak_of_their_own_board(void **) {
    static const struct {
        const char *device;
        double bf16;  // Tflop/s
    } devices[] = {
        {"NVIDIA GB200", 2500},
        {"NVIDIA B200", 2250},
        {"NVIDIA GH200 480GB", 989},
        {"NVIDIA H200", 989},
        {"NVIDIA H200 NVL", 835},
        {"NVIDIA H100 80GB HBM3", 989},
        {"NVIDIA H100 80GB HBM3 MIG 1g.10gb", 0},
        {"NVIDIA H100 NVL", 835},
        {"NVIDIA H100 PCIe", 756},
        {"NVIDIA H800", 989},
        {"NVIDIA H800 PCIe", 756},
        {"NVIDIA H20", 148},
        {"NVIDIA A100-SXM4-80GB", 312},
        {"A100-SXM4-40GB", 312},
        {"NVIDIA A100-PCIE-40GB", 312},
        {"NVIDIA A100 80GB PCIe", 312},
        {"NVIDIA A100X", 0},
        {"NVIDIA A10G", 70},
        {"NVIDIA A10", 125},
        {"NVIDIA A16", 0},
        {"NVIDIA L40S", 362},
        {"NVIDIA L40", 181},
        {"NVIDIA L4", 121},
        {"NVIDIA GeForce RTX 4090", 165.2},
        {"NVIDIA GeForce RTX 4090 D", 0},
        {"NVIDIA GeForce RTX 4090 Laptop GPU", 0},
        {"NVIDIA GeForce RTX 3090 Ti", 0},
        {"NVIDIA", 0},
        {"", 0},
    };
    for (auto &d : devices)
        if (peak_flops(d.device, PEAK_BF16) != 1e12 * d.bf16)
            fail_msg("%s: expected %g Tflop/s, found %g", d.device, d.bf16,
                     1e-12 * peak_flops(d.device, PEAK_BF16));
    assert_true(peak_flops("NVIDIA A100-SXM4-80GB", PEAK_FP32) == 19.5e12);
    assert_true(peak_flops("NVIDIA A100-SXM4-80GB", PEAK_TF32) == 156e12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_option_has_its_default_and_takes_another_value),
        cmocka_unit_test(every_option_refuses_what_is_not_its_value),
        cmocka_unit_test(auto_follows_from_the_device_and_the_nodes),
        cmocka_unit_test(llmc_numbers_stand_for_choices),
        cmocka_unit_test(a_flag_stands_alone_or_takes_0_or_1),
        cmocka_unit_test(sizes_may_be_written_with_an_exponent),
        cmocka_unit_test(flags_of_llmc_that_are_not_here_are_explained),
        cmocka_unit_test(flags_of_llmc_that_ask_for_nothing_pass),
        cmocka_unit_test(flags_of_llmc_mean_what_they_mean_there),
        cmocka_unit_test(names_of_other_trainers_lead_to_ours),
        cmocka_unit_test(all_unknown_options_are_named_at_once),
        cmocka_unit_test(help_and_version_answer_and_end),
        cmocka_unit_test(bad_command_lines_end_in_one_line),
        cmocka_unit_test(help_lists_every_option_and_its_range),
        cmocka_unit_test(options_survive_the_config_file),
        cmocka_unit_test(of_options_given_twice_the_later_holds),
        cmocka_unit_test(bad_config_files_end_in_one_line),
        cmocka_unit_test(precision_policies_come_to_dtypes),
        cmocka_unit_test(die_names_rank_and_step_in_one_line),
        cmocka_unit_test(messages_command_nothing_to_the_terminal),
        cmocka_unit_test(only_regular_files_are_read),
        cmocka_unit_test(commas_and_braces_name_several_files),
        cmocka_unit_test(a_silent_job_ends_and_a_stopped_one_goes_on),
        cmocka_unit_test(work_and_files_may_take_any_time),
        cmocka_unit_test(the_largest_model_has_a_buffer_for_each_block),
        cmocka_unit_test(learning_rates_match_the_tables),
        cmocka_unit_test(no_step_leaves_the_range_of_learning_rates),
        cmocka_unit_test(philox_gives_its_published_numbers),
        cmocka_unit_test(normals_follow_box_muller),
        cmocka_unit_test(normals_have_the_moments_of_a_normal_distribution),
        cmocka_unit_test(normals_do_not_depend_on_how_a_tensor_is_cut),
        cmocka_unit_test(permutations_are_bijections),
        cmocka_unit_test(permutations_look_random),
        cmocka_unit_test(permutations_match_the_second_implementation),
        cmocka_unit_test(parameter_counts_are_the_published_ones),
        cmocka_unit_test(gpt3_sizes_are_those_of_the_paper),
        cmocka_unit_test(other_depths_are_scaled_as_in_llmc),
        cmocka_unit_test(bad_model_descriptors_end_in_one_line),
        cmocka_unit_test(files_and_descriptors_of_models_are_told_apart),
        cmocka_unit_test(segments_are_neighbours_and_cover_a_block),
        cmocka_unit_test(initial_weights_follow_gpt2_and_do_not_depend_on_the_cut),
        cmocka_unit_test(a_run_succeeds_if_it_has_learned),
        cmocka_unit_test(model_files_survive_the_round_trip_in_pieces),
        cmocka_unit_test(model_files_of_124m_have_llmcs_sizes),
        cmocka_unit_test(model_files_of_python_are_read),
        cmocka_unit_test(padded_rows_of_a_model_file_come_as_zeros),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(bad_model_files_end_in_one_line),
        cmocka_unit_test(tokenizers_give_the_text_of_tokens),
        cmocka_unit_test(samples_are_printed_as_valid_text),
        cmocka_unit_test(tokenizer_version_1_is_gpt2s),
        cmocka_unit_test(bad_tokenizers_end_in_one_line),
        cmocka_unit_test(samples_follow_the_softmax),
        cmocka_unit_test(top_k_and_temperature_narrow_the_choice),
        cmocka_unit_test(top_p_keeps_the_fewest_tokens_that_have_the_share),
        cmocka_unit_test(samples_are_a_function_of_seed_text_and_position),
        cmocka_unit_test(logs_keep_every_digit_of_a_float),
        cmocka_unit_test(a_resumed_run_leaves_no_line_twice),
        cmocka_unit_test(an_earlier_run_keeps_its_files_under_a_number),
        cmocka_unit_test(a_full_disk_takes_no_earlier_file),
        cmocka_unit_test(unwritable_logs_end_in_one_line),
        cmocka_unit_test(devices_have_the_peak_of_their_own_board),
        cmocka_unit_test(the_quickstart_names_the_text_that_is_too_small),
    };
    return run_in_folder(tests);
}
