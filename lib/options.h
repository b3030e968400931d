// lib/options.h: every option of the program in one table. It makes the struct, the defaults,
// --help, the parser of flags and of --config files, the range checks, the echo and the saved
// config file.
//
// A new option is one line of OPTION_TABLE; `--tokens-per-step` is the field `tokens_per_step`.
// A command line is read from left to right and a --config file at its place in it; of what is
// given twice the later holds.
// A CHOICE gives an int field (its enum below follows the order of the choices) and, for choices
// that end in ":K", the number in NAME_k. Short names are llm.c's, and "=0" behind a choice is
// llm.c's number for it.
#pragma once

#include "files.h"
#include "schedule.h"

#include <ctype.h>
#include <math.h>

enum { SHARD_FULL, SHARD_GRADS, SHARD_STATES, SHARD_NONE, SHARD_HYBRID_NODE, SHARD_HYBRID };
enum { UNIT_MATRIX, UNIT_HALF, UNIT_LAYER, UNIT_LAYERS };
enum { RECOMPUTE_NONE, RECOMPUTE_GELU, RECOMPUTE_NORM, RECOMPUTE_LAYER, RECOMPUTE_EVERY };
enum { ACCUMULATE_SHARD, ACCUMULATE_LOCAL };
enum { PRECISION_AUTO, PRECISION_FP32, PRECISION_TF32, PRECISION_BFLOAT16, PRECISION_FP64_MOMENTS };
enum { DTYPE_POLICY, DTYPE_FP32, DTYPE_BF16, DTYPE_FP64 };
enum { REDUCE_AUTO, REDUCE_ORDERED, REDUCE_FAST };
enum { PLAN_NO, PLAN_YES, PLAN_BEST };
// What a TEXT names (lib/outputs.h): files by a pattern, a file or the files of a folder.
typedef enum { NO_PATH, INPUT_FILES, INPUT, OUTPUT_FILE, OUTPUT_FOLDER } OptionPath;

#define VERSION "0.1"
#define OPTION_MAX 1e9
// clang-format off
// kind   name             short default        range, choices or path      help
#define OPTION_TABLE(GROUP, INT, SIZE, REAL, TEXT, CHOICE, FLAG) \
GROUP("Model") \
TEXT  (model,           "e", "gpt2:L=6,C=384,NH=6,T=256", INPUT,        "gpt2:d6|d12|..|d84, gpt3:c384..c12288, gpt2:L=..,C=..,NH=..,T=..[,V=..], an llm.c model.bin, or the folder of a Hugging Face GPT-2") \
GROUP("Data") \
TEXT  (train,           "i", "", INPUT_FILES,                           "training data: llm.c token shards (.bin) or plain text files; a glob, a,b or {a,b}.txt") \
TEXT  (val,             "j", "", INPUT_FILES,                           "validation data, of the same kind; empty: no validation") \
TEXT  (eval,            "",  "", INPUT,                                 "examples with several endings, at every validation the share of those whose right one the model finds: llm.c's hellaswag_val.bin") \
TEXT  (tokenizer,       "",  "", INPUT,                                 "llm.c's tokenizer.bin: texts and prompts are read as its tokens, samples written in them; without it texts are bytes") \
TEXT  (token_folder,    "",  "", NO_PATH,                               "folder in which the tokens of texts are kept and found again; empty: beside each text") \
FLAG  (overfit,         "a",                                            "train on the first batch over and over") \
GROUP("Batch") \
INT   (batch,           "b", "4",   1, 65536,                           "sequences of a micro-batch on each rank (B)") \
INT   (seq,             "t", "0",   0, 1 << 20,                         "tokens of a sequence (T); 0: as long as the model allows") \
SIZE  (tokens_per_step, "d", "0",   0, 1e15,                            "tokens of an optimizer step over all ranks; 0: one micro-batch per rank") \
GROUP("Optimizer") \
INT   (steps,           "x", "-1",  -1, OPTION_MAX,                     "optimizer steps; -1: one epoch of the training data; 0: only validate, sample and export") \
REAL  (lr,              "l", "3e-4", 0, 1e3,                            "highest learning rate") \
INT   (warmup,          "u", "0",   0, OPTION_MAX,                      "steps over which the learning rate rises linearly") \
CHOICE(schedule,        "k", "cosine", "constant|linear|cosine|wsd",    "learning rate after the warm-up; wsd decays in the last fifth of the steps") \
REAL  (final_lr,        "q", "0.1", 0, 1,                               "where the learning rate falls to, one step after the last, as a fraction of the highest") \
REAL  (weight_decay,    "c", "0.1", 0, 1e3,                             "decoupled weight decay of the matrices") \
REAL  (beta1,           "",  "0.9", 0, 0.999999,                        "AdamW's decay of the first moment") \
REAL  (beta2,           "",  "0.95", 0, 0.999999,                       "AdamW's decay of the second moment") \
REAL  (eps,             "",  "1e-8", 1e-30, 1,                          "AdamW's epsilon, outside the root") \
REAL  (grad_clip,       "",  "1",   0, 1e9,                             "limit of the global gradient norm; 0: no limit") \
SIZE  (seed,            "",  "42",  0, 1.8446744073709552e19,           "of the initial weights, the data order, the samples and the rounding") \
REAL  (skip_loss,       "sl", "0",  0, 1e9,                             "leave out an update whose loss is this many standard deviations above the last 128; 0: never") \
REAL  (skip_norm,       "sg", "0",  0, 1e9,                             "the same of the gradient norm") \
GROUP("Validation and samples") \
INT   (val_every,       "v", "250", 0, OPTION_MAX,                      "steps between validations; 0: only at the end") \
INT   (val_batches,     "m", "20",  1, OPTION_MAX,                      "micro-batches of a validation, over all ranks") \
INT   (sample_every,    "s", "0",   0, OPTION_MAX,                      "steps between text samples; 0: none") \
INT   (sample_tokens,   "g", "256", 1, 1 << 20,                         "tokens of a sample") \
TEXT  (prompt,          "",  "", NO_PATH,                               "text that samples and --generate begin with; with --generate, -: each line of stdin is one") \
INT   (samples,         "",  "1",   1, 65536,                           "texts for each prompt") \
INT   (generate,        "",  "0",   0, OPTION_MAX,                      "do not train: print a text of at most so many tokens after the prompt, with --model FILE or --resume; 0: train") \
REAL  (temperature,     "",  "0.8", 0, 100,                             "of the sampling; 0: always the likeliest token") \
INT   (top_k,           "",  "0",   0, OPTION_MAX,                      "sample among the k likeliest tokens; 0: among all") \
REAL  (top_p,           "",  "1",   0, 1,                               "and among the fewest likeliest of them that have this share of the probability; 1: among all") \
GROUP("Results") \
TEXT  (out,             "o", "", OUTPUT_FOLDER,                         "folder for main.log, metrics.jsonl and options.cfg, those of an earlier run are kept as .1; empty: no files") \
TEXT  (export_model,    "",  "", OUTPUT_FILE,                           "write the trained model to this file in llm.c's model.bin format; one that is there is kept as .1") \
TEXT  (export_hf,       "",  "", OUTPUT_FOLDER,                         "write the trained model to this folder as a Hugging Face GPT-2: config.json, model.safetensors") \
GROUP("Checkpoints and audits") \
INT   (checkpoint_every,"n", "0",   0, OPTION_MAX,                      "steps between checkpoints in OUT/checkpoints, and one at the end; 0: none") \
INT   (checkpoint_minutes,"","0",   0, OPTION_MAX,                      "minutes between checkpoints; 0: by steps only") \
INT   (keep,            "nk", "0",  0, OPTION_MAX,                      "the newest checkpoints that are kept; 0: all") \
INT   (keep_every,      "nm", "0",  0, OPTION_MAX,                      "checkpoints of every so many steps are kept for good; 0: none") \
INT   (audit_every,     "",  "0",   0, OPTION_MAX,                      "steps between audits: another rank computes a micro-batch again, and both compare; 0: none") \
TEXT  (resume,          "y", "0", NO_PATH,                              "auto or 1: go on from the newest checkpoint in --out, or start where there is none; or the folder of a checkpoint, or of a run; 0: start. Options that are not given are the checkpoint's, but for those of machines and results") \
GROUP("Sharding") \
INT   (ranks,           "",  "0",   0, 4096,                            "start this many local ranks without MPI; 0: as launched") \
INT   (threads,         "",  "0",   0, 4096,                            "threads of a rank; 0: OMP_NUM_THREADS, else its share of the cores it may use") \
CHOICE(shard,           "z", "full", "full=3|grads=2|states=1|none=0|hybrid:node|hybrid:K", "what is sharded: parameters, gradients and states (full, ZeRO-3), gradients and states, states, nothing, or all within groups of K ranks") \
CHOICE(unit,            "",  "layer", "matrix|half|layer|layers:K",     "what travels in one collective: a weight matrix, attention or MLP, a block, K blocks") \
INT   (gather_buffers,  "",  "2",   1, 64,                              "units whose gathered parameters are held at a time") \
INT   (grad_buffers,    "",  "2",   1, 2,                               "units whose full gradients are held at a time") \
INT   (prefetch,        "",  "-1",  -1, 63,                             "units that are gathered ahead of their use; -1: as many as the buffers allow") \
INT   (nccl_ctas,       "",  "0",   0, 32,                              "thread blocks of a GPU that a collective may take; 0: as NCCL chooses") \
CHOICE(recompute,       "r", "none", "none=0|gelu=1|norm=2|layer|every:K", "what the backward computes again instead of keeping: GELU, also LayerNorm, whole blocks, K blocks at a time") \
CHOICE(accumulate,      "",  "shard", "shard|local",                    "micro-steps add to the reduced shard, or locally to full gradients that are reduced once") \
GROUP("Numbers") \
CHOICE(precision,       "",  "auto", "auto|fp32|tf32|bf16|fp64-moments", "of the computation; auto: bf16 on GPUs, fp32 on CPUs; tf32: fp32, but products of numbers rounded to TF32 (GPUs); the next four options override its parts") \
CHOICE(gather_dtype,    "",  "policy", "policy|fp32|bf16",              "of gathered parameters and of the computation") \
CHOICE(reduce_dtype,    "",  "policy", "policy|fp32|bf16",              "of gradients on the wire") \
CHOICE(grad_dtype,      "",  "policy", "policy|fp32|bf16",              "of gradient shards") \
CHOICE(moment_dtype,    "",  "policy", "policy|fp32|bf16|fp64",         "of AdamW's two moments") \
CHOICE(reduce,          "",  "auto", "auto|ordered|fast",               "order of the gradient sum: by micro-batch, the same bits for any number of ranks, or the library's own; auto: ordered, but on GPUs of several nodes fast") \
INT   (logits_rows,     "",  "0",   0, 1 << 20,                         "rows of logits that exist at a time, more are faster; they cut a sum, so the last bits follow them; 0: 16384 on GPUs, 512 on CPUs") \
GROUP("Planning") \
CHOICE(plan,            "",  "no", "no=0|yes=1|best",                   "check everything and say what the run needs, how long it takes and what it costs, without doing it; best: also look for better options") \
TEXT  (gpu,             "",  "", NO_PATH,                                       "GPU of the plan: a100-40gb, a100-80gb, h100-sxm, h200, b200, l40s, rtx-4090; empty: what is here") \
INT   (gpus_per_node,   "",  "8",   1, 1024,                            "ranks of a node in the plan") \
REAL  (network,         "",  "0",   0, 1e6,                             "Gbit/s of a node, all its adapters together; 0: as nodes with such GPUs are sold") \
TEXT  (cluster,         "",  "", INPUT,                                       "file with lines `name = value` of your own machines, see doc/scaling.md") \
SIZE  (tokens,          "",  "0",   0, 1e15,                            "tokens that the planned run trains on; 0: those of --steps, else 20 a parameter") \
REAL  (price,           "",  "0",   0, 1e6,                             "of a GPU for an hour, for the costs") \
REAL  (failures,        "",  "4.7e-4", 0, 24,                           "unexpected failures in a day for each GPU, as in the training of Llama 3 405B") \
REAL  (write_speed,     "",  "2",   0.001, 1e6,                         "GB/s at which a node writes checkpoints") \
GROUP("Running") \
INT   (timeout,         "",  "600", 1, 1000000,                         "seconds until a silent collective ends the job") \
TEXT  (trace,           "",  "", OUTPUT_FILE,                           "write a timeline of the steps to this file (JSON for Perfetto)") \
INT   (log_every,       "",  "1",   1, OPTION_MAX,                      "steps between progress lines; the files of --out have every step") \
INT   (ratio_every,     "",  "10",  0, OPTION_MAX,                      "steps between measurements of the update's norm over the parameters', for metrics.jsonl; 0: never") \
FLAG  (json,            "",                                             "print step lines as JSON") \
TEXT  (config,          "",  "", INPUT,                                 "read options from a file of lines `name = value`, at this place of the command line") \
FLAG  (version,         "",                                             "print the version and exit") \
FLAG  (help,            "",                                             "print this and exit")
// clang-format on

// ---- the struct, from the table ----------------------------------------------------------------

#define OPTION_NONE(...)
#define OPTION_INT(name, ...) int name;
#define OPTION_SIZE(name, ...) uint64_t name;
#define OPTION_REAL(name, ...) float name;
#define OPTION_TEXT(name, ...) const char *name;
#define OPTION_CHOICE(name, ...) int name, name##_k;
#define OPTION_FLAG(name, ...) bool name;
typedef struct {
    OPTION_TABLE(OPTION_NONE, OPTION_INT, OPTION_SIZE, OPTION_REAL, OPTION_TEXT, OPTION_CHOICE,
                 OPTION_FLAG)
} Options;

typedef enum {
    KIND_GROUP,
    KIND_INT,
    KIND_SIZE,
    KIND_REAL,
    KIND_TEXT,
    KIND_CHOICE,
    KIND_FLAG
} OptionKind;

typedef struct {
    OptionKind kind;
    const char *name;      // as the field; '_' is written '-' outside. A group: its title
    const char *alias;     // llm.c's flag, one letter or two; "": none
    const char *standard;  // the default, as a user would write it
    double min, max;       // of numbers
    const char *choices;
    OptionPath path;  // of texts
    const char *help;
    size_t offset;  // of the field in Options
} Option;

#define OPTION_AT(name) offsetof(Options, name)
#define OPTION_ROW_GROUP(title) {KIND_GROUP, title, "", "", 0, 0, "", NO_PATH, "", 0},
#define OPTION_ROW_INT(name, alias, standard, min, max, help)                                      \
    {KIND_INT, #name, alias, standard, min, max, "", NO_PATH, help, OPTION_AT(name)},
#define OPTION_ROW_SIZE(name, alias, standard, min, max, help)                                     \
    {KIND_SIZE, #name, alias, standard, min, max, "", NO_PATH, help, OPTION_AT(name)},
#define OPTION_ROW_REAL(name, alias, standard, min, max, help)                                     \
    {KIND_REAL, #name, alias, standard, min, max, "", NO_PATH, help, OPTION_AT(name)},
#define OPTION_ROW_TEXT(name, alias, standard, path, help)                                         \
    {KIND_TEXT, #name, alias, standard, 0, 0, "", path, help, OPTION_AT(name)},
#define OPTION_ROW_CHOICE(name, alias, standard, choices, help)                                    \
    {KIND_CHOICE, #name, alias, standard, 0, 0, choices, NO_PATH, help, OPTION_AT(name)},
#define OPTION_ROW_FLAG(name, alias, help)                                                         \
    {KIND_FLAG, #name, alias, "0", 0, 0, "", NO_PATH, help, OPTION_AT(name)},
static const Option option_table[] = {
    OPTION_TABLE(OPTION_ROW_GROUP, OPTION_ROW_INT, OPTION_ROW_SIZE, OPTION_ROW_REAL,
                 OPTION_ROW_TEXT, OPTION_ROW_CHOICE, OPTION_ROW_FLAG)};
enum { OPTION_ROWS = sizeof option_table / sizeof option_table[0] };

// ---- names -------------------------------------------------------------------------------------

// The name as users write it, in a buffer of the caller's.
typedef struct {
    char text[32];
} OptionName;

static inline OptionName option_name(const Option *row) {
    OptionName n;
    snprintf(n.text, sizeof n.text, "%s", row->name);
    for (char *c = n.text; *c; c++)
        if (*c == '_') *c = '-';
    return n;
}

static inline const Option *option_find(const char *name) {
    for (int i = 0; i < OPTION_ROWS; i++)
        if (option_table[i].kind != KIND_GROUP && !strcmp(option_name(&option_table[i]).text, name))
            return &option_table[i];
    return NULL;
}

static inline const Option *option_find_alias(const char *alias) {
    if (!strcmp(alias, "af")) alias = "a";  // llm.c looks no further than the a
    for (int i = 0; i < OPTION_ROWS; i++)
        if (option_table[i].alias[0] && !strcmp(option_table[i].alias, alias))
            return &option_table[i];
    return NULL;
}

// Levenshtein's distance: insertions, deletions and substitutions that turn a into b.
static inline int edit_distance(const char *a, const char *b) {
    enum { LONGEST = 64 };
    int m = (int)strlen(b), row[LONGEST + 1];
    if (m > LONGEST) return m;
    for (int j = 0; j <= m; j++) row[j] = j;
    for (int i = 1; *a; i++, a++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int above = row[j], best = diagonal + (*a != b[j - 1]);
            if (above + 1 < best) best = above + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = above;
            row[j] = best;
        }
    }
    return row[m];
}

// ---- options that there are not ----------------------------------------------------------------

// llm.c's flags that this program has no use for, or not yet. They are refused and not skipped: a
// run that is quietly not the one asked for is worse than none. Only the value with which llm.c
// itself does nothing of the kind passes.
static const struct {
    const char *flag, *neutral /* "": none, *: any */, *was, *instead;
} llmc_flags[] = {
    {"h", "0", "HellaSwag evaluation", "use --eval FILE"},
    {"lg", "-1", "steps between logs of the GPU's state",
     "leave it out, the program has no such log"},
    {"f", "0", "TF32 products", "use --precision tf32|bf16"},
    {"w", "1", "fp32 master weights", "leave it out, parameter shards are always fp32"},
    {"ge", "*", "fusion of GELU into products", "leave it out, it changes no result"},
    {"pn", "", "number of processes", "use mpirun -n N or --ranks N"},
    {"pr", "", "rank of this process", "leave it out, mpirun or --ranks gives it"},
    {"pg", "", "GPUs of a node", "leave it out, the ranks of a node are counted"},
    {"pi", "mpi", "how NCCL starts", "leave it out, it starts over MPI or --ranks"},
    {"pm", "mpi", "how NCCL starts", "leave it out, it starts over MPI or --ranks"},
    {"ps", "", "address of the server that starts NCCL",
     "leave it out, it starts over MPI or --ranks"},
    {"pf", "", "folder through which NCCL starts", "leave it out, it starts over MPI or --ranks"},
    {"pp", "", "folder through which NCCL starts", "leave it out, it starts over MPI or --ranks"},
};
enum { LLMC_FLAGS = sizeof llmc_flags / sizeof llmc_flags[0] };

// The row of a flag of llm.c's, -1: it has no such flag.
static inline int llmc_find(const char *flag) {
    int i = 0;
    while (i < LLMC_FLAGS && strcmp(llmc_flags[i].flag, flag)) i++;
    return i < LLMC_FLAGS ? i : -1;
}

static inline bool llmc_is_neutral(int row, const char *value) {
    const char *neutral = llmc_flags[row].neutral;
    char *end;
    double number = strtod(value, &end);
    if (neutral[0] == '*') return true;
    if (isalpha((unsigned char)neutral[0])) return !strcmp(value, neutral);
    return neutral[0] && end != value && !*end && number == atof(neutral);
}

// What other trainers call an option.
static const struct {
    const char *theirs, *ours;
} other_names[] = {
    {"learning-rate", "lr"},
    {"max-lr", "lr"},
    {"min-lr", "final-lr"},
    {"max-iters", "steps"},
    {"max-steps", "steps"},
    {"num-steps", "steps"},
    {"train-steps", "steps"},
    {"iterations", "steps"},
    {"epochs", "steps"},
    {"num-train-epochs", "steps"},
    {"batch-size", "batch"},
    {"micro-batch-size", "batch"},
    {"per-device-train-batch-size", "batch"},
    {"total-batch-size", "tokens-per-step"},
    {"global-batch-size", "tokens-per-step"},
    {"gradient-accumulation-steps", "tokens-per-step"},
    {"grad-accum", "tokens-per-step"},
    {"block-size", "seq"},
    {"context-length", "seq"},
    {"seq-len", "seq"},
    {"seq-length", "seq"},
    {"sequence-length", "seq"},
    {"max-seq-len", "seq"},
    {"warmup-steps", "warmup"},
    {"warmup-iters", "warmup"},
    {"lr-warmup-iters", "warmup"},
    {"lr-scheduler", "schedule"},
    {"lr-decay-style", "schedule"},
    {"wd", "weight-decay"},
    {"clip-grad", "grad-clip"},
    {"max-grad-norm", "grad-clip"},
    {"gradient-clip", "grad-clip"},
    {"data", "train"},
    {"dataset", "train"},
    {"data-path", "train"},
    {"input", "train"},
    {"train-file", "train"},
    {"valid", "val"},
    {"validation", "val"},
    {"validation-file", "val"},
    {"output", "out"},
    {"out-dir", "out"},
    {"output-dir", "out"},
    {"log-dir", "out"},
    {"eval-interval", "val-every"},
    {"eval-every", "val-every"},
    {"eval-steps", "val-every"},
    {"eval-iters", "val-batches"},
    {"nproc", "ranks"},
    {"nproc-per-node", "ranks"},
    {"num-gpus", "ranks"},
    {"world-size", "ranks"},
    {"num-threads", "threads"},
    {"zero-stage", "shard"},
    {"sharding-strategy", "shard"},
    {"dtype", "precision"},
    {"mixed-precision", "precision"},
    {"gradient-checkpointing", "recompute"},
    {"activation-checkpointing", "recompute"},
    {"recompute-granularity", "recompute"},
    {"init-from", "model"},
    {"load", "model"},
    {"n-layer", "model"},
    {"n-head", "model"},
    {"n-embd", "model"},
    {"hidden-size", "model"},
    {"num-layers", "model"},
    {"save", "export-model"},
    {"sample-prompt", "prompt"},
    {"start", "prompt"},
    {"num-samples", "samples"},
    {"max-new-tokens", "generate"},
    {"n-predict", "generate"},
    {"profile", "trace"},
    {"dry-run", "plan"},
    {"train-batch-size", "batch"},
    {"device-batch-size", "batch"},
    {"lr-scheduler-type", "schedule"},
    {"save-every", "checkpoint-every"},
    {"save-steps", "checkpoint-every"},
    {"save-interval", "checkpoint-every"},
    {"save-iters", "checkpoint-every"},
    {"save-total-limit", "keep"},
    {"log-interval", "log-every"},
    {"logging-steps", "log-every"},
    {"val-data", "val"},
    {"train-data", "train"},
    {"seed-everything", "seed"},
    {"gpus", "ranks"},
    {"nnodes", "ranks"},
    {"n-layers", "model"},
    {"n-heads", "model"},
    {"vocab-size", "model"},
    {"bf16", "precision"},
    {"fp16", "precision"},
    {"amp", "precision"},
    {"resume-from-checkpoint", "resume"},
};

// The option that a wrong name may have meant; its text is "" if none comes near.
static inline OptionName option_nearest(const char *name) {
    OptionName nearest = {""}, dashed;
    snprintf(dashed.text, sizeof dashed.text, "%.31s", name);
    for (char *c = dashed.text; *c; c++)
        if (*c == '_') *c = '-';
    for (size_t i = 0; i < sizeof other_names / sizeof other_names[0]; i++)
        if (!strcmp(dashed.text, other_names[i].theirs))
            snprintf(nearest.text, sizeof nearest.text, "%s", other_names[i].ours);
    int best = nearest.text[0] ? 0 : (int)strlen(dashed.text) / 2 + 1;
    for (int i = 0; i < OPTION_ROWS; i++) {
        if (option_table[i].kind == KIND_GROUP) continue;
        OptionName candidate = option_name(&option_table[i]);
        int distance = edit_distance(dashed.text, candidate.text);
        if (distance < best) best = distance, nearest = candidate;
    }
    return nearest;
}

// "--bacth: did you mean --batch?" of an unknown option as it was written; dashes "" in a file.
static inline void option_explain(const char *dashes, const char *name, char *out, size_t bytes) {
    bool is_short = !strcmp(dashes, "-");
    char alias[8] = "";  // of -x2, -x=2
    snprintf(alias, sizeof alias, "%.*s", (int)strcspn(name, "=0123456789.+-"), name);
    const char *value = name + strlen(alias) + (name[strlen(alias)] == '=');
    int llmc = is_short ? llmc_find(name) : -1;
    OptionName nearest = option_nearest(name);
    if (llmc >= 0)
        snprintf(out, bytes, "-%s, in llm.c `%s`: %s", name, llmc_flags[llmc].was,
                 llmc_flags[llmc].instead);
    else if (is_short && alias[0] && *value && option_find_alias(alias))
        snprintf(out, bytes, "-%s: did you mean -%s %s?", name, alias, value);
    else if (nearest.text[0])
        snprintf(out, bytes, "%s%s: did you mean %s%s?", dashes, name, dashes[0] ? "--" : "",
                 nearest.text);
    else
        snprintf(out, bytes, "%s%s: --help lists all options", dashes, name);
}

// ---- values ------------------------------------------------------------------------------------

// The i-th entry of "none=0|gelu=1|every:K": its name without "=0" and ":K", llm.c's number (-1:
// none), and whether a number K follows. False behind the last.
typedef struct {
    char name[24];
    int number;
    bool takes_k;
} OptionChoice;

static inline bool option_choice(const Option *row, int i, OptionChoice *out) {
    const char *c = row->choices;
    for (; i > 0; i--, c++)
        if (!(c = strchr(c, '|'))) return false;
    size_t length = strcspn(c, "|");
    snprintf(out->name, sizeof out->name, "%.*s", (int)length, c);
    char *number = strchr(out->name, '='), *k = strstr(out->name, ":K");
    out->number = number ? atoi(number + 1) : -1;
    out->takes_k = k != NULL;
    if (number) *number = 0;
    if (k) *k = 0;
    return true;
}

// "full|grads|hybrid:K" for messages and --help.
static inline void option_print_choices(const Option *row, char *out, size_t bytes) {
    OptionChoice c;
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; option_choice(row, i, &c) && used < bytes; i++)
        used += (size_t)snprintf(out + used, bytes - used, "%s%s%s", i ? "|" : "", c.name,
                                 c.takes_k ? ":K" : "");
}

// Reads a whole number that is not negative, also one written 1e6 or 1.5e6; false if text is
// anything else or too large. Exact: the exponent adds zeros to the digits.
static inline bool option_size(const char *text, uint64_t *value) {
    char digits[64], *end = digits;
    long exponent = 0;
    bool fraction = false;
    for (; isdigit((unsigned char)*text) || (*text == '.' && !fraction && end > digits); text++) {
        if (end == digits + sizeof digits - 24) return false;
        if (*text == '.')
            fraction = true;
        else
            *end++ = *text, exponent -= fraction;
    }
    if (end == digits) return false;
    if ((*text == 'e' || *text == 'E') && isdigit((unsigned char)text[1 + (text[1] == '+')])) {
        char *rest;
        long written = strtol(text + 1, &rest, 10);
        if (written > 20) return false;
        exponent += written;
        text = rest;
    } else if (fraction) {
        return false;
    }
    if (*text || exponent < 0) return false;
    for (; exponent > 0; exponent--) *end++ = '0';
    *end = 0;
    errno = 0;
    *value = strtoull(digits, NULL, 10);
    return errno == 0;
}

// Reads the digits of a number from min to max; false if text is anything else.
static inline bool option_integer(const char *text, double min, double max, long long *value) {
    char *end;
    errno = 0;
    *value = strtoll(text, &end, 10);
    return end != text && !*end && !errno && !isspace((unsigned char)text[0]) &&
           (double)*value >= min && (double)*value <= max;
}

static inline bool option_set_choice(const Option *row, const char *text,
                                     int *value /* value, k */) {
    OptionChoice c;
    for (int i = 0; option_choice(row, i, &c); i++) {
        size_t length = strlen(c.name);
        long long k = 0;
        bool same = c.takes_k ? !strncmp(text, c.name, length) && text[length] == ':' &&
                                    option_integer(text + length + 1, 1, OPTION_MAX, &k)
                              : !strcmp(text, c.name) ||
                                    (c.number >= 0 && text[0] == '0' + c.number && !text[1]);
        if (!same) continue;
        value[0] = i, value[1] = (int)k;
        return true;
    }
    return false;
}

static inline bool option_set_flag(const char *text, bool *value) {
    bool yes =
        !strcmp(text, "1") || !strcmp(text, "true") || !strcmp(text, "yes") || !strcmp(text, "on");
    bool no =
        !strcmp(text, "0") || !strcmp(text, "false") || !strcmp(text, "no") || !strcmp(text, "off");
    if (yes || no) *value = yes;
    return yes || no;
}

// Parses text into the row's field; false if it is not a value of that row. A TEXT is not copied.
static inline bool option_set(Options *o, const Option *row, const char *text) {
    char *field = (char *)o + row->offset, *end;
    long long integer;
    switch (row->kind) {
    case KIND_INT:
        if (!option_integer(text, row->min, row->max, &integer)) return false;
        *(int *)(void *)field = (int)integer;
        return true;
    case KIND_SIZE: {
        uint64_t size;
        if (!option_size(text, &size) || (double)size > row->max) return false;
        *(uint64_t *)(void *)field = size;
        return true;
    }
    case KIND_REAL: {
        double real = strtod(text, &end);
        if (end == text || *end || strpbrk(text, " \tx")) return false;  // x: no hexadecimal
        if (!(real >= row->min && real <= row->max)) return false;       // also refuses NaN
        *(float *)(void *)field = (float)real;
        return true;
    }
    case KIND_TEXT:
        *(const char **)(void *)field = text;
        return true;
    case KIND_CHOICE:
        return option_set_choice(row, text, (int *)(void *)field);
    case KIND_FLAG:
        return option_set_flag(text, (bool *)field);
    case KIND_GROUP:
        break;
    }
    return false;
}

// What a row accepts, for messages and --help: "an integer from 1 to 4".
static inline void option_print_expected(const Option *row, char *out, size_t bytes) {
    switch (row->kind) {
    case KIND_INT:
        snprintf(out, bytes, "an integer from %.0f to %.0f", row->min, row->max);
        break;
    case KIND_SIZE: {  // a double cannot hold 2^64 - 1
        uint64_t max = row->max < 0x1p64 ? (uint64_t)row->max : UINT64_MAX;
        snprintf(out, bytes, "an integer from %.0f to %llu", row->min, (unsigned long long)max);
        break;
    }
    case KIND_REAL:
        snprintf(out, bytes, "a number from %g to %g", row->min, row->max);
        break;
    case KIND_CHOICE:
        option_print_choices(row, out, bytes);
        break;
    case KIND_FLAG:
        snprintf(out, bytes, "0 or 1");
        break;
    default:
        snprintf(out, bytes, "a text");
        break;
    }
}

static inline void option_set_or_die(Options *o, const Option *row, const char *text,
                                     const char *where) {
    if (option_set(o, row, text)) return;
    char expected[256];
    option_print_expected(row, expected, sizeof expected);
    die_all("%s--%s %s: expected %s", where, option_name(row).text, text[0] ? text : "(empty)",
            expected);
}

// The value as text that option_set reads back to the same value.
static inline void option_print_value(const Options *o, const Option *row, char *out,
                                      size_t bytes) {
    const char *field = (const char *)o + row->offset;
    OptionChoice c;
    switch (row->kind) {
    case KIND_INT:
        snprintf(out, bytes, "%d", *(const int *)(const void *)field);
        break;
    case KIND_SIZE:
        snprintf(out, bytes, "%llu", (unsigned long long)*(const uint64_t *)(const void *)field);
        break;
    case KIND_REAL: {
        float real = *(const float *)(const void *)field;
        for (int digits = 1; digits <= 9; digits++) {  // the shortest that survives the round trip
            snprintf(out, bytes, "%.*g", digits, (double)real);
            if ((float)strtod(out, NULL) == real) break;
        }
        break;
    }
    case KIND_TEXT:
        snprintf(out, bytes, "%s", *(const char *const *)(const void *)field);
        break;
    case KIND_CHOICE: {
        const int *value = (const int *)(const void *)field;
        out[0] = 0;
        if (!option_choice(row, value[0], &c)) return;
        if (c.takes_k)
            snprintf(out, bytes, "%s:%d", c.name, value[1]);
        else
            snprintf(out, bytes, "%s", c.name);
        break;
    }
    default:
        snprintf(out, bytes, "%d", *(const bool *)field);
        break;
    }
}

// ---- config files: `name = value`, # comments, values with odd characters in "..." -------------

static inline char *option_trim(char *text) {
    while (isspace((unsigned char)*text)) text++;
    size_t n = strlen(text);
    while (n && isspace((unsigned char)text[n - 1])) text[--n] = 0;
    return text;
}

// Cuts the value out of what follows '=' in place; NULL if its quotes are wrong.
static inline char *option_unquote(char *text) {
    text = option_trim(text);
    if (*text != '"') {
        if (*text == '#') *text = 0;
        for (char *c = text; *c; c++)
            if (*c == '#' && isspace((unsigned char)c[-1])) *c = 0;
        return option_trim(text);
    }
    char *to = text, *from = text + 1;
    for (; *from && *from != '"'; from++) {
        if (*from == '\\' && from[1])
            from++, *to++ = *from == 'n' ? '\n' : *from;
        else
            *to++ = *from;
    }
    if (*from != '"') return NULL;
    char *rest = option_trim(from + 1);
    if (*rest && *rest != '#') return NULL;
    *to = 0;
    return text;
}

static inline bool option_is_saved(const Option *row) {
    return row->kind != KIND_GROUP && strcmp(row->name, "config") && strcmp(row->name, "version") &&
           strcmp(row->name, "help");
}

// The title of the options among which a row is.
static inline const char *option_group(const Option *row) {
    while (row->kind != KIND_GROUP) row--;
    return row->name;
}

// Does the option tell how checkpoints and audits are made?
static inline bool option_is_of_checkpoints(const Option *row) {
    return row->kind != KIND_GROUP && !strcmp(option_group(row), "Checkpoints and audits") &&
           strcmp(row->name, "resume");
}

// Does the option belong to a run, wherever it goes on, and not to the machines and folders of one
// of its starts? A checkpoint keeps it.
static inline bool option_is_of_run(const Option *row) {
    static const char *const groups[] = {
        "Model", "Data", "Batch", "Optimizer", "Validation and samples", "Numbers"};
    if (row->kind == KIND_GROUP) return false;
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++)
        if (!strcmp(option_group(row), groups[i])) return true;
    return option_is_of_checkpoints(row);
}

static inline void options_read_config(Options *o, const char *path) {
    FILE *f = fopen_check(path, "r");
    char *line = NULL;
    size_t capacity = 0;
    int lines[OPTION_ROWS] = {0};  // where each option stands
    ssize_t n;
    for (int number = 1; (n = getline(&line, &capacity, f)) >= 0; number++) {
        char where[512];
        snprintf(where, sizeof where, "%s:%d: ", path, number);
        if (strlen(line) < (size_t)n)
            die_all("%sexpected text, found a byte 0; is it UTF-16? (iconv -f UTF-16 -t UTF-8)",
                    where);
        bool marked = number == 1 && !strncmp(line, "\xef\xbb\xbf", 3);  // by Windows' editors
        char *name = option_trim(line + (marked ? 3 : 0));
        if (!*name || *name == '#') continue;
        char *equals = strchr(name, '=');
        if (!equals) die_all("%sexpected a line `name = value`, found: %s", where, name);
        *equals = 0;
        name = option_trim(name);
        const Option *row = option_find(name);
        if (!row) {
            char why[256];
            option_explain("", name, why, sizeof why);
            die_all("%sunknown option %s", where, why);
        }
        if (!option_is_saved(row)) die_all("%s%s belongs on the command line", where, name);
        int *line_of = &lines[row - option_table];
        if (*line_of) die_all("%s%s stands in line %d already", where, name, *line_of);
        *line_of = number;
        char *value = option_unquote(equals + 1);
        if (!value) die_all("%sthe quotes of the value of %s do not match", where, name);
        // Texts are kept for as long as the process lives, as argv is.
        option_set_or_die(o, row, row->kind == KIND_TEXT ? strdup_check(value) : value, where);
    }
    if (ferror(f)) die_all("cannot read %s: %s", path, strerror(errno));
    free(line);
    fclose(f);
}

// Writes all options as a config file that --config reads back.
static inline void options_save(const Options *o, const char *path) {
    FILE *f = fopen_check(path, "wx");
    for (int i = 0; i < OPTION_ROWS; i++) {
        const Option *row = &option_table[i];
        if (row->kind == KIND_GROUP) fprintf(f, "%s# %s\n", i ? "\n" : "", row->name);
        if (!option_is_saved(row)) continue;
        fprintf(f, "%s = ", option_name(row).text);
        if (row->kind == KIND_TEXT) {
            const char *text = *(const char *const *)(const void *)((const char *)o + row->offset);
            fputc('"', f);
            for (; *text; text++)
                if (*text == '\n')
                    fputs("\\n", f);
                else
                    fprintf(f, "%s%c", *text == '"' || *text == '\\' ? "\\" : "", *text);
            fputs("\"\n", f);
        } else {
            char value[64];
            option_print_value(o, row, value, sizeof value);
            fprintf(f, "%s\n", value);
        }
    }
    fclose_check(f, path);
}

// ---- what main calls ---------------------------------------------------------------------------

static inline void options_default(Options *o) {
    memset(o, 0, sizeof *o);
    for (int i = 0; i < OPTION_ROWS; i++)
        if (option_table[i].kind != KIND_GROUP)
            option_set_or_die(o, &option_table[i], option_table[i].standard, "default of ");
}

static inline void options_help(FILE *f) {
    fprintf(f, "train_gpt trains a GPT on token shards or plain text, sharded across ranks.\n\n"
               "  ./train_gpt --train book.txt --ranks 2\n"
               "  mpirun -n 8 ./train_gpt --model gpt2:d12 --train 'data/*_train_*.bin'\n\n"
               "Options are written --name value or --name=value. Of an option given twice the\n"
               "later holds; --config FILE counts as if its lines stood in its place. Steps are\n"
               "counted from 1 in what is printed; files and --json keep llm.c's count from 0.\n");
    for (int i = 0; i < OPTION_ROWS; i++) {
        const Option *row = &option_table[i];
        if (row->kind == KIND_GROUP) {
            fprintf(f, "\n%s\n", row->name);
            continue;
        }
        char left[64], expected[256];
        snprintf(left, sizeof left, "--%s%s%s", option_name(row).text, row->alias[0] ? ", -" : "",
                 row->alias);
        option_print_expected(row, expected, sizeof expected);
        fprintf(f, "  %-22s %s", left, row->help);
        if (row->kind != KIND_FLAG && row->kind != KIND_TEXT) fprintf(f, "; %s", expected);
        if (row->kind != KIND_FLAG && row->standard[0]) fprintf(f, " [%s]", row->standard);
        fputc('\n', f);
    }
}

// A command line, argument by argument.
typedef struct {
    int count, at;  // words, and the number of the next
    char **words;
    const Option *row;   // of the argument read last; NULL: the program has no such option
    char name[64];       // of the argument read last, without dashes
    const char *dashes;  // "-" or "--"
    const char *value;   // "": none
} OptionWords;

// Flags, and choices that begin with no and yes, may stand alone: that means yes.
static inline bool option_may_stand_alone(const Option *row) {
    return row->kind == KIND_FLAG || !strncmp(row->choices, "no=0|yes=1", 10);
}

// `-3` is a value, `-x` an option.
static inline bool option_is_name(const char *word) {
    return word[0] == '-' && word[1] && !isdigit((unsigned char)word[1]) && word[1] != '.';
}

NORETURN static inline void option_die_stray(const OptionWords *w, const char *word) {
    const Option *before = w->row;
    if (before && option_may_stand_alone(before)) {
        char expected[256];
        option_print_expected(before, expected, sizeof expected);
        die_all("--%s %s: expected %s", option_name(before).text, word, expected);
    }
    bool glob = before && (before == option_find("train") || before == option_find("val"));
    die_all("expected an option, found `%s`%s", word,
            glob ? "; quote globs, so that the shell leaves them alone" : "");
}

// Reads the next argument; false behind the last.
static inline bool option_next(OptionWords *w) {
    if (w->at == w->count) return false;
    const char *word = w->words[w->at++];
    if (word[0] != '-' || !word[1]) option_die_stray(w, word);
    w->dashes = word[1] == '-' ? "--" : "-";
    word += strlen(w->dashes);
    const char *equals = w->dashes[1] ? strchr(word, '=') : NULL;
    snprintf(w->name, sizeof w->name, "%.*s", (int)(equals ? equals - word : (long)strlen(word)),
             word);
    w->row = w->dashes[1] ? option_find(w->name) : option_find_alias(w->name);
    const char *next = equals ? equals + 1 : w->at < w->count ? w->words[w->at] : NULL;
    bool takes_next = next && !equals;
    if (w->row && option_may_stand_alone(w->row)) {
        Options ignored;
        takes_next = takes_next && option_set(&ignored, w->row, next);
        w->value = equals || takes_next ? next : "1";
    } else if (w->row) {
        if (!next) die_all("%s%s needs a value", w->dashes, w->name);
        if (!equals && !strncmp(next, "--", 2))
            die_all("%s%s needs a value, found %s", w->dashes, w->name, next);
        w->value = next;
    } else {
        takes_next = takes_next && !option_is_name(next);
        w->value = equals || takes_next ? next : "";
    }
    w->at += takes_next;
    return true;
}

// Ends the program if there are options that it does not know, and names all of them; or if it is
// asked for --help or --version.
static inline void options_check_names(OptionWords w) {
    char all[1500] = "";
    size_t used = 0;
    int unknown = 0;
    while (option_next(&w)) {
        bool help = w.row && w.row == option_find("help");
        bool version = w.row && w.row == option_find("version");
        if (process.rank == 0 && help) options_help(stdout);
        if (process.rank == 0 && version) printf("fsdp.c %s\n", VERSION);
        if ((help || version) && (fflush(stdout) != 0 || ferror(stdout)))
            die_all("cannot write to stdout: %s", strerror(errno));
        if (help || version) exit(0);
        int llmc = w.dashes[1] ? -1 : llmc_find(w.name);
        if (w.row || (llmc >= 0 && llmc_is_neutral(llmc, w.value)) || used >= sizeof all) continue;
        char why[256];
        option_explain(w.dashes, w.name, why, sizeof why);
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", unknown++ ? "; " : "", why);
    }
    if (unknown)
        die_all("unknown option%s %s%s", unknown > 1 ? "s" : "", all,
                used >= sizeof all ? " ..." : "");
}

static inline OptionWords option_words(int argc, char **argv) {
    OptionWords w = {argc, 1, argv, NULL, "", "", ""};
    return w;
}

// The command line from left to right, over what is there.
static inline void options_command_line(Options *o, int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "-h")) argv[1] = (char *)"--help";
    OptionWords w = option_words(argc, argv);
    options_check_names(w);
    while (option_next(&w)) {
        if (!w.row) continue;
        if (!strcmp(w.name, "y") && strcmp(w.value, "0") && strcmp(w.value, "1"))
            die_all("-y %s: expected 0 or 1, as in llm.c; a folder is given with --resume",
                    w.value);
        option_set_or_die(o, w.row, w.value, "");
        if (w.row == option_find("config")) options_read_config(o, w.value);
    }
}

// On the command line itself, not in a file of --config.
static inline bool option_is_given(const char *name, int argc, char **argv) {
    OptionWords w = option_words(argc, argv);
    while (option_next(&w))
        if (w.row == option_find(name)) return true;
    return false;
}

static inline void options_parse(Options *o, int argc, char **argv) {
    options_default(o);
    options_command_line(o, argc, argv);
}

// The effective values, one wrapped paragraph a group.
static inline void options_print(const Options *o, FILE *f) {
    enum { WIDTH = 100, INDENT = 2 };
    int column = 0;
    for (int i = 0; i < OPTION_ROWS; i++) {
        const Option *row = &option_table[i];
        if (row->kind == KIND_GROUP) {
            fprintf(f, "%s%s:", i ? "\n" : "", row->name);
            column = (int)strlen(row->name) + 1;
        }
        if (!option_is_saved(row)) continue;
        char value[512], item[600];
        option_print_value(o, row, value, sizeof value);
        bool quote = row->kind == KIND_TEXT && (!value[0] || strpbrk(value, " \n"));
        int width = snprintf(item, sizeof item, "%s=%s%s%s", option_name(row).text,
                             quote ? "'" : "", value, quote ? "'" : "");
        if (column + 1 + width > WIDTH) column = fprintf(f, "\n%*s", INDENT, "") - 1;
        column += fprintf(f, " %s", item);
    }
    fputc('\n', f);
}

// ---- what the precision options come to --------------------------------------------------------

// DTYPE_FP32, DTYPE_BF16 or DTYPE_FP64 of each part: the policy's, unless its own option says else.
typedef struct {
    int gather, reduce, grad, moment;
} Dtypes;

// What auto and 0 come to where the run is, or is planned for. How many rows of logits there are
// does not follow from the memory that is free: they change bits.
static inline void options_choose_numbers(Options *o, bool gpu) {
    if (!o->logits_rows) o->logits_rows = gpu ? 16384 : 512;
    if (o->precision == PRECISION_AUTO) o->precision = gpu ? PRECISION_BFLOAT16 : PRECISION_FP32;
    if (o->precision == PRECISION_TF32 && !gpu)
        die_all("--precision tf32: expected a GPU, found the CPU device; use --precision fp32");
}

static inline void options_choose_sums(Options *o, bool gpu, bool many_nodes) {
    if (o->reduce == REDUCE_AUTO) o->reduce = gpu && many_nodes ? REDUCE_FAST : REDUCE_ORDERED;
}

static inline Dtypes options_dtypes(const Options *o) {
    Dtypes d = {o->gather_dtype, o->reduce_dtype, o->grad_dtype, o->moment_dtype};
    bool bf16 = o->precision == PRECISION_BFLOAT16, fp64 = o->precision == PRECISION_FP64_MOMENTS;
    if (d.gather == DTYPE_POLICY) d.gather = bf16 ? DTYPE_BF16 : DTYPE_FP32;
    if (d.reduce == DTYPE_POLICY) d.reduce = DTYPE_FP32;
    if (d.grad == DTYPE_POLICY) d.grad = DTYPE_FP32;
    if (d.moment == DTYPE_POLICY) d.moment = fp64 ? DTYPE_FP64 : DTYPE_FP32;
    return d;
}

static inline size_t dtype_bytes(int dtype) {
    return dtype == DTYPE_BF16 ? 2 : dtype == DTYPE_FP64 ? 8 : 4;
}
