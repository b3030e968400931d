// gpt.cu: GPT-2/GPT-3 (Radford et al. 2019, Brown et al. 2020): forward, backward and update,
// with the borrowing of sharded units inline. Pre-LayerNorm blocks, causal attention,
// tanh-GELU MLP, tied head.
//
// Shapes: B sequences of T tokens, C channels, NH heads, V vocabulary. Activations and gathered
// parameters are floatX, gradients of parameters fp32. Compiled once per floatX; see gpt.h.
#include "gpt.h"

#include "fsdp.h"

// What the backward of a block reads. With recomputation some of it is one buffer for all blocks.
typedef struct {
    floatX *residual;                                  // (B,T,C) input of the block
    floatX *ln1;                                       // (B,T,C)
    floatX *qkv;                                       // (B,T,3C)
    floatX *text;                                      // (T,3C) qkv of the text being written
    floatX *atty;                                      // (B,T,C) output of attention
    floatX *residual2;                                 // (B,T,C) after attention
    floatX *ln2;                                       // (B,T,C)
    floatX *fch;                                       // (B,T,4C) before GELU
    floatX *gelu;                                      // (B,T,4C)
    float *ln1_mean, *ln1_rstd, *ln2_mean, *ln2_rstd;  // (B,T)
    float *lse;                                        // (B,NH,T)
} BlockActs;

struct Gpt {
    GptConfig c;
    Fsdp f;
    Buffers buffers;
    Timeline timeline;

    int embedding, norm;  // units
    int *block_units;     // (L, SEGMENTS)
    // (L): of a tensor in its unit; row 0 also holds wte, wpe, lnfw, lnfb
    size_t (*offsets)[TENSORS];
    int *train_visits, *eval_visits, ntrain, neval;

    int kept;                           // blocks with activations at a time: L, or K of every:K
    BlockActs *acts;                    // (L): several blocks may point to the same buffers
    floatX *residual_last, *lnf;        // (B,T,C)
    float *lnf_mean, *lnf_rstd;         // (B,T)
    floatX *scratch, *scratch4;         // (B,T,C), (B,T,4C)
    floatX *dresidual;                  // (B,T,C)
    float *dresidual_sums;              // (C): its column sums, gradient of a bias added to it
    floatX *logits;                     // (logits_rows, head_width)
    float *losses;                      // (B,T)
    double *loss_sums, *all_loss_sums;  // (sums_room) of this rank, (world, sums_room)
    int *tokens;                        // (2,B,T): tokens and targets of the current micro-batch
    void *workspace;
    size_t workspace_bytes;
    int *host_tokens;     // (micro_steps,2,B,T)
    double *host_sums;    // (world*sums_room + 9)
    floatX *host_logits;  // (head_width)

    GptPiece *pieces;  // (npieces) of the rank's arrays
    int npieces;

    int B, T;              // of the current forward
    bool writes;           // it is that of a text, and
    int before;            // so many tokens of the text have been through it already
    bool measured;         // the norm of this step is there
    bool ratio;            // so are those of its update and of the parameters
    int borrowed, graded;  // unit whose parameters / gradient slot are in use; -1: none
    floatX *params;        // of the borrowed unit
    float *grads;          // of the graded unit
};

// A step's losses and notes, or an evaluation's losses and tokens.
static size_t sums_room(const GptConfig *c) {
    size_t step = (size_t)c->fsdp.micro_steps + 1, evaluation = 2 * (size_t)c->B;
    return step > evaluation ? step : evaluation;
}

// Columns of the logits: V rounded up so that rows stay aligned; the rows of wte beyond V are zero.
static int head_width(const ModelConfig *m) {
    return (m->V + 63) / 64 * 64;
}

// ---- layout: units, visits, buffers ------------------------------------------------------------

static void add_tensor(Gpt *g, int id, int layer) {
    const FsdpUnit *u = &g->f.units[g->f.nunits - 1];
    g->offsets[layer][id] = u->elements;
    fsdp_add_tensor(&g->f, tensor_table[id].name, tensor_size(&g->c.model, id),
                    tensor_offset(&g->c.model, id, layer), tensor_table[id].decays);
}

// Does segment s of block l start a new unit?
static bool starts_unit(const GptConfig *c, int l, int s) {
    switch (c->unit) {
    case UNIT_MATRIX:
        return true;
    case UNIT_HALF:
        return s == SEGMENT_QKV || s == SEGMENT_FC;
    case UNIT_LAYER:
        return s == SEGMENT_QKV;
    default:
        return s == SEGMENT_QKV && l % c->unit_k == 0;
    }
}

static void plan_units(Gpt *g) {
    Fsdp *f = &g->f;
    int L = g->c.model.L;
    g->embedding = fsdp_add_unit(f, "embedding", 2, true);
    add_tensor(g, WTE, 0);
    add_tensor(g, WPE, 0);
    for (int i = 0, unit = -1; i < L * SEGMENTS; i++) {
        int l = i / SEGMENTS, s = i % SEGMENTS;
        static const char *const parts[] = {"qkv", "attproj", "fc", "fcproj"};
        char name[24];
        if (g->c.unit == UNIT_MATRIX)
            snprintf(name, sizeof name, "block %d %s", l, parts[s]);
        else if (g->c.unit == UNIT_HALF)
            snprintf(name, sizeof name, "block %d %s", l, s < SEGMENT_FC ? "att" : "mlp");
        else
            snprintf(name, sizeof name, "block %d", l);
        if (starts_unit(&g->c, l, s)) unit = fsdp_add_unit(f, name, 1, false);
        g->block_units[i] = unit;
        for (int id = 0; id < TENSORS; id++)
            if (tensor_table[id].segment == s) add_tensor(g, id, l);
    }
    g->norm = fsdp_add_unit(f, "final norm", 1, true);
    add_tensor(g, LNFW, 0);
    add_tensor(g, LNFB, 0);
}

// A visit is a change of the borrowed unit.
static void add_visit(int *visits, int *n, int unit) {
    if (*n == 0 || visits[*n - 1] != unit) visits[(*n)++] = unit;
}

static void add_block_visits(const Gpt *g, int *visits, int *n, int l, bool backward) {
    for (int i = 0; i < SEGMENTS; i++)
        add_visit(visits, n, g->block_units[l * SEGMENTS + (backward ? SEGMENTS - 1 - i : i)]);
}

// Does the backward of block l begin with a second forward of its group of blocks?
static bool recomputes(const Gpt *g, int l) {
    int group = l / g->kept;
    return (l % g->kept == g->kept - 1) && group < (g->c.model.L - 1) / g->kept;
}

static void plan_visits(Gpt *g) {
    int L = g->c.model.L, room = 3 * L * SEGMENTS + 5;
    int *v = g->eval_visits = (int *)malloc_check(sizeof(int) * (size_t)room);
    int *t = g->train_visits = (int *)malloc_check(sizeof(int) * (size_t)room);
    add_visit(v, &g->neval, g->embedding);
    for (int l = 0; l < L; l++) add_block_visits(g, v, &g->neval, l, false);
    add_visit(v, &g->neval, g->norm);
    add_visit(v, &g->neval, g->embedding);
    memcpy(t, v, sizeof(int) * (size_t)g->neval);
    g->ntrain = g->neval;
    add_visit(t, &g->ntrain, g->norm);
    for (int l = L - 1; l >= 0; l--) {
        if (recomputes(g, l))
            for (int k = l - g->kept + 1; k <= l; k++) add_block_visits(g, t, &g->ntrain, k, false);
        add_block_visits(g, t, &g->ntrain, l, true);
    }
}

// One buffer for each of the kept blocks, or a single one for all of them.
static void add_acts(Gpt *g, size_t field, bool shared, size_t bytes, const char *name) {
    for (int l = 0; l < (shared ? 1 : g->kept); l++)
        buffers_add(&g->buffers, "activations", (char *)&g->acts[l] + field, bytes, "%s %d", name,
                    l);
}

// The input of a group of kept blocks stays until the backward; within the group it is made again.
static bool own_residual(const Gpt *g, int l) {
    return l < g->kept || (l % g->kept == 0 && !g->c.fsdp.forward_only);
}

// After the allocation: lets the blocks without buffers of their own use those of the first ones.
static void share_acts(Gpt *g) {
    for (int l = 0; l < g->c.model.L; l++) {
        BlockActs *a = &g->acts[l];
        floatX *residual = own_residual(g, l) ? a->residual : g->acts[l % g->kept].residual;
        floatX *text = a->text ? a->text : g->acts[l % g->kept].qkv;
        if (l >= g->kept) *a = g->acts[l % g->kept];
        a->residual = residual;
        a->text = text;
        if (!a->ln1) a->ln1 = g->acts[0].ln1, a->ln2 = g->acts[0].ln2;
        if (!a->gelu) a->gelu = g->acts[0].gelu;
    }
}

#define ADD_ACTS(field, shared, bytes)                                                             \
    add_acts(g, offsetof(BlockActs, field), shared, bytes, #field)

static void plan_activations(Gpt *g) {
    const GptConfig *c = &g->c;
    Buffers *b = &g->buffers;
    size_t BT = (size_t)c->B * (size_t)c->T, btc = BT * (size_t)c->model.C * sizeof(floatX);
    size_t width = (size_t)head_width(&c->model), accum = (size_t)c->fsdp.micro_steps,
           sums = sums_room(c);
    bool trains = !c->fsdp.forward_only, no_norm = c->recompute == RECOMPUTE_NORM,
         no_gelu = c->recompute == RECOMPUTE_GELU || no_norm;
    for (int l = 0; l < c->model.L; l++)
        if (own_residual(g, l))
            buffers_add(b, "activations", &g->acts[l].residual, btc, "residual %d", l);
    ADD_ACTS(ln1, no_norm, btc);
    ADD_ACTS(qkv, false, 3 * btc);
    ADD_ACTS(atty, false, btc);
    ADD_ACTS(residual2, false, btc);
    ADD_ACTS(ln2, no_norm, btc);
    if (trains) ADD_ACTS(fch, false, 4 * btc);
    ADD_ACTS(gelu, no_gelu, 4 * btc);
    ADD_ACTS(ln1_mean, false, BT * sizeof(float));
    ADD_ACTS(ln1_rstd, false, BT * sizeof(float));
    ADD_ACTS(ln2_mean, false, BT * sizeof(float));
    ADD_ACTS(ln2_rstd, false, BT * sizeof(float));
    ADD_ACTS(lse, false, BT * (size_t)c->model.NH * sizeof(float));
    if (c->writes && g->kept < c->model.L)
        for (int l = 0; l < c->model.L; l++)
            buffers_add(b, "activations", &g->acts[l].text, 3 * btc / (size_t)c->B,
                        "keys and values of a text %d", l);
    buffers_add(b, "activations", &g->residual_last, btc, "residual last");
    buffers_add(b, "activations", &g->lnf, btc, "final norm");
    buffers_add(b, "activations", &g->lnf_mean, BT * sizeof(float), "final norm mean");
    buffers_add(b, "activations", &g->lnf_rstd, BT * sizeof(float), "final norm rstd");
    buffers_add(b, "activations", &g->scratch, btc, "scratch");
    if (trains) buffers_add(b, "activations", &g->scratch4, 4 * btc, "scratch 4C");
    if (trains) buffers_add(b, "activations", &g->dresidual, btc, "gradient of the residual");
    if (trains)
        buffers_add(b, "activations", &g->dresidual_sums, (size_t)c->model.C * sizeof(float),
                    "column sums of it");
    buffers_add(b, "activations", &g->logits, (size_t)c->logits_rows * width * sizeof(floatX),
                "logits");
    buffers_add(b, "activations", &g->losses, BT * sizeof(float), "losses");
    buffers_add(b, "activations", &g->loss_sums, sums * sizeof(double), "loss sums");
    buffers_add(b, "activations", &g->all_loss_sums, sums * (size_t)c->fsdp.world * sizeof(double),
                "loss sums of all ranks");
    buffers_add(b, "activations", &g->tokens, 2 * BT * sizeof(int), "tokens and targets");
    OpsDims dims = {c->B, c->T, c->model.C, c->model.NH, c->model.V, c->logits_rows, c->tf32};
    g->workspace_bytes = ops_workspace_bytes(&dims);
    buffers_add(b, "activations", &g->workspace, g->workspace_bytes, "workspace of the ops");
    buffers_add(b, BUFFER_HOST, &g->host_tokens, (accum + 1) * 2 * BT * sizeof(int),
                "tokens of a step");
    buffers_add(b, BUFFER_HOST, &g->host_sums, (sums * (size_t)c->fsdp.world + 9) * sizeof(double),
                "loss sums");
    buffers_add(b, BUFFER_HOST, &g->host_logits, width * sizeof(floatX), "logits of a sample");
}

// ---- borrowing ---------------------------------------------------------------------------------

// The end of a unit's use: its parameters go back, its gradient is on its way.
static void give_back(Gpt *g) {
    if (g->borrowed < 0) return;
    timeline_end(g->f.timeline, g->f.compute);
    fsdp_release(&g->f, g->borrowed);
    g->borrowed = -1;
}

static void send_gradient(Gpt *g) {
    if (g->graded < 0) return;
    fsdp_reduce(&g->f, g->graded, 0);
    g->graded = -1;
}

// Makes a unit's parameters readable (see `param`). Only one unit is borrowed at a time.
static void borrow(Gpt *g, int unit, const char *what) {
    if (g->borrowed == unit) return;
    give_back(g);
    g->params = fsdp_wait(&g->f, unit);
    g->borrowed = unit;
    timeline_begin(g->f.timeline, g->f.compute, what, g->f.units[unit].name);
}

// The same for the backward, with room for the unit's gradient (see `grad`). The gather that
// follows is on its way before the reduction of the unit before.
static void borrow_with_gradient(Gpt *g, int unit) {
    borrow(g, unit, "backward");
    if (g->graded == unit) return;
    send_gradient(g);
    bool fresh;
    g->grads = fsdp_grad(&g->f, unit, 0, &fresh);
    g->graded = unit;
}

static floatX *param(Gpt *g, int id, int l) {
    return g->params + g->offsets[l][id];
}

static float *grad(Gpt *g, int id, int l) {
    return g->grads + g->offsets[l][id];
}

static int block_unit(const Gpt *g, int l, int segment) {
    return g->block_units[l * SEGMENTS + segment];
}

// ---- forward -----------------------------------------------------------------------------------

// Of a text, qkv (T,3C) stays for the tokens that follow, which come one at a time.
static void self_attention(Gpt *g, int l) {
    BlockActs *a = &g->acts[l];
    int C = g->c.model.C, NH = g->c.model.NH;
    cudaStream_t s = g->f.compute;
    floatX *qkv = g->writes ? a->text : a->qkv;
    matmul_forward(qkv + (size_t)g->before * 3 * (size_t)C, a->ln1, param(g, QKVW, l),
                   param(g, QKVB, l), g->B * g->T, C, 3 * C, s);
    if (g->before)
        attention_last(a->atty, qkv, g->before + 1, C, NH, s);
    else
        attention_forward(a->atty, a->lse, qkv, g->B, g->T, C, NH, s);
}

static void attention_half(Gpt *g, int l, bool from_residual) {
    BlockActs *a = &g->acts[l];
    int C = g->c.model.C, BT = g->B * g->T;
    cudaStream_t s = g->f.compute;
    borrow(g, block_unit(g, l, SEGMENT_QKV), "forward");
    if (from_residual)  // the residual stream is complete
        layernorm_forward(a->ln1, a->ln1_mean, a->ln1_rstd, a->residual, param(g, LN1W, l),
                          param(g, LN1B, l), BT, C, s);
    else  // the block before left its last addend in scratch
        residual_layernorm_forward(a->residual, a->ln1, a->ln1_mean, a->ln1_rstd,
                                   g->acts[l - 1].residual2, g->scratch, param(g, LN1W, l),
                                   param(g, LN1B, l), BT, C, s);
    self_attention(g, l);
    borrow(g, block_unit(g, l, SEGMENT_ATTPROJ), "forward");
    matmul_forward(g->scratch, a->atty, param(g, ATTPROJW, l), param(g, ATTPROJB, l), BT, C, C, s);
}

static void mlp_half(Gpt *g, int l, bool project) {
    BlockActs *a = &g->acts[l];
    int C = g->c.model.C, BT = g->B * g->T;
    cudaStream_t s = g->f.compute;
    borrow(g, block_unit(g, l, SEGMENT_FC), "forward");
    residual_layernorm_forward(a->residual2, a->ln2, a->ln2_mean, a->ln2_rstd, a->residual,
                               g->scratch, param(g, LN2W, l), param(g, LN2B, l), BT, C, s);
    matmul_gelu_forward(a->gelu, a->fch, a->ln2, param(g, FCW, l), param(g, FCB, l), BT, C, 4 * C,
                        s);
    borrow(g, block_unit(g, l, SEGMENT_FCPROJ), "forward");
    if (project)
        matmul_forward(g->scratch, a->gelu, param(g, FCPROJW, l), param(g, FCPROJB, l), BT, 4 * C,
                       C, s);
}

// tokens (B,T) to the final norm (B,T,C), which stays borrowed.
static void forward(Gpt *g) {
    int L = g->c.model.L, C = g->c.model.C;
    cudaStream_t s = g->f.compute;
    borrow(g, g->embedding, "encode");
    encoder_forward(g->acts[0].residual, g->tokens, param(g, WTE, 0),
                    param(g, WPE, 0) + (size_t)g->before * (size_t)C, g->B, g->T, C, s);
    for (int l = 0; l < L; l++) {
        attention_half(g, l, l == 0);
        mlp_half(g, l, true);
    }
    borrow(g, g->norm, "norm");
    residual_layernorm_forward(g->residual_last, g->lnf, g->lnf_mean, g->lnf_rstd,
                               g->acts[L - 1].residual2, g->scratch, param(g, LNFW, 0),
                               param(g, LNFB, 0), g->B * g->T, C, s);
}

// ---- head: logits, loss and their gradient, a chunk of rows at a time --------------------------

// sums (n) += sums of the losses of rows, n pieces of equal size. train: also dlnf (into scratch)
// and the head's gradient of wte.
static void head(Gpt *g, double *sums, int n, bool train) {
    const ModelConfig *m = &g->c.model;
    int rows = g->B * g->T, C = m->C, width = head_width(m);
    cudaStream_t s = g->f.compute;
    borrow(g, g->embedding, "head");
    float *dwte = NULL;
    if (train) {
        bool fresh;
        float *unit = fsdp_grad(&g->f, g->embedding, 0, &fresh);
        dwte = unit + g->offsets[0][WTE];
        size_t written = (size_t)width * (size_t)C;
        cudaCheck(cudaMemsetAsync(
            dwte + written, 0, (g->f.units[g->embedding].elements - written) * sizeof(float), s));
    }
    for (int at = 0; at < rows; at += g->c.logits_rows) {
        int now = rows - at < g->c.logits_rows ? rows - at : g->c.logits_rows;
        size_t offset = (size_t)at * (size_t)C;
        matmul_forward(g->logits, g->lnf + offset, param(g, WTE, 0), NULL, now, C, width, s);
        classifier(g->logits, g->losses + at, g->tokens + rows + at, now, m->V, width, train, s);
        if (!train) continue;
        matmul_backward_weight(dwte, NULL, g->logits, g->lnf + offset, now, C, width, at > 0, s);
        matmul_backward_input(g->scratch + offset, g->logits, param(g, WTE, 0), NULL, now, C, width,
                              s);
    }
    for (int i = 0, piece = rows / n; i < n; i++)
        sum_losses(sums + i, g->losses + i * piece, piece, s);
    give_back(g);
    if (train) fsdp_reduce(&g->f, g->embedding, 0);
}

// ---- backward: the mirror image; dresidual is the gradient of the residual stream --------------

// The gradient of the bias that was added to the residual stream last: LayerNorm's backward has
// summed it, while another unit was borrowed.
static void residual_bias_gradient(Gpt *g, int id, int l) {
    cudaCheck(cudaMemcpyAsync(grad(g, id, l), g->dresidual_sums,
                              (size_t)g->c.model.C * sizeof(float), cudaMemcpyDeviceToDevice,
                              g->f.compute));
}

static void mlp_half_backward(Gpt *g, int l) {
    BlockActs *a = &g->acts[l];
    int C = g->c.model.C, BT = g->B * g->T;
    size_t n = (size_t)BT * (size_t)C;
    bool again = g->c.recompute == RECOMPUTE_NORM;
    floatX *dfch = g->scratch4, *dln2 = g->scratch;
    cudaStream_t s = g->f.compute;
    borrow_with_gradient(g, block_unit(g, l, SEGMENT_FCPROJ));
    if (again || g->c.recompute == RECOMPUTE_GELU) gelu_forward(a->gelu, a->fch, 4 * n, s);
    matmul_backward_weight(grad(g, FCPROJW, l), NULL, g->dresidual, a->gelu, BT, 4 * C, C, false,
                           s);
    residual_bias_gradient(g, FCPROJB, l);
    matmul_backward_input(dfch, g->dresidual, param(g, FCPROJW, l), a->fch, BT, 4 * C, C, s);
    borrow_with_gradient(g, block_unit(g, l, SEGMENT_FC));
    if (again)
        layernorm_forward(a->ln2, a->ln2_mean, a->ln2_rstd, a->residual2, param(g, LN2W, l),
                          param(g, LN2B, l), BT, C, s);
    matmul_backward_weight(grad(g, FCW, l), grad(g, FCB, l), dfch, a->ln2, BT, C, 4 * C, false, s);
    matmul_backward_input(dln2, dfch, param(g, FCW, l), NULL, BT, C, 4 * C, s);
    layernorm_backward(g->dresidual, grad(g, LN2W, l), grad(g, LN2B, l), g->dresidual_sums, dln2,
                       a->residual2, param(g, LN2W, l), a->ln2_mean, a->ln2_rstd, BT, C, true, s);
}

static void attention_half_backward(Gpt *g, int l) {
    BlockActs *a = &g->acts[l];
    int B = g->B, T = g->T, C = g->c.model.C, NH = g->c.model.NH, BT = B * T;
    floatX *datty = g->scratch, *dqkv = g->scratch4, *dln1 = g->scratch;
    cudaStream_t s = g->f.compute;
    borrow_with_gradient(g, block_unit(g, l, SEGMENT_ATTPROJ));
    matmul_backward_weight(grad(g, ATTPROJW, l), NULL, g->dresidual, a->atty, BT, C, C, false, s);
    residual_bias_gradient(g, ATTPROJB, l);
    matmul_backward_input(datty, g->dresidual, param(g, ATTPROJW, l), NULL, BT, C, C, s);
    borrow_with_gradient(g, block_unit(g, l, SEGMENT_QKV));
    attention_backward(dqkv, datty, a->atty, a->qkv, a->lse, B, T, C, NH, s);
    if (g->c.recompute == RECOMPUTE_NORM)
        layernorm_forward(a->ln1, a->ln1_mean, a->ln1_rstd, a->residual, param(g, LN1W, l),
                          param(g, LN1B, l), BT, C, s);
    matmul_backward_weight(grad(g, QKVW, l), grad(g, QKVB, l), dqkv, a->ln1, BT, C, 3 * C, false,
                           s);
    matmul_backward_input(dln1, dqkv, param(g, QKVW, l), NULL, BT, C, 3 * C, s);
    layernorm_backward(g->dresidual, grad(g, LN1W, l), grad(g, LN1B, l),
                       l > 0 ? g->dresidual_sums : NULL, dln1, a->residual, param(g, LN1W, l),
                       a->ln1_mean, a->ln1_rstd, BT, C, true, s);
}

static void final_norm_backward(Gpt *g) {
    borrow_with_gradient(g, g->norm);
    layernorm_backward(g->dresidual, grad(g, LNFW, 0), grad(g, LNFB, 0), g->dresidual_sums,
                       g->scratch, g->residual_last, param(g, LNFW, 0), g->lnf_mean, g->lnf_rstd,
                       g->B * g->T, g->c.model.C, false, g->f.compute);
}

static void encoder_backward_and_reduce(Gpt *g) {
    bool fresh;
    float *unit = fsdp_grad(&g->f, g->embedding, 1, &fresh);
    if (fresh)
        cudaCheck(cudaMemsetAsync(unit, 0, g->f.units[g->embedding].elements * sizeof(float),
                                  g->f.compute));
    encoder_backward(unit + g->offsets[0][WTE], unit + g->offsets[0][WPE], g->dresidual, g->tokens,
                     g->B, g->T, g->c.model.C, g->f.compute);
    fsdp_reduce(&g->f, g->embedding, 1);
}

// Makes the activations of blocks l-kept+1 .. l once more, from the input of the first.
static void forward_again(Gpt *g, int l) {
    int first = l - g->kept + 1;
    for (int k = first; k <= l; k++) {
        attention_half(g, k, k == first);
        mlp_half(g, k, k < l);
    }
}

static void backward(Gpt *g) {
    final_norm_backward(g);
    for (int l = g->c.model.L - 1; l >= 0; l--) {
        if (recomputes(g, l)) forward_again(g, l);
        mlp_half_backward(g, l);
        attention_half_backward(g, l);
    }
    give_back(g);
    send_gradient(g);
    encoder_backward_and_reduce(g);
}

// ---- the rank's state: its pieces of the tensors, and its arrays as they lie --------------------

static int unit_of(const Gpt *g, int id, int layer) {
    int segment = tensor_table[id].segment;
    if (segment != NO_SEGMENT) return block_unit(g, layer, segment);
    return id == LNFW || id == LNFB ? g->norm : g->embedding;
}

static void plan_pieces(Gpt *g) {
    g->pieces = (GptPiece *)malloc_check((size_t)g->c.model.L * TENSORS * sizeof *g->pieces);
    for (int layer = 0; layer < g->c.model.L; layer++)
        for (int id = 0; id < TENSORS; id++) {
            if (!tensor_table[id].per_layer && layer > 0) continue;
            FsdpTensor t = {};
            t.offset = g->offsets[layer][id];
            t.elements = tensor_size(&g->c.model, id);
            FsdpPiece own = fsdp_piece(&g->f, &g->f.units[unit_of(g, id, layer)], &t);
            if (own.n > 0)
                g->pieces[g->npieces++] = (GptPiece){id, layer, own.within, own.at, own.n};
        }
}

static const GptPiece *gpt_pieces(const Gpt *g, int *count) {
    *count = g->npieces;
    return g->pieces;
}

static void *array_of(const Gpt *g, GptArray array) {
    void *const arrays[GPT_ARRAYS] = {g->f.p, g->f.g, g->f.m, g->f.v};
    return arrays[array];
}

static size_t gpt_shard_elements(const Gpt *g) {
    return g->f.shard;
}

static size_t gpt_element_bytes(const Gpt *g, GptArray array) {
    return array == GPT_PARAMETERS  ? sizeof(float)
           : g->c.fsdp.forward_only ? 0
           : array == GPT_GRADIENTS ? grad_bytes(&g->f)
                                    : moment_bytes(g->c.fsdp.moments);
}

static void gpt_read(Gpt *g, GptArray array, void *dst, size_t at, size_t n) {
    size_t size = gpt_element_bytes(g, array);
    cudaCheck(cudaDeviceSynchronize());
    cudaCheck(cudaMemcpy(dst, (const char *)array_of(g, array) + at * size, n * size,
                         cudaMemcpyDeviceToHost));
}

static void gpt_write(Gpt *g, GptArray array, const void *src, size_t at, size_t n) {
    size_t size = gpt_element_bytes(g, array);
    cudaCheck(
        cudaMemcpy((char *)array_of(g, array) + at * size, src, n * size, cudaMemcpyHostToDevice));
    // A copy from pageable memory may return before its last piece is on the device, and the
    // program's streams do not wait for the default stream (CUDA Runtime API, "API synchronization
    // behavior").
    if (!defect("written")) cudaCheck(cudaDeviceSynchronize());
}

static void gpt_arrive(Gpt *g) {
    Fsdp *f = &g->f;
    collective_begins("meeting", "all ranks");
    ncclCheck(
        ncclAllGather(g->loss_sums, g->all_loss_sums, 1, ncclFloat64, f->world_comm, f->reduce));
    cudaCheck(cudaStreamSynchronize(f->reduce));
}

// ---- steps -------------------------------------------------------------------------------------

static int *gpt_inputs(Gpt *g, int micro_step) {
    return g->host_tokens + (size_t)micro_step * 2 * (size_t)g->c.B * (size_t)g->c.T;
}

static void send_inputs(Gpt *g, int micro_step, int T) {
    g->B = g->c.B;
    g->T = T;
    g->writes = false;
    g->before = 0;
    size_t bytes = 2 * (size_t)g->B * (size_t)g->T * sizeof(int);
    cudaCheck(cudaMemcpyAsync(g->tokens, gpt_inputs(g, micro_step), bytes, cudaMemcpyHostToDevice,
                              g->f.compute));
}

static void gpt_micro_step(Gpt *g, int micro_step) {
    bool last = micro_step == g->c.fsdp.micro_steps - 1;
    g->f.micro_step = micro_step;
    fsdp_schedule(&g->f, g->train_visits, g->ntrain, !last);
    send_inputs(g, micro_step, g->c.T);
    cudaCheck(cudaMemsetAsync(&g->loss_sums[micro_step], 0, sizeof(double), g->f.compute));
    forward(g);
    head(g, &g->loss_sums[micro_step], 1, true);
    backward(g);
}

// Copies f->sums to the host: of the gradient, the update, or the parameters.
static void copy_squares(Gpt *g, int which) {
    double *host = g->host_sums + g->c.fsdp.world * (g->c.fsdp.micro_steps + 1) + 3 * which;
    cudaCheck(
        cudaMemcpyAsync(host, g->f.sums, 3 * sizeof(double), cudaMemcpyDeviceToHost, g->f.reduce));
}

static double norm_of_squares(const double squares[3]) {
    return sqrt(squares[0] + squares[1] + squares[2]);
}

static void measure_ratio(Gpt *g, const AdamWConfig *c) {
    copy_squares(g, 0);
    fsdp_norm_of_change(&g->f, c);
    copy_squares(g, 1);
    fsdp_norm_of_parameters(&g->f);
    copy_squares(g, 2);
}

static void gpt_update(Gpt *g, const GptUpdate *u) {
    double tokens = (double)g->c.B * g->c.T * g->c.fsdp.world * g->c.fsdp.micro_steps;
    AdamWConfig c = {};
    c.lr = u->lr, c.beta1 = u->beta1, c.beta2 = u->beta2, c.eps = u->eps;
    c.weight_decay = u->weight_decay, c.grad_clip = u->grad_clip;
    c.step = (int)u->step + 1;
    c.grad_scale = 1.0 / tokens;
    c.seed = u->seed;
    if (!g->measured) fsdp_norm(&g->f);
    g->measured = false;
    if (!u->skip) fsdp_update(&g->f, &c);
    g->ratio = u->ratio && !u->skip;
    if (g->ratio) measure_ratio(g, &c);
    fsdp_schedule(&g->f, g->train_visits, g->ntrain, false);  // the first gathers of the next step
}

// Sum over all ranks' losses, in the order of the global micro-batches.
// sums (world, micro_steps + 1)
static double sum_in_order(const double *sums, int world, int micro_steps) {
    double total = 0;
    for (int m = 0; m < micro_steps; m++)
        for (int r = 0; r < world; r++) total += sums[r * (micro_steps + 1) + m];
    return total;
}

// Copies n doubles of every rank to host_sums, once the compute stream has them.
static void gather_sums(Gpt *g, int n) {
    Fsdp *f = &g->f;
    cudaCheck(cudaEventRecord(f->step_done, f->compute));
    if (!defect("losses")) cudaCheck(cudaStreamWaitEvent(f->reduce, f->step_done, 0));
    collective_begins("gather", "losses");
    ncclCheck(ncclAllGather(g->loss_sums, g->all_loss_sums, (size_t)n, ncclFloat64, f->world_comm,
                            f->reduce));
    cudaCheck(cudaMemcpyAsync(g->host_sums, g->all_loss_sums,
                              (size_t)(n * g->c.fsdp.world) * sizeof(double),
                              cudaMemcpyDeviceToHost, f->reduce));
}

// Waits for loss and norm. A rank's notes travel as one more double behind its loss sums.
static GptStep read_step(Gpt *g, uint32_t notes) {
    Fsdp *f = &g->f;
    int world = g->c.fsdp.world, micro_steps = g->c.fsdp.micro_steps, n = micro_steps + 1;
    double *squares = g->host_sums + world * n, own_notes = notes;
    cudaCheck(cudaMemcpyAsync(g->loss_sums + micro_steps, &own_notes, sizeof own_notes,
                              cudaMemcpyHostToDevice, f->compute));
    gather_sums(g, n);
    if (!g->ratio) copy_squares(g, 0);
    if (!defect("step")) cudaCheck(cudaStreamSynchronize(f->reduce));
    double tokens = (double)g->c.B * g->c.T * world * micro_steps;
    GptStep step = {};
    step.loss = sum_in_order(g->host_sums, world, micro_steps) / tokens;
    for (int r = 0; r < world; r++) step.notes |= (uint32_t)g->host_sums[r * n + micro_steps];
    step.norm = norm_of_squares(squares) / tokens;
    bool ratio = g->ratio && isfinite(step.norm);
    step.ratio = ratio ? norm_of_squares(squares + 3) / norm_of_squares(squares + 6) : NAN;
    g->ratio = false;
    return step;
}

static GptStep gpt_measure(Gpt *g) {
    fsdp_norm(&g->f);
    g->measured = true;
    return read_step(g, 0);
}

static GptStep gpt_finish_step(Gpt *g, uint32_t notes) {
    GptStep step = read_step(g, notes);
    step.counters = fsdp_take_counters(&g->f);
    return step;
}

static void gpt_record(Gpt *g, bool on) {
    Fsdp *f = &g->f;
    f->audit = on ? AUDIT_RECORD : AUDIT_OFF;
    if (on)
        cudaCheck(
            cudaMemsetAsync(f->audit_sums, 0, 4 * (size_t)f->nunits * sizeof(uint64_t), f->reduce));
}

static void gpt_replay(Gpt *g) {
    g->f.audit = AUDIT_REPLAY;
    gpt_micro_step(g, g->c.fsdp.micro_steps);
    g->f.audit = AUDIT_OFF;
}

static void gpt_audited(Gpt *g, uint64_t *sums) {
    Fsdp *f = &g->f;
    cudaCheck(cudaStreamSynchronize(f->reduce));
    cudaCheck(cudaMemcpy(sums, f->audit_sums, 4 * (size_t)f->nunits * sizeof *sums,
                         cudaMemcpyDeviceToHost));
}

static uint64_t gpt_checksum(Gpt *g, GptArray array) {
    Fsdp *f = &g->f;
    uint64_t sum;
    size_t words = f->shard * gpt_element_bytes(g, array) / sizeof(uint32_t);
    cudaCheck(cudaMemsetAsync(f->audit_sums, 0, sizeof sum, f->reduce));
    shard_checksum(f->audit_sums, array_of(g, array), words, f->reduce);
    if (!defect("checksum")) cudaCheck(cudaStreamSynchronize(f->reduce));
    cudaCheck(cudaMemcpy(&sum, f->audit_sums, sizeof sum, cudaMemcpyDeviceToHost));
    return sum;
}

static int gpt_units(const Gpt *g) {
    return g->f.nunits;
}

static const char *gpt_unit_name(const Gpt *g, int unit) {
    return g->f.units[unit].name;
}

static void gpt_evaluate(Gpt *g, int T, double *loss, double *tokens) {
    int B = g->c.B;
    const int *targets = gpt_inputs(g, 0) + B * T;
    double *sums = g->host_sums;  // (2,B): losses, tokens
    memset(sums, 0, sizeof(double) * 2 * (size_t)B);
    for (int i = 0; i < B * T; i++) sums[B + i / T] += targets[i] >= 0;
    fsdp_schedule(&g->f, g->eval_visits, g->neval, false);
    send_inputs(g, 0, T);
    cudaCheck(cudaMemcpyAsync(g->loss_sums, sums, sizeof(double) * 2 * (size_t)B,
                              cudaMemcpyHostToDevice, g->f.compute));
    forward(g);
    head(g, g->loss_sums, B, false);
    gather_sums(g, 2 * B);
    if (!defect("evaluated")) cudaCheck(cudaStreamSynchronize(g->f.reduce));
    fsdp_take_counters(&g->f);  // those of a step are its own
    for (int i = 0; i < g->c.fsdp.world * B; i++) {
        const double *rank = g->host_sums + 2 * B * (i / B);
        loss[i] = rank[i % B], tokens[i] = rank[B + i % B];
    }
}

// T tokens of a text to the logits after token n of them.
static void forward_text(Gpt *g, const int *tokens, int n, float *logits) {
    const ModelConfig *m = &g->c.model;
    int *host = gpt_inputs(g, 0), width = head_width(m);
    for (int i = 0; i < g->T; i++) host[i] = i < n ? tokens[i] : 0;
    fsdp_schedule(&g->f, g->eval_visits, g->neval, false);
    cudaCheck(cudaMemcpyAsync(g->tokens, host, (size_t)g->T * sizeof(int), cudaMemcpyHostToDevice,
                              g->f.compute));
    forward(g);
    borrow(g, g->embedding, "head");
    matmul_forward(g->logits, g->lnf + (size_t)(n - 1) * (size_t)m->C, param(g, WTE, 0), NULL, 1,
                   m->C, width, g->f.compute);
    give_back(g);
    cudaCheck(cudaMemcpyAsync(g->host_logits, g->logits, (size_t)width * sizeof(floatX),
                              cudaMemcpyDeviceToHost, g->f.compute));
    if (!defect("logits")) cudaCheck(cudaStreamSynchronize(g->f.compute));
    fsdp_take_counters(&g->f);
    g->before += n;
    for (int i = 0; i < m->V; i++) logits[i] = to_float(g->host_logits[i]);
}

static void gpt_begin_text(Gpt *g, const int *tokens, int n, float *logits) {
    int padded = (n + 63) / 64 * 64;  // few shapes; what is behind n changes nothing before it
    g->B = 1;
    g->T = padded < g->c.T ? padded : g->c.T;
    g->writes = true;
    g->before = 0;
    forward_text(g, tokens, n, logits);
}

static void gpt_next_token(Gpt *g, int token, float *logits) {
    g->T = 1;
    forward_text(g, &token, 1, logits);
}

// ---- life ---------------------------------------------------------------------------------------

static Gpt *gpt_create(const GptConfig *config) {
    Gpt *g = (Gpt *)calloc(1, sizeof *g);
    if (!g) die("out of memory: asked for %zu bytes", sizeof *g);
    g->c = *config;
    int L = config->model.L, most = config->B * config->T;
    g->buffers.blocks = L;
    if (g->c.logits_rows > most) g->c.logits_rows = most;
    g->kept = config->recompute == RECOMPUTE_LAYER   ? 1
              : config->recompute == RECOMPUTE_EVERY ? config->recompute_k
                                                     : L;
    if (config->fsdp.forward_only) g->kept = 1;
    if (g->kept > L) g->kept = L;
    g->borrowed = g->graded = -1;
    g->acts = (BlockActs *)calloc((size_t)L, sizeof *g->acts);
    g->block_units = (int *)calloc((size_t)L * SEGMENTS, sizeof(int));
    g->offsets = (size_t(*)[TENSORS])calloc((size_t)L, sizeof *g->offsets);
    if (!g->acts || !g->block_units || !g->offsets)
        die("out of memory for the tables of %d blocks", L);
    plan_units(g);
    plan_visits(g);
    fsdp_plan(&g->f, &config->fsdp, &g->buffers);
    plan_pieces(g);
    plan_activations(g);
    return g;
}

// See register_buffers.
static bool is_nccl_memory(const Gpt *g, const Buffer *row) {
    return g->f.registers && row->travel != BUFFER_STAYS;
}

// Returns what is wrong, or NULL.
static const char *allocate_row(const Gpt *g, const Buffer *row) {
    if (is_nccl_memory(g, row)) {
        ncclResult_t e = ncclMemAlloc(row->pointer, row->bytes);
        return e == ncclSuccess ? NULL : ncclGetErrorString(e);
    }
    cudaError_t e = buffer_on_host(row) ? cudaMallocHost(row->pointer, row->bytes)
                                        : cudaMalloc(row->pointer, row->bytes);
    return e == cudaSuccess ? NULL : cudaGetErrorString(e);
}

static void free_row(const Gpt *g, const Buffer *row) {
    if (is_nccl_memory(g, row))
        ncclCheck(ncclMemFree(*row->pointer));
    else
        cudaCheck(buffer_on_host(row) ? cudaFreeHost(*row->pointer) : cudaFree(*row->pointer));
}

static void allocate(const Gpt *g) {
    const Buffers *b = &g->buffers;
    for (int i = 0; i < b->count; i++) {
        const Buffer *row = &b->rows[i];
        const char *wrong = allocate_row(g, row);
        if (wrong)
            die("cannot allocate %s (%.1f MiB): %s; all buffers need %.1f MiB", row->name,
                (double)row->bytes / 1048576.0, wrong, (double)buffers_bytes(b, NULL) / 1048576.0);
        if (buffer_on_host(row))
            memset(*row->pointer, 0, row->bytes);
        else
            cudaCheck(cudaMemset(*row->pointer, 0, row->bytes));
    }
}

static void gpt_join(Gpt *g, ncclUniqueId id) {
    fsdp_join(&g->f, id);
}

static void gpt_start(Gpt *g) {
    const GptConfig *c = &g->c;
    allocate(g);
    share_acts(g);
    fsdp_start(&g->f, &g->buffers);
    OpsDims dims = {c->B, c->T, c->model.C, c->model.NH, c->model.V, c->logits_rows, c->tf32};
    ops_init(&dims, g->workspace, g->workspace_bytes, g->f.compute);
    cudaCheck(cudaDeviceSynchronize());
}

static bool gpt_failed(const Gpt *g, char *text, size_t room) {
    return fsdp_failed(&g->f, text, room);
}

static void gpt_give_up(Gpt *g) {
    fsdp_give_up(&g->f);
}

static void gpt_forget(Gpt *g) {
    fsdp_free_tables(&g->f);
    free(g->acts);
    free(g->block_units);
    free(g->offsets);
    free(g->pieces);
    free(g->train_visits);
    free(g->eval_visits);
    free(g);
}

static void gpt_finish(Gpt *g) {
    fsdp_finish(&g->f, &g->buffers);
    ops_destroy();
    for (int i = 0; i < g->buffers.count; i++) free_row(g, &g->buffers.rows[i]);
    gpt_forget(g);
}

static Buffers *gpt_buffers(Gpt *g) {
    return &g->buffers;
}

static double gpt_bytes_per_parameter(const Gpt *g) {
    return fsdp_bytes_per_parameter(&g->f);
}

static void gpt_trace_start(Gpt *g, int64_t zero) {
    const Fsdp *f = &g->f;
    timeline_start(&g->timeline, f->compute, f->gather, f->reduce, f->messages, zero);
    g->f.timeline = &g->timeline;
}

static void gpt_trace_stop(Gpt *g, const char *path) {
    cudaCheck(cudaDeviceSynchronize());
    timeline_write(&g->timeline, path, g->c.fsdp.rank);
    g->f.timeline = NULL;
}

#if defined(DEVICE_CPU) && !defined(DEVICE_PLAN)
#include "cpu/rates.h"
static void gpt_rates(const GptConfig *c, double *seconds) {
    OpsDims dims = {c->B, c->T, c->model.C, c->model.NH, c->model.V, c->logits_rows, c->tf32};
    measure_rates(&dims, seconds);
}
#define GPT_RATES gpt_rates
#else
#define GPT_RATES NULL
#endif

#define GPT_TEXT(x) #x
#define GPT_QUOTE(x) GPT_TEXT(x)
extern const GptCode GPT_CODE = {FLOATX_NAME " " GPT_QUOTE(GPT_LEVEL),
                                 gpt_create,
                                 gpt_buffers,
                                 gpt_bytes_per_parameter,
                                 gpt_join,
                                 gpt_start,
                                 gpt_failed,
                                 gpt_give_up,
                                 gpt_finish,
                                 gpt_forget,
                                 GPT_RATES,
                                 gpt_pieces,
                                 gpt_shard_elements,
                                 gpt_element_bytes,
                                 gpt_read,
                                 gpt_write,
                                 gpt_arrive,
                                 gpt_inputs,
                                 gpt_micro_step,
                                 gpt_measure,
                                 gpt_update,
                                 gpt_finish_step,
                                 gpt_record,
                                 gpt_replay,
                                 gpt_audited,
                                 gpt_checksum,
                                 gpt_units,
                                 gpt_unit_name,
                                 gpt_evaluate,
                                 gpt_begin_text,
                                 gpt_next_token,
                                 gpt_trace_start,
                                 gpt_trace_stop};
