// Smooth functions of decoded values with AVX2: bit for bit those of smooth_scalar.cpp.

#include "curves_avx2.h"
#include "smooth.h"

namespace actnn {
namespace avx2 {
namespace {

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
Vector exponential(Vector x) { return Vector(_mm256_mul_ps(_mm256_set1_ps(2.0f), half_exponential(x.value))); }
Vector log_from_one(Vector x) { return Vector(logarithm(x.value)); }

} // namespace
} // namespace avx2

void avx2_smooth(int function, const SmoothGroup &group, const float *x, const float *gamma, const float *beta,
                 const float *corrections, const float *grad, int length, float *out) {
    using avx2::LANES;
    using avx2::Vector;
    const int whole = length / LANES * LANES;
    visit_smooth(function, group.derivative, gamma, [&]<class Function, bool DERIVATIVE, bool AFFINE>() {
        for (int i = 0; i < whole; i += LANES) {
            const auto load = [&](const float *values) { return Vector(_mm256_loadu_ps(values + i)); };
            Vector result = smoothed<Function, DERIVATIVE, AFFINE>(
                group, load(x), AFFINE ? load(gamma) : Vector(1), AFFINE ? load(beta) : Vector(0), load(corrections));
            if (grad) result = load(grad) * result;
            _mm256_storeu_ps(out + i, result.value);
        }
    });
    if (whole == length) return;
    scalar_smooth(function, group, x + whole, gamma ? gamma + whole : nullptr, gamma ? beta + whole : nullptr,
                  corrections + whole, grad ? grad + whole : nullptr, length - whole, out + whole);
}

} // namespace actnn
