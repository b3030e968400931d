// tensor.cpp: the warp-wide tensor-core operations, computed once per warp by the last lane to
// arrive. Fragment layouts as in kernels/ptx.cuh (PTX ISA). Products of bf16 are exact in fp32 and
// are added in ascending k: a real tensor core adds in another order and truncates.
#include "core.h"

namespace emu {

static float low_half(uint32_t x) {
    return emu_bits<float>(x << 16);
}
static float high_half(uint32_t x) {
    return emu_bits<float>(x & 0xffff0000u);
}

static void all_lanes(const char *what, uint32_t members) {
    if (members != ~0u) device_error("%s needs all 32 lanes, found %08x", what, members);
}

// in: a[4], b[2], c[4]; out: d[4]
static void compute_mma(WarpLane *lane, uint32_t members) {
    all_lanes("mma.m16n8k16", members);
    typedef float Row __attribute__((vector_size(32)));
    float A[16][16];
    Row B[16], C[16];
    for (int l = 0; l < 32; l++) {
        const uint32_t *r = (const uint32_t *)lane[l].in;
        int g = l / 4, t = l % 4;
        for (int i = 0; i < 4; i++) {
            float *a = &A[g + i % 2 * 8][2 * t + i / 2 * 8];
            a[0] = low_half(r[i]);
            a[1] = high_half(r[i]);
        }
        for (int i = 0; i < 2; i++) {
            B[2 * t + i * 8][g] = low_half(r[4 + i]);
            B[2 * t + i * 8 + 1][g] = high_half(r[4 + i]);
        }
        memcpy((float *)&C[g] + 2 * t, r + 6, 8);
        memcpy((float *)&C[g + 8] + 2 * t, r + 8, 8);
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++) C[i] += A[i][k] * B[k];
    for (int l = 0; l < 32; l++) {
        memcpy(lane[l].out, (float *)&C[l / 4] + l % 4 * 2, 8);
        memcpy(lane[l].out + 8, (float *)&C[l / 4 + 8] + l % 4 * 2, 8);
    }
}

// in: row address; argument: number of matrices | transposed << 8; out: one register per matrix
static void compute_ldmatrix(WarpLane *lane, uint32_t members) {
    all_lanes("ldmatrix", members);
    int matrices = lane[0].argument & 255;
    bool transposed = lane[0].argument >> 8;
    for (int m = 0; m < matrices; m++) {
        const uint16_t *row[8];
        for (int r = 0; r < 8; r++) {
            memcpy(&row[r], lane[8 * m + r].in, sizeof row[r]);
            if ((size_t)row[r] % 16)
                device_error("ldmatrix: row address %p is not 16-byte aligned", row[r]);
        }
        for (int l = 0; l < 32; l++) {
            int i = l / 4, j = l % 4 * 2;
            uint32_t first = transposed ? row[j][i] : row[i][j];
            uint32_t second = transposed ? row[j + 1][i] : row[i][j + 1];
            uint32_t both = first | second << 16;
            memcpy(lane[l].out + 4 * m, &both, 4);
        }
    }
}

const WarpOp warp_mma = {"mma", compute_mma};
const WarpOp warp_ldmatrix = {"ldmatrix", compute_ldmatrix};

}  // namespace emu
