// train_gpt.cu: the program: options to a plan, the plan to a model on every rank, the training
// loop. The model is gpt.cu, sharding is fsdp.h; this file knows neither layers nor devices'
// kernels.
#include "checkpoint/audit.h"
#include "checkpoint/hugging_face.h"
#include "checkpoint/resume.h"
#include "checkpoint/save.h"
#include "eval/hellaswag.h"
#include "eval/validation.h"
#include "generate/generate.h"
#include "lib/clock.h"
#include "lib/outcome.h"
#include "lib/outputs.h"
#include "lib/peak.h"
#include "lib/stop.h"
#include "lib/watchdog.h"
#include "plan/print.h"
#include "report.h"
#include "tokenize.h"

#ifdef DEVICE_CPU
#include "cpu/host.h"
#include "cpu/products.h"
#endif

#define SKIPS_IN_A_ROW 10  // updates with a non-finite gradient until the run is given up

typedef struct {
    Options o;
    Ranks ranks;
    const GptCode *code;
    Gpt *gpt;
    GptConfig config;
    int micro_steps;  // per optimizer step
    uint64_t samples_per_step;
    long steps;
    bool text;  // data are bytes
    DataLoader train, val;
    Eval eval;
    Tokenizer tokenizer;  // V == 0: none
    Writer writer;        // of samples and --generate
    Logger logger;
    Watchdog watchdog;
    char device[256];
    Threads threads;  // of this rank, on CPUs
    double peak;      // flops a second of one rank's device, 0: unknown
    double ms_mean;   // of the steps so far, for the ETA
    RunOutcome outcome;
    AuditCost audits;

    Model model;
    TrainState state;
    long first_step;             // of this process
    char resumed[PATH_BYTES];    // the checkpoint that the run goes on from; "": none
    bool resumed_here;           // it lies in --out
    CheckpointIndex checkpoint;  // its index
    json_t *data;                // what a checkpoint says of the training data
    Saver saver;
    double saved_ms;  // clock_ms of the last checkpoint, or of the start
    double began_ms;  // clock_ms of the first step
    Failure failure;  // of this rank: told to all at the end of the step
} Run;

// What ranks tell each other at the end of a step.
enum {
    NOTE_STOP = 1,     // has been asked to stop
    NOTE_FAILURE = 2,  // cannot go on: no data for the next step, no stdout, ...
    NOTE_WRITING = 4,  // is still writing its part of a checkpoint
    NOTE_TIME = 8      // rank 0: it is time for a checkpoint
};

// ---- the copies of the model -------------------------------------------------------------------

#ifdef DEVICE_CPU
#ifdef __x86_64__
#define LEVELS(X) X(generic) X(avx2) X(avx512)
static int best_level(void) {
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return avx512 ? 2 : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
#define LEVELS(X) X(generic)
static int best_level(void) {
    return 0;
}
#endif
#define LEVEL_DECLARE(level) extern const GptCode gpt_fp32_##level, gpt_bf16_##level;
#define LEVEL_ROW(level) {#level, &gpt_fp32_##level, &gpt_bf16_##level},
LEVELS(LEVEL_DECLARE)

// FSDP_SIMD=generic|avx2|avx512 asks for less than the processor has.
static const GptCode *choose_code(bool bf16) {
    static const struct {
        const char *name;
        const GptCode *fp32, *bf16;
    } levels[] = {LEVELS(LEVEL_ROW)};
    const char *wish = getenv("FSDP_SIMD");
    int level = best_level();
    while (wish && level >= 0 && strcmp(levels[level].name, wish)) level--;
    if (level < 0)
        die_all("FSDP_SIMD=%s: expected generic, avx2 or avx512, as far as this processor has it",
                wish);
    return bf16 ? levels[level].bf16 : levels[level].fp32;
}

// NULL: there is one way only.
static const char *choose_products(const Run *r) {
    const bool bf16 = options_dtypes(&r->o).gather == DTYPE_BF16;
    return bf16 ? products_name(products_of_bf16()) : NULL;
}
#else
extern const GptCode gpt_fp32, gpt_bf16;

static const char *choose_products(const Run *r) {
    return r->config.tf32 ? "of operands rounded to TF32" : NULL;
}

static const GptCode *choose_code(bool bf16) {
    return bf16 ? &gpt_bf16 : &gpt_fp32;
}
#endif

// ---- options to a plan: everything is checked before anything is allocated ---------------------

// --generate is a run without steps and data. shard_given: else every rank has whole units.
static void settle_generation(Run *r, bool shard_given) {
    Options *o = &r->o;
    if (o->plan != PLAN_NO) die_all("--plan is of a training: leave out --generate");
    if (o->train[0] || o->val[0] || o->eval[0])
        die_all("--generate %d prints text and nothing else: leave out --train, --val and --eval",
                o->generate);
    if (!r->resumed[0] && !model_is_hf(o->model) && !model_is_file(o->model))
        die_all("--generate %d: expected a trained model, --model FILE or --resume FOLDER, found "
                "--model %s",
                o->generate, o->model);
    o->steps = 0;
    if (!shard_given) o->shard = SHARD_GRADS;
}

// Is --model still what the checkpoint's run began with? (Its file may be gone by now.)
static bool resumes_same_model(const Run *r) {
    if (!r->resumed[0]) return false;
    const char *before = resume_value(&r->checkpoint, option_find("model"));
    return before && !strcmp(before, r->o.model);
}

// Options that a run would have no use for. What a resumed one has from its checkpoint is no wish.
static void check_purpose(const Options *o, bool resumed) {
    if ((o->checkpoint_every || o->checkpoint_minutes) && !o->out[0] && !resumed)
        die_all("--checkpoint-every and --checkpoint-minutes: checkpoints lie in the folder of "
                "--out, which is not given");
    if ((o->keep || o->keep_every) && !o->checkpoint_every && !o->checkpoint_minutes && !resumed)
        die_all("--keep and --keep-every: no checkpoints are made, as neither --checkpoint-every "
                "nor --checkpoint-minutes is given");
    if (o->trace[0] && o->steps == 0) die_all("--trace: with --steps 0 there is no step to trace");
}

static void choose_model(Run *r) {
    const Options *o = &r->o;
    GptConfig *c = &r->config;
    const bool nothing = resume_is_auto(o->resume) && !r->resumed[0];
    if (!o->train[0] && o->steps != 0 && o->plan == PLAN_NO)
        die_all("--train: expected token shards or text files, found none%s%s; --help lists all "
                "options",
                nothing ? ", and no checkpoint to go on from in --out " : "",
                nothing ? o->out : "");
    const char *data = o->train[0] ? o->train : o->val;
    bool text = data[0] && data_is_text(data);
    if (o->tokenizer[0]) r->tokenizer = tokenizer_open(o->tokenizer);
    int data_vocab = !text ? SHARD_VOCAB : r->tokenizer.V ? r->tokenizer.V : TEXT_VOCAB;
    if (resumes_same_model(r)) {
        c->model = r->checkpoint.model;
    } else if (model_is_hf(o->model)) {
        c->model = hf_model(o->model);
    } else if (model_is_file(o->model)) {
        ModelFile file = model_file_open(o->model);
        c->model = file.m;
        model_file_close(&file);
    } else {
        c->model = model_parse(o->model);
        if (!c->model.V) model_set_vocab(&c->model, data_vocab);
    }
    r->text = data[0] ? text && !r->tokenizer.V : c->model.V == TEXT_VOCAB;
    if (r->resumed[0]) resume_check_model(&r->checkpoint, &c->model, r->resumed);
    if (r->text && c->model.V != TEXT_VOCAB)
        die_all("--model %s has a vocabulary of %d tokens, %s is text data, read as bytes, a "
                "vocabulary of %d: %s",
                o->model, c->model.V, data, TEXT_VOCAB,
                c->model.V == GPT2_VOCAB
                    ? "with --tokenizer and GPT-2's tokenizer.bin it is read as GPT-2's tokens"
                    : "expected a model for bytes, or the tokens of this one as shards");
    if (r->tokenizer.V && r->tokenizer.V != c->model.V)
        die_all("--tokenizer %s has %d tokens, the model %d: expected the same vocabulary",
                o->tokenizer, r->tokenizer.V, c->model.V);
}

// Everything is checked before anything is allocated.
static void settle_run(Run *r) {
    const ModelConfig model = r->config.model;
    const Place place = {r->ranks.rank, r->ranks.world, r->ranks.local_world};
    Conflict why = {};
    if (!settle(&r->config, &r->o, &model, place, &why)) die_all("%s", why.text);
    r->micro_steps = r->config.fsdp.micro_steps;
    r->samples_per_step =
        (uint64_t)r->micro_steps * (uint64_t)r->config.B * (uint64_t)r->ranks.world;
    const bool bf16 = options_dtypes(&r->o).gather == DTYPE_BF16, tf32 = r->config.tf32;
    r->code = choose_code(bf16);
    r->peak = peak_flops(r->device, bf16 ? PEAK_BF16 : tf32 ? PEAK_TF32 : PEAK_FP32);
}

// One epoch was asked for, and the data are not enough for its first step.
NORETURN static void die_of_little_data(const Run *r, uint64_t samples_of_step) {
    bool given = r->o.tokens_per_step && r->micro_steps > 1;
    die_all("--train %s: %llu samples of %d tokens are less than one step of %llu; use %s, or give "
            "--steps to go over them more than once",
            r->o.train, (unsigned long long)r->train.samples, r->config.T,
            (unsigned long long)samples_of_step,
            given ? "a smaller --tokens-per-step" : "a smaller --batch or --seq");
}

// End-of-text occurs once in a text of bytes: what is written in them begins on a new line.
static void prepare_writer(Run *r) {
    const Options *o = &r->o;
    const char *asked = o->generate ? "generate" : "sample-every";
    if (!r->tokenizer.V) die_all("--%s: the text of tokens needs --tokenizer tokenizer.bin", asked);
    if (!o->generate && !strcmp(o->prompt, "-"))
        die_all("--prompt -: lines of stdin are prompts of --generate, not of samples");
    Writer *w = &r->writer;
    w->code = r->code, w->ranks = &r->ranks, w->tokenizer = &r->tokenizer;
    w->sampler = {o->temperature, o->top_k, o->top_p, o->seed};
    w->T = r->config.T;
    w->first = r->text ? '\n' : r->tokenizer.eot;
    writer_start(w);
    writer_prompt(w, o->prompt);
}

static void open_files(Run *r, DataLoader *dl, const char *pattern, bool shuffle) {
    TextPolicy policy = {&r->tokenizer, r->o.token_folder, r->o.plan == PLAN_NO, !r->o.json};
    Paths files = tokenize_files(&r->ranks, pattern, &policy);
    dataloader_open_files(dl, pattern, files, r->config.B, r->config.T, r->config.model.V,
                          r->o.seed, shuffle);
}

static void open_data(Run *r) {
    const Options *o = &r->o;
    const GptConfig *c = &r->config;
    uint64_t batches = (uint64_t)r->micro_steps * (uint64_t)r->ranks.world;
    r->steps = o->steps;
    if (o->train[0]) {
        open_files(r, &r->train, o->train, true);
        uint64_t epoch = r->train.samples / (batches * (uint64_t)c->B);
        if (r->steps < 0) r->steps = (long)epoch;
        if (r->steps == 0 && o->steps != 0) die_of_little_data(r, batches * (uint64_t)c->B);
    }
    if (o->val[0]) open_files(r, &r->val, o->val, false);
    if (o->train[0] && o->val[0] &&
        (r->train.files[0].kind == DATA_TEXT) != (r->val.files[0].kind == DATA_TEXT))
        die_all("--train is %s, --val is %s: expected the same kind of data",
                data_kind_name(r->train.files[0].kind), data_kind_name(r->val.files[0].kind));
    if (o->train[0]) dataloader_check(&r->train);
    if (o->val[0]) dataloader_check(&r->val);
    if (o->eval[0]) r->eval = eval_open(o->eval, c->model.V, c->T);
    if (r->text) r->tokenizer = tokenizer_of_bytes();
    if (c->writes) prepare_writer(r);
}

// ---- start -------------------------------------------------------------------------------------

#ifndef DEVICE_CPU
// NCCL does not support several ranks on one GPU ("Using multiple NCCL communicators concurrently",
// and its error "Duplicate GPU detected"). A GPU is known by its place on the PCI bus of a machine,
// whatever number a rank sees it under; a machine by the identifier that its kernel made at boot.
static void check_own_gpu(Run *r, int device) {
    char machine[MACHINE_NAME], text[MACHINE_NAME + 32], bus[32];
    cudaCheck(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
    machine_name(machine);
    snprintf(text, sizeof text, "%s%s", machine, bus);
    const int world = r->ranks.world, rank = r->ranks.rank;
    uint64_t *gpus = (uint64_t *)calloc((size_t)world, sizeof *gpus);
    if (!gpus) die("out of memory for %d ranks", world);
    gpus[rank] = checksum_text(text, strlen(text));
    ranks_sum(&r->ranks, gpus, (size_t)world);
    for (int i = 0; i < rank; i++)
        if (gpus[i] == gpus[rank])
            die("ranks %d and %d share the GPU %s: expected a GPU for each rank; start fewer ranks "
                "on "
                "this machine, or let the launcher give each rank its own",
                i, rank, bus);
    free(gpus);
}
#endif

static void start_device(Run *r) {
#ifdef DEVICE_CPU
    if (r->o.nccl_ctas)
        die_all("--nccl-ctas %d: there are no thread blocks on CPUs; leave it out", r->o.nccl_ctas);
#endif
    int devices = 0;
    cudaError_t e = cudaGetDeviceCount(&devices);
    if (e != cudaSuccess || devices == 0)
        die_all("no GPU answers (%s); on a machine without one build with: make DEVICE=cpu",
                cudaGetErrorString(e));
    // With one GPU in sight, each rank may have been given another one.
    const int device = r->ranks.local_rank % devices;
    cudaCheck(cudaSetDevice(device));
    cudaDeviceProp properties;
    cudaCheck(cudaGetDeviceProperties(&properties, device));
#ifndef DEVICE_CPU
    check_own_gpu(r, device);
#endif
    snprintf(r->device, sizeof r->device, "%s", properties.name);
#ifdef DEVICE_CPU
    const Ranks *n = &r->ranks;
    r->threads = host_threads(r->o.threads, n->machines, n->local_world, n->local_rank);
    omp_set_num_threads(r->threads.n);
    if (n->shared) host_bind_threads(n->local_rank);
    if (n->launcher == ranks_launcher_mpi && n->rank == 0)
        host_report_idle_cores(&r->threads, n->machines, n->local_world, n->local_rank);
#endif
}

#ifdef DEVICE_CPU
static void check_memory(Run *r, bool joined) {
    if (joined) return;
    size_t needed = buffers_bytes(r->code->buffers(r->gpt), NULL);
    host_check_memory(needed, r->ranks.machines, r->ranks.local_world);
    host_check_address_space(needed, r->threads.n, r->ranks.local_world);
}
#else
// Buffers that do not fit on the GPU of some rank are refused: before anything is made, and again
// when the ranks have joined and NCCL has what it takes. How much code cuBLASLt will load is an
// estimate: where that does not fit the run is tried, and an allocation that fails is named.
static void check_memory(Run *r, bool joined) {
    const Buffers *b = r->code->buffers(r->gpt);
    size_t needed = 0, here, total;
    for (int i = 0; i < b->count; i++)
        if (!buffer_on_host(&b->rows[i])) needed += round_to_pages(b->rows[i].bytes);
    cudaCheck(cudaMemGetInfo(&here, &total));
    const size_t least = ranks_least(&r->ranks, here);
    if (needed > least)
        die_all("%.1f MiB of buffers are needed on each GPU, and %.1f are free on the fullest%s; "
                "use more ranks, a smaller --batch, --recompute layer, --logits-rows 512 or a "
                "smaller model (--plan shows what takes the memory)",
                mib(needed), mib(least), joined ? " besides what NCCL takes" : "");
    if (joined && (double)needed + MEMORY_BLAS > (double)least && r->ranks.rank == 0)
        fprintf(stderr,
                "train_gpt: %.1f MiB of buffers are needed on each GPU, and %.1f are free on the "
                "fullest: that may be too little, as cuBLASLt takes some %.1f besides\n",
                mib(needed), mib(least), MEMORY_BLAS / (1 << 20));
}
#endif

static void join_ranks(Run *r) {
    ncclUniqueId id;
    if (r->ranks.rank == 0 && ncclGetUniqueId(&id) != ncclSuccess)
        die("cannot create a communicator's id: %s", ncclGetLastError(NULL));
    ranks_broadcast(&r->ranks, &id, sizeof id);
    r->code->join(r->gpt, id);
}

static bool is_quiet(const Run *r) {
    return r->ranks.rank != 0 || r->o.json || r->o.generate;
}

static void load_model(Run *r) {
    const bool file = model_is_file(r->o.model);
    const double began = clock_ms();
    process.patient++;
    if (r->resumed[0])
        checkpoint_load(&r->model, &r->ranks, &r->checkpoint, r->resumed);
    else if (model_is_hf(r->o.model))
        hf_load(&r->model, r->o.model);
    else if (file)
        parameters_load(&r->model, r->o.model);
    else
        parameters_init(&r->model, r->o.seed);
    r->code->arrive(r->gpt);
    process.patient--;
    if (is_quiet(r) || (!file && !r->resumed[0])) return;
    printf("loaded           %s in %.2f s\n", r->resumed[0] ? r->resumed : r->o.model,
           1e-3 * (clock_ms() - began));
}

static Schedule schedule_of(const Run *r) {
    const Options *o = &r->o;
    Schedule s = {(ScheduleType)o->schedule, o->lr, o->final_lr, o->warmup, r->steps};
    return s;
}

static void print_start(const Run *r) {
    StartTable t = {};
    t.options = &r->o, t.config = &r->config, t.ranks = &r->ranks;
    t.train = &r->train, t.val = &r->val;
    t.buffers = r->code->buffers(r->gpt), t.code = r->code->name, t.device = r->device;
    t.threads = &r->threads, t.products = choose_products(r);
    t.bytes_per_parameter = r->code->bytes_per_parameter(r->gpt);
    t.peak = r->peak, t.micro_steps = r->micro_steps, t.schedule = schedule_of(r);
    t.prompt_tokens = r->writer.prompt_tokens;
    if (r->o.steps == 0) t.schedule.steps = 0;  // whatever step has been reached
    report_start(&t);
}

// Finds the checkpoint to go on from, and takes its options for those that are not given.
static void find_checkpoint(Run *r, int argc, char **argv) {
    resume_agree(r->resumed, &r->ranks, r->o.resume, r->o.out);
    if (!r->resumed[0]) return;
    r->checkpoint = checkpoint_open(r->resumed);
    resume_apply(&r->o, &r->checkpoint, r->ranks.world, argc, argv);
    resume_check_inputs(&r->o, &r->checkpoint);
    r->resumed_here = r->o.out[0] && resume_is_below(r->resumed, r->o.out);
}

// What a checkpoint says of the training data.
static json_t *describe_data(DataLoader *dl, const Tokenizer *tokenizer) {
    json_t *d = json_pack("{s:s, s:i, s:I}", "kind", data_kind_name(dl->files[0].kind), "files",
                          dl->file_count, "tokens", (json_int_t)dl->tokens);
    json_object_set_new(d, "checksum", json_sprintf("%016" PRIx64, dataloader_checksum(dl)));
    if (tokenizer->V)
        json_object_set_new(d, "tokenizer",
                            json_sprintf("%016" PRIx64, tokenizer_checksum(tokenizer)));
    return d;
}

// Tokens that mean something else than those that the model has learned.
static void check_same_tokens(const Run *r) {
    const char *kind = json_string_value(json_object_get(r->checkpoint.data, "kind"));
    const char *now = json_string_value(json_object_get(r->data, "kind"));
    if (kind && now && strcmp(kind, now))
        die_all("--resume %s: its training data are %s, --train is %s: expected the same tokens",
                r->resumed, kind, now);
    const char *before = json_string_value(json_object_get(r->checkpoint.data, "tokenizer"));
    if (!before || !r->tokenizer.V) return;
    char here[17];
    snprintf(here, sizeof here, "%016" PRIx64, tokenizer_checksum(&r->tokenizer));
    if (strcmp(before, here))
        die_all("--tokenizer %s: its tokens are not those of the checkpoint %s (checksum %s, "
                "expected %s)",
                r->o.tokenizer, r->resumed, here, before);
}

// Checkpoints of earlier programs say less.
static bool same_data(json_t *now, const json_t *before) {
    const char *key;
    json_t *value;
    json_object_foreach(now, key, value) {
        const json_t *other = json_object_get(before, key);
        if (other && !json_equal(value, other)) return false;
    }
    return true;
}

// Where the run begins: at step 0, or where the checkpoint was.
static void begin_state(Run *r) {
    r->model = {r->code, r->gpt, &r->config};
    bool background = r->o.out[0] && (r->o.checkpoint_every || r->o.checkpoint_minutes);
    saver_plan(&r->saver, &r->model, background, r->o.out, r->o.keep, r->o.keep_every);
    if (r->o.train[0]) r->data = describe_data(&r->train, &r->tokenizer);
    if (!r->resumed[0]) return;
    const CheckpointIndex *x = &r->checkpoint;
    size_t moment = r->code->element_bytes(r->gpt, GPT_MOMENT_M);
    resume_check_moments(x, moment, r->resumed);
    check_same_tokens(r);
    r->state = x->state;
    r->state.samples = x->state.samples * (uint64_t)x->T / (uint64_t)r->config.T;
    r->first_step = r->state.step;
    r->outcome.goes_on = true, r->outcome.in_a_row = r->o.steps ? r->state.skips_in_a_row : 0;
    if (r->resumed_here) saver_has(&r->saver, r->resumed, r->state.step);
    if (r->o.train[0] && r->o.steps < 0)
        r->steps = r->steps > r->state.step ? r->steps : r->state.step;
    if (r->steps < r->state.step && r->o.steps != 0)
        die_all("--steps %ld: the checkpoint %s is at step %ld already", r->steps, r->resumed,
                r->state.step);
    if (r->o.steps == 0) r->steps = r->state.step;
}

static void print_resume(const Run *r) {
    if (!r->resumed[0]) return;
    printf("resume           step %ld, %s\n", r->state.step, r->resumed);
    resume_print_differences(&r->o, &r->checkpoint, stdout);
    if (r->steps > r->state.step && !r->saver.background)
        printf("  no checkpoints are made: %s\n",
               r->o.out[0] ? "neither --checkpoint-every nor --checkpoint-minutes is given"
                           : "--out, their folder, is not given");
    bool known = r->data && json_is_object(r->checkpoint.data);
    if (known && !same_data(r->data, r->checkpoint.data))
        printf("  the training data are others than in the checkpoint: samples come in another "
               "order from here on\n");
}

static void describe_tokens(FILE *f, const char *what, DataLoader *dl) {
    fprintf(f, "%s\t", what);
    if (dl->file_count)
        fprintf(f, "%d files, the first %s, of %" PRIu64 " tokens (%016" PRIx64 ")\n",
                dl->file_count, path_name(dl->files[0].path), dl->tokens, dataloader_checksum(dl));
    else
        fprintf(f, "none\n");
}

// What a run reads, whatever the folders are in which each rank finds it.
static void describe_inputs(FILE *f, Run *r) {
    const char *model = r->o.model;
    describe_tokens(f, "the training data", &r->train);
    describe_tokens(f, "the validation data", &r->val);
    fprintf(f, "the examples of --eval\t%016" PRIx64 "\n", r->eval.checksum);
    fprintf(f, "the tokenizer\t%d tokens (%016" PRIx64 ")\n", r->tokenizer.V,
            r->tokenizer.V ? tokenizer_checksum(&r->tokenizer) : 0);
    if (r->resumed[0])
        fprintf(f, "the checkpoint\t%016" PRIx64 "\n", r->checkpoint.checksum);
    else if (model_is_file(model))
        fprintf(f, "the weights\tof %s (%016" PRIx64 ")\n", path_name(model),
                model_is_hf(model) ? hf_checksum(model) : model_file_checksum(model));
    else
        fprintf(f, "--model\t%s\n", model);
}

// What every rank has to have alike, beyond what they cannot start without.
static void check_agreement(Run *r) {
    char *text = NULL, value[PATH_BYTES];
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    if (!f) die("out of memory for the options");
    fprintf(f, "the program\t%s of %016" PRIx64 "\n", VERSION, checksum_file("/proc/self/exe"));
    const char *products = choose_products(r);
    fprintf(f, "the code\t%s%s%s\n", r->code->name, products ? ", products " : "",
            products ? products : "");
    for (int i = 0; i < OPTION_ROWS; i++) {
        const Option *row = &option_table[i];
        if (row->kind == KIND_GROUP || row->path == INPUT || row->path == INPUT_FILES) continue;
        option_print_value(&r->o, row, value, sizeof value);
        fprintf(f, "--%s\t%s\n", option_name(row).text, value);
    }
    const ModelConfig *m = &r->config.model;
    fprintf(f, "the model\tL=%d,C=%d,NH=%d,T=%d,V=%d\n", m->L, m->C, m->NH, m->T, m->V);
    describe_inputs(f, r);
    fclose_check(f, "the options");
    ranks_agree(&r->ranks, text);
    free(text);
}

static bool job_failed(void *run, char *text, size_t room) {
    if (ranks_failed(text, room)) return true;
    const Run *r = (const Run *)run;
    const Gpt *gpt = __atomic_load_n(&r->gpt, __ATOMIC_ACQUIRE);
    return gpt && r->code->failed(gpt, text, room);
}

static void give_up_collectives(void *run) {
    const Run *r = (const Run *)run;
    Gpt *gpt = __atomic_load_n(&r->gpt, __ATOMIC_ACQUIRE);
    if (gpt) r->code->give_up(gpt);
}

static void start_watchdog(Run *r) {
    Watchdog *w = &r->watchdog;
    if (ranks_are_launched(r->o.ranks)) w->parent = getppid();
#ifdef DEVICE_CPU
    w->waits = cpu_collective_waits;
#endif
    w->failed = job_failed, w->give_up = give_up_collectives, w->context = r;
    watchdog_start(w, r->o.timeout);
}

// ---- --plan ------------------------------------------------------------------------------------

#ifdef DEVICE_CPU
static int threads_of_ranks(const Options *o, int ranks) {
    return host_threads_alike(o->threads, ranks).n;
}

// This machine, with the measured rates of all threads of its ranks.
static Cluster cluster_here(const Run *r) {
    Cluster c = {};
    GptConfig config = r->config;
    snprintf(c.name, sizeof c.name, "CPU of this kind");
    c.cpu = true;
    const int before = omp_get_max_threads(), ranks = r->ranks.local_world;
    const int all = threads_of_ranks(&r->o, ranks) * ranks, cores = omp_get_num_procs();
    omp_set_num_threads(all < cores ? all : cores);
    r->code->rates(&config, c.seconds);
    omp_set_num_threads(before);
    return c;
}

static bool plans_for_gpus(const Options *o) {
    return o->gpu[0] || o->cluster[0];
}

#define PROCESS_BYTES ((double)(HOST_PROCESS_BYTES + HOST_COLLECTIVES_BYTES))
#else
static int threads_of_ranks(const Options *, int) {
    return 1;
}

static Cluster cluster_here(const Run *) {
    return (Cluster){};
}

static bool plans_for_gpus(const Options *) {
    return true;
}

#define PROCESS_BYTES 0.0
#endif

// The machines that the options name, else those that are here.
static Cluster choose_cluster(const Run *r) {
    const Options *o = &r->o;
    char device[256] = "";
    cudaDeviceProp properties;
    bool gpus = plans_for_gpus(o);
    if (!gpus && (o->network > 0 || o->price > 0))
        die_all("--%s: a plan for this machine has no GPUs; name some with --gpu or --cluster",
                o->network > 0 ? "network" : "price");
    if (gpus && cudaGetDeviceProperties(&properties, 0) == cudaSuccess)
        snprintf(device, sizeof device, "%s", properties.name);
    Cluster c =
        gpus ? cluster_of_options(o->gpu, o->cluster, (double)o->network, (double)o->price, device)
             : cluster_here(r);
    c.per_node = c.cpu ? r->ranks.world : o->gpus_per_node;  // of this machine
    return c;
}

// rows: of the table, before other rooms added theirs.
NORETURN static void answer_plan(Run *r, const Machine *machine, int rows) {
    Question q = {};
    char code[128];
    q.options = &r->o, q.model = r->config.model;
    q.place = (Place){0, r->ranks.world, r->ranks.local_world};
    q.cluster = choose_cluster(r);
    q.real = r->code;
    q.usable = q.cluster.cpu
                   ? fmin(machine->available, machine->memory.amount) / r->ranks.local_world
                   : q.cluster.gpu.memory;
    q.process = q.cluster.cpu ? PROCESS_BYTES : 0;
    q.threads = threads_of_ranks;
    q.more = r->code->buffers(r->gpt), q.own = rows;
    q.steps = r->steps, q.samples = r->train.samples;
    const char *products = choose_products(r);
    bool here = q.cluster.cpu && products;
    snprintf(code, sizeof code, "%s%s%s",
             q.cluster.cpu                                ? r->code->name
             : options_dtypes(&r->o).gather == DTYPE_BF16 ? "bf16 cuda"
                                                          : "fp32 cuda",
             here ? ", products " : "", here ? products : "");
    answer(&q, code);
    flush_stdout();
    if (report_failure.text[0]) die_all("%s", report_failure.text);
    exit(0);
}

// Does it run on GPUs, or is the plan of a run on GPUs?
static bool is_for_gpus(const Options *o) {
#ifdef DEVICE_CPU
    return o->plan != PLAN_NO && (o->gpu[0] || o->cluster[0]);
#else
    (void)o;
    return true;
#endif
}

#ifndef DEVICE_CPU
// Collectives of several communicators run on several streams. If one GPU has room for the first of
// two only, and another for the second, both wait for ever. NCCL 2.26 and later begin them in the
// order in which the host has issued them, the same on all ranks, and side by side still from CUDA
// 12.3 on, else one after the other (user guide, "NCCL_LAUNCH_ORDER_IMPLICIT"). Older ones do not
// know the variable: there it rests on that two collectives fit on a GPU together, as they take few
// multiprocessors (plan/gpus.h; --nccl-ctas: fewer) and the products beside them end. What the user
// has set stays. Before any thread is started, as they may read the environment.
static void order_collectives(void) {
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
}
#endif

static void start(Run *r, int argc, char **argv) {
#ifndef DEVICE_CPU
    order_collectives();
#endif
    ranks_identify();
    options_parse(&r->o, argc, argv);
#ifdef DEVICE_CPU
    const Machine machine = host_look();
#else
    const Machine machine = machine_look("");
#endif
    bool plan = r->o.plan != PLAN_NO;
    // A rank may be missing already when they meet; a thread does not follow into forked ranks.
    const bool watched = !plan && ranks_are_launched(r->o.ranks);
    if (watched) start_watchdog(r);
    // A plan for CPUs is for this machine alone.
    const int per_node = is_for_gpus(&r->o) ? r->o.gpus_per_node : INT_MAX;
    r->ranks = plan ? ranks_imagined(r->o.ranks, per_node)
                    : ranks_start(r->o.ranks, &machine, r->o.timeout);
    if (!plan && !watched) start_watchdog(r);
    if (!plan) start_device(r);
    find_checkpoint(r, argc, argv);
    options_choose_numbers(&r->o, is_for_gpus(&r->o));
    // A plan tries several numbers of ranks.
    if (!plan)
        options_choose_sums(&r->o, is_for_gpus(&r->o), r->ranks.local_world < r->ranks.world);
    if (r->o.generate) settle_generation(r, option_is_given("shard", argc, argv));
    if (!plan) check_purpose(&r->o, r->resumed[0]);
    choose_model(r);
    settle_run(r);
    open_data(r);
    Gpt *gpt = r->writer.gpt = r->code->create(&r->config);
    __atomic_store_n(&r->gpt, gpt, __ATOMIC_RELEASE);  // for the watchdog
    const int rows = r->code->buffers(r->gpt)->count;
    begin_state(r);
    if (r->ranks.rank == 0) outputs_check(&r->o, argc, argv, r->resumed, r->ranks.world);
    if (plan && r->ranks.rank == 0) answer_plan(r, &machine, rows);
    if (plan) exit(0);  // under mpirun one rank answers
    if (!is_quiet(r)) {
        print_start(r);
        print_resume(r);
        flush_stdout();
    }
    check_agreement(r);
    check_memory(r, false);
    join_ranks(r);
    check_memory(r, true);
    if (r->ranks.rank == 0) {
        outputs_open(&r->o);
        // The logs of a run that is only looked at, or converted, stay as they are.
        if (r->o.steps || !r->resumed_here)
            logger_open(&r->logger, &r->o, r->resumed_here, r->first_step);
    }
    r->code->start(r->gpt);
    load_model(r);
    if (!r->o.generate) stop_listen();
}

// ---- saving, and the ends that save first: every rank takes part -------------------------------

static void report_saved(const Run *r, bool complete) {
    if (!complete) return;
    if (r->o.json)
        printf("{\"step\":%ld,\"checkpoint\":true}\n", r->saver.index.state.step);
    else
        printf("step %ld/%ld  saved %s\n", r->saver.index.state.step, r->steps, r->saver.path);
    flush_stdout();
}

// Waits until the checkpoint that is being written is complete.
static void finish_saving(Run *r) {
    process.patient++;
    for (;;) {
        bool writing = ranks_any(&r->ranks, saver_is_writing(&r->saver));
        report_saved(r, saver_advance(&r->saver, !writing));
        if (!ranks_any(&r->ranks, r->saver.state != SAVER_IDLE)) break;
        struct timespec pause = {0, 10 * 1000 * 1000};
        nanosleep(&pause, NULL);
    }
    process.patient--;
}

// What the state has come from: the options and the data of this run, unless it is still as another
// run has left it.
static void describe_origin(const Run *r, CheckpointIndex *x) {
    const CheckpointIndex *before = &r->checkpoint;
    bool untouched = r->resumed[0] && r->state.step == r->first_step;
    x->options = untouched ? json_incref(before->options)
                           : resume_options(&r->o, r->samples_per_step * (uint64_t)r->config.T);
    x->data = untouched ? json_incref(before->data) : r->data ? json_incref(r->data) : json_null();
}

// Begins to save the state as it is, unless it is on the disk already.
static void save(Run *r) {
    finish_saving(r);
    if (r->saver.saved == r->state.step) return;
    audit_replicas(&r->model, &r->ranks);
    CheckpointIndex x = {};
    x.state = r->state;
    x.model = r->config.model;
    x.T = r->config.T;
    for (int a = 0; a < CHECKPOINT_ARRAYS; a++)
        x.bytes[a] = r->code->element_bytes(r->gpt, checkpoint_arrays[a].array);
    x.sums = (uint64_t *)malloc_check(checkpoint_sums(&x.model) * sizeof(uint64_t));
    describe_origin(r, &x);
    process.patient++;
    saver_begin(&r->saver, &x);
    process.patient--;
    r->saved_ms = clock_ms();
}

// Something is wrong on some rank, and the state is whole: saves it if there is a folder for it,
// then that rank says what is wrong.
NORETURN static void end_whole(Run *r) {
    char saved[2 * PATH_BYTES] = "";
    if (r->o.out[0] && r->state.step > r->first_step) {
        save(r);
        finish_saving(r);
        snprintf(saved, sizeof saved, " (the state is saved in %s)", r->saver.path);
    }
    if (r->failure.text[0]) die("%s%s", r->failure.text, saved);
    sleep(10);  // the rank that knows is about to end the job
    die_now();
}

// Somebody has asked the run to stop.
NORETURN static void end_stopped(Run *r) {
    if (r->o.out[0]) save(r), finish_saving(r);
    if (r->ranks.rank == 0 && r->o.out[0])
        fprintf(stderr,
                "train_gpt: stopped after step %ld/%ld, as asked, and saved; to go on: --resume "
                "auto --out %s\n",
                r->state.step, r->steps, r->o.out);
    else if (r->ranks.rank == 0)
        fprintf(stderr,
                "train_gpt: stopped after step %ld/%ld, as asked; without --out nothing is saved\n",
                r->state.step, r->steps);
    logger_close(&r->logger);
    ranks_any(&r->ranks, false);  // nobody leaves before all are done
    ranks_finish(&r->ranks);
    _exit(EXIT_STOPPED);
}

// An empty file that says that the last step has been reached, as llm.c leaves it.
static void mark_done(const Run *r) {
    char path[PATH_BYTES];
    path_print(path, "%s/DONE_%08ld", r->o.out, r->steps);
    fclose_check(fopen_check(path, "a"), path);
}

// Training goes on behind what were last steps. Files that mark_done would not leave so are
// others'.
static void unmark_done(const Run *r) {
    DIR *folder = opendir(r->o.out);
    const struct dirent *entry;
    char path[PATH_BYTES];
    struct stat s;
    while (folder && (entry = readdir(folder)) != NULL) {
        const char *digits = entry->d_name + 5;
        if (strncmp(entry->d_name, "DONE_", 5) || strlen(digits) < 8 ||
            digits[strspn(digits, "0123456789")])
            continue;
        path_print(path, "%s/%s", r->o.out, entry->d_name);
        if (lstat(path, &s) == 0 && S_ISREG(s.st_mode) && s.st_size == 0) unlink(path);
    }
    if (folder) closedir(folder);
}

// ---- validation and samples: every rank takes part ---------------------------------------------

static void run_validation(Run *r, long step) {
    Validation v = validate(&r->val, (uint64_t)r->o.val_batches, &r->tokenizer, r->code, r->gpt,
                            &r->config, &r->ranks, &r->failure);
    double loss = r->outcome.loss = plain_nan(v.loss);
    if (ranks_any(&r->ranks, r->failure.text[0] != 0)) end_whole(r);
    if (r->ranks.rank != 0) return;
    logger_validation(&r->logger, step, loss);
    report_validation(r->o.json, step, r->steps, loss, v.bits);
}

static void run_eval(Run *r, long step) {
    int right = eval_run(&r->eval, r->code, r->gpt, &r->config, &r->ranks);
    if (r->ranks.rank != 0) return;
    logger_eval(&r->logger, step, right, r->eval.nexamples);
    report_eval(r->o.json, step, r->steps, right, r->eval.nexamples);
}

static void run_samples(Run *r, long step) {
    uint32_t stream = (uint32_t)step * (uint32_t)r->o.samples;
    for (int i = 0; i < r->o.samples; i++) {
        Text t = writer_write(&r->writer, r->o.sample_tokens, stream + (uint32_t)i, false);
        if (r->ranks.rank == 0) {
            report_sample(r->o.json, step, r->steps, t.text, t.bytes);
            logger_sample(&r->logger, step, t.text, t.bytes);
        }
        free(t.text);
    }
}

// ---- the training loop -------------------------------------------------------------------------

static bool due(int every, long step) {
    return every > 0 && step % every == 0;
}

// This rank's micro-batches of a step: in the global order, micro-step by micro-step, a micro-batch
// of each rank. samples: used up before the step.
static DataSpan step_span(const Run *r, uint64_t samples) {
    uint64_t B = (uint64_t)r->config.B, first = r->o.overfit ? 0 : samples;
    DataSpan span = {first + (uint64_t)r->ranks.rank * B, (uint64_t)r->ranks.world * B,
                     r->micro_steps};
    return span;
}

// --skip-loss and --skip-norm: is this step's gradient to be left out? All ranks decide alike.
static bool is_outlier(Run *r) {
    const Options *o = &r->o;
    if (o->skip_loss == 0 && o->skip_norm == 0) return false;
    GptStep s = r->code->measure(r->gpt);
    if (!isfinite(s.loss) || !isfinite(s.norm)) return false;  // left out anyway
    bool loss = outliers_add(&r->state.losses, s.loss, o->skip_loss);
    bool norm = outliers_add(&r->state.norms, s.norm, o->skip_norm);
    return ranks_any(&r->ranks, loss || norm);
}

static uint32_t own_notes(Run *r) {
    uint32_t notes = 0;
    if (!r->failure.text[0]) r->failure = report_failure;
    if (stop_signal) notes |= NOTE_STOP;
    if (r->failure.text[0]) notes |= NOTE_FAILURE;
    if (saver_is_writing(&r->saver)) notes |= NOTE_WRITING;
    if (r->ranks.rank == 0 && r->o.checkpoint_minutes &&
        clock_ms() - r->saved_ms > 60e3 * r->o.checkpoint_minutes)
        notes |= NOTE_TIME;
    return notes;
}

// Computes the first micro-batch of the rank before this one.
static void replay_neighbour(Run *r) {
    uint64_t first = r->o.overfit ? 0 : r->state.samples;
    DataSpan span = {first + (uint64_t)audit_neighbour(&r->ranks) * (uint64_t)r->config.B, 0, 1};
    if (!dataloader_fetch(&r->train, span, r->code->inputs(r->gpt, r->micro_steps), &r->failure))
        die("%s", r->failure.text);
    r->code->replay(r->gpt);
}

// The data of the next step are there when this one ends, or are known not to be: nothing but a
// whole step is ever begun.
static GptStep train_step(Run *r, long step, double lr, bool *outlier) {
    int *inputs = r->code->inputs(r->gpt, 0);
    uint64_t next = r->state.samples + r->samples_per_step;
    if (!dataloader_fetch(&r->train, step_span(r, r->state.samples), inputs, &r->failure))
        die("%s", r->failure.text);  // of the first step: nothing is lost
    const Options *o = &r->o;
    bool ahead = step + 1 < r->steps, audit = due(o->audit_every, step + 1);
    if (ahead) dataloader_prefetch(&r->train, step_span(r, next));
    if (audit) r->code->record(r->gpt, true);
    for (int i = 0; i < r->micro_steps; i++) {
        r->code->micro_step(r->gpt, i);
        if (audit && i == 0) r->code->record(r->gpt, false);
        process_alive();
    }
    if (audit) replay_neighbour(r);
    *outlier = is_outlier(r);
    GptUpdate update = {(float)lr,    o->beta1, o->beta2, o->eps,   o->weight_decay,
                        o->grad_clip, step,     o->seed,  *outlier, due(o->ratio_every, step + 1)};
    r->code->update(r->gpt, &update);
    if (ahead) dataloader_wait(&r->train, &r->failure);
    GptStep s = r->code->finish_step(r->gpt, own_notes(r));
    if (audit) audit_gradients(&r->model, &r->ranks), audit_replicas(&r->model, &r->ranks);
    process_alive();
    return s;
}

// Counts an update that was left out.
static void count_skips(Run *r, long step, const GptStep *s, bool outlier) {
    TrainState *t = &r->state;
    bool finite = isfinite(s->norm) && isfinite(s->loss);
    t->skips_in_a_row = finite ? 0 : t->skips_in_a_row + 1;
    outcome_add(&r->outcome, finite, t->skips_in_a_row);
    if (finite && !outlier) return;
    t->skips++;
    if (r->ranks.rank == 0)
        fprintf(
            stderr,
            "train_gpt: step %ld/%ld: loss %g, gradient norm %g%s; the update is skipped (%d so "
            "far)\n",
            step + 1, r->steps, plain_nan(s->loss), plain_nan(s->norm),
            outlier ? ", an outlier" : "", t->skips);
    if (t->skips_in_a_row >= SKIPS_IN_A_ROW && r->ranks.rank == 0)
        fails(&r->failure, "%d steps in a row without a finite gradient: %s", t->skips_in_a_row,
              outcome_advice(&r->outcome));
}

static void measure_step(Run *r, long step, double lr, double ms, const GptStep *s) {
    const ModelConfig *m = &r->config.model;
    double tokens = (double)r->config.B * r->config.T * r->ranks.world * r->micro_steps;
    double flops = 6.0 * (double)model_parameters(m) + 6.0 * m->L * (double)m->C * r->config.T;
    r->ms_mean = step < r->first_step + 2 ? ms : 0.95 * r->ms_mean + 0.05 * ms;
    StepMetrics x = {};
    x.step = step, x.steps = r->steps, x.lr = lr, x.ms = ms;
    x.loss = plain_nan(s->loss), x.norm = plain_nan(s->norm);
    x.tokens_per_second = 1e3 * tokens / ms;
    x.mfu = r->peak > 0 ? x.tokens_per_second * flops / (r->peak * r->ranks.world) : NAN;
    x.comm_share = s->counters.wait_ms / ms;
    x.gathered = s->counters.gathered_bytes, x.reduced = s->counters.reduced_bytes;
    x.allreduced = s->counters.allreduced_bytes, x.collectives = s->counters.collectives;
    x.update_ratio = s->ratio, x.skipped = r->state.skips;
    x.elapsed = r->logger.elapsed + 1e-3 * (clock_ms() - r->began_ms);
    x.epoch = (double)r->state.samples / (double)r->train.samples;
    x.tokens = r->state.tokens;
    x.memory = buffers_bytes(r->code->buffers(r->gpt), NULL);
    r->outcome.loss = x.loss;
    if (r->ranks.rank != 0) return;
    logger_step(&r->logger, &x);
    bool shown = step == 0 || due(r->o.log_every, step + 1) || step + 1 == r->steps;
    if (shown) report_step(r->o.json, &x, r->ms_mean * (double)(r->steps - step - 1));
}

static void write_trace(Run *r) {
    char path[PATH_BYTES];
    rank_path(path, r->o.trace, r->ranks.rank);
    r->code->trace_stop(r->gpt, path);
}

// Decides, with all ranks alike, what follows from a step.
static void after_step(Run *r, const GptStep *s) {
    bool failed = (s->notes & NOTE_FAILURE) || r->state.skips_in_a_row >= SKIPS_IN_A_ROW;
    report_saved(r, saver_advance(&r->saver, !(s->notes & NOTE_WRITING)));
    if (failed) end_whole(r);
    if (s->notes & NOTE_STOP) end_stopped(r);
    bool time = s->notes & NOTE_TIME;
    if (r->saver.background && (time || due(r->o.checkpoint_every, r->state.step))) save(r);
}

static void train(Run *r) {
    const Options *o = &r->o;
    Schedule schedule = schedule_of(r);
    long first = r->first_step, traced = r->steps > first + 1 ? first + 1 : first;
    r->began_ms = r->saved_ms = clock_ms();
    // The checkpoints of a run that this one does not go on from are not its own.
    if (o->out[0] && r->ranks.rank == 0 && r->steps > first)
        checkpoint_set_aside(o->out, r->resumed_here ? first : -1), unmark_done(r);
    for (long step; (step = r->state.step) <= r->steps;) {
        process.step = step;
        bool last = step == r->steps;
        bool validates = due(o->val_every, step) || last;
        if (o->val[0] && validates) run_validation(r, step);
        if (o->eval[0] && validates) run_eval(r, step);
        if (o->sample_every && (due(o->sample_every, step) || last)) run_samples(r, step);
        if (last) break;
        double began = clock_ms(), lr = schedule_lr(&schedule, step);
        if (o->trace[0] && step == traced) r->code->trace_start(r->gpt, ranks_moment(&r->ranks));
        bool outlier;
        GptStep s = train_step(r, step, lr, &outlier);
        if (o->trace[0] && step == traced) write_trace(r);
        r->state.step++;
        r->state.samples += r->samples_per_step;
        r->state.tokens += r->samples_per_step * (uint64_t)r->config.T;
        count_skips(r, step, &s, outlier);
        const double ms = clock_ms() - began;
        // The first step of a process is slower than others.
        if (step > first) audit_cost_add(&r->audits, due(o->audit_every, step + 1), ms);
        measure_step(r, step, lr, ms, &s);
        after_step(r, &s);
    }
    process.step = -1;
    if (!is_quiet(r)) audit_cost_print(&r->audits);
}

// The token that ends a text, -1: unknown.
static int end_of_text(const Run *r) {
    if (r->tokenizer.V) return r->tokenizer.eot;
    return r->config.model.V == GPT2_VOCAB ? GPT2_EOT : -1;
}

static void finish(Run *r) {
    process.patient++;
    if (r->saver.background)
        save(r), finish_saving(r);
    else
        audit_replicas(&r->model, &r->ranks);
    if (r->o.export_hf[0]) {
        hf_save(&r->model, r->o.export_hf, end_of_text(r));
        if (!is_quiet(r)) printf("wrote %s\n", r->o.export_hf);
    }
    if (r->o.export_model[0]) {
        model_file_save(&r->model, GPT_PARAMETERS, r->o.export_model, false);
        if (!is_quiet(r)) printf("wrote %s\n", r->o.export_model);
    }
    if (r->ranks.rank == 0) flush_stdout();
    if (report_failure.text[0]) die("%s", report_failure.text);
    outcome_check(&r->outcome);
    if (r->saver.background && r->ranks.rank == 0) mark_done(r);
    watchdog_stop(&r->watchdog);
    logger_close(&r->logger);
    if (r->o.train[0]) dataloader_close(&r->train);
    if (r->o.val[0]) dataloader_close(&r->val);
    if (r->o.eval[0]) eval_close(&r->eval);
    if (r->config.writes) writer_finish(&r->writer);
    if (r->tokenizer.V) tokenizer_close(&r->tokenizer);
    r->code->finish(r->gpt);
    ranks_finish(&r->ranks);
}

// A closed stdin, stdout or stderr must not become the number of a file that the run opens.
static void keep_standard_files(void) {
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) _exit(1);
}

int main(int argc, char **argv) {
#ifdef DEVICE_CPU
    host_limit_polling(argv);
#endif
    keep_standard_files();
    signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit (ulimit -f) fails and is reported as such
    signal(SIGPIPE, SIG_IGN);  // so does one to a reader that has gone, as in `| head`
    static Run run;
    start(&run, argc, argv);
    if (run.o.generate)
        generate(&run.writer, &run.o);
    else
        train(&run);
    finish(&run);
    return 0;
}
