// What the AVX2 files share. Only files compiled for AVX2 may include this.
//
// A block is 32 elements, four vectors of 8: the four bytes that a block has in each plane. Short groups are widened to
// full ones on the stack, so the loops over a group run over 8 whole blocks.
#pragma once

#include <immintrin.h>

#include <cstring>
#include <utility>

#include "group.h"

namespace actnn::avx2 {

// Kernels that work on values in the cache let memory bring, or make ready to be written, what comes this many floats
// later: between the passes over a group nothing else would ask for it. Distances by measurement.
constexpr int FLOATS_AHEAD_OF_READING = 1024;
constexpr int FLOATS_AHEAD_OF_WRITING = 512;
constexpr int FLOATS_OF_LINE = 16;

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

// The mask of a full group.
static inline void encode_mask_full(const float *values, uint8_t *mask) {
    for (int i = 0; i < PLANE_BYTES; ++i) {
        const __m256 x = _mm256_loadu_ps(values + i * LANES);
        mask[i] = static_cast<uint8_t>(~_mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LE_OQ)));
    }
}

} // namespace actnn::avx2
