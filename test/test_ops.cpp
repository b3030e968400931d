// test/test_ops.cpp: every op of ops.h on the CPU against a plain double-precision reference, over
// awkward shapes. Compiled once per dtype (PRECISION_BF16) and instruction set; a processor that
// lacks the set skips. Tolerances: see check() in ops_reference.h.
#include "ops.h"
#include "ops_reference.h"

// ---- the ops' environment: one workspace for the largest sizes of this file --------------------

static const OpsDims LARGEST = {3, 600, 3072, 1, 50304, 8, false};
static std::vector<char> room;

static void set_threads(int n) {
    omp_set_num_threads(n);
    if (workspace.threads) ops_destroy();
    room.resize(ops_workspace_bytes(&LARGEST));
    memset(room.data(), 0xff, room.size());  // NaN: nothing may be read before it is written
    ops_init(&LARGEST, room.data(), room.size(), NULL);
}

// The set-up of every test, whatever the one before it has left.
static int fresh(void **state) {
    set_threads(1);
    return seed_data(state);
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
        Ints tokens = random_tokens(B * T, V);
        encoder_forward(out.data(), tokens.data(), wte.data(), wpe.data(), B, T, C, NULL);
        Sums ref(out.size());
        for (size_t i = 0; i < ref.size(); i++)
            ref[i] =
                value(wte[(size_t)tokens[i / C] * C + i % C]) + value(wpe[i / C % T * C + i % C]);
        check("out", out, ref, 1, FP32);
    }
}

static void encoder_gradient_of_repeated_tokens_is_added_once(void **) {
    const int shapes[][4] = {{1, 1, 1, 1}, {3, 7, 12, 2}, {1, 65, 300, 37}, {3, 130, 768, 50257}};
    for (auto &s : shapes) {
        int B = s[0], T = s[1], C = s[2], V = s[3];
        Array dout = random_array((size_t)B * T * C, 1);
        Ints tokens = random_tokens(B * T, V);
        tokens[B * T - 1] = tokens[0];
        Floats dwte0 = random_floats((size_t)V * C, 100), dwpe0 = random_floats((size_t)T * C, 1);
        check_threads("encoder_backward", [&] {
            Floats dwte = dwte0, dwpe = dwpe0, inner((size_t)V * C);
            encoder_backward(dwte.data(), dwpe.data(), dout.data(), tokens.data(), B, T, C, NULL);
            Sums refp = added(Sums(dwpe0.size()), dwpe0);
            for (int i = 0; i < B * T; i++)
                for (int c = 0; c < C; c++) {
                    inner[(size_t)tokens[i] * C + c] +=
                        to_float(dout[(size_t)i * C + c]);  // ascending, fp32
                    refp[(size_t)(i % T) * C + c] += to_float(dout[(size_t)i * C + c]);
                }
            for (size_t i = 0; i < dwte.size(); i++) assert_true(dwte[i] == dwte0[i] + inner[i]);
            check("dwpe", dwpe, refp, 0, FP32);
            std::vector<char> bits;
            append_bits(&bits, dwte, dwpe);
            return bits;
        });
    }
}

// ---- layernorm ---------------------------------------------------------------------------------

static const int LAYERNORM_SHAPES[][2] = {{1, 1},    {7, 3},     {65, 12},
                                          {300, 64}, {130, 768}, {4200, 37}};

static void layernorm_normalises_rows(void **) {
    for (auto &s : LAYERNORM_SHAPES) {
        int rows = s[0], C = s[1];
        Array x = random_array((size_t)rows * C, 2), y = random_array((size_t)rows * C, 2),
              w = random_array(C, 1), b = random_array(C, 1), out(x.size()), sum(x.size()),
              again(x.size());
        Floats mean(rows), rstd(rows), mean2(rows), rstd2(rows);
        layernorm_forward(out.data(), mean.data(), rstd.data(), x.data(), w.data(), b.data(), rows,
                          C, NULL);
        Sums m(rows), r(rows);
        check("out", out, layernorm_reference(doubles(x), doubles(w), doubles(b), rows, C, &m, &r),
              1, FP32);
        check("mean", mean, m, 0, FP32);
        check("rstd", rstd, r, 0, FP32);
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
              dout = random_array((size_t)rows * C, 1), start = random_array((size_t)rows * C, 1),
              out(x.size());
        Floats mean(rows), rstd(rows);
        layernorm_forward(out.data(), mean.data(), rstd.data(), x.data(), w.data(), w.data(), rows,
                          C, NULL);
        LayernormGradient ref =
            layernorm_gradient_reference(doubles(dout), doubles(x), doubles(w), rows, C);
        check_threads("layernorm_backward", [&] {
            Array dinp(x.size()), sum = start;
            Floats dweight(C), dbias(C), sums(C);
            layernorm_backward(dinp.data(), dweight.data(), dbias.data(), NULL, dout.data(),
                               x.data(), w.data(), mean.data(), rstd.data(), rows, C, false, NULL);
            layernorm_backward(sum.data(), dweight.data(), dbias.data(), sums.data(), dout.data(),
                               x.data(), w.data(), mean.data(), rstd.data(), rows, C, true, NULL);
            check("dinp", dinp, ref.dinp, 1, FP32);
            check("dinp added", sum, added(ref.dinp, start), 1, FP32);
            check("dweight", dweight, ref.dweight, 0, FP32);
            check("dbias", dbias, ref.dbias, 0, FP32);
            check("column sums of dinp", sums, column_reference(doubles(sum), rows, C), 0, FP32);
            std::vector<char> bits;
            append_bits(&bits, dinp, sum);
            append_bits(&bits, dweight, dbias);
            return bits;
        });
    }
}

// ---- matmul and GELU ---------------------------------------------------------------------------

static void gelu_has_full_relative_accuracy(void **) {
    Array x = random_array(100001, 12), out(x.size());
    store_float(&x[0], 0), store_float(&x[1], -60), store_float(&x[2], 60);
    Sums ref(x.size());
    for (size_t i = 0; i < x.size(); i++) {
        double v = value(x[i]), u = sqrt(2 / M_PI) * (v + 0.044715 * v * v * v);
        ref[i] = gelu_reference(v);
        assert_true(fabs(ref[i].value - 0.5 * v * (1 + tanh(u))) <= 1e-14);
        Sum slope = gelu_slope(v);
        assert_true(fabs(gelu_derivative((float)v) - slope.value) <= 1e-6 * slope.size);
    }
    gelu_forward(out.data(), x.data(), x.size(), NULL);
    check("gelu", out, ref, 1, 3 * FP32_ONCE);
}

static void gelu_of_nan_is_nan(void **) {
    Array x(1), out(1);
    store_float(&x[0], NAN);
    gelu_forward(out.data(), x.data(), 1, NULL);
    assert_true(isnan(value(out[0])));
}

typedef struct {
    int rows, Cin, Cout;
} Linear;
// Single rows are products of another kind.
// The last three: sums too long for one piece, and results that are written past the caches.
static const Linear LINEARS[] = {{1, 1, 1},        {1, 257, 65},   {1, 768, 2304},  {7, 3, 12},
                                 {65, 12, 37},     {130, 64, 192}, {3, 768, 2304},  {300, 768, 96},
                                 {270, 96, 1100},  {2, 64, 50304}, {40, 1100, 260}, {520, 257, 129},
                                 {2200, 16, 1000}, {9, 8300, 70},  {530, 70, 8300}};

static void matmul_forward_is_inp_times_weight_transposed(void **) {
    for (auto &l : LINEARS) {
        int m = l.rows, k = l.Cin, n = l.Cout;
        Array inp = random_array((size_t)m * k, 1), w = random_array((size_t)n * k, 2 / sqrt(k)),
              bias = random_array(n, 1);
        Sums ref = matmul_reference(doubles(inp), doubles(w), m, k, n), refb = ref;
        for (size_t i = 0; i < refb.size(); i++) refb[i] += value(bias[i % n]);
        check_threads("matmul_forward", [&] {
            Array out((size_t)m * n), plain(out.size()), pre(out.size()), act(out.size()),
                act2(out.size());
            matmul_forward(out.data(), inp.data(), w.data(), bias.data(), m, k, n, NULL);
            matmul_forward(plain.data(), inp.data(), w.data(), NULL, m, k, n, NULL);
            check("out", out, refb, 1, FP32);
            check("out without bias", plain, ref, 1, FP32);
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
        Sums ref = matmul_input_reference(doubles(dout), doubles(w), m, k, n), refg = ref;
        for (size_t i = 0; i < refg.size(); i++) refg[i] = ref[i] * gelu_slope(value(pre[i]));
        check_threads("matmul_backward_input", [&] {
            Array dinp((size_t)m * k), dpre(dinp.size());
            matmul_backward_input(dinp.data(), dout.data(), w.data(), NULL, m, k, n, NULL);
            matmul_backward_input(dpre.data(), dout.data(), w.data(), pre.data(), m, k, n, NULL);
            check("dinp", dinp, ref, 1, FP32);
            check("dinp through GELU", dpre, refg, 1, FP32);
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
        Sums ref = matmul_weight_reference(doubles(dout), doubles(inp), m, k, n),
             refb = column_reference(doubles(dout), m, n);
        check_threads("matmul_backward_weight", [&] {
            Floats dw((size_t)n * k, NAN), db(n, NAN), dw2 = dw0, db2 = db0;
            matmul_backward_weight(dw.data(), db.data(), dout.data(), inp.data(), m, k, n, false,
                                   NULL);
            check("dweight", dw, ref, 0, FP32);
            check("dbias", db, refb, 0, FP32);
            matmul_backward_weight(dw2.data(), db2.data(), dout.data(), inp.data(), m, k, n, true,
                                   NULL);
            if (m <= 1024) {  // one addition
                for (size_t i = 0; i < dw.size(); i++) assert_true(dw2[i] == dw0[i] + dw[i]);
                for (int i = 0; i < n; i++) assert_true(db2[i] == db0[i] + db[i]);
            }
            check("dweight added", dw2, added(ref, dw0), 0, FP32);
            check("dbias added", db2, added(refb, db0), 0, FP32);
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
    check("dweight", dw, matmul_weight_reference(doubles(dout), doubles(inp), rows, C, V), 0, FP32);
}

// ---- attention ---------------------------------------------------------------------------------

static const Heads HEADS[] = {{1, 1, 1, 3},    {3, 7, 4, 3},     {1, 65, 12, 64}, {3, 130, 2, 16},
                              {1, 130, 2, 80}, {1, 257, 1, 128}, {1, 600, 2, 64}, {1, 513, 1, 1}};

static void attention_is_softmax_of_earlier_tokens(void **) {
    for (auto &h : HEADS) {
        int C = h.NH * h.HS;
        size_t tokens = (size_t)h.B * h.T;
        Array qkv = random_array(tokens * 3 * C, 2), dout = random_array(tokens * C, 1);
        AttentionReference ref = attention_reference(doubles(qkv), doubles(dout), h);
        const double tolerance = attention_tolerance(ref);
        check_threads("attention", [&] {
            Array o(dout.size()), d(qkv.size());
            Floats l(ref.lse.size());
            attention_forward(o.data(), l.data(), qkv.data(), h.B, h.T, C, h.NH, NULL);
            check("out", o, ref.out, 1, tolerance);
            check("lse", l, ref.lse, 0, FP32);
            attention_backward(d.data(), dout.data(), o.data(), qkv.data(), l.data(), h.B, h.T, C,
                               h.NH, NULL);
            check("dqkv", d, ref.dqkv, 1, tolerance);
            std::vector<char> bits;
            append_bits(&bits, o, d);
            append_bits(&bits, l, l);
            return bits;
        });
    }
}

// The last row of what attention_forward gives, for every number of tokens.
static void attention_of_the_last_token_is_the_last_row(void **) {
    for (auto &h : HEADS) {
        int C = h.NH * h.HS;
        Array qkv = random_array((size_t)h.T * 3 * C, 2);
        AttentionReference ref = attention_reference(doubles(qkv), Doubles(), {1, h.T, h.NH, h.HS});
        const double tolerance = attention_tolerance(ref);
        for (int T = 1; T <= h.T; T += T < 9 ? 1 : 41) {
            Sums row(ref.out.begin() + (size_t)(T - 1) * C, ref.out.begin() + (size_t)T * C);
            check_threads("attention_last", [&] {
                Array o(C);
                attention_last(o.data(), qkv.data(), T, C, h.NH, NULL);
                check("out", o, row, 1, tolerance);
                return o;
            });
        }
    }
}

static void attention_survives_large_scores(void **) {
    Heads h = {1, 600, 1, 16};
    Array qkv = random_array((size_t)h.T * 48, 60);
    AttentionReference ref = attention_reference(doubles(qkv), Doubles(), h);
    Array o(ref.out.size());
    Floats l(h.T);
    attention_forward(o.data(), l.data(), qkv.data(), 1, h.T, 16, 1, NULL);
    check("out", o, ref.out, 1, attention_tolerance(ref));
    attention_last(o.data() + (h.T - 1) * 16, qkv.data(), h.T, 16, 1, NULL);
    check("out of the last", o, ref.out, 1, attention_tolerance(ref));
    check("lse", l, ref.lse, 0, FP32);
}

// The references' own gradients against central differences, so that both do not share a mistake.
static void reference_gradients_agree_with_finite_differences(void **) {
    Heads h = {2, 5, 2, 3};
    size_t n = (size_t)h.B * h.T * h.NH * h.HS;
    Doubles qkv = doubles(random_floats(3 * n, 1)), dout = doubles(random_floats(n, 1));
    AttentionReference ref = attention_reference(qkv, dout, h);
    for (size_t i = 0; i < qkv.size(); i++) {
        double L[2] = {0, 0};
        for (int side = 0; side < 2; side++) {
            Doubles moved = qkv;
            moved[i] += side ? 1e-5 : -1e-5;
            Sums out = attention_reference(moved, Doubles(), h).out;
            for (size_t j = 0; j < n; j++) L[side] += out[j].value * dout[j];
        }
        assert_true(fabs((L[1] - L[0]) / 2e-5 - ref.dqkv[i].value) < 1e-8);
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
    layernorm_backward(dinp.data(), dw.data(), db.data(), NULL, dout.data(), x.data(), w.data(),
                       mean.data(), rstd.data(), rows, C, false, NULL);
    Doubles in[3] = {doubles(x), doubles(w), doubles(b)};
    Floats found[3] = {dinp, dw, db};
    for (int which = 0; which < 3; which++)
        for (size_t i = 0; i < in[which].size(); i++) {
            double L[2] = {0, 0};
            for (int side = 0; side < 2; side++) {
                Doubles moved[3] = {in[0], in[1], in[2]};
                moved[which][i] += side ? 1e-5 : -1e-5;
                Sums o = layernorm_reference(moved[0], moved[1], moved[2], rows, C);
                for (size_t j = 0; j < o.size(); j++) L[side] += o[j].value * dout[j];
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
        Ints targets = random_tokens(rows, V);
        if (rows > 2) targets[1] = -1;
        for (int i = 0; i < rows; i++)
            for (int v = V; v < ld; v++)
                store_float(&logits[(size_t)i * ld + v], NAN);  // padding is never read
        ClassifierReference ref = classifier_reference(doubles(logits), targets, V, ld);
        check_threads("classifier", [&] {
            Floats found(rows, NAN), only(rows, NAN);
            Array d = logits, kept = logits;
            classifier(kept.data(), only.data(), targets.data(), rows, V, ld, false, NULL);
            assert_memory_equal(kept.data(), logits.data(), kept.size() * sizeof(floatX));
            classifier(d.data(), found.data(), targets.data(), rows, V, ld, true, NULL);
            assert_memory_equal(only.data(), found.data(), rows * sizeof(float));
            check("losses", found, ref.losses, 0, FP32);
            check("dlogits", d, ref.dlogits, 1, PROBABILITY);
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
    check("cast_from_float", z, added(Sums(19), source), 1, 0);
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

static void adamw_follows_the_paper_in_fp32_and_fp64(void **) {
    const size_t n = 5003;
    for (float clip : {0.0f, 1.0f, 100.0f}) {
        Floats p = random_floats(n, 1), g = random_floats(n, 300), p64 = p,
               m = random_floats(n, 0.1), v(n);
        for (auto &x : v) x = fabsf((float)uniform()) * 0.01f + 1e-4f;
        Doubles m64 = doubles(m), v64 = doubles(v);
        double sums[3] = {0, 0, 0};
        shard_sum_squares(sums, g.data(), n, NULL, 0, NULL);
        AdamWConfig c = adamw_config(MOMENTS_FP32);
        c.grad_clip = clip;
        AdamWReference ref = adamw_reference(doubles(p), m64, v64, g, sqrt(sums[0]), c);
        const Floats before = p;
        adamw_update(p.data(), g.data(), m.data(), v.data(), adamw_whole(n, 0), sums, &c, NULL);
        Floats change(n);
        adamw_change(change.data(), p.data(), m.data(), v.data(), adamw_whole(n, 0), sums, &c,
                     NULL);
        for (size_t i = 0; i < n; i++) change[i] = before[i] - change[i];
        check("p before the change", change, ref.p, 0, FP32);
        c.moments = MOMENTS_FP64;
        adamw_update(p64.data(), g.data(), m64.data(), v64.data(), adamw_whole(n, 0), sums, &c,
                     NULL);
        check("p", p, ref.p, 0, FP32);
        check("m", m, ref.m, 0, FP32);
        check("v", v, ref.v, 0, FP32);
        check("p, fp64 moments", p64, ref.p, 0, FP32_ONCE);
        check("m, fp64", m64, ref.m, 0, FP64);
        check("v, fp64", v64, ref.v, 0, FP64);
    }
}

static void adamw_rounds_bf16_moments_without_bias_and_by_global_element(void **) {
    const size_t n = 40000;
    Floats p(n, 0.5f), g(n, 100.0f);
    std::vector<bf16> m(n), v(n);
    double sums[3] = {1, 0, 0};
    AdamWConfig c = adamw_config(MOMENTS_BF16);
    adamw_update(p.data(), g.data(), m.data(), v.data(), adamw_whole(n, 1000), sums, &c, NULL);
    AdamWReference ref = adamw_reference(doubles(Floats(n, 0.5f)), Doubles(n), Doubles(n), g, 1, c);
    double mean_m = 0, mean_v = 0;
    for (size_t i = 0; i < n; i++) {
        assert_true(fabs(to_float(m[i]) - ref.m[i].value) <= ref.m[i].value / 128);
        mean_m += to_float(m[i]) / n;
        mean_v += to_float(v[i]) / n;
    }
    check("p", p, ref.p, 0, FP32);
    assert_true(fabs(mean_m / ref.m[0].value - 1) < 1e-4);  // nearest: off by up to 4e-3
    assert_true(fabs(mean_v / ref.v[0].value - 1) < 1e-4);
    for (size_t cut : {(size_t)1, (size_t)12345}) {  // the same in two pieces, with three threads
        set_threads(3);
        Floats q(n, 0.5f);
        std::vector<bf16> m2(n), v2(n);
        adamw_update(q.data(), g.data(), m2.data(), v2.data(), adamw_whole(cut, 1000), sums, &c,
                     NULL);
        adamw_update(q.data() + cut, g.data() + cut, m2.data() + cut, v2.data() + cut,
                     adamw_whole(n - cut, 1000 + cut), sums, &c, NULL);
        assert_memory_equal(m.data(), m2.data(), n * sizeof(bf16));
        assert_memory_equal(v.data(), v2.data(), n * sizeof(bf16));
        assert_memory_equal(p.data(), q.data(), n * sizeof(float));
        set_threads(1);
    }
    std::vector<bf16> m3(n), v3(n);
    c.step++;
    adamw_update(p.data(), g.data(), m3.data(), v3.data(), adamw_whole(n, 1000), sums, &c, NULL);
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
            adamw_update(p.data(), g.data(), m.data(), v.data(), adamw_whole(n, 0), sums, &c, NULL);
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

#define fresh_test(test) cmocka_unit_test_setup(test, fresh)

int main(void) {
    if (!processor_has_the_instructions()) {
        printf("skipped: this processor lacks the instruction set\n");
        return 0;
    }
    const CMUnitTest tests[] = {
        fresh_test(every_thread_counts_subnormal_numbers_as_zero),
        fresh_test(exp_is_right_to_2e_7_over_its_whole_range),
        fresh_test(encoder_adds_token_and_position),
        fresh_test(encoder_gradient_of_repeated_tokens_is_added_once),
        fresh_test(layernorm_normalises_rows),
        fresh_test(layernorm_gradient_is_that_of_the_formula),
        fresh_test(gelu_has_full_relative_accuracy),
        fresh_test(gelu_of_nan_is_nan),
        fresh_test(matmul_forward_is_inp_times_weight_transposed),
        fresh_test(matmul_backward_input_is_dout_times_weight),
        fresh_test(matmul_backward_weight_is_dout_transposed_times_inp),
        fresh_test(matmul_backward_weight_of_a_vocabulary_needs_no_bias),
        fresh_test(attention_is_softmax_of_earlier_tokens),
        fresh_test(attention_of_the_last_token_is_the_last_row),
        fresh_test(attention_survives_large_scores),
        fresh_test(reference_gradients_agree_with_finite_differences),
#if !PRECISION_BF16
        fresh_test(layernorm_gradient_agrees_with_finite_differences),
        fresh_test(classifier_gradient_agrees_with_finite_differences),
#endif
        fresh_test(classifier_is_cross_entropy_with_zero_padding),
        fresh_test(classifier_shows_non_finite_logits_in_the_loss),
        fresh_test(losses_are_added_to_the_sum_in_double),
        fresh_test(bf16_rounds_to_nearest_even),
        fresh_test(shards_add_in_the_order_of_the_parts),
        fresh_test(absmax_keeps_the_larger_and_reports_nan_as_infinity),
        fresh_test(a_checksum_sees_every_bit_of_every_word),
        fresh_test(sum_of_squares_does_not_depend_on_the_cut),
        fresh_test(adamw_follows_the_paper_in_fp32_and_fp64),
        fresh_test(adamw_rounds_bf16_moments_without_bias_and_by_global_element),
        fresh_test(adamw_leaves_everything_after_a_non_finite_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
