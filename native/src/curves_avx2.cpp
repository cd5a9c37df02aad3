// Codes along a curve with AVX2: byte for byte what curves.h makes.

#include <algorithm>

#include "curves_avx2.h"
#include "planes.h"

namespace actnn::avx2 {
namespace {

constexpr int HALF_VECTORS = GROUP / LANES / 2;

// Replace the values of a group by body(i, vector); what is left after the last whole vector is done in a copy.
template <class Body> void in_place(float *values, int length, Body body) {
    int i = 0;
    for (; i + LANES <= length; i += LANES) _mm256_storeu_ps(values + i, body(i, _mm256_loadu_ps(values + i)));
    if (i == length) return;
    alignas(32) float rest[LANES] = {};
    std::copy(values + i, values + length, rest);
    _mm256_store_ps(rest, body(i, _mm256_load_ps(rest)));
    std::copy_n(rest, length - i, values + i);
}

// All bits of the lanes whose bit of the mask is set.
__m256 chosen(const uint8_t *mask, int i) {
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(mask[i / LANES]), bit), bit));
}

// What is coded of a full group; returns its extremes.
template <class Function> Extremes bend_by(const float *values, float *out, Function function) {
    AffineExtremes extremes[2];
    for (int i = 0; i < GROUP; i += 2 * LANES) {
        for (int k = 0; k < 2; ++k) {
            const __m256 u = function(_mm256_loadu_ps(values + i + k * LANES));
            extremes[k].add(u);
            _mm256_storeu_ps(out + i + k * LANES, u);
        }
    }
    extremes[0].join(extremes[1]);
    return extremes[0].extremes();
}

Extremes bend(int curve, const float *values, float factor, float *out) {
    if (curve == ACTNN_ROOT) return bend_by(values, out, [](__m256 x) { return _mm256_sqrt_ps(x); });
    const __m256 of_unit = _mm256_set1_ps(factor);
    return bend_by(values, out, [&](__m256 x) { return inverse_sinh(_mm256_mul_ps(x, of_unit)); });
}

void encode_full(const Words &words, GroupKey key, const float *values, float unit, const float *ahead,
                 const uint8_t *side, uint8_t *scales, uint8_t *planes) {
    alignas(32) float u[GROUP];
    const Words inner = straight(words);
    Extremes extremes = bend(words.curve, values, 1.0f / unit, u);
    extremes.finite = is_finite(unit) && is_sound(words.curve, extremes);
    // not the sign of u, which is 0 for values far below the unit
    uint8_t mask[PLANE_BYTES];
    if (!words.affine() && side == nullptr) {
        encode_mask_full(values, mask);
        side = mask;
    }
    encode_within(inner, key, extremes, u, {ahead, nullptr}, words.affine() ? nullptr : side, scales, planes);
    if (!words.unit) return;
    const float stored = extremes.finite ? unit : std::numeric_limits<float>::quiet_NaN();
    write_scale(stored, scales + 2 * inner.scales());
}

void encode_curved(const Words &words, GroupKey key, const float *values, const uint8_t *side, int length,
                   uint8_t *scales, uint8_t *planes) {
    const float unit = words.unit ? unit_of(magnitudes(values, length), length) : 1.0f;
    if (length == GROUP) {
        encode_full(words, key, values, unit, values, side, scales, planes);
        return;
    }
    // pad with a value of the group: a zero could widen its range
    alignas(32) float wide[GROUP];
    std::fill(std::copy_n(values, length, wide), wide + GROUP, values[0]);
    uint8_t wide_side[PLANE_BYTES];
    if (side) widen_planes(side, length, 1, wide_side);
    uint8_t wide_planes[MOST_BITS * PLANE_BYTES];
    encode_full(words, key, wide, unit, values, side ? wide_side : nullptr, scales, wide_planes);
    trim_planes(wide_planes, length, words.bits, planes);
}

// What curves.h asks of an instruction set.
struct Curved {
    static constexpr auto mask_of_split = avx2::mask_of_split;
    static constexpr auto decode_straight = avx2::decode_straight;

    static void square(float *values, float correction, int length) {
        const __m256 less = _mm256_set1_ps(correction);
        in_place(values, length, [&](int, __m256 u) { return _mm256_sub_ps(_mm256_mul_ps(u, u), less); });
    }

    static void unbend(float *values, float gain, int length) {
        const __m256 factor = _mm256_set1_ps(gain);
        in_place(values, length, [&](int, __m256 u) { return _mm256_mul_ps(hyperbolic_sine(u), factor); });
    }

    static void unbend_sides(float *values, const uint8_t *mask, float above, float below, int length) {
        const __m256 of_clear = _mm256_set1_ps(below), of_set = _mm256_set1_ps(above);
        in_place(values, length, [&](int i, __m256 u) {
            return _mm256_mul_ps(hyperbolic_sine(u), _mm256_blendv_ps(of_clear, of_set, chosen(mask, i)));
        });
    }

    static void select(const uint8_t *mask, float *values, float other, int length) {
        const __m256 of_clear = _mm256_set1_ps(other);
        in_place(values, length, [&](int i, __m256 x) { return _mm256_blendv_ps(of_clear, x, chosen(mask, i)); });
    }
};

} // namespace

float magnitudes(const float *values, int length) {
    alignas(32) float wide[GROUP];
    if (length < GROUP) {
        std::fill(std::copy_n(values, length, wide), wide + GROUP, 0.0f);
        values = wide;
    }
    __m256 sums[HALF_VECTORS];
    for (int i = 0; i < HALF_VECTORS; ++i) {
        sums[i] = _mm256_add_ps(absolute(_mm256_loadu_ps(values + i * LANES)),
                                absolute(_mm256_loadu_ps(values + (i + HALF_VECTORS) * LANES)));
    }
    for (int half = HALF_VECTORS / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) sums[i] = _mm256_add_ps(sums[i], sums[i + half]);
    }
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(sums[0]), _mm256_extractf128_ps(sums[0], 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

void encode(const Words &words, GroupKey key, const float *values, const uint8_t *side, int length, uint8_t *scales,
            uint8_t *planes) {
    const auto made = words.curve == ACTNN_LINEAR ? encode_straight : encode_curved;
    made(words, key, values, side, length, scales, planes);
}

void decode(const Words &words, GroupKey key, int part, const uint8_t *scales, const uint8_t *planes, int length,
            float *out) {
    const auto read = words.curve == ACTNN_LINEAR ? decode_straight : decode_curved<Curved>;
    read(words, key, part, scales, planes, length, out);
}

} // namespace actnn::avx2
