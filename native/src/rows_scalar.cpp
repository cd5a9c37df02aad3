// The row kernels in plain C++.

#include "rows.h"

namespace actnn {
namespace {

float sum(const float *x, int length) {
    float lanes[ROW_LANES] = {};
    for (int i = 0; i < length; ++i) lanes[i % ROW_LANES] += x[i];
    return folded(lanes, ROW_LANES);
}

float squares(const float *x, float mean, int length) {
    float lanes[ROW_LANES] = {};
    for (int i = 0; i < length; ++i) {
        const float centred = x[i] - mean;
        lanes[i % ROW_LANES] += centred * centred;
    }
    return folded(lanes, ROW_LANES);
}

Extremes normalize(const float *x, float mean, float inverse, const float *gamma, const float *beta, int length,
                   float *v, float *y) {
    for (int i = 0; i < length; ++i) {
        v[i] = (x[i] - mean) * inverse;
        y[i] = v[i] * gamma[i] + beta[i];
    }
    const Range range = scalar_kernels.range(v, length, nullptr);
    return {range.lowest, range.highest, range.finite};
}

void encode(const Words &words, GroupKey key, const Extremes &, const float *v, const float *, const float *,
            int length, uint8_t *scales, uint8_t *planes) {
    scalar_kernels.encode(words, key, v, nullptr, length, scales, planes);
}

RowSums weigh(const float *grad, const float *gamma, const float *v, int length, float *weighed) {
    float sums[ROW_LANES] = {}, products[ROW_LANES] = {};
    for (int i = 0; i < length; ++i) {
        weighed[i] = grad[i] * gamma[i];
        sums[i % ROW_LANES] += weighed[i];
        products[i % ROW_LANES] += weighed[i] * v[i];
    }
    return {folded(sums, ROW_LANES), folded(products, ROW_LANES)};
}

void unbend(const Unbending &unbending, const NoiseVariance &variance, int length, float *v, float *noise) {
    for (int i = 0; i < length; ++i) {
        const float square = v[i] * v[i];
        noise[i] = (variance.quartic * square + variance.quadratic) * square + variance.constant;
        v[i] = (v[i] * (square + unbending.above)) * unbending.reach;
    }
}

void gradient(const float *weighed, const float *v, const float *noise, const RowGradient &row, int length,
              float *out) {
    for (int i = 0; i < length; ++i) {
        out[i] = (weighed[i] * (1 + noise[i]) - (v[i] * row.of_value + row.constant)) * row.inverse;
    }
}

} // namespace

const RowKernels scalar_rows = {sum, squares, normalize, encode, weigh, unbend, gradient};

} // namespace actnn
