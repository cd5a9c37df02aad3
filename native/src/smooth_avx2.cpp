// Smooth functions of decoded values with AVX2: bit for bit those of smooth_scalar.cpp.

#include "avx2.h"
#include "smooth.h"

namespace actnn {
namespace avx2 {
namespace {

// The functions of exponentials.h for vectors, with the same bits.
template <int COUNT> __m256 polynomial(__m256 x, const float (&coefficients)[COUNT]) {
    __m256 result = _mm256_set1_ps(coefficients[COUNT - 1]);
    for (int k = COUNT - 2; k >= 0; --k) {
        result = _mm256_fmadd_ps(result, x, _mm256_set1_ps(coefficients[k]));
    }
    return result;
}

__m256 logarithm(__m256 w) {
    const __m256i bits = _mm256_castps_si256(w);
    const __m256 exponent = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(bits, 23), _mm256_set1_epi32(127)));
    const __m256 mantissa = _mm256_or_ps(_mm256_and_ps(w, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffff))),
                                         _mm256_set1_ps(1.0f));
    // a permutation looks at the lowest three bits of a lane only
    const __m256i eighth = _mm256_srli_epi32(bits, 20);
    const __m256 factor = _mm256_permutevar8x32_ps(_mm256_loadu_ps(PER_CENTRE), eighth);
    const __m256 centre = _mm256_permutevar8x32_ps(_mm256_loadu_ps(LOG_OF_CENTRE), eighth);
    const __m256 f = _mm256_fmadd_ps(mantissa, factor, _mm256_set1_ps(-1.0f));
    const __m256 rest = _mm256_fmadd_ps(_mm256_mul_ps(f, f), polynomial(f, LOG), f);
    return _mm256_add_ps(_mm256_fmadd_ps(exponent, _mm256_set1_ps(LN2), centre), rest);
}

__m256 exponential(__m256 u) {
    const __m256 magic = _mm256_set1_ps(MAGIC);
    const __m256 shifted = _mm256_fmadd_ps(u, _mm256_set1_ps(PER_LN2), magic);
    const __m256 r = _mm256_fmadd_ps(_mm256_sub_ps(magic, shifted), _mm256_set1_ps(LN2), u);
    const __m256i bits = _mm256_castps_si256(polynomial(r, EXP));
    return _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_slli_epi32(_mm256_castps_si256(shifted), 23)));
}

// What smooth.h computes with.
struct Vector {
    __m256 value;

    explicit Vector(__m256 x) : value(x) {}
    explicit Vector(float x) : value(_mm256_set1_ps(x)) {}
    Vector operator+(Vector other) const { return Vector(_mm256_add_ps(value, other.value)); }
    Vector operator-(Vector other) const { return Vector(_mm256_sub_ps(value, other.value)); }
    Vector operator*(Vector other) const { return Vector(_mm256_mul_ps(value, other.value)); }
    Vector operator/(Vector other) const { return Vector(_mm256_div_ps(value, other.value)); }
};

struct Chosen {
    __m256 lanes;
};

Vector least(Vector a, Vector b) { return Vector(_mm256_min_ps(a.value, b.value)); }
Vector greatest(Vector a, Vector b) { return Vector(_mm256_max_ps(a.value, b.value)); }
Chosen less(Vector a, Vector b) { return {_mm256_cmp_ps(a.value, b.value, _CMP_LT_OQ)}; }
Chosen ordered(Vector a) { return {_mm256_cmp_ps(a.value, a.value, _CMP_ORD_Q)}; }
Vector select(Chosen chosen, Vector a, Vector b) { return Vector(_mm256_blendv_ps(b.value, a.value, chosen.lanes)); }
Vector fused(Vector a, Vector b, Vector c) { return Vector(_mm256_fmadd_ps(a.value, b.value, c.value)); }
Vector exponential(Vector x) { return Vector(exponential(x.value)); }
Vector log_from_one(Vector x) { return Vector(logarithm(x.value)); }

} // namespace
} // namespace avx2

void avx2_smooth(int function, const SmoothGroup &group, const float *u, const float *gamma, const float *beta,
                 const float *corrections, const float *grad, int length, float *out) {
    using avx2::LANES;
    using avx2::Vector;
    const int whole = length / LANES * LANES;
    visit_smooth(function, group.derivative, gamma, [&]<class Function, bool DERIVATIVE, bool AFFINE>() {
        for (int i = 0; i < whole; i += LANES) {
            const auto load = [&](const float *values) { return Vector(_mm256_loadu_ps(values + i)); };
            Vector result = smoothed<Function, DERIVATIVE, AFFINE>(
                group, load(u), AFFINE ? load(gamma) : Vector(1), AFFINE ? load(beta) : Vector(0), load(corrections));
            if (grad) result = load(grad) * result;
            _mm256_storeu_ps(out + i, result.value);
        }
    });
    if (whole == length) return;
    scalar_smooth(function, group, u + whole, gamma ? gamma + whole : nullptr, gamma ? beta + whole : nullptr,
                  corrections + whole, grad ? grad + whole : nullptr, length - whole, out + whole);
}

} // namespace actnn
