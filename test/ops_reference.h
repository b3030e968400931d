// test/ops_reference.h: what the tests of the ops and of the kernels share: inputs from a seed, the
// ops in double precision as plain loops, and the comparison with them. Include it after ops.h.
//
// A Sum knows the sum of the absolute values of its terms beside its value: rounding errors are in
// proportion to that, however much of it cancels.
#pragma once

#include "common.h"

#include <math.h>
#include <vector>

typedef std::vector<double> Doubles;
typedef std::vector<float> Floats;
typedef std::vector<int> Ints;
typedef std::vector<floatX> Array;

// ---- inputs ------------------------------------------------------------------------------------

static uint64_t random_state;

// The set-up of every test: its data are the same whatever ran before it.
static int seed_data(void **) {
    random_state = 1;
    return 0;
}

static double uniform(void) {  // [-1, 1)
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)random_state / 9223372036854775808.0;
}

static Floats random_floats(size_t n, double scale) {
    Floats a(n);
    for (auto &x : a) x = (float)(uniform() * scale);
    return a;
}

static Array random_array(size_t n, double scale) {
    Array a(n);
    for (auto &x : a) store_float(&x, (float)(uniform() * scale));
    return a;
}

static Ints random_tokens(int n, int V) {
    Ints a((size_t)n);
    for (auto &x : a) x = (int)((uniform() + 1) / 2 * V);
    return a;
}

static AdamWConfig adamw_config(MomentType moments) {
    AdamWConfig c = {};
    c.lr = 1e-2f, c.beta1 = 0.9f, c.beta2 = 0.95f, c.eps = 1e-8f, c.weight_decay = 0.1f;
    c.step = 3, c.moments = moments, c.grad_scale = 1.0 / 512, c.grad_clip = 1, c.seed = 42;
    return c;
}

static double value(double x) {
    return x;
}
static double value(float x) {
    return x;
}
static double value(bf16 x) {
    return to_float(x);
}

template <class T> static Doubles doubles(const std::vector<T> &a) {
    Doubles d(a.size());
    for (size_t i = 0; i < d.size(); i++) d[i] = value(a[i]);
    return d;
}

// ---- sums and comparison -----------------------------------------------------------------------

struct Sum {
    double value, size;
    Sum(double x = 0) : value(x), size(fabs(x)) {}
    Sum(double v, double s) : value(v), size(s) {}
    void operator+=(Sum x) {
        value += x.value;
        size += x.size;
    }
};

static Sum operator+(Sum a, Sum b) {
    return {a.value + b.value, a.size + b.size};
}

static Sum operator-(Sum a, Sum b) {
    return {a.value - b.value, a.size + b.size};
}

static Sum operator*(Sum a, Sum b) {
    return {a.value * b.value, a.size * b.size};
}

static Sum operator/(Sum a, double b) {
    return {a.value / b, a.size / fabs(b)};
}

typedef std::vector<Sum> Sums;

// Half a unit in the last place of floatX.
static const double ROUNDING = sizeof(floatX) == 2 ? 1.0 / 256 : 1.0 / (1 << 24);

// Tolerances: of one rounding to fp32, of sums in fp32 and in fp64, and of probabilities in fp32 of
// logits that are up to 20 apart.
static const double FP32_ONCE = 6e-8, FP32 = 5e-7, FP64 = 1e-15, PROBABILITY = 2e-5;

// Fails where found is not finite or off by more than so many roundings of the expected value to
// floatX and the tolerance, which is relative to the sum of the absolute values of the terms.
template <class T>
static void check(const char *what, const std::vector<T> &found, const Sums &expected,
                  double roundings, double tolerance) {
    assert_int_equal(found.size(), expected.size());
    for (size_t i = 0; i < expected.size(); i++) {
        double f = value(found[i]), e = expected[i].value;
        double allowed = roundings * ROUNDING * fabs(e) + tolerance * expected[i].size + 1e-30;
        if (!(fabs(f - e) <= allowed))
            fail_msg("%s[%zu]: expected %.9g within %.3g, found %.9g, off by %.3g; the terms' "
                     "absolute values sum up to %.9g",
                     what, i, e, allowed, f, fabs(f - e), expected[i].size);
    }
}

// ---- the ops -----------------------------------------------------------------------------------

// mean and rstd (rows) may be NULL.
static Sums layernorm_reference(const Doubles &x, const Doubles &w, const Doubles &b, int rows,
                                int C, Sums *mean = NULL, Sums *rstd = NULL) {
    Sums out(x.size());
    for (int i = 0; i < rows; i++) {
        const double *row = &x[(size_t)i * C];
        Sum m;
        double v = 0;
        for (int c = 0; c < C; c++) m += row[c] / C;
        for (int c = 0; c < C; c++) v += pow(row[c] - m.value, 2) / C;
        double r = 1 / sqrt(v + 1e-5);
        for (int c = 0; c < C; c++) out[(size_t)i * C + c] = (row[c] - m) * r * w[c] + b[c];
        if (mean) (*mean)[i] = m;
        // An error of the mean is one of every distance from it.
        if (rstd) (*rstd)[i] = Sum(r, r * (1 + m.size * r));
    }
    return out;
}

struct LayernormGradient {
    Sums dinp, dweight, dbias;
};

static LayernormGradient layernorm_gradient_reference(const Doubles &dout, const Doubles &x,
                                                      const Doubles &w, int rows, int C) {
    LayernormGradient g = {Sums(x.size()), Sums(C), Sums(C)};
    Sums n(C), dn(C);  // of a row: normalised, and its gradient
    for (int i = 0; i < rows; i++) {
        size_t at = (size_t)i * C;
        Sum m, a, b;
        double v = 0;
        for (int c = 0; c < C; c++) m += x[at + c] / C;
        for (int c = 0; c < C; c++) v += pow(x[at + c] - m.value, 2) / C;
        double r = 1 / sqrt(v + 1e-5);
        for (int c = 0; c < C; c++) {
            n[c] = (x[at + c] - m) * r, dn[c] = dout[at + c] * w[c];
            a += dn[c] / C, b += dn[c] * n[c] / C;
            g.dweight[c] += dout[at + c] * n[c], g.dbias[c] += dout[at + c];
        }
        for (int c = 0; c < C; c++) g.dinp[at + c] = (dn[c] - a - n[c] * b) * r;
    }
    return g;
}

// x/2 (1 + tanh u) without tanh, which has no digits left where it is near -1, even in double. An
// error of the exponent is one of its exponential.
static Sum gelu_reference(double x) {
    double u2 = 2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), y = x / (1 + exp(-u2));
    return Sum(y, fabs(y) * (1 + fabs(u2)));
}

static Sum gelu_slope(double x) {
    double u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), t = tanh(u);
    return Sum(0.5) + 0.5 * t + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

// inp (rows, k) times weight (n, k) transposed
static Sums matmul_reference(const Doubles &inp, const Doubles &weight, int rows, int k, int n) {
    Sums out((size_t)rows * n);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < n; j++)
            for (int p = 0; p < k; p++)
                out[(size_t)i * n + j] += inp[(size_t)i * k + p] * weight[(size_t)j * k + p];
    return out;
}

// dout (rows, n) times weight (n, k)
static Sums matmul_input_reference(const Doubles &dout, const Doubles &weight, int rows, int k,
                                   int n) {
    Sums dinp((size_t)rows * k);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < n; j++)
            for (int p = 0; p < k; p++)
                dinp[(size_t)i * k + p] += dout[(size_t)i * n + j] * weight[(size_t)j * k + p];
    return dinp;
}

// dout (rows, n) transposed times inp (rows, k)
static Sums matmul_weight_reference(const Doubles &dout, const Doubles &inp, int rows, int k,
                                    int n) {
    Sums dw((size_t)n * k);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < n; j++)
            for (int p = 0; p < k; p++)
                dw[(size_t)j * k + p] += dout[(size_t)i * n + j] * inp[(size_t)i * k + p];
    return dw;
}

// a (rows, C) summed over the rows
static Sums column_reference(const Doubles &a, int rows, int C) {
    Sums s(C);
    for (int i = 0; i < rows; i++)
        for (int c = 0; c < C; c++) s[c] += a[(size_t)i * C + c];
    return s;
}

template <class T> static Sums added(const Sums &a, const std::vector<T> &b) {
    Sums s = a;
    for (size_t i = 0; i < s.size(); i++) s[i] += value(b[i]);
    return s;
}

struct Heads {
    int B, T, NH, HS;
};

struct AttentionReference {
    Sums out, lse, dqkv;
    double scores;  // the largest size of a score: an error of a score is one of its exponential
};

// Plain softmax attention of head n and query i of sequence b; s: room for the scores.
static void attention_row(AttentionReference *r, Doubles *s, const Doubles &qkv, const Heads &h,
                          int b, int n, int i) {
    const int C = h.NH * h.HS;
    const size_t row = 3 * (size_t)C, head = (size_t)n * h.HS, first = (size_t)b * h.T;
    const double *q = &qkv[(first + i) * row + head];
    Sum max = -1e300;
    for (int j = 0; j <= i; j++) {
        const double *k = &qkv[(first + j) * row + C + head];
        Sum score;
        for (int c = 0; c < h.HS; c++) score += q[c] * k[c] / sqrt(h.HS);
        (*s)[j] = score.value;
        r->scores = fmax(r->scores, score.size);
        if (score.value > max.value) max = score;
    }
    double sum = 0;
    for (int j = 0; j <= i; j++) sum += exp((*s)[j] - max.value);
    r->lse[((size_t)b * h.NH + n) * h.T + i] = max + log(sum);
    for (int j = 0; j <= i; j++) {
        const double *v = &qkv[(first + j) * row + 2 * C + head];
        for (int c = 0; c < h.HS; c++)
            r->out[(first + i) * C + head + c] += exp((*s)[j] - max.value) / sum * v[c];
    }
}

static void attention_gradient_row(AttentionReference *r, const Doubles &dout, const Doubles &qkv,
                                   const Heads &h, int b, int n, int i) {
    const int C = h.NH * h.HS;
    const double scale = 1 / sqrt(h.HS);
    const size_t first = (size_t)b * h.T, head = (size_t)n * h.HS;
    const size_t qi = (first + i) * 3 * C + head, oi = (first + i) * C + head;
    Sum D;
    for (int c = 0; c < h.HS; c++) D += dout[oi + c] * r->out[oi + c];
    for (int j = 0; j <= i; j++) {
        const size_t kj = (first + j) * 3 * C + C + head, vj = kj + C;
        double s = 0;
        Sum dp;
        for (int c = 0; c < h.HS; c++) s += qkv[qi + c] * qkv[kj + c] * scale;
        for (int c = 0; c < h.HS; c++) dp += dout[oi + c] * qkv[vj + c];
        double p = exp(s - r->lse[((size_t)b * h.NH + n) * h.T + i].value);
        Sum ds = (dp - D) * p * scale;
        for (int c = 0; c < h.HS; c++) {
            r->dqkv[qi + c] += ds * qkv[kj + c];
            r->dqkv[kj + c] += ds * qkv[qi + c];
            r->dqkv[vj + c] += p * dout[oi + c];
        }
    }
}

// dout empty: forward only.
static AttentionReference attention_reference(const Doubles &qkv, const Doubles &dout,
                                              const Heads &h) {
    AttentionReference r = {Sums(qkv.size() / 3), Sums((size_t)h.B * h.NH * h.T), Sums(qkv.size()),
                            0};
    Doubles scores(h.T);
    for (int b = 0; b < h.B; b++)
        for (int n = 0; n < h.NH; n++)
            for (int i = 0; i < h.T; i++) {
                attention_row(&r, &scores, qkv, h, b, n, i);
                if (!dout.empty()) attention_gradient_row(&r, dout, qkv, h, b, n, i);
            }
    return r;
}

// Probabilities and their gradients are kept as floatX.
static double attention_tolerance(const AttentionReference &r) {
    return (sizeof(floatX) == 2 ? ROUNDING : 0) + 3 * FP32_ONCE * (1 + r.scores);
}

struct ClassifierReference {
    Sums losses, dlogits;
};

// logits (rows, ld), of which V columns count
static ClassifierReference classifier_reference(const Doubles &logits, const Ints &targets, int V,
                                                int ld) {
    ClassifierReference r = {Sums(targets.size()), Sums(logits.size())};
    for (size_t i = 0; i < targets.size(); i++) {
        if (targets[i] < 0) continue;
        const double *x = &logits[i * ld];
        double max = x[0], sum = 0;
        for (int v = 0; v < V; v++) max = fmax(max, x[v]);
        for (int v = 0; v < V; v++) sum += exp(x[v] - max);
        r.losses[i] = Sum(log(sum)) + max - x[targets[i]];
        for (int v = 0; v < V; v++)
            r.dlogits[i * ld + v] = Sum(exp(x[v] - max) / sum) - (v == targets[i] ? 1.0 : 0.0);
    }
    return r;
}

struct AdamWReference {
    Sums p, m, v;
};

// norm: of the gradient before grad_scale
static AdamWReference adamw_reference(const Doubles &p, const Doubles &m, const Doubles &v,
                                      const Floats &g, double norm, const AdamWConfig &c) {
    AdamWReference r = {Sums(g.size()), Sums(g.size()), Sums(g.size())};
    double clip = c.grad_clip > 0 ? fmin(1, c.grad_clip / (norm * c.grad_scale + 1e-6)) : 1;
    for (size_t i = 0; i < g.size(); i++) {
        double x = g[i] * c.grad_scale * clip;
        r.m[i] = Sum(c.beta1 * m[i]) + (1 - (double)c.beta1) * x;
        r.v[i] = Sum(c.beta2 * v[i]) + (1 - (double)c.beta2) * x * x;
        Sum mh = r.m[i] / (1 - pow(c.beta1, c.step)), vh = r.v[i] / (1 - pow(c.beta2, c.step));
        r.p[i] = p[i] - (mh / (sqrt(vh.value) + c.eps) + c.weight_decay * p[i]) * c.lr;
    }
    return r;
}
