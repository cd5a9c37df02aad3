// Decoding a group with AVX2: bit for bit what group_scalar.cpp makes.

#include <algorithm>

#include "avx2.h"
#include "curves.h"
#include "planes.h"
#include "scales.h"

namespace actnn::avx2 {
namespace {

// The words of a block; byte j of dword d is element 8 j + d.
template <int bits> __m256i words_of(const uint8_t *planes, int block) {
    const __m256i select = _mm256_setr_epi32(0x01010101, 0x02020202, 0x04040404, 0x08080808, 0x10101010, 0x20202020,
                                             0x40404040, static_cast<int>(0x80808080));
    __m256i words = _mm256_setzero_si256();
    for (int k = 0; k < bits; ++k) {
        const __m256i plane = _mm256_set1_epi32(static_cast<int>(load_word(planes + k * PLANE_BYTES + 4 * block)));
        const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(plane, select), select);
        words = _mm256_or_si256(words, _mm256_and_si256(set, _mm256_set1_epi8(static_cast<char>(1 << k))));
    }
    return words;
}

// Byte j of every dword times 65536.
template <int j> __m256i scaled_byte(__m256i bytes) {
    const __m256i lanes = _mm256_setr_epi8(-1, -1, j, -1, -1, -1, j + 4, -1, -1, -1, j + 8, -1, -1, -1, j + 12, -1, //
                                           -1, -1, j, -1, -1, -1, j + 4, -1, -1, -1, j + 8, -1, -1, -1, j + 12, -1);
    return _mm256_shuffle_epi8(bytes, lanes);
}

// The value of what is coded along a cubic.
__m256 unbent(__m256 u, __m256 mean, __m256 reach) {
    return _mm256_mul_ps(_mm256_mul_ps(u, _mm256_add_ps(_mm256_mul_ps(u, u), mean)), reach);
}

template <int bits, Reading reading, bool dithered, bool cubic>
void dequantize(const Levels &of_group, GroupKey key, const uint8_t *planes, float *out) {
    const Unbending &unbending = of_group.unbending;
    const __m256 mean_above = _mm256_set1_ps(unbending.above), mean_below = _mm256_set1_ps(unbending.below);
    const __m256 reach = _mm256_set1_ps(unbending.reach);
    const __m256 zero = _mm256_set1_ps(of_group.zero);
    const __m256 nothing = _mm256_set1_ps(of_group.nothing);
    const __m256 above = _mm256_set1_ps(of_group.above);
    const __m256 below = _mm256_set1_ps(of_group.below);
    const __m256i first_positive = _mm256_set1_epi8(static_cast<char>(of_group.negative));
    const __m256i last_negative = _mm256_set1_epi8(static_cast<char>(of_group.negative - 1));
    const __m256i ones = _mm256_set1_epi32(-1);
    Hashes hashes(key);

    for (int block = 0; block < BLOCKS; ++block) {
        for (int line = 0; line < BLOCK; line += FLOATS_OF_LINE) {
            __builtin_prefetch(out + FLOATS_AHEAD_OF_WRITING + block * BLOCK + line, 1);
        }
        __m256i levels = words_of<bits>(planes, block);
        __m256i negative = _mm256_setzero_si256();
        if constexpr (reading != Reading::AFFINE) {
            negative = _mm256_cmpeq_epi8(_mm256_min_epu8(levels, last_negative), levels);
            levels = _mm256_xor_si256(_mm256_sub_epi8(levels, first_positive), negative);
        }
        const __m256i positions[4] = {scaled_byte<0>(levels), scaled_byte<1>(levels), scaled_byte<2>(levels),
                                      scaled_byte<3>(levels)};
        __m256i inverse = _mm256_setzero_si256();
        for (int vector = 0; vector < 4; ++vector) {
            __m256i position = positions[vector];
            __m256 twice;
            if constexpr (dithered) {
                // 131072 q + 65535 - 2 r = 2 (65536 q + (65535 - r)) - 65535; the sum in brackets is q beside the
                // inverted noise, exact as a float, and the fused operation rounds once, as a conversion would
                inverse = vector % 2 == 0 ? _mm256_xor_si256(hashes.next(), ones) : _mm256_srli_epi32(inverse, 16);
                position = _mm256_blend_epi16(inverse, position, 0xaa);
                twice = _mm256_fmadd_ps(_mm256_cvtepi32_ps(position), _mm256_set1_ps(2), _mm256_set1_ps(-65535));
            } else {
                twice = _mm256_cvtepi32_ps(_mm256_add_epi32(position, position));
            }
            // a blend looks at the highest bit of a lane only
            const __m256 side = _mm256_castsi256_ps(_mm256_slli_epi32(negative, 24 - 8 * vector));
            __m256 x;
            __m256 mean = mean_above;
            if constexpr (reading == Reading::AFFINE) {
                x = _mm256_add_ps(zero, _mm256_mul_ps(twice, above));
            } else if constexpr (reading == Reading::WHOLE) {
                x = _mm256_mul_ps(twice, _mm256_blendv_ps(above, below, side));
                if constexpr (cubic) mean = _mm256_blendv_ps(mean, mean_below, side);
            } else {
                x = _mm256_mul_ps(twice, above);
            }
            if constexpr (cubic) x = unbent(x, mean, reach);
            if constexpr (reading == Reading::POSITIVE) x = _mm256_blendv_ps(x, nothing, side);
            _mm256_storeu_ps(out + block * BLOCK + vector * LANES, x);
        }
    }
}

// The words of a full group at width 1 to 3: those of eight elements in a dword, four bits each.
template <int bits> inline void spread_words(const uint8_t *planes, uint32_t *out) {
    const __m256i nibble = _mm256_set1_epi8(0x0f);
    // four bits of a plane, two to a byte
    const __m256i lower = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0x00, 0x01, 0x10, 0x11, 0x00, 0x01, 0x10, 0x11, 0x00, 0x01, 0x10, 0x11, 0x00, 0x01, 0x10, 0x11));
    const __m256i upper = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0x00, 0x00, 0x00, 0x00, 0x01, 0x01, 0x01, 0x01, 0x10, 0x10, 0x10, 0x10, 0x11, 0x11, 0x11, 0x11));
    __m256i pairs[4] = {};
    for (int k = 0; k < bits; ++k) {
        const __m256i plane = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(planes + k * PLANE_BYTES));
        const __m256i first = _mm256_and_si256(plane, nibble);
        const __m256i second = _mm256_and_si256(_mm256_srli_epi16(plane, 4), nibble);
        const __m256i low = _mm256_slli_epi16(lower, k);
        const __m256i high = _mm256_slli_epi16(upper, k);
        pairs[0] = _mm256_or_si256(pairs[0], _mm256_shuffle_epi8(low, first));
        pairs[1] = _mm256_or_si256(pairs[1], _mm256_shuffle_epi8(high, first));
        pairs[2] = _mm256_or_si256(pairs[2], _mm256_shuffle_epi8(low, second));
        pairs[3] = _mm256_or_si256(pairs[3], _mm256_shuffle_epi8(high, second));
    }
    const __m256i halves[4] = {
        _mm256_unpacklo_epi8(pairs[0], pairs[1]), _mm256_unpacklo_epi8(pairs[2], pairs[3]),
        _mm256_unpackhi_epi8(pairs[0], pairs[1]), _mm256_unpackhi_epi8(pairs[2], pairs[3])};
    const __m256i dwords[4] = {
        _mm256_unpacklo_epi16(halves[0], halves[1]), _mm256_unpackhi_epi16(halves[0], halves[1]),
        _mm256_unpacklo_epi16(halves[2], halves[3]), _mm256_unpackhi_epi16(halves[2], halves[3])};
    for (int i = 0; i < 4; ++i) {
        _mm_storeu_si128(reinterpret_cast<__m128i *>(out + 4 * i), _mm256_castsi256_si128(dwords[i]));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(out + 16 + 4 * i), _mm256_extracti128_si256(dwords[i], 1));
    }
}

// As dequantize, for words that fit the eight lanes of a table: 1 to 3 bits.
template <int bits, Reading reading, bool dithered, bool cubic>
void dequantize_by_table(const Levels &of_group, GroupKey key, const uint8_t *planes, float *out) {
    static_assert(1 << bits <= LANES);
    const Unbending &unbending = of_group.unbending;
    const __m256 reach = _mm256_set1_ps(unbending.reach);
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i first_positive = _mm256_set1_epi32(of_group.negative);
    const __m256i negative = _mm256_cmpgt_epi32(first_positive, lane);
    const __m256i level = _mm256_xor_si256(_mm256_sub_epi32(lane, first_positive), negative);
    const __m256 zero = _mm256_set1_ps(of_group.zero), nothing = _mm256_set1_ps(of_group.nothing);

    // of each word, the position at noise 0 and the step
    const __m256i middle = _mm256_set1_epi32(dithered ? 65535 : 0);
    __m256 twice = _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_slli_epi32(level, 17), middle));
    __m256 step = _mm256_set1_ps(of_group.above);
    if constexpr (reading == Reading::WHOLE) {
        step = _mm256_blendv_ps(step, _mm256_set1_ps(of_group.below), _mm256_castsi256_ps(negative));
    } else if constexpr (reading == Reading::POSITIVE && !cubic) {
        // a position that no noise makes negative: the product is never -0
        twice = _mm256_blendv_ps(twice, _mm256_set1_ps(131072), _mm256_castsi256_ps(negative));
        step = _mm256_blendv_ps(step, nothing, _mm256_castsi256_ps(negative));
    }
    __m256 mean = _mm256_set1_ps(unbending.above);
    if constexpr (reading == Reading::WHOLE) {
        mean = _mm256_blendv_ps(mean, _mm256_set1_ps(unbending.below), _mm256_castsi256_ps(negative));
    }
    __m256 value = _mm256_mul_ps(twice, step);
    if constexpr (reading == Reading::AFFINE) value = _mm256_add_ps(zero, value);
    if constexpr (cubic) value = unbent(value, mean, reach);
    // not unbent: a reach may be infinite, and a mean below zero
    constexpr bool apart = reading == Reading::POSITIVE && cubic;
    if constexpr (apart) value = _mm256_blendv_ps(value, nothing, _mm256_castsi256_ps(negative));

    uint32_t spread[GROUP / LANES];
    spread_words<bits>(planes, spread);
    const auto write = [&](int vector, __m256i noise) {
        // a permutation looks at the lowest three bits of a lane only
        const __m256i eight = _mm256_set1_epi32(static_cast<int>(spread[vector]));
        const __m256i word = _mm256_srlv_epi32(eight, _mm256_slli_epi32(lane, 2));
        __m256 x;
        if constexpr (!dithered) {
            x = _mm256_permutevar8x32_ps(value, word);
        } else {
            x = _mm256_permutevar8x32_ps(twice, word);
            x = _mm256_fmadd_ps(_mm256_cvtepi32_ps(noise), _mm256_set1_ps(-2), x); // exact
            if constexpr (reading == Reading::AFFINE || apart) {
                x = _mm256_mul_ps(x, step);
            } else {
                x = _mm256_mul_ps(x, _mm256_permutevar8x32_ps(step, word));
            }
            if constexpr (reading == Reading::AFFINE) x = _mm256_add_ps(zero, x);
            if constexpr (cubic) {
                x = unbent(x, reading == Reading::WHOLE ? _mm256_permutevar8x32_ps(mean, word) : mean, reach);
            }
            if constexpr (apart) {
                const __m256i below = _mm256_permutevar8x32_epi32(negative, word);
                x = _mm256_blendv_ps(x, nothing, _mm256_castsi256_ps(below));
            }
        }
        _mm256_storeu_ps(out + vector * LANES, x);
    };
    Hashes hashes(key);
    for (int vector = 0; vector < GROUP / LANES; vector += 2) {
        __builtin_prefetch(out + FLOATS_AHEAD_OF_WRITING + vector * LANES, 1);
        const __m256i hash = dithered ? hashes.next() : _mm256_setzero_si256();
        write(vector, low_noise(hash));
        write(vector + 1, high_noise(hash));
    }
}

constexpr Dequantizers loops =
    dequantizers([]<int bits, Reading reading, bool dithered, bool cubic>() -> Dequantize {
        if constexpr (bits <= 3) {
            return dequantize_by_table<bits, reading, dithered, cubic>;
        } else {
            return dequantize<bits, reading, dithered, cubic>;
        }
    });

Dequantize loop_of(const Words &words, int part) {
    const Reading split = part == ACTNN_POSITIVE ? Reading::POSITIVE : Reading::WHOLE;
    const int variant = variant_of(words.affine() ? Reading::AFFINE : split, words.rounding == ACTNN_DITHER,
                                   words.curve == ACTNN_CUBIC);
    const Dequantize faster = wide_vectors ? avx512_dequantizers.of[variant][words.bits - 1] : nullptr;
    return faster ? faster : loops.of[variant][words.bits - 1];
}

Levels read_levels(const Words &words, const uint8_t *stored) {
    const Scales scales = read_scales(straight(words), stored);
    return {
        .negative = words.negative,
        .zero = scales.first,
        .above = step_of(words.positive(), scales.second, scales.second),
        .below = -step_of(words.negative, scales.first, scales.second),
        .nothing = 0.0f * scales.second,
        .unbending = words.curve == ACTNN_CUBIC ? unbending_of(words, stored) : Unbending{},
    };
}

} // namespace

void decode_straight(const Words &words, GroupKey key, int part, const uint8_t *scales, const uint8_t *planes,
                     int length, float *out) {
    const Dequantize decode_full = loop_of(words, part);
    const Levels levels = read_levels(words, scales);
    if (length == GROUP) {
        decode_full(levels, key, planes, out);
        return;
    }
    alignas(32) float wide[GROUP];
    uint8_t wide_planes[MOST_BITS * PLANE_BYTES];
    widen_planes(planes, length, words.bits, wide_planes);
    decode_full(levels, key, wide_planes, wide);
    std::copy_n(wide, length, out);
}

} // namespace actnn::avx2
