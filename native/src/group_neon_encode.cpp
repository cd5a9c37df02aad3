// Encoding a group with NEON: byte for byte what group_scalar.cpp makes.

#include <algorithm>
#include <cmath>

#include "curves.h"
#include "neon.h"
#include "planes.h"

namespace actnn::neon {
namespace {

// Where the side of an element comes from.
enum class Side { NONE, SIGN, GIVEN };

// What is known of a full group before its elements are coded; `factor` takes values to reaches, and is 1 off a cubic.
struct Group {
    const Words &words;
    Scales scales;
    GroupKey key;
    const float *values;
    float factor;
    const uint8_t *given;
};

Extremes extremes_of(const float *values) {
    float32x4_t lowest = vdupq_n_f32(values[0]), highest = lowest;
    uint32x4_t largest = vdupq_n_u32(0);
    for (int i = 0; i < GROUP; i += LANES) {
        const float32x4_t x = vld1q_f32(values + i);
        lowest = vminq_f32(lowest, x);
        highest = vmaxq_f32(highest, x);
        // without the sign the bits of floats are ordered by magnitude, infinity and NaN last
        largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(x)));
    }
    return {vminvq_f32(lowest), vmaxvq_f32(highest), vmaxvq_u32(largest) < INFINITY_BITS};
}

// The noise of a block, or what stands for it where codes are rounded to the nearest.
void draw(const Words &words, Noise &noise, int32x4_t (&drawn)[VECTORS]) {
    if (words.rounding == ACTNN_NEAREST) {
        for (int32x4_t &each : drawn) each = vdupq_n_s32(1 << 15);
    } else {
        noise.next(drawn);
    }
}

template <Side side> void sides_of(const Group &group, int block, uint32x4_t (&negative)[VECTORS]) {
    if constexpr (side == Side::GIVEN) {
        widened(vmvnq_u8(spread(group.given + BLOCK_BYTES * block)), negative);
    } else if constexpr (side == Side::SIGN) {
        for (int i = 0; i < VECTORS; ++i) negative[i] = below_of(vld1q_f32(group.values + block * BLOCK + i * LANES));
    }
}

// N + q, and N - 1 - q = N + ~q.
uint8x16_t placed(const Words &words, uint8x16_t level, const uint32x4_t (&negative)[VECTORS]) {
    return vaddq_u8(veorq_u8(level, narrowed(negative)), vdupq_n_u8(static_cast<uint8_t>(words.negative)));
}

template <Side side> void quantize(const Group &group, uint8_t *planes) {
    const Words &words = group.words;
    const float32x4_t zero = vdupq_n_f32(group.scales.first);
    const float32x4_t above = vdupq_n_f32(factor_of(words.positive(), group.scales.second));
    // a negative factor makes magnitudes of negative values
    const float32x4_t below = vdupq_n_f32(side == Side::NONE ? 0.0f : -factor_of(words.negative, group.scales.first));
    const int32x4_t most_above = vdupq_n_s32((words.positive() - 1) << 16);
    const int32x4_t most_below = vdupq_n_s32((words.negative - 1) << 16);
    Noise noise(group.key);
    for (int block = 0; block < BLOCKS; ++block) {
        int32x4_t drawn[VECTORS];
        draw(words, noise, drawn);
        uint32x4_t negative[VECTORS], levels[VECTORS];
        sides_of<side>(group, block, negative);
        for (int i = 0; i < VECTORS; ++i) {
            const float32x4_t x = vld1q_f32(group.values + block * BLOCK + i * LANES);
            int32x4_t position, most = most_above;
            if constexpr (side == Side::NONE) {
                position = vcvtnq_s32_f32(vmulq_f32(vsubq_f32(x, zero), above));
            } else {
                position = vcvtnq_s32_f32(vmulq_f32(x, vbslq_f32(negative[i], below, above)));
                // on a side that the sign contradicts
                position = vmaxq_s32(position, vdupq_n_s32(0));
                most = vbslq_s32(negative[i], most_below, most_above);
            }
            const int32x4_t sum = vaddq_s32(vminq_s32(position, most), drawn[i]);
            levels[i] = vreinterpretq_u32_s32(vshrq_n_s32(sum, 16));
        }
        const uint8x16_t level = narrowed(levels);
        const uint8x16_t coded = side == Side::NONE ? level : placed(words, level, negative);
        write_words(coded, words.bits, block, planes);
    }
}

// The thresholds of words along a cubic, less noise.
template <Side side> float32x4_t bases(const Thresholds &thresholds, int32x4_t k) {
    const int32x4_t first_positive = vdupq_n_s32(thresholds.negative);
    const int32x4_t place = vshlq_n_s32(vsubq_s32(k, first_positive), 17);
    if constexpr (side == Side::NONE) {
        const float32x4_t before = vcvtq_f32_s32(vsubq_s32(place, vdupq_n_s32(1)));
        return vaddq_f32(vdupq_n_f32(thresholds.zero), vmulq_n_f32(before, thresholds.above));
    }
    const uint32x4_t positive = vcgtq_s32(k, first_positive), negative = vcltq_s32(k, first_positive);
    // a lane of all bits is -1
    const int32x4_t towards_zero = vreinterpretq_s32_u32(vsubq_u32(positive, negative));
    const float32x4_t step = vbslq_f32(positive, vdupq_n_f32(thresholds.above), vdupq_n_f32(thresholds.below));
    return vmulq_f32(vcvtq_f32_s32(vaddq_s32(place, towards_zero)), step);
}

template <Side side> void quantize_cubic(const Group &group, uint8_t *planes) {
    const Words &words = group.words;
    const Thresholds thresholds(words, group.scales);
    const float32x4_t one = vdupq_n_f32(1.0f);
    Noise noise(group.key);
    for (int block = 0; block < BLOCKS; ++block) {
        int32x4_t drawn[VECTORS];
        draw(words, noise, drawn);
        uint32x4_t negative[VECTORS] = {}, known[VECTORS];
        sides_of<side>(group, block, negative);
        for (int i = 0; i < VECTORS; ++i) {
            float32x4_t y = vmulq_n_f32(vld1q_f32(group.values + block * BLOCK + i * LANES), group.factor);
            const float32x4_t twice = vcvtq_f32_s32(vshlq_n_s32(drawn[i], 1));
            float32x4_t dither = vmulq_n_f32(twice, -thresholds.above);
            if constexpr (side != Side::NONE) {
                const float32x4_t bound = vmaxq_f32(y, vdupq_n_f32(LEAST_BENT));
                y = vbslq_f32(negative[i], vminq_f32(y, vdupq_n_f32(0.0f)), bound);
                dither = vbslq_f32(negative[i], vmulq_n_f32(twice, thresholds.below), dither);
            }
            int32x4_t word = vdupq_n_s32(0);
            for (int bit = words.bits - 1; bit >= 0; --bit) {
                const int32x4_t k = vorrq_s32(word, vdupq_n_s32(1 << bit));
                const float32x4_t t = vaddq_f32(bases<side>(thresholds, k), dither);
                const float32x4_t threshold = vmulq_f32(t, vaddq_f32(vmulq_f32(t, t), one));
                word = vbslq_s32(vcgtq_f32(y, threshold), k, word);
            }
            known[i] = vreinterpretq_u32_s32(word);
        }
        write_words(narrowed(known), words.bits, block, planes);
    }
}

// N above the threshold and N - 1 below it.
void write_poison(const Group &group, uint8_t *planes) {
    const Words &words = group.words;
    for (int block = 0; block < BLOCKS; ++block) {
        uint32x4_t negative[VECTORS] = {};
        if (group.given) {
            sides_of<Side::GIVEN>(group, block, negative);
        } else if (!words.affine()) {
            sides_of<Side::SIGN>(group, block, negative);
        }
        write_words(placed(words, vdupq_n_u8(0), negative), words.bits, block, planes);
    }
}

using Quantize = void (*)(const Group &, uint8_t *);

Quantize quantizer_of(const Group &group, bool bent) {
    if (group.scales.poisoned()) return write_poison;
    if (group.words.affine()) return bent ? quantize_cubic<Side::NONE> : quantize<Side::NONE>;
    if (group.given) return bent ? quantize_cubic<Side::GIVEN> : quantize<Side::GIVEN>;
    return bent ? quantize_cubic<Side::SIGN> : quantize<Side::SIGN>;
}

// Along no curve or a cubic. `unit` is that of the values that there are: what widened them is none.
void encode_full(const Words &words, GroupKey key, float unit, const float *values, const uint8_t *side,
                 uint8_t *scales, uint8_t *planes) {
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    const bool bent = words.curve == ACTNN_CUBIC;
    const Words inner = straight(words);
    const float factor = bent ? 1.0f / reach_of(words, unit) : 1.0f;
    Extremes extremes = extremes_of(values);
    if (bent) {
        extremes = {extremes.lowest * factor, extremes.highest * factor, extremes.finite && is_finite(unit)};
    }
    const Scales own = bent ? cubic_scales(inner, extremes) : scales_of(inner, extremes);
    write_scales(inner, own, scales);
    if (words.unit) write_scale(own.poisoned() ? nan : unit, scales + 2 * inner.scales());
    const Group group{inner, own, key, values, factor, words.affine() ? nullptr : side};
    quantizer_of(group, bent)(group, planes);
}

} // namespace

void encode(const Words &words, GroupKey key, const float *values, const uint8_t *side, int length, uint8_t *scales,
            uint8_t *planes) {
    if (words.curve == ACTNN_ROOT) {
        float roots[GROUP];
        std::transform(values, values + length, roots, [](float value) { return std::sqrt(value); });
        encode(straight(words), key, roots, nullptr, length, scales, planes);
        return;
    }
    const float unit = words.unit ? unit_of(scalar_kernels.magnitudes(values, length), length) : 1.0f;
    if (length == GROUP) {
        encode_full(words, key, unit, values, side, scales, planes);
        return;
    }
    // pad with a value of the group: a zero could widen its range
    float wide[GROUP];
    std::fill(std::copy_n(values, length, wide), wide + GROUP, values[0]);
    uint8_t wide_side[PLANE_BYTES], wide_planes[MOST_BITS * PLANE_BYTES];
    if (side) widen_planes(side, length, 1, wide_side);
    encode_full(words, key, unit, wide, side ? wide_side : nullptr, scales, wide_planes);
    trim_planes(wide_planes, length, words.bits, planes);
}

} // namespace actnn::neon
