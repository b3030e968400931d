// test_faults.cu: seeded faults on one device: each must be reported by the build that can
// see it, with the place.
#include "kernels/ptx.cuh"
#include "test.h"

#include <atomic>
#include <cublasLt.h>
#include <nccl.h>
#include <pthread.h>

static float *device_floats(size_t n) {
    float *d;
    CHECK(cudaMalloc(&d, n * sizeof(float)));
    CHECK(cudaMemset(d, 0, n * sizeof(float)));
    return d;
}
static void finish(void) {
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
}

// What only some builds can see is expected of them alone.
#ifdef EMU_RACE
constexpr bool RACE_BUILD = true;
#else
constexpr bool RACE_BUILD = false;
#endif
#ifdef EMU_ASAN
constexpr bool ASAN_BUILD = true;
#else
constexpr bool ASAN_BUILD = false;
#endif
template <class F> static void expect_in_race_build(const std::string &words, F scenario) {
    if (RACE_BUILD) expect_report(words, scenario);
}
template <class F> static void expect_in_checked_builds(const std::string &words, F scenario) {
    if (RACE_BUILD || ASAN_BUILD) expect_report(words, scenario);
}
// "|" and the place of a line of this file
static std::string at(int line) {
    return "|emulator/test_faults.cu:" + std::to_string(line);
}

// ---- synchronisation inside a block ------------------------------------------------------------
constexpr int MISSING_SYNC = __LINE__ + 3;
__global__ void missing_syncthreads(float *p) {
    __shared__ float s[64];
    s[threadIdx.x] = (float)threadIdx.x;
    p[threadIdx.x] = s[63 - threadIdx.x];
}
static void a_missing_syncthreads_is_a_race(void **) {
    expect_in_race_build("conflict in shared memory|missing_syncthreads" + at(MISSING_SYNC) +
                             at(MISSING_SYNC + 1),
                         [] {
                             float *p = device_floats(64);
                             missing_syncthreads<<<1, 64>>>(p);
                             finish();
                         });
}
__global__ void second_write_too_early(float *p) {
    __shared__ float s[64];
    for (int i = 0; i < 2; i++) {
        s[threadIdx.x] = (float)i;
        __syncthreads();
        p[threadIdx.x] += s[63 - threadIdx.x];  // and the next write comes without a barrier
    }
}
static void a_missing_second_syncthreads_of_a_loop_is_a_race(void **) {
    expect_in_race_build("conflict in shared memory|two warps without __syncthreads", [] {
        float *p = device_floats(64);
        second_write_too_early<<<1, 64>>>(p);
        finish();
    });
}
__global__ void missing_syncwarp(float *p) {
    __shared__ float s[32];
    s[threadIdx.x] = (float)threadIdx.x;
    float x = __shfl_xor_sync(~0u, 1.0f, 1);  // does not order memory
    p[threadIdx.x] = x + s[threadIdx.x ^ 1];
}
static void a_missing_syncwarp_is_a_race(void **) {
    expect_in_race_build("conflict in shared memory|two lanes without __syncwarp", [] {
        float *p = device_floats(32);
        missing_syncwarp<<<1, 32>>>(p);
        finish();
    });
}
__global__ void dynamic_race(float *p) {
    extern __shared__ float s[];
    s[threadIdx.x / 2] = (float)threadIdx.x;
    __syncthreads();
    p[threadIdx.x] = s[threadIdx.x / 2];
}
static void two_threads_that_write_one_place_are_a_race(void **) {
    expect_in_race_build("write/write conflict in shared memory", [] {
        float *p = device_floats(64);
        dynamic_race<<<1, 64, 128>>>(p);
        finish();
    });
}
constexpr int DIVERGENT = __LINE__ + 3;
__global__ void divergent_barrier(float *p) {
    if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        p[threadIdx.x] = 1;
        __syncthreads();
    }
}
static void a_divergent_barrier_is_reported_with_both_lines(void **) {
    expect_report("divergent __syncthreads" + at(DIVERGENT) + at(DIVERGENT + 3), [] {
        float *p = device_floats(64);
        divergent_barrier<<<1, 64>>>(p);
        finish();
    });
}
constexpr int PARTIAL = __LINE__ + 2;
__global__ void partial_mask(float *p) {
    if (threadIdx.x % 32 < 16) p[threadIdx.x] = __shfl_xor_sync(~0u, 1.0f, 1);
    __syncthreads();
}
static void half_a_warp_with_the_full_mask_is_a_deadlock(void **) {
    expect_report("deadlock|mask is ffffffff" + at(PARTIAL) + at(PARTIAL + 1), [] {
        float *p = device_floats(64);
        partial_mask<<<1, 64>>>(p);
        finish();
    });
}
__global__ void lane_outside_its_mask(float *p) {
    p[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, 0);
}
static void a_lane_that_is_not_in_its_mask_is_reported(void **) {
    expect_report("lane|is not in its own mask 0000ffff", [] {
        float *p = device_floats(32);
        lane_outside_its_mask<<<1, 32>>>(p);
        finish();
    });
}
__global__ void read_of_an_exited_lane(float *p) {
    if (threadIdx.x >= 20) return;
    p[threadIdx.x] = __shfl_sync(~0u, 1.0f, 25);
}
static void a_shuffle_from_a_lane_that_has_left_is_reported(void **) {
    expect_report("reads lane 25, which is not in the mask or has exited", [] {
        float *p = device_floats(32);
        read_of_an_exited_lane<<<1, 32>>>(p);
        finish();
    });
}
constexpr int SPIN = __LINE__ + 2;
__global__ void spin(volatile int *flag) {
    while (*flag == 0) continue;
}
static void a_spinning_kernel_is_reported(void **) {
    expect_report("it spins" + at(SPIN), [] {
        setenv("EMU_KERNEL_SECONDS", "1", 1);
        int *flag;
        CHECK(cudaMalloc(&flag, 4));
        CHECK(cudaMemset(flag, 0, 4));
        spin<<<1, 1>>>(flag);
        finish();
    });
}

// ---- cp.async ----------------------------------------------------------------------------------
template <bool WAIT> __global__ void copy_through_shared(float4 *out, const float4 *in) {
    __shared__ float4 s[32];
    cp_async_16(&s[threadIdx.x], in + threadIdx.x, true);
    cp_async_commit();
    if (WAIT) cp_async_wait<0>();
    out[threadIdx.x] = s[threadIdx.x];
    if (!WAIT) cp_async_wait<0>();
}
static void reading_what_cp_async_brings_before_the_wait_is_reported(void **) {
    expect_in_race_build("before cp.async to it was waited for", [] {
        float4 *p = (float4 *)device_floats(256);
        copy_through_shared<false><<<1, 32>>>(p + 32, p);
        finish();
    });
    expect_silent([] {
        float4 *p = (float4 *)device_floats(256);
        copy_through_shared<true><<<1, 32>>>(p + 32, p);
        finish();
    });
}
__global__ void zeros_from(float4 *p, long i) {
    __shared__ float4 s[1];
    cp_async_16(s, p + i, false);
    cp_async_commit();
    cp_async_wait<0>();
    p[0] = s[0];
}
static void an_address_outside_memory_is_reported_though_cp_async_reads_nothing_there(void **) {
    for (long i : {-1L, 2L, 1L << 40})
        expect_report("zeros_from|of which nothing is read", [i] {
            float4 *p = (float4 *)device_floats(8);
            zeros_from<<<1, 1>>>(p, i);
            finish();
        });
    expect_silent([] {
        float4 *p = (float4 *)device_floats(8);
        zeros_from<<<1, 1>>>(p, 1);
        finish();
    });
}

// ---- memory ------------------------------------------------------------------------------------
__global__ void write_at(float *p, long i) {
    p[i] = 1;
}
constexpr int READ_AT = __LINE__ + 2;
__global__ void read_at(float *p, long i) {
    p[0] = p[i];
}
static void a_write_just_behind_an_allocation_is_reported(void **) {
    for (long i : {-1L, 10L, 63L})
        expect_report(ASAN_BUILD ? "AddressSanitizer|write_at" : "out of bounds|write_at", [i] {
            float *p = device_floats(10);
            write_at<<<1, 1>>>(p, i);
            finish();
        });
}
static void a_read_behind_an_allocation_is_reported(void **) {
    expect_in_checked_builds(
        (ASAN_BUILD ? "AddressSanitizer" : "read of 4 bytes out of bounds in global memory") +
            at(READ_AT),
        [] {
            float *p = device_floats(10);
            read_at<<<1, 1>>>(p, 10);
            finish();
        });
}
static void a_use_of_freed_memory_is_reported(void **) {
    expect_report("read_at", [] {
        float *p = device_floats(10000), *q = device_floats(10000);
        CHECK(cudaFree(q));
        read_at<<<1, 1>>>(p, q - p + 5000);
        finish();
    });
}
__global__ void dynamic_shared_overrun(float *p) {
    extern __shared__ float s[];
    s[threadIdx.x + 1] = 1;
    __syncthreads();
    p[threadIdx.x] = s[threadIdx.x + 1];
}
static void an_index_past_dynamic_shared_memory_is_reported(void **) {
    expect_in_checked_builds("dynamic_shared_overrun", [] {
        float *p = device_floats(64);
        dynamic_shared_overrun<<<1, 64, 256>>>(p);
        finish();
    });
}
constexpr int STATIC_OVERRUN = __LINE__ + 5;
__global__ void static_shared_overrun(float *p, int i) {
    __shared__ float s[70];
    s[threadIdx.x] = 1;
    __syncthreads();
    p[threadIdx.x] = s[i];
}
static void an_index_past_static_shared_memory_is_reported(void **) {
    expect_in_checked_builds(at(STATIC_OVERRUN).substr(1), [] {
        float *p = device_floats(64);
        static_shared_overrun<<<1, 64>>>(p, 70);
        finish();
    });
}
constexpr int UNINITIALISED = __LINE__ + 5;
__global__ void uninitialised_shared(float *p) {
    __shared__ float s[64];
    if (threadIdx.x < 32) s[threadIdx.x] = 1;
    __syncthreads();
    p[threadIdx.x] = s[threadIdx.x];
}
static void a_read_of_uninitialised_memory_is_reported(void **) {
    expect_in_race_build("read of uninitialised shared memory" + at(UNINITIALISED), [] {
        float *p = device_floats(64);
        uninitialised_shared<<<1, 64>>>(p);
        finish();
    });
    expect_in_race_build("read of uninitialised global memory" + at(READ_AT), [] {
        float *p;
        CHECK(cudaMalloc(&p, 64));
        read_at<<<1, 1>>>(p, 5);
        finish();
    });
}
static void new_memory_is_nan(void **) {
    if (RACE_BUILD) return;  // where the copy itself is a report
    expect_silent([] {
        float *p, host[4] = {};
        CHECK(cudaMalloc(&p, sizeof host));
        CHECK(cudaMemcpy(host, p, sizeof host, cudaMemcpyDeviceToHost));
        for (float x : host) EXPECT(x != x);
    });
}
static void the_host_may_not_dereference_device_memory(void **) {
    expect_in_race_build("host code dereferences device memory" + at(__LINE__ + 3), [] {
        float *p = device_floats(4);
        finish();
        p[2] = 1;
    });
    expect_in_race_build("host code dereferences device memory", [] {
        float *p = device_floats(400);
        finish();
        float x[400];
        memcpy(x, p, sizeof x);
        EXPECT(x[3] == 0);
    });
}
static void a_kernel_may_not_touch_host_memory(void **) {
    expect_in_race_build("write of host memory", [] {
        float *p = (float *)malloc(64);
        write_at<<<1, 1>>>(p, 2);
        finish();
    });
}
__global__ void two_blocks_one_place(float *p) {
    p[threadIdx.x] = (float)blockIdx.x;
}
static void blocks_that_write_one_place_are_a_race(void **) {
    expect_in_race_build("write/write conflict in global memory|two blocks", [] {
        float *p = device_floats(32);
        two_blocks_one_place<<<2, 32>>>(p);
        finish();
    });
}
__global__ void last_block_without_fence(float *partial, unsigned *ticket, float *out) {
    partial[blockIdx.x] = 1;
    if (atomicAdd(ticket, 1u) == gridDim.x - 1) *out = partial[0] + partial[1];
}
static void a_last_block_sum_without_fence_is_a_race(void **) {
    expect_in_race_build("write/read conflict in global memory|two blocks without fence", [] {
        float *p = device_floats(4);
        unsigned *ticket = (unsigned *)device_floats(1);
        last_block_without_fence<<<2, 1>>>(p, ticket, p + 2);
        finish();
    });
}
__global__ void misaligned(float *p) {
    *(float4 *)(p + 1) = *(float4 *)(p + 4);
}
static void a_misaligned_vector_store_is_reported(void **) {
    expect_in_checked_builds("misaligned", [] {
        float *p = device_floats(8);
        misaligned<<<1, 1>>>(p);
        finish();
    });
}
__global__ void overflow_int(int *out, int n) {
    *out = n * n;
}
static void a_signed_overflow_is_reported(void **) {
    if (!ASAN_BUILD) return;
    expect_report("signed integer overflow|test_faults.cu", [] {
        int *p = (int *)device_floats(1);
        overflow_int<<<1, 1>>>(p, 100000);
        finish();
    });
}

// ---- launches and limits -----------------------------------------------------------------------
__global__ void uses_dynamic_shared(float *p) {
    extern __shared__ float s[];
    s[threadIdx.x] = 0;
    p[threadIdx.x] = s[threadIdx.x];
}
static void more_than_48_kib_without_opting_in_fails_the_launch(void **) {
    expect_report("uses_dynamic_shared|without cudaFuncSetAttribute at most 49152", [] {
        float *p = device_floats(64);
        uses_dynamic_shared<<<1, 64, 49153>>>(p);
        finish();
    });
    expect_report("a kernel launch failed|nobody asked cudaGetLastError", [] {
        float *p = device_floats(64);
        uses_dynamic_shared<<<1, 64, 49153>>>(p);
        cudaDeviceSynchronize();
    });
    expect_silent([] {
        float *p = device_floats(64);
        CHECK(cudaFuncSetAttribute(uses_dynamic_shared, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   100000));
        uses_dynamic_shared<<<1, 64, 100000>>>(p);
        finish();
        EXPECT(cudaFuncSetAttribute(uses_dynamic_shared,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    227 * 1024 + 1) == cudaErrorInvalidValue);
    });
}
static void too_large_blocks_and_grids_fail_the_launch(void **) {
    for (auto shape :
         {std::pair<dim3, dim3>{1, 1025}, {1, dim3(1, 1, 65)}, {dim3(1, 65536), 1}, {0, 32}})
        expect_report("launch of write_at at|fails", [shape] {
            float *p = device_floats(64);
            write_at<<<shape.first, shape.second>>>(p, 0);
            finish();
        });
}
static void error_codes_come_on_demand(void **) {
    expect_silent([] {
        setenv("EMU_FAIL", "cudaMalloc:2,cudaStreamSynchronize:1:700,launch:1,ncclGetUniqueId:1:2",
               1);
        void *p;
        ncclUniqueId id;
        EXPECT(cudaMalloc(&p, 4) == cudaSuccess && cudaMalloc(&p, 4) == cudaErrorMemoryAllocation);
        EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation &&
               cudaGetLastError() == cudaSuccess);
        EXPECT(cudaMalloc(&p, 4) == cudaSuccess);
        EXPECT(cudaStreamSynchronize(nullptr) == cudaErrorIllegalAddress);
        write_at<<<1, 1>>>((float *)p, 0);
        EXPECT(cudaPeekAtLastError() == cudaErrorLaunchFailure &&
               cudaGetLastError() == cudaErrorLaunchFailure);
        EXPECT(ncclGetUniqueId(&id) == ncclSystemError && ncclGetUniqueId(&id) == ncclSuccess);
    });
    expect_silent([] {
        setenv("EMU_MEMORY", "1000", 1);
        void *p;
        size_t free_bytes, total;
        EXPECT(cudaMalloc(&p, 600) == cudaSuccess &&
               cudaMemGetInfo(&free_bytes, &total) == cudaSuccess);
        EXPECT(free_bytes == 400 && total == 1000);
        EXPECT(cudaMalloc(&p, 600) == cudaErrorMemoryAllocation && p == nullptr);
    });
}
static void copies_are_checked(void **) {
    expect_report("out of bounds: 40 bytes", [] {
        float *p = device_floats(10), host[11] = {};
        cudaMemcpy(p, host, sizeof host, cudaMemcpyHostToDevice);
        finish();
    });
    expect_report("kind 1, but it copies from device to pageable host", [] {
        float *p = device_floats(10), host[10];
        cudaMemcpy(host, p, sizeof host, cudaMemcpyHostToDevice);
    });
}

// ---- streams and the host ----------------------------------------------------------------------
__global__ void add_one(float *p, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) p[i] += 1;
}
struct TwoStreams {
    cudaStream_t a, b;
    cudaEvent_t done;
    TwoStreams() {
        CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
        CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    }
};
template <bool WAIT> static void two_streams_add() {
    TwoStreams s;
    float *p = device_floats(64);
    finish();
    add_one<<<1, 32, 0, s.a>>>(p, 64);
    CHECK(cudaEventRecord(s.done, s.a));
    if (WAIT) CHECK(cudaStreamWaitEvent(s.b, s.done, 0));
    add_one<<<1, 32, 0, s.b>>>(p, 64);
    finish();
}
static void a_missing_wait_between_streams_is_a_race_under_every_schedule(void **) {
    for (const char *schedule : SCHEDULES) {
        expect_in_race_build("conflict in global memory without an order between kernel "
                             "add_one|on stream 2|on stream 3",
                             [schedule] {
                                 setenv("EMU_SCHEDULE", schedule, 1);
                                 two_streams_add<false>();
                             });
        expect_silent([schedule] {
            setenv("EMU_SCHEDULE", schedule, 1);
            two_streams_add<true>();
        });
    }
}
constexpr int HOST_READ = __LINE__ + 9;
template <bool WAIT> static void host_reads_result() {
    TwoStreams s;
    float *p = device_floats(64), *host;
    CHECK(cudaMallocHost(&host, 256));
    finish();
    add_one<<<1, 32, 0, s.a>>>(p, 64);
    CHECK(cudaMemcpyAsync(host, p, 256, cudaMemcpyDeviceToHost, s.a));
    if (WAIT) CHECK(cudaStreamSynchronize(s.a));
    float x = host[3];
    finish();
    EXPECT(x == 1.0f);
}
static void a_copy_from_pageable_memory_is_not_done_when_it_returns(void **) {
    expect_in_race_build("conflict in global memory without an order between cudaMemcpy", [] {
        TwoStreams s;
        float *p = device_floats(64), host[64] = {};
        finish();
        CHECK(cudaMemcpy(p, host, sizeof host, cudaMemcpyHostToDevice));
        add_one<<<1, 32, 0, s.a>>>(p, 64);
        finish();
    });
}
static void a_host_read_of_pinned_memory_before_the_copy_is_done_is_reported(void **) {
    expect_report("", host_reads_result<false>);  // at least the value is wrong
    expect_in_race_build("conflict in pinned host memory|host code" + at(HOST_READ), [] {
        setenv("EMU_SCHEDULE", "eager", 1);  // the value is right
        host_reads_result<false>();
    });
    expect_silent(host_reads_result<true>);
}
static void a_pinned_source_that_the_host_overwrites_too_early_is_reported(void **) {
    expect_in_race_build("conflict in pinned host memory", [] {
        TwoStreams s;
        float *p = device_floats(64), *host;
        CHECK(cudaMallocHost(&host, 256));
        memset(host, 0, 256);
        CHECK(cudaMemcpyAsync(p, host, 256, cudaMemcpyHostToDevice, s.a));
        host[0] = 1;
        finish();
    });
}

static std::atomic<bool> stop;
static void *count(void *p) {
    while (!stop.load()) ++*(volatile long *)p;
    return nullptr;
}
static void another_host_thread_may_work_while_kernels_run(void **) {
    expect_silent([] {
        static volatile long counter;
        pthread_t thread;
        CHECK(pthread_create(&thread, nullptr, count, (void *)&counter));
        float *p = device_floats(4096);
        for (int i = 0; i < 20 || counter == 0; i++) {
            add_one<<<1, 32>>>(p, 4096);
            finish();
        }
        stop = true;
        CHECK(pthread_join(thread, nullptr));
    });
}

// ---- cuBLASLt ----------------------------------------------------------------------------------
static void an_unsupported_cublaslt_attribute_is_an_error(void **) {
    expect_report("matmul attribute 17 is not supported", [] {
        cublasLtMatmulDesc_t d;
        CHECK(cublasLtMatmulDescCreate(&d, CUBLAS_COMPUTE_32F, CUDA_R_32F));
        void *scale = nullptr;
        CHECK(cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scale,
                                             sizeof scale));
    });
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_syncthreads_is_a_race),
        cmocka_unit_test(a_missing_second_syncthreads_of_a_loop_is_a_race),
        cmocka_unit_test(a_missing_syncwarp_is_a_race),
        cmocka_unit_test(two_threads_that_write_one_place_are_a_race),
        cmocka_unit_test(a_divergent_barrier_is_reported_with_both_lines),
        cmocka_unit_test(half_a_warp_with_the_full_mask_is_a_deadlock),
        cmocka_unit_test(a_lane_that_is_not_in_its_mask_is_reported),
        cmocka_unit_test(a_shuffle_from_a_lane_that_has_left_is_reported),
        cmocka_unit_test(a_spinning_kernel_is_reported),
        cmocka_unit_test(reading_what_cp_async_brings_before_the_wait_is_reported),
        cmocka_unit_test(an_address_outside_memory_is_reported_though_cp_async_reads_nothing_there),
        cmocka_unit_test(a_write_just_behind_an_allocation_is_reported),
        cmocka_unit_test(a_read_behind_an_allocation_is_reported),
        cmocka_unit_test(a_use_of_freed_memory_is_reported),
        cmocka_unit_test(an_index_past_dynamic_shared_memory_is_reported),
        cmocka_unit_test(an_index_past_static_shared_memory_is_reported),
        cmocka_unit_test(a_read_of_uninitialised_memory_is_reported),
        cmocka_unit_test(new_memory_is_nan),
        cmocka_unit_test(the_host_may_not_dereference_device_memory),
        cmocka_unit_test(a_kernel_may_not_touch_host_memory),
        cmocka_unit_test(blocks_that_write_one_place_are_a_race),
        cmocka_unit_test(a_last_block_sum_without_fence_is_a_race),
        cmocka_unit_test(a_misaligned_vector_store_is_reported),
        cmocka_unit_test(a_signed_overflow_is_reported),
        cmocka_unit_test(more_than_48_kib_without_opting_in_fails_the_launch),
        cmocka_unit_test(too_large_blocks_and_grids_fail_the_launch),
        cmocka_unit_test(error_codes_come_on_demand),
        cmocka_unit_test(copies_are_checked),
        cmocka_unit_test(a_missing_wait_between_streams_is_a_race_under_every_schedule),
        cmocka_unit_test(a_copy_from_pageable_memory_is_not_done_when_it_returns),
        cmocka_unit_test(a_host_read_of_pinned_memory_before_the_copy_is_done_is_reported),
        cmocka_unit_test(a_pinned_source_that_the_host_overwrites_too_early_is_reported),
        cmocka_unit_test(another_host_thread_may_work_while_kernels_run),
        cmocka_unit_test(an_unsupported_cublaslt_attribute_is_an_error),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
