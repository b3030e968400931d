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

// Flops a second of the named device in fp32 or bf16; 0 if it is not in the table.
static inline double peak_flops(const char *device, int bf16) {
    for (size_t i = 0; i < sizeof peak_table / sizeof peak_table[0]; i++)
        if (strstr(device, peak_table[i].name))
            return 1e12 * (bf16 ? peak_table[i].bf16 : peak_table[i].fp32);
    return 0;
}
