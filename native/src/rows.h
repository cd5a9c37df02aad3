// The row-level interface: what every instruction set offers to a normalisation over rows, for the part of a row that
// lies in one group.
//
// A row is summed up in one order: the elements of a part go to lanes in turn, the lanes are folded by halves, and so
// are the parts of the row. Every operation is a single float32 one, so that all instruction sets, all numbers of
// threads and the reference have the same bits.
#pragma once

#include <algorithm>
#include <cstdint>

#include "curves.h"
#include "group.h"
#include "scales.h"

namespace actnn {

constexpr int ROW_LANES = 32;

// Add up numbers by folding them in half until one is left; overwrites them.
static inline float folded(float *numbers, int64_t count) {
    // few numbers were written one by one a moment ago: a loop over vectors would wait until they are in the cache
    if (count == 2) return numbers[0] + numbers[1];
    if (count == 3) return (numbers[0] + numbers[2]) + numbers[1];
    if (count == 4) return (numbers[0] + numbers[2]) + (numbers[1] + numbers[3]);
    while (count > 1) {
        const int64_t half = (count + 1) / 2;
        for (int64_t i = 0; i + half < count; ++i) numbers[i] += numbers[i + half];
        count = half;
    }
    return numbers[0];
}

static inline Extremes joined(const Extremes &a, const Extremes &b) {
    return {std::min(a.lowest, b.lowest), std::max(a.highest, b.highest), a.finite && b.finite};
}

struct RowSums {
    float weighed; // grad * gamma
    float product; // grad * gamma * v
};

// Variance of the noise in a decoded value v, which is constant + of_square * v * v.
struct NoiseVariance {
    float constant;
    float of_square;
};

// Dither leaves 1/12 of a squared step whatever the value, stochastic rounding 1/6 on average; what nearest leaves is
// no noise. Along asinh, where v is sinh(u + e) h / sinh h with e even over [-h, h], the mean of
// (1 - 2h / sinh 2h) / 2 + (1 - tanh h / h) v v is the variance of v.
static inline NoiseVariance noise_variance(const Words &words, const Scales &scales) {
    constexpr float SHARES[] = {1.0f / 12, 1.0f / 6, 0.0f};
    const float step = scales.second / static_cast<float>(words.positive() - 1);
    if (words.curve == ACTNN_ASINH && words.rounding == ACTNN_DITHER) {
        const float gain = gain_of(step * 0.5f), twice = gain_of(step);
        return {(1.0f - twice) * 0.5f, 1.0f - twice / (gain * gain)};
    }
    return {step * step * SHARES[words.rounding], 0.0f};
}

// What the gradient of an input takes besides its own element; the noise is divided by the width of the row.
struct RowGradient {
    float inverse;
    float of_value;
    float constant;
    NoiseVariance noise;
};

// `length` is 1 to 256; gamma and beta have one number an element.
struct RowKernels {
    float (*sum)(const float *x, int length);
    // of x - mean
    float (*squares)(const float *x, float mean, int length);
    // v = (x - mean) * inverse and y = v * gamma + beta; y may be x. Returns the extremes of v.
    Extremes (*normalize)(const float *x, float mean, float inverse, const float *gamma, const float *beta, int length,
                          float *v, float *y);
    // the affine code of a group whose extremes are known, and where its values came from and others went
    void (*encode)(const Words &words, GroupKey key, const Extremes &extremes, const float *v, const float *x,
                   const float *y, int length, uint8_t *scales, uint8_t *planes);
    // weighed = grad * gamma, and its sums
    RowSums (*weigh)(const float *grad, const float *gamma, const float *v, int length, float *weighed);
    // out = (weighed * (1 + (noise.constant + noise.of_square * (v * v))) - (v * of_value + constant)) * inverse
    void (*gradient)(const float *weighed, const float *v, const RowGradient &row, int length, float *out);
};

extern const RowKernels scalar_rows;
extern const RowKernels avx2_rows; // defined in builds for x86 only

// The kernels of an actnn_simd that kernels_of(simd) offers.
static inline const RowKernels &rows_of(int32_t simd) {
#ifdef ACTNN_HAS_AVX2
    if (simd == ACTNN_AVX2) return avx2_rows;
#endif
    (void)simd;
    return scalar_rows;
}

} // namespace actnn
