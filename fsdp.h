// fsdp.h: parameters, gradients and AdamW states sharded across ranks;
// whole layers only for a moment.
//
// A unit is a set of tensors that travel together: laid end to end in one flat array, padded,
// and cut into K equal slices, one for each rank of a shard group. A rank keeps the slices
// of its number, in fp32.
//
//   gather(u)    casts the own slice into its place in a slot and all-gathers the unit there
//   wait(u)      lets the compute stream wait for that; returns the whole unit
//   release(u)   the compute stream has no more use for it
//   reduce(u)    reduce-scatters the unit's gradient and adds the own slice to the gradient shard
//
// They are fsdp_wait, fsdp_release and fsdp_reduce; nobody calls gather: fsdp_schedule says which
// units will be waited for, and prefetch gathers them ahead.
//
// K = world is ZeRO-3. The other strategies are settings of the same machine (FsdpConfig.K,
// .resident, .local). With --reduce ordered every gradient is added in the order of the global
// micro-batches, so that results do not depend on the number of ranks: micro-batch m of a step is
// computed by rank m % world.
// This file knows units, not transformers. Rajbhandari et al. 2020 (ZeRO), Zhao et al. 2023 (FSDP).
#pragma once

#include "config.h"
#include "lib/clock.h"
#include "lib/collectives.h"
#include "ops.h"
#include "timeline.h"

#include <math.h>

#define ncclCheck(call)                                                                            \
    do {                                                                                           \
        ncclResult_t e_ = (call);                                                                  \
        if (e_ != ncclSuccess)                                                                     \
            die("%s:%d: %s: %s%s%s", __FILE__, __LINE__, #call, ncclGetErrorString(e_),            \
                *ncclGetLastError(NULL) ? ": " : "", ncclGetLastError(NULL));                      \
    } while (0)

// Seeded defects for the tests: in the emulator FSDP_DEFECT=NAME leaves out one wait,
// or swaps two collectives.
#ifdef EMULATOR
static bool defect(const char *name) {
    const char *wanted = getenv("FSDP_DEFECT");
    return wanted && !strcmp(wanted, name);
}
#else
#define defect(name) false
#endif

#define FSDP_ALIGN 32  // elements: every tensor and slice starts on 64 bytes in bf16
// Elements of the ordered exchange under way at a time, and the buffers for them: on a GPU one is
// filled while the other is added up; on CPUs a call does all of its work.
#if defined(DEVICE_PLAN)
#define EXCHANGE_ELEMENTS plan_device.exchange_elements
#define EXCHANGE_HALVES (plan_device.cluster.cpu ? 1 : 2)
#elif defined(DEVICE_CPU)
#define EXCHANGE_ELEMENTS EXCHANGE_ELEMENTS_CPU
#define EXCHANGE_HALVES 1
#elif defined(EMULATOR)
#define EXCHANGE_ELEMENTS ((size_t)1 << 12)  // its models are small
#define EXCHANGE_HALVES 2
#else
#define EXCHANGE_ELEMENTS EXCHANGE_ELEMENTS_GPU
#define EXCHANGE_HALVES 2
#endif

typedef struct {
    char name[24];
    size_t offset, elements;  // within the unit
    uint64_t first;           // index of element 0 among all parameters of the model
    bool decays;
} FsdpTensor;

typedef struct {
    char name[24];
    int first_tensor, tensors;
    int uses;                    // gradient contributions in a micro-batch: 2 for tied weights
    bool own_slot;               // does not take part in the rotation of slots
    size_t elements;             // padded to K slices
    size_t slice;                // elements / K
    size_t at;                   // of the own slice in the rank's flat arrays
    size_t whole_at;             // of the unit in Fsdp.whole_grads
    int gather_slot, grad_slot;  // its own slot, or -1: one of the rotating slots
    long version;                // optimizer updates so far
    int contributions[2];        // to the gradient shard and the second shard, in this step
    cudaEvent_t updated;         // its last update (reduce stream)
    cudaEvent_t filled;          // its gradient is complete (compute stream)
} FsdpUnit;

typedef enum { SLOT_FREE, SLOT_READY, SLOT_IN_USE } SlotState;
static const char *const slot_state_names[] = {"free", "gathered", "in use"};

// A buffer that holds one whole unit: its parameters (floatX) or its gradient (fp32).
typedef struct {
    void *data;
    size_t bytes;
    SlotState state;
    int unit;      // whose data it holds; -1: nobody's
    long version;  // of the unit when it was gathered
    bool one;      // one memory for all ranks of the shard group, which are on one node (CPU)
    cudaEvent_t ready, freed;
} FsdpSlot;

// A wait of the compute stream: the time between its two events.
typedef struct {
    cudaEvent_t begin, end;
} FsdpWait;
enum { FSDP_TIMED_WAITS = 1024 };  // of a step; later ones are not timed

// Audits compare the gradients that two ranks compute from one micro-batch: the first notes the
// checksums of its own (record), the second computes them again and keeps nothing else (replay).
typedef enum { AUDIT_OFF, AUDIT_RECORD, AUDIT_REPLAY } FsdpAudit;

typedef struct {
    FsdpConfig c;
    int shard_rank, replica, replicas;
    bool alias_params;  // K == 1 and fp32: the shard is the whole unit, nothing is gathered
    bool direct_grads;  // K == 1: the first gradient of a step is written into the shard

    FsdpUnit *units;
    FsdpTensor *tensors;
    int nunits, ntensors;
    uint64_t parameters;  // of the model
    size_t shard;         // elements of the rank's slices together

    float *p;             // (shard): parameters
    void *g;              // (shard): gradients, fp32 or bf16
    void *m, *v;          // (shard): AdamW moments
    float *g_second;      // (slice of the tied unit): its second use, summed separately (ordered)
    float *g_view;        // (largest slice): a unit's bf16 gradients as fp32
    float *whole_grads;   // (all elements): gradients of the micro-steps so far (local)
    bf16 *bf16_grads;     // (largest unit): what travels with bf16_reduce
    float *exchange;      // (halves, world, exchange_part): of the own slice (ordered)
    bf16 *bf16_exchange;  // the same as it arrives with bf16_reduce; then exchange has one half
    size_t exchange_part;
    int exchange_halves;
    double *sums;  // (SHARD_SUMS): sum of squares of the gradient, see shard_sum_squares
    float *absmax;
    FsdpAudit audit;  // what the micro-step under way is for
    // (2, nunits, 2): checksums of recorded and replayed gradients, by unit and use; the first is
    // also that of a whole array
    uint64_t *audit_sums;

    FsdpSlot *gather_slots, *grad_slots;
    int ngather, ngrad;                  // slots in all
    int rotating_gather, rotating_grad;  // the first of them rotate
    const int *visits;                   // units in the order in which a micro-step waits for them
    int nvisits, cursor;
    bool again;  // after the last visit the first comes again, with the same parameters
    int micro_step;

    ncclComm_t world_comm, gather_comm, reduce_comm, replica_comm;
    bool registers;  // what they move is NCCL's memory, registered with them
    bool joined;     // they are there, also for other threads
    cudaStream_t compute, gather, reduce;
    cudaEvent_t step_done;
    cudaStream_t messages;             // of the ordered exchange, see reduce_ordered
    cudaEvent_t sendable;              // the gradient (reduce stream)
    cudaEvent_t arrived[2], added[2];  // of each half: its messages, their sum (reduce stream)
    FsdpCounters counters;
    FsdpWait *waits;  // of the compute stream since the counters were last taken
    int nwaits;
    Timeline *timeline;
} Fsdp;

// ---- declaring units, before fsdp_plan ---------------------------------------------------------

// The table with room for element n, which is zero. It grows by doubling.
static void *with_room(void *table, int n, size_t element) {
    bool full = (n & (n - 1)) == 0;  // at 0, 1, 2, 4, ...
    if (full) table = realloc_check(table, (size_t)(n ? 2 * n : 1) * element);
    memset((char *)table + (size_t)n * element, 0, element);
    return table;
}

static int fsdp_add_unit(Fsdp *f, const char *name, int uses, bool own_slot) {
    f->units = (FsdpUnit *)with_room(f->units, f->nunits, sizeof *f->units);
    FsdpUnit *u = &f->units[f->nunits];
    snprintf(u->name, sizeof u->name, "%s", name);
    u->first_tensor = f->ntensors;
    u->uses = uses;
    u->own_slot = own_slot;
    return f->nunits++;
}

// Appends a tensor to the last unit. first: index of its element 0 among the model's parameters.
static void fsdp_add_tensor(Fsdp *f, const char *name, size_t elements, uint64_t first,
                            bool decays) {
    f->tensors = (FsdpTensor *)with_room(f->tensors, f->ntensors, sizeof *f->tensors);
    FsdpUnit *u = &f->units[f->nunits - 1];
    FsdpTensor *t = &f->tensors[f->ntensors++];
    snprintf(t->name, sizeof t->name, "%s", name);
    t->offset = u->elements;
    t->elements = elements;
    t->first = first;
    t->decays = decays;
    u->tensors++;
    u->elements = (u->elements + elements + FSDP_ALIGN - 1) / FSDP_ALIGN * FSDP_ALIGN;
    f->parameters += elements;
}

// The part of a tensor that this rank owns.
typedef struct {
    size_t within;  // first element, counted in the tensor
    size_t at;      // the same, counted in the rank's flat arrays
    size_t n;       // 0: none
} FsdpPiece;

static FsdpPiece fsdp_piece(const Fsdp *f, const FsdpUnit *u, const FsdpTensor *t) {
    size_t slice_begin = (size_t)f->shard_rank * u->slice, slice_end = slice_begin + u->slice;
    size_t begin = t->offset > slice_begin ? t->offset : slice_begin;
    size_t end = t->offset + t->elements < slice_end ? t->offset + t->elements : slice_end;
    if (begin >= end) return (FsdpPiece){0, 0, 0};
    return (FsdpPiece){begin - t->offset, u->at + begin - slice_begin, end - begin};
}

// ---- the plan: sizes of everything, before anything is allocated -------------------------------

static size_t moment_bytes(MomentType t) {
    return t == MOMENTS_FP64 ? 8 : t == MOMENTS_BF16 ? 2 : 4;
}

static size_t grad_bytes(const Fsdp *f) {
    return f->c.bf16_grads ? sizeof(bf16) : sizeof(float);
}

static double fsdp_bytes_per_parameter(const Fsdp *f) {
    size_t trained = grad_bytes(f) + 2 * moment_bytes(f->c.moments);
    return (double)(sizeof(float) + (f->c.forward_only ? 0 : trained));
}

static int plan_slot(FsdpSlot **slots, int *n, size_t bytes) {
    *slots = (FsdpSlot *)with_room(*slots, *n, sizeof **slots);
    (*slots)[*n].bytes = bytes;
    (*slots)[*n].unit = -1;
    return (*n)++;
}

// Rotating slots first, each as large as the largest unit that uses them,
// then the units' own slots.
static void plan_slots(Fsdp *f, FsdpSlot **slots, int *n, int *rotating, bool own_for_all,
                       bool gather, int wanted) {
    size_t element = gather ? sizeof(floatX) : sizeof(float), largest = 0;
    int sharing = 0;
    for (int u = 0; u < f->nunits; u++) {
        if (f->units[u].own_slot || own_for_all) continue;
        sharing++;
        if (f->units[u].elements > largest) largest = f->units[u].elements;
    }
    *rotating = sharing < wanted ? sharing : wanted;
    for (int i = 0; i < *rotating; i++) plan_slot(slots, n, largest * element);
    for (int u = 0; u < f->nunits; u++) {
        FsdpUnit *unit = &f->units[u];
        int own =
            unit->own_slot || own_for_all ? plan_slot(slots, n, unit->elements * element) : -1;
        *(gather ? &unit->gather_slot : &unit->grad_slot) = own;
    }
}

static void plan_units(Fsdp *f, size_t *whole, size_t *largest, size_t *second) {
    size_t quantum = (size_t)f->c.K * FSDP_ALIGN;
    for (int i = 0; i < f->nunits; i++) {
        FsdpUnit *u = &f->units[i];
        u->elements = (u->elements + quantum - 1) / quantum * quantum;
        u->slice = u->elements / (size_t)f->c.K;
        u->at = f->shard;
        u->whole_at = *whole;
        f->shard += u->slice;
        *whole += u->elements;
        if (u->elements > *largest) *largest = u->elements;
        if (u->uses == 2 && f->c.ordered && f->c.world * f->c.micro_steps > 1) *second = u->slice;
    }
}

// How gradients go to other ranks from where they are, in fp32 or as bf16.
static BufferTravel grads_travel(const Fsdp *f, bool bf16) {
    const FsdpConfig *c = &f->c;
    bool move = c->bf16_reduce == bf16 && (c->ordered ? c->world > 1 : c->K > 1);
    return move ? BUFFER_REDUCED : BUFFER_STAYS;
}

static void plan_slot_buffers(Fsdp *f, Buffers *b) {
    BufferTravel params = f->c.K > 1 ? BUFFER_GATHERED : BUFFER_STAYS;
    BufferTravel grads = f->c.local ? BUFFER_STAYS : grads_travel(f, false);
    for (int i = 0; i < f->ngather; i++)
        buffers_add_moved(b, params, "gather", &f->gather_slots[i].data, f->gather_slots[i].bytes,
                          "gather slot %d", i);
    for (int i = 0; i < f->ngrad; i++)
        buffers_add_moved(b, grads, "gradient", &f->grad_slots[i].data, f->grad_slots[i].bytes,
                          "gradient slot %d", i);
}

// What arrives is bf16 if that is what travels, and then added up in fp32.
static void plan_exchange(Fsdp *f, size_t largest_slice, Buffers *b) {
    const FsdpConfig *c = &f->c;
    size_t part = EXCHANGE_ELEMENTS / (size_t)c->world;
    f->exchange_part =
        largest_slice < part ? largest_slice : (part + FSDP_ALIGN - 1) / FSDP_ALIGN * FSDP_ALIGN;
    f->exchange_halves = largest_slice > f->exchange_part ? EXCHANGE_HALVES : 1;
    size_t n = f->exchange_part * (size_t)c->world, halves = (size_t)f->exchange_halves;
    buffers_add_moved(b, grads_travel(f, false), "gradient", &f->exchange,
                      (c->bf16_reduce ? 1 : halves) * n * sizeof(float), "ordered exchange");
    if (c->bf16_reduce)
        buffers_add_moved(b, grads_travel(f, true), "gradient", &f->bf16_exchange,
                          halves * n * sizeof(bf16), "ordered exchange bf16");
}

// What gradients need besides their slots. Elements: of all units, of the largest, of the second
// use of tied weights.
static void plan_gradient_buffers(Fsdp *f, size_t whole, size_t largest, size_t second,
                                  Buffers *b) {
    const FsdpConfig *c = &f->c;
    size_t largest_slice = (largest + (size_t)c->K - 1) / (size_t)c->K;
    buffers_add(b, "gradient", &f->g_second, second * sizeof(float), "tied gradient, second use");
    if (c->local)
        buffers_add_moved(b, grads_travel(f, false), "gradient", &f->whole_grads,
                          whole * sizeof(float), "whole gradients");
    if (c->bf16_grads)
        buffers_add(b, "gradient", &f->g_view, largest_slice * sizeof(float),
                    "gradient shard as fp32");
    if (c->bf16_reduce)
        buffers_add_moved(b, grads_travel(f, true), "gradient", &f->bf16_grads,
                          largest * sizeof(bf16), "bf16 gradients");
    if (c->ordered && c->world > 1) plan_exchange(f, largest_slice, b);
    buffers_add(b, "gradient", &f->sums, SHARD_SUMS * sizeof(double), "sums of squares");
    buffers_add(b, "gradient", &f->absmax, sizeof(float), "largest gradient");
    if (c->audit || f->replicas > 1)
        buffers_add(b, "gradient", &f->audit_sums, 4 * (size_t)f->nunits * sizeof(uint64_t),
                    "checksums of gradients");
}

// Fixes the layout and adds every buffer to the table.
static void fsdp_plan(Fsdp *f, const FsdpConfig *config, Buffers *b) {
    FsdpConfig *c = &f->c;
    *c = *config;
    f->shard_rank = c->rank % c->K;
    f->replica = c->rank / c->K;
    f->replicas = c->world / c->K;
    f->alias_params = c->K == 1 && sizeof(floatX) == sizeof(float);
    f->direct_grads =
        c->K == 1 && !c->bf16_reduce && !c->bf16_grads && (f->replicas == 1 || !c->ordered);
    c->local = c->local && c->K > 1 && c->micro_steps > 1;
    size_t whole = 0, largest = 0, second = 0;
    plan_units(f, &whole, &largest, &second);
    buffers_add(b, "state", &f->p, f->shard * sizeof(float), "parameters fp32");
    if (!f->alias_params)
        plan_slots(f, &f->gather_slots, &f->ngather, &f->rotating_gather, c->resident, true,
                   c->gather_slots);
    if (c->forward_only) {
        plan_slot_buffers(f, b);
        return;
    }
    const bool summed = f->replicas > 1 && !c->ordered;  // see reduce_replicas
    buffers_add_moved(b, summed ? BUFFER_SUMMED : BUFFER_STAYS, "state", &f->g,
                      f->shard * grad_bytes(f), "gradients %s", c->bf16_grads ? "bf16" : "fp32");
    buffers_add(b, "state", &f->m, f->shard * moment_bytes(c->moments), "AdamW m");
    buffers_add(b, "state", &f->v, f->shard * moment_bytes(c->moments), "AdamW v");
    if (!f->direct_grads || c->micro_steps > 1 || c->audit)
        plan_slots(f, &f->grad_slots, &f->ngrad, &f->rotating_grad, false, false, c->grad_slots);
    plan_slot_buffers(f, b);
    plan_gradient_buffers(f, whole, largest, second, b);
}

// ---- start and end -----------------------------------------------------------------------------

// Recorded at once: the first wait for it finds nothing to wait for.
static void create_event(Fsdp *f, cudaEvent_t *e) {
    cudaCheck(cudaEventCreateWithFlags(e, cudaEventDisableTiming));
    cudaCheck(cudaEventRecord(*e, f->compute));
}

// Blocks of a stream of higher priority come first when a multiprocessor becomes free: a collective
// does not wait for the end of a product that fills the GPU. Nor do the casts, the sums of parts
// and AdamW on the same streams, for which a collective or the next forward waits.
static void create_streams(Fsdp *f) {
    int lowest, highest;
    cudaCheck(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    cudaCheck(cudaStreamCreateWithPriority(&f->compute, cudaStreamNonBlocking, lowest));
    cudaCheck(cudaStreamCreateWithPriority(&f->gather, cudaStreamNonBlocking, highest));
    cudaCheck(cudaStreamCreateWithPriority(&f->reduce, cudaStreamNonBlocking, highest));
    cudaCheck(cudaStreamCreateWithPriority(&f->messages, cudaStreamNonBlocking, highest));
}

// A communicator that is split off inherits its parent's configuration.
static void create_communicators(Fsdp *f, ncclUniqueId id) {
    const FsdpConfig *c = &f->c;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (c->nccl_ctas) config.maxCTAs = c->nccl_ctas;
    const FsdpCommRanks ranks = fsdp_comm_ranks(c);
    ncclCheck(ncclCommInitRankConfig(&f->world_comm, ranks.world, id, c->rank, &config));
    if (ranks.gather)
        ncclCheck(ncclCommSplit(f->world_comm, f->replica, f->shard_rank, &f->gather_comm, NULL));
    if (ranks.reduce)
        ncclCheck(ncclCommSplit(f->world_comm, f->replica, f->shard_rank, &f->reduce_comm, NULL));
    if (ranks.replicas)
        ncclCheck(ncclCommSplit(f->world_comm, f->shard_rank, f->replica, &f->replica_comm, NULL));
}

// Does ncclMemAlloc round up to pages of 2 MiB, as cudaMalloc does and the plan counts? NCCL before
// 2.28 rounds up to what is recommended for multicast (its src/allocator.cc, with
// cuMulticastGetGranularity), where there is multicast: with Hopper and later. That is up to 512
// MiB (PyTorch's pull request 148374), so that a few slots would take GiB that no plan knows of:
// there the buffers are plain memory, which cannot be registered for NVLink SHARP.
static bool nccl_memory_is_exact(void) {
#if defined(DEVICE_CPU) || defined(DEVICE_PLAN)
    return true;
#else
    int version, device, major;
    ncclCheck(ncclGetVersion(&version));
    cudaCheck(cudaGetDevice(&device));
    cudaCheck(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return version >= NCCL_VERSION(2, 28, 0) || major < 9;
#endif
}

static ncclComm_t moved_by(const Fsdp *f, const Buffer *row) {
    return row->travel == BUFFER_GATHERED ? f->gather_comm
           : row->travel == BUFFER_SUMMED ? f->replica_comm
           : row->travel == BUFFER_STAYS  ? NULL
           : f->c.ordered                 ? f->world_comm
                                          : f->reduce_comm;
}

// From registered memory of ncclMemAlloc a collective sends without copies, on fewer
// multiprocessors. NCCL's user guide, "User Buffer Registration", asks that all ranks register both
// the source and the destination, and that the whole unit begins at the same offset on all of them:
// here it is 0, the start of its slot, or that of its slice in the shard, which replicas lay out
// alike. (NCCL_LOCAL_REGISTER=0 switches it off.)
static void register_buffers(Fsdp *f, Buffers *b) {
    for (int i = 0; f->registers && i < b->count; i++) {
        Buffer *row = &b->rows[i];
        ncclComm_t comm = moved_by(f, row);
        if (comm) ncclCheck(ncclCommRegister(comm, *row->pointer, row->bytes, &row->registered));
    }
}

static void deregister_buffers(Fsdp *f, const Buffers *b) {
    for (int i = 0; i < b->count; i++) {
        ncclComm_t comm = moved_by(f, &b->rows[i]);
        // Without a handle (NCCL_LOCAL_REGISTER=0) NCCL 2.22 takes it for an error.
        if (comm && b->rows[i].registered)
            ncclCheck(ncclCommDeregister(comm, b->rows[i].registered));
    }
}

// On CPUs the ranks of one node reach what is registered where it lies.
static void share_buffers(Fsdp *f, const Buffers *b) {
#ifdef DEVICE_CPU
    for (int i = 0; i < f->ngather && f->c.K > 1; i++) {
        FsdpSlot *s = &f->gather_slots[i];
        s->one = cpu_share(f->gather_comm, s->data, s->bytes, true);
    }
    for (int i = 0; i < b->count; i++) {
        const Buffer *row = &b->rows[i];
        if (row->travel == BUFFER_REDUCED)
            cpu_share(moved_by(f, row), *row->pointer, row->bytes, false);
    }
#else
    (void)f, (void)b;
#endif
}

#if !defined(DEVICE_CPU) && !defined(DEVICE_PLAN)
// The collectives of a unit, once on each communicator. data: room for the whole unit.
static void connect_unit(Fsdp *f, const FsdpUnit *u, char *data) {
    const FsdpConfig *c = &f->c;
    const size_t before = (size_t)f->shard_rank * u->slice;
    const size_t sent = c->bf16_reduce ? sizeof(bf16) : sizeof(float);
    if (f->gather_comm)
        ncclCheck(ncclAllGather(data + before * sizeof(floatX), data, u->slice, FLOATX_NCCL,
                                f->gather_comm, f->reduce));
    if (f->reduce_comm)
        ncclCheck(ncclReduceScatter(data, data + before * sent, u->slice,
                                    c->bf16_reduce ? ncclBfloat16 : ncclFloat32, ncclSum,
                                    f->reduce_comm, f->reduce));
    if (f->replica_comm)
        ncclCheck(ncclAllReduce(data, data, u->slice, c->bf16_grads ? ncclBfloat16 : ncclFloat32,
                                ncclSum, f->replica_comm, f->reduce));
}

// Those of all ranks: the losses, the norm, and the messages of the ordered exchange. sums: room
// for two doubles of each rank.
static void connect_world(Fsdp *f, double *sums) {
    const FsdpConfig *c = &f->c;
    double *arrive = sums + c->world;
    ncclCheck(ncclAllGather(sums + c->rank, sums, 1, ncclFloat64, f->world_comm, f->reduce));
    if (c->forward_only) return;
    ncclCheck(ncclAllReduce(sums, sums, 1, ncclFloat64, ncclSum, f->world_comm, f->reduce));
    if (!c->ordered) return;
    ncclCheck(ncclAllReduce(sums, sums, 1, ncclFloat32, ncclMax, f->world_comm, f->reduce));
    ncclCheck(ncclGroupStart());
    for (int j = 0; j < c->world; j++) {
        ncclCheck(ncclSend(sums + j, 1, ncclFloat64, j, f->world_comm, f->reduce));
        ncclCheck(ncclRecv(arrive + j, 1, ncclFloat64, j, f->world_comm, f->reduce));
    }
    ncclCheck(ncclGroupEnd());
}

static bool is_as_large_as_one_before(const Fsdp *f, int u) {
    for (int i = 0; i < u; i++)
        if (f->units[i].elements == f->units[u].elements) return true;
    return false;
}

// A communicator takes memory for an algorithm's channels when a collective first uses it, and for
// a peer's when a message first goes there (NCCL 2.22 and later: NCCL_RUNTIME_CONNECT is 1, see
// ncclCollPreconnect and ncclP2PPreconnectFunc in its src/group.cc). The algorithm follows from the
// collective, its bytes and whether its buffers are registered. So each collective of a step is
// made here once in memory that is given back, those of units as large as there; of the few numbers
// that all ranks exchange one stands for all.
static void connect_communicators(Fsdp *f) {
    size_t most = 0;
    void *data, *sums, *handles[3] = {};
    const size_t bytes = 2 * (size_t)f->c.world * sizeof(double);
    ncclComm_t comms[3] = {f->gather_comm, f->reduce_comm, f->replica_comm};
    for (int u = 0; u < f->nunits; u++)
        if (f->units[u].elements > most) most = f->units[u].elements;
    most *= f->c.forward_only ? sizeof(floatX) : sizeof(float);
    if (f->registers)
        ncclCheck(ncclMemAlloc(&data, most));
    else
        cudaCheck(cudaMalloc(&data, most));
    cudaCheck(cudaMalloc(&sums, bytes));
    cudaCheck(cudaMemsetAsync(data, 0, most, f->reduce));
    cudaCheck(cudaMemsetAsync(sums, 0, bytes, f->reduce));
    for (int i = 0; f->registers && i < 3; i++)
        if (comms[i]) ncclCheck(ncclCommRegister(comms[i], data, most, &handles[i]));
    for (int u = 0; u < f->nunits; u++)
        if (!is_as_large_as_one_before(f, u)) connect_unit(f, &f->units[u], (char *)data);
    connect_world(f, (double *)sums);
    cudaCheck(cudaStreamSynchronize(f->reduce));
    for (int i = 0; i < 3; i++)
        if (handles[i]) ncclCheck(ncclCommDeregister(comms[i], handles[i]));
    if (f->registers)
        ncclCheck(ncclMemFree(data));
    else
        cudaCheck(cudaFree(data));
    cudaCheck(cudaFree(sums));
}
#endif

// Before the buffers are allocated: what NCCL takes is gone by then. id: the same on all ranks.
static void fsdp_join(Fsdp *f, ncclUniqueId id) {
    create_streams(f);
    collective_begins("start", "the communicators");
    create_communicators(f, id);
    __atomic_store_n(&f->joined, true, __ATOMIC_RELEASE);
    f->registers = nccl_memory_is_exact();
#if !defined(DEVICE_CPU) && !defined(DEVICE_PLAN)
    if (f->c.world > 1 && !defect("connected")) connect_communicators(f);
#endif
    if (!f->registers && f->c.world > 1 && f->c.rank == 0)
        fprintf(stderr, "train_gpt: NCCL is older than 2.28 and would round buffers up by hundreds "
                        "of MiB each: they are not registered with it, and collectives copy\n");
}

// The buffers of the table are allocated by now.
static void fsdp_start(Fsdp *f, Buffers *b) {
    create_event(f, &f->step_done), create_event(f, &f->sendable);
    for (int i = 0; i < 2; i++) create_event(f, &f->arrived[i]), create_event(f, &f->added[i]);
    f->waits = (FsdpWait *)malloc_check(FSDP_TIMED_WAITS * sizeof(FsdpWait));
    for (int i = 0; i < FSDP_TIMED_WAITS; i++) {
        cudaCheck(cudaEventCreate(&f->waits[i].begin));
        cudaCheck(cudaEventCreate(&f->waits[i].end));
    }
    for (int i = 0; i < f->nunits; i++)
        create_event(f, &f->units[i].updated), create_event(f, &f->units[i].filled);
    for (int i = 0; i < f->ngather + f->ngrad; i++) {
        FsdpSlot *s = i < f->ngather ? &f->gather_slots[i] : &f->grad_slots[i - f->ngather];
        create_event(f, &s->ready), create_event(f, &s->freed);
    }
    register_buffers(f, b);
    share_buffers(f, b);
}

typedef struct {
    const char *name;
    ncclComm_t comm;
} FsdpComm;
enum { FSDP_COMMS = 4 };

// In the order in which they are destroyed; NULL: the strategy needs none.
static void fsdp_comms(const Fsdp *f, FsdpComm *comms) {
    comms[0] = {"replicas", f->replica_comm}, comms[1] = {"reduce", f->reduce_comm};
    comms[2] = {"gather", f->gather_comm}, comms[3] = {"world", f->world_comm};
}

// The next two are for another thread, as the one that computes may wait for a collective that will
// never end. NCCL tells of a peer that has died, or a link, to nobody but who asks
// (ncclCommGetAsyncError); such a communicator is to be aborted, and nothing that was enqueued on
// it may be relied on: NCCL user guide, "Communicator Creation and Management Functions".
static bool fsdp_failed(const Fsdp *f, char *text, size_t room) {
    FsdpComm comms[FSDP_COMMS];
    if (!__atomic_load_n(&f->joined, __ATOMIC_ACQUIRE)) return false;
    fsdp_comms(f, comms);
    for (int i = 0; i < FSDP_COMMS; i++) {
        if (!comms[i].comm) continue;
        ncclResult_t error = ncclSuccess, asked = ncclCommGetAsyncError(comms[i].comm, &error);
        if (asked == ncclSuccess) asked = error;
        if (asked == ncclSuccess || asked == ncclInProgress) continue;
        const char *last = ncclGetLastError(comms[i].comm);
        snprintf(text, room, "NCCL, communicator %s: %s%s%s (NCCL_DEBUG=WARN says more)",
                 comms[i].name, ncclGetErrorString(asked), *last ? ": " : "", last);
        return true;
    }
    return false;
}

// The process ends afterwards.
static void fsdp_give_up(const Fsdp *f) {
    FsdpComm comms[FSDP_COMMS];
    if (!__atomic_load_n(&f->joined, __ATOMIC_ACQUIRE)) return;
    fsdp_comms(f, comms);
    for (int i = 0; i < FSDP_COMMS; i++)
        if (comms[i].comm) ncclCommAbort(comms[i].comm);
}

static void fsdp_finish(Fsdp *f, const Buffers *b) {
    FsdpComm comms[FSDP_COMMS];
    fsdp_comms(f, comms);
    cudaCheck(cudaDeviceSynchronize());
    deregister_buffers(f, b);
    for (int i = 0; i < FSDP_COMMS; i++)
        if (comms[i].comm) ncclCheck(ncclCommDestroy(comms[i].comm));
    for (int i = 0; i < f->nunits; i++) {
        cudaCheck(cudaEventDestroy(f->units[i].updated));
        cudaCheck(cudaEventDestroy(f->units[i].filled));
    }
    for (int i = 0; i < f->ngather + f->ngrad; i++) {
        FsdpSlot *s = i < f->ngather ? &f->gather_slots[i] : &f->grad_slots[i - f->ngather];
        cudaCheck(cudaEventDestroy(s->ready));
        cudaCheck(cudaEventDestroy(s->freed));
    }
    cudaCheck(cudaEventDestroy(f->step_done));
    cudaCheck(cudaEventDestroy(f->sendable));
    for (int i = 0; i < 2; i++) {
        cudaCheck(cudaEventDestroy(f->arrived[i]));
        cudaCheck(cudaEventDestroy(f->added[i]));
    }
    for (int i = 0; i < FSDP_TIMED_WAITS; i++) {
        cudaCheck(cudaEventDestroy(f->waits[i].begin));
        cudaCheck(cudaEventDestroy(f->waits[i].end));
    }
    free(f->waits);
    cudaCheck(cudaStreamDestroy(f->compute));
    cudaCheck(cudaStreamDestroy(f->gather));
    cudaCheck(cudaStreamDestroy(f->reduce));
    cudaCheck(cudaStreamDestroy(f->messages));
}

// The tables go last: the rows of the buffers point into them.
static void fsdp_free_tables(Fsdp *f) {
    free(f->units);
    free(f->tensors);
    free(f->gather_slots);
    free(f->grad_slots);
}

// ---- counters ----------------------------------------------------------------------------------

// On CPUs a collective has been waited for when its call returns.
static void count_blocking(Fsdp *f, double began) {
#ifdef DEVICE_CPU
    f->counters.wait_ms += clock_ms() - began;
#else
    (void)f, (void)began;
#endif
}

// Runs a collective and counts the bytes that this rank receives in it. what, of: for the watchdog.
#define counted(f, what, of, counter, bytes, call)                                                 \
    do {                                                                                           \
        collective_begins(what, of);                                                               \
        double began_ = clock_ms();                                                                \
        ncclCheck(call);                                                                           \
        count_blocking(f, began_);                                                                 \
        (f)->counters.counter += (double)(bytes);                                                  \
        (f)->counters.collectives++;                                                               \
    } while (0)

static void compute_waits(Fsdp *f, cudaEvent_t event) {
    FsdpWait *w = f->nwaits < FSDP_TIMED_WAITS ? &f->waits[f->nwaits++] : NULL;
    if (w) cudaCheck(cudaEventRecord(w->begin, f->compute));
    cudaCheck(cudaStreamWaitEvent(f->compute, event, 0));
    if (w) cudaCheck(cudaEventRecord(w->end, f->compute));
}

// What has been counted since the last call. The compute stream must be idle.
static FsdpCounters fsdp_take_counters(Fsdp *f) {
    FsdpCounters c = f->counters;
    for (int i = 0; i < f->nwaits; i++) {
        float ms = 0;
        cudaCheck(cudaEventElapsedTime(&ms, f->waits[i].begin, f->waits[i].end));
        c.wait_ms += (double)ms;
    }
    f->nwaits = 0;
    f->counters = (FsdpCounters){};
    return c;
}

// ---- gather, wait, release ---------------------------------------------------------------------

#define NEVER (1 << 30)

// The unit that is waited for after `ahead` others.
static int visit(const Fsdp *f, int ahead) {
    return f->visits[(f->cursor + ahead) % f->nvisits];
}

// Visits from now until unit u is waited for; NEVER if it is not.
static int next_use(const Fsdp *f, int u) {
    int ahead = f->again ? f->nvisits : f->nvisits - f->cursor;
    for (int i = 0; i < ahead; i++)
        if (visit(f, i) == u) return i;
    return NEVER;
}

// Will unit u be needed again before other rotating units have taken all slots?
static bool worth_keeping(const Fsdp *f, int u) {
    int use = next_use(f, u), others = 0;
    if (f->units[u].gather_slot >= 0) return true;
    if (use == NEVER) return false;
    for (int i = 0; i < use && others < f->rotating_gather; i++) {
        bool seen = f->units[visit(f, i)].gather_slot >= 0;
        for (int k = 0; k < i && !seen; k++) seen = visit(f, k) == visit(f, i);
        others += !seen;
    }
    return others < f->rotating_gather;
}

static FsdpSlot *gathered(Fsdp *f, int u) {
    for (int i = 0; i < f->ngather; i++) {
        FsdpSlot *s = &f->gather_slots[i];
        if (s->unit == u && s->state != SLOT_FREE && s->version == f->units[u].version) return s;
    }
    return NULL;
}

// The slot that unit u is gathered into: its own, or the rotating one whose unit is needed last, if
// that is later than `before` visits from now.
static FsdpSlot *slot_for(Fsdp *f, int u, int before) {
    if (f->units[u].gather_slot >= 0) return &f->gather_slots[f->units[u].gather_slot];
    FsdpSlot *best = NULL;
    int latest = before;
    for (int i = 0; i < f->rotating_gather; i++) {
        FsdpSlot *s = &f->gather_slots[i];
        if (s->state == SLOT_IN_USE) continue;
        bool stale = s->state == SLOT_FREE || s->version != f->units[s->unit].version;
        int use = stale ? NEVER : next_use(f, s->unit);
        if (use > latest) best = s, latest = use;
    }
    return best;
}

// Waits, on CPUs, until all ranks have come: they have freed their slots, which may be one memory,
// have their gradients complete, or have read those of the others.
static void all_ranks_come(Fsdp *f, ncclComm_t comm, const char *what, const FsdpUnit *unit) {
#ifdef DEVICE_CPU
    collective_begins(what, unit->name);
    double began = clock_ms();
    cpu_barrier(comm, unit->elements);
    count_blocking(f, began);
#else
    (void)f, (void)comm, (void)what, (void)unit;
#endif
}

static void gather_into(Fsdp *f, FsdpSlot *s, int u) {
    FsdpUnit *unit = &f->units[u];
    if (s->state == SLOT_IN_USE)
        die("gather of unit %s: its slot holds %s, which is still in use", unit->name,
            f->units[s->unit].name);
    if (!defect("slot freed")) cudaCheck(cudaStreamWaitEvent(f->gather, s->freed, 0));
    if (!defect("updated")) cudaCheck(cudaStreamWaitEvent(f->gather, unit->updated, 0));
    timeline_begin(f->timeline, f->gather, "gather", unit->name);
    floatX *whole = (floatX *)s->data, *own = whole + (size_t)f->shard_rank * unit->slice;
    if (f->c.K > 1) all_ranks_come(f, f->gather_comm, "gather", unit);
    cast_from_float(own, f->p + unit->at, unit->slice, f->gather);
    if (f->c.K > 1)
        counted(f, "gather", unit->name, gathered_bytes,
                (unit->elements - unit->slice) * sizeof(floatX),
                ncclAllGather(own, whole, unit->slice, FLOATX_NCCL, f->gather_comm, f->gather));
    timeline_end(f->timeline, f->gather);
    cudaCheck(cudaEventRecord(s->ready, f->gather));
    s->unit = u;
    s->version = unit->version;
    s->state = SLOT_READY;
}

// Gathers ahead: the next c.prefetch units that rotate, and those with slots
// of their own in between.
static void prefetch(Fsdp *f) {
    if (f->alias_params) return;
    int ahead = f->again ? f->nvisits : f->nvisits - f->cursor;
    for (int i = 0, left = f->c.prefetch; i < ahead && left > 0; i++) {
        int u = visit(f, i);
        bool there = gathered(f, u) != NULL;
        FsdpSlot *s = there ? NULL : slot_for(f, u, i);
        if (s && s->state != SLOT_IN_USE) gather_into(f, s, u);
        if (!there || f->units[u].gather_slot < 0) left--;
    }
}

// Names the units that the coming micro-step waits for, in order, and gathers the first of them.
// again: the same visits follow once more before the parameters change.
static void fsdp_schedule(Fsdp *f, const int *visits, int nvisits, bool again) {
    f->visits = visits;
    f->nvisits = nvisits;
    f->cursor = 0;
    f->again = again;
    prefetch(f);
}

// The whole unit (elements, floatX), for the compute stream. Units are waited for in the
// order of the schedule.
static floatX *fsdp_wait(Fsdp *f, int u) {
    FsdpUnit *unit = &f->units[u];
    if (f->cursor >= f->nvisits || f->visits[f->cursor] != u)
        die("wait for unit %s: the schedule expects %s", unit->name,
            f->cursor < f->nvisits ? f->units[f->visits[f->cursor]].name : "no more units");
    if (f->alias_params) {
        f->cursor++;
        compute_waits(f, unit->updated);
        return (floatX *)(void *)(f->p + unit->at);
    }
    FsdpSlot *s = gathered(f, u);
    if (!s) {
        s = slot_for(f, u, 0);
        if (!s)
            die("wait for unit %s: all %d gather slots are in use", unit->name, f->rotating_gather);
        gather_into(f, s, u);
    }
    if (s->state != SLOT_READY)
        die("wait for unit %s: its slot is %s", unit->name, slot_state_names[s->state]);
    if (!defect("gathered")) compute_waits(f, s->ready);
    s->state = SLOT_IN_USE;
    f->cursor++;
    prefetch(f);
    return (floatX *)s->data;
}

static void fsdp_release(Fsdp *f, int u) {
    if (f->alias_params) return;
    FsdpSlot *s = gathered(f, u);
    if (!s || s->state != SLOT_IN_USE)
        die("release of unit %s: its slot is %s", f->units[u].name,
            s ? slot_state_names[s->state] : "not gathered");
    bool keep = worth_keeping(f, u);
    s->state = keep ? SLOT_READY : SLOT_FREE;
#ifdef FSDP_POISON
    if (!keep && !s->one) cudaCheck(cudaMemsetAsync(s->data, 0xff, s->bytes, f->compute));
#endif
    cudaCheck(cudaEventRecord(s->freed, f->compute));
}

// ---- gradients ---------------------------------------------------------------------------------

// ---- the gradient shard: fp32, or bf16 seen through g_view (reduce stream) ---------------------

// A unit's slice of the gradient as fp32.
static float *grads_open(Fsdp *f, const FsdpUnit *u) {
    if (!f->c.bf16_grads) return (float *)f->g + u->at;
    cast_from_bf16(f->g_view, (bf16 *)f->g + u->at, u->slice, f->reduce);
    return f->g_view;
}

static void grads_close(Fsdp *f, const FsdpUnit *u) {
    if (f->c.bf16_grads) cast_to_bf16((bf16 *)f->g + u->at, f->g_view, u->slice, f->reduce);
}

// Adds nparts contributions of n elements, one after the other, to elements `at`.. of the slice;
// stride: elements from one to the next. A bf16 shard is rounded after each, so that the result
// does not depend on how many come at a time.
static void grads_add(Fsdp *f, const FsdpUnit *u, int use, size_t at, const float *parts,
                      int nparts, size_t stride, size_t n, bool accumulate) {
    bool second = use == 1 && f->g_second;
    if (second || !f->c.bf16_grads) {
        float *shard = second ? f->g_second : (float *)f->g + u->at;
        shard_add_ordered(shard + at, parts, nparts, stride, n, accumulate, f->reduce);
        return;
    }
    bf16 *shard = (bf16 *)f->g + u->at + at;
    for (int k = 0; k < nparts; k++, accumulate = true) {
        if (accumulate) cast_from_bf16(f->g_view, shard, n, f->reduce);
        shard_add(f->g_view, parts + (size_t)k * stride, n, accumulate, f->reduce);
        cast_to_bf16(shard, f->g_view, n, f->reduce);
    }
}

static int *contributions(Fsdp *f, int u, int use) {
    return &f->units[u].contributions[use == 1 && f->g_second];
}

static bool writes_into_shard(const Fsdp *f) {
    return f->direct_grads && f->micro_step == 0 && f->audit == AUDIT_OFF;
}

static FsdpSlot *grad_slot(Fsdp *f, int u, SlotState wanted) {
    int own = f->units[u].grad_slot;
    if (own >= 0) return &f->grad_slots[own];
    for (int i = 0; i < f->rotating_grad; i++) {
        FsdpSlot *s = &f->grad_slots[(u + i) % f->rotating_grad];
        if (s->state == wanted && (wanted == SLOT_FREE || s->unit == u)) return s;
    }
    die("gradient of unit %s: no slot of %d is %s", f->units[u].name, f->rotating_grad,
        slot_state_names[wanted]);
}

// Padding between and behind tensors must not carry another unit's gradient into the shard.
static void clear_gaps(Fsdp *f, const FsdpUnit *u, float *whole) {
    for (int i = 0; i < u->tensors; i++) {
        const FsdpTensor *t = &f->tensors[u->first_tensor + i];
        size_t end = t->offset + t->elements, next = i + 1 < u->tensors ? t[1].offset : u->elements;
        if (next > end)
            cudaCheck(cudaMemsetAsync(whole + end, 0, (next - end) * sizeof(float), f->compute));
    }
}

// Room for the gradient of unit u (elements, fp32), to be overwritten. *fresh false: it already
// holds this micro-batch's earlier contribution (tied weights), add to it.
static float *fsdp_grad(Fsdp *f, int u, int use, bool *fresh) {
    FsdpUnit *unit = &f->units[u];
    *fresh = true;
    if (writes_into_shard(f)) {
        compute_waits(f, unit->updated);
        *fresh = *contributions(f, u, use) == 0;
        return use == 1 && f->g_second ? f->g_second : (float *)f->g + unit->at;
    }
    FsdpSlot *s = grad_slot(f, u, SLOT_FREE);
    if (s->state != SLOT_FREE)
        die("gradient of unit %s: its slot is %s", unit->name, slot_state_names[s->state]);
    if (!defect("gradient freed")) compute_waits(f, s->freed);
    s->state = SLOT_IN_USE;
    s->unit = u;
    clear_gaps(f, unit, (float *)s->data);
    return (float *)s->data;
}

// bytes: from each of the other ranks.
static void count_exchange(Fsdp *f, size_t bytes) {
    f->counters.reduced_bytes += (double)((size_t)(f->c.world - 1) * bytes);
    f->counters.collectives++;
}

// On CPUs of one node: adds the ranks' parts of the own slice where they lie, counted and traced as
// if they had been sent. False: they have to be.
static bool reduce_in_place(Fsdp *f, const FsdpUnit *unit, int use, const void *whole,
                            bool accumulate) {
#ifdef DEVICE_CPU
    if (f->c.bf16_reduce) return false;
    size_t stride = 0;  // bytes
    const float *own = (const float *)whole + (size_t)f->shard_rank * unit->slice;
    const float *parts =
        (const float *)cpu_parts(f->world_comm, own, unit->slice * sizeof(float), &stride);
    if (!parts) return false;
    all_ranks_come(f, f->world_comm, "reduce", unit);
    for (size_t at = 0; at < unit->slice; at += f->exchange_part) {
        size_t n = unit->slice - at < f->exchange_part ? unit->slice - at : f->exchange_part;
        timeline_begin(f->timeline, f->messages, "exchange", unit->name);
        count_exchange(f, n * sizeof(float));
        grads_add(f, unit, use, at, parts + at, f->c.world, stride / sizeof(float), n, accumulate);
        timeline_end(f->timeline, f->messages);
    }
    all_ranks_come(f, f->world_comm, "reduce", unit);  // they have been read
    return true;
#else
    (void)f, (void)unit, (void)use, (void)whole, (void)accumulate;
    return false;
#endif
}

// Where a half begins, in elements.
static size_t exchange_half(const Fsdp *f, int half) {
    return (size_t)half * f->exchange_part * (size_t)f->c.world;
}

// A part of a slice, elements `at`.. of it, and the half of the exchange that it goes through.
typedef struct {
    size_t at, n;
    int half;
} FsdpPart;

// Every rank's part of the own slice, one behind the other, arrives in the half. bf16_reduce: bf16.
static void exchange_part(Fsdp *f, const FsdpUnit *unit, const void *whole, FsdpPart p) {
    size_t size = f->c.bf16_reduce ? sizeof(bf16) : sizeof(float);
    ncclDataType_t type = f->c.bf16_reduce ? ncclBfloat16 : ncclFloat32;
    char *in = (f->c.bf16_reduce ? (char *)f->bf16_exchange : (char *)f->exchange) +
               exchange_half(f, p.half) * size;
    double began = clock_ms();
    collective_begins("reduce", unit->name);
    timeline_begin(f->timeline, f->messages, "exchange", unit->name);
    ncclCheck(ncclGroupStart());
    for (int j = 0; j < f->c.world; j++) {
        size_t slice_of_j = (size_t)(j % f->c.K) * unit->slice;
        ncclCheck(ncclSend((const char *)whole + (slice_of_j + p.at) * size, p.n, type, j,
                           f->world_comm, f->messages));
        ncclCheck(ncclRecv(in + (size_t)j * p.n * size, p.n, type, j, f->world_comm, f->messages));
    }
    ncclCheck(ncclGroupEnd());
    timeline_end(f->timeline, f->messages);
    count_blocking(f, began);
    count_exchange(f, p.n * size);
}

static void add_part(Fsdp *f, const FsdpUnit *unit, int use, FsdpPart p, bool accumulate) {
    const float *parts = f->exchange + (f->c.bf16_reduce ? 0 : exchange_half(f, p.half));
    if (f->c.bf16_reduce)
        cast_from_bf16(f->exchange, f->bf16_exchange + exchange_half(f, p.half),
                       (size_t)f->c.world * p.n, f->reduce);
    grads_add(f, unit, use, p.at, parts, f->c.world, p.n, p.n, accumulate);
}

// Every owner of a slice receives every rank's part of it and adds the parts in the order of the
// ranks (reduce stream), while those of the next part are on their way (stream of the messages).
static void reduce_ordered(Fsdp *f, const FsdpUnit *unit, int use, const void *whole,
                           bool accumulate) {
    if (reduce_in_place(f, unit, use, whole, accumulate)) return;
    cudaCheck(cudaEventRecord(f->sendable, f->reduce));
    if (!defect("sendable")) cudaCheck(cudaStreamWaitEvent(f->messages, f->sendable, 0));
    FsdpPart p = {0, f->exchange_part, 0};
    for (; p.at < unit->slice; p.at += p.n, p.half = (p.half + 1) % f->exchange_halves) {
        if (unit->slice - p.at < p.n) p.n = unit->slice - p.at;
        if (!defect("added")) cudaCheck(cudaStreamWaitEvent(f->messages, f->added[p.half], 0));
        exchange_part(f, unit, whole, p);
        cudaCheck(cudaEventRecord(f->arrived[p.half], f->messages));
        if (!defect("arrived")) cudaCheck(cudaStreamWaitEvent(f->reduce, f->arrived[p.half], 0));
        add_part(f, unit, use, p, accumulate);
        cudaCheck(cudaEventRecord(f->added[p.half], f->reduce));
    }
}

static void reduce_fast(Fsdp *f, const FsdpUnit *unit, int use, float *whole, bool accumulate) {
    float *own = whole + (size_t)f->shard_rank * unit->slice;
    if (f->c.bf16_reduce) {
        bf16 *own16 = f->bf16_grads + (size_t)f->shard_rank * unit->slice;
        if (f->c.K > 1)
            counted(f, "reduce", unit->name, reduced_bytes,
                    (unit->elements - unit->slice) * sizeof(bf16),
                    ncclReduceScatter(f->bf16_grads, own16, unit->slice, ncclBfloat16, ncclSum,
                                      f->reduce_comm, f->reduce));
        cast_from_bf16(own, own16, unit->slice, f->reduce);
    } else if (f->c.K > 1) {
        counted(f, "reduce", unit->name, reduced_bytes,
                (unit->elements - unit->slice) * sizeof(float),
                ncclReduceScatter(whole, own, unit->slice, ncclFloat32, ncclSum, f->reduce_comm,
                                  f->reduce));
    }
    grads_add(f, unit, use, 0, own, 1, 0, unit->slice, accumulate);
}

static void reduce_whole(Fsdp *f, int u, int use, float *whole) {
    FsdpUnit *unit = &f->units[u];
    int *count = contributions(f, u, use);
    if (f->c.bf16_reduce) cast_to_bf16(f->bf16_grads, whole, unit->elements, f->reduce);
    if (f->c.ordered && f->c.world > 1)
        reduce_ordered(f, unit, use, f->c.bf16_reduce ? (const void *)f->bf16_grads : whole,
                       *count > 0);
    else
        reduce_fast(f, unit, use, whole, *count > 0);
    ++*count;
}

// Shards of one slice on different replicas become their sum.
static void reduce_replicas(Fsdp *f, const FsdpUnit *unit) {
    char *shard = (char *)f->g + unit->at * grad_bytes(f);
    counted(f, "sum over replicas", unit->name, allreduced_bytes, unit->slice * grad_bytes(f),
            ncclAllReduce(shard, shard, unit->slice, f->c.bf16_grads ? ncclBfloat16 : ncclFloat32,
                          ncclSum, f->replica_comm, f->reduce));
}

// --accumulate local: adds up whole gradients; the last micro-step's last
// contribution reduces them.
static void add_whole(Fsdp *f, int u, const float *whole, bool last) {
    FsdpUnit *unit = &f->units[u];
    float *sum = f->whole_grads + unit->whole_at;
    shard_add(sum, whole, unit->elements, unit->contributions[0] > 0, f->reduce);
    unit->contributions[0]++;
    if (!last) return;
    unit->contributions[0] = 0;
    reduce_whole(f, u, 0, sum);
}

// whole (elements, fp32): a unit's gradient from one micro-batch.
static void audit_gradient(Fsdp *f, int u, int use, const void *whole) {
    int row = (f->audit == AUDIT_REPLAY ? f->nunits : 0) + u;
    shard_checksum(f->audit_sums + 2 * row + use, whole, f->units[u].elements, f->reduce);
}

// The gradient that fsdp_grad gave room for is complete on the compute stream.
static void fsdp_reduce(Fsdp *f, int u, int use) {
    FsdpUnit *unit = &f->units[u];
    bool last = f->micro_step == f->c.micro_steps - 1 && use == unit->uses - 1;
    if (defect("flip") && f->audit == AUDIT_RECORD && f->c.rank == 1 &&
        u == 2)  // a bit of rank 1's
        cudaCheck(
            cudaMemsetAsync((char *)grad_slot(f, u, SLOT_IN_USE)->data + 20, 0x3f, 1, f->compute));
    cudaCheck(cudaEventRecord(unit->filled, f->compute));
    if (!defect("filled")) cudaCheck(cudaStreamWaitEvent(f->reduce, unit->filled, 0));
    timeline_begin(f->timeline, f->reduce, "reduce", unit->name);
    if (writes_into_shard(f)) {
        ++*contributions(f, u, use);
    } else {
        FsdpSlot *s = grad_slot(f, u, SLOT_IN_USE);
        if (s->state != SLOT_IN_USE || s->unit != u)
            die("reduce of unit %s: its slot is %s", unit->name, slot_state_names[s->state]);
        if (f->audit != AUDIT_OFF) audit_gradient(f, u, use, s->data);
        if (f->audit == AUDIT_REPLAY)
            ;  // only its checksum was wanted
        else if (f->c.local)
            add_whole(f, u, (const float *)s->data, last);
        else
            reduce_whole(f, u, use, (float *)s->data);
#ifdef FSDP_POISON
        cudaCheck(cudaMemsetAsync(s->data, 0xff, s->bytes, f->reduce));
#endif
        cudaCheck(cudaEventRecord(s->freed, f->reduce));
        s->state = SLOT_FREE;
    }
    if (last && f->replicas > 1 && !f->c.ordered) reduce_replicas(f, unit);
    timeline_end(f->timeline, f->reduce);
}

// ---- update ------------------------------------------------------------------------------------

static int log2_ceil(uint64_t n) {
    int bits = 0;
    while (((uint64_t)1 << bits) < n) bits++;
    return bits;
}

static void absmax_of(Fsdp *f, const float *g, size_t n) {
    shard_absmax(f->absmax, g, n, f->reduce);
}

static void squares_of(Fsdp *f, const float *g, size_t n) {
    shard_sum_squares(f->sums, g, n, f->c.ordered ? f->absmax : NULL, log2_ceil(f->parameters),
                      f->reduce);
}

typedef enum { FSDP_GRADIENT, FSDP_PARAMETERS } FsdpShard;

// Calls a function with a whole shard, at once if it is fp32 anyway.
static void for_shard(Fsdp *f, FsdpShard what, void (*function)(Fsdp *, const float *, size_t)) {
    if (what == FSDP_PARAMETERS)
        function(f, f->p, f->shard);
    else if (!f->c.bf16_grads)
        function(f, (const float *)f->g, f->shard);
    else
        for (int i = 0; i < f->nunits; i++)
            function(f, grads_open(f, &f->units[i]), f->units[i].slice);
}

// Leaves the sum of squares of all shards in f->sums, the same on all ranks.
static void sum_squares(Fsdp *f, FsdpShard what) {
    const char *name = what == FSDP_GRADIENT ? "the gradient" : "the parameters";
    bool ordered = f->c.ordered;
    ncclComm_t comm = f->world_comm;
    if (defect("swapped") && f->c.rank == 1)
        ncclCheck(ncclAllReduce(f->sums, f->sums, 3, ncclFloat64, ncclSum, comm, f->reduce));
    cudaCheck(cudaMemsetAsync(f->sums, 0, 3 * sizeof(double), f->reduce));
    if (ordered) {
        cudaCheck(cudaMemsetAsync(f->absmax, 0, sizeof(float), f->reduce));
        for_shard(f, what, absmax_of);
        counted(f, "maximum", name, allreduced_bytes, sizeof(float),
                ncclAllReduce(f->absmax, f->absmax, 1, ncclFloat32, ncclMax, comm, f->reduce));
    }
    // Replicas of a shard count once, and all ranks get the one sum: with a sum of its own, a group
    // could clip by another factor in the last bit, and its replica would drift away for good.
    if (f->replica == 0) for_shard(f, what, squares_of);
    counted(f, "norm", name, allreduced_bytes, 3 * sizeof(double),
            ncclAllReduce(f->sums, f->sums, 3, ncclFloat64, ncclSum, comm, f->reduce));
}

// AdamW on the unit's slice; or, after it, by how much it has changed the parameters, in place of
// their gradients.
static void adamw_on_unit(Fsdp *f, FsdpUnit *u, const AdamWConfig *config, bool change) {
    float *g = grads_open(f, u) - u->at;
    AdamWConfig c = *config;
    c.moments = f->c.moments;
    AdamWPieces pieces = {};
    for (int i = 0; i < u->tensors; i++) {
        const FsdpTensor *t = &f->tensors[u->first_tensor + i];
        FsdpPiece piece = fsdp_piece(f, u, t);
        if (piece.n > 0)
            pieces.piece[pieces.count++] =
                (AdamWPiece){piece.at, piece.n, t->first + piece.within, t->decays};
        if (pieces.count < ADAMW_PIECES && i + 1 < u->tensors) continue;
        if (change)
            adamw_change(g, f->p, f->m, f->v, pieces, f->sums, &c, f->reduce);
        else
            adamw_update(f->p, g, f->m, f->v, pieces, f->sums, &c, f->reduce);
        pieces.count = 0;
    }
    if (change) grads_close(f, u);
}

static void update_unit(Fsdp *f, FsdpUnit *u, const AdamWConfig *config) {
    timeline_begin(f->timeline, f->reduce, "update", u->name);
    adamw_on_unit(f, u, config, false);
    if (defect("drift") && f->replica == 1)  // one byte is another one in this replica
        cudaCheck(cudaMemsetAsync(f->p + u->at, 0x3f, 1, f->reduce));
    timeline_end(f->timeline, f->reduce);
    u->version++;
    cudaCheck(cudaEventRecord(u->updated, f->reduce));
}

// The gradient is complete: leaves its norm in f->sums. Once a step, before the update.
static void fsdp_norm(Fsdp *f) {
    timeline_begin(f->timeline, f->reduce, "norm", "gradient");
    for (int i = 0; i < f->nunits; i++) {
        FsdpUnit *u = &f->units[i];
        if (u->contributions[1] > 0) {
            shard_add(grads_open(f, u), f->g_second, u->slice, true, f->reduce);
            grads_close(f, u);
        }
        u->contributions[0] = u->contributions[1] = 0;
    }
    sum_squares(f, FSDP_GRADIENT);
    timeline_end(f->timeline, f->reduce);
}

// Clip and AdamW, unit by unit in the order of the next forward, whose gathers wait for their unit
// only.
static void fsdp_update(Fsdp *f, const AdamWConfig *config) {
    for (int i = 0; i < f->nunits; i++) update_unit(f, &f->units[i], config);
}

// After the update, which has used the gradient up: leaves the sum of squares of what it has
// changed in f->sums.
static void fsdp_norm_of_change(Fsdp *f, const AdamWConfig *config) {
    timeline_begin(f->timeline, f->reduce, "norm", "change");
    for (int i = 0; i < f->nunits; i++) adamw_on_unit(f, &f->units[i], config, true);
    sum_squares(f, FSDP_GRADIENT);
    timeline_end(f->timeline, f->reduce);
}

static void fsdp_norm_of_parameters(Fsdp *f) {
    timeline_begin(f->timeline, f->reduce, "norm", "parameters");
    sum_squares(f, FSDP_PARAMETERS);
    timeline_end(f->timeline, f->reduce);
}
