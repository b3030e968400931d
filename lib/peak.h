// lib/peak.h: the peak of known GPUs in floating-point operations a second, dense, from the makers'
// data sheets. Used for MFU alone; an unknown device gives 0, and its MFU is then printed as n/a.
#pragma once

#include <stddef.h>
#include <string.h>

typedef struct {
    const char *name;   // part of the device's name; the first row that matches counts
    double fp32, bf16;  // teraflops; bf16 with fp32 sums on the tensor cores, fp32 without them
} Peak;

static const Peak peak_table[] = {
    {"GB200", 80, 2500},        {"B200", 80, 2250},         {"B100", 60, 1750},
    {"H200 NVL", 60, 835},      {"GH200", 67, 989},         {"H200", 67, 989},
    {"H100 PCIe", 51, 756},     {"H100 NVL", 60, 835},      {"H100", 67, 989},
    {"H800", 67, 989},          {"H20", 44, 148},           {"A100", 19.5, 312},
    {"A800", 19.5, 312},        {"A30", 10.3, 165},         {"A10G", 31.2, 70},
    {"A10", 31.2, 125},         {"A40", 37.4, 149.7},       {"L40S", 91.6, 362},
    {"L40", 90.5, 181},         {"L4", 30.3, 121},          {"RTX 6000 Ada", 91.1, 364},
    {"RTX A6000", 38.7, 154.8}, {"RTX 5090", 104.8, 209.5}, {"RTX 4090", 82.6, 165.2},
    {"RTX 3090", 35.6, 71},
};

typedef enum { PEAK_FP32, PEAK_TF32, PEAK_BF16 } PeakType;

// Flops a second of the named device; 0 if it is not in the table. TF32 has half the rate of bf16.
static inline double peak_flops(const char *device, PeakType type) {
    for (size_t i = 0; i < sizeof peak_table / sizeof peak_table[0]; i++) {
        const Peak *p = &peak_table[i];
        if (!strstr(device, p->name)) continue;
        return 1e12 * (type == PEAK_FP32 ? p->fp32 : type == PEAK_TF32 ? p->bf16 / 2 : p->bf16);
    }
    return 0;
}
