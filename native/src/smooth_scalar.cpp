// Smooth functions of decoded values in plain C++.

#include "smooth.h"

namespace actnn {
namespace {

// What smooth.h computes with.
struct Number {
    float value;

    explicit Number(float x) : value(x) {}
    Number operator+(Number other) const { return Number(value + other.value); }
    Number operator-(Number other) const { return Number(value - other.value); }
    Number operator*(Number other) const { return Number(value * other.value); }
    Number operator/(Number other) const { return Number(value / other.value); }
};

// As the instructions of vectors have it: the second where one is NaN.
Number least(Number a, Number b) { return a.value < b.value ? a : b; }
Number greatest(Number a, Number b) { return a.value > b.value ? a : b; }
bool less(Number a, Number b) { return a.value < b.value; }
bool ordered(Number a) { return a.value == a.value; }
Number select(bool chosen, Number a, Number b) { return chosen ? a : b; }
Number fused(Number a, Number b, Number c) { return Number(actnn::fused(a.value, b.value, c.value)); }
Number exponential(Number x) { return Number(actnn::exponential(x.value)); }
Number log_from_one(Number x) { return Number(logarithm(x.value)); }

} // namespace

void scalar_smooth(int function, const SmoothGroup &group, const float *u, const float *gamma, const float *beta,
                   const float *corrections, const float *grad, int length, float *out) {
    visit_smooth(function, group.derivative, gamma, [&]<class Function, bool DERIVATIVE, bool AFFINE>() {
        for (int i = 0; i < length; ++i) {
            const Number scale(AFFINE ? gamma[i] : 1.0f), shift(AFFINE ? beta[i] : 0.0f);
            const Number correction(corrections[i]);
            const float result =
                smoothed<Function, DERIVATIVE, AFFINE>(group, Number(u[i]), scale, shift, correction).value;
            out[i] = grad ? grad[i] * result : result;
        }
    });
}

} // namespace actnn
