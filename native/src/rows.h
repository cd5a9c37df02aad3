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

// What the gradient of an input takes besides its own element.
struct RowGradient {
    float inverse;
    float of_value;
    float constant;
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
    // from what is coded to the values v of a group, and the variance of their noise
    void (*unbend)(const Unbending &unbending, const NoiseVariance &variance, int length, float *v, float *noise);
    // out = (weighed * (1 + noise) - (v * of_value + constant)) * inverse
    void (*gradient)(const float *weighed, const float *v, const float *noise, const RowGradient &row, int length,
                     float *out);
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
