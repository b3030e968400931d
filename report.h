// report.h: what a run says to people on stdout: the start-up table, a line a step, validations and
// samples, or the same as JSON. People count steps from 1, and what stands at step N was found when
// N steps were done. Rank 0 calls it.
#pragma once

#include "dataloader.h"
#include "gpt.h"
#include "lib/logger.h"
#include "lib/tokenizer.h"
#include "ranks.h"

// A result that cannot be printed ends the run: a full disk behind stdout must not pass for
// success. The training loop looks here, and saves first.
static Failure report_failure;

static void flush_stdout(void) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return;
    if (!report_failure.text[0])
        fails(&report_failure, "cannot write to stdout: %s", strerror(errno));
}

static double mib(size_t bytes) {
    return (double)bytes / 1048576.0;
}

// ---- the start-up table ------------------------------------------------------------------------

typedef struct {
    const Options *options;
    const GptConfig *config;
    const Ranks *ranks;
    const Threads *threads;         // 0: a GPU
    const DataLoader *train, *val;  // no samples: no data
    const Buffers *buffers;
    const char *code, *device;
    const char *products;  // how bf16 matrices are multiplied; NULL: there is one way only
    double bytes_per_parameter;
    double peak;  // flops a second of one rank's device, 0: unknown
    int micro_steps;
    int prompt_tokens;  // what samples begin with
    Schedule schedule;  // with the steps of the run
} StartTable;

static void report_memory(const StartTable *t) {
    static const char *const owners[] = {"state", "gather", "gradient", "activations", BUFFER_HOST};
    const Buffers *b = t->buffers;
    int K = t->config->fsdp.K;
    double exact = t->bytes_per_parameter * (double)model_parameters(&t->config->model) / K;
    printf("memory per rank  ");
    for (int i = 0; i < 5; i++)
        printf("%s %.1f MiB%s", owners[i], mib(buffers_bytes(b, owners[i])), i < 4 ? ", " : "");
    printf("; together %.1f MiB\n", mib(buffers_bytes(b, NULL)));
    printf("state            %.1f bytes a parameter / %d ranks = %.1f MiB, %.2f %% padding\n",
           t->bytes_per_parameter, K, exact / 1048576.0,
           100.0 * ((double)buffers_bytes(b, "state") / exact - 1.0));
}

static void report_files(const char *what, const DataLoader *d) {
    printf("%-16s %llu tokens in %d file(s)", what, (unsigned long long)d->tokens, d->file_count);
    if (d->short_files)
        printf(", %d of them too short for a sample (%.1f %% of the tokens, which are not used)",
               d->short_files, 100.0 * (double)d->short_tokens / (double)d->tokens);
    printf(", %llu samples; ", (unsigned long long)d->samples);
}

static void report_data(const StartTable *t, uint64_t tokens_per_step) {
    double epoch = (double)t->train->samples * t->config->T / (double)tokens_per_step;  // in steps
    if (t->train->samples) {
        report_files("data", t->train);
        printf("%ld steps = %.2f epochs", t->schedule.steps, (double)t->schedule.steps / epoch);
        if (epoch < 1) printf("; a step has each sample %.1f times", 1 / epoch);
        printf("\n");
    }
    if (t->val->samples) {
        uint64_t all = dataloader_batches(t->val), wanted = (uint64_t)t->options->val_batches;
        report_files("validation", t->val);
        printf("%llu of %llu micro-batches\n", (unsigned long long)(wanted < all ? wanted : all),
               (unsigned long long)all);
    }
}

static void report_schedule(const StartTable *t) {
    const Schedule *s = &t->schedule;
    char shape[32];
    option_print_value(t->options, option_find("schedule"), shape, sizeof shape);
    printf("learning rate    %s, warm-up %ld steps%s: %.2e at step 1", shape, s->warmup,
           s->warmup > s->steps ? ", longer than the run" : "", schedule_lr(s, 0));
    if (s->warmup > 1 && s->warmup < s->steps)
        printf(", %.2e at step %ld", schedule_lr(s, s->warmup - 1), s->warmup);
    printf(", %.2e at step %ld\n", schedule_lr(s, s->steps - 1), s->steps);
}

static void report_start(const StartTable *t) {
    const GptConfig *c = t->config;
    const ModelConfig *m = &c->model;
    const Ranks *ranks = t->ranks;
    Dtypes d = options_dtypes(t->options);
    static const char *const dtypes[] = {"", "fp32", "bf16", "fp64"};
    uint64_t tokens =
        (uint64_t)c->B * (uint64_t)c->T * (uint64_t)ranks->world * (uint64_t)t->micro_steps;
    char shard[32];
    option_print_value(t->options, option_find("shard"), shard, sizeof shard);
    printf("model            %s: L=%d C=%d NH=%d T=%d V=%d (padded %d), %zu parameters\n",
           t->options->model, m->L, m->C, m->NH, m->T, m->V, m->Vp, model_parameters(m));
    printf("code             %s%s%s", t->code, t->device[0] ? " on " : "", t->device);
    if (t->products) printf(", products %s", t->products);
    printf("\n");
    printf("ranks            %d (%s), %d on this node", ranks->world, ranks->launcher,
           ranks->local_world);
    if (t->threads->n) printf(", %d threads each (%s)", t->threads->n, t->threads->why);
    printf("\nsharding         --shard %s: groups of %d ranks, %d replicas; %s sums\n", shard,
           c->fsdp.K, c->fsdp.world / c->fsdp.K, c->fsdp.ordered ? "ordered" : "fast");
    printf("numbers          compute and gather %s, reduce %s, parameter shards fp32, gradient "
           "shards %s, moments %s\n",
           dtypes[d.gather], dtypes[d.reduce], dtypes[d.grad], dtypes[d.moment]);
    printf("batch            B %d x T %d x %d ranks x %d micro-steps = %llu tokens a step\n", c->B,
           c->T, ranks->world, t->micro_steps, (unsigned long long)tokens);
    printf("logits           %d rows at a time\n",
           c->logits_rows < c->B * c->T ? c->logits_rows : c->B * c->T);
    report_data(t, tokens);
    if (t->prompt_tokens > c->T)
        printf("prompt           %d tokens; of them the model sees the last %d\n", t->prompt_tokens,
               c->T);
    if (t->schedule.steps > 0) report_schedule(t);
    if (t->peak > 0) printf("peak             %.0f Tflop/s a rank\n", t->peak * 1e-12);
    report_memory(t);
    flush_stdout();
}

// ---- while it trains ---------------------------------------------------------------------------

// ms_left: what the steps that follow will take.
static void report_step(bool json, const StepMetrics *x, double ms_left) {
    if (json) {
        metrics_print(stdout, x);
        flush_stdout();
        return;
    }
    long eta = (long)(1e-3 * ms_left);
    char mfu[16] = "n/a";
    if (isfinite(x->mfu)) snprintf(mfu, sizeof mfu, "%.1f%%", 100 * x->mfu);
    printf("step %ld/%ld | loss %.4f | norm %.4f (before clipping) | lr %.2e | %.0f ms | %.0f "
           "tok/s | MFU %s | %.0f MiB | comm %.0f%% (%.1f MiB) | ETA %ld:%02ld:%02ld\n",
           x->step + 1, x->steps, x->loss, x->norm, x->lr, x->ms, x->tokens_per_second, mfu,
           mib(x->memory), 100 * x->comm_share,
           (x->gathered + x->reduced + x->allreduced) / 1048576.0, eta / 3600, eta / 60 % 60,
           eta % 60);
    flush_stdout();
}

// step: steps done. bits: a byte of the text; NAN: not known.
static void report_validation(bool json, long step, long steps, double loss, double bits) {
    if (json) {
        printf("{\"step\":%ld,\"val_loss\":", step);
        json_number(stdout, loss, 9);
        printf("}\n");
    } else {
        printf("step %ld/%ld  validation loss %.4f (", step, steps, loss);
        if (!isnan(bits)) printf("%.3f bits a byte, ", bits);
        printf("perplexity %.2f)\n", exp(loss));
    }
    flush_stdout();
}

static void report_eval(bool json, long step, long steps, int right, int examples) {
    double share = (double)right / examples;
    if (json)
        printf("{\"step\":%ld,\"eval\":%.9g,\"right\":%d,\"examples\":%d}\n", step, share, right,
               examples);
    else
        printf("step %ld/%ld  eval %.4f (%d of %d)\n", step, steps, share, right, examples);
    flush_stdout();
}

// text: n bytes.
static void report_sample(bool json, long step, long steps, const char *text, size_t n) {
    if (json) {
        printf("{\"step\":%ld,\"sample\":", step);
        json_string(stdout, text, n);
        printf("}\n");
    } else {
        printf("--- sample at step %ld/%ld ---\n", step, steps);
        text_print(text, n, stdout);
        printf("\n---\n");
    }
    flush_stdout();
}
