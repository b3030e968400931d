// plan/gpus.h: what the model of a GPU (roofline.h) needs to know of it. One table for the kernel
// report and for --plan. Peaks are the maker's; what is reached of them is measured by others.
#pragma once

#include "../lib/peak.h"

typedef struct {
    const char *name;        // as in the options
    const char *devices;     // what the driver calls it, as in lib/peak.h
    int arch;                // the code that it runs: rows of kernels/resources.txt
    int multiprocessors;     //
    double clock;            // cycles a second at which its peaks are stated
    double memory;           // bytes of device memory that CUDA reports
    double dram;             // bytes a second, peak
    double dram_reached;     // share of it that a large copy reaches
    double l2;               // bytes a second that all multiprocessors together read from the L2
    double tensor;           // bf16 flops a second, dense, fp32 sums, peak
    double product_reached;  // share of it that the main loop of a library's large product reaches
    double mma_share;        // share of it that mma.sync can issue; wgmma or tcgen05 for the rest
    int fp32_lanes;          // fp32 operations a cycle and multiprocessor
    double dram_latency, l2_latency, l1_latency;  // seconds from a load to its use, under load
    double launch;     // seconds that a launch takes behind another one: drain, start, first loads
    int shared_bytes;  // of a multiprocessor
    int shared_reserved;  // of it a block
    bool nvlink;          // else PCIe
    double link;          // bytes a second that a collective within a node reaches, each way
    double network;       // bits a second of a node, all its adapters, as it is sold
    int channels;         // multiprocessors that a collective takes
    double watts;         // of a GPU, limit
    double sustained;     // share of a product's rate that is left after hours, with real data
} Gpu;

// The same on all of them.
#define GPU_SCHEDULERS 4      // of a multiprocessor, an instruction a cycle each
#define GPU_SPECIAL_LANES 16  // special functions a cycle and multiprocessor
#define GPU_REGISTERS 65536   // of a multiprocessor
#define GPU_WARPS 64
#define GPU_BLOCKS 32

// Sources:
//   peaks, clocks, sizes, lanes  NVIDIA's data sheets and whitepapers (A100 2020, H100 2022, H200
//                                2023, B200 2024)
//   limits of a multiprocessor   CUDA C++ Programming Guide, "Technical Specifications per Compute
//                                Capability"
//   dram_reached                 BabelStream's published results (A100-80 1.77 TB/s, H100 SXM 3.0)
//   l2                           A100's whitepaper: 5,120 bytes a cycle, of which about 0.7 are
//                                measured (chipsandcheese.com 2023); the same on H100's clock
//   product_reached              cuBLAS at 8192^3: 270 to 280 Tflop/s on A100, 750 to 800 on H100
//   mma_share                    Luo et al. 2025 (arXiv 2501.12084): 62.9 % on H100; on B200 not
//                                published, taken as Hopper's rate a cycle and multiprocessor
//   latencies                    the same and Abdelkhalik et al. 2022 (arXiv 2208.11174): DRAM 470
//                                to 560 cycles idle, L2 200 to 280, L1 33; DRAM half as much again
//                                under load
//   launch                       NVIDIA's blog on CUDA graphs (2019): about 2 us a kernel
//   memory                       "total capacity" in PyTorch's out-of-memory messages
//   link                         what NCCL's own model takes a ring to reach (src/graph/tuning.cc,
//                                topo.h): 235 GB/s on A100, 18 links of 20.6 GB/s on H100, twice
//                                that on B200; PCIe 4.0 through the host 0.7 of 32 GB/s
//   network                      DGX A100 8 x 200 Gbit/s, DGX H100 and B200 8 x 400; boards with
//                                PCIe: an adapter of 100 Gbit/s for each pair
//   channels                     NCCL's: 2 for each link of NVSwitch up to 24 on A100, 16 on Hopper
//                                (NCCL_MAX_CTAS, CTA policy); 4 on PCIe
//   sustained                    cuBLASLt with random data after 10,000 products: 254 Tflop/s at
//                                8192^3 on A100, 0.652 of the FP8 peak on H100, 0.657 on H200, of
//                                278 and 0.768 short ones (Azure/AI-benchmarking-guide); He 2024
//                                has 257 of 295 on A100. B200, L40S as Hopper, a guess
// clang-format off
static const Gpu gpu_table[] = {
//   name, devices, arch SMs   clock    memory    DRAM    reached L2      tensor   product mma
//          fp32 DRAM    L2      L1     launch shared     reserved
//          NVLink link    network channels watts sustained
    {"a100-40gb", "A100-SXM4-40GB", 80, 108, 1.41e9,  42.3e9, 1555e9,  0.87, 5.1e12,   312e12,  0.90, 1.00,
            64, 600e-9, 200e-9, 25e-9, 2e-6, 164 << 10, 1 << 10,
            true,  235e9, 1600e9, 24,  400, 0.91},
    {"a100-80gb", "A100-SXM4-80GB|A100-SXM-80GB", 80, 108, 1.41e9,  85.0e9, 2039e9,  0.87, 5.1e12,   312e12,  0.90, 1.00,
            64, 600e-9, 200e-9, 25e-9, 2e-6, 164 << 10, 1 << 10,
            true,  235e9, 1600e9, 24,  400, 0.91},
    {"h100-sxm", "H100 80GB HBM3", 90, 132, 1.83e9,  85.0e9, 3352e9,  0.90, 6.6e12,   989e12,  0.80, 0.63,
           128, 600e-9, 200e-9, 25e-9, 2e-6, 228 << 10, 1 << 10,
            true,  370e9, 3200e9, 16,  700, 0.85},
    {"h200", "H200", 90, 132, 1.83e9, 150.1e9, 4800e9,  0.90, 6.6e12,   989e12,  0.80, 0.63,
           128, 600e-9, 200e-9, 25e-9, 2e-6, 228 << 10, 1 << 10,
            true,  370e9, 3200e9, 16,  700, 0.85},
    {"b200", "B200", 100, 148, 1.85e9, 191.5e9, 8000e9,  0.90, 9.0e12,  2250e12,  0.75, 0.31,
           128, 650e-9, 200e-9, 25e-9, 2e-6, 228 << 10, 1 << 10,
            true,  740e9, 3200e9, 16, 1000, 0.85},
    {"l40s", "L40S", 89, 142, 2.52e9,  47.7e9,  864e9,  0.90, 5.5e12,   362e12,  0.80, 1.00,
           128, 600e-9, 200e-9, 20e-9, 2e-6, 100 << 10, 1 << 10,
            false,  22e9,  400e9,  4,  350, 0.85},
    {"rtx-4090", "GeForce RTX 4090", 89, 128, 2.52e9,  25.4e9, 1008e9,  0.90, 5.0e12,   165e12,  0.95, 1.00,
           128, 600e-9, 200e-9, 20e-9, 2e-6, 100 << 10, 1 << 10,
            false,  22e9,  400e9,  4,  450, 0.90},
};
// clang-format on

// NULL: not in the table.
static inline const Gpu *gpu_named(const char *name) {
    for (size_t i = 0; i < sizeof gpu_table / sizeof gpu_table[0]; i++)
        if (strcmp(gpu_table[i].name, name) == 0) return &gpu_table[i];
    return NULL;
}

// By what the driver calls it; NULL: not in the table, as boards for PCIe, GH200 and GB200 are not.
static inline const Gpu *gpu_of_device(const char *device) {
    for (size_t i = 0; i < sizeof gpu_table / sizeof gpu_table[0]; i++)
        if (device_is_one_of(device, gpu_table[i].devices)) return &gpu_table[i];
    return NULL;
}
