// Encoding a group with AVX2: byte for byte what group_scalar.cpp makes.

#include <algorithm>
#include <array>

#include "avx2.h"
#include "curves.h"
#include "planes.h"
#include "scales.h"

namespace actnn::avx2 {
namespace {

void store_word(int word, uint8_t *bytes) { std::memcpy(bytes, &word, sizeof word); }

// All lanes of the vector whose elements lie on the negative side.
template <Side side> __m256i below_of(__m256 x, __m256i given, int vector) {
    if constexpr (side == Side::SIGN) return _mm256_castps_si256(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LE_OQ));
    const __m256i bit = _mm256_slli_epi32(_mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128), 8 * vector);
    return _mm256_cmpeq_epi32(_mm256_and_si256(given, bit), _mm256_setzero_si256());
}

// Four vectors of 32-bit lanes to 32 bytes: bits 16 to 31 of every lane, clamped to a byte, in an order that
// elements_in_order mends.
__m256i upper_halves(const __m256i x[4]) {
    const __m256i first = _mm256_blend_epi16(_mm256_srli_epi32(x[0], 16), x[1], 0xaa);
    const __m256i second = _mm256_blend_epi16(_mm256_srli_epi32(x[2], 16), x[3], 0xaa);
    return _mm256_packus_epi16(first, second);
}

// The same for masks.
__m256i mask_bytes(const __m256i x[4]) {
    return _mm256_packs_epi16(_mm256_blend_epi16(x[0], x[1], 0xaa), _mm256_blend_epi16(x[2], x[3], 0xaa));
}

__m256i elements_in_order(__m256i bytes) {
    const __m256i within = _mm256_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15, //
                                            0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    const __m256i across = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    return _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(bytes, within), across);
}

void draw(GroupKey key, __m256i *out) {
    Hashes hashes(key);
    for (int i = 0; i < GROUP / (2 * LANES); ++i) out[i] = hashes.next();
}

template <int bits, Side side, bool noisy>
void quantize(const Words &words, const Scales &scales, GroupKey key, const float *values, const Ahead &ahead,
              const uint8_t *given, uint8_t *planes) {
    const __m256 zero = _mm256_set1_ps(scales.first);
    const __m256 above = _mm256_set1_ps(factor_of(words.positive(), scales.second));
    // a negative factor makes magnitudes of negative values
    const __m256 below = _mm256_set1_ps(side == Side::NONE ? 0.0f : -factor_of(words.negative, scales.first));
    const __m256i most_above = _mm256_set1_epi32((words.positive() - 1) << 16);
    const __m256i most_below = _mm256_set1_epi32((words.negative - 1) << 16);
    const __m256i first_positive = _mm256_set1_epi8(static_cast<char>(words.negative));
    // The scales take a long chain of dependent operations; the noise, all drawn here, fills that time.
    __m256i hashes[noisy ? GROUP / (2 * LANES) : 1];
    if constexpr (noisy) draw(key, hashes);

    for (int block = 0; block < BLOCKS; ++block) {
        for (int line = 0; line < BLOCK; line += FLOATS_OF_LINE) {
            __builtin_prefetch(ahead.read + FLOATS_AHEAD_OF_READING + block * BLOCK + line);
            if (ahead.write) __builtin_prefetch(ahead.write + FLOATS_AHEAD_OF_WRITING + block * BLOCK + line, 1);
        }
        const __m256i bits_given =
            _mm256_set1_epi32(side == Side::GIVEN ? static_cast<int>(load_word(given + 4 * block)) : 0);
        __m256i sums[4];
        __m256i negative[4];
        for (int vector = 0; vector < 4; ++vector) {
            const __m256 x = _mm256_loadu_ps(values + block * BLOCK + vector * LANES);
            __m256i position;
            __m256i most = most_above;
            if constexpr (side == Side::NONE) {
                position = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_sub_ps(x, zero), above));
            } else {
                negative[vector] = below_of<side>(x, bits_given, vector);
                const __m256 factor = _mm256_blendv_ps(above, below, _mm256_castsi256_ps(negative[vector]));
                position = _mm256_cvtps_epi32(_mm256_mul_ps(x, factor));
                most = _mm256_blendv_epi8(most_above, most_below, negative[vector]);
            }
            // The product exceeds 65536 (L - 1) by less than its 2^-22.9th part: with 64 levels or fewer that is less
            // than a half, and rounds away.
            if constexpr (bits > 6) position = _mm256_min_epi32(position, most);
            __m256i noise = _mm256_set1_epi32(1 << 15);
            if constexpr (noisy) {
                const __m256i hash = hashes[2 * block + vector / 2];
                noise = vector % 2 == 0 ? low_noise(hash) : high_noise(hash);
            }
            sums[vector] = _mm256_add_epi32(position, noise);
        }
        // saturates: on a side that the sign contradicts the position is negative, and the level 0
        __m256i coded = upper_halves(sums);
        // N + q, and N - 1 - q = N + ~q
        if constexpr (side != Side::NONE) {
            coded = _mm256_add_epi8(_mm256_xor_si256(coded, mask_bytes(negative)), first_positive);
        }
        coded = elements_in_order(coded);
        for (int k = 0; k < bits; ++k) {
            const __m256i plane = _mm256_slli_epi16(coded, 7 - k);
            store_word(_mm256_movemask_epi8(plane), planes + k * PLANE_BYTES + 4 * block);
        }
    }
}

template <int bits, Side side>
void encode_full(const Words &words, GroupKey key, const Extremes &extremes, const float *values, const Ahead &ahead,
                 const uint8_t *given, uint8_t *scales, uint8_t *planes) {
    const Scales group = scales_of(words, extremes);
    write_scales(words, group, scales);
    if (group.poisoned()) {
        write_poison(words, values, given, planes);
    } else if (words.rounding == ACTNN_NEAREST) {
        quantize<bits, side, false>(words, group, key, values, ahead, given, planes);
    } else {
        quantize<bits, side, true>(words, group, key, values, ahead, given, planes);
    }
}

using EncodeFull = void (*)(const Words &, GroupKey, const Extremes &, const float *, const Ahead &, const uint8_t *,
                            uint8_t *, uint8_t *);

template <Side side, int... k> constexpr std::array<EncodeFull, MOST_BITS> encoders(std::integer_sequence<int, k...>) {
    return {encode_full<k + 1, side>...};
}

EncodeFull encoder_of(const Words &words, bool given) {
    static constexpr auto affine = encoders<Side::NONE>(WIDTHS);
    static constexpr auto by_sign = encoders<Side::SIGN>(WIDTHS);
    static constexpr auto by_side = encoders<Side::GIVEN>(WIDTHS);
    return (words.affine() ? affine : given ? by_side : by_sign)[words.bits - 1];
}

} // namespace

Extremes split_extremes(const float *values) {
    SplitExtremes halves[2];
    for (int i = 0; i < GROUP; i += 2 * LANES) {
        halves[0].add(_mm256_loadu_ps(values + i));
        halves[1].add(_mm256_loadu_ps(values + i + LANES));
    }
    halves[0].join(halves[1]);
    return halves[0].extremes();
}

Extremes affine_extremes(const float *values) {
    AffineExtremes halves[2];
    for (int i = 0; i < GROUP; i += 2 * LANES) {
        halves[0].add(_mm256_loadu_ps(values + i));
        halves[1].add(_mm256_loadu_ps(values + i + LANES));
    }
    halves[0].join(halves[1]);
    return halves[0].extremes();
}

// N above the threshold and N - 1 below it.
void write_poison(const Words &words, const float *values, const uint8_t *side, uint8_t *planes) {
    if (words.affine()) {
        std::memset(planes, 0, static_cast<size_t>(words.bits) * PLANE_BYTES);
        return;
    }
    uint8_t mask[PLANE_BYTES];
    if (side == nullptr) encode_mask_full(values, mask);
    const uint8_t *const sides = side ? side : mask;
    for (int k = 0; k < words.bits; ++k) {
        const int above = words.negative >> k & 1 ? 0xff : 0;
        const int below = (words.negative - 1) >> k & 1 ? 0xff : 0;
        for (int i = 0; i < PLANE_BYTES; ++i) {
            planes[k * PLANE_BYTES + i] = static_cast<uint8_t>((sides[i] & above) | (~sides[i] & below));
        }
    }
}

void encode_straight(const Words &words, GroupKey key, const float *values, const uint8_t *side, int length,
                     uint8_t *scales, uint8_t *planes) {
    const EncodeFull full = encoder_of(words, side != nullptr);
    const auto extremes = words.affine() ? affine_extremes : split_extremes;
    if (length == GROUP) {
        full(words, key, extremes(values), values, {values, nullptr}, side, scales, planes);
        return;
    }
    // pad with a value of the group: a zero could widen its range
    alignas(32) float wide[GROUP];
    std::fill(std::copy_n(values, length, wide), wide + GROUP, values[0]);
    uint8_t wide_side[PLANE_BYTES];
    if (side) widen_planes(side, length, 1, wide_side);
    uint8_t wide_planes[MOST_BITS * PLANE_BYTES];
    full(words, key, extremes(wide), wide, {values, nullptr}, side ? wide_side : nullptr, scales, wide_planes);
    trim_planes(wide_planes, length, words.bits, planes);
}

void encode_within(const Words &words, GroupKey key, const Extremes &extremes, const float *values, const Ahead &ahead,
                   const uint8_t *side, uint8_t *scales, uint8_t *planes) {
    if (words.curve == ACTNN_CUBIC) {
        const float unit = words.unit ? unit_of(magnitudes(values, GROUP), GROUP) : 1.0f;
        encode_cubic_within(words, key, extremes, unit, values, ahead, side, scales, planes);
        return;
    }
    encoder_of(words, side != nullptr)(words, key, extremes, values, ahead, side, scales, planes);
}

} // namespace actnn::avx2
