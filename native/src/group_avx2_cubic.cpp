// Encoding a group along a cubic with AVX2: byte for byte what group_scalar.cpp makes.

#include "avx2.h"
#include "curves.h"

namespace actnn::avx2 {
namespace {

void store_word(uint32_t word, uint8_t *bytes) { std::memcpy(bytes, &word, sizeof word); }

void draw(GroupKey key, __m256i *out) {
    Hashes hashes(key);
    for (int i = 0; i < GROUP / (2 * LANES); ++i) out[i] = hashes.next();
}

// Thresholds of words, a vector of words at a time.
template <bool sided> class VectorThresholds {
  public:
    explicit VectorThresholds(const Thresholds &thresholds)
        : first_positive_(_mm256_set1_epi32(thresholds.negative)), zero_(_mm256_set1_ps(thresholds.zero)),
          above_(_mm256_set1_ps(thresholds.above)), below_(_mm256_set1_ps(thresholds.below)) {}

    __m256 bases(__m256i k) const {
        if constexpr (!sided) {
            const __m256i place = _mm256_sub_epi32(_mm256_slli_epi32(k, 17), _mm256_set1_epi32(1));
            return _mm256_add_ps(zero_, _mm256_mul_ps(_mm256_cvtepi32_ps(place), above_));
        }
        const __m256i positive = _mm256_cmpgt_epi32(k, first_positive_);
        const __m256i negative = _mm256_cmpgt_epi32(first_positive_, k);
        const __m256i place = _mm256_slli_epi32(_mm256_sub_epi32(k, first_positive_), 17);
        // a lane of all bits is -1
        const __m256i towards_zero = _mm256_add_epi32(place, _mm256_sub_epi32(positive, negative));
        const __m256 step = _mm256_blendv_ps(below_, above_, _mm256_castsi256_ps(positive));
        return _mm256_add_ps(zero_, _mm256_mul_ps(_mm256_cvtepi32_ps(towards_zero), step));
    }

  private:
    __m256i first_positive_;
    __m256 zero_, above_, below_;
};

constexpr int VECTORS = BLOCK / LANES;

__m256 cubic_of(__m256 t) {
    return _mm256_mul_ps(t, _mm256_add_ps(_mm256_mul_ps(t, t), _mm256_set1_ps(1.0f)));
}

// Finds the words of elements, a vector at a time, by halves of what is left.
template <int bits, bool sided> class Search {
  public:
    explicit Search(const VectorThresholds<sided> &thresholds) : thresholds_(thresholds) {
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        for (int depth = 0; depth < bits && depth <= TABLED; ++depth) {
            const __m256i known = _mm256_and_si256(lane, _mm256_set1_epi32((1 << depth) - 1));
            tables_[depth] = thresholds.bases(middle(known, depth));
        }
        if constexpr (bits > TABLED) {
            upper_half_ = thresholds.bases(middle(_mm256_add_epi32(lane, _mm256_set1_epi32(LANES)), TABLED));
        }
        if constexpr (bits > 1) {
            upper_ = _mm256_permutevar8x32_ps(tables_[1], _mm256_set1_epi32(1));
            tables_[1] = _mm256_broadcastss_ps(_mm256_castps256_ps128(tables_[1]));
        }
    }

    // Write the words of a block. Vectors take turns: each operation has to wait for the one before it.
    void find(const __m256 (&y)[VECTORS], const __m256 (&dither)[VECTORS], uint8_t *planes) const {
        __m256i known[VECTORS] = {};
        __m256 beyond[VECTORS] = {};
#pragma GCC unroll 8
        for (int depth = 0; depth < bits; ++depth) {
            __m256 t[VECTORS];
            uint32_t plane = 0;
            for (int i = 0; i < VECTORS; ++i) t[i] = _mm256_add_ps(base_of(depth, known[i], beyond[i]), dither[i]);
            for (int i = 0; i < VECTORS; ++i) t[i] = cubic_of(t[i]);
            for (int i = 0; i < VECTORS; ++i) {
                beyond[i] = _mm256_cmp_ps(y[i], t[i], _CMP_GT_OQ);
                plane |= static_cast<uint32_t>(_mm256_movemask_ps(beyond[i])) << (LANES * i);
                const __m256i bit = _mm256_castps_si256(beyond[i]);
                known[i] = depth == 0 ? _mm256_sub_epi32(_mm256_setzero_si256(), bit)
                                      : _mm256_sub_epi32(_mm256_add_epi32(known[i], known[i]), bit);
            }
            store_word(plane, planes + (bits - 1 - depth) * PLANE_BYTES);
        }
    }

  private:
    // The depth at which a table takes two vectors; beyond it thresholds are computed.
    static constexpr int TABLED = 4;

    // The thresholds at some depth, of words of which the bits before are known; `beyond` is the last of them.
    __m256 base_of(int depth, __m256i known, __m256 beyond) const {
        if (depth == 0) return tables_[0];
        if (depth == 1) return _mm256_blendv_ps(tables_[1], upper_, beyond);
        if (depth > TABLED) return thresholds_.bases(middle(known, depth));
        // a permutation looks at the lowest three bits of a lane only
        const __m256 base = _mm256_permutevar8x32_ps(tables_[depth], known);
        if (depth < TABLED) return base;
        const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(known, 28));
        return _mm256_blendv_ps(base, _mm256_permutevar8x32_ps(upper_half_, known), upper);
    }

    // The word in the middle of those that begin with the bits that are known.
    static __m256i middle(__m256i known, int depth) {
        const __m256i next = _mm256_add_epi32(_mm256_add_epi32(known, known), _mm256_set1_epi32(1));
        return _mm256_slli_epi32(next, bits - 1 - depth);
    }

    VectorThresholds<sided> thresholds_;
    __m256 tables_[bits < TABLED + 1 ? bits : TABLED + 1];
    __m256 upper_ = _mm256_setzero_ps(), upper_half_ = _mm256_setzero_ps();
};

template <Side side> __m256 above_of(__m256 x, const uint8_t *given, int vector) {
    if constexpr (side == Side::SIGN) return _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_NLE_UQ);
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i eight = _mm256_set1_epi32(given[vector]);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(eight, bit), bit));
}

template <int bits, Side side, bool noisy>
void quantize(const Thresholds &thresholds, GroupKey key, float factor, const float *values, const Ahead &ahead,
              const uint8_t *given, uint8_t *planes) {
    constexpr bool sided = side != Side::NONE;
    const Search<bits, sided> search{VectorThresholds<sided>(thresholds)};
    const __m256 of_reach = _mm256_set1_ps(factor), infinity = _mm256_set1_ps(std::numeric_limits<float>::infinity());
    const __m256 above = _mm256_set1_ps(-2 * thresholds.above), below = _mm256_set1_ps(2 * thresholds.below);
    const __m256 least = _mm256_set1_ps(LEAST_BENT), nothing = _mm256_setzero_ps();
    __m256i hashes[noisy ? GROUP / (2 * LANES) : 1];
    if constexpr (noisy) draw(key, hashes);
    for (int block = 0; block < BLOCKS; ++block) {
        for (int line = 0; line < BLOCK; line += FLOATS_OF_LINE) {
            __builtin_prefetch(ahead.read + FLOATS_AHEAD_OF_READING + block * BLOCK + line);
            if (ahead.write) __builtin_prefetch(ahead.write + FLOATS_AHEAD_OF_WRITING + block * BLOCK + line, 1);
        }
        __m256 y[VECTORS], dither[VECTORS];
        for (int i = 0; i < VECTORS; ++i) {
            const __m256 x = _mm256_loadu_ps(values + block * BLOCK + i * LANES);
            __m256i noise = _mm256_set1_epi32(1 << 15);
            if constexpr (noisy) {
                const __m256i hash = hashes[2 * block + i / 2];
                noise = i % 2 == 0 ? low_noise(hash) : high_noise(hash);
            }
            y[i] = _mm256_mul_ps(x, of_reach);
            __m256 step = above;
            if constexpr (side != Side::NONE) {
                const __m256 positive = above_of<side>(x, given, VECTORS * block + i);
                step = _mm256_blendv_ps(below, above, positive);
                y[i] = _mm256_max_ps(y[i], _mm256_blendv_ps(_mm256_sub_ps(nothing, infinity), least, positive));
                if constexpr (side == Side::GIVEN) y[i] = _mm256_min_ps(y[i], _mm256_and_ps(infinity, positive));
            }
            dither[i] = _mm256_mul_ps(_mm256_cvtepi32_ps(noise), step);
        }
        search.find(y, dither, planes + 4 * block);
    }
}

constexpr CubicQuantizers loops = cubic_quantizers(
    []<int bits, Side side, bool noisy>() -> QuantizeCubic { return quantize<bits, side, noisy>; });

} // namespace

void encode_cubic_within(const Words &words, GroupKey key, const Extremes &extremes, float unit, const float *values,
                         const Ahead &ahead, const uint8_t *side, uint8_t *scales, uint8_t *planes) {
    const Words inner = straight(words);
    const float factor = 1.0f / reach_of(words, unit);
    const Scales group = cubic_scales(
        inner, {extremes.lowest * factor, extremes.highest * factor, extremes.finite && is_finite(unit)});
    write_scales(inner, group, scales);
    if (words.unit) write_scale(group.poisoned() ? group.first : unit, scales + 2 * inner.scales());
    if (group.poisoned()) {
        write_poison(inner, values, side, planes);
        return;
    }
    const Side decided_by = words.affine() ? Side::NONE : side ? Side::GIVEN : Side::SIGN;
    const int variant = variant_of(decided_by, words.rounding != ACTNN_NEAREST);
    const QuantizeCubic encode_full = (wide_vectors ? avx512_cubic_quantizers : loops).of[variant][words.bits - 1];
    encode_full(Thresholds(inner, group), key, factor, values, ahead, side, planes);
}

} // namespace actnn::avx2
