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

constexpr float MOST_BENT = 43.0f; // what lies further out poisons its group: nothing that is decoded then overflows
constexpr float MAGIC = 0x1.8p23f; // adding it rounds to a whole number, which then stands in the lowest bits
constexpr float LN2 = 0x1.62e430p-1f;
constexpr float PER_LN2 = 0x1.715476p+0f;
constexpr float TWELFTH = 0x1.555556p-4f;

// log(1 + f) - f from f^2 on, for f from -1/18 to 1/8
constexpr float LOG[] = {-0x1.000b2ap-1f, 0x1.5567d0p-2f, -0x1.c86820p-3f};
// Centres of the eighths between 1 and 2: their reciprocals, and the logarithms that belong to these. The first eighth
// is measured from its beginning, so that the logarithm of 1 is 0.
constexpr float PER_CENTRE[] = {1.0f,       16 / 19.0f, 16 / 21.0f, 16 / 23.0f,
                                16 / 25.0f, 16 / 27.0f, 16 / 29.0f, 16 / 31.0f};
constexpr float LOG_OF_CENTRE[] = {0.0f,           0x1.5ff306p-3f, 0x1.1675cap-2f, 0x1.739d7ep-2f,
                                   0x1.c8ff7ep-2f, 0x1.0be72ep-1f, 0x1.307d74p-1f, 0x1.52a2d4p-1f};
// exp(r) / 2 for |r| <= ln 2 / 2
constexpr float HALF_EXP[] = {0.5f, 0.5f, 0x1.fffdfap-3f, 0x1.5557b0p-4f, 0x1.572ae6p-6f, 0x1.10621ep-8f};
// sinh h / h by powers of h^2, for h < 1
constexpr float SINH_RATIO[] = {1.0f, 0x1.555556p-3f, 0x1.111112p-7f, 0x1.a01a02p-13f, 0x1.71de3ap-19f};

// The polynomial of these coefficients, from the constant on, by Horner's rule.
template <int COUNT> static inline float polynomial(float x, const float (&coefficients)[COUNT]) {
    float result = coefficients[COUNT - 1];
    for (int k = COUNT - 2; k >= 0; --k) result = result * x + coefficients[k];
    return result;
}

// Of a number of at least 1.
static inline float logarithm(float w) {
    const uint32_t bits = std::bit_cast<uint32_t>(w);
    const float exponent = static_cast<float>(static_cast<int32_t>(bits >> 23) - 127);
    const float mantissa = std::bit_cast<float>((bits & 0x7fffff) | 0x3f800000);
    const uint32_t eighth = bits >> 20 & 7;
    const float f = mantissa * PER_CENTRE[eighth] - 1.0f;
    return (exponent * LN2 + LOG_OF_CENTRE[eighth]) + (f + (f * f) * polynomial(f, LOG));
}

// Of what is not finite it is a number beyond MOST_BENT.
static inline float inverse_sinh(float x) {
    const float t = std::abs(x);
    const float bent = logarithm(t + std::sqrt(t * t + 1.0f));
    return x < 0 ? -bent : bent;
}

// exp(u) / 2
static inline float half_exponential(float u) {
    const float shifted = u * PER_LN2 + MAGIC;
    const float r = u - (shifted - MAGIC) * LN2;
    const uint32_t bits = std::bit_cast<uint32_t>(polynomial(r, HALF_EXP));
    return std::bit_cast<float>(bits + (std::bit_cast<uint32_t>(shifted) << 23));
}

static inline float hyperbolic_sine(float u) {
    const float half = half_exponential(u);
    return half - 0.25f / half;
}

// h / sinh h: what the mean of sinh over [u - h, u + h] exceeds sinh u by, taken away.
static inline float gain_of(float h) {
    const float square = h * h;
    if (square < 1.0f) return 1.0f / polynomial(square, SINH_RATIO);
    return std::abs(h) / hyperbolic_sine(std::abs(h));
}

// The unit of a group whose magnitudes have this sum.
static inline float unit_of(float sum, int length) {
    const float unit = half_range(sum / static_cast<float>(length));
    return unit > 0 ? unit : 1.0f;
}

// The words of what is coded along a curve.
static inline Words straight(Words words) {
    words.curve = ACTNN_LINEAR;
    words.unit = false;
    return words;
}

// Whether a group can be coded whose bent values have these extremes.
static inline bool is_sound(int curve, const Extremes &bent) {
    return bent.finite && (curve == ACTNN_ROOT || (bent.lowest >= -MOST_BENT && bent.highest <= MOST_BENT));
}

// From sinh u to the value, u being coded in steps of this size.
static inline float gain_of_step(const Words &words, float unit, float step) {
    const float size = words.unit ? unit : 0.0f * step + 1.0f;
    return words.rounding == ACTNN_DITHER && !words.plain ? size * gain_of(step * 0.5f) : size;
}

static inline float whole_step(int levels, float scale, float positive) {
    return levels > 1 ? scale / static_cast<float>(levels - 1) : 0.0f * positive;
}

// Kernels offers, for one instruction set, mask_of_split as GroupKernels has it, decode_straight for codes without a
// curve, and in place
//   square(values, correction, length): values * values - correction
//   unbend(values, gain, length): sinh values * gain
//   unbend_sides(values, mask, above, below, length): the same with a gain by the bit of the mask
//   select(mask, values, other, length): another number where the bit of the mask is clear
template <class Kernels>
static void decode_curved(const Words &words, GroupKey key, int part, const uint8_t *stored, const uint8_t *planes,
                          int length, float *out) {
    const Words inner = straight(words);
    const Scales scales = read_scales(inner, stored);
    const float unit = words.unit ? read_scale(stored + 2 * inner.scales()) : 1.0f;
    const float step = whole_step(words.positive(), scales.second, scales.second);
    Kernels::decode_straight(inner, key, part, stored, planes, length, out);
    if (words.curve == ACTNN_ROOT) {
        Kernels::square(out, words.rounding == ACTNN_DITHER && !words.plain ? step * step * TWELFTH : 0.0f, length);
        return;
    }
    const float above = gain_of_step(words, unit, step);
    if (words.affine()) {
        Kernels::unbend(out, above, length);
        return;
    }
    uint8_t mask[PLANE_BYTES];
    Kernels::mask_of_split(inner, planes, length, mask);
    if (part == ACTNN_POSITIVE) {
        Kernels::unbend(out, above, length);
        const float nothing = 0.0f * scales.second;
        Kernels::select(mask, out, nothing, length);
        return;
    }
    const float below = gain_of_step(words, unit, whole_step(words.negative, scales.first, scales.second));
    Kernels::unbend_sides(out, mask, above, below, length);
}

} // namespace actnn
