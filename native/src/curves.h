// The curves along which values are coded: docs/format.md, section 10, one number at a time.
//
// Every operation is a single one of float32, never fused, in this order on every instruction set.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "group.h"
#include "scales.h"

namespace actnn {

constexpr float TWELFTH = 0x1.555556p-4f;

// Up to where levels lie almost evenly: a number for normalised values, else so many units; twice as many where zero is
// exact, since about half of the values are zero, and no level is for these.
constexpr float REACH = 2.0f;
constexpr float UNITS_OF_REACH = 3.0f;
constexpr float UNITS_ABOVE_ZERO = 6.0f;
constexpr float MOST_BENT = 0x1p60f;    // what lies further out poisons its group: nothing decoded then overflows
constexpr float MOST_SLOPE = 0x1p118f;  // of larger squared slopes no sum would be finite
constexpr float LEAST_BENT = 0x1p-126f; // what lies on the positive side is at least that
constexpr float MARGIN = 0x1p-18f;      // more than inverse_cubic can be off by, relatively
// Added to the bits of a number divided by 3, some seven eighths of its cube root.
constexpr uint32_t CUBE_ROOT = 0x2a3788e6;

static inline float cubic(float u) { return u * (u * u + 1.0f); }

// Of at most MOST_BENT, by three steps of Newton's method.
static inline float inverse_cubic(float y) {
    const float magnitude = std::abs(y) < MOST_BENT ? std::abs(y) : MOST_BENT;
    const float root = std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) / 3 + CUBE_ROOT);
    float u = magnitude < root ? magnitude : root;
    for (int k = 0; k < 3; ++k) {
        const float square = u * u;
        u = ((square * u) * 2.0f + magnitude) / (square * 3.0f + 1.0f);
    }
    return y < 0 ? -u : u;
}

// The squared slope of the cubic at y, about: u after one step of Newton's method, which makes it at most a seventh too large.
static inline float squared_slope(const Slopes &slopes, float y) {
    const float magnitude = std::abs(y) < MOST_BENT ? std::abs(y) : MOST_BENT;
    const float root = std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) / 3 + CUBE_ROOT);
    const float start = magnitude < root ? magnitude : root, square = start * start;
    const float u = ((square * start) * 2.0f + magnitude) / (square * 3.0f + 1.0f);
    const float slope = (u * u * 3.0f + 1.0f) * slopes.reach;
    return slope * slope;
}

// The unit of a group whose magnitudes have this sum.
static inline float unit_of(float sum, int length) {
    const float unit = half_range(sum / static_cast<float>(length));
    return unit > 0 ? unit : 1.0f;
}

static inline float reach_of(bool affine, bool has_unit, float unit) {
    return has_unit ? unit * (affine ? UNITS_OF_REACH : UNITS_ABOVE_ZERO) : REACH;
}

static inline float reach_of(const Words &words, float unit) { return reach_of(words.affine(), words.unit, unit); }

// The words of what is coded along a curve.
static inline Words straight(Words words) {
    words.curve = ACTNN_LINEAR;
    words.unit = false;
    return words;
}

// The scales of what is coded of values in reaches, which have these extremes: rounded so that it covers them.
static inline Scales cubic_scales(const Words &words, const Extremes &extremes) {
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    if (!(extremes.finite && extremes.lowest >= -MOST_BENT && extremes.highest <= MOST_BENT)) return {nan, nan};
    const float first = inverse_cubic(extremes.lowest), last = inverse_cubic(extremes.highest);
    const float low = first - std::abs(first) * MARGIN, high = last + std::abs(last) * MARGIN;
    if (!words.affine()) return {half_range(-low), half_range(high)};
    const float zero = down(low + 0.0f);
    return {zero, half_range((high - zero) * (1.0f + MARGIN))};
}

// What the noise of an element is added to, to have the threshold of word k: what lies beyond it has this word at least.
struct Thresholds {
    Thresholds(const Words &words, const Scales &scales)
        : negative(words.negative), zero(words.affine() ? scales.first : 0.0f),
          above(step_of(words.positive(), scales.second, scales.second)),
          below(step_of(words.negative, scales.first, scales.second)) {}

    float base(int k) const {
        const int place = (k - negative) << 17;
        if (k > negative) return zero + static_cast<float>(place - 1) * above;
        return k < negative ? static_cast<float>(place + 1) * below : 0.0f;
    }

    int negative;
    float zero, above, below;
};

// The word of a value in reaches: how many thresholds it exceeds, found bit by bit.
static inline int cubic_word(int bits, const Thresholds &thresholds, float y, float dither) {
    int word = 0;
    for (int bit = bits - 1; bit >= 0; --bit) {
        const int k = word | 1 << bit;
        if (y > cubic(thresholds.base(k) + dither)) word = k;
    }
    return word;
}

static inline float whole_step(int levels, float scale, float positive) {
    return levels > 1 ? scale / static_cast<float>(levels - 1) : 0.0f * positive;
}

// From what is coded to the value: u (u u + mean) reach, with a mean for each side.
struct Unbending {
    float above;
    float below;
    float reach;
};

// What makes the mean of a cubic over one step right.
static inline float mean_of_step(const Words &words, float step) {
    const float half = step * 0.5f;
    return words.rounding == ACTNN_DITHER ? 1.0f - half * half : 1.0f;
}

static inline Unbending unbending_of(const Words &words, const uint8_t *stored) {
    const Words inner = straight(words);
    const Scales scales = read_scales(inner, stored);
    const float below = whole_step(words.negative, scales.first, scales.second);
    const float unit = words.unit ? read_scale(stored + 2 * inner.scales()) : 1.0f;
    return {mean_of_step(words, whole_step(words.positive(), scales.second, scales.second)),
            mean_of_step(words, below), reach_of(words, unit)};
}

// Variance of the noise in what is decoded by u, which is (quartic u u + quadratic) u u + constant on average.
struct NoiseVariance {
    float constant;
    float quadratic;
    float quartic;

    float at(float u) const {
        const float square = u * u;
        return (quartic * square + quadratic) * square + constant;
    }
};

// That of a side whose neighbouring levels are a step apart. Dither leaves 1/12 of a squared step whatever the value,
// stochastic rounding 1/6 on average; what nearest leaves is no noise. Along the cubic, u is even over [s - h, s + h] and
// the value u^3 + (1 - h^2) u in reaches, of which h^2 (3 s^4 + 2 s^2 + 1/3 - 4/15 h^2 + 8/105 h^4) is the variance; that
// of a square is 4 h^2 (s^2 / 3 + h^2 / 45).
static inline NoiseVariance noise_variance(const Words &words, float step, float reach) {
    constexpr float SHARES[] = {1.0f / 12, 1.0f / 6, 0.0f};
    if (words.curve == ACTNN_LINEAR || words.rounding != ACTNN_DITHER) {
        return {step * step * SHARES[words.rounding], 0.0f * step, 0.0f * step};
    }
    const float half = step * 0.5f, square = half * half;
    if (words.curve == ACTNN_ROOT) return {(square * square) * (-16.0f / 45), square * (4.0f / 3), 0.0f * step};
    const float constant = square * ((square * (31.0f / 21) - 14.0f / 15) * square + 1.0f / 3);
    const float quadratic = (square * 2.0f) * (1.0f - square * 3.0f), scale = reach * reach;
    return {constant * scale, quadratic * scale, (square * 3.0f) * scale};
}

// What is taken from the square of a root that was coded.
static inline float correction_of_square(const Words &words, const uint8_t *stored) {
    const float range = read_scales(words, stored).second;
    const float step = whole_step(words.positive(), range, range);
    return words.rounding == ACTNN_DITHER ? step * step * TWELFTH : 0.0f;
}

} // namespace actnn
