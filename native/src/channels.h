// The channel-level interface: what every instruction set offers to BatchNorm for one group of at most 256 elements.
#pragma once

#include <cstdint>

#include "group.h"

namespace actnn {

// Per-channel arrays as the elements of a group see them: either one float an element (`inner` 0), or one float a
// channel, where the first `left` elements take that of `channel`, the next `inner` that of the channel after it, and
// the first channel follows the last.
template <int COUNT> struct Spread {
    const float *arrays[COUNT];
    int64_t channel;
    int64_t channels;
    int64_t left;
    int64_t inner;
};

// Call body(i, parameters) for every element.
template <int COUNT, class Body> static void visit_elements(const Spread<COUNT> &spread, int length, Body body) {
    int64_t channel = spread.channel, left = spread.left;
    for (int i = 0; i < length; ++i) {
        if (spread.inner > 0 && left == 0) {
            channel = channel + 1 == spread.channels ? 0 : channel + 1;
            left = spread.inner;
        }
        --left;
        const int64_t place = spread.inner > 0 ? channel : i;
        float parameters[COUNT];
        for (int k = 0; k < COUNT; ++k) parameters[k] = spread.arrays[k][place];
        body(i, parameters);
    }
}

struct GradientSums {
    float grad;
    float product;
};

// Sums about a pivot and extremes of a run of values, one of each a lane: order of summation is that of the hardware.
struct Moments {
    static constexpr int LANES = 8;
    float sum[LANES];
    float square[LANES];
    float lowest[LANES];
    float highest[LANES];
};

// The same for the columns of a matrix, of at most a group's length.
struct ColumnMoments {
    float pivot[GROUP];
    float sum[GROUP];
    float square[GROUP];
    float lowest[GROUP];
    float highest[GROUP];
};

// Products and sums that make coded bytes are single float32 operations, never fused. `length` is 1 to 256.
struct ChannelKernels {
    // y = x * slope + offset, which may be x, and the code of v = (x - mean) * inverse - threshold. Its side is that of
    // y; a v on the wrong side of zero becomes 0 * v.
    void (*normalize)(const Words &words, GroupKey key, const float *x, const Spread<5> &parameters, int length,
                      float *y, uint8_t *scales, uint8_t *planes);
    // out = values * scale + shift, also in place
    void (*scale)(const float *values, const Spread<2> &parameters, int length, float *out);
    // out = grad * of_grad + (v * of_value + constant), also in place
    void (*combine)(const float *grad, const float *v, const Spread<3> &parameters, int length, float *out);

    GradientSums (*sums)(const float *grad, const float *v, int length);
    // the same element by element: grads[i] += grad[i], products[i] += grad[i] * v[i]
    void (*add_sums)(const float *grad, const float *v, int length, float *grads, float *products);

    // `length` is unbounded; pivot is subtracted from every value before it is summed
    void (*add_moments)(const float *values, int64_t length, float pivot, Moments &moments);
    // columns `start` to `length - 1`
    void (*add_rows)(const float *const *rows, int count, int start, int length, ColumnMoments &moments);

    // v = (x - mean) * inverse - threshold
    void (*coded)(const float *x, const Spread<3> &parameters, int length, float *v);
    // that of v; `mask` is NULL, or takes `not (v <= 0)`
    Range (*range)(const float *x, const Spread<3> &parameters, int length, uint8_t *mask);
    // element i goes to the float32 sum i % WEIGHT_LANES of its side, and these are added in order
    Sides (*weigh)(const uint8_t *mask, const float *weights, int length);
};

extern const ChannelKernels scalar_channels;
extern const ChannelKernels avx2_channels; // defined in builds for x86 only

// The kernels of an actnn_simd that kernels_of(simd) offers.
static inline const ChannelKernels &channels_of(int32_t simd) {
#ifdef ACTNN_HAS_AVX2
    if (simd == ACTNN_AVX2) return avx2_channels;
#endif
    (void)simd;
    return scalar_channels;
}

} // namespace actnn
