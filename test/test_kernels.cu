// test/test_kernels.cu: every kernel, over awkward shapes, against double precision; where both
// devices add in the same order, against the bits of the CPU op. Compiled once per dtype
// (PRECISION_BF16), for a GPU and for the emulator alike. Tolerances: see check() in
// ops_reference.h. In the race build each of the barriers that SEEDED_DEFECTS can leave out must be
// missed.
#include "ops.h"
#include "test/cpu_reference.h"
#include "test/ops_reference.h"

#ifdef EMULATOR
#include "emulator/test.h"
#endif

static cudaStream_t stream;

// ---- arrays on the device, comparison ----------------------------------------------------------

// n elements on the device; `shift` elements off the alignment of cudaMalloc.
template <class T> struct Device {
    T *base, *at;
    size_t n;
    explicit Device(size_t count, size_t shift = 0) : n(count) {
        cudaCheck(cudaMalloc((void **)&base, (n + shift) * sizeof(T)));
        at = base + shift;
    }
    explicit Device(const std::vector<T> &host, size_t shift = 0) : Device(host.size(), shift) {
        cudaCheck(cudaMemcpyAsync(at, host.data(), n * sizeof(T), cudaMemcpyHostToDevice, stream));
        cudaCheck(cudaStreamSynchronize(stream));
    }
    Device(const Device &) = delete;
    std::vector<T> host() const {
        std::vector<T> h(n);
        cudaCheck(cudaMemcpyAsync(h.data(), at, n * sizeof(T), cudaMemcpyDeviceToHost, stream));
        cudaCheck(cudaStreamSynchronize(stream));
        return h;
    }
    ~Device() {
        cudaCheck(cudaStreamSynchronize(stream));
        cudaCheck(cudaFree(base));
    }
};

template <class T>
static void check_same(const char *what, const std::vector<T> &found,
                       const std::vector<T> &expected) {
    assert_int_equal(found.size(), expected.size());
    for (size_t i = 0; i < expected.size(); i++)
        if (memcmp(&found[i], &expected[i], sizeof(T)))
            fail_msg("%s[%zu]: expected the bits of %.9g, found %.9g", what, i, value(expected[i]),
                     value(found[i]));
}

// Room on the device for the ops, the largest so far: most of it is cuBLASLt's.
static char *room;
static size_t room_bytes;

// Both devices' ops, ready for just these sizes.
struct Workspace {
    Workspace(int B, int T, int C, int NH, int V) {
        OpsDims d = {B, T, C, NH, V, B * T, false};
        size_t bytes = ops_workspace_bytes(&d);
        if (bytes > room_bytes) {
            cudaCheck(cudaFree(room));
            cudaCheck(cudaMalloc((void **)&room, bytes));
            room_bytes = bytes;
        }
        ops_init(&d, room, bytes, stream);
        cpu::init(B, T, C, NH, V, B * T);
    }
    ~Workspace() {
        cudaCheck(cudaStreamSynchronize(stream));
        ops_destroy();
    }
};

// ---- encoder -----------------------------------------------------------------------------------

static const int ENCODERS[][4] = {{1, 1, 1, 1},      {3, 7, 12, 37},  {1, 65, 64, 3},
                                  {1, 33, 4, 50257}, {1, 9, 300, 37}, {3, 130, 96, 37}};

static void encoder_forward_gives_the_bits_of_the_cpu(void **) {
    for (auto &s : ENCODERS) {
        int B = s[0], T = s[1], C = s[2], V = s[3];
        Array wte = random_array((size_t)V * C, 1), wpe = random_array((size_t)T * C, 1),
              ref((size_t)B * T * C);
        Ints tokens = random_tokens(B * T, V);
        Device<floatX> out(ref.size()), a(wte), b(wpe);
        Device<int> t(tokens);
        encoder_forward(out.at, t.at, a.at, b.at, B, T, C, stream);
        cpu::encoder_forward(ref.data(), tokens.data(), wte.data(), wpe.data(), B, T, C);
        check_same("out", out.host(), ref);
    }
}

// dwte is summed in ascending order of positions by both, dwpe in that of the batch: the same bits.
static void check_encoder_backward(int B, int T, int C, int V, const Ints &tokens) {
    Workspace sizes(B, T, C, 1, V);
    Array dout = random_array((size_t)B * T * C, 1);
    Floats dwte = random_floats((size_t)V * C, 1), dwpe = random_floats((size_t)T * C, 1);
    Device<float> a(dwte), b(dwpe);
    Device<floatX> d(dout);
    Device<int> t(tokens);
    encoder_backward(a.at, b.at, d.at, t.at, B, T, C, stream);
    cpu::encoder_backward(dwte.data(), dwpe.data(), dout.data(), tokens.data(), B, T, C);
    check_same("dwte", a.host(), dwte);
    check_same("dwpe", b.host(), dwpe);
}

static void encoder_backward_gives_the_bits_of_the_cpu(void **) {
    for (auto &s : ENCODERS) {
        int B = s[0], T = s[1], V = s[3];
        Ints tokens = random_tokens(B * T, V);
        tokens[0] = V - 1, tokens[B * T - 1] = V - 1;
        check_encoder_backward(B, T, s[2], V, tokens);
    }
}

// A token that is most of the batch: runs longer than a block, and one that
// ends exactly with a block.
static void encoder_backward_sums_long_runs_of_one_token(void **) {
    for (int T : {255, 256, 257, 600}) check_encoder_backward(1, T, 3, 5, Ints((size_t)T, 2));
}

// ---- layernorm ---------------------------------------------------------------------------------

static const int LAYERNORMS[][2] = {{1, 1},   {7, 3},     {65, 12},   {33, 64},  {130, 96},
                                    {5, 768}, {70, 1600}, {3, 12288}, {40, 5120}};

static void layernorm_forward_agrees_with_double_precision(void **) {
    for (auto &s : LAYERNORMS)
        for (size_t shift : {0, 1}) {
            int rows = s[0], C = s[1];
            size_t n = (size_t)rows * C;
            Array x = random_array(n, 2), y = random_array(n, 2), w = random_array(C, 1),
                  b = random_array(C, 1), sum(n);
            for (size_t i = 0; i < n; i++) store_float(&sum[i], to_float(x[i]) + to_float(y[i]));
            Sums mean(rows), rstd(rows);
            Device<floatX> out(n, shift), res(n, shift), dx(x, shift), dy(y, shift), dw(w), db(b);
            Device<float> m(rows), r(rows);
            layernorm_forward(out.at, m.at, r.at, dx.at, dw.at, db.at, rows, C, stream);
            Sums ref =
                layernorm_reference(doubles(x), doubles(w), doubles(b), rows, C, &mean, &rstd);
            check("out", out.host(), ref, 1, FP32);
            check("mean", m.host(), mean, 0, FP32);
            check("rstd", r.host(), rstd, 0, FP32);
            residual_layernorm_forward(res.at, out.at, m.at, r.at, dx.at, dy.at, dw.at, db.at, rows,
                                       C, stream);
            check_same("residual", res.host(), sum);
            ref = layernorm_reference(doubles(sum), doubles(w), doubles(b), rows, C);
            check("out of the sum", out.host(), ref, 1, FP32);
            Array fused = out.host();
            layernorm_forward(out.at, m.at, r.at, res.at, dw.at, db.at, rows, C, stream);
            check_same("layernorm of the stored sum", out.host(), fused);
            residual_layernorm_forward(dx.at, out.at, m.at, r.at, dx.at, dy.at, dw.at, db.at, rows,
                                       C, stream);
            check_same("residual in place", dx.host(), sum);
            check_same("out in place", out.host(), fused);
        }
}

static void layernorm_backward_agrees_with_double_precision(void **) {
    for (auto &s : LAYERNORMS)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            int rows = s[0], C = s[1];
            size_t n = (size_t)rows * C, shift = (size_t)accumulate;
            Workspace sizes(1, rows, C, 1, 1);
            Array x = random_array(n, 2), w = random_array(C, 1), d = random_array(n, 1),
                  dinp = random_array(n, 1);
            Device<floatX> dx(x, shift), dd(d, shift), dwt(w), di(dinp, shift), out(n);
            Device<float> m(rows), r(rows), gw(C), gb(C), sums(C);
            layernorm_forward(out.at, m.at, r.at, dx.at, dwt.at, dwt.at, rows, C, stream);
            layernorm_backward(di.at, gw.at, gb.at, sums.at, dd.at, dx.at, dwt.at, m.at, r.at, rows,
                               C, accumulate, stream);
            LayernormGradient ref =
                layernorm_gradient_reference(doubles(d), doubles(x), doubles(w), rows, C);
            check("dinp", di.host(), accumulate ? added(ref.dinp, dinp) : ref.dinp, 1, FP32);
            check("dweight", gw.host(), ref.dweight, 0, FP32);
            check("dbias", gb.host(), ref.dbias, 0, FP32);
            check("column sums of dinp", sums.host(), column_reference(doubles(di.host()), rows, C),
                  0, FP32);
            Floats first = gw.host();
            layernorm_backward(di.at, gw.at, gb.at, NULL, dd.at, dx.at, dwt.at, m.at, r.at, rows, C,
                               accumulate, stream);
            check_same("dweight again", gw.host(), first);
        }
}

// ---- matmul and GELU ---------------------------------------------------------------------------

static const int LINEARS[][3] = {{1, 1, 1},     {7, 3, 12},   {33, 12, 37},
                                 {65, 64, 192}, {3, 768, 96}, {2, 8, 50257}};

static void gelu_agrees_with_double_precision(void **) {
    for (size_t n : {1, 37, 4096})
        for (size_t shift : {0, 1}) {
            Array x = random_array(n, 8);
            Sums ref(n);
            for (size_t i = 0; i < n; i++) ref[i] = gelu_reference(value(x[i]));
            Device<floatX> a(x, shift), out(n, shift);
            gelu_forward(out.at, a.at, n, stream);
            check("gelu", out.host(), ref, 1, 5 * FP32_ONCE);
        }
}

static void matmul_agrees_with_double_precision(void **) {
    for (auto &s : LINEARS) {
        int rows = s[0], Cin = s[1], Cout = s[2];
        size_t ni = (size_t)rows * Cin, no = (size_t)rows * Cout;
        Workspace sizes(1, rows, Cin > Cout && Cin > 4 ? Cin : Cout / 4 + 1, 1, Cout);
        Array inp = random_array(ni, 1), w = random_array((size_t)Cin * Cout, 2 / sqrt(Cin)),
              b = random_array(Cout, 1), dout = random_array(no, 1);
        Device<floatX> di(inp), dw(w), db(b), pre(no), out(no), dd(dout), dx(ni);
        Sums ref = matmul_reference(doubles(inp), doubles(w), rows, Cin, Cout);
        for (size_t i = 0; i < no; i++) ref[i] += value(b[i % (size_t)Cout]);
        matmul_gelu_forward(out.at, pre.at, di.at, dw.at, db.at, rows, Cin, Cout, stream);
        check("pre", pre.host(), ref, 1, FP32);
        Array kept = out.host();
        gelu_forward(pre.at, pre.at, no, stream);
        check_same("gelu recomputed", pre.host(), kept);
        matmul_gelu_forward(out.at, NULL, di.at, dw.at, db.at, rows, Cin, Cout, stream);
        check_same("out without pre", out.host(), kept);
        Sums dinp = matmul_input_reference(doubles(dout), doubles(w), rows, Cin, Cout);
        matmul_backward_input(dx.at, dd.at, dw.at, NULL, rows, Cin, Cout, stream);
        check("dinp", dx.host(), dinp, 1, FP32);
        for (size_t i = 0; i < ni; i++) dinp[i] = dinp[i] * gelu_slope(value(inp[i]));
        matmul_backward_input(dx.at, dd.at, dw.at, di.at, rows, Cin, Cout, stream);
        check("dinp through GELU", dx.host(), dinp, 2, FP32);
        Sums dweight = matmul_weight_reference(doubles(dout), doubles(inp), rows, Cin, Cout),
             dbias = column_reference(doubles(dout), rows, Cout);
        for (bool accumulate : {false, true}) {
            Floats gw = random_floats((size_t)Cin * Cout, 1), gb = random_floats(Cout, 1);
            Device<float> a(gw), c(gb);
            bool bias = Cout < 50257;
            matmul_backward_weight(a.at, bias ? c.at : NULL, dd.at, di.at, rows, Cin, Cout,
                                   accumulate, stream);
            check("dweight", a.host(), accumulate ? added(dweight, gw) : dweight, 0, FP32);
            if (bias) check("dbias", c.host(), accumulate ? added(dbias, gb) : dbias, 0, FP32);
        }
    }
}

// Where a tensor lies depends on the units and the number of ranks; the algorithm, and with it the
// bits, may not. Sampling meets a new shape every 64 tokens.
static void products_are_chosen_by_shape_alone_and_as_many_as_there_are(void **) {
    enum { C = 16, SHAPES = 600 };
    Workspace sizes(1, SHAPES, C, 1, C);
    const size_t most = SHAPES * C, shift = 16 / sizeof(floatX);
    Array inp = random_array(most, 1), w = random_array(C * C, 1), b = random_array(C, 1);
    Device<floatX> a(inp), dw(w), db(b), out(most);
    Device<floatX> a2(inp, shift), dw2(w, shift), db2(b, shift), out2(most, shift);
    for (int rows = 1; rows <= SHAPES; rows++) {
        matmul_forward(out.at, a.at, dw.at, db.at, rows, C, C, stream);
        int made = products.count;
        matmul_forward(out2.at, a2.at, dw2.at, db2.at, rows, C, C, stream);
        assert_int_equal(products.count, made);
    }
    check_same("elsewhere", out2.host(), out.host());
}

// ---- attention ---------------------------------------------------------------------------------

static void check_attention(int B, int T, int NH, int HS, double scale) {
    const Heads h = {B, T, NH, HS};
    int C = NH * HS;
    size_t n = (size_t)B * T * C;
    Workspace sizes(B, T, C, NH, 1);
    Array qkv = random_array(3 * n, scale), dout = random_array(n, 1);
    AttentionReference ref = attention_reference(doubles(qkv), doubles(dout), h);
    const double tolerance = attention_tolerance(ref);
    Device<floatX> x(qkv), o(n), dd(dout), dx(3 * n);
    Device<float> l((size_t)B * NH * T);
    attention_forward(o.at, l.at, x.at, B, T, C, NH, stream);
    check("out", o.host(), ref.out, 1, tolerance);
    check("lse", l.host(), ref.lse, 0, FP32);
    attention_backward(dx.at, dd.at, o.at, x.at, l.at, B, T, C, NH, stream);
    check("dqkv", dx.host(), ref.dqkv, 1, tolerance);
    Array first = dx.host();
    attention_backward(dx.at, dd.at, o.at, x.at, l.at, B, T, C, NH, stream);
    check_same("dqkv again", dx.host(), first);
}

static void attention_agrees_with_double_precision_for_any_length(void **) {
    for (int T : {1, 7, 33, 64, 65, 130}) check_attention(1, T, 1, 16, 2);
}

static void attention_agrees_with_double_precision_for_any_head_size(void **) {
    for (int HS : {1, 3, 48, 64, 80, 96, 128}) check_attention(1, 150, 1, HS, 2);
    check_attention(1, 33, 1, 144, 2);  // wider than tensor cores or one slice of columns take
}

static void attention_agrees_with_double_precision_for_many_heads(void **) {
    check_attention(3, 33, 2, 64, 2);
    check_attention(3, 7, 5, 3, 2);
    check_attention(2, 65, 3, 16, 2);
}

// The last row of what attention_forward gives.
static void check_attention_last(int T, int NH, int HS) {
    int C = NH * HS;
    Workspace sizes(1, T, C, NH, 1);
    Array qkv = random_array((size_t)T * 3 * C, 2);
    AttentionReference ref = attention_reference(doubles(qkv), Doubles(), {1, T, NH, HS});
    Device<floatX> x(qkv), o(C);
    attention_last(o.at, x.at, T, C, NH, stream);
    check("out", o.host(), Sums(ref.out.end() - C, ref.out.end()), 1, attention_tolerance(ref));
}

static void attention_of_the_last_token_agrees_with_double_precision(void **) {
    for (int T : {1, 7, 33, 130, 300}) check_attention_last(T, 2, 64);
    for (int HS : {1, 3, 33, 80, 144}) check_attention_last(70, 3, HS);
}

static void attention_of_large_scores_does_not_overflow(void **) {
    const Heads h = {1, 130, 1, 16};
    Workspace sizes(1, 130, 16, 1, 1);
    Array qkv = random_array(130 * 48, 60);
    AttentionReference ref = attention_reference(doubles(qkv), Doubles(), h);
    Device<floatX> x(qkv), o(ref.out.size());
    Device<float> l(ref.lse.size());
    attention_forward(o.at, l.at, x.at, 1, 130, 16, 1, stream);
    check("out", o.host(), ref.out, 1, attention_tolerance(ref));
    check("lse", l.host(), ref.lse, 0, FP32);
}

// ---- classifier --------------------------------------------------------------------------------

static void classifier_agrees_with_double_precision(void **) {
    const int shapes[][3] = {{1, 1, 1},       {7, 37, 64},       {5, 37, 37},
                             {3, 1000, 1024}, {2, 50257, 50304}, {2, 50257, 50257}};
    for (auto &s : shapes) {
        int rows = s[0], V = s[1], ld = s[2];
        Array x = random_array((size_t)rows * ld, 10);
        for (int i = 0; i < rows; i++)
            for (int v = V; v < ld; v++)
                store_float(&x[(size_t)i * ld + v], NAN);  // padding is never used
        Ints targets = random_tokens(rows, V);
        targets[rows - 1] = V - 1;
        if (rows > 2) targets[1] = -1;
        ClassifierReference ref = classifier_reference(doubles(x), targets, V, ld);
        Device<floatX> d(x);
        Device<float> l(rows);
        Device<int> t(targets);
        classifier(d.at, l.at, t.at, rows, V, ld, false, stream);
        check_same("logits without gradient", d.host(), x);
        Floats only = l.host();
        classifier(d.at, l.at, t.at, rows, V, ld, true, stream);
        check_same("losses without gradient", only, l.host());
        check("losses", l.host(), ref.losses, 0, FP32);
        check("dlogits", d.host(), ref.dlogits, 1, PROBABILITY);
        Device<double> sum(Doubles{1e6});
        sum_losses(sum.at, l.at, rows, stream);
        Sum expected = 1e6;
        for (float loss : l.host()) expected += loss;
        check("sum", sum.host(), Sums{expected}, 0, FP64);
    }
}

// A part of a load, all loads that go together, and more of them; aligned and not.
static void losses_are_summed_however_many_there_are(void **) {
    for (int rows : {1, 4, 4095, 4096, 16384, 16387, 20484})
        for (int skip : {0, 1}) {
            Floats x = random_floats(rows + skip, 3);
            Device<float> losses(x);
            Device<double> sum(Doubles{2});
            sum_losses(sum.at, losses.at + skip, rows, stream);
            Sum expected = 2;
            for (int i = 0; i < rows; i++) expected += x[skip + i];
            check("sum", sum.host(), Sums{expected}, 3.0 * rows, FP64);
        }
}

static void classifier_shows_non_finite_logits_in_the_loss(void **) {
    for (float bad : {NAN, INFINITY}) {
        Array x = random_array(37, 1);
        store_float(&x[9], bad);
        Device<floatX> d(x);
        Device<float> l(1);
        Device<int> t(Ints{3});
        classifier(d.at, l.at, t.at, 1, 37, 37, false, stream);
        assert_false(isfinite(l.host()[0]));
    }
}

// The last row begins behind element 2^31. Rows before it count for nothing, so that
// only one is worked on.
static void classifier_finds_rows_past_element_2_to_the_31(void **) {
#if defined(EMU_RACE) || defined(EMU_ASAN) || (defined(EMULATOR) && !PRECISION_BF16)
    skip();  // needs gigabytes; one emulated build is enough
#else
    const int rows = 3, V = 37, ld = 1100000000;
    Array x = random_array(V, 5);
    const int target = 30;
    size_t n = 2 * (size_t)ld + V;
    floatX *logits = NULL;
    if (cudaMalloc((void **)&logits, n * sizeof(floatX)) != cudaSuccess) {
        cudaGetLastError();
        skip();
    }
    cudaCheck(cudaMemcpyAsync(logits + 2 * (size_t)ld, x.data(), V * sizeof(floatX),
                              cudaMemcpyHostToDevice, stream));
    Device<float> l(rows);
    Device<int> t(Ints{-1, -1, target});
    classifier(logits, l.at, t.at, rows, V, ld, false, stream);
    Floats found = l.host();
    cudaCheck(cudaFree(logits));
    Sums expected(2);
    expected.push_back(classifier_reference(doubles(x), Ints{target}, V, V).losses[0]);
    check("losses", found, expected, 0, FP32);
#endif
}

// ---- shard ops: exact --------------------------------------------------------------------------

static void casts_give_the_bits_of_the_cpu(void **) {
    for (size_t n : {1, 19, 4096})
        for (size_t shift : {0, 1}) {
            Floats x = random_floats(n, 3);
            if (n > 8)
                x[2] = NAN, x[3] = 3.4e38f, x[4] = 1.00390625f, x[5] = INFINITY, x[6] = 1e-40f,
                x[7] = -0.0f;
            std::vector<bf16> ref(n);
            cpu::cast_to_bf16(ref.data(), x.data(), n);
            Device<float> d(x, shift), back(n, shift);
            Device<bf16> h(n, shift);
            Device<floatX> f(n, shift);
            cast_to_bf16(h.at, d.at, n, stream);
            std::vector<bf16> found = h.host();
            for (size_t i = 0; i < n; i++)
                if (memcmp(&found[i], &ref[i], 2) &&
                    !(value(found[i]) != value(found[i]) && value(ref[i]) != value(ref[i])))
                    fail_msg("cast of %.9g: expected %.9g, found %.9g", x[i], value(ref[i]),
                             value(found[i]));
            cast_from_bf16(back.at, h.at, n, stream);
            cast_from_float(f.at, d.at, n, stream);
            Floats b = back.host();
            Array a = f.host();
            for (size_t i = 0; i < n; i++) {
                double expected = sizeof(floatX) == 2 ? value(found[i]) : x[i];
                assert_true(b[i] == value(found[i]) || b[i] != b[i]);
                assert_true(value(a[i]) == expected || expected != expected);
            }
        }
}

static void shards_add_in_the_order_of_the_parts(void **) {
    for (size_t n : {1, 17, 1024, 9000})
        for (bool accumulate : {false, true}) {
            size_t stride = n % 4 ? n + 5 : n + 4;
            Floats parts = random_floats(3 * stride, 1), shard = random_floats(n, 1), one = shard;
            Device<float> p(parts), s(shard), o(one);
            shard_add_ordered(s.at, p.at, 3, stride, n, accumulate, stream);
            cpu::shard_add_ordered(shard.data(), parts.data(), 3, stride, n, accumulate);
            check_same("shard", s.host(), shard);
            shard_add(o.at, p.at, n, accumulate, stream);
            cpu::shard_add_ordered(one.data(), parts.data(), 1, 0, n, accumulate);
            check_same("shard of one part", o.host(), one);
        }
}

static void absmax_equals_the_cpus(void **) {
    for (size_t n : {1, 1000, 20000})
        for (float bad : {0.0f, (float)NAN, (float)INFINITY}) {
            Floats x = random_floats(n, 5), max(1, 1.5f);
            if (bad != 0) x[n / 2] = bad;
            Device<float> d(x), m(max);
            shard_absmax(m.at, d.at, n, stream);
            cpu::shard_absmax(max.data(), x.data(), n);
            check_same("absmax", m.host(), max);
        }
}

static void checksum_equals_the_cpus(void **) {
    for (size_t n : {1, 33, 1000, 20000}) {
        Floats x = random_floats(n, 5);
        std::vector<uint64_t> sum(1, 7);
        Device<float> d(x);
        Device<uint64_t> s(sum);
        shard_checksum(s.at, d.at, n, stream);
        cpu::shard_checksum(sum.data(), x.data(), n);
        if (s.host() != sum) fail_msg("n %zu: expected %lx, found %lx", n, sum[0], s.host()[0]);
    }
}

static Doubles device_squares(const Floats &x, size_t at, size_t n, const float *absmax, int bits) {
    Device<double> sums(Doubles(SHARD_SUMS, 0.0));
    Device<float> d(Floats(x.begin() + (long)at, x.begin() + (long)(at + n))),
        m(Floats(1, absmax ? *absmax : 0));
    shard_sum_squares(sums.at, d.at, n, absmax ? m.at : NULL, bits, stream);
    Doubles s = sums.host();
    s.resize(3);
    return s;
}

static void sum_of_squares_has_the_bits_of_the_cpu_however_it_is_cut(void **) {
    const size_t n = 20011;
    Floats x = random_floats(n, 1);
    for (size_t i = 0; i < n; i += 7) x[i] *= 1e-6f;
    float absmax = 0;
    cpu::shard_absmax(&absmax, x.data(), n);
    Doubles ref(SHARD_SUMS, 0.0), plain(SHARD_SUMS, 0.0);
    cpu::shard_sum_squares(ref.data(), x.data(), n, &absmax, 15);
    cpu::shard_sum_squares(plain.data(), x.data(), n, NULL, 0);
    Doubles whole = device_squares(x, 0, n, &absmax, 15);
    for (int k = 0; k < 3; k++) assert_true(whole[k] == ref[k]);
    Doubles a = device_squares(x, 0, 5001, &absmax, 15),
            b = device_squares(x, 5001, n - 5001, &absmax, 15);
    for (int k = 0; k < 3; k++) assert_true(a[k] + b[k] == ref[k]);
    assert_true(fabs(device_squares(x, 0, n, NULL, 0)[0] / plain[0] - 1) < 1e-13);
    for (float m : {0.0f, INFINITY}) assert_true(device_squares(x, 0, 4, &m, 2)[0] == m);
}

// ---- AdamW -------------------------------------------------------------------------------------

static void store_moment_host(float *dst, double x) {
    *dst = (float)x;
}
static void store_moment_host(double *dst, double x) {
    *dst = x;
}
static void store_moment_host(bf16 *dst, double x) {
    store_float(dst, (float)x);
}

template <class Moment> static void check_adamw(MomentType type, double tolerance) {
    const size_t n = 5003;
    size_t shift = 0;
    for (float clip : {0.0f, 1.0f, 100.0f}) {
        shift = !shift;
        Floats p = random_floats(n, 1), g = random_floats(n, 300);
        std::vector<Moment> m(n), v(n);
        for (size_t i = 0; i < n; i++) {
            store_moment_host(&m[i], uniform() * 0.1);
            store_moment_host(&v[i], fabs(uniform()) * 0.01 + 1e-4);
        }
        Doubles sums(SHARD_SUMS, 0.0);
        for (float x : g) sums[0] += (double)x * x;
        AdamWConfig c = adamw_config(type);
        c.grad_clip = clip;
        Device<float> dp(p, shift), dg(g, shift);
        Device<Moment> dm(m, shift), dv(v, shift);
        Device<double> ds(sums);
        adamw_update(dp.at, dg.at, dm.at, dv.at, adamw_whole(n, 12345), ds.at, &c, stream);
        AdamWReference ref =
            adamw_reference(doubles(p), doubles(m), doubles(v), g, sqrt(sums[0]), c);
        check("p", dp.host(), ref.p, 0, FP32);
        check("m", dm.host(), ref.m, 0, tolerance);
        check("v", dv.host(), ref.v, 0, tolerance);
        adamw_change(dg.at, dp.at, dm.at, dv.at, adamw_whole(n, 0), ds.at, &c, stream);
        Floats reached = dg.host();
        for (size_t i = 0; i < n; i++) reached[i] = p[i] - reached[i];
        check("p less its change", reached, ref.p, 0, type == MOMENTS_BF16 ? tolerance : FP32);
        // a non-finite norm leaves everything
        Floats before = dp.host();
        std::vector<Moment> m_before = dm.host();
        Device<double> bad(Doubles{1, (double)NAN, 0});
        adamw_update(dp.at, dg.at, dm.at, dv.at, adamw_whole(n, 0), bad.at, &c, stream);
        check_same("p after a non-finite norm", dp.host(), before);
        check_same("m after a non-finite norm", dm.host(), m_before);
    }
}

static void adamw_agrees_with_double_precision(void **) {
    check_adamw<float>(MOMENTS_FP32, FP32);
    check_adamw<double>(MOMENTS_FP64, FP64);
}

// As many pieces as there may be, some of which decay, with gaps between them.
static void adamw_updates_pieces_and_nothing_between_them(void **) {
    const size_t n = 40000;
    for (size_t step : {8, 1}) {  // of where pieces begin
        Floats p = random_floats(n, 1), g = random_floats(n, 300), m = random_floats(n, 0.1), v(n);
        for (float &x : v) x = fabsf((float)uniform()) * 0.01f + 1e-4f;
        Doubles sums(SHARD_SUMS, 0.0);
        for (float x : g) sums[0] += (double)x * x;
        AdamWConfig c = adamw_config(MOMENTS_FP32), none = c;
        none.weight_decay = 0;
        AdamWReference ref =
            adamw_reference(doubles(p), doubles(m), doubles(v), g, sqrt(sums[0]), c);
        Sums plain = adamw_reference(doubles(p), doubles(m), doubles(v), g, sqrt(sums[0]), none).p;
        AdamWPieces pieces = {};
        Sums expected(n);
        for (size_t i = 0; i < n; i++) expected[i] = (double)p[i];
        for (size_t at = step; pieces.count < ADAMW_PIECES;) {
            AdamWPiece t = {at, 1 + (size_t)pieces.count * 277, at, pieces.count % 3 > 0};
            for (size_t i = at; i < at + t.n; i++) expected[i] = t.decays ? ref.p[i] : plain[i];
            at = (at + t.n) / step * step + 3 * step;
            pieces.piece[pieces.count++] = t;
        }
        Device<float> dp(p), dg(g), dm(m), dv(v);
        Device<double> ds(sums);
        adamw_update(dp.at, dg.at, dm.at, dv.at, pieces, ds.at, &c, stream);
        Floats found = dp.host();
        check("p", found, expected, 0, FP32);
        for (size_t i = 0; i < step; i++) assert_true(found[i] == p[i]);
        check("m", Floats(1, dm.host()[0]), Sums(1, (double)m[0]), 0, FP64);
    }
}

// The same random bits round both, so moments differ only where the last bits before
// rounding do: by one unit.
static void adamw_rounds_bf16_moments_as_the_cpu_does(void **) {
    check_adamw<bf16>(MOMENTS_BF16, 1.0 / 128);  // one unit in the last place
    const size_t n = 4001;
    Floats p(n, 0.5f), g = random_floats(n, 100);
    std::vector<bf16> m(n), v(n);
    memset((void *)m.data(), 0, n * sizeof m[0]), memset((void *)v.data(), 0, n * sizeof v[0]);
    Doubles sums = {1, 0, 0};
    AdamWConfig c = adamw_config(MOMENTS_BF16);
    Device<float> dp(p), dg(g);
    Device<bf16> dm(m), dv(v);
    Device<double> ds(sums);
    adamw_update(dp.at, dg.at, dm.at, dv.at, adamw_whole(n, 7), ds.at, &c, stream);
    cpu::adamw_update(p.data(), g.data(), m.data(), v.data(), n, 7, sums.data(), &c);
    std::vector<bf16> found = dm.host();
    size_t different = 0;
    for (size_t i = 0; i < n; i++) different += memcmp(&found[i], &m[i], sizeof m[i]) != 0;
    assert_true(different * 200 < n);
}

// ---- barriers left out -------------------------------------------------------------------------

#ifdef EMU_RACE
static void expect_race_without(int barrier, const char *kernel, void (*run)(void)) {
    expect_report(std::string("conflict in shared memory|") + kernel, [=] {
        left_out = barrier;
        run();
    });
}

static void attention_once(void) {
    check_attention(1, 200, 1, 64, 1);
}

static void narrow_attention_once(void) {
    check_attention(1, 70, 1, 3, 1);
}

static void attention_of_the_last_once(void) {
    check_attention_last(70, 1, 64);
}

static void layernorm_once(void) {
    layernorm_backward_agrees_with_double_precision(NULL);
}

static void encoder_once(void) {
    encoder_backward_gives_the_bits_of_the_cpu(NULL);
}

static void a_barrier_left_out_is_reported(void **) {
    if (sizeof(floatX) == 2) {
        expect_race_without(1, "attention_forward_tensor_kernel", attention_once);
        expect_race_without(2, "attention_backward_tensor_kernel", attention_once);
    }
    expect_race_without(3, "layernorm_backward_kernel", layernorm_once);
    expect_race_without(4, "layernorm_backward_kernel", layernorm_once);
    expect_race_without(5, "sort_pass_kernel", encoder_once);
    expect_race_without(6, "attention_forward_any_kernel", narrow_attention_once);
    expect_race_without(7, "attention_last_kernel", attention_of_the_last_once);
}
#endif

int main(void) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skipped: no GPU answers\n");
        return 0;
    }
    cudaCheck(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
#define seeded_test(test) cmocka_unit_test_setup(test, seed_data)
    const CMUnitTest tests[] = {
        seeded_test(encoder_forward_gives_the_bits_of_the_cpu),
        seeded_test(encoder_backward_gives_the_bits_of_the_cpu),
        seeded_test(encoder_backward_sums_long_runs_of_one_token),
        seeded_test(layernorm_forward_agrees_with_double_precision),
        seeded_test(layernorm_backward_agrees_with_double_precision),
        seeded_test(gelu_agrees_with_double_precision),
        seeded_test(matmul_agrees_with_double_precision),
        seeded_test(products_are_chosen_by_shape_alone_and_as_many_as_there_are),
        seeded_test(attention_agrees_with_double_precision_for_any_length),
        seeded_test(attention_agrees_with_double_precision_for_any_head_size),
        seeded_test(attention_agrees_with_double_precision_for_many_heads),
        seeded_test(attention_of_the_last_token_agrees_with_double_precision),
        seeded_test(attention_of_large_scores_does_not_overflow),
        seeded_test(classifier_agrees_with_double_precision),
        seeded_test(losses_are_summed_however_many_there_are),
        seeded_test(classifier_shows_non_finite_logits_in_the_loss),
        seeded_test(classifier_finds_rows_past_element_2_to_the_31),
        seeded_test(casts_give_the_bits_of_the_cpu),
        seeded_test(shards_add_in_the_order_of_the_parts),
        seeded_test(absmax_equals_the_cpus),
        seeded_test(checksum_equals_the_cpus),
        seeded_test(sum_of_squares_has_the_bits_of_the_cpu_however_it_is_cut),
        seeded_test(adamw_agrees_with_double_precision),
        seeded_test(adamw_updates_pieces_and_nothing_between_them),
        seeded_test(adamw_rounds_bf16_moments_as_the_cpu_does),
#ifdef EMU_RACE
        seeded_test(a_barrier_left_out_is_reported),
#endif
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cudaCheck(cudaFree(room));
    cudaCheck(cudaStreamDestroy(stream));
    return failed;
}
