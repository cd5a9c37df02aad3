// Smooth functions of decoded values with AVX-512: bit for bit those of smooth_scalar.cpp.
//
// Their operations wait for each other: twice as many elements an instruction take hardly longer.

#include <immintrin.h>

#include "smooth.h"

namespace actnn {
namespace avx512 {
namespace {

constexpr int LANES = 16;

// The functions of exponentials.h for vectors, with the same bits.
template <int COUNT> __m512 polynomial(__m512 x, const float (&coefficients)[COUNT]) {
    __m512 result = _mm512_set1_ps(coefficients[COUNT - 1]);
    for (int k = COUNT - 2; k >= 0; --k) {
        result = _mm512_fmadd_ps(result, x, _mm512_set1_ps(coefficients[k]));
    }
    return result;
}

// Eight numbers, twice: a permutation looks at the lowest four bits of a lane.
__m512 table(const float (&numbers)[8]) { return _mm512_broadcast_f32x8(_mm256_loadu_ps(numbers)); }

__m512 logarithm(__m512 w) {
    const __m512i bits = _mm512_castps_si512(w);
    const __m512 exponent = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_srli_epi32(bits, 23), _mm512_set1_epi32(127)));
    const __m512 mantissa = _mm512_castsi512_ps(
        _mm512_or_si512(_mm512_and_si512(bits, _mm512_set1_epi32(0x7fffff)), _mm512_set1_epi32(0x3f800000)));
    const __m512i eighth = _mm512_srli_epi32(bits, 20);
    const __m512 factor = _mm512_permutexvar_ps(eighth, table(PER_CENTRE));
    const __m512 centre = _mm512_permutexvar_ps(eighth, table(LOG_OF_CENTRE));
    const __m512 f = _mm512_fmadd_ps(mantissa, factor, _mm512_set1_ps(-1.0f));
    const __m512 rest = _mm512_fmadd_ps(_mm512_mul_ps(f, f), polynomial(f, LOG), f);
    return _mm512_add_ps(_mm512_fmadd_ps(exponent, _mm512_set1_ps(LN2), centre), rest);
}

__m512 exponential(__m512 u) {
    const __m512 magic = _mm512_set1_ps(MAGIC);
    const __m512 shifted = _mm512_fmadd_ps(u, _mm512_set1_ps(PER_LN2), magic);
    const __m512 r = _mm512_fmadd_ps(_mm512_sub_ps(magic, shifted), _mm512_set1_ps(LN2), u);
    const __m512i bits = _mm512_castps_si512(polynomial(r, EXP));
    return _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_slli_epi32(_mm512_castps_si512(shifted), 23)));
}

// What smooth.h computes with.
struct Vector {
    __m512 value;

    explicit Vector(__m512 x) : value(x) {}
    explicit Vector(float x) : value(_mm512_set1_ps(x)) {}
    Vector operator+(Vector other) const { return Vector(_mm512_add_ps(value, other.value)); }
    Vector operator-(Vector other) const { return Vector(_mm512_sub_ps(value, other.value)); }
    Vector operator*(Vector other) const { return Vector(_mm512_mul_ps(value, other.value)); }
    Vector operator/(Vector other) const { return Vector(_mm512_div_ps(value, other.value)); }
};

struct Chosen {
    __mmask16 lanes;
};

Vector least(Vector a, Vector b) { return Vector(_mm512_min_ps(a.value, b.value)); }
Vector greatest(Vector a, Vector b) { return Vector(_mm512_max_ps(a.value, b.value)); }
Chosen less(Vector a, Vector b) { return {_mm512_cmp_ps_mask(a.value, b.value, _CMP_LT_OQ)}; }
Chosen ordered(Vector a) { return {_mm512_cmp_ps_mask(a.value, a.value, _CMP_ORD_Q)}; }
Vector select(Chosen chosen, Vector a, Vector b) { return Vector(_mm512_mask_blend_ps(chosen.lanes, b.value, a.value)); }
Vector fused(Vector a, Vector b, Vector c) { return Vector(_mm512_fmadd_ps(a.value, b.value, c.value)); }
Vector exponential(Vector x) { return Vector(exponential(x.value)); }
Vector log_from_one(Vector x) { return Vector(logarithm(x.value)); }

} // namespace
} // namespace avx512

void avx512_smooth(int function, const SmoothGroup &group, const float *u, const float *gamma, const float *beta,
                   const float *corrections, const float *grad, int length, float *out) {
    using avx512::LANES;
    using avx512::Vector;
    visit_smooth(function, group.derivative, gamma, [&]<class Function, bool DERIVATIVE, bool AFFINE>() {
        for (int i = 0; i < length; i += LANES) {
            const int left = length - i;
            const auto inside = static_cast<__mmask16>(left < LANES ? (1 << left) - 1 : 0xffff);
            const auto load = [&](const float *values) { return Vector(_mm512_maskz_loadu_ps(inside, values + i)); };
            Vector result = smoothed<Function, DERIVATIVE, AFFINE>(
                group, load(u), AFFINE ? load(gamma) : Vector(1), AFFINE ? load(beta) : Vector(0), load(corrections));
            if (grad) result = load(grad) * result;
            _mm512_mask_storeu_ps(out + i, inside, result.value);
        }
    });
}

} // namespace actnn
