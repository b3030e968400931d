// test/test_nccl.cpp: the CPU device's collectives between forked ranks: every operation and type
// over odd sizes and sizes beyond a staging area, in place and not, split communicators; buffers
// that the ranks share give the same; disagreeing ranks are named.
#include "common.h"
#include "ranks.h"

#include <math.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define expect(condition, ...)                                                                     \
    if (!(condition)) die(__VA_ARGS__)

// Runs f on n ranks of one communicator, as on_ranks.
static int in_communicator(int n, void (*f)(ncclComm_t, int rank, int n), const char *errors) {
    return on_ranks(n, [&](int rank, ncclUniqueId id) {
        if (errors && !freopen(errors, "a", stderr)) _exit(2);
        ncclComm_t comm;
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        ncclCommInitRankConfig(&comm, n, id, rank, &config);
        f(comm, rank, n);
        ncclCommDestroy(comm);
    });
}

static float value(int rank, size_t i) {
    return (float)((i * 7 + (size_t)rank * 13) % 101) / 8;
}

static const size_t sizes[] = {1, 3, 1000, 262144 + 5, 700001};

static void gathers(ncclComm_t comm, int rank, int n) {
    for (size_t size : sizes) {
        std::vector<float> own(size), all(size * (size_t)n);
        for (size_t i = 0; i < size; i++) own[i] = value(rank, i);
        for (int in_place = 0; in_place < 2; in_place++) {
            std::fill(all.begin(), all.end(), -1.0f);
            float *place = all.data() + size * (size_t)rank;
            if (in_place) memcpy(place, own.data(), size * sizeof(float));
            ncclAllGather(in_place ? place : own.data(), all.data(), size, ncclFloat32, comm, NULL);
            for (int r = 0; r < n; r++)
                for (size_t i = 0; i < size; i++)
                    expect(all[size * (size_t)r + i] == value(r, i),
                           "all-gather of %zu: element %zu of rank %d", size, i, r);
        }
    }
}

template <class T> static T to_type(float x) {
    T y;
    store_float(&y, x);
    return y;
}

template <> double to_type(float x) {
    return x;
}

template <> int to_type(float x) {
    return (int)(8 * x);
}

static double from_type(float x) {
    return x;
}

static double from_type(double x) {
    return x;
}

static double from_type(int x) {
    return x;
}

static double from_type(bf16 x) {
    return to_float(x);
}

// Values are multiples of 1/8 below 13: their sums over 8 ranks are exact in every type but bf16,
// whose rounding of a sum below 128 is at most 1/4.
template <class T>
static void reduces_type(ncclComm_t comm, int rank, int n, ncclDataType_t type, double tolerance) {
    for (size_t size : sizes)
        for (int max = 0; max < 2; max++) {
            ncclRedOp_t op = max ? ncclMax : ncclSum;
            std::vector<T> whole(size * (size_t)n), all(size);
            for (size_t i = 0; i < whole.size(); i++) whole[i] = to_type<T>(value(rank, i));
            for (size_t i = 0; i < size; i++) all[i] = to_type<T>(value(rank, i));
            ncclReduceScatter(whole.data(), whole.data() + size * (size_t)rank, size, type, op,
                              comm, NULL);
            ncclAllReduce(all.data(), all.data(), size, type, op, comm, NULL);
            for (size_t i = 0; i < size; i++) {
                double sum[2] = {0, 0};
                for (int r = 0; r < n; r++) {
                    double x[2] = {from_type(to_type<T>(value(r, size * (size_t)rank + i))),
                                   from_type(to_type<T>(value(r, i)))};
                    for (int k = 0; k < 2; k++)
                        sum[k] = max ? (x[k] > sum[k] ? x[k] : sum[k]) : sum[k] + x[k];
                }
                double scattered = from_type(whole[size * (size_t)rank + i]),
                       reduced = from_type(all[i]);
                expect(fabs(scattered - sum[0]) <= tolerance,
                       "reduce-scatter, type %d, size %zu, element %zu: %g %g", type, size, i,
                       scattered, sum[0]);
                expect(fabs(reduced - sum[1]) <= tolerance,
                       "all-reduce, type %d, size %zu, element %zu: %g %g", type, size, i, reduced,
                       sum[1]);
            }
        }
}

static void reduces(ncclComm_t comm, int rank, int n) {
    reduces_type<float>(comm, rank, n, ncclFloat32, 0);
    reduces_type<double>(comm, rank, n, ncclFloat64, 0);
    reduces_type<int>(comm, rank, n, ncclInt32, 0);
    reduces_type<bf16>(comm, rank, n, ncclBfloat16, 0.25);
}

static void exchanges(ncclComm_t comm, int rank, int n) {
    for (size_t size : sizes) {
        std::vector<float> out(size * (size_t)n), in(size * (size_t)n);
        for (size_t i = 0; i < out.size(); i++) out[i] = value(rank, i);
        ncclGroupStart();
        for (int j = 0; j < n; j++) {
            ncclSend(out.data() + size * (size_t)j, size, ncclFloat32, j, comm, NULL);
            ncclRecv(in.data() + size * (size_t)j, size, ncclFloat32, j, comm, NULL);
        }
        expect(ncclGroupEnd() == ncclSuccess, "all-to-all of %zu", size);
        for (int j = 0; j < n; j++)
            for (size_t i = 0; i < size; i++)
                expect(in[size * (size_t)j + i] == value(j, size * (size_t)rank + i),
                       "all-to-all: element %zu of rank %d", i, j);
    }
    ncclGroupStart();  // a lone send is no all-to-all
    float x = 0;
    ncclSend(&x, 1, ncclFloat32, 0, comm, NULL);
    expect((ncclGroupEnd() == ncclSuccess) == false, "expected a lone send to be refused");
}

static void splits(ncclComm_t comm, int rank, int n) {
    for (int groups = 1; groups <= n; groups++) {
        ncclComm_t part;
        ncclCommSplit(comm, rank % groups, -rank, &part, NULL);  // in descending order of ranks
        float members = 1, first = (float)rank;
        ncclAllReduce(&members, &members, 1, ncclFloat32, ncclSum, part, NULL);
        int expected = 0;
        for (int r = rank % groups; r < n; r += groups) expected++;
        expect(members == (float)expected, "split into %d: %g members, expected %d", groups,
               members, expected);
        std::vector<float> all((size_t)expected);
        ncclAllGather(&first, all.data(), 1, ncclFloat32, part, NULL);
        for (int i = 1; i < expected; i++)
            expect(all[(size_t)i] < all[(size_t)i - 1], "split: ranks are not in order of key");
        ncclCommDestroy(part);
    }
}

// ---- shared buffers ----------------------------------------------------------------------------

static float *device_floats(size_t n) {
    void *p;
    expect(cudaMalloc(&p, n * sizeof(float)) == cudaSuccess, "cudaMalloc of %zu floats", n);
    return (float *)p;
}

static const size_t shared_sizes[] = {1024, 5000, 262144 + 5, 700001};

// Values whose sums depend on the order.
static float uneven(int rank, size_t i) {
    return (1 + (float)(i % 97)) / (float)(3 + 7 * rank);
}

static void gathers_into_one(ncclComm_t comm, int rank, int n) {
    for (size_t size : shared_sizes) {
        const size_t all = size * (size_t)n;
        float *one = device_floats(all);
        const bool shared = cpu_share(comm, one, all * sizeof(float), true);
        expect(shared == (n > 1), "%d ranks, %zu floats: shared %d", n, all, shared);
        for (int turn = 0; turn < 3; turn++) {
            cpu_barrier(comm, 0);
            float *own = one + size * (size_t)rank;
            for (size_t i = 0; i < size; i++) own[i] = value(rank + turn, i);
            ncclAllGather(own, one, size, ncclFloat32, comm, NULL);
            for (size_t i = 0; i < all; i++)
                expect(one[i] == value((int)(i / size) + turn, i % size),
                       "turn %d, element %zu of %zu: %g", turn, i, all, one[i]);
        }
        cpu_barrier(comm, 0);
        if (rank == 0) one[all - 1] = -1;
        cpu_barrier(comm, 0);
        expect(!shared || one[all - 1] == -1, "rank %d sees another memory than rank 0", rank);
    }
}

static void exchange(ncclComm_t comm, int n, const float *out, float *in, size_t size) {
    ncclGroupStart();
    for (int j = 0; j < n; j++) {
        ncclSend(out + size * (size_t)j, size, ncclFloat32, j, comm, NULL);
        ncclRecv(in + size * (size_t)j, size, ncclFloat32, j, comm, NULL);
    }
    expect(ncclGroupEnd() == ncclSuccess, "all-to-all of %zu", size);
}

static void expect_same(const char *call, const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        expect(!memcmp(&a[i], &b[i], sizeof *a),
               "%s, element %zu of %zu: %.9g where it lies, %.9g copied", call, i, n, a[i], b[i]);
}

// The same calls from buffers that are shared and from others that are not.
static void same_bits(ncclComm_t comm, int rank, int n, bool sharing) {
    for (size_t size : shared_sizes) {
        const size_t all = size * (size_t)n;
        float *there = device_floats(all);
        std::vector<float> copied(all), a(all), b(all);
        const bool shared = cpu_share(comm, there, all * sizeof(float), false);
        expect(shared == (sharing && n > 1), "%d ranks, %zu floats: shared %d", n, all, shared);
        for (size_t i = 0; i < all; i++) copied[i] = there[i] = uneven(rank, i);
        exchange(comm, n, there, a.data(), size);
        exchange(comm, n, copied.data(), b.data(), size);
        expect_same("all-to-all", a.data(), b.data(), all);
        float *in_place = there + size * (size_t)rank;
        ncclReduceScatter(there, in_place, size, ncclFloat32, ncclSum, comm, NULL);
        ncclReduceScatter(copied.data(), b.data(), size, ncclFloat32, ncclSum, comm, NULL);
        expect_same("reduce-scatter", in_place, b.data(), size);
    }
}

static void shared_or_copied(ncclComm_t comm, int rank, int n) {
    same_bits(comm, rank, n, true);
}

static void shows_parts(ncclComm_t comm, int rank, int n) {
    const size_t size = 5000;
    float *mine = device_floats(size), *not_shared = device_floats(size);
    size_t stride = 0;
    expect(cpu_share(comm, mine, size * sizeof(float), false), "expected to share");
    for (size_t i = 0; i < size; i++) mine[i] = value(rank, i);
    cpu_barrier(comm, 0);
    const char *parts = (const char *)cpu_parts(comm, mine + 7, 4000 * sizeof(float), &stride);
    expect(parts, "expected the parts of a shared buffer");
    for (int j = 0; j < n; j++)
        for (size_t i = 0; i < 4000; i++)
            expect(((const float *)(parts + stride * (size_t)j))[i] == value(j, 7 + i),
                   "element %zu of rank %d's part", i, j);
    expect(!cpu_parts(comm, mine + 7, 8192 * sizeof(float), &stride), "a part beyond the buffer");
    expect(!cpu_parts(comm, not_shared, sizeof(float), &stride), "a part of no shared buffer");
}

// No file of several MiB may be made: the ranks copy. What is less than a page is never shared.
static void copies_under_a_limit(ncclComm_t comm, int rank, int n) {
    float *small = device_floats(100);
    expect(!cpu_share(comm, small, 100 * sizeof(float), true),
           "expected 400 bytes not to be shared");
    const struct rlimit limit = {(rlim_t)1 << 20, (rlim_t)1 << 20};
    if (rank == 0) setrlimit(RLIMIT_FSIZE, &limit);
    same_bits(comm, rank, n, false);
}

// One rank's address space is limited: it maps no buffers of the others. (QEMU's user mode takes
// this limit and forgets it.)
static void copies_without_room(ncclComm_t comm, int rank, int n) {
    float *big = device_floats((size_t)4 << 20);
    struct rlimit before, limit = {}, found = {};
    getrlimit(RLIMIT_AS, &before);
    limit.rlim_cur = (rlim_t)1 << 40, limit.rlim_max = before.rlim_max;
    setrlimit(RLIMIT_AS, &limit);
    getrlimit(RLIMIT_AS, &found);
    if (found.rlim_cur != limit.rlim_cur) return;
    if (rank != n - 1) setrlimit(RLIMIT_AS, &before);
    bool shared = cpu_share(comm, big, (size_t)16 << 20, false);
    setrlimit(RLIMIT_AS, &before);
    expect(!shared, "rank %d: expected none to share what one does not map", rank);
    big[0] = (float)rank;
    expect(big[0] == (float)rank, "the buffer is lost");
}

static void leaves_private_memory(ncclComm_t comm, int rank, int n) {
    ncclComm_t part;
    float *one = device_floats(5000);
    ncclCommSplit(comm, 0, rank, &part, NULL);
    cpu_share(part, one, 5000 * sizeof(float), true);
    cpu_barrier(part, 0);
    one[rank] = 1;
    cpu_barrier(part, 0);
    ncclCommDestroy(part);
    for (int j = 0; j < n; j++) expect(one[j] == 0, "expected zeroed memory, found %g", one[j]);
    one[0] = (float)rank;
    cpu_barrier(comm, 0);
    expect(one[0] == (float)rank, "rank %d: expected memory of its own, found %g", rank, one[0]);
}

// One rank has what it sends at another place of the buffer.
static void disagrees_about_shared(ncclComm_t comm, int rank, int) {
    float *x = device_floats(4096), y[4096];
    cpu_share(comm, x, 4096 * sizeof(float), false);
    ncclReduceScatter(x + 64 * rank, y, 8, ncclFloat32, ncclSum, comm, NULL);
}

// ---- the tests ---------------------------------------------------------------------------------

static void disagrees(ncclComm_t comm, int rank, int) {
    float x[8] = {0}, y[64];
    if (rank == 1)
        ncclAllReduce(x, y, 7, ncclFloat32, ncclSum, comm, NULL);
    else
        ncclAllGather(x, y, 8, ncclFloat32, comm, NULL);
}

static const int worlds[] = {1, 2, 3, 5, 8};

static void on_all_worlds(void (*f)(ncclComm_t, int, int)) {
    for (int n : worlds) assert_int_equal(in_communicator(n, f, NULL), 0);
}

static void all_gather_brings_every_ranks_part(void **) {
    on_all_worlds(gathers);
}

static void sums_and_maxima_are_right_for_every_type(void **) {
    on_all_worlds(reduces);
}

static void all_to_all_brings_each_rank_its_part(void **) {
    on_all_worlds(exchanges);
}

static void communicators_split_by_color_and_key(void **) {
    on_all_worlds(splits);
}

static void expect_named(int n, void (*f)(ncclComm_t, int, int), const char *one,
                         const char *another) {
    const char *path = temporary("errors");
    unlink(path);
    void *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    die_spoken = (int *)shared;
    assert_int_not_equal(in_communicator(n, f, path), 0);
    die_spoken = NULL;
    const char *text = read_file(path);
    if (!strstr(text, one) || !strstr(text, another) ||
        strchr(text, '\n') != text + strlen(text) - 1)
        fail_msg("expected \"%s\" and \"%s\" in one line, found: %s", one, another, text);
}

static void ranks_that_disagree_are_named(void **) {
    expect_named(3, disagrees, "rank 1 calls AllReduce of 7 fp32 (sum)",
                 "calls AllGather of 8 fp32");
}

static void ranks_that_disagree_about_shared_buffers_are_named(void **) {
    expect_named(2, disagrees_about_shared,
                 "rank 1 calls ReduceScatter of 8 fp32 (sum) at byte 256 of shared buffer 0",
                 "rank 0 calls ReduceScatter of 8 fp32 (sum) at byte 0 of shared buffer 0");
}

static void all_gather_into_one_memory_is_there_for_all(void **) {
    on_all_worlds(gathers_into_one);
}

static void shared_and_copied_data_give_the_same_bits(void **) {
    on_all_worlds(shared_or_copied);
}

static void ranks_see_the_parts_of_the_others(void **) {
    for (int n : {2, 5}) assert_int_equal(in_communicator(n, shows_parts, NULL), 0);
}

static void ranks_that_cannot_share_copy(void **) {
    for (int n : {2, 3}) {
        assert_int_equal(in_communicator(n, copies_under_a_limit, NULL), 0);
        assert_int_equal(in_communicator(n, copies_without_room, NULL), 0);
    }
}

static void shared_memory_ends_with_its_communicator(void **) {
    assert_int_equal(in_communicator(3, leaves_private_memory, NULL), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_gather_brings_every_ranks_part),
        cmocka_unit_test(sums_and_maxima_are_right_for_every_type),
        cmocka_unit_test(all_to_all_brings_each_rank_its_part),
        cmocka_unit_test(communicators_split_by_color_and_key),
        cmocka_unit_test(ranks_that_disagree_are_named),
        cmocka_unit_test(ranks_that_disagree_about_shared_buffers_are_named),
        cmocka_unit_test(all_gather_into_one_memory_is_there_for_all),
        cmocka_unit_test(shared_and_copied_data_give_the_same_bits),
        cmocka_unit_test(ranks_see_the_parts_of_the_others),
        cmocka_unit_test(ranks_that_cannot_share_copy),
        cmocka_unit_test(shared_memory_ends_with_its_communicator),
    };
    return run_in_folder(tests);
}
