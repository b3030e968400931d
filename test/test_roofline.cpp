// test/test_roofline.cpp: the model of a GPU (plan/): its parts by hand, and the model held against
// launches whose times others have published.
#include "common.h"
#include "plan/roofline.h"

static void check_near(const char *what, double found, double expected, double allowed) {
    if (fabs(found / expected - 1) <= allowed) return;
    fail_msg("%s: expected %g, found %g (allowed: %g %%)", what, expected, found, 100 * allowed);
}

static const Gpu *a100, *h100;

static int find_gpus(void **) {
    a100 = gpu_named("a100-80gb");
    h100 = gpu_named("h100-sxm");
    return a100 && h100 && !gpu_named("a100") ? 0 : 1;
}

// By what drivers report. Boards of the same chip with another memory, clock or link have no row.
static void a_device_is_taken_for_no_other(void **) {
    static const struct {
        const char *device, *name;
    } devices[] = {
        {"NVIDIA A100-SXM4-40GB", "a100-40gb"},
        {"A100-SXM4-40GB", "a100-40gb"},
        {"NVIDIA A100-SXM4-80GB", "a100-80gb"},
        {"NVIDIA A100-SXM-80GB", "a100-80gb"},
        {"NVIDIA A100-PCIE-40GB", NULL},
        {"NVIDIA A100 80GB PCIe", NULL},
        {"NVIDIA A100-SXM4-80GB MIG 3g.40gb", NULL},
        {"NVIDIA A800-SXM4-80GB", NULL},
        {"NVIDIA H100 80GB HBM3", "h100-sxm"},
        {"NVIDIA H100 PCIe", NULL},
        {"NVIDIA H100 NVL", NULL},
        {"NVIDIA H800", NULL},
        {"NVIDIA GH200 480GB", NULL},
        {"NVIDIA H200", "h200"},
        {"NVIDIA H200 NVL", NULL},
        {"NVIDIA B200", "b200"},
        {"NVIDIA GB200", NULL},
        {"NVIDIA L40S", "l40s"},
        {"NVIDIA L40", NULL},
        {"NVIDIA L4", NULL},
        {"NVIDIA GeForce RTX 4090", "rtx-4090"},
        {"NVIDIA GeForce RTX 4090 D", NULL},
        {"", NULL},
    };
    for (auto &d : devices) {
        const Gpu *found = gpu_of_device(d.device);
        if (found ? !d.name || strcmp(found->name, d.name) : d.name != NULL)
            fail_msg("%s: expected %s, found %s", d.device, d.name ? d.name : "no row",
                     found ? found->name : "no row");
    }
}

// As NVIDIA's occupancy calculator has it for compute capability 8.0 and 9.0.
static void resident_blocks_are_those_of_the_occupancy_calculator(void **) {
    static const struct {
        int threads, registers;
        size_t shared;
        int on_a100, on_h100;
    } cases[] = {{256, 32, 0, 8, 8},      {256, 33, 0, 6, 6},     {1024, 32, 0, 2, 2},
                 {128, 128, 40960, 4, 4}, {128, 255, 0, 2, 2},    {128, 168, 0, 3, 3},
                 {32, 16, 0, 32, 32},     {128, 64, 81920, 2, 2}, {128, 64, 100000, 1, 2},
                 {128, 64, 200000, 0, 1}};
    for (auto &c : cases) {
        int a = resident_blocks(a100, c.threads, c.registers, c.shared),
            h = resident_blocks(h100, c.threads, c.registers, c.shared);
        if (a != c.on_a100 || h != c.on_h100)
            fail_msg("%d threads, %d registers, %zu bytes: expected %d and %d blocks, found %d "
                     "and %d",
                     c.threads, c.registers, c.shared, c.on_a100, c.on_h100, a, h);
    }
}

// A gigabyte copied by 16 bytes a thread.
static LaunchWork large_copy(void) {
    LaunchWork w = {};
    double threads = (double)(1 << 30) / 16;
    w.blocks = threads / 256, w.threads = 256, w.registers = 16;
    w.instructions = 15 * threads / 32;
    w.dram_bytes = w.l2_bytes = 2.0 * (1 << 30);
    w.chain = 60, w.waits = 1, w.wait_dram = 1;
    return w;
}

static void a_large_copy_takes_what_the_memory_takes(void **) {
    LaunchWork w = large_copy();
    LaunchTime t = launch_time(a100, &w);
    assert_int_equal(t.bound, BOUND_DRAM);
    check_near("seconds", t.seconds, 2.0 * (1 << 30) / (2039e9 * 0.87), 0.01);
}

static void with_few_threads_a_copy_waits_for_its_loads(void **) {
    LaunchWork w = large_copy();
    w.shared_bytes = 100 << 10;  // a block of 8 warps a multiprocessor
    LaunchTime t = launch_time(a100, &w);
    assert_int_equal(t.bound, BOUND_LATENCY);
    assert_int_equal(t.resident, 1);
    check_near("seconds", t.seconds, w.blocks / 108 * (600e-9 + 60 / 1.41e9), 0.1);
}

static void a_block_too_many_takes_another_round(void **) {
    LaunchWork w = {};
    w.blocks = 108, w.threads = 128, w.registers = 32, w.mma = 1e6 * 108;
    double one = launch_time(a100, &w).bounds[BOUND_TENSOR];
    check_near("a whole wave", one, 1e6 * 108 * 4096 / 312e12, 0.01);
    w.blocks = 109, w.mma = 1e6 * 109;
    check_near("one block more", launch_time(a100, &w).bounds[BOUND_TENSOR], 2 * one, 0.01);
}

static void warps_that_share_a_scheduler_hide_each_others_waits(void **) {
    const double units[UNITS] = {100, 0, 0};
    check_near("alone", cycles_a_warp(1, units, 1000), 1000, 1e-9);
    check_near("two", cycles_a_warp(2, units, 1000), 505, 1e-9);
    check_near("many", cycles_a_warp(100, units, 1000), 100, 0.01);
}

static double product_rate(const Gpu *g, int m, int n, int k) {
    ProductWork p = {m, n, k, 2, 2, 1};
    return 2.0 * m * n * k / product_time(g, &p).seconds * 1e-12;
}

static void products_have_whole_waves_of_tiles(void **) {
    ProductWork p = {768, 512, 50304, 2, 2, 1};  // 12 to 96 tiles for 108 multiprocessors
    if (product_time(a100, &p).splits == 1) fail_msg("expected the sum over k in pieces");
    p.m = 256 * 108, p.n = 128, p.k = 8192;
    double whole = product_time(a100, &p).seconds;
    p.m++;
    double more = product_time(a100, &p).seconds;
    if (!(more > 1.1 * whole)) fail_msg("expected a wave more to take longer: %g, %g", more, whole);
    check_near("Tflop/s at 8192 on A100", product_rate(a100, 8192, 8192, 8192), 275, 0.03);
    check_near("Tflop/s at 8192 on H100", product_rate(h100, 8192, 8192, 8192), 770, 0.03);
}

// FlashAttention-2's forward (Dao 2023), not causal, 16k tokens a sequence: four warps, each with a
// quarter of `rows` queries, go through `columns` keys at a time. An exp, a maximum, a sum, a
// scaling and half a conversion for each score.
static double flash_attention_rate(const Gpu *g, int head, int rows, int columns) {
    const double T = 16384, heads = 16, tiles = T / columns, warp_rows = rows / 4.0;
    LaunchWork w = {};
    w.blocks = T / rows * heads, w.threads = 128, w.registers = 255;
    w.shared_bytes = (size_t)(rows + 2 * columns) * (size_t)head * 2;
    double mma = 2 * (warp_rows / 16) * (columns / 8.0) * (head / 16.0),
           scores = warp_rows * columns / 32, loads = 2 * (columns / 16.0) * (head / 16.0),
           floats = 3.5 * scores + warp_rows * head / 32, other = scores / 2 + loads + 30,
           warps = w.blocks * 4 * tiles, mma_cycles = g->arch == 80 ? 8 : 6.35;
    w.mma = mma * warps, w.special_instructions = scores * warps;
    w.float_instructions = floats * warps, w.wavefronts = 4 * loads * warps;
    w.instructions = (mma + scores + floats + other) * warps;
    w.chain = tiles * (mma * mma_cycles + 8 * scores + floats + other);
    w.l2_bytes = w.blocks * tiles * columns * head * 4.0;
    return 4 * T * T * head * heads / launch_time(g, &w).seconds * 1e-12;
}

// The model takes units to overlap as well as a queue lets them: it is optimistic. What published
// kernels take beyond it is ATTENTION_BEYOND.
static void the_model_is_held_against_flash_attention_2(void **) {
    static const struct {
        const char *gpu;
        int head, rows, columns;
        double published;                             // Tflop/s
    } figures[] = {{"a100-80gb", 64, 128, 128, 176},  // Dao 2023, figure 5
                   {"a100-80gb", 128, 128, 64, 227},  // Dao 2023, figure 5
                   {"h100-sxm", 128, 128, 64, 350}};  // Shah et al. 2024: 35 % of the peak
    double product = 1;
    for (auto &f : figures) {
        double rate = flash_attention_rate(gpu_named(f.gpu), f.head, f.rows, f.columns);
        printf("FlashAttention-2, %s, head %d: predicted %.0f, published %.0f Tflop/s: x %.2f\n",
               f.gpu, f.head, rate, f.published, rate / f.published);
        check_near("predicted against published", rate, f.published, 0.5);
        product *= rate / f.published;
    }
    check_near("what they take beyond the model", ATTENTION_BEYOND, cbrt(product), 0.05);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_is_taken_for_no_other),
        cmocka_unit_test(resident_blocks_are_those_of_the_occupancy_calculator),
        cmocka_unit_test(a_large_copy_takes_what_the_memory_takes),
        cmocka_unit_test(with_few_threads_a_copy_waits_for_its_loads),
        cmocka_unit_test(a_block_too_many_takes_another_round),
        cmocka_unit_test(warps_that_share_a_scheduler_hide_each_others_waits),
        cmocka_unit_test(products_have_whole_waves_of_tiles),
        cmocka_unit_test(the_model_is_held_against_flash_attention_2),
    };
    return cmocka_run_group_tests(tests, find_gpus, NULL);
}
