// device.h: which device this build is for, the two number formats, and the check of its calls.
//
// Everything else is written against the CUDA runtime and NCCL. DEVICE_CPU puts cpu/ behind
// the same names, DEVICE_PLAN a device that only notes what it is given (--plan); the emulator
// (EMULATOR) keeps NVIDIA's own headers and stands in for the libraries at link time.
#pragma once

#include "lib/die.h"

#include <stddef.h>
#include <stdint.h>

#if defined(DEVICE_PLAN)
#include "plan/device.h"
#elif defined(DEVICE_CPU)
#include "cpu/runtime.h"

#include "cpu/nccl.h"
#else
#include "kernels/bf16.cuh"

#include <cuda_runtime.h>
#include <nccl.h>
#endif

#define cudaCheck(call)                                                                            \
    do {                                                                                           \
        cudaError_t e_ = (call);                                                                   \
        if (e_ != cudaSuccess)                                                                     \
            die("%s:%d: %s: %s", __FILE__, __LINE__, #call, cudaGetErrorString(e_));               \
    } while (0)

// The model, its ops and fsdp.h are compiled once per compute dtype (PRECISION_BF16 = 0 or 1).
// floatX is the dtype of gathered parameters and of activations.
#if defined(PRECISION_BF16) && PRECISION_BF16
typedef bf16 floatX;
#define FLOATX_NAME "bf16"
#define FLOATX_NCCL ncclBfloat16
#else
typedef float floatX;
#define FLOATX_NAME "fp32"
#define FLOATX_NCCL ncclFloat32
#endif
