// Codes along a curve with AVX2, whatever their length: byte for byte what group_scalar.cpp makes.

#include <algorithm>

#include "avx2.h"
#include "curves.h"
#include "planes.h"

namespace actnn::avx2 {
namespace {

constexpr int HALF_VECTORS = GROUP / LANES / 2;

__m256 absolute(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }

void encode_root(const Words &words, GroupKey key, const float *values, int length, uint8_t *scales, uint8_t *planes) {
    // pad with a value of the group: a zero could widen its range
    alignas(32) float u[GROUP];
    std::fill(std::copy_n(values, length, u), u + GROUP, values[0]);
    for (int i = 0; i < GROUP; i += LANES) _mm256_store_ps(u + i, _mm256_sqrt_ps(_mm256_load_ps(u + i)));
    encode_straight(straight(words), key, u, nullptr, length, scales, planes);
}

void encode_cubic(const Words &words, GroupKey key, const float *values, const uint8_t *side, int length,
                  uint8_t *scales, uint8_t *planes) {
    const float unit = words.unit ? unit_of(magnitudes(values, length), length) : 1.0f;
    const auto extremes = words.affine() ? affine_extremes : split_extremes;
    if (length == GROUP) {
        encode_cubic_within(words, key, extremes(values), unit, values, {values, nullptr}, side, scales, planes);
        return;
    }
    alignas(32) float wide[GROUP];
    std::fill(std::copy_n(values, length, wide), wide + GROUP, values[0]);
    uint8_t wide_side[PLANE_BYTES];
    if (side) widen_planes(side, length, 1, wide_side);
    uint8_t wide_planes[MOST_BITS * PLANE_BYTES];
    encode_cubic_within(words, key, extremes(wide), unit, wide, {values, nullptr}, side ? wide_side : nullptr, scales,
                        wide_planes);
    trim_planes(wide_planes, length, words.bits, planes);
}

void decode_root(const Words &words, GroupKey key, const uint8_t *scales, const uint8_t *planes, int length,
                 float *out) {
    const Words inner = straight(words);
    decode_straight(inner, key, ACTNN_WHOLE, scales, planes, length, out);
    const float correction = correction_of_square(inner, scales);
    const __m256 less = _mm256_set1_ps(correction);
    const int whole = length / LANES * LANES;
    for (int i = 0; i < whole; i += LANES) {
        const __m256 u = _mm256_loadu_ps(out + i);
        _mm256_storeu_ps(out + i, _mm256_sub_ps(_mm256_mul_ps(u, u), less));
    }
    for (int i = whole; i < length; ++i) out[i] = out[i] * out[i] - correction;
}

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
    switch (words.curve) {
    case ACTNN_CUBIC: return encode_cubic(words, key, values, side, length, scales, planes);
    case ACTNN_ROOT: return encode_root(words, key, values, length, scales, planes);
    default: return encode_straight(words, key, values, side, length, scales, planes);
    }
}

void decode(const Words &words, GroupKey key, int part, const uint8_t *scales, const uint8_t *planes, int length,
            float *out) {
    if (words.curve == ACTNN_ROOT) {
        decode_root(words, key, scales, planes, length, out);
    } else {
        decode_straight(words, key, part, scales, planes, length, out);
    }
}

} // namespace actnn::avx2
