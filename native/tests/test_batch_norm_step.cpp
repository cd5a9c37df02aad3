// Whole steps of BatchNorm: the same bits on every instruction set and thread count, and those of the passes.

#include "shapes.h"

using namespace actnn;

namespace {

constexpr double EPSILON = 1e-5;

struct Layer {
    Shape shape;
    bool affine, parameters, given;
    int dtype; // of gamma, beta and the running statistics
    std::vector<float> statistics;
    Guarded gamma, beta, mean, variance, saved;
    std::vector<float> workspace;
    int64_t batches = 7;

    Layer(const actnn_layout &layout, const Shape &of, bool has_parameters, bool has_statistics, int number_type)
        : shape(of), affine(layout.negative[MOST_BITS] == 0), parameters(has_parameters), given(has_statistics),
          dtype(number_type), statistics(4 * static_cast<size_t>(of.channels)),
          gamma(array_of(per_channel(of, 31), number_type)), beta(array_of(per_channel(of, 32), number_type)),
          mean(array_of(per_channel(of, 33), number_type)), variance(array_of(per_channel(of, 34), number_type)),
          saved(static_cast<size_t>(of.channels) * sizeof(float) * (affine ? 1 : 2)) {
        const actnn_channels channels = of.form();
        workspace.assign(static_cast<size_t>(std::max(actnn_forward_workspace(&layout, &channels),
                                                      actnn_backward_workspace(&layout, &channels))),
                         NAN);
        const size_t count = static_cast<size_t>(of.channels);
        const auto numbers = per_channel(of, 35);
        for (size_t c = 0; c < count; ++c) {
            statistics[c] = numbers[c];
            statistics[count + c] = std::abs(numbers[c]) + 0.1f;
            statistics[2 * count + c] = -3;
            statistics[3 * count + c] = 3;
        }
        store_number(0.0f, number_type, 0, gamma.data()); // a channel of one side
    }

    actnn_batch_norm layer() {
        return {shape.form(),
                static_cast<int64_t>(shape.count()) / shape.channels,
                EPSILON,
                0.1,
                parameters ? gamma.data() : nullptr,
                parameters ? beta.data() : nullptr,
                mean.data(),
                variance.data(),
                given ? statistics.data() : nullptr,
                reinterpret_cast<float *>(saved.data()),
                workspace.data(),
                &batches,
                dtype,
                dtype,
                dtype,
                dtype,
                1};
    }
};

struct Forward {
    Guarded out, code;
    Layer layer;
};

Forward forward(const actnn_layout &layout, Layer layer, int simd, int threads, Guarded &x, int dtype,
                bool in_place = false) {
    Forward result{in_place ? x : Guarded(x.size()), Guarded(buffer_bytes(layout)), layer};
    const actnn_forward call{result.layer.layer(),
                             simd,
                             threads,
                             dtype,
                             {KEY[0], KEY[1], KEY[2], KEY[3]},
                             in_place ? result.out.data() : x.data(),
                             result.out.data(),
                             result.code.data()};
    CHECK(actnn_batch_norm_forward(&layout, nullptr, &call) == ACTNN_OK);
    CHECK(result.out.intact() && result.code.intact() && result.layer.saved.intact());
    CHECK(result.layer.mean.intact() && result.layer.variance.intact());
    CHECK(result.layer.batches == layer.batches + 1);
    return result;
}

bool equal(const Forward &a, const Forward &b) {
    return a.out == b.out && a.code == b.code && a.layer.saved == b.layer.saved && a.layer.mean == b.layer.mean &&
           a.layer.variance == b.layer.variance;
}

struct Backward {
    Guarded grads, out, energy;
};

Backward backward(const actnn_layout &layout, Forward &of, bool rectified, bool of_input, const float *sums, int simd,
                  int threads, Guarded &grad, int dtype, bool in_place = false) {
    const size_t channels = static_cast<size_t>(of.layer.shape.channels);
    Backward result{Guarded(2 * channels * sizeof(float)), in_place ? grad : Guarded(grad.size()),
                    Guarded(static_cast<size_t>(layout.samples) * sizeof(float))};
    const actnn_backward call{of.layer.layer(),
                              simd,
                              threads,
                              dtype,
                              rectified,
                              of_input,
                              of.code.data(),
                              in_place ? result.out.data() : grad.data(),
                              reinterpret_cast<float *>(result.grads.data()),
                              sums,
                              result.out.data(),
                              2,
                              reinterpret_cast<float *>(result.energy.data())};
    CHECK(actnn_batch_norm_backward(&layout, &call) == ACTNN_OK);
    CHECK(result.grads.intact() && result.out.intact() && result.energy.intact());
    return result;
}

} // namespace

TEST("a forward by given statistics has the same bits on every instruction set and thread count, also in place") {
    for (const Shape &shape : SHAPES) {
        for (const Family family : FAMILIES) {
            for (const int dtype : DTYPES) {
                const actnn_layout layout = layout_for(family, shape);
                Guarded x = array_of(floats(Kind::NORMAL, shape.count()), dtype);
                for (const bool parameters : {false, true}) {
                    const Layer layer(layout, shape, parameters, true, dtype);
                    const Forward expected = forward(layout, layer, ACTNN_SCALAR, 1, x, dtype);
                    for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
                        CHECK(equal(forward(layout, layer, simd, 3, x, dtype), expected));
                        CHECK(equal(forward(layout, layer, simd, 1, x, dtype, true), expected));
                    }
                }
            }
        }
    }
}

TEST("a forward that measures has the bits of one by what the statistics are") {
    for (const Shape &shape : SHAPES) {
        const actnn_layout layout = layout_for(TWO_SIDED, shape);
        Guarded x = array_of(floats(Kind::NORMAL, shape.count()), ACTNN_FLOAT32);
        for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
            const Layer measuring(layout, shape, true, false, ACTNN_FLOAT32);
            Layer given(layout, shape, true, true, ACTNN_FLOAT32);
            const actnn_channels channels = shape.form();
            float *const rows = given.statistics.data();
            CHECK(actnn_channel_statistics(shape.samples, shape.elements(), &channels, simd, 2, x.data(), ACTNN_FLOAT32,
                                           given.workspace.data(), rows, rows + shape.channels,
                                           rows + 2 * shape.channels, rows + 3 * shape.channels) == ACTNN_OK);
            for (const int threads : {1, 2, 5}) {
                CHECK(equal(forward(layout, measuring, simd, threads, x, ACTNN_FLOAT32),
                            forward(layout, given, simd, 1, x, ACTNN_FLOAT32)));
            }
        }
    }
}

TEST("a backward does not depend on the number of threads, nor its last pass on the instruction set") {
    for (const Shape &shape : SHAPES) {
        for (const Family family : FAMILIES) {
            for (const int dtype : DTYPES) {
                const actnn_layout layout = layout_for(family, shape);
                Guarded x = array_of(floats(Kind::NORMAL, shape.count()), dtype);
                Guarded grad = array_of(floats(Kind::NORMAL, shape.count(), 2), dtype);
                Forward made =
                    forward(layout, Layer(layout, shape, true, true, ACTNN_FLOAT32), ACTNN_SCALAR, 1, x, dtype);
                const bool rectified = family == TWO_SIDED;
                const auto sums = floats(Kind::NORMAL, 2 * static_cast<size_t>(shape.channels), 7);
                const Backward by_sums =
                    backward(layout, made, rectified, false, sums.data(), ACTNN_SCALAR, 1, grad, dtype);
                for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
                    const Backward one = backward(layout, made, rectified, false, nullptr, simd, 1, grad, dtype);
                    const Backward many = backward(layout, made, rectified, false, nullptr, simd, 3, grad, dtype, true);
                    CHECK(one.grads == many.grads && one.out == many.out && one.energy == many.energy);
                    const Backward found =
                        backward(layout, made, rectified, false, sums.data(), simd, 2, grad, dtype);
                    CHECK(found.out == by_sums.out);
                    CHECK(found.grads == Guarded(found.grads.size()) && found.energy == Guarded(found.energy.size()));
                }
            }
        }
    }
}

TEST("whole steps refuse what does not fit together, and write nothing then") {
    const Shape shape{2, 6, 10, 1};
    const actnn_layout layout = layout_for(TWO_SIDED, shape);
    Guarded x = array_of(floats(Kind::NORMAL, shape.count()), ACTNN_FLOAT32);
    Layer layer(layout, shape, true, false, ACTNN_FLOAT32);
    Guarded out(x.size()), code(buffer_bytes(layout));
    const actnn_forward good{layer.layer(), ACTNN_SCALAR, 1, ACTNN_FLOAT32, {1, 2, 3, 4}, x.data(), out.data(),
                             code.data()};
    const auto expect = [&](auto change) {
        actnn_forward call = good;
        change(call);
        CHECK(actnn_batch_norm_forward(&layout, nullptr, &call) == ACTNN_BAD_ARGUMENT);
        CHECK(out == Guarded(out.size()));
    };
    expect([](actnn_forward &call) { call.layer.channels = {7, 10}; });
    expect([](actnn_forward &call) { call.layer.saved = nullptr; });
    expect([](actnn_forward &call) { call.layer.workspace = nullptr; });
    expect([](actnn_forward &call) { call.layer.gamma_dtype = 3; });
    expect([](actnn_forward &call) { call.layer.variance_dtype = -1; });
    expect([](actnn_forward &call) { call.values = nullptr; });
    expect([](actnn_forward &call) { call.out = nullptr; });
    expect([](actnn_forward &call) { call.buffer = nullptr; });
    expect([](actnn_forward &call) { call.dtype = 9; });
    expect([](actnn_forward &call) { call.simd = 9; });
    expect([](actnn_forward &call) { call.threads = 0; });
    CHECK(actnn_batch_norm_forward(nullptr, nullptr, &good) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_batch_norm_forward(&layout, nullptr, nullptr) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_batch_norm_forward(&layout, nullptr, &good) == ACTNN_OK);

    float grads[12];
    const actnn_backward whole{layer.layer(), ACTNN_SCALAR, 1,       ACTNN_FLOAT32, 0, 0, code.data(), x.data(),
                               grads,         nullptr,      nullptr, 1,             nullptr};
    const auto refuse = [&](auto change) {
        actnn_backward call = whole;
        change(call);
        CHECK(actnn_batch_norm_backward(&layout, &call) == ACTNN_BAD_ARGUMENT);
    };
    refuse([](actnn_backward &call) { call.layer.channels = {7, 10}; });
    refuse([](actnn_backward &call) { call.layer.saved = nullptr; });
    refuse([](actnn_backward &call) { call.grads = nullptr; });
    refuse([](actnn_backward &call) { call.grad = nullptr; });
    refuse([](actnn_backward &call) { call.buffer = nullptr; });
    refuse([](actnn_backward &call) { call.threads = 0; });
    CHECK(actnn_batch_norm_backward(nullptr, &whole) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_batch_norm_backward(&layout, nullptr) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_batch_norm_backward(&layout, &whole) == ACTNN_OK);
}
