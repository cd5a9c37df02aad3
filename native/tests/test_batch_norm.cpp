// BatchNorm beside a code: the passes agree with their definitions, and with each other on every instruction set.

#include "shapes.h"

using namespace actnn;

namespace {

struct Normalized {
    Guarded y;
    Guarded code;
};

Normalized normalized(const actnn_layout &layout, const Shape &shape, const Normalization &normalization, int simd,
                      int threads, Guarded &x, int dtype, bool in_place = false) {
    Normalized result{in_place ? x : Guarded(x.size()), Guarded(buffer_bytes(layout))};
    const actnn_channels channels = shape.form();
    const actnn_normalization pointers = normalization.pointers();
    CHECK(actnn_normalize(&layout, &channels, &pointers, simd, threads, KEY, in_place ? result.y.data() : x.data(),
                          result.y.data(), dtype, result.code.data()) == ACTNN_OK);
    CHECK(result.y.intact() && result.code.intact());
    return result;
}

struct Sums {
    std::vector<float> grad, product;

    bool operator==(const Sums &other) const {
        return std::memcmp(grad.data(), other.grad.data(), grad.size() * sizeof(float)) == 0 &&
               std::memcmp(product.data(), other.product.data(), product.size() * sizeof(float)) == 0;
    }
};

Sums sums_of(const actnn_layout &layout, const Shape &shape, bool rectified, int simd, int threads, Guarded &code,
             Guarded &grad, int dtype) {
    const actnn_channels channels = shape.form();
    const int64_t floats_needed = actnn_gradient_workspace(&layout, &channels);
    Guarded workspace(static_cast<size_t>(floats_needed) * sizeof(float));
    Sums sums{per_channel(shape, 1), per_channel(shape, 2)};
    CHECK(actnn_gradient_sums(&layout, &channels, rectified, simd, threads, code.data(), grad.data(), dtype,
                              reinterpret_cast<float *>(workspace.data()), sums.grad.data(),
                              sums.product.data()) == ACTNN_OK);
    CHECK(workspace.intact());
    return sums;
}

// What a gradient's passes see: the decoded values and the gradient, masked where it is rectified.
struct Seen {
    std::vector<float> value, grad;
};

Seen seen(const actnn_layout &layout, bool rectified, Guarded &code, Guarded &grad, int dtype) {
    Guarded values = decoded(layout, ACTNN_SCALAR, 1, code, ACTNN_WHOLE, ACTNN_FLOAT32);
    Guarded masked = grad;
    if (rectified) {
        CHECK(actnn_apply_mask(&layout, layout.samples, layout.elements, ACTNN_SCALAR, 1, code.data(), 1, 0,
                               grad.data(), masked.data(), dtype) == ACTNN_OK);
    }
    return {numbers_of(values, ACTNN_FLOAT32), numbers_of(masked, dtype)};
}

struct Statistics {
    std::vector<float> mean, variance, low, high;
};

Statistics statistics_of(const Shape &shape, int simd, int threads, Guarded &x, int dtype) {
    const actnn_channels channels = shape.form();
    const int64_t floats_needed = actnn_statistics_workspace(shape.samples, shape.elements(), &channels);
    Guarded workspace(static_cast<size_t>(floats_needed) * sizeof(float));
    Statistics result{per_channel(shape, 1), per_channel(shape, 2), per_channel(shape, 3), per_channel(shape, 4)};
    CHECK(actnn_channel_statistics(shape.samples, shape.elements(), &channels, simd, threads, x.data(), dtype,
                                   reinterpret_cast<float *>(workspace.data()), result.mean.data(),
                                   result.variance.data(), result.low.data(), result.high.data()) == ACTNN_OK);
    CHECK(workspace.intact());
    return result;
}

} // namespace

TEST("normalising makes the same bytes on every instruction set and thread count, also in place") {
    for (const Shape &shape : SHAPES) {
        const Normalization normalization(shape);
        for (const Kind kind : KINDS) {
            for (const int dtype : DTYPES) {
                Guarded x = array_of(floats(kind, shape.count()), dtype);
                for (const Family family : FAMILIES) {
                    for (const int bits : {least_bits(family), 3, 8}) {
                        const actnn_layout layout = layout_for(family, shape, bits);
                        const Normalized expected = normalized(layout, shape, normalization, ACTNN_SCALAR, 1, x, dtype);
                        for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
                            for (const int threads : {1, 3}) {
                                const Normalized found =
                                    normalized(layout, shape, normalization, simd, threads, x, dtype, threads == 3);
                                CHECK(found.code == expected.code);
                                CHECK(found.y == expected.y || kind == Kind::ANY_BITS); // NaN payloads may differ
                            }
                        }
                    }
                }
            }
        }
    }
}

TEST("normalising writes x * slope + offset and codes (x - mean) * inverse - threshold") {
    for (const Shape &shape : SHAPES) {
        const Normalization n(shape);
        Guarded x = array_of(floats(Kind::NORMAL, shape.count()), ACTNN_FLOAT32);
        const auto values = numbers_of(x, ACTNN_FLOAT32);
        std::vector<float> y(values.size()), v(values.size());
        for (size_t i = 0; i < values.size(); ++i) {
            const size_t c = shape.channel(i);
            y[i] = values[i] * n.slope[c] + n.offset[c];
            v[i] = (values[i] - n.mean[c]) * n.inverse[c] - n.threshold[c];
        }
        const actnn_layout affine = layout_for(AFFINE, shape);
        Normalized found = normalized(affine, shape, n, actnn_best_simd(), 2, x, ACTNN_FLOAT32);
        Guarded coded = array_of(v, ACTNN_FLOAT32);
        CHECK(found.code == encoded(affine, ACTNN_SCALAR, 1, coded, ACTNN_FLOAT32));
        CHECK(found.y == array_of(y, ACTNN_FLOAT32));

        // in a split code, y alone decides the side
        const actnn_layout split = layout_for(TWO_SIDED, shape);
        found = normalized(split, shape, n, actnn_best_simd(), 2, x, ACTNN_FLOAT32);
        Guarded ones = array_of(std::vector<float>(values.size(), 1.0f), ACTNN_FLOAT32), mask(ones.size());
        CHECK(actnn_apply_mask(&split, shape.samples, shape.elements(), ACTNN_SCALAR, 1, found.code.data(), 1, 0,
                               ones.data(), mask.data(), ACTNN_FLOAT32) == ACTNN_OK);
        const auto above = numbers_of(mask, ACTNN_FLOAT32);
        for (size_t i = 0; i < y.size(); ++i) CHECK(above[i] == (y[i] <= 0 ? 0.0f : 1.0f));
    }
}

TEST("samples of different widths are normalised and read back") {
    const Shape shape{3, 20, 49, 1};
    const Normalization normalization(shape);
    Guarded x = array_of(floats(Kind::NORMAL, shape.count()), ACTNN_FLOAT32);
    Guarded grad = array_of(floats(Kind::NORMAL, shape.count(), 2), ACTNN_FLOAT32);
    const uint8_t widths[] = {2, 8, 3};
    actnn_layout layout = layout_for(TWO_SIDED, shape);
    layout.sample_bits = widths;
    Normalized expected = normalized(layout, shape, normalization, ACTNN_SCALAR, 1, x, ACTNN_FLOAT32);
    const Normalized found = normalized(layout, shape, normalization, actnn_best_simd(), 2, x, ACTNN_FLOAT32);
    CHECK(found.code == expected.code);
    const auto one = sums_of(layout, shape, true, actnn_best_simd(), 1, expected.code, grad, ACTNN_FLOAT32);
    CHECK(one == sums_of(layout, shape, true, actnn_best_simd(), 3, expected.code, grad, ACTNN_FLOAT32));
}

TEST("decoding with a scale and a shift a channel applies them to what plain decoding returns") {
    for (const Shape &shape : SHAPES) {
        const actnn_layout layout = layout_for(TWO_SIDED, shape);
        Guarded x = array_of(floats(Kind::NORMAL, shape.count()), ACTNN_FLOAT32);
        Guarded code = encoded(layout, ACTNN_SCALAR, 1, x, ACTNN_FLOAT32);
        const auto scale = per_channel(shape, 5), shift = per_channel(shape, 6);
        const actnn_channels channels = shape.form();
        for (const int part : {ACTNN_WHOLE, ACTNN_POSITIVE}) {
            Guarded plain = decoded(layout, ACTNN_SCALAR, 1, code, part, ACTNN_FLOAT32);
            auto values = numbers_of(plain, ACTNN_FLOAT32);
            for (size_t i = 0; i < values.size(); ++i) {
                values[i] = values[i] * scale[shape.channel(i)] + shift[shape.channel(i)];
            }
            for (const int dtype : DTYPES) {
                for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
                    Guarded found(shape.count() * static_cast<size_t>(bytes_of(dtype)));
                    std::vector<float> workspace(2 * scale.size());
                    const actnn_output parameters{channels,         scale.data(),  shift.data(), nullptr,
                                                  workspace.data(), ACTNN_FLOAT32, ACTNN_FLOAT32};
                    CHECK(actnn_decode_output(&layout, &parameters, simd, 2, 0, layout.samples, code.data(), part,
                                              found.data(), dtype) == ACTNN_OK);
                    CHECK(found == array_of(values, dtype));
                }
            }
        }
    }
}

TEST("gradient sums are accurate and do not depend on the number of threads") {
    for (const Shape &shape : SHAPES) {
        for (const int dtype : DTYPES) {
            for (const bool rectified : {false, true}) {
                const actnn_layout layout = layout_for(TWO_SIDED, shape);
                Guarded x = array_of(floats(Kind::NORMAL, shape.count()), ACTNN_FLOAT32);
                Guarded code = encoded(layout, ACTNN_SCALAR, 1, x, ACTNN_FLOAT32);
                Guarded grad = array_of(floats(Kind::NORMAL, shape.count(), 2), dtype);
                const Seen terms = seen(layout, rectified, code, grad, dtype);
                const size_t channels = static_cast<size_t>(shape.channels);
                std::vector<double> sum(channels), product(channels), size(channels);
                for (size_t i = 0; i < terms.grad.size(); ++i) {
                    const double g = terms.grad[i], v = terms.value[i];
                    sum[shape.channel(i)] += g;
                    product[shape.channel(i)] += g * v;
                    size[shape.channel(i)] += std::abs(g) + std::abs(g * v);
                }
                for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
                    const Sums one = sums_of(layout, shape, rectified, simd, 1, code, grad, dtype);
                    for (size_t c = 0; c < channels; ++c) {
                        CHECK(std::abs(one.grad[c] - sum[c]) <= 1e-6 * size[c]);
                        CHECK(std::abs(one.product[c] - product[c]) <= 1e-6 * size[c]);
                    }
                    for (const int threads : {2, 5}) {
                        CHECK(one == sums_of(layout, shape, rectified, simd, threads, code, grad, dtype));
                    }
                }
            }
        }
    }
}

TEST("the gradient is grad * of_grad + (v * of_value + constant), also in place") {
    for (const Shape &shape : SHAPES) {
        for (const int dtype : DTYPES) {
            for (const bool rectified : {false, true}) {
                const actnn_layout layout = layout_for(TWO_SIDED, shape);
                Guarded x = array_of(floats(Kind::NORMAL, shape.count()), ACTNN_FLOAT32);
                Guarded code = encoded(layout, ACTNN_SCALAR, 1, x, ACTNN_FLOAT32);
                Guarded grad = array_of(floats(Kind::NORMAL, shape.count(), 2), dtype);
                const auto a = per_channel(shape, 7), b = per_channel(shape, 8), d = per_channel(shape, 9);
                const Seen terms = seen(layout, rectified, code, grad, dtype);
                std::vector<float> result(shape.count());
                for (size_t i = 0; i < result.size(); ++i) {
                    const size_t c = shape.channel(i);
                    result[i] = terms.grad[i] * a[c] + (terms.value[i] * b[c] + d[c]);
                }
                const actnn_channels channels = shape.form();
                for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
                    Guarded out(grad.size()), in_place = grad;
                    CHECK(actnn_gradient(&layout, &channels, rectified, simd, 2, code.data(), grad.data(), dtype,
                                         a.data(), b.data(), d.data(), nullptr, out.data()) == ACTNN_OK);
                    CHECK(actnn_gradient(&layout, &channels, rectified, simd, 1, code.data(), in_place.data(), dtype,
                                         a.data(), b.data(), d.data(), nullptr, in_place.data()) == ACTNN_OK);
                    CHECK(out == array_of(result, dtype));
                    CHECK(in_place == out);
                }
            }
        }
    }
}

TEST("a gradient that is weighed by the noise of its own element has the same bits on every instruction set") {
    int differ = 0; // a group of equal values has no noise
    for (const Shape &shape : SHAPES) {
        for (const Family family : {AFFINE, TWO_SIDED, TWO_SIDED_NORMALIZED, COMPANDED}) {
            const actnn_layout layout = layout_for(family, shape);
            Guarded x = array_of(floats(Kind::NORMAL, shape.count()), ACTNN_FLOAT32);
            Guarded code = encoded(layout, ACTNN_SCALAR, 1, x, ACTNN_FLOAT32);
            Guarded grad = array_of(floats(Kind::NORMAL, shape.count(), 2), ACTNN_FLOAT32);
            const auto a = per_channel(shape, 7), b = per_channel(shape, 8), d = per_channel(shape, 9);
            std::vector<float> noise(a.size());
            for (size_t c = 0; c < noise.size(); ++c) noise[c] = std::abs(a[c]);
            const actnn_channels channels = shape.form();
            const auto gradient = [&](int simd, int threads, const float *of_noise) {
                Guarded out(grad.size());
                CHECK(actnn_gradient(&layout, &channels, 0, simd, threads, code.data(), grad.data(), ACTNN_FLOAT32,
                                     a.data(), b.data(), d.data(), of_noise, out.data()) == ACTNN_OK);
                CHECK(out.intact());
                return out;
            };
            const Guarded scalar = gradient(ACTNN_SCALAR, 1, noise.data());
            differ += !(scalar == gradient(ACTNN_SCALAR, 1, nullptr));
            for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
                CHECK(gradient(simd, 2, noise.data()) == scalar);
            }
        }
    }
    CHECK(differ > 0);
}

TEST("channel statistics are accurate far from zero and do not depend on the number of threads") {
    for (const Shape &shape : SHAPES) {
        for (const float centre : {0.0f, 500.0f}) {
            auto values = floats(Kind::NORMAL, shape.count());
            for (float &value : values) value += centre;
            for (const int dtype : DTYPES) {
                Guarded x = array_of(values, dtype);
                const auto stored = numbers_of(x, dtype);
                const size_t channels = static_cast<size_t>(shape.channels);
                const double count = static_cast<double>(shape.count() / channels);
                std::vector<double> mean(channels), variance(channels);
                std::vector<float> low(channels, INFINITY), high(channels, -INFINITY);
                for (size_t i = 0; i < stored.size(); ++i) {
                    const size_t c = shape.channel(i);
                    mean[c] += stored[i] / count;
                    low[c] = std::min(low[c], stored[i]);
                    high[c] = std::max(high[c], stored[i]);
                }
                for (size_t i = 0; i < stored.size(); ++i) {
                    const double distance = stored[i] - mean[shape.channel(i)];
                    variance[shape.channel(i)] += distance * distance / count;
                }
                for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
                    const Statistics one = statistics_of(shape, simd, 1, x, dtype);
                    const Statistics three = statistics_of(shape, simd, 3, x, dtype);
                    CHECK(one.mean == three.mean && one.variance == three.variance);
                    CHECK(one.low == low && one.high == high);
                    for (size_t c = 0; c < channels; ++c) {
                        CHECK(std::abs(one.mean[c] - mean[c]) <= 1e-6 * (std::abs(mean[c]) + std::sqrt(variance[c])));
                        // the values themselves are rounded to a part of their size
                        CHECK(std::abs(one.variance[c] - variance[c]) <= 2e-6 * variance[c] + 1e-12 * centre * centre);
                    }
                }
            }
        }
    }
}

TEST("a channel with a NaN or an infinity says so, and only that one") {
    for (const Shape &shape : {Shape{2, 3, 700, 1}, Shape{2, 20, 1, 33}, Shape{1, 513, 1, 3}}) {
        for (const float bad : {NAN, INFINITY, -INFINITY}) {
            auto values = floats(Kind::NORMAL, shape.count());
            const size_t place = shape.count() / 2;
            values[place] = bad;
            Guarded x = array_of(values, ACTNN_FLOAT32);
            for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
                const Statistics found = statistics_of(shape, simd, 2, x, ACTNN_FLOAT32);
                for (size_t c = 0; c < found.mean.size(); ++c) {
                    const bool hit = c == shape.channel(place);
                    CHECK(std::isfinite(found.variance[c]) == !hit);
                    CHECK(!hit || same(found.mean[c], bad));
                    CHECK(!hit || same(found.high[c], bad) || bad < 0);
                    CHECK(!hit || same(found.low[c], bad) || bad > 0);
                }
            }
        }
    }
}

TEST("functions over channels refuse what does not fit together") {
    const Shape shape{2, 6, 10, 1};
    const actnn_layout layout = layout_for(TWO_SIDED, shape);
    const actnn_channels good = shape.form(), wrong = {7, 10}, none = {0, 10};
    const Normalization normalization(shape);
    actnn_normalization pointers = normalization.pointers();
    Guarded x = array_of(floats(Kind::NORMAL, shape.count()), ACTNN_FLOAT32), out(x.size()), code(buffer_bytes(layout));
    const auto normalize = [&](const actnn_channels *channels, int simd, int threads, int dtype) {
        return actnn_normalize(&layout, channels, &pointers, simd, threads, KEY, x.data(), out.data(), dtype,
                               code.data());
    };
    CHECK(normalize(&good, ACTNN_SCALAR, 1, ACTNN_FLOAT32) == ACTNN_OK);
    CHECK(normalize(&wrong, ACTNN_SCALAR, 1, ACTNN_FLOAT32) == ACTNN_BAD_ARGUMENT);
    CHECK(normalize(&none, ACTNN_SCALAR, 1, ACTNN_FLOAT32) == ACTNN_BAD_ARGUMENT);
    CHECK(normalize(nullptr, ACTNN_SCALAR, 1, ACTNN_FLOAT32) == ACTNN_BAD_ARGUMENT);
    CHECK(normalize(&good, 7, 1, ACTNN_FLOAT32) == ACTNN_BAD_ARGUMENT);
    CHECK(normalize(&good, ACTNN_SCALAR, 0, ACTNN_FLOAT32) == ACTNN_BAD_ARGUMENT);
    CHECK(normalize(&good, ACTNN_SCALAR, 1, 9) == ACTNN_BAD_ARGUMENT);
    pointers.mean = nullptr;
    CHECK(normalize(&good, ACTNN_SCALAR, 1, ACTNN_FLOAT32) == ACTNN_BAD_ARGUMENT);
    float sums[6];
    CHECK(actnn_gradient_sums(&layout, &good, 0, ACTNN_SCALAR, 1, code.data(), x.data(), ACTNN_FLOAT32, nullptr, sums,
                              sums) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_channel_statistics(2, 60, &wrong, ACTNN_SCALAR, 1, x.data(), ACTNN_FLOAT32, nullptr, sums, sums, sums,
                                   sums) == ACTNN_BAD_ARGUMENT);
}
