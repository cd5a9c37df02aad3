// What the AVX2 files share. Only files compiled for AVX2 may include this.
//
// A block is 32 elements, four vectors of 8: the four bytes that a block has in each plane. Short groups are widened to
// full ones on the stack, so the loops over a group run over 8 whole blocks.
#pragma once

#include <immintrin.h>

#include <cstring>
#include <limits>
#include <utility>

#include "group.h"
#include "scales.h"
#include "wide.h"

namespace actnn::avx2 {

constexpr int LANES = 8;
constexpr int BLOCK = 32;
constexpr int BLOCKS = GROUP / BLOCK;

// The hash of two vectors of elements at a time: low halves are the noise of the first, high halves of the second.
class Hashes {
  public:
    explicit Hashes(GroupKey key) : key_(_mm256_set1_epi32(static_cast<int>(key.b))) {
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256i stride = _mm256_set1_epi32(static_cast<int>(COUNTER_STRIDE));
        counter_ = _mm256_add_epi32(_mm256_mullo_epi32(lane, stride), _mm256_set1_epi32(static_cast<int>(key.a)));
    }

    __m256i next() {
        __m256i x = counter_;
        counter_ = _mm256_add_epi32(counter_, _mm256_set1_epi32(static_cast<int>(LANES * COUNTER_STRIDE)));
        x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
        x = _mm256_mullo_epi32(x, _mm256_set1_epi32(static_cast<int>(MIX_FIRST)));
        x = _mm256_xor_si256(x, key_);
        x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 15));
        x = _mm256_mullo_epi32(x, _mm256_set1_epi32(static_cast<int>(MIX_SECOND)));
        return _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
    }

  private:
    __m256i key_;
    __m256i counter_;
};

// The noise of the first and of the second vector of elements that share a hash.
static inline __m256i low_noise(__m256i hash) { return _mm256_and_si256(hash, _mm256_set1_epi32(0xffff)); }
static inline __m256i high_noise(__m256i hash) { return _mm256_srli_epi32(hash, 16); }

static inline uint32_t load_word(const uint8_t *bytes) {
    uint32_t word;
    std::memcpy(&word, bytes, sizeof word);
    return word;
}

constexpr std::make_integer_sequence<int, MOST_BITS> WIDTHS;

// The entries of GroupKernels that have a file of their own.
void encode(const Words &words, GroupKey key, const float *values, const uint8_t *side, int length, uint8_t *scales,
            uint8_t *planes);
void decode(const Words &words, GroupKey key, int part, const uint8_t *scales, const uint8_t *planes, int length,
            float *out);

// Encoding without a curve, and decoding without one or along a cubic.
void encode_straight(const Words &words, GroupKey key, const float *values, const uint8_t *side, int length,
                     uint8_t *scales, uint8_t *planes);
void decode_straight(const Words &words, GroupKey key, int part, const uint8_t *scales, const uint8_t *planes,
                     int length, float *out);

void mask_of_split(const Words &words, const uint8_t *planes, int length, uint8_t *mask);
float magnitudes(const float *values, int length);
void slopes(const Slopes &slopes, const float *values, const float *weights, int length, Sides &counted,
            Sides &weighted);

// Encode a full group whose extremes are known, which along a root would be of no use; `side` as in GroupKernels.
void encode_within(const Words &words, GroupKey key, const Extremes &extremes, const float *values, const Ahead &ahead,
                   const uint8_t *side, uint8_t *scales, uint8_t *planes);
// The same along a cubic, with the unit of the group.
void encode_cubic_within(const Words &words, GroupKey key, const Extremes &extremes, float unit, const float *values,
                         const Ahead &ahead, const uint8_t *side, uint8_t *scales, uint8_t *planes);

// The extremes of a full group: all of them, or of a code with sides lowest = min(0, values), highest = max(0, values).
Extremes affine_extremes(const float *values);
Extremes split_extremes(const float *values);

// The planes of a poisoned group.
void write_poison(const Words &words, const float *values, const uint8_t *side, uint8_t *planes);

template <class Combine> static inline __m256i fold_lanes(__m256i x, Combine combine) {
    x = combine(x, _mm256_permute2x128_si256(x, x, 1));
    x = combine(x, _mm256_shuffle_epi32(x, 0x4e));
    return combine(x, _mm256_shuffle_epi32(x, 0xb1));
}

static inline uint32_t first_lane(__m256i x) { return static_cast<uint32_t>(_mm256_cvtsi256_si32(x)); }

// Collects what the scales of a split code depend on. As integers the bits of floats are ordered by magnitude, NaN last:
// the signed maximum belongs to the largest positive value, the unsigned one to the negative value of largest magnitude.
class SplitExtremes {
  public:
    void add(__m256 x) {
        positive_ = signed_max(positive_, _mm256_castps_si256(x));
        negative_ = unsigned_max(negative_, _mm256_castps_si256(x));
    }

    void join(const SplitExtremes &other) {
        positive_ = signed_max(positive_, other.positive_);
        negative_ = unsigned_max(negative_, other.negative_);
    }

    Extremes extremes() const {
        const uint32_t highest = first_lane(fold_lanes(positive_, signed_max));
        const uint32_t below = first_lane(fold_lanes(negative_, unsigned_max));
        const uint32_t lowest = below >> 31 ? below : 0;
        return {std::bit_cast<float>(lowest), std::bit_cast<float>(highest),
                highest < INFINITY_BITS && (lowest & 0x7fffffff) < INFINITY_BITS};
    }

  private:
    static __m256i signed_max(__m256i a, __m256i b) { return _mm256_max_epi32(a, b); }
    static __m256i unsigned_max(__m256i a, __m256i b) { return _mm256_max_epu32(a, b); }

    __m256i positive_ = _mm256_setzero_si256();
    __m256i negative_ = _mm256_setzero_si256();
};

// The same for an affine code.
class AffineExtremes {
  public:
    void add(__m256 x) {
        lowest_ = _mm256_min_ps(lowest_, x);
        highest_ = _mm256_max_ps(highest_, x);
        unordered_ = _mm256_or_ps(unordered_, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    }

    void join(const AffineExtremes &other) {
        lowest_ = _mm256_min_ps(lowest_, other.lowest_);
        highest_ = _mm256_max_ps(highest_, other.highest_);
        unordered_ = _mm256_or_ps(unordered_, other.unordered_);
    }

    Extremes extremes() const {
        const float low = folded(lowest_, [](__m256 a, __m256 b) { return _mm256_min_ps(a, b); });
        const float high = folded(highest_, [](__m256 a, __m256 b) { return _mm256_max_ps(a, b); });
        return {low, high, is_finite(low) && is_finite(high) && _mm256_movemask_ps(unordered_) == 0};
    }

  private:
    template <class Combine> static float folded(__m256 x, Combine combine) {
        const auto of_bits = [&](__m256i a, __m256i b) {
            return _mm256_castps_si256(combine(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b)));
        };
        return std::bit_cast<float>(first_lane(fold_lanes(_mm256_castps_si256(x), of_bits)));
    }

    __m256 lowest_ = _mm256_set1_ps(std::numeric_limits<float>::infinity());
    __m256 highest_ = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
    __m256 unordered_ = _mm256_setzero_ps();
};

// Collects the range of vectors of elements, and their mask where one is asked for.
template <bool masked> class VectorRange {
  public:
    explicit VectorRange(uint8_t *mask) : mask_(mask) {}

    void add(int i, __m256 x) {
        const __m256 zero = _mm256_setzero_ps();
        const __m256 below = _mm256_cmp_ps(x, zero, _CMP_LE_OQ);
        lowest_ = _mm256_min_ps(lowest_, x);
        highest_ = _mm256_max_ps(highest_, x);
        nothing_ = _mm256_or_ps(nothing_, _mm256_mul_ps(x, zero));
        minus_below_ = _mm256_add_epi32(minus_below_, _mm256_castps_si256(below)); // a lane of all bits is -1
        if constexpr (masked) mask_[i / LANES] = static_cast<uint8_t>(~_mm256_movemask_ps(below));
    }

    // The range of what was added, which is `length` elements.
    Range range(int length) const {
        return {folded(lowest_, [](__m128 a, __m128 b) { return _mm_min_ps(a, b); }),
                folded(highest_, [](__m128 a, __m128 b) { return _mm_max_ps(a, b); }), length + total(minus_below_),
                _mm256_movemask_ps(_mm256_cmp_ps(nothing_, nothing_, _CMP_UNORD_Q)) == 0};
    }

    // The same together with elements that are in none of the vectors.
    Range range(int length, const Range &rest) const {
        const Range mine = range(length);
        return {rest.lowest < mine.lowest ? rest.lowest : mine.lowest,
                rest.highest > mine.highest ? rest.highest : mine.highest, mine.positive + rest.positive,
                mine.finite && rest.finite};
    }

  private:
    template <class Combine> static float folded(__m256 x, Combine combine) {
        __m128 half = combine(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        half = combine(half, _mm_movehl_ps(half, half));
        return _mm_cvtss_f32(combine(half, _mm_movehdup_ps(half)));
    }

    static int total(__m256i x) {
        __m128i half = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
        half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
        return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
    }

    uint8_t *mask_;
    __m256 lowest_ = _mm256_set1_ps(std::numeric_limits<float>::infinity());
    __m256 highest_ = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
    __m256 nothing_ = _mm256_setzero_ps(); // the bits of all 0 * x: those of a NaN if any x is not finite
    __m256i minus_below_ = _mm256_setzero_si256();
};

// The mask of a full group.
static inline void encode_mask_full(const float *values, uint8_t *mask) {
    for (int i = 0; i < PLANE_BYTES; ++i) {
        const __m256 x = _mm256_loadu_ps(values + i * LANES);
        mask[i] = static_cast<uint8_t>(~_mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LE_OQ)));
    }
}

} // namespace actnn::avx2
