// The group kernels in plain C++: the definition read aloud, and the only ones on CPUs with neither AVX2 nor NEON.

#include <algorithm>
#include <cmath>
#include <limits>

#include "curves.h"
#include "group.h"
#include "numbers.h"
#include "planes.h"
#include "scales.h"

namespace actnn {
namespace {

void load(const void *values, int dtype, int length, float *out) {
    for (int i = 0; i < length; ++i) out[i] = load_number(values, dtype, i);
}

void store(const float *values, int dtype, int length, bool, void *out) {
    for (int i = 0; i < length; ++i) store_number(values[i], dtype, i, out);
}

void fence() {}

void draw_noise(GroupKey key, int32_t *noise) {
    for (int i = 0; i < GROUP; i += 16) {
        for (int lane = 0; lane < 8; ++lane) {
            const uint32_t counter = static_cast<uint32_t>(i / 2 + lane);
            const uint32_t mixed = mix(counter * COUNTER_STRIDE + key.a, key.b);
            noise[i + lane] = static_cast<int32_t>(mixed & 0xffff);
            noise[i + 8 + lane] = static_cast<int32_t>(mixed >> 16);
        }
    }
}

// What a value is coded with.
void draw_noise(const Words &words, GroupKey key, int32_t *noise) {
    if (words.rounding == ACTNN_NEAREST) {
        std::fill_n(noise, GROUP, 1 << 15);
    } else {
        draw_noise(key, noise);
    }
}

Extremes extremes_of(const float *values, int length) {
    Extremes extremes{values[0], values[0], true};
    for (int i = 0; i < length; ++i) {
        extremes.lowest = std::min(extremes.lowest, values[i]);
        extremes.highest = std::max(extremes.highest, values[i]);
        extremes.finite &= is_finite(values[i]);
    }
    return extremes;
}

bool above_zero(float value) { return !(value <= 0); }

bool bit_of(const uint8_t *mask, int i) { return mask[i / 8] >> (i % 8) & 1; }

// The number of whole levels in an offset, after the noise is added.
int level_of(float offset, float factor, int levels, int32_t noise) {
    const int32_t position = std::min(static_cast<int32_t>(std::lrint(offset * factor)), (levels - 1) << 16);
    return (position + noise) >> 16;
}

void quantize_affine(const Words &words, const Scales &scales, const int32_t *noise, const float *values, int length,
                     uint8_t *out) {
    if (scales.poisoned()) {
        std::fill_n(out, length, uint8_t{0});
        return;
    }
    const float factor = factor_of(words.positive(), scales.second);
    for (int i = 0; i < length; ++i) {
        out[i] = static_cast<uint8_t>(level_of(values[i] - scales.first, factor, words.positive(), noise[i]));
    }
}

void quantize_split(const Words &words, const Scales &scales, const int32_t *noise, const float *values,
                    const uint8_t *side, int length, uint8_t *out) {
    const int N = words.negative;
    const float above = factor_of(words.positive(), scales.second);
    const float below = factor_of(N, scales.first);
    for (int i = 0; i < length; ++i) {
        const bool positive = side ? bit_of(side, i) : above_zero(values[i]);
        const float magnitude = std::max(0.0f, positive ? values[i] : -values[i]);
        int level = 0;
        if (!scales.poisoned()) {
            level = positive ? level_of(magnitude, above, words.positive(), noise[i])
                             : level_of(magnitude, below, N, noise[i]);
        }
        out[i] = static_cast<uint8_t>(positive ? N + level : N - 1 - level);
    }
}

void encode_straight(const Words &words, GroupKey key, const float *values, const uint8_t *side, int length,
                     uint8_t *scales, uint8_t *planes) {
    const Scales group = scales_of(words, extremes_of(values, length));
    write_scales(words, group, scales);

    int32_t noise[GROUP];
    draw_noise(words, key, noise);
    uint8_t coded[GROUP];
    if (words.affine()) {
        quantize_affine(words, group, noise, values, length, coded);
    } else {
        quantize_split(words, group, noise, values, side, length, coded);
    }
    pack_planes(coded, length, words.bits, planes);
}

void dequantize_affine(const Words &words, const Scales &scales, const int32_t *dither, const uint8_t *coded,
                       int length, float *out) {
    const float step = step_of(words.positive(), scales.second, scales.second);
    for (int i = 0; i < length; ++i) {
        const float position = static_cast<float>((coded[i] << 17) + dither[i]);
        out[i] = scales.first + position * step;
    }
}

void dequantize_split(const Words &words, const Scales &scales, const int32_t *dither, int part, const uint8_t *coded,
                      int length, float *out) {
    const int N = words.negative;
    const float nothing = 0.0f * scales.second;
    const float above = step_of(words.positive(), scales.second, scales.second);
    const float below = -step_of(N, scales.first, scales.second);
    for (int i = 0; i < length; ++i) {
        const bool positive = coded[i] >= N;
        const int level = positive ? coded[i] - N : N - 1 - coded[i];
        const float position = static_cast<float>((level << 17) + dither[i]);
        if (positive) {
            out[i] = position * above;
        } else {
            out[i] = part == ACTNN_POSITIVE ? nothing : position * below;
        }
    }
}

void decode_straight(const Words &words, GroupKey key, int part, const uint8_t *scales, const uint8_t *planes,
                     int length, float *out) {
    int32_t dither[GROUP] = {};
    if (words.rounding == ACTNN_DITHER) {
        draw_noise(key, dither);
        for (int i = 0; i < GROUP; ++i) dither[i] = 65535 - 2 * dither[i];
    }

    uint8_t coded[GROUP];
    unpack_planes(planes, length, words.bits, coded);
    const Scales group = read_scales(words, scales);
    if (words.affine()) {
        dequantize_affine(words, group, dither, coded, length, out);
    } else {
        dequantize_split(words, group, dither, part, coded, length, out);
    }
}

void encode_mask(const float *values, int length, uint8_t *mask) {
    uint8_t bits[GROUP];
    for (int i = 0; i < length; ++i) bits[i] = above_zero(values[i]);
    pack_planes(bits, length, 1, mask);
}

void mask_of_split(const Words &words, const uint8_t *planes, int length, uint8_t *mask) {
    uint8_t coded[GROUP];
    unpack_planes(planes, length, words.bits, coded);
    for (int i = 0; i < length; ++i) coded[i] = coded[i] >= words.negative;
    pack_planes(coded, length, 1, mask);
}

void apply_mask(const uint8_t *mask, float above, float below, const float *grad, int length, float *out) {
    for (int i = 0; i < length; ++i) out[i] = grad[i] * (bit_of(mask, i) ? above : below);
}

Range range(const float *values, int length, uint8_t *mask) {
    const Extremes extremes = extremes_of(values, length);
    const auto positive = std::count_if(values, values + length, above_zero);
    if (mask) encode_mask(values, length, mask);
    return {extremes.lowest, extremes.highest, static_cast<int>(positive), extremes.finite};
}

int count(const uint8_t (&mask)[PLANE_BYTES], int start, int stop) {
    int count = 0;
    for (int i = start; i < stop; ++i) count += bit_of(mask, i);
    return count;
}

float magnitudes(const float *values, int length) {
    float sums[GROUP] = {};
    std::transform(values, values + length, sums, [](float value) { return std::abs(value); });
    for (int half = GROUP / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    return sums[0];
}

void slopes(const Slopes &slopes, const float *values, const float *weights, int length, Sides &counted,
            Sides &weighted) {
    float counts[2][WEIGHT_LANES] = {}, sums[2][WEIGHT_LANES] = {};
    for (int i = 0; i < length; ++i) {
        const float square = slopes.root ? 4.0f * values[i] : squared_slope(slopes, values[i] * slopes.factor);
        const float count = square < MOST_SLOPE ? square : MOST_SLOPE;
        const bool positive = slopes.affine || !(values[i] <= 0);
        counts[positive][i % WEIGHT_LANES] += count;
        sums[positive][i % WEIGHT_LANES] += weights ? count * weights[i] : count;
    }
    counted = {sum_of_lanes(counts[0]), sum_of_lanes(counts[1])};
    weighted = {sum_of_lanes(sums[0]), sum_of_lanes(sums[1])};
}

double squares(const float *values, int length) {
    double sums[SQUARE_LANES] = {};
    for (int i = 0; i < length; ++i) {
        const double value = values[i];
        sums[i % SQUARE_LANES] += value * value;
    }
    return sum_of_lanes(sums);
}

void encode_root(const Words &words, GroupKey key, const float *values, const uint8_t *, int length, uint8_t *scales,
                 uint8_t *planes) {
    float u[GROUP];
    for (int i = 0; i < length; ++i) u[i] = std::sqrt(values[i]);
    encode_straight(straight(words), key, u, nullptr, length, scales, planes);
}

void quantize_cubic(const Words &words, const Scales &scales, const int32_t *noise, const float *y, const uint8_t *side,
                    int length, uint8_t *out) {
    const Thresholds thresholds(words, scales);
    for (int i = 0; i < length; ++i) {
        const float twice = static_cast<float>(2 * noise[i]);
        const bool positive = words.affine() || bit_of(side, i);
        if (scales.poisoned()) {
            out[i] = static_cast<uint8_t>(words.affine() ? 0 : words.negative - !positive);
        } else if (words.affine()) {
            out[i] = static_cast<uint8_t>(cubic_word(words.bits, thresholds, y[i], -(twice * thresholds.above)));
        } else {
            const float bound = positive ? std::max(y[i], LEAST_BENT) : std::min(y[i], 0.0f);
            const float dither = positive ? -(twice * thresholds.above) : twice * thresholds.below;
            out[i] = static_cast<uint8_t>(cubic_word(words.bits, thresholds, bound, dither));
        }
    }
}

void encode_cubic(const Words &words, GroupKey key, const float *values, const uint8_t *side, int length,
                  uint8_t *scales, uint8_t *planes) {
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    const Words inner = straight(words);
    const float unit = words.unit ? unit_of(magnitudes(values, length), length) : 1.0f;
    const float factor = 1.0f / reach_of(words, unit);
    float y[GROUP];
    for (int i = 0; i < length; ++i) y[i] = values[i] * factor;
    Extremes extremes = extremes_of(y, length);
    extremes.finite = extremes.finite && is_finite(unit);
    const Scales group = cubic_scales(inner, extremes);
    write_scales(inner, group, scales);
    if (words.unit) write_scale(group.poisoned() ? nan : unit, scales + 2 * inner.scales());

    int32_t noise[GROUP];
    draw_noise(words, key, noise);
    // not the sign of y, which is 0 for values far below the unit
    uint8_t mask[PLANE_BYTES];
    if (side == nullptr) encode_mask(values, length, mask);
    uint8_t coded[GROUP];
    quantize_cubic(inner, group, noise, y, side ? side : mask, length, coded);
    pack_planes(coded, length, words.bits, planes);
}

void encode(const Words &words, GroupKey key, const float *values, const uint8_t *side, int length, uint8_t *scales,
            uint8_t *planes) {
    const auto made = words.curve == ACTNN_CUBIC ? encode_cubic
                      : words.curve == ACTNN_ROOT ? encode_root
                                                  : encode_straight;
    made(words, key, values, side, length, scales, planes);
}

void decode(const Words &words, GroupKey key, int part, const uint8_t *scales, const uint8_t *planes, int length,
            float *out) {
    const Words inner = straight(words);
    decode_straight(inner, key, part, scales, planes, length, out);
    if (words.curve == ACTNN_ROOT) {
        const float correction = correction_of_square(inner, scales);
        for (int i = 0; i < length; ++i) out[i] = out[i] * out[i] - correction;
    } else if (words.curve == ACTNN_CUBIC) {
        const auto [above, below, reach] = unbending_of(words, scales);
        uint8_t mask[PLANE_BYTES];
        if (!words.affine()) mask_of_split(inner, planes, length, mask);
        for (int i = 0; i < length; ++i) {
            const bool positive = words.affine() || bit_of(mask, i);
            // of the positive part, the other side is nothing already
            if (positive || part == ACTNN_WHOLE) {
                out[i] = (out[i] * (out[i] * out[i] + (positive ? above : below))) * reach;
            }
        }
    }
}

} // namespace

const GroupKernels scalar_kernels = {
    load, store, fence, encode, decode, encode_mask, mask_of_split, apply_mask, range, count, magnitudes, squares,
    slopes,
};

} // namespace actnn
