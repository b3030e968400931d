// test/test_ops.cpp: every op of ops.h on the CPU against a plain double-precision reference, over
// awkward shapes. Compiled once per dtype (PRECISION_BF16) and instruction set; a processor that
// lacks the set skips. Tolerances are per element, relative to the largest magnitude of the
// reference, in units of the dtype's rounding (half of 2^-23 or 2^-7) unless said otherwise.
#include "ops.h"
#include <setjmp.h>
#include <stdarg.h>
#include <vector>
extern "C" {
#include <cmocka.h>
}

typedef std::vector<double> Doubles;
typedef std::vector<float> Floats;
typedef std::vector<floatX> Array;

static const double ROUNDING = sizeof(floatX) == 2 ? 1.0 / 256 : 1.0 / (1 << 24);

// ---- inputs and comparison ---------------------------------------------------------------------

static uint64_t random_state = 1;
static double uniform(void) {  // [-1, 1)
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)random_state / 9223372036854775808.0;
}

static Array random_array(size_t n, double scale) {
    Array a(n);
    for (auto &x : a) store_float(&x, (float)(uniform() * scale));
    return a;
}

static Floats random_floats(size_t n, double scale) {
    Floats a(n);
    for (auto &x : a) x = (float)(uniform() * scale);
    return a;
}

template <typename A> static Doubles doubles(const A &a) {
    Doubles d(a.size());
    for (size_t i = 0; i < d.size(); i++) d[i] = to_float(a[i]);
    return d;
}

// Fails where |found - expected| > tolerance * max |expected|, or anything is not finite.
template <typename A>
static void check(const char *what, const A &found, const Doubles &expected, double tolerance) {
    double largest = 0;
    assert_int_equal(found.size(), expected.size());
    for (double x : expected) largest = fmax(largest, fabs(x));
    for (size_t i = 0; i < expected.size(); i++) {
        double f = to_float(found[i]);
        if (!(fabs(f - expected[i]) <= tolerance * largest + 1e-30))
            fail_msg("%s[%zu]: expected %.9g, found %.9g, off by %.3g of the largest, allowed %.3g",
                     what, i, expected[i], f, fabs(f - expected[i]) / largest, tolerance);
    }
}

// ---- the ops' environment: one workspace for the largest sizes of this file --------------------

static const OpsDims LARGEST = {3, 600, 3072, 1, 50304, 8};
static std::vector<char> room;

static void set_threads(int n) {
    omp_set_num_threads(n);
    if (workspace.threads) ops_destroy();
    room.resize(ops_workspace_bytes(&LARGEST));
    memset(room.data(), 0xff, room.size());  // NaN: nothing may be read before it is written
    ops_init(&LARGEST, room.data(), room.size(), NULL);
}

// Runs an op with 1, 2 and 3 threads and asserts that its results are the same
// bits. `run` returns them.
template <typename Run> static void check_threads(const char *what, Run run) {
    auto one = run();
    for (int threads = 2; threads <= 3; threads++) {
        set_threads(threads);
        auto many = run();
        if (memcmp(one.data(), many.data(), one.size() * sizeof one[0]))
            fail_msg("%s: 1 and %d threads differ", what, threads);
    }
    set_threads(1);
}

template <typename A, typename B>
static void append_bits(std::vector<char> *to, const A &a, const B &b) {
    to->insert(to->end(), (const char *)a.data(), (const char *)(a.data() + a.size()));
    to->insert(to->end(), (const char *)b.data(), (const char *)(b.data() + b.size()));
}

// ---- encoder -----------------------------------------------------------------------------------

static void encoder_adds_token_and_position(void **) {
    const int shapes[][3] = {{1, 1, 1}, {3, 7, 12}, {1, 65, 64}, {3, 130, 768}};
    for (auto &s : shapes) {
        int B = s[0], T = s[1], C = s[2], V = 37;
        Array wte = random_array((size_t)V * C, 1), wpe = random_array((size_t)T * C, 1),
              out((size_t)B * T * C);
        std::vector<int> tokens(B * T);
        for (auto &t : tokens) t = (int)((uniform() + 1) / 2 * V);
        encoder_forward(out.data(), tokens.data(), wte.data(), wpe.data(), B, T, C, NULL);
        Doubles ref(out.size());
        for (size_t i = 0; i < ref.size(); i++)
            ref[i] = to_float(wte[(size_t)tokens[i / C] * C + i % C]) +
                     to_float(wpe[i / C % T * C + i % C]);
        check("out", out, ref, ROUNDING);
    }
}

static void encoder_gradient_of_repeated_tokens_is_added_once(void **) {
    const int shapes[][4] = {{1, 1, 1, 1}, {3, 7, 12, 2}, {1, 65, 300, 37}, {3, 130, 768, 50257}};
    for (auto &s : shapes) {
        int B = s[0], T = s[1], C = s[2], V = s[3];
        Array dout = random_array((size_t)B * T * C, 1);
        std::vector<int> tokens(B * T);
        for (auto &t : tokens) t = (int)((uniform() + 1) / 2 * V);
        tokens[B * T - 1] = tokens[0];
        Floats dwte0 = random_floats((size_t)V * C, 100), dwpe0 = random_floats((size_t)T * C, 1);
        check_threads("encoder_backward", [&] {
            Floats dwte = dwte0, dwpe = dwpe0, inner((size_t)V * C);
            encoder_backward(dwte.data(), dwpe.data(), dout.data(), tokens.data(), B, T, C, NULL);
            Doubles ref = doubles(dwte0), refp = doubles(dwpe0);
            for (int i = 0; i < B * T; i++)
                for (int c = 0; c < C; c++) {
                    inner[(size_t)tokens[i] * C + c] +=
                        to_float(dout[(size_t)i * C + c]);  // ascending, fp32
                    refp[(size_t)(i % T) * C + c] += to_float(dout[(size_t)i * C + c]);
                }
            for (size_t i = 0; i < ref.size(); i++) assert_true(dwte[i] == dwte0[i] + inner[i]);
            check("dwpe", dwpe, refp, 1e-6);
            std::vector<char> bits;
            append_bits(&bits, dwte, dwpe);
            return bits;
        });
    }
}

// ---- layernorm ---------------------------------------------------------------------------------

static const int LAYERNORM_SHAPES[][2] = {{1, 1},    {7, 3},     {65, 12},
                                          {300, 64}, {130, 768}, {4200, 37}};

static double layernorm_reference(Doubles *out, const Doubles &x, const Doubles &w,
                                  const Doubles &b, int rows, int C) {
    double condition = 1;  // how much cancellation the input's mean brings
    for (int i = 0; i < rows; i++) {
        double m = 0, v = 0;
        for (int c = 0; c < C; c++) m += x[(size_t)i * C + c] / C;
        for (int c = 0; c < C; c++) v += pow(x[(size_t)i * C + c] - m, 2) / C;
        double r = 1 / sqrt(v + 1e-5);
        for (int c = 0; c < C; c++)
            (*out)[(size_t)i * C + c] = (x[(size_t)i * C + c] - m) * r * w[c] + b[c];
        condition = fmax(condition, r);
    }
    return condition;
}

static void layernorm_normalises_rows(void **) {
    for (auto &s : LAYERNORM_SHAPES) {
        int rows = s[0], C = s[1];
        Array x = random_array((size_t)rows * C, 2), y = random_array((size_t)rows * C, 2),
              w = random_array(C, 1), b = random_array(C, 1), out(x.size()), sum(x.size()),
              again(x.size());
        Floats mean(rows), rstd(rows), mean2(rows), rstd2(rows);
        layernorm_forward(out.data(), mean.data(), rstd.data(), x.data(), w.data(), b.data(), rows,
                          C, NULL);
        Doubles ref(x.size());
        double k = layernorm_reference(&ref, doubles(x), doubles(w), doubles(b), rows, C);
        check("out", out, ref, 2 * ROUNDING + 4e-7 * k);
        residual_layernorm_forward(sum.data(), out.data(), mean.data(), rstd.data(), x.data(),
                                   y.data(), w.data(), b.data(), rows, C, NULL);
        for (size_t i = 0; i < x.size(); i++) {
            floatX z;
            store_float(&z, to_float(x[i]) + to_float(y[i]));
            assert_memory_equal(&z, &sum[i], sizeof z);
        }
        layernorm_forward(again.data(), mean2.data(), rstd2.data(), sum.data(), w.data(), b.data(),
                          rows, C, NULL);
        assert_memory_equal(out.data(), again.data(), out.size() * sizeof(floatX));
        assert_memory_equal(mean.data(), mean2.data(), rows * sizeof(float));
        assert_memory_equal(rstd.data(), rstd2.data(), rows * sizeof(float));
        residual_layernorm_forward(x.data(), again.data(), mean.data(), rstd.data(), x.data(),
                                   y.data(), w.data(), b.data(), rows, C, NULL);  // in place
        assert_memory_equal(x.data(), sum.data(), x.size() * sizeof(floatX));
        assert_memory_equal(out.data(), again.data(), out.size() * sizeof(floatX));
    }
}

static void layernorm_gradient_is_that_of_the_formula(void **) {
    for (auto &s : LAYERNORM_SHAPES) {
        int rows = s[0], C = s[1];
        Array x = random_array((size_t)rows * C, 2), w = random_array(C, 1),
              dout = random_array((size_t)rows * C, 1), start = random_array((size_t)rows * C, 1);
        Floats mean(rows), rstd(rows);
        Doubles ref(x.size()), dw(C), db(C), refadd(x.size());
        double largest = 1;
        for (int i = 0; i < rows; i++) {
            double m = 0, v = 0, a = 0, b = 0;
            size_t at = (size_t)i * C;
            for (int c = 0; c < C; c++) m += to_float(x[at + c]) / (double)C;
            for (int c = 0; c < C; c++) v += pow(to_float(x[at + c]) - m, 2) / C;
            double r = 1 / sqrt(v + 1e-5);
            mean[i] = (float)m, rstd[i] = (float)r;
            largest = fmax(largest, r);
            for (int c = 0; c < C; c++) {
                double n = (to_float(x[at + c]) - m) * r, d = to_float(dout[at + c]),
                       g = d * to_float(w[c]);
                a += g / C, b += g * n / C, dw[c] += d * n, db[c] += d;
            }
            for (int c = 0; c < C; c++) {
                double n = (to_float(x[at + c]) - m) * r,
                       g = (double)to_float(dout[at + c]) * to_float(w[c]);
                ref[at + c] = r * (g - a - n * b);
                refadd[at + c] = ref[at + c] + to_float(start[at + c]);
            }
        }
        check_threads("layernorm_backward", [&] {
            Array dinp(x.size()), added = start;
            Floats dweight(C), dbias(C);
            layernorm_backward(dinp.data(), dweight.data(), dbias.data(), dout.data(), x.data(),
                               w.data(), mean.data(), rstd.data(), rows, C, false, NULL);
            layernorm_backward(added.data(), dweight.data(), dbias.data(), dout.data(), x.data(),
                               w.data(), mean.data(), rstd.data(), rows, C, true, NULL);
            if (C > 1)
                check("dinp", dinp, ref, 2 * ROUNDING + 2e-6);  // C=1: zero but for cancellation
            for (size_t i = 0; i < added.size(); i++)
                assert_true(fabs(to_float(added[i]) - refadd[i]) <=
                            (2 * ROUNDING + 1e-6) * (2 + largest));
            check("dweight", dweight, dw, C > 1 ? 3e-6 : 1e30);
            check("dbias", dbias, db, 3e-6);
            std::vector<char> bits;
            append_bits(&bits, dinp, added);
            append_bits(&bits, dweight, dbias);
            return bits;
        });
    }
}

// ---- matmul and GELU ---------------------------------------------------------------------------

static double gelu_reference(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
static double gelu_slope(double x) {
    double u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), t = tanh(u);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

static void gelu_has_full_relative_accuracy(void **) {
    Array x = random_array(100001, 12), out(x.size());
    store_float(&x[0], 0), store_float(&x[1], -60), store_float(&x[2], 60), store_float(&x[3], NAN);
    gelu_forward(out.data(), x.data(), x.size(), NULL);
    assert_true(isnan(to_float(out[3])));
    for (size_t i = 0; i < x.size(); i++) {
        double v = to_float(x[i]);
        if (i == 3 || v < -5) continue;  // tanh itself has lost its digits below -5, even in double
        double ref = gelu_reference(v);
        assert_true(fabs(to_float(out[i]) - ref) <= fabs(ref) * (ROUNDING + 2e-6) + 1e-12);
        assert_true(fabs(gelu_derivative((float)v) - gelu_slope(v)) <=
                    1e-6 * fmax(1, fabs(gelu_slope(v))));
    }
}

typedef struct {
    int rows, Cin, Cout;
} Linear;
// The last three: sums too long for one piece, and results that are written past the caches.
static const Linear LINEARS[] = {{1, 1, 1},       {7, 3, 12},      {65, 12, 37},     {130, 64, 192},
                                 {3, 768, 2304},  {300, 768, 96},  {270, 96, 1100},  {2, 64, 50304},
                                 {40, 1100, 260}, {520, 257, 129}, {2200, 16, 1000}, {9, 8300, 70},
                                 {530, 70, 8300}};

static void matmul_forward_is_inp_times_weight_transposed(void **) {
    for (auto &l : LINEARS) {
        int m = l.rows, k = l.Cin, n = l.Cout;
        Array inp = random_array((size_t)m * k, 1), w = random_array((size_t)n * k, 2 / sqrt(k)),
              bias = random_array(n, 1);
        Doubles ref((size_t)m * n), refb((size_t)m * n), x = doubles(inp), y = doubles(w);
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++) {
                double s = 0;
                for (int p = 0; p < k; p++) s += x[(size_t)i * k + p] * y[(size_t)j * k + p];
                ref[(size_t)i * n + j] = s;
                refb[(size_t)i * n + j] = s + to_float(bias[j]);
            }
        check_threads("matmul_forward", [&] {
            Array out((size_t)m * n), plain(out.size()), pre(out.size()), act(out.size()),
                act2(out.size());
            matmul_forward(out.data(), inp.data(), w.data(), bias.data(), m, k, n, NULL);
            matmul_forward(plain.data(), inp.data(), w.data(), NULL, m, k, n, NULL);
            check("out", out, refb, ROUNDING + 2e-6);
            check("out without bias", plain, ref, ROUNDING + 2e-6);
            matmul_gelu_forward(act.data(), pre.data(), inp.data(), w.data(), bias.data(), m, k, n,
                                NULL);
            assert_memory_equal(pre.data(), out.data(), out.size() * sizeof(floatX));
            gelu_forward(act2.data(), pre.data(), pre.size(), NULL);
            assert_memory_equal(act.data(), act2.data(), act.size() * sizeof(floatX));
            matmul_gelu_forward(act2.data(), NULL, inp.data(), w.data(), bias.data(), m, k, n,
                                NULL);
            assert_memory_equal(act.data(), act2.data(), act.size() * sizeof(floatX));
            std::vector<char> bits;
            append_bits(&bits, out, act);
            return bits;
        });
    }
}

static void matmul_backward_input_is_dout_times_weight(void **) {
    for (auto &l : LINEARS) {
        int m = l.rows, k = l.Cin, n = l.Cout;
        Array dout = random_array((size_t)m * n, 1), w = random_array((size_t)n * k, 2 / sqrt(n)),
              pre = random_array((size_t)m * k, 3);
        Doubles ref((size_t)m * k), x = doubles(dout), y = doubles(w);
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++)
                for (int p = 0; p < k; p++)
                    ref[(size_t)i * k + p] += x[(size_t)i * n + j] * y[(size_t)j * k + p];
        Doubles refg = ref;
        for (size_t i = 0; i < refg.size(); i++) refg[i] *= gelu_slope(to_float(pre[i]));
        check_threads("matmul_backward_input", [&] {
            Array dinp((size_t)m * k), dpre(dinp.size());
            matmul_backward_input(dinp.data(), dout.data(), w.data(), NULL, m, k, n, NULL);
            matmul_backward_input(dpre.data(), dout.data(), w.data(), pre.data(), m, k, n, NULL);
            check("dinp", dinp, ref, ROUNDING + 5e-6);
            check("dinp through GELU", dpre, refg, ROUNDING + 5e-6);
            std::vector<char> bits;
            append_bits(&bits, dinp, dpre);
            return bits;
        });
    }
}

static void matmul_backward_weight_is_dout_transposed_times_inp(void **) {
    for (auto &l : LINEARS) {
        if (l.Cout > 4 * LARGEST.C) continue;  // the head has no bias and is covered below
        int m = l.rows, k = l.Cin, n = l.Cout;
        Array dout = random_array((size_t)m * n, 1), inp = random_array((size_t)m * k, 1);
        Floats dw0 = random_floats((size_t)n * k, 50), db0 = random_floats(n, 50);
        Doubles ref((size_t)n * k), refb(n), x = doubles(inp), y = doubles(dout);
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++) {
                refb[j] += y[(size_t)i * n + j];
                for (int p = 0; p < k; p++)
                    ref[(size_t)j * k + p] += y[(size_t)i * n + j] * x[(size_t)i * k + p];
            }
        check_threads("matmul_backward_weight", [&] {
            Floats dw((size_t)n * k, NAN), db(n, NAN), dw2 = dw0, db2 = db0;
            matmul_backward_weight(dw.data(), db.data(), dout.data(), inp.data(), m, k, n, false,
                                   NULL);
            check("dweight", dw, ref, 2e-6);
            check("dbias", db, refb, 2e-6);
            matmul_backward_weight(dw2.data(), db2.data(), dout.data(), inp.data(), m, k, n, true,
                                   NULL);
            if (m <= 1024) {  // one addition
                for (size_t i = 0; i < dw.size(); i++) assert_true(dw2[i] == dw0[i] + dw[i]);
                for (int i = 0; i < n; i++) assert_true(db2[i] == db0[i] + db[i]);
            }
            Doubles sum = ref, sumb = refb;
            for (size_t i = 0; i < sum.size(); i++) sum[i] += dw0[i];
            for (int i = 0; i < n; i++) sumb[i] += db0[i];
            check("dweight added", dw2, sum, 2e-6);
            check("dbias added", db2, sumb, 2e-6);
            std::vector<char> bits;
            append_bits(&bits, dw, db);
            return bits;
        });
    }
}

static void matmul_backward_weight_of_a_vocabulary_needs_no_bias(void **) {
    const int rows = 5, C = 12, V = 50257;
    Array dout = random_array((size_t)rows * V, 1), inp = random_array((size_t)rows * C, 1);
    Floats dw((size_t)V * C, NAN);
    matmul_backward_weight(dw.data(), NULL, dout.data(), inp.data(), rows, C, V, false, NULL);
    Doubles ref((size_t)V * C);
    for (int i = 0; i < rows; i++)
        for (size_t j = 0; j < (size_t)V; j++)
            for (int c = 0; c < C; c++)
                ref[j * C + c] +=
                    (double)to_float(dout[(size_t)i * V + j]) * to_float(inp[(size_t)i * C + c]);
    check("dweight", dw, ref, 2e-6);
}

// ---- attention ---------------------------------------------------------------------------------

typedef struct {
    int B, T, NH, HS;
} Heads;
static const Heads HEADS[] = {{1, 1, 1, 3},    {3, 7, 4, 3},     {1, 65, 12, 64}, {3, 130, 2, 16},
                              {1, 130, 2, 80}, {1, 257, 1, 128}, {1, 600, 2, 64}, {1, 513, 1, 1}};

// Plain softmax attention; P is kept for the gradient.
static void attention_reference(Doubles *out, Doubles *lse, const Doubles &qkv, const Heads &h) {
    int C = h.NH * h.HS;
    for (int b = 0; b < h.B; b++)
        for (int n = 0; n < h.NH; n++)
            for (int i = 0; i < h.T; i++) {
                const double *q = &qkv[((size_t)b * h.T + i) * 3 * C + n * h.HS];
                Doubles s(i + 1);
                double max = -1e300, sum = 0;
                for (int j = 0; j <= i; j++) {
                    const double *k = &qkv[((size_t)b * h.T + j) * 3 * C + C + n * h.HS];
                    for (int c = 0; c < h.HS; c++) s[j] += q[c] * k[c] / sqrt(h.HS);
                    max = fmax(max, s[j]);
                }
                for (int j = 0; j <= i; j++) sum += exp(s[j] - max);
                (*lse)[((size_t)b * h.NH + n) * h.T + i] = max + log(sum);
                double *o = &(*out)[((size_t)b * h.T + i) * C + n * h.HS];
                for (int j = 0; j <= i; j++) {
                    const double *v = &qkv[((size_t)b * h.T + j) * 3 * C + 2 * C + n * h.HS];
                    for (int c = 0; c < h.HS; c++) o[c] += exp(s[j] - max) / sum * v[c];
                }
            }
}

static void attention_reference_gradient(Doubles *dqkv, const Doubles &dout, const Doubles &out,
                                         const Doubles &lse, const Doubles &qkv, const Heads &h) {
    int C = h.NH * h.HS;
    double scale = 1 / sqrt(h.HS);
    for (int b = 0; b < h.B; b++)
        for (int n = 0; n < h.NH; n++)
            for (int i = 0; i < h.T; i++) {
                size_t qi = ((size_t)b * h.T + i) * 3 * C + n * h.HS,
                       oi = ((size_t)b * h.T + i) * C + n * h.HS;
                double D = 0;
                for (int c = 0; c < h.HS; c++) D += dout[oi + c] * out[oi + c];
                for (int j = 0; j <= i; j++) {
                    size_t kj = ((size_t)b * h.T + j) * 3 * C + C + n * h.HS, vj = kj + C;
                    double s = 0, dp = 0;
                    for (int c = 0; c < h.HS; c++) s += qkv[qi + c] * qkv[kj + c] * scale;
                    for (int c = 0; c < h.HS; c++) dp += dout[oi + c] * qkv[vj + c];
                    double p = exp(s - lse[((size_t)b * h.NH + n) * h.T + i]),
                           ds = p * (dp - D) * scale;
                    for (int c = 0; c < h.HS; c++) {
                        (*dqkv)[qi + c] += ds * qkv[kj + c];
                        (*dqkv)[kj + c] += ds * qkv[qi + c];
                        (*dqkv)[vj + c] += p * dout[oi + c];
                    }
                }
            }
}

static void attention_is_softmax_of_earlier_tokens(void **) {
    for (auto &h : HEADS) {
        int C = h.NH * h.HS;
        size_t tokens = (size_t)h.B * h.T;
        Array qkv = random_array(tokens * 3 * C, 2), dout = random_array(tokens * C, 1);
        Doubles out(tokens * C), lse(tokens * h.NH), dqkv(tokens * 3 * C);
        attention_reference(&out, &lse, doubles(qkv), h);
        attention_reference_gradient(&dqkv, doubles(dout), out, lse, doubles(qkv), h);
        check_threads("attention", [&] {
            Array o(out.size()), d(dqkv.size());
            Floats l(lse.size());
            attention_forward(o.data(), l.data(), qkv.data(), h.B, h.T, C, h.NH, NULL);
            check("out", o, out, 3 * ROUNDING + 2e-6);
            check("lse", l, lse, 2e-6);
            attention_backward(d.data(), dout.data(), o.data(), qkv.data(), l.data(), h.B, h.T, C,
                               h.NH, NULL);
            check("dqkv", d, dqkv, 4 * ROUNDING + 5e-6);
            std::vector<char> bits;
            append_bits(&bits, o, d);
            append_bits(&bits, l, l);
            return bits;
        });
    }
}

static void attention_survives_large_scores(void **) {
    Heads h = {1, 600, 1, 16};
    Array qkv = random_array((size_t)h.T * 48, 60);
    Doubles out((size_t)h.T * 16), lse(h.T);
    attention_reference(&out, &lse, doubles(qkv), h);
    Array o(out.size());
    Floats l(h.T);
    attention_forward(o.data(), l.data(), qkv.data(), 1, h.T, 16, 1, NULL);
    check("out", o, out, 3 * ROUNDING + 2e-4);  // scores of 1e4 have an absolute error of 1e-3
    check("lse", l, lse, 1e-6);
}

// The references' own gradients against central differences, so that both do not share a mistake.
static void reference_gradients_agree_with_finite_differences(void **) {
    Heads h = {2, 5, 2, 3};
    int C = 6;
    size_t n = (size_t)h.B * h.T * C;
    Doubles qkv = doubles(random_floats(3 * n, 1)), dout = doubles(random_floats(n, 1)), out(n),
            lse(20), d(3 * n);
    attention_reference(&out, &lse, qkv, h);
    attention_reference_gradient(&d, dout, out, lse, qkv, h);
    for (size_t i = 0; i < qkv.size(); i++) {
        double L[2];
        for (int side = 0; side < 2; side++) {
            Doubles moved = qkv, o(n), l(20);
            moved[i] += side ? 1e-5 : -1e-5;
            attention_reference(&o, &l, moved, h);
            L[side] = 0;
            for (size_t j = 0; j < n; j++) L[side] += o[j] * dout[j];
        }
        assert_true(fabs((L[1] - L[0]) / 2e-5 - d[i]) < 1e-8);
    }
}

#if !PRECISION_BF16
// The op's gradient itself against central differences of the double reference.
static void layernorm_gradient_agrees_with_finite_differences(void **) {
    const int rows = 3, C = 12;
    Floats x = random_floats(rows * C, 2), w = random_floats(C, 1), b = random_floats(C, 1),
           dout = random_floats(rows * C, 1), out(rows * C), dinp(rows * C), dw(C), db(C),
           mean(rows), rstd(rows);
    layernorm_forward(out.data(), mean.data(), rstd.data(), x.data(), w.data(), b.data(), rows, C,
                      NULL);
    layernorm_backward(dinp.data(), dw.data(), db.data(), dout.data(), x.data(), w.data(),
                       mean.data(), rstd.data(), rows, C, false, NULL);
    Doubles in[3] = {doubles(x), doubles(w), doubles(b)};
    Floats found[3] = {dinp, dw, db};
    for (int which = 0; which < 3; which++)
        for (size_t i = 0; i < in[which].size(); i++) {
            double L[2] = {0, 0};
            for (int side = 0; side < 2; side++) {
                Doubles moved[3] = {in[0], in[1], in[2]}, o(rows * C);
                moved[which][i] += side ? 1e-5 : -1e-5;
                layernorm_reference(&o, moved[0], moved[1], moved[2], rows, C);
                for (size_t j = 0; j < o.size(); j++) L[side] += o[j] * dout[j];
            }
            assert_true(fabs((L[1] - L[0]) / 2e-5 - found[which][i]) < 1e-5);
        }
}

static void classifier_gradient_agrees_with_finite_differences(void **) {
    const int V = 37;
    Floats x = random_floats(V, 3), d = x, loss(1);
    const int target = 5;
    classifier(d.data(), loss.data(), &target, 1, V, V, true, NULL);
    for (int i = 0; i < V; i++) {
        double L[2];
        for (int side = 0; side < 2; side++) {
            double sum = 0, at = 0;
            for (int v = 0; v < V; v++) {
                double moved = (double)x[v] + (v == i ? (side ? 1e-5 : -1e-5) : 0);
                sum += exp(moved);
                if (v == target) at = moved;
            }
            L[side] = log(sum) - at;
        }
        assert_true(fabs((L[1] - L[0]) / 2e-5 - d[i]) < 1e-6);
    }
}
#endif

// ---- classifier --------------------------------------------------------------------------------

static void classifier_is_cross_entropy_with_zero_padding(void **) {
    const int shapes[][3] = {{1, 1, 1}, {7, 37, 64}, {33, 257, 257}, {3, 50257, 50304}};
    for (auto &s : shapes) {
        int rows = s[0], V = s[1], ld = s[2];
        Array logits = random_array((size_t)rows * ld, 10);
        std::vector<int> targets(rows);
        for (auto &t : targets) t = (int)((uniform() + 1) / 2 * V);
        if (rows > 2) targets[1] = -1;
        for (int i = 0; i < rows; i++)
            for (int v = V; v < ld; v++)
                store_float(&logits[(size_t)i * ld + v], NAN);  // padding is never read
        Doubles losses(rows), grad(logits.size());
        for (int i = 0; i < rows; i++) {
            if (targets[i] < 0) continue;
            const floatX *x = &logits[(size_t)i * ld];
            double sum = 0;
            for (int v = 0; v < V; v++) sum += exp(to_float(x[v]));
            losses[i] = log(sum) - to_float(x[targets[i]]);
            for (int v = 0; v < V; v++)
                grad[(size_t)i * ld + v] = exp(to_float(x[v])) / sum - (v == targets[i]);
        }
        check_threads("classifier", [&] {
            Floats found(rows, NAN), only(rows, NAN);
            Array d = logits, kept = logits;
            classifier(kept.data(), only.data(), targets.data(), rows, V, ld, false, NULL);
            assert_memory_equal(kept.data(), logits.data(), kept.size() * sizeof(floatX));
            classifier(d.data(), found.data(), targets.data(), rows, V, ld, true, NULL);
            assert_memory_equal(only.data(), found.data(), rows * sizeof(float));
            for (int i = 0; i < rows; i++)
                assert_true(fabs(found[i] - losses[i]) <= 4e-6 * (1 + fabs(losses[i])));
            check("dlogits", d, grad, ROUNDING + 2e-6);
            for (int i = 0; i < rows; i++)
                for (int v = V; v < ld; v++) assert_true(to_float(d[(size_t)i * ld + v]) == 0);
            std::vector<char> bits;
            append_bits(&bits, found, d);
            return bits;
        });
    }
}

static void classifier_shows_non_finite_logits_in_the_loss(void **) {
    for (float bad : {NAN, INFINITY}) {
        Array x = random_array(37, 1);
        store_float(&x[9], bad);
        float loss = 0;
        const int target = 3;
        classifier(x.data(), &loss, &target, 1, 37, 37, false, NULL);
        assert_false(isfinite(loss));
    }
}

static void losses_are_added_to_the_sum_in_double(void **) {
    Floats losses(1000, 1e-3f);
    double sum = 1e6;
    sum_losses(&sum, losses.data(), 1000, NULL);
    assert_true(fabs(sum - 1e6 - 1000 * (double)1e-3f) < 1e-9);
}

// ---- shard ops ---------------------------------------------------------------------------------

static void bf16_rounds_to_nearest_even(void **) {
    const uint32_t cases[][2] = {{0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82},
                                 {0x3f808001, 0x3f81}, {0x7f7fffff, 0x7f80}, {0xff800000, 0xff80},
                                 {0x00000001, 0x0000}, {0x80000000, 0x8000}};
    Floats x(19, 1.0f);
    std::vector<bf16> y(19);
    for (int i = 0; i < 8; i++) memcpy(&x[i], &cases[i][0], 4);
    x[8] = NAN;
    cast_to_bf16(y.data(), x.data(), 19, NULL);
    for (int i = 0; i < 8; i++) assert_int_equal(y[i].bits, cases[i][1]);
    assert_true(isnan(to_float(y[8])));
    cast_from_bf16(x.data(), y.data(), 19, NULL);
    assert_true(x[18] == 1.0f && x[3] == to_float(y[3]));
    Array z(19);
    Floats source = random_floats(19, 1);
    cast_from_float(z.data(), source.data(), 19, NULL);
    check("cast_from_float", z, doubles(source), ROUNDING);
}

static void shards_add_in_the_order_of_the_parts(void **) {
    for (size_t n : {(size_t)1, (size_t)17, (size_t)9000}) {
        Floats parts = random_floats(3 * (n + 5), 1), start = random_floats(n, 1), shard = start,
               twice = start;
        shard_add_ordered(shard.data(), parts.data(), 3, n + 5, n, true, NULL);
        for (size_t i = 0; i < n; i++)
            assert_true(shard[i] ==
                        ((start[i] + parts[i]) + parts[n + 5 + i]) + parts[2 * (n + 5) + i]);
        shard_add_ordered(shard.data(), parts.data(), 2, n + 5, n, false, NULL);
        for (size_t i = 0; i < n; i++) assert_true(shard[i] == parts[i] + parts[n + 5 + i]);
        shard_add(twice.data(), parts.data(), n, true, NULL);
        for (size_t i = 0; i < n; i++) assert_true(twice[i] == start[i] + parts[i]);
        shard_add(twice.data(), parts.data(), n, false, NULL);
        assert_memory_equal(twice.data(), parts.data(), n * sizeof(float));
    }
}

static void absmax_keeps_the_larger_and_reports_nan_as_infinity(void **) {
    Floats x = random_floats(10007, 1);
    x[5000] = -7;
    float max = 3;
    shard_absmax(&max, x.data(), x.size(), NULL);
    assert_true(max == 7);
    shard_absmax(&max, x.data(), 100, NULL);
    assert_true(max == 7);
    shard_absmax(&max, x.data(), 0, NULL);
    assert_true(max == 7);
    x[3] = -NAN;
    shard_absmax(&max, x.data(), x.size(), NULL);
    assert_true(isinf(max) && max > 0);
}

// Written out once more from its definition, and every flipped bit changes it.
static void a_checksum_sees_every_bit_of_every_word(void **) {
    Floats x = random_floats(1003, 1);
    uint64_t sum = 5, expected = 5;
    for (uint64_t i = 0; i < x.size(); i++) {
        uint32_t word;
        memcpy(&word, &x[i], sizeof word);
        uint64_t z = i * 0x9E3779B97F4A7C15ull + word;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        expected += z ^ (z >> 31);
    }
    shard_checksum(&sum, x.data(), x.size(), NULL);
    assert_true(sum == expected);
    for (size_t bit = 0; bit < 32 * x.size(); bit += 7) {
        uint64_t other = 5;
        ((unsigned char *)x.data())[bit / 8] ^= (unsigned char)(1u << bit % 8);
        shard_checksum(&other, x.data(), x.size(), NULL);
        assert_true(other != sum);
        ((unsigned char *)x.data())[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
}

static void sum_of_squares_does_not_depend_on_the_cut(void **) {
    const size_t n = 100003;
    for (double decades : {0.0, 3.0, 18.0}) {
        Floats x(n);
        long double exact = 0;
        float absmax = 0;
        for (auto &v : x) v = (float)(uniform() * pow(10, uniform() * decades));
        for (auto &v : x) exact += (long double)v * v;
        shard_absmax(&absmax, x.data(), n, NULL);
        int bits = 17;  // 2^17 > n
        double plain[3] = {0, 0, 0}, whole[3] = {0, 0, 0};
        check_threads("plain sum of squares", [&] {
            Doubles s(3);
            shard_sum_squares(s.data(), x.data(), n, NULL, bits, NULL);
            return s;
        });
        shard_sum_squares(plain, x.data(), n, NULL, bits, NULL);
        shard_sum_squares(whole, x.data(), n, &absmax, bits, NULL);
        assert_true(fabsl((plain[0] + plain[1] + plain[2] - exact) / exact) < 1e-12L);
        assert_true(fabsl((whole[0] + whole[1] + whole[2] - exact) / exact) < 1e-12L);
        for (int trial = 0; trial < 20; trial++) {
            double sums[3] = {0, 0, 0};
            set_threads(1 + trial % 3);
            for (size_t at = 0;
                 at < n;) {  // pieces of random length, each to sums of its own first
                size_t len = (size_t)((uniform() + 1) / 2 * 30000) + 1;
                if (len > n - at) len = n - at;
                double piece[3] = {0, 0, 0};
                shard_sum_squares(piece, x.data() + at, len, &absmax, bits, NULL);
                for (int k = 0; k < 3; k++) sums[k] += piece[k];
                at += len;
            }
            assert_memory_equal(sums, whole, sizeof sums);
        }
        set_threads(1);
    }
    Floats zero(4, 0.0f);
    for (float m : {0.0f, INFINITY}) {
        double sums[3] = {0, 0, 0};
        shard_sum_squares(sums, zero.data(), 4, &m, 2, NULL);
        assert_true(sums[0] == m && sums[1] == 0 && sums[2] == 0);
    }
}

// ---- AdamW -------------------------------------------------------------------------------------

static AdamWConfig adamw_config(MomentType moments) {
    AdamWConfig c = {};
    c.lr = 1e-2f, c.beta1 = 0.9f, c.beta2 = 0.95f, c.eps = 1e-8f, c.weight_decay = 0.1f;
    c.step = 3, c.moments = moments, c.grad_scale = 1.0 / 512, c.grad_clip = 1, c.seed = 42;
    return c;
}

// Reference step in double; `norm` is that of the unscaled gradient.
static void adamw_reference(Doubles *p, Doubles *m, Doubles *v, const Floats &g, double norm,
                            const AdamWConfig &c) {
    double clip = c.grad_clip > 0 ? fmin(1, c.grad_clip / (norm * c.grad_scale + 1e-6)) : 1;
    for (size_t i = 0; i < g.size(); i++) {
        double x = g[i] * c.grad_scale * clip;
        (*m)[i] = c.beta1 * (double)(*m)[i] + (1 - (double)c.beta1) * x;
        (*v)[i] = c.beta2 * (double)(*v)[i] + (1 - (double)c.beta2) * x * x;
        double mh = (*m)[i] / (1 - pow(c.beta1, c.step)), vh = (*v)[i] / (1 - pow(c.beta2, c.step));
        (*p)[i] -= c.lr * (mh / (sqrt(vh) + c.eps) + c.weight_decay * (*p)[i]);
    }
}

static void adamw_follows_the_paper_in_fp32_and_fp64(void **) {
    const size_t n = 5003;
    for (float clip : {0.0f, 1.0f, 100.0f}) {
        Floats p = random_floats(n, 1), g = random_floats(n, 300), p64 = p,
               m = random_floats(n, 0.1), v(n);
        for (auto &x : v) x = fabsf((float)uniform()) * 0.01f + 1e-4f;
        Doubles m64 = doubles(m), v64 = doubles(v), rp = doubles(p), rm = m64, rv = v64;
        double sums[3] = {0, 0, 0};
        shard_sum_squares(sums, g.data(), n, NULL, 0, NULL);
        AdamWConfig c = adamw_config(MOMENTS_FP32);
        c.grad_clip = clip;
        adamw_update(p.data(), g.data(), m.data(), v.data(), n, 0, sums, &c, NULL);
        c.moments = MOMENTS_FP64;
        adamw_update(p64.data(), g.data(), m64.data(), v64.data(), n, 0, sums, &c, NULL);
        adamw_reference(&rp, &rm, &rv, g, sqrt(sums[0]), c);
        check("p", p, rp, 2e-7);
        check("m", m, rm, 3e-7);
        check("v", v, rv, 3e-7);
        check("p, fp64 moments", p64, rp, 6e-8);
        for (size_t i = 0; i < n; i++) {
            assert_true(fabs(m64[i] - rm[i]) <= 1e-14);
            assert_true(fabs(v64[i] - rv[i]) <= 1e-14);
        }
    }
}

static void adamw_rounds_bf16_moments_without_bias_and_by_global_element(void **) {
    const size_t n = 40000;
    Floats p(n, 0.5f), g(n, 100.0f);
    std::vector<bf16> m(n), v(n);
    double sums[3] = {1, 0, 0};
    AdamWConfig c = adamw_config(MOMENTS_BF16);
    adamw_update(p.data(), g.data(), m.data(), v.data(), n, 1000, sums, &c, NULL);
    Doubles rp(n, 0.5), rm(n), rv(n);
    adamw_reference(&rp, &rm, &rv, g, 1, c);
    double mean_m = 0, mean_v = 0;
    for (size_t i = 0; i < n; i++) {
        assert_true(fabs(to_float(m[i]) - rm[i]) <= rm[i] / 128);
        mean_m += to_float(m[i]) / n;
        mean_v += to_float(v[i]) / n;
    }
    check("p", p, rp, 2e-7);
    assert_true(fabs(mean_m / rm[0] - 1) < 1e-4);  // nearest would be off by up to 4e-3
    assert_true(fabs(mean_v / rv[0] - 1) < 1e-4);
    for (size_t cut : {(size_t)1, (size_t)12345}) {  // the same in two pieces, with three threads
        set_threads(3);
        Floats q(n, 0.5f);
        std::vector<bf16> m2(n), v2(n);
        adamw_update(q.data(), g.data(), m2.data(), v2.data(), cut, 1000, sums, &c, NULL);
        adamw_update(q.data() + cut, g.data() + cut, m2.data() + cut, v2.data() + cut, n - cut,
                     1000 + cut, sums, &c, NULL);
        assert_memory_equal(m.data(), m2.data(), n * sizeof(bf16));
        assert_memory_equal(v.data(), v2.data(), n * sizeof(bf16));
        assert_memory_equal(p.data(), q.data(), n * sizeof(float));
        set_threads(1);
    }
    std::vector<bf16> m3(n), v3(n);
    c.step++;
    adamw_update(p.data(), g.data(), m3.data(), v3.data(), n, 1000, sums, &c, NULL);
    assert_memory_not_equal(m.data(), m3.data(), n * sizeof(bf16));
}

static void adamw_leaves_everything_after_a_non_finite_norm(void **) {
    const size_t n = 33;
    for (double bad : {(double)NAN, (double)INFINITY}) {
        Floats p = random_floats(n, 1), g = random_floats(n, 1), m = random_floats(n, 1),
               v = random_floats(n, 1);
        Floats p0 = p, m0 = m, v0 = v;
        double sums[3] = {1, bad, 0};
        for (MomentType t : {MOMENTS_FP32, MOMENTS_BF16}) {
            AdamWConfig c = adamw_config(t);
            adamw_update(p.data(), g.data(), m.data(), v.data(), n, 0, sums, &c, NULL);
            assert_memory_equal(p.data(), p0.data(), n * sizeof(float));
            assert_memory_equal(m.data(), m0.data(), n * sizeof(float));
            assert_memory_equal(v.data(), v0.data(), n * sizeof(float));
        }
    }
}

// ---- exp ---------------------------------------------------------------------------------------

static void exp_is_right_to_2e_7_over_its_whole_range(void **) {
    for (float x = -87.29f; x < 88.29f; x += 0.0007f) {
        double ref = exp((double)x);
        assert_true(fabs(exp_float(x) - ref) <= 2e-7 * ref);
    }
    assert_true(exp_float(0) == 1 && exp_float(-INFINITY) == 0 && exp_float(-200) == 0);
    assert_true(isinf(exp_float(INFINITY)) && isnan(exp_float(NAN)));
}

static bool processor_has_the_instructions(void) {
#ifdef __AVX512F__
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#elif defined(__AVX2__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return true;
#endif
}

// Also in threads that start later, as those of a product may.
static void every_thread_counts_subnormal_numbers_as_zero(void **) {
    static volatile float tiny = 1e-40f, scale = 1e20f, small = 1e-20f;
    int kept = 0;
#pragma omp parallel num_threads(9) reduction(+ : kept)
    kept += tiny * scale != 0 || small / scale != 0;
    if (kept) fail_msg("%d of 9 threads compute with subnormal numbers", kept);
}

int main(void) {
    if (!processor_has_the_instructions()) {
        printf("skipped: this processor lacks the instruction set\n");
        return 0;
    }
    set_threads(1);
    const CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_counts_subnormal_numbers_as_zero),
        cmocka_unit_test(exp_is_right_to_2e_7_over_its_whole_range),
        cmocka_unit_test(encoder_adds_token_and_position),
        cmocka_unit_test(encoder_gradient_of_repeated_tokens_is_added_once),
        cmocka_unit_test(layernorm_normalises_rows),
        cmocka_unit_test(layernorm_gradient_is_that_of_the_formula),
        cmocka_unit_test(gelu_has_full_relative_accuracy),
        cmocka_unit_test(matmul_forward_is_inp_times_weight_transposed),
        cmocka_unit_test(matmul_backward_input_is_dout_times_weight),
        cmocka_unit_test(matmul_backward_weight_is_dout_transposed_times_inp),
        cmocka_unit_test(matmul_backward_weight_of_a_vocabulary_needs_no_bias),
        cmocka_unit_test(attention_is_softmax_of_earlier_tokens),
        cmocka_unit_test(attention_survives_large_scores),
        cmocka_unit_test(reference_gradients_agree_with_finite_differences),
#if !PRECISION_BF16
        cmocka_unit_test(layernorm_gradient_agrees_with_finite_differences),
        cmocka_unit_test(classifier_gradient_agrees_with_finite_differences),
#endif
        cmocka_unit_test(classifier_is_cross_entropy_with_zero_padding),
        cmocka_unit_test(classifier_shows_non_finite_logits_in_the_loss),
        cmocka_unit_test(losses_are_added_to_the_sum_in_double),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(shards_add_in_the_order_of_the_parts),
        cmocka_unit_test(absmax_keeps_the_larger_and_reports_nan_as_infinity),
        cmocka_unit_test(a_checksum_sees_every_bit_of_every_word),
        cmocka_unit_test(sum_of_squares_does_not_depend_on_the_cut),
        cmocka_unit_test(adamw_follows_the_paper_in_fp32_and_fp64),
        cmocka_unit_test(adamw_rounds_bf16_moments_without_bias_and_by_global_element),
        cmocka_unit_test(adamw_leaves_everything_after_a_non_finite_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
