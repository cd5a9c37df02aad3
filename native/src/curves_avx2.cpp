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

// A third of each unsigned number, rounded down.
__m256i third_of(__m256i x) {
    const __m256i factor = _mm256_set1_epi64x(0xaaaaaaab);
    const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(x, factor), 33);
    const __m256i odd = _mm256_srli_epi64(_mm256_mul_epu32(_mm256_srli_epi64(x, 32), factor), 33);
    return _mm256_or_si256(even, _mm256_slli_epi64(odd, 32));
}

// As the scalar squared_slope, operation by operation.
__m256 squared_slopes(__m256 y, __m256 reach) {
    const __m256 one = _mm256_set1_ps(1.0f), two = _mm256_set1_ps(2.0f), three = _mm256_set1_ps(3.0f);
    const __m256 magnitude = _mm256_min_ps(absolute(y), _mm256_set1_ps(MOST_BENT));
    const __m256i root = _mm256_add_epi32(third_of(_mm256_castps_si256(magnitude)),
                                          _mm256_set1_epi32(static_cast<int>(CUBE_ROOT)));
    const __m256 start = _mm256_min_ps(magnitude, _mm256_castsi256_ps(root)), square = _mm256_mul_ps(start, start);
    const __m256 u = _mm256_div_ps(_mm256_add_ps(_mm256_mul_ps(_mm256_mul_ps(square, start), two), magnitude),
                                   _mm256_add_ps(_mm256_mul_ps(square, three), one));
    const __m256 slope =
        _mm256_mul_ps(_mm256_add_ps(_mm256_mul_ps(_mm256_mul_ps(u, u), three), one), reach);
    return _mm256_mul_ps(slope, slope);
}

// Adds up what the elements of each side count.
class SideLanes {
  public:
    void add(__m256 counts, __m256 below) {
        negative_ = _mm256_add_ps(negative_, _mm256_and_ps(below, counts));
        positive_ = _mm256_add_ps(positive_, _mm256_andnot_ps(below, counts));
    }

    Sides sums() const { return {sum(negative_), sum(positive_)}; }

  private:
    static double sum(__m256 lanes) {
        float numbers[LANES];
        _mm256_storeu_ps(numbers, lanes);
        return sum_of_lanes(numbers);
    }

    __m256 negative_ = _mm256_setzero_ps(), positive_ = _mm256_setzero_ps();
};

} // namespace

void slopes(const Slopes &slopes, const float *values, const float *weights, int length, Sides &counted,
            Sides &weighted) {
    static_assert(LANES == WEIGHT_LANES);
    const __m256 factor = _mm256_set1_ps(slopes.factor), reach = _mm256_set1_ps(slopes.reach);
    const __m256 most = _mm256_set1_ps(MOST_SLOPE), four = _mm256_set1_ps(4.0f), nothing = _mm256_setzero_ps();
    SideLanes counts, sums;
    const auto add = [&](__m256 x, __m256 inside, const float *own_weights) {
        const __m256 square =
            slopes.root ? _mm256_mul_ps(four, x) : squared_slopes(_mm256_mul_ps(x, factor), reach);
        const __m256 count = _mm256_and_ps(inside, _mm256_min_ps(square, most));
        const __m256 below = slopes.affine ? nothing : _mm256_cmp_ps(x, nothing, _CMP_LE_OQ);
        counts.add(count, below);
        if (own_weights) sums.add(_mm256_mul_ps(count, _mm256_loadu_ps(own_weights)), below);
    };
    const int whole = length / LANES * LANES;
    const __m256 all = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    for (int i = 0; i < whole; i += LANES) add(_mm256_loadu_ps(values + i), all, weights ? weights + i : nullptr);
    if (whole < length) {
        float rest[LANES] = {}, own_weights[LANES] = {}, inside[LANES] = {};
        std::copy(values + whole, values + length, rest);
        if (weights) std::copy(weights + whole, weights + length, own_weights);
        std::fill_n(inside, length - whole, 1.0f);
        add(_mm256_loadu_ps(rest), _mm256_cmp_ps(_mm256_loadu_ps(inside), nothing, _CMP_GT_OQ),
            weights ? own_weights : nullptr);
    }
    counted = counts.sums();
    weighted = weights ? sums.sums() : counted;
}

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
