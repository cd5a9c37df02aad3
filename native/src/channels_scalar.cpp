// The channel kernels in plain C++.

#include <algorithm>

#include "channels.h"

namespace actnn {
namespace {

void normalize(const Words &words, GroupKey key, const float *x, const Spread<5> &spread, int length, float *y,
               uint8_t *scales, uint8_t *planes) {
    float v[GROUP];
    uint8_t side[PLANE_BYTES] = {};
    visit_elements(spread, length, [&](int i, const float (&parameters)[5]) {
        const auto [slope, offset, mean, inverse, threshold] = parameters;
        v[i] = (x[i] - mean) * inverse - threshold;
        y[i] = x[i] * slope + offset;
        const bool above = !(y[i] <= 0);
        side[i / 8] = static_cast<uint8_t>(side[i / 8] | above << (i % 8));
        if (!words.affine() && (above ? v[i] < 0 : v[i] > 0)) v[i] = 0.0f * v[i];
    });
    scalar_kernels.encode(words, key, v, words.affine() ? nullptr : side, length, scales, planes);
}

void scale(const float *values, const Spread<2> &spread, int length, float *out) {
    visit_elements(spread, length, [&](int i, const float (&parameters)[2]) {
        const auto [factor, shift] = parameters;
        out[i] = values[i] * factor + shift;
    });
}

void combine(const float *grad, const float *v, const Spread<3> &spread, int length, float *out) {
    visit_elements(spread, length, [&](int i, const float (&parameters)[3]) {
        const auto [of_grad, of_value, constant] = parameters;
        out[i] = grad[i] * of_grad + (v[i] * of_value + constant);
    });
}

GradientSums sums(const float *grad, const float *v, int length) {
    GradientSums total{0, 0};
    for (int i = 0; i < length; ++i) {
        total.grad += grad[i];
        total.product += grad[i] * v[i];
    }
    return total;
}

void add_sums(const float *grad, const float *v, int length, float *grads, float *products) {
    for (int i = 0; i < length; ++i) {
        grads[i] += grad[i];
        products[i] += grad[i] * v[i];
    }
}

void add_moments(const float *values, int64_t length, float pivot, Moments &moments) {
    float sum[Moments::LANES] = {}, square[Moments::LANES] = {};
    for (int64_t i = 0; i < length; ++i) {
        const int64_t lane = i % Moments::LANES;
        const float centred = values[i] - pivot;
        sum[lane] += centred;
        square[lane] += centred * centred;
        moments.lowest[lane] = std::min(moments.lowest[lane], values[i]);
        moments.highest[lane] = std::max(moments.highest[lane], values[i]);
    }
    // values are added up by themselves first: fewer roundings touch the larger sums
    for (int lane = 0; lane < Moments::LANES; ++lane) {
        moments.sum[lane] += sum[lane];
        moments.square[lane] += square[lane];
    }
}

void add_rows(const float *const *rows, int count, int start, int length, ColumnMoments &moments) {
    for (int i = start; i < length; ++i) {
        float sum = 0, square = 0;
        for (int row = 0; row < count; ++row) {
            const float value = rows[row][i];
            const float centred = value - moments.pivot[i];
            sum += centred;
            square += centred * centred;
            moments.lowest[i] = std::min(moments.lowest[i], value);
            moments.highest[i] = std::max(moments.highest[i], value);
        }
        // rows are added up by themselves first: fewer roundings touch the larger sums
        moments.sum[i] += sum;
        moments.square[i] += square;
    }
}

void coded(const float *x, const Spread<3> &spread, int length, float *v) {
    visit_elements(spread, length, [&](int i, const float (&parameters)[3]) {
        const auto [mean, inverse, threshold] = parameters;
        v[i] = (x[i] - mean) * inverse - threshold;
    });
}

Range range(const float *x, const Spread<3> &spread, int length, uint8_t *mask) {
    float v[GROUP];
    coded(x, spread, length, v);
    return scalar_kernels.range(v, length, mask);
}

Sides weigh(const uint8_t *mask, const float *weights, int length) {
    float sums[2][WEIGHT_LANES] = {};
    for (int i = 0; i < length; ++i) sums[mask[i / 8] >> (i % 8) & 1][i % WEIGHT_LANES] += weights[i];
    Sides sides{0, 0};
    for (int lane = 0; lane < WEIGHT_LANES; ++lane) {
        sides.negative += sums[0][lane];
        sides.positive += sums[1][lane];
    }
    return sides;
}

} // namespace

const ChannelKernels scalar_channels = {
    normalize, scale, combine, sums, add_sums, add_moments, add_rows, coded, range, weigh,
};

} // namespace actnn
