// test_device.cu: the device language of the emulator: correct kernels give the right numbers and
// no report, in every order of threads and in every build.
#include "kernels/ptx.cuh"
#include "test.h"

#include <cuda_bf16.h>

#include <math.h>
#include <vector>

template <class F> static void in_every_order(F scenario) {
    for (const char *order : ORDERS) {
        expect_silent([&] {
            setenv("EMU_ORDER", order, 1);
            scenario();
        });
    }
}

template <class T> static T *to_device(const std::vector<T> &host) {
    T *d;
    CHECK(cudaMalloc(&d, host.size() * sizeof(T)));
    CHECK(cudaMemcpy(d, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    return d;
}
template <class T> static std::vector<T> to_host(const T *d, size_t n) {
    std::vector<T> host(n);
    CHECK(cudaMemcpy(host.data(), d, n * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
}

// ---- block reduction: shuffles, static shared memory, barriers ---------------------------------
__global__ void __launch_bounds__(256) block_sum(float *out, const float *in, int n) {
    __shared__ float partial[32];
    int warps = (int)blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += __ldcs(in + blockIdx.x * n + i);
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
    if (lane == 0) partial[warp] = sum;
    __syncthreads();
    sum = lane < warps ? partial[lane] : 0.0f;
    for (int o = 16; o > 0; o /= 2) sum += __shfl_down_sync(~0u, sum, o);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
static void a_block_reduction_sums_every_element(void **) {
    in_every_order([] {
        const int blocks = 3, n = 1000;
        std::vector<float> x(blocks * n);
        for (size_t i = 0; i < x.size(); i++) x[i] = (float)(i % 17);
        float *in = to_device(x), *out = to_device(std::vector<float>(blocks));
        block_sum<<<blocks, 256>>>(out, in, n);
        CHECK(cudaGetLastError());
        std::vector<float> sums = to_host(out, blocks);
        for (int b = 0; b < blocks; b++) {
            double expected = 0;
            for (int i = 0; i < n; i++) expected += x[(size_t)(b * n + i)];
            EXPECT(sums[(size_t)b] == expected);
        }
    });
}

// ---- dynamic shared memory above 48 KiB, three-dimensional blocks ------------------------------
template <class T> __global__ void reverse(T *x, int n) {
    extern __shared__ __align__(16) unsigned char raw[];
    T *s = (T *)raw;
    int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int threads = blockDim.x * blockDim.y * blockDim.z;
    for (int i = t; i < n; i += threads) s[i] = x[i];
    __syncthreads();
    for (int i = t; i < n; i += threads) x[i] = s[n - 1 - i];
}
static void large_dynamic_shared_memory_works_after_opting_in(void **) {
    in_every_order([] {
        const int n = 10000;
        std::vector<double> x(n);
        for (int i = 0; i < n; i++) x[(size_t)i] = i;
        double *d = to_device(x);
        CHECK(cudaFuncSetAttribute(reverse<double>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   n * 8));
        reverse<<<1, dim3(5, 4, 3), n * sizeof(double)>>>(d, n);  // deduced: the same kernel
        CHECK(cudaGetLastError());
        x = to_host(d, n);
        for (int i = 0; i < n; i++) EXPECT(x[(size_t)i] == n - 1 - i);
    });
}

// ---- warp collectives against their definition -------------------------------------------------
__global__ void warp_collectives(unsigned *out) {
    unsigned lane = threadIdx.x, x = lane * 2654435761u;
    unsigned *o = out + lane * 12;
    o[0] = __ballot_sync(~0u, x & 1);
    o[1] = (unsigned)__any_sync(~0u, lane == 7) + 2 * (unsigned)__all_sync(~0u, lane < 31);
    o[2] = __reduce_add_sync(~0u, x);
    o[3] = (unsigned)__reduce_min_sync(~0u, (int)x);
    o[4] = __reduce_max_sync(~0u, x);
    o[5] = __reduce_xor_sync(~0u, x);
    o[6] = __shfl_up_sync(~0u, x, 3);
    o[7] = __shfl_sync(~0u, x, (int)(lane * 5), 8);
    o[8] = __match_any_sync(~0u, lane % 5);
    unsigned half =
        lane < 16 ? 0xffffu : 0xffff0000u;  // both halves at once, each with its own mask
    o[9] = __reduce_add_sync(half, lane);
    o[10] = __shfl_down_sync(~0u, x, 4, 16);
    o[11] = (unsigned)__popc(x) + (unsigned)__clz((int)x) + (unsigned)__ffs((int)x);
}
static void warp_collectives_follow_their_definition(void **) {
    in_every_order([] {
        unsigned *d = to_device(std::vector<unsigned>(32 * 12));
        warp_collectives<<<1, 32>>>(d);
        std::vector<unsigned> r = to_host(d, 32 * 12);
        unsigned x[32], odd = 0, sum = 0, most = 0, all_xor = 0;
        int least = INT32_MAX;
        for (unsigned i = 0; i < 32; i++) {
            x[i] = i * 2654435761u;
            odd |= (x[i] & 1) << i;
            sum += x[i];
            most = x[i] > most ? x[i] : most;
            least = (int)x[i] < least ? (int)x[i] : least;
            all_xor ^= x[i];
        }
        for (unsigned l = 0; l < 32; l++) {
            unsigned *o = &r[l * 12], same = 0;
            for (unsigned i = l % 5; i < 32; i += 5) same |= 1u << i;
            EXPECT(o[0] == odd && o[1] == 1 && o[2] == sum && o[3] == (unsigned)least &&
                   o[4] == most && o[5] == all_xor);
            EXPECT(o[6] == x[l < 3 ? l : l - 3]);
            EXPECT(o[7] == x[l / 8 * 8 + l * 5 % 8]);
            EXPECT(o[8] == same);
            EXPECT(o[9] == (l < 16 ? 120u : 376u));
            EXPECT(o[10] == x[l % 16 + 4 < 16 ? l + 4 : l]);
            EXPECT(o[11] == (unsigned)__builtin_popcount(x[l]) +
                                (x[l] ? (unsigned)__builtin_clz(x[l]) : 32) +
                                (unsigned)__builtin_ffs((int)x[l]));
        }
    });
}

// ---- atomics; the last block to finish adds up -------------------------------------------------
__global__ void atomics(int *i, unsigned long long *u, float *f, double *d, unsigned *histogram) {
    atomicAdd(i, 1);
    atomicMax(u, (unsigned long long)(blockIdx.x * blockDim.x + threadIdx.x));
    atomicAdd(f, 0.5f);
    atomicAdd(d, 0.25);
    atomicInc(histogram + threadIdx.x % 4, 6);
    __shared__ int count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    atomicAdd(&count, 2);
    __syncthreads();
    if (threadIdx.x == 0) atomicCAS(i + 1, 0, count);
}
__global__ void last_block_sum(float *partial, unsigned *ticket, float *total) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = (float)(blockIdx.x + 1);
        __threadfence();
        last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last || threadIdx.x) return;
    float sum = 0;
    for (unsigned b = 0; b < gridDim.x; b++) sum += partial[b];
    *total = sum;
}
static void atomics_count_every_thread(void **) {
    in_every_order([] {
        int *i = to_device(std::vector<int>(2));
        unsigned long long *u = to_device(std::vector<unsigned long long>(1));
        float *f = to_device(std::vector<float>(1)), *partial = to_device(std::vector<float>(8)),
              *total;
        double *d = to_device(std::vector<double>(1));
        unsigned *h = to_device(std::vector<unsigned>(4)),
                 *ticket = to_device(std::vector<unsigned>(1));
        CHECK(cudaMalloc(&total, 4));
        atomics<<<4, 64>>>(i, u, f, d, h);
        last_block_sum<<<8, 64>>>(partial, ticket, total);
        EXPECT(to_host(i, 2)[0] == 256 && to_host(i, 2)[1] == 128);
        EXPECT(to_host(u, 1)[0] == 255 && to_host(f, 1)[0] == 128.0f && to_host(d, 1)[0] == 64.0);
        EXPECT(to_host(h, 4)[3] == 64 % 7);
        EXPECT(to_host(total, 1)[0] == 36.0f);
    });
}

// ---- votes of the whole block, threads that have left, __syncwarp ------------------------------
__global__ void votes(int *out) {
    if (threadIdx.x >= 96) return;
    int any = __syncthreads_or(threadIdx.x == 50), all = __syncthreads_and(threadIdx.x < 95);
    int count = __syncthreads_count(threadIdx.x % 3 == 0);
    __shared__ int s[96];
    s[threadIdx.x] = (int)threadIdx.x;
    __syncwarp();
    out[threadIdx.x] = any * 1000 + all * 100 + count + s[threadIdx.x ^ 1];
}
static void votes_count_the_threads_that_are_left(void **) {
    in_every_order([] {
        int *d = to_device(std::vector<int>(96));
        votes<<<1, 128>>>(d);
        std::vector<int> r = to_host(d, 96);
        for (int i = 0; i < 96; i++) EXPECT(r[(size_t)i] == 1000 + 32 + (i ^ 1));
    });
}

// ---- bf16 vectors of 16 bytes ------------------------------------------------------------------
__global__ void scale_bf16(__nv_bfloat16 *x, float by, int n) {
    int i = 8 * (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n) return;
    int4 bits = __ldcs((const int4 *)(x + i));
    __nv_bfloat16 v[8];
    memcpy(v, &bits, 16);
    for (int k = 0; k < 8; k++) v[k] = __float2bfloat16_rn(__bfloat162float(v[k]) * by);
    memcpy(&bits, v, 16);
    __stcs((int4 *)(x + i), bits);
}
static void bf16_vectors_are_loaded_and_stored_whole(void **) {
    in_every_order([] {
        std::vector<__nv_bfloat16> x(520);
        for (size_t i = 0; i < x.size(); i++) x[i] = __float2bfloat16_rn((float)i);
        __nv_bfloat16 *d = to_device(x);
        scale_bf16<<<3, 32>>>(d, 0.5f, 520);
        std::vector<__nv_bfloat16> r = to_host(d, 520);
        for (size_t i = 0; i < x.size(); i++)
            EXPECT(__bfloat162float(r[i]) == 0.5f * __bfloat162float(x[i]));
    });
}

__global__ void reverse_bytes(unsigned char *x) {
    __shared__ unsigned char s[64];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = s[63 - threadIdx.x];
}
static void neighbouring_bytes_of_two_threads_do_not_conflict(void **) {
    in_every_order([] {
        std::vector<unsigned char> x(64);
        for (size_t i = 0; i < 64; i++) x[i] = (unsigned char)i;
        unsigned char *d = to_device(x);
        reverse_bytes<<<1, 64>>>(d);
        x = to_host(d, 64);
        for (size_t i = 0; i < 64; i++) EXPECT(x[i] == 63 - i);
    });
}

// ---- tensor cores: C (M,N) = A (M,K) B (K,N), one warp per 16 x 16 tile ------------------------
// A comes through ldmatrix x4, B (row-major, K x N) through the transposed form, both
// double-buffered by cp.async.
constexpr int TILE = 16, ROW = TILE + 8;  // padded row of a tile in shared memory, 16-byte aligned
__device__ void load_tile(__nv_bfloat16 *tile, const __nv_bfloat16 *x, int rows, int ld) {
    int lane = threadIdx.x % 32, row = lane / 2, half = lane % 2 * 8;
    bool valid = row < rows;
    cp_async_16(tile + row * ROW + half, x + (valid ? (size_t)row * ld : 0) + half, valid);
}
__global__ void tensor_matmul(float *C, const __nv_bfloat16 *A, const __nv_bfloat16 *B, int M,
                              int N, int K) {
    __shared__ __align__(16) __nv_bfloat16 sa[2][TILE * ROW], sb[2][TILE * ROW];
    int lane = threadIdx.x, m0 = blockIdx.y * TILE, n0 = blockIdx.x * TILE, steps = K / TILE;
    float acc[2][4] = {};
    load_tile(sa[0], A + (size_t)m0 * K, M - m0, K);
    load_tile(sb[0], B + n0, TILE, N);
    cp_async_commit();
    for (int s = 0; s < steps; s++) {
        int now = s % 2;
        if (s + 1 < steps) {
            load_tile(sa[1 - now], A + (size_t)m0 * K + (s + 1) * TILE, M - m0, K);
            load_tile(sb[1 - now], B + (size_t)(s + 1) * TILE * N + n0, TILE, N);
            cp_async_commit();
            cp_async_wait<1>();
        } else {
            cp_async_wait<0>();
        }
        __syncwarp();
        uint32_t a[4], b[4], b_left[2], b_right[2];
        ldmatrix_x4(a, sa[now] + lane % 16 * ROW + lane / 16 * 8);
        ldmatrix_x4_trans(b, sb[now] + lane % 16 * ROW + lane / 16 * 8);
        ldmatrix_x2_trans(b_left, sb[now] + lane % 16 * ROW);
        ldmatrix_x2(b_right,
                    sa[now] + lane % 8 * ROW + lane / 8 % 2 * 8);  // rows 0..7 of A: a[0], a[2]
        if (b_left[0] != b[0] || b_left[1] != b[1] || b_right[0] != a[0] || b_right[1] != a[2])
            __trap();
        mma_m16n8k16_bf16(acc[0], a, b, acc[0]);
        mma_m16n8k16_bf16(acc[1], a, b + 2, acc[1]);
        __syncwarp();
    }
    for (int j = 0; j < 2; j++)
        for (int i = 0; i < 4; i++) {
            int row = m0 + lane / 4 + i / 2 * 8, col = n0 + j * 8 + lane % 4 * 2 + i % 2;
            if (row < M) C[(size_t)row * N + col] = acc[j][i];
        }
}
static void tensor_cores_ldmatrix_and_cp_async_multiply_matrices(void **) {
    in_every_order([] {
        const int M = 24, N = 32, K = 80;
        std::vector<__nv_bfloat16> A(M * K), B(K * N);
        for (size_t i = 0; i < A.size(); i++) A[i] = __float2bfloat16_rn((float)(i * 7 % 13) - 6);
        for (size_t i = 0; i < B.size(); i++) B[i] = __float2bfloat16_rn((float)(i * 5 % 11) - 5);
        float *C;
        CHECK(cudaMalloc(&C, M * N * 4));
        tensor_matmul<<<dim3(N / TILE, (M + TILE - 1) / TILE), 32>>>(C, to_device(A), to_device(B),
                                                                     M, N, K);
        std::vector<float> r = to_host(C, M * N);
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++) {
                float expected = 0;  // small integers: exact
                for (int k = 0; k < K; k++)
                    expected += __bfloat162float(A[(size_t)(i * K + k)]) *
                                __bfloat162float(B[(size_t)(k * N + j)]);
                EXPECT(r[(size_t)(i * N + j)] == expected);
            }
    });
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_reduction_sums_every_element),
        cmocka_unit_test(large_dynamic_shared_memory_works_after_opting_in),
        cmocka_unit_test(warp_collectives_follow_their_definition),
        cmocka_unit_test(atomics_count_every_thread),
        cmocka_unit_test(votes_count_the_threads_that_are_left),
        cmocka_unit_test(bf16_vectors_are_loaded_and_stored_whole),
        cmocka_unit_test(neighbouring_bytes_of_two_threads_do_not_conflict),
        cmocka_unit_test(tensor_cores_ldmatrix_and_cp_async_multiply_matrices),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
