// lib/peak.h: the peak of known GPUs in floating-point operations a second, dense, from the makers'
// data sheets. Used for MFU alone; an unknown device gives 0, and its MFU is then printed as n/a.
// Names are those that the driver reports, whole: of one chip there are boards with other clocks,
// and a part of a GPU (MIG) is named behind it. They are from the table of compatible GPUs in the
// README of NVIDIA's open-gpu-kernel-modules; "A100-SXM-80GB" is what driver 450 reported, in a
// public log of PyTorch's collect_env.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef struct {
    const char *names;  // of devices, without "NVIDIA ", which drivers of before 2021 leave out
    double fp32, bf16;  // teraflops; bf16 with fp32 sums on the tensor cores, fp32 without them
} Peak;

static const Peak peak_table[] = {
    {"GB200", 80, 2500},
    {"B200", 80, 2250},
    {"H200 NVL", 60, 835},
    {"H200|GH200 480GB|GH200 120GB|GH200 144G HBM3e", 67, 989},
    {"H100 80GB HBM3|H800", 67, 989},
    {"H100 NVL", 60, 835},
    {"H100 PCIe|H800 PCIe", 51, 756},
    {"H20", 44, 148},
    {"A100-SXM4-40GB|A100-SXM4-80GB|A100-SXM-80GB|A100-PCIE-40GB|A100 80GB PCIe", 19.5, 312},
    {"A800-SXM4-40GB|A800-SXM4-80GB|A800 80GB PCIe", 19.5, 312},
    {"A30", 10.3, 165},
    {"A10G", 31.2, 70},
    {"A10", 31.2, 125},
    {"A40", 37.4, 149.7},
    {"L40S", 91.6, 362},
    {"L40", 90.5, 181},
    {"L4", 30.3, 121},
    {"RTX 6000 Ada Generation", 91.1, 364},
    {"RTX A6000", 38.7, 154.8},
    {"GeForce RTX 5090", 104.8, 209.5},
    {"GeForce RTX 4090", 82.6, 165.2},
    {"GeForce RTX 3090", 35.6, 71},
};

typedef enum { PEAK_FP32, PEAK_TF32, PEAK_BF16 } PeakType;

// names: a device's, separated by |.
static inline bool device_is_one_of(const char *device, const char *names) {
    const char maker[] = "NVIDIA ";
    if (!strncmp(device, maker, sizeof maker - 1)) device += sizeof maker - 1;
    const size_t length = strlen(device);
    for (const char *name = names; *name; name += strspn(name, "|")) {
        const size_t n = strcspn(name, "|");
        if (n == length && !memcmp(name, device, n)) return true;
        name += n;
    }
    return false;
}

// Flops a second of the named device; 0 if it is not in the table. TF32 has half the rate of bf16.
static inline double peak_flops(const char *device, PeakType type) {
    for (size_t i = 0; i < sizeof peak_table / sizeof peak_table[0]; i++) {
        const Peak *p = &peak_table[i];
        if (!device_is_one_of(device, p->names)) continue;
        return 1e12 * (type == PEAK_FP32 ? p->fp32 : type == PEAK_TF32 ? p->bf16 / 2 : p->bf16);
    }
    return 0;
}
