// The scales of a group: docs/format.md, sections 4 to 6, as far as they concern a group and not an element.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "group.h"

namespace actnn {

constexpr float ONE = 65536.0f; // the distance of two levels in the fixed-point position of an element
constexpr float LEAST_SCALE = 0x1p-100f;
constexpr uint32_t INFINITY_BITS = 0x7f800000;

struct Extremes {
    float lowest;
    float highest;
    bool finite; // of every value, not only of these two
};

// (zero, range) of an affine code, else (negative, positive); both NaN in a poisoned group.
struct Scales {
    float first;
    float second;

    bool poisoned() const { return first != first; }
};

static inline bool is_finite(float value) {
    return (std::bit_cast<uint32_t>(value) & INFINITY_BITS) != INFINITY_BITS;
}

// Round the magnitude to bfloat16, away from zero.
static inline float outward(float value) {
    return std::bit_cast<float>((std::bit_cast<uint32_t>(value) + 0xffffu) & 0xffff0000u);
}

static inline float down(float value) {
    return value < 0 ? outward(value) : std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xffff0000u);
}

static inline float half_range(float value) {
    const float scale = value > 0 ? outward(value) : 0.0f;
    return scale < LEAST_SCALE ? 0.0f : scale;
}

static inline Scales scales_of(const Words &words, const Extremes &extremes) {
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    if (!extremes.finite) return {nan, nan};
    Scales scales;
    if (words.affine()) {
        // adding zero turns -0 into 0: which of the two a minimum returns depends on the order of comparison
        scales.first = down(extremes.lowest + 0.0f);
        scales.second = half_range(extremes.highest - scales.first);
    } else {
        scales.first = half_range(-extremes.lowest);
        scales.second = half_range(extremes.highest);
    }
    return is_finite(scales.first) && is_finite(scales.second) ? scales : Scales{nan, nan};
}

// From a value to its position between the levels of its side.
static inline float factor_of(int levels, float scale) {
    return scale > 0 && levels > 1 ? ONE * static_cast<float>(levels - 1) / scale : 0.0f;
}

// From twice the position to the value. A side of one level has no scale of its own: `positive` carries its NaN.
static inline float step_of(int levels, float scale, float positive) {
    return levels > 1 ? scale / (2 * ONE * static_cast<float>(levels - 1)) : 0.0f * positive;
}

static inline void write_scale(float scale, uint8_t *out) {
    const uint32_t bits = std::bit_cast<uint32_t>(scale) >> 16;
    out[0] = static_cast<uint8_t>(bits);
    out[1] = static_cast<uint8_t>(bits >> 8);
}

static inline float read_scale(const uint8_t *stored) {
    return std::bit_cast<float>(static_cast<uint32_t>(stored[0]) << 16 | static_cast<uint32_t>(stored[1]) << 24);
}

static inline void write_scales(const Words &words, const Scales &scales, uint8_t *out) {
    if (words.scales() == 2) {
        write_scale(scales.first, out);
        out += 2;
    }
    write_scale(scales.second, out);
}

static inline Scales read_scales(const Words &words, const uint8_t *stored) {
    if (words.scales() == 1) return {0.0f, read_scale(stored)};
    return {read_scale(stored), read_scale(stored + 2)};
}

} // namespace actnn
