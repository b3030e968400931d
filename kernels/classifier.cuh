// kernels/classifier.cuh: softmax cross-entropy with its gradient in place, see ../ops.h.
// A block a row; maximum and sum in one pass (Milakov & Gimelshein 2018), the gradient in a second
// one over the cached row.
#pragma once

#include "common.cuh"
#include "ptx.cuh"

#define CLASSIFIER_THREADS 512

// e^x for x <= 0
__device__ static inline float exp_of(float x) {
    return exp2_approx(x * LOG2E);
}

// Elements of a row that a thread meets, P at a time; the tail of a row of any V is met one by one.
template <int P>
__global__ static void classifier_kernel(floatX *logits, float *losses, const int *targets, int V,
                                         int ld, bool write_dlogits) {
    __shared__ float room[CLASSIFIER_THREADS / WARP];
    floatX *x = logits + (size_t)blockIdx.x * (size_t)ld;
    int target = targets[blockIdx.x];
    if (target < 0) {  // not counted
        for (int c = (int)threadIdx.x; write_dlogits && c < ld; c += (int)blockDim.x)
            store_float(&x[c], 0.0f);
        if (threadIdx.x == 0) losses[blockIdx.x] = 0.0f;
        return;
    }
    float most = -INFINITY, sum = 0;
    for (int c = (int)threadIdx.x * P; c < V; c += (int)blockDim.x * P) {
        Items<P> v = load_items<P>(x + c);
        float z[P], larger = most;
        UNROLL for (int k = 0; k < P; k++) {
            z[k] = c + k < V ? to_float(v.x[k]) : -INFINITY;
            larger = fmaxf(larger, z[k]);
        }
        float base = larger == -INFINITY ? 0.0f : larger;  // nothing but -infinity, or NaN, so far
        sum *= exp_of(most - base);
        UNROLL for (int k = 0; k < P; k++) sum += exp_of(z[k] - base);
        most = larger;
    }
    // A thread without elements has sum 0; one that saw only NaN has no maximum, but a sum.
    float row_most = block_max(most, room);
    sum = block_sum(sum == 0.0f ? 0.0f : sum * exp_of(most - row_most), room);
    float at_target = to_float(x[target]), scale = 1.0f / sum;
    if (threadIdx.x == 0) losses[blockIdx.x] = logf(sum) + row_most - at_target;
    if (!write_dlogits) return;
    __syncthreads();  // everybody has read x[target]
    for (int c = (int)threadIdx.x * P; c < ld; c += (int)blockDim.x * P) {
        Items<P> v = load_items<P>(x + c);
        for (int k = 0; k < P; k++) {
            float p = c + k < V ? exp_of(to_float(v.x[k]) - row_most) * scale : 0.0f;
            store_float(&v.x[k], c + k == target ? p - 1.0f : p);
        }
        store_items<P>(x + c, v);
    }
}

static void classifier(floatX *logits, float *losses, const int *targets, int rows, int V, int ld,
                       bool write_dlogits, cudaStream_t stream) {
    const int P = Pack<floatX>::size;
    if (ld % P == 0 && aligned16(logits))
        classifier_kernel<P><<<(unsigned)rows, CLASSIFIER_THREADS, 0, stream>>>(
            logits, losses, targets, V, ld, write_dlogits);
    else
        classifier_kernel<1><<<(unsigned)rows, CLASSIFIER_THREADS, 0, stream>>>(
            logits, losses, targets, V, ld, write_dlogits);
    launchCheck();
}

#define LOSSES_THREADS 1024
#define LOSSES_AT_ONCE 4  // loads of a thread that are on their way together

// One block, P losses a load; rows is a multiple of P.
template <int P>
__global__ static void sum_losses_kernel(double *sum, const float *losses, int rows) {
    __shared__ double room[LOSSES_THREADS / WARP];
    double s = 0;
    for (int i = (int)threadIdx.x * P; i < rows; i += LOSSES_AT_ONCE * LOSSES_THREADS * P) {
        Items<P, float> v[LOSSES_AT_ONCE] = {};
        UNROLL for (int k = 0; k < LOSSES_AT_ONCE; k++) {
            int at = i + k * LOSSES_THREADS * P;
            if (at < rows) v[k] = load_items<P>(losses + at);
        }
        UNROLL for (int k = 0; k < LOSSES_AT_ONCE; k++) for (int j = 0; j < P; j++) s += v[k].x[j];
    }
    s = block_sum(s, room);
    if (threadIdx.x == 0) *sum += s;
}

static void sum_losses(double *sum, const float *losses, int rows, cudaStream_t stream) {
    if (rows % 4 == 0 && aligned16(losses))
        sum_losses_kernel<4><<<1, LOSSES_THREADS, 0, stream>>>(sum, losses, rows);
    else
        sum_losses_kernel<1><<<1, LOSSES_THREADS, 0, stream>>>(sum, losses, rows);
    launchCheck();
}
