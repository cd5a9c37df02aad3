// Normalisation over rows: the same bits on every instruction set and thread count, also in place.

#include "row_norm.h"
#include "samples.h"

using namespace actnn;

namespace {

constexpr double EPSILON = 1e-5;

struct Form {
    int64_t samples, rows; // of a sample
    actnn_rows form;

    int64_t elements() const { return rows * form.width; }
    size_t count() const { return static_cast<size_t>(samples * elements()); }
};

// LayerNorm with rows that are groups, cross them and share them; wide rows; GroupNorm; parameters across rows.
constexpr Form FORMS[] = {
    {2, 3, {256, {256, 1}}},     {3, 5, {384, {384, 1}}},        {2, 7, {197, {197, 1}}},
    {40, 1, {100, {100, 1}}},    {2, 30, {24, {24, 1}}},         {2, 90, {3, {3, 1}}},
    {1, 300, {1, {1, 1}}},       {2, 2, {9001, {9001, 1}}},      {2, 4, {231, {12, 77}}},
    {2, 3, {10000, {6, 5000}}},  {2, 20, {24, {80, 6}}},         {2, 6, {100, {300, 1}}},
    {2, 3, {512, {64, 1}}},      {1, 1, {NARROW, {NARROW, 1}}},  {1, 3, {NARROW - 1, {NARROW - 1, 1}}},
    {1, 2, {NARROW + 1, {1, 1}}}, {2, 120, {384, {384, 1}}},
};

actnn_layout layout_for(const Form &form, int bits = 3, int rounding = ACTNN_DITHER) {
    return layout_of(AFFINE, form.samples, form.elements(), bits, rounding);
}

struct Step {
    Form form;
    actnn_layout layout;
    int simd, threads, dtype;
    bool centred, parameters;
    Guarded gamma, beta, saved, code;

    Step(const Form &of, const actnn_layout &with, int instructions, int team, int number_type, bool subtract,
         bool has_parameters)
        : form(of), layout(with), simd(instructions), threads(team), dtype(number_type), centred(subtract),
          parameters(has_parameters), gamma(numbers(21)), beta(numbers(22)),
          saved(of.count() / static_cast<size_t>(of.form.width) * sizeof(float)), code(buffer_bytes(with)) {}

    Guarded numbers(uint32_t seed) const {
        return array_of(floats(Kind::NORMAL, static_cast<size_t>(form.form.parameters.channels), seed), dtype);
    }

    actnn_row_norm layer(std::vector<float> &workspace) {
        return {form.form,
                EPSILON,
                parameters ? gamma.data() : nullptr,
                parameters ? beta.data() : nullptr,
                reinterpret_cast<float *>(saved.data()),
                workspace.data(),
                dtype,
                dtype,
                centred};
    }

    Guarded forward(Guarded &x, bool in_place = false) {
        std::vector<float> workspace(static_cast<size_t>(actnn_row_forward_workspace(&layout, &form.form)), NAN);
        Guarded out = in_place ? x : Guarded(x.size());
        const actnn_forward_row call{layer(workspace),
                                     simd,
                                     threads,
                                     dtype,
                                     {KEY[0], KEY[1], KEY[2], KEY[3]},
                                     in_place ? out.data() : x.data(),
                                     out.data(),
                                     code.data()};
        CHECK(actnn_row_norm_forward(&layout, nullptr, &call) == ACTNN_OK);
        CHECK(out.intact() && code.intact() && saved.intact());
        return out;
    }

    struct Gradients {
        Guarded parameters, input, energy;
    };

    Gradients backward(Guarded &grad, bool in_place = false) {
        std::vector<float> workspace(static_cast<size_t>(actnn_row_backward_workspace(&layout, &form.form)), NAN);
        Gradients result{Guarded(2 * static_cast<size_t>(form.form.parameters.channels) * sizeof(float)),
                         in_place ? grad : Guarded(grad.size()),
                         Guarded(static_cast<size_t>(form.samples) * sizeof(float))};
        const actnn_backward_row call{layer(workspace),
                                      simd,
                                      threads,
                                      dtype,
                                      code.data(),
                                      in_place ? result.input.data() : grad.data(),
                                      reinterpret_cast<float *>(result.parameters.data()),
                                      result.input.data(),
                                      2,
                                      reinterpret_cast<float *>(result.energy.data())};
        CHECK(actnn_row_norm_backward(&layout, &call) == ACTNN_OK);
        CHECK(result.parameters.intact() && result.input.intact() && result.energy.intact());
        return result;
    }
};

void compare(const Form &form, const actnn_layout &layout, int dtype, Kind kind, bool centred, bool parameters) {
    Guarded x = array_of(floats(kind, form.count()), dtype);
    Guarded grad = array_of(floats(Kind::NORMAL, form.count(), 2), dtype);
    Step expected(form, layout, ACTNN_SCALAR, 1, dtype, centred, parameters);
    const Guarded out = expected.forward(x);
    const auto gradients = expected.backward(grad);
    for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
        Step one(form, layout, simd, 1, dtype, centred, parameters);
        Step many(form, layout, simd, 3, dtype, centred, parameters);
        CHECK(one.forward(x) == out && many.forward(x, true) == out);
        CHECK(one.code == expected.code && many.code == expected.code);
        CHECK(one.saved == expected.saved && many.saved == expected.saved);
        const auto by_one = one.backward(grad), by_many = many.backward(grad, true);
        CHECK(by_one.input == gradients.input && by_many.input == gradients.input);
        CHECK(by_one.energy == gradients.energy && by_many.energy == gradients.energy);
        // sums over rows round by the instruction set, but not by the number of threads
        CHECK(by_one.parameters == by_many.parameters);
    }
}

} // namespace

TEST("steps over rows have the same bits on every instruction set and thread count, also in place") {
    for (const Form &form : FORMS) {
        for (const int dtype : DTYPES) {
            compare(form, layout_for(form), dtype, Kind::NORMAL, true, true);
            compare(form, layout_for(form, 2, ACTNN_STOCHASTIC), dtype, Kind::NORMAL, false, false);
        }
    }
}

TEST("steps over rows of constant, tiny and huge values have the same bits too") {
    for (const Kind kind : {Kind::CONSTANT, Kind::ZEROS, Kind::SUBNORMAL, Kind::HUGE_VALUES}) {
        for (const Form &form : FORMS) compare(form, layout_for(form), ACTNN_FLOAT32, kind, true, true);
    }
}

TEST("a value that is not finite poisons its group alone, on every instruction set") {
    const Form form{2, 6, {384, {384, 1}}};
    const actnn_layout layout = layout_for(form);
    for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
        for (const Kind kind : {Kind::ONE_NAN, Kind::ONE_INFINITY}) {
            Guarded x = array_of(floats(kind, form.count()), ACTNN_FLOAT32);
            Guarded grad = array_of(floats(Kind::NORMAL, form.count(), 2), ACTNN_FLOAT32);
            Step step(form, layout, simd, 2, ACTNN_FLOAT32, true, true);
            Guarded out = step.forward(x), of_input = step.backward(grad).input;
            const size_t trouble = form.count() / (kind == Kind::ONE_NAN ? 2 : 3), row = trouble / 384;
            const auto y = numbers_of(out, ACTNN_FLOAT32), g = numbers_of(of_input, ACTNN_FLOAT32);
            for (size_t i = 0; i < y.size(); ++i) CHECK((y[i] == y[i]) == (i / 384 != row));
            CHECK(g[trouble] != g[trouble]);
            const size_t sample = trouble / static_cast<size_t>(form.elements());
            for (size_t i = 0; i < g.size(); ++i) {
                if (i / static_cast<size_t>(form.elements()) != sample) CHECK(g[i] == g[i]);
            }
        }
    }
}

TEST("a row is summed up by halves of its lanes and of its parts") {
    float numbers[] = {1, 10, 100, 1000, 10000};
    CHECK(folded(numbers, 5) == 11111);
    // 1e8 swallows a 1 that it meets, and meets its opposite last
    float pairs[] = {1e8f, 1, -1e8f, 1};
    CHECK(folded(pairs, 4) == 2);
    float three[] = {1e8f, 1, -1e8f};
    CHECK(folded(three, 3) == 1);
    std::vector<float> x(64, 0.0f);
    x[0] = 1e8f, x[16] = -1e8f, x[33] = 1;
    for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) CHECK(rows_of(simd).sum(x.data(), 64) == 1);
}

TEST("steps over rows refuse what does not fit together, and write nothing then") {
    const Form form{2, 6, {10, {10, 1}}};
    const actnn_layout layout = layout_for(form);
    Guarded x = array_of(floats(Kind::NORMAL, form.count()), ACTNN_FLOAT32);
    Step step(form, layout, ACTNN_SCALAR, 1, ACTNN_FLOAT32, true, true);
    std::vector<float> workspace(1000);
    Guarded out(x.size());
    const actnn_forward_row good{step.layer(workspace), ACTNN_SCALAR, 1, ACTNN_FLOAT32, {1, 2, 3, 4}, x.data(),
                                 out.data(), step.code.data()};
    const auto expect = [&](auto change) {
        actnn_forward_row call = good;
        change(call);
        CHECK(actnn_row_norm_forward(&layout, nullptr, &call) == ACTNN_BAD_ARGUMENT);
        CHECK(out == Guarded(out.size()) && step.saved == Guarded(step.saved.size()));
    };
    expect([](actnn_forward_row &call) { call.layer.rows.width = 7; });
    expect([](actnn_forward_row &call) { call.layer.rows.width = 0; });
    expect([](actnn_forward_row &call) { call.layer.rows.parameters = {7, 1}; });
    expect([](actnn_forward_row &call) { call.layer.saved = nullptr; });
    expect([](actnn_forward_row &call) { call.layer.workspace = nullptr; });
    expect([](actnn_forward_row &call) { call.layer.gamma_dtype = 3; });
    expect([](actnn_forward_row &call) { call.layer.beta_dtype = -1; });
    expect([](actnn_forward_row &call) { call.values = nullptr; });
    expect([](actnn_forward_row &call) { call.out = nullptr; });
    expect([](actnn_forward_row &call) { call.buffer = nullptr; });
    expect([](actnn_forward_row &call) { call.dtype = 9; });
    expect([](actnn_forward_row &call) { call.simd = 9; });
    expect([](actnn_forward_row &call) { call.threads = 0; });
    const actnn_layout sided = layout_of(TWO_SIDED, form.samples, form.elements(), 3, ACTNN_DITHER);
    CHECK(actnn_row_norm_forward(&sided, nullptr, &good) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_row_norm_forward(nullptr, nullptr, &good) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_row_norm_forward(&layout, nullptr, nullptr) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_row_norm_forward(&layout, nullptr, &good) == ACTNN_OK);

    float grads[20];
    const actnn_backward_row whole{step.layer(workspace), ACTNN_SCALAR, 1,       ACTNN_FLOAT32, step.code.data(), x.data(),
                                   grads,                 nullptr,      1, nullptr};
    const auto refuse = [&](auto change) {
        actnn_backward_row call = whole;
        change(call);
        CHECK(actnn_row_norm_backward(&layout, &call) == ACTNN_BAD_ARGUMENT);
    };
    refuse([](actnn_backward_row &call) { call.layer.rows.width = 7; });
    refuse([](actnn_backward_row &call) { call.layer.saved = nullptr; });
    refuse([](actnn_backward_row &call) { call.layer.workspace = nullptr; });
    refuse([](actnn_backward_row &call) { call.grad = nullptr; });
    refuse([](actnn_backward_row &call) { call.buffer = nullptr; });
    refuse([](actnn_backward_row &call) { call.threads = 0; });
    float energy[2];
    refuse([&](actnn_backward_row &call) { call.energy = energy, call.stride = 0; });
    CHECK(actnn_row_norm_backward(&sided, &whole) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_row_norm_backward(nullptr, &whole) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_row_norm_backward(&layout, nullptr) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_row_norm_backward(&layout, &whole) == ACTNN_OK);
}
