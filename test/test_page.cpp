// test/test_page.cpp: the page of scripts/page in a real browser (make test-page; needs chromium).
// What it has drawn is read from its document, and what it complains of from its log.
#include "../lib/die.h"
#define LIMIT "120"
#include "run.h"

#define RUN                                                                                        \
    PROGRAM " --train README.md --val doc/options.md --model gpt2:L=2,C=32,NH=2,T=32 --steps 12 "  \
            "--val-every 4 --sample-every 6 --sample-tokens 20 --ranks 2 "
#define CHROMIUM                                                                                   \
    "chromium --headless --no-sandbox --disable-gpu --enable-logging=stderr --v=0 "                \
    "--virtual-time-budget="

static char document[4 << 20];

// The document after its scripts have run. No script may have failed.
static void open_page(const char *address) {
    Outcome o = run(CHROMIUM "3000 --dump-dom %s >%s/dom 2>%s/log; grep -c CONSOLE %s/log", address,
                    folder, folder, folder);
    read_text(temporary("dom"), document, sizeof document);
    if (strcmp(o.out, "0\n")) {
        o = run("grep CONSOLE %s/log", folder);
        fail_msg("the page complains: %s", o.out);
    }
}

static void expect_in_page(const char *words) {
    if (!strstr(document, words)) fail_msg("expected `%s` in %s/dom", words, folder);
}

static int count(const char *words) {
    int n = 0;
    for (const char *at = document; (at = strstr(at, words)) != NULL; at++) n++;
    return n;
}

static void a_page_shows_curves_options_samples_memory_and_a_step(void **) {
    Outcome o =
        run(RUN "--out '%s/a&b' --trace %s/trace && " RUN
                "--seed 7 --out %s/second && scripts/page '%s/a&b' %s/second --out %s/p.html",
            folder, folder, folder, folder, folder, folder);
    if (o.status != 0) fail_msg("%s%s", o.out, o.err);
    char address[128];
    snprintf(address, sizeof address, "file://%s/p.html", folder);
    open_page(address);
    static const char *const charts[] = {
        "loss",       "val_loss",     "norm",   "lr", "tokens_per_second",
        "comm_share", "update_ratio", "skipped"};
    for (const char *c : charts) {
        char id[64];
        snprintf(id, sizeof id, "id=\"chart-%s\"", c);
        expect_in_page(id);
    }
    assert_true(count("<canvas") >= 2 * 8);  // dygraphs draws on two
    expect_in_page("12/12");
    expect_in_page("a&amp;b</td>");
    expect_in_page("<td>seed</td><td>42</td><td>7</td>");
    assert_false(strstr(document, "<td>batch</td>"));  // both runs have the same
    expect_in_page("step 12</span><pre>");
    expect_in_page("<td>AdamW m</td>");
    assert_true(count("<rect") > 10);
    expect_in_page("gather block 0: ");
}

// A run that has diverged, without options and in the middle of a line; a step with all that HTML
// and scripts could stumble over.
static void a_page_stands_odd_logs(void **) {
    run("mkdir -p %s/odd; printf "
        "'{\"step\":0,\"val_loss\":null}\\n{\"step\":0,\"steps\":3,\"loss\":null,"
        "\"norm\":null,\"lr\":0,\"ms\":1,\"tokens\":8}\\n{\"step\":1,\"steps\":3,\"loss\":2.5,"
        "\"norm\":0,"
        "\"lr\":0,\"ms\":1,\"tokens\":16}\\n{\"step\":1,\"sample\":\"</script><!-- & "
        "<b>\"}\\n{\"step\":2,"
        "\"ste' >%s/odd/metrics.jsonl; scripts/page %s/odd",
        folder, folder, folder);
    char address[128];
    snprintf(address, sizeof address, "file://%s/odd/page.html", folder);
    open_page(address);
    expect_in_page("<pre>&lt;/script&gt;&lt;!-- &amp; &lt;b&gt;</pre>");
    expect_in_page("2/3");
    assert_false(strstr(document, "Memory of a rank"));
    assert_false(strstr(document, ">A step<"));
}

static void a_served_page_follows_the_run(void **) {
    run("mkdir -p %s/live; printf '{\"step\":0,\"steps\":9,\"loss\":3,\"ms\":1,\"tokens\":8}\\n' "
        ">%s/live/metrics.jsonl",
        folder, folder);
    run("scripts/page %s/live --serve 18923 >/dev/null 2>&1 & server=$!; for i in $(seq 100); do "
        "(echo >/dev/tcp/localhost/18923) 2>/dev/null && break; sleep 0.2; done; "
        "printf '{\"step\":1,\"steps\":9,\"loss\":2,\"ms\":1,\"tokens\":16}\\n' "
        ">>%s/live/metrics.jsonl; " CHROMIUM "12000 --dump-dom "
        "http://localhost:18923/ >%s/dom 2>/dev/null; kill $server",
        folder, folder, folder);
    read_text(temporary("dom"), document, sizeof document);
    expect_in_page("2/9");
}

static void what_is_no_run_is_refused(void **) {
    expect_refusal("scripts/page", "usage: scripts/page RUN");
    expect_refusal("scripts/page /tmp", "/tmp: expected the --out folder of a run");
    expect_refusal("scripts/page README.md --serve web", "--serve web: expected a port");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_page_shows_curves_options_samples_memory_and_a_step),
        cmocka_unit_test(a_page_stands_odd_logs),
        cmocka_unit_test(a_served_page_follows_the_run),
        cmocka_unit_test(what_is_no_run_is_refused),
    };
    return run_in_folder(tests);
}
