// Exponentials and logarithms of float32 operations, of which smooth functions are made; what is fused is said to be.
#pragma once

#include <bit>
#include <cstdint>

namespace actnn {

constexpr float MAGIC = 0x1.8p23f; // adding it rounds to a whole number, which then stands in the lowest bits
constexpr float LN2 = 0x1.62e430p-1f;
constexpr float PER_LN2 = 0x1.715476p+0f;

// log(1 + f) - f from f^2 on, for f from -1/18 to 1/8
constexpr float LOG[] = {-0x1.000b2ap-1f, 0x1.5567d0p-2f, -0x1.c86820p-3f};
// Centres of the eighths between 1 and 2: their reciprocals, and the logarithms that belong to these. The first eighth
// is measured from its beginning, so that the logarithm of 1 is 0.
constexpr float PER_CENTRE[] = {1.0f,       16 / 19.0f, 16 / 21.0f, 16 / 23.0f,
                                16 / 25.0f, 16 / 27.0f, 16 / 29.0f, 16 / 31.0f};
constexpr float LOG_OF_CENTRE[] = {0.0f,           0x1.5ff306p-3f, 0x1.1675cap-2f, 0x1.739d7ep-2f,
                                   0x1.c8ff7ep-2f, 0x1.0be72ep-1f, 0x1.307d74p-1f, 0x1.52a2d4p-1f};
// exp(r) for |r| <= ln 2 / 2
constexpr float EXP[] = {1.0f, 1.0f, 0x1.fffdfap-2f, 0x1.5557b0p-3f, 0x1.572ae6p-5f, 0x1.10621ep-7f};

// a b + c, rounded once
static inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// The polynomial of these coefficients, from the constant on, by Horner's rule.
template <int COUNT> static inline float polynomial(float x, const float (&coefficients)[COUNT]) {
    float result = coefficients[COUNT - 1];
    for (int k = COUNT - 2; k >= 0; --k) result = fused(result, x, coefficients[k]);
    return result;
}

// Of a number of at least 1.
static inline float logarithm(float w) {
    const uint32_t bits = std::bit_cast<uint32_t>(w);
    const float exponent = static_cast<float>(static_cast<int32_t>(bits >> 23) - 127);
    const float mantissa = std::bit_cast<float>((bits & 0x7fffff) | 0x3f800000);
    const uint32_t eighth = bits >> 20 & 7;
    const float f = fused(mantissa, PER_CENTRE[eighth], -1.0f);
    return fused(exponent, LN2, LOG_OF_CENTRE[eighth]) + fused(f * f, polynomial(f, LOG), f);
}

// exp(u) for u from -87 to 88
static inline float exponential(float u) {
    const float shifted = fused(u, PER_LN2, MAGIC);
    const float r = fused(MAGIC - shifted, LN2, u);
    const uint32_t bits = std::bit_cast<uint32_t>(polynomial(r, EXP));
    return std::bit_cast<float>(bits + (std::bit_cast<uint32_t>(shifted) << 23));
}

} // namespace actnn
