// test_counters.cu: the counters on small kernels whose counts are known by hand.
#include "emulator/counters.h"
#include "kernels/ptx.cuh"
#include "test.h"

#include <cuda_bf16.h>

using namespace emu;

static float *device_floats(size_t n) {
    float *p;
    CHECK(cudaMalloc(&p, n * sizeof(float)));
    return p;
}

// Runs the launch in a process of its own and expects these counts of it.
struct Expected {
    Counter counter;
    double value;
};
template <class F> static void expect_counts(F launch, std::initializer_list<Expected> expected) {
    expect_silent([&] {
        launch();
        CHECK(cudaDeviceSynchronize());
        const Counts &found = counted_launches().back().counts;
        for (const Expected &e : expected)
            if (found[e.counter] != e.value)
                fprintf(stderr, "%s: expected %g, found %g\n", counter_names[e.counter], e.value,
                        found[e.counter]);
    });
}

// ---- global memory ------------------------------------------------------------------------------
__global__ void strided_copy(float *to, const float *from, int stride) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x) * stride;
    to[i] = from[i];
}
static void a_strided_copy_takes_the_sectors_that_its_addresses_touch(void **) {
    const int strides[] = {1, 2, 8, 32}, sectors[] = {4, 8, 32, 32};
    for (int i = 0; i < 4; i++)
        expect_counts(
            [&] {
                float *from = device_floats(4096), *to = device_floats(4096);
                strided_copy<<<2, 64>>>(to, from, strides[i]);
            },
            {{COUNT_warps, 4},
             {COUNT_loads, 4},
             {COUNT_load_lanes, 128},
             {COUNT_load_bytes, 512},
             {COUNT_load_sectors, 4.0 * sectors[i]},
             {COUNT_load_sectors_least, 16},
             {COUNT_stores, 4},
             {COUNT_store_sectors, 4.0 * sectors[i]},
             {COUNT_read_sectors, 4.0 * sectors[i]},
             {COUNT_written_sectors, 4.0 * sectors[i]},
             {COUNT_shared, 0}});
}
static void a_misaligned_copy_takes_one_more_sector(void **) {
    expect_counts(
        [] {
            float *from = device_floats(256), *to = device_floats(256);
            strided_copy<<<1, 32>>>(to + 4, from + 1, 1);
        },
        {{COUNT_load_sectors, 5},
         {COUNT_load_sectors_least, 4},
         {COUNT_store_sectors, 5},
         {COUNT_store_sectors_least, 4}});
}
__global__ void pack_copy(float4 *to, const float4 *from) {
    to[threadIdx.x] = from[threadIdx.x];
}
static void packs_of_16_bytes_are_one_request_of_16_sectors(void **) {
    expect_counts(
        [] {
            float *from = device_floats(256), *to = device_floats(256);
            pack_copy<<<1, 32>>>((float4 *)to, (const float4 *)from);
        },
        {{COUNT_loads, 1},
         {COUNT_load_bytes, 512},
         {COUNT_load_sectors, 16},
         {COUNT_load_sectors_least, 16},
         {COUNT_stores, 1},
         {COUNT_store_sectors, 16}});
}
struct alignas(16) Eight {
    __nv_bfloat16 x[8];
};
__global__ void double_packs(Eight *to, const Eight *from) {
    Eight v = from[threadIdx.x];
    for (int i = 0; i < 8; i++) {
        __nv_bfloat16 twice = __float2bfloat16(2 * __bfloat162float(v.x[i]));
        v.x[i] = twice;
    }
    to[threadIdx.x] = v;
}
static void a_pack_whose_elements_are_used_one_by_one_is_one_request(void **) {
    expect_counts(
        [] {
            float *from = device_floats(256), *to = device_floats(256);
            double_packs<<<1, 32>>>((Eight *)to, (const Eight *)from);
        },
        {{COUNT_loads, 1},
         {COUNT_load_sectors, 16},
         {COUNT_load_sectors_least, 16},
         {COUNT_stores, 1},
         {COUNT_store_sectors, 16}});
}
struct alignas(16) Two {
    double x[4];
};
__global__ void wide_copy(Two *to, const Two *from) {
    to[threadIdx.x] = from[threadIdx.x];
}
static void a_struct_of_32_bytes_is_two_requests_that_share_sectors(void **) {
    expect_counts(
        [] {
            float *from = device_floats(256), *to = device_floats(256);
            wide_copy<<<1, 32>>>((Two *)to, (const Two *)from);
        },
        {{COUNT_loads, 2},
         {COUNT_load_bytes, 1024},
         {COUNT_load_sectors, 64},
         {COUNT_load_sectors_least, 32},
         {COUNT_missed_sectors, 32},
         {COUNT_read_sectors, 32}});
}
__global__ void broadcast(float *to, const float *from) {
    to[threadIdx.x] = from[0];
}
static void a_broadcast_takes_one_sector(void **) {
    expect_counts(
        [] {
            float *from = device_floats(1), *to = device_floats(32);
            broadcast<<<1, 32>>>(to, from);
        },
        {{COUNT_load_sectors, 1}, {COUNT_load_sectors_least, 1}, {COUNT_load_bytes, 128}});
}
__global__ void lower_lanes_copy(float *to, const float *from) {
    if (threadIdx.x % 32 < 16) to[threadIdx.x] = from[threadIdx.x];
}
static void a_half_empty_warp_has_16_active_lanes(void **) {
    expect_counts(
        [] {
            float *from = device_floats(64), *to = device_floats(64);
            lower_lanes_copy<<<1, 64>>>(to, from);
        },
        {{COUNT_loads, 2}, {COUNT_load_lanes, 32}, {COUNT_load_sectors, 4}});
}
// Each lane another number of times: the lanes' first executions are one request, and so on.
__global__ void uneven_loop(float *to, const float *from) {
    float sum = 0;
    for (unsigned i = 0; i <= threadIdx.x; i++) sum += from[i * 32 + threadIdx.x];
    to[threadIdx.x] = sum;
}
static void requests_of_a_loop_are_matched_by_iteration(void **) {
    expect_counts(
        [] {
            float *from = device_floats(32 * 32), *to = device_floats(32);
            uneven_loop<<<1, 32>>>(to, from);
        },
        {{COUNT_loads, 32},
         {COUNT_load_lanes, 32 * 33 / 2},
         {COUNT_load_sectors, 8 * (4 + 3 + 2 + 1)}});
}
__global__ void twice(float *to, const float *from) {
    to[threadIdx.x] = from[threadIdx.x];
    __syncthreads();
    to[threadIdx.x + blockDim.x] = from[threadIdx.x] + to[threadIdx.x];
}
static void what_is_read_again_is_counted_once_as_distinct(void **) {
    expect_counts(
        [] {
            float *from = device_floats(64), *to = device_floats(128);
            twice<<<1, 64>>>(to, from);
        },
        {{COUNT_loads, 6},
         {COUNT_load_sectors, 24},
         {COUNT_missed_sectors, 16},  // from once, to once
         {COUNT_read_sectors, 8},     // to was written by the launch itself
         {COUNT_written_sectors, 16},
         {COUNT_barriers, 2}});
}
__global__ void count_up(unsigned *p) {
    atomicAdd(&p[threadIdx.x / 32], 1u);
}
static void an_atomic_loads_and_stores(void **) {
    expect_counts([] { count_up<<<1, 64>>>((unsigned *)device_floats(2)); },
                  {{COUNT_atomics, 2}, {COUNT_load_sectors, 2}, {COUNT_store_sectors, 2}});
}

// ---- shared memory ------------------------------------------------------------------------------
template <int LD> __global__ void transpose(float *to, const float *from) {
    __shared__ float tile[32][LD];
    for (int y = (int)threadIdx.y; y < 32; y += (int)blockDim.y)
        tile[y][threadIdx.x] = from[y * 32 + (int)threadIdx.x];
    __syncthreads();
    for (int y = (int)threadIdx.y; y < 32; y += (int)blockDim.y)
        to[y * 32 + (int)threadIdx.x] = tile[threadIdx.x][y];
}
static void a_column_of_a_tile_takes_32_wavefronts_and_with_a_pad_one(void **) {
    auto run = [](auto kernel) {
        float *from = device_floats(1024), *to = device_floats(1024);
        kernel(to, from);
    };
    expect_counts(
        [&] {
            run([](float *to, const float *from) { transpose<32><<<1, dim3(32, 8)>>>(to, from); });
        },
        {{COUNT_shared, 64}, {COUNT_wavefronts, 32 + 32 * 32}, {COUNT_wavefronts_least, 64}});
    expect_counts(
        [&] {
            run([](float *to, const float *from) { transpose<33><<<1, dim3(32, 8)>>>(to, from); });
        },
        {{COUNT_shared, 64}, {COUNT_wavefronts, 64}, {COUNT_wavefronts_least, 64}});
}
template <class T> __global__ void shared_read(T *to, int stride) {
    extern __shared__ double2 room[];
    T *x = (T *)room;
    for (int i = (int)threadIdx.x; i < 32 * stride; i += 32) x[i] = to[i];
    __syncwarp();
    to[threadIdx.x] = x[(int)threadIdx.x * stride];
}
// Of the write, which has no conflict, and the read.
template <class T> static void expect_wavefronts(int stride, double found, double least) {
    expect_counts([=] { shared_read<T><<<1, 32, 16384>>>((T *)device_floats(256), stride); },
                  {{COUNT_shared, 1.0 + stride},
                   {COUNT_wavefronts, found + stride * least},
                   {COUNT_wavefronts_least, (1 + stride) * least}});
}
static void wide_accesses_are_served_in_halves_and_quarters_of_the_warp(void **) {
    expect_wavefronts<float>(1, 1, 1);
    expect_wavefronts<float>(2, 2, 1);
    expect_wavefronts<float>(3, 1, 1);
    expect_wavefronts<float2>(1, 2, 2);
    expect_wavefronts<float2>(2, 4, 2);
    expect_wavefronts<float4>(1, 4, 4);
    expect_wavefronts<float4>(2, 8, 4);
    expect_wavefronts<float4>(8, 32, 4);
    expect_wavefronts<__nv_bfloat16>(1, 1, 1);  // two lanes a word
    expect_wavefronts<__nv_bfloat16>(4, 2, 1);
}
template <bool SWIZZLED> __global__ void load_matrices(uint32_t *to, const uint4 *from) {
    extern __shared__ uint4 tile[];  // 16 rows of 128 bytes
    int lane = (int)threadIdx.x;
    auto place = [](int row, int piece) {
        return row * 8 + (SWIZZLED ? piece ^ (row & 7) : piece);
    };
    for (int i = lane; i < 128; i += 32) cp_async_16(&tile[place(i / 8, i % 8)], &from[i], true);
    ::cp_async_commit();
    ::cp_async_wait<0>();
    __syncwarp();
    uint32_t r[4];
    ldmatrix_x4(r, &tile[place(lane % 16, lane / 16)]);
    for (int i = 0; i < 4; i++) to[i * 32 + lane] = r[i];
}
static void
ldmatrix_takes_a_wavefront_a_matrix_on_a_swizzled_tile_and_eight_on_a_plain_one(void **) {
    auto arrays = [](auto kernel) {
        float *from = device_floats(512), *to = device_floats(128);
        kernel((uint32_t *)to, (const uint4 *)from);
    };
    // cp.async stores four rows of 128 bytes at a time
    expect_counts(
        [&] {
            arrays([](uint32_t *to, const uint4 *from) {
                load_matrices<true><<<1, 32, 2048>>>(to, from);
            });
        },
        {{COUNT_ldmatrix, 1},
         {COUNT_shared, 5},
         {COUNT_wavefronts, 16 + 4},
         {COUNT_wavefronts_least, 20},
         {COUNT_loads, 4},
         {COUNT_load_sectors, 64}});
    expect_counts(
        [&] {
            arrays([](uint32_t *to, const uint4 *from) {
                load_matrices<false><<<1, 32, 2048>>>(to, from);
            });
        },
        {{COUNT_ldmatrix, 1}, {COUNT_wavefronts, 16 + 32}, {COUNT_wavefronts_least, 20}});
}

// ---- arithmetic of a warp -----------------------------------------------------------------------
__global__ void some_arithmetic(float *to) {
    float d[4] = {}, x = expf((float)threadIdx.x);
    uint32_t a[4] = {}, b[2] = {};
    for (int i = 0; i < 3; i++) mma_m16n8k16_bf16(d, a, b, d);
    x += __shfl_xor_sync(~0u, x, 1);
    if (threadIdx.x < 8) x += logf(x);
    to[threadIdx.x] = x + d[0];
}
static void tensor_core_products_shuffles_and_special_functions_are_counted_by_warp(void **) {
    expect_counts([] { some_arithmetic<<<1, 64>>>(device_floats(64)); },
                  {{COUNT_mma, 6}, {COUNT_shuffles, 2}, {COUNT_special, 3}});
}

// ---- launches -----------------------------------------------------------------------------------
// Every block reads the same 256 bytes and copies 128 of its own.
__global__ void common_and_own(float *to, const float *common, const float *from) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    to[i] = from[i] + common[threadIdx.x] + common[threadIdx.x + 32];
}
static void a_few_blocks_tell_the_counts_of_a_large_grid(void **) {
    expect_silent([] {
        count_first_blocks(8);
        const size_t BLOCKS = 1 << 20;
        float *common = device_floats(64), *from = device_floats(BLOCKS * 32),
              *to = device_floats(BLOCKS * 32);
        for (int i = 0; i < 3; i++) common_and_own<<<BLOCKS, 32>>>(to, common, from);
        CHECK(cudaDeviceSynchronize());
        EXPECT(counted_launches().size() == 1);
        const CountedLaunch &l = counted_launches()[0];
        EXPECT(l.kernel == "common_and_own" && l.times == 3 && l.blocks == BLOCKS &&
               l.threads == 32);
        EXPECT(l.counts[COUNT_loads] == 3.0 * BLOCKS);
        EXPECT(l.counts[COUNT_missed_sectors] == 12.0 * BLOCKS);
        EXPECT(l.counts[COUNT_read_sectors] == 4.0 * BLOCKS + 8);
        EXPECT(l.counts[COUNT_written_sectors] == 4.0 * BLOCKS);
    });
}
static void a_launch_has_the_name_that_the_compiler_gives_its_kernel(void **) {
    expect_silent([] {
        shared_read<float2><<<1, 32, 16384>>>((float2 *)device_floats(64), 1);
        CHECK(cudaDeviceSynchronize());
        EXPECT(counted_launches()[0].kernel == "shared_read<float2>");
        EXPECT(counted_launches()[0].shared_bytes == 16384);
    });
}
constexpr int COPY_LINE = __LINE__ + 2;
__global__ void copy_of_a_line(float *to, const float *from) {
    to[threadIdx.x] = from[threadIdx.x * 8];
}
static void counts_are_known_by_source_line(void **) {
    expect_silent([] {
        copy_of_a_line<<<1, 32>>>(device_floats(32), device_floats(256));
        CHECK(cudaDeviceSynchronize());
        std::vector<CountedLine> lines = counted_lines();
        EXPECT(lines.size() == 1);
        EXPECT(lines[0].line == "emulator/test_counters.cu:" + std::to_string(COPY_LINE));
        EXPECT(lines[0].counts[COUNT_load_sectors] == 32 &&
               lines[0].counts[COUNT_store_sectors] == 4);
    });
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_strided_copy_takes_the_sectors_that_its_addresses_touch),
        cmocka_unit_test(a_misaligned_copy_takes_one_more_sector),
        cmocka_unit_test(packs_of_16_bytes_are_one_request_of_16_sectors),
        cmocka_unit_test(a_pack_whose_elements_are_used_one_by_one_is_one_request),
        cmocka_unit_test(a_struct_of_32_bytes_is_two_requests_that_share_sectors),
        cmocka_unit_test(a_broadcast_takes_one_sector),
        cmocka_unit_test(a_half_empty_warp_has_16_active_lanes),
        cmocka_unit_test(requests_of_a_loop_are_matched_by_iteration),
        cmocka_unit_test(what_is_read_again_is_counted_once_as_distinct),
        cmocka_unit_test(an_atomic_loads_and_stores),
        cmocka_unit_test(a_column_of_a_tile_takes_32_wavefronts_and_with_a_pad_one),
        cmocka_unit_test(wide_accesses_are_served_in_halves_and_quarters_of_the_warp),
        cmocka_unit_test(
            ldmatrix_takes_a_wavefront_a_matrix_on_a_swizzled_tile_and_eight_on_a_plain_one),
        cmocka_unit_test(tensor_core_products_shuffles_and_special_functions_are_counted_by_warp),
        cmocka_unit_test(a_few_blocks_tell_the_counts_of_a_large_grid),
        cmocka_unit_test(a_launch_has_the_name_that_the_compiler_gives_its_kernel),
        cmocka_unit_test(counts_are_known_by_source_line),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
