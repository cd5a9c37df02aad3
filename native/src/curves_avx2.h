// The curves of curves.h for vectors, with the same bits. Only files compiled for AVX2 may include this.
#pragma once

#include "avx2.h"
#include "curves.h"

namespace actnn::avx2 {

static inline __m256 absolute(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
static inline __m256 sign_of(__m256 x) { return _mm256_and_ps(_mm256_set1_ps(-0.0f), x); }

template <int COUNT> static inline __m256 polynomial(__m256 x, const float (&coefficients)[COUNT]) {
    __m256 result = _mm256_set1_ps(coefficients[COUNT - 1]);
    for (int k = COUNT - 2; k >= 0; --k) {
        result = _mm256_add_ps(_mm256_mul_ps(result, x), _mm256_set1_ps(coefficients[k]));
    }
    return result;
}

static inline __m256 logarithm(__m256 w) {
    const __m256i bits = _mm256_castps_si256(w);
    const __m256 exponent = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(bits, 23), _mm256_set1_epi32(127)));
    const __m256 mantissa = _mm256_or_ps(_mm256_and_ps(w, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffff))),
                                         _mm256_set1_ps(1.0f));
    // a permutation looks at the lowest three bits of a lane only
    const __m256i eighth = _mm256_srli_epi32(bits, 20);
    const __m256 factor = _mm256_permutevar8x32_ps(_mm256_loadu_ps(PER_CENTRE), eighth);
    const __m256 centre = _mm256_permutevar8x32_ps(_mm256_loadu_ps(LOG_OF_CENTRE), eighth);
    const __m256 f = _mm256_sub_ps(_mm256_mul_ps(mantissa, factor), _mm256_set1_ps(1.0f));
    const __m256 rest = _mm256_add_ps(f, _mm256_mul_ps(_mm256_mul_ps(f, f), polynomial(f, LOG)));
    return _mm256_add_ps(_mm256_add_ps(_mm256_mul_ps(exponent, _mm256_set1_ps(LN2)), centre), rest);
}

static inline __m256 inverse_sinh(__m256 x) {
    const __m256 t = absolute(x);
    const __m256 root = _mm256_sqrt_ps(_mm256_add_ps(_mm256_mul_ps(t, t), _mm256_set1_ps(1.0f)));
    return _mm256_or_ps(logarithm(_mm256_add_ps(t, root)), sign_of(x));
}

// exp(u) / 2
static inline __m256 half_exponential(__m256 u) {
    const __m256 magic = _mm256_set1_ps(MAGIC);
    const __m256 shifted = _mm256_add_ps(_mm256_mul_ps(u, _mm256_set1_ps(PER_LN2)), magic);
    const __m256 r = _mm256_sub_ps(u, _mm256_mul_ps(_mm256_sub_ps(shifted, magic), _mm256_set1_ps(LN2)));
    const __m256i bits = _mm256_castps_si256(polynomial(r, HALF_EXP));
    return _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_slli_epi32(_mm256_castps_si256(shifted), 23)));
}

static inline __m256 hyperbolic_sine(__m256 u) {
    const __m256 half = half_exponential(u);
    return _mm256_sub_ps(half, _mm256_div_ps(_mm256_set1_ps(0.25f), half));
}

} // namespace actnn::avx2
