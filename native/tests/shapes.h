// Activations with channels, and what their values are normalised by.
#pragma once

#include "samples.h"

namespace actnn {

struct Shape {
    int64_t samples, channels, inner, outer;

    int64_t elements() const { return channels * inner * outer; }
    size_t count() const { return static_cast<size_t>(samples * elements()); }
    actnn_channels form() const { return {channels, inner}; }
    size_t channel(size_t element) const {
        return element % static_cast<size_t>(elements()) / static_cast<size_t>(inner) % static_cast<size_t>(channels);
    }
};

// NCHW with long, short, odd and tiny runs; channels_last with few, odd and many channels; both at once.
constexpr Shape SHAPES[] = {
    {2, 3, 700, 1}, {2, 8, 49, 1},   {1, 20, 196, 1}, {3, 5, 4, 1},   {2, 300, 1, 1}, {1, 1, 1, 1},
    {2, 3, 1, 111}, {1, 8, 1, 64},   {2, 20, 1, 33},  {1, 64, 1, 100}, {2, 300, 1, 7}, {1, 513, 1, 3},
    {2, 1, 1, 300}, {1, 6, 10, 11}, {1, 1, 1000, 1}, {1, 40, 1024, 1},
};

inline std::vector<float> per_channel(const Shape &shape, uint32_t seed) {
    return floats(Kind::NORMAL, static_cast<size_t>(shape.channels), seed);
}

struct Normalization {
    std::vector<float> slope, offset, mean, inverse, threshold;

    explicit Normalization(const Shape &shape)
        : slope(per_channel(shape, 11)), offset(per_channel(shape, 12)), mean(per_channel(shape, 13)),
          inverse(per_channel(shape, 14)), threshold(per_channel(shape, 15)) {
        // y and v agree in sign but for rounding in most channels, and not at all in every fourth
        for (size_t c = 0; c < slope.size(); ++c) {
            if (c % 4 == 3) continue;
            slope[c] = inverse[c] * 2;
            offset[c] = (-mean[c] * inverse[c] - threshold[c]) * 2;
        }
        slope[0] = offset[0] = 0;
    }

    actnn_normalization pointers() const {
        return {slope.data(), offset.data(), mean.data(), inverse.data(), threshold.data()};
    }
};

inline actnn_layout layout_for(Family family, const Shape &shape, int bits = 3) {
    return layout_of(family, shape.samples, shape.elements(), bits, ACTNN_DITHER);
}

inline bool same(float a, float b) {
    return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (a != a && b != b);
}

} // namespace actnn
