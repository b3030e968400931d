// kernels/encoder.cuh: token and position embeddings and their gradients, see ../ops.h.
#pragma once

#include "common.cuh"

#define ENCODER_THREADS 256

__global__ static void encoder_forward_kernel(floatX *out, const int *tokens, const floatX *wte,
                                              const floatX *wpe, size_t n, int T, int C) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    size_t row = i / (size_t)C, c = i % (size_t)C, t = row % (size_t)T;
    store_float(&out[i], to_float(wte[(size_t)tokens[row] * C + c]) + to_float(wpe[t * C + c]));
}

// C is a multiple of the pack.
__global__ static void encoder_forward_vector_kernel(floatX *out, const int *tokens,
                                                     const floatX *wte, const floatX *wpe,
                                                     size_t packs, int T, int C) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= packs) return;
    const size_t size = Pack<floatX>::size;
    size_t at = i * size, row = at / (size_t)C, c = at % (size_t)C, t = row % (size_t)T;
    Pack<floatX> e = load_pack(wte + (size_t)tokens[row] * C + c), p = load_pack(wpe + t * C + c);
    for (int k = 0; k < Pack<floatX>::size; k++)
        store_float(&e.x[k], to_float(e.x[k]) + to_float(p.x[k]));
    store_pack(out + at, e);
}

static void encoder_forward(floatX *out, const int *tokens, const floatX *wte, const floatX *wpe,
                            int B, int T, int C, cudaStream_t stream) {
    size_t n = (size_t)B * (size_t)T * (size_t)C, size = Pack<floatX>::size;
    if ((size_t)C % size == 0 && aligned16(out) && aligned16(wte) && aligned16(wpe))
        encoder_forward_vector_kernel<<<blocks_for(n / size, ENCODER_THREADS), ENCODER_THREADS, 0,
                                        stream>>>(out, tokens, wte, wpe, n / size, T, C);
    else
        encoder_forward_kernel<<<blocks_for(n, ENCODER_THREADS), ENCODER_THREADS, 0, stream>>>(
            out, tokens, wte, wpe, n, T, C);
    launchCheck();
}

// ---- backward: positions sorted by token, then the rows of a token summed in ascending order ---

#define SORT_THREADS 512
#define SORT_BITS 4
#define SORT_DIGITS (1 << SORT_BITS)

// The exclusive prefix sum over counts[digit][thread], in place, by the whole block.
__device__ static inline void scan_counts(int *counts, int *totals) {
    const int n = SORT_DIGITS,
              chunk = n;  // each thread scans n neighbours of the n * SORT_THREADS counts
    int *mine = counts + threadIdx.x * chunk, sum = 0;
    for (int i = 0; i < chunk; i++) sum += mine[i];
    totals[threadIdx.x] = sum;
    __syncthreads();
    for (int offset = 1; offset < SORT_THREADS; offset *= 2) {
        int before = threadIdx.x >= offset ? totals[threadIdx.x - offset] : 0;
        __syncthreads();
        totals[threadIdx.x] += before;
        SEEDED_SYNC(5);
    }
    int start = totals[threadIdx.x] - sum;
    for (int i = 0; i < chunk; i++) {
        int count = mine[i];
        mine[i] = start;
        start += count;
    }
    __syncthreads();
}

// One pass of a stable radix sort of the positions in `from` by bits shift.. of their tokens. One
// block; each thread has a contiguous run of positions.
__global__ static void sort_pass_kernel(int *to, const int *from, const int *tokens, int n,
                                        int shift) {
    __shared__ int counts[SORT_DIGITS * SORT_THREADS], totals[SORT_THREADS];
    int run = (n + SORT_THREADS - 1) / SORT_THREADS, begin = (int)threadIdx.x * run;
    int end = begin + run < n ? begin + run : n;
    for (int d = 0; d < SORT_DIGITS; d++) counts[d * SORT_THREADS + threadIdx.x] = 0;
    for (int i = begin; i < end; i++) {
        int position = from ? from[i] : i;
        counts[(tokens[position] >> shift & (SORT_DIGITS - 1)) * SORT_THREADS + threadIdx.x]++;
    }
    __syncthreads();
    scan_counts(counts, totals);
    for (int i = begin; i < end; i++) {
        int position = from ? from[i] : i;
        to[counts[(tokens[position] >> shift & (SORT_DIGITS - 1)) * SORT_THREADS + threadIdx.x]++] =
            position;
    }
}

// Block (i, .) handles the token of sorted place i, if its run of equal tokens begins there;
// blockIdx.y says which columns. The positions of the run come through shared memory, so that the
// loads of dout need not wait for them.
__global__ static void dwte_kernel(float *dwte, const floatX *dout, const int *tokens,
                                   const int *order, int n, int C) {
    __shared__ int positions[ENCODER_THREADS];
    int begin = (int)blockIdx.x, token = tokens[order[begin]], count = ENCODER_THREADS;
    if (begin > 0 && tokens[order[begin - 1]] == token) return;
    int c = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    float sum = 0;
    for (int k0 = begin; count == ENCODER_THREADS; k0 += ENCODER_THREADS) {
        int k = k0 + (int)threadIdx.x, position = k < n ? order[k] : 0;
        positions[threadIdx.x] = position;
        count = __syncthreads_count(k < n && tokens[position] == token);
        if (c < C) {
            UNROLL_4 for (int i = 0; i < count; i++) sum +=
                to_float(dout[(size_t)positions[i] * C + c]);
        }
        __syncthreads();
    }
    if (c < C) dwte[(size_t)token * C + c] += sum;
}

__global__ static void dwpe_kernel(float *dwpe, const floatX *dout, int B, size_t TC) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= TC) return;
    float sum = 0;
    for (int b = 0; b < B; b++) sum += to_float(dout[(size_t)b * TC + i]);
    dwpe[i] += sum;
}

static void encoder_backward(float *dwte, float *dwpe, const floatX *dout, const int *tokens, int B,
                             int T, int C, cudaStream_t stream) {
    int n = B * T;
    int *order = (int *)workspace_take(encoder_workspace_bytes(n), "encoder_backward"),
        *spare = order + n;
    const int *from = NULL;
    for (int shift = 0; shift < vocabulary_bits; shift += SORT_BITS) {
        sort_pass_kernel<<<1, SORT_THREADS, 0, stream>>>(order, from, tokens, n, shift);
        from = order;
        order = spare;
        spare = (int *)from;
    }
    dim3 grid((unsigned)n, blocks_for((size_t)C, ENCODER_THREADS));
    dwte_kernel<<<grid, ENCODER_THREADS, 0, stream>>>(dwte, dout, tokens, from, n, C);
    size_t TC = (size_t)T * (size_t)C;
    dwpe_kernel<<<blocks_for(TC, ENCODER_THREADS), ENCODER_THREADS, 0, stream>>>(dwpe, dout, B, TC);
    launchCheck();
}
