// lib/work.h: kinds of work that the ops do, as --plan counts them and a CPU's rates are measured.
#pragma once

// Units: flops of products and attention, bytes read and written of the rest.
typedef enum {
    WORK_FORWARD,  // products
    WORK_INPUT,
    WORK_WEIGHT,
    WORK_ATTENTION,
    WORK_ATTENTION_BACKWARD,
    WORK_NORM,
    WORK_NORM_BACKWARD,
    WORK_GELU,
    WORK_CLASSIFIER,
    WORK_ENCODER,
    WORK_COLUMNS,  // column sums
    WORK_SHARD,    // casts and sums of flat arrays
    WORK_SQUARES,
    WORK_ADAMW,
    WORK_COPY,
    WORK_KINDS
} WorkKind;
static const char *const work_names[WORK_KINDS] = {"products, forward",
                                                   "products, backward to the input",
                                                   "products, backward to the weight",
                                                   "attention",
                                                   "attention backward",
                                                   "layernorm",
                                                   "layernorm backward",
                                                   "GELU",
                                                   "classifier",
                                                   "encoder",
                                                   "column sums",
                                                   "casts and sums of shards",
                                                   "norm of the gradient",
                                                   "AdamW",
                                                   "copies"};
