// Smooth functions and their derivatives, written once for numbers and for vectors of them.
//
// V is what an instruction set computes with: it has +, -, * and /, V(float), and the functions below that are declared
// for it, among them fused(a, b, c), which is a b + c rounded once. All are operations of float32 that every instruction
// set has, so that all have the same bits.
#pragma once

#include <initializer_list>

#include "curves.h"
#include "exponentials.h"

namespace actnn {

// What decode_function makes of what is coded in a group.
struct SmoothGroup {
    int derivative;
    int curve;
    float reach; // along a cubic
};

// The value x of what is coded as u, the square of its derivative by u, and its second derivative.
template <class V> struct AlongCurve {
    V x, slope, bend;
};

template <class V> static inline AlongCurve<V> along_curve(const SmoothGroup &group, V u) {
    if (group.curve == ACTNN_LINEAR) return {u, V(1), V(0)};
    const V square = u * u;
    if (group.curve == ACTNN_ROOT) return {square, V(4) * square, V(2)};
    const V reach(group.reach), slope = fused(square, V(3), V(1)) * reach;
    return {fused(u, square, u) * reach, slope * slope, (u * V(6)) * reach};
}

// u is what is coded of values x, corrections are s^2 / 24; of x comes y = gamma x + beta, where gamma is NULL y = x. grad is NULL or a factor.
using SmoothKernel = void (*)(int function, const SmoothGroup &group, const float *u, const float *gamma,
                              const float *beta, const float *corrections, const float *grad, int length, float *out);

void scalar_smooth(int function, const SmoothGroup &group, const float *u, const float *gamma, const float *beta,
                   const float *corrections, const float *grad, int length, float *out);
void avx2_smooth(int function, const SmoothGroup &group, const float *u, const float *gamma, const float *beta,
                 const float *corrections, const float *grad, int length, float *out);

void avx512_smooth(int function, const SmoothGroup &group, const float *u, const float *gamma, const float *beta,
                   const float *corrections, const float *grad, int length, float *out);

// Squared slopes and corrections beyond these would make an infinity of what is then multiplied by 0.
constexpr float MOST_SMOOTH_SLOPE = 0x1p118f;
constexpr float MOST_CORRECTION = 0x1p100f;

// A function and its first three derivatives.
template <class V> struct Derivatives {
    V value, first, second, third;
};

template <class V> static inline V bounded(V x, float most) { return least(greatest(x, V(-most)), V(most)); }

// Of the logistic function.
template <class V> static inline Derivatives<V> logistic(V x) {
    const V s = V(1) / (V(1) + exponential(V(0) - bounded(x, 80)));
    const V first = s * (V(1) - s);
    return {s, first, first * fused(V(-2), s, V(1)), first * fused(V(-6), first, V(1))};
}

// Of y s, where s(y) is given.
template <class V> static inline Derivatives<V> times_self(V y, const Derivatives<V> &s) {
    return {y * s.value, fused(y, s.first, s.value), fused(y, s.second, V(2) * s.first),
            fused(y, s.third, V(3) * s.second)};
}

struct Gelu {
    template <class V> static Derivatives<V> of(V y) {
        // Abramowitz and Stegun, 7.1.26
        const V bound = bounded(y, 13);
        const V magnitude = greatest(bound, V(0) - bound);
        const V density = exponential(V(-0.5f) * (bound * bound));
        const V t = V(1) / fused(V(0.23164189f), magnitude, V(1));
        V tail = fused(V(0.5307027f), t, V(-0.7265760f));
        for (const float coefficient : {0.7107069f, -0.14224837f, 0.12741480f}) tail = fused(tail, t, V(coefficient));
        tail = tail * t * density;
        const V phi = select(less(y, V(0)), tail, V(1) - tail);
        const V p = V(0.39894228f) * density;
        return {y * phi, fused(y, p, phi), p * fused(V(0) - bound, bound, V(2)),
                p * (bound * fused(bound, bound, V(-4)))};
    }
};

struct GeluTanh {
    template <class V> static Derivatives<V> of(V y) {
        constexpr float TWICE = 1.5957691216f, CUBE = 0.044715f;
        const V x = bounded(y, 16), square = x * x;
        const auto s = logistic(V(TWICE) * (x + V(CUBE) * (square * x)));
        const V p1 = V(TWICE) + V(3 * TWICE * CUBE) * square;
        const V p2 = V(6 * TWICE * CUBE) * x, p3 = V(6 * TWICE * CUBE);
        const V second = s.second * (p1 * p1) + s.first * p2;
        const V third = s.third * (p1 * p1 * p1) + V(3) * (s.second * (p1 * p2)) + s.first * p3;
        return times_self(y, Derivatives<V>{s.value, s.first * p1, second, third});
    }
};

struct Silu {
    template <class V> static Derivatives<V> of(V y) { return times_self(y, logistic(y)); }
};

struct QuickGelu {
    template <class V> static Derivatives<V> of(V y) {
        constexpr float K = 1.702f;
        const auto s = logistic(V(K) * y);
        return times_self(y, Derivatives<V>{s.value, V(K) * s.first, V(K * K) * s.second, V(K * K * K) * s.third});
    }
};

struct Sigmoid {
    template <class V> static Derivatives<V> of(V y) { return logistic(y); }
};

struct Tanh {
    template <class V> static Derivatives<V> of(V y) {
        const auto s = logistic(V(2) * y);
        return {V(2) * s.value - V(1), V(4) * s.first, V(8) * s.second, V(16) * s.third};
    }
};

struct Hardswish {
    template <class V> static Derivatives<V> of(V y) {
        const auto low = less(y, V(-3)), high = less(V(3), y);
        const V inside = V(1.0f / 6) * (y * (y + V(3)));
        return {select(low, V(0), select(high, y, inside)),
                select(low, V(0), select(high, V(1), V(1.0f / 3) * y + V(0.5f))),
                select(low, V(0), select(high, V(0), V(1.0f / 3))), V(0)};
    }
};

struct Hardsigmoid {
    template <class V> static Derivatives<V> of(V y) {
        const auto low = less(y, V(-3)), high = less(V(3), y);
        return {select(low, V(0), select(high, V(1), V(1.0f / 6) * y + V(0.5f))),
                select(low, V(0), select(high, V(0), V(1.0f / 6))), V(0), V(0)};
    }
};

struct Softplus {
    template <class V> static Derivatives<V> of(V y) {
        const auto beyond = less(V(20), y);
        const auto s = logistic(y);
        const V bound = bounded(y, 80);
        const V tail = log_from_one(V(1) + exponential(V(0) - greatest(bound, V(0) - bound)));
        return {select(beyond, y, greatest(y, V(0)) + tail), select(beyond, V(1), s.value),
                select(beyond, V(0), s.first), select(beyond, V(0), s.second)};
    }
};

struct Mish {
    template <class V> static Derivatives<V> of(V y) {
        const V e = exponential(least(greatest(y, V(-80)), V(20)));
        const V n = e * (e + V(2));
        const V rest = V(2) / (n + V(2));
        const V t = n * (V(0.5f) * rest);
        const V q = rest * (V(2) - rest); // tanh' of softplus: 1 - t t would lose all of it where t is near 1
        const auto s = logistic(y);
        const V first = q * s.value;
        const V second = q * s.first - V(2) * (t * (first * s.value));
        const V inner = first * first * s.value + t * (second * s.value) + V(2) * (t * (first * s.first));
        return times_self(y, Derivatives<V>{t, first, second, q * s.second - V(2) * inner});
    }
};

struct Elu {
    template <class V> static Derivatives<V> of(V y) {
        const auto above = less(V(0), y);
        const V e = exponential(least(greatest(y, V(-80)), V(0)));
        return {select(above, y, e - V(1)), select(above, V(1), e), select(above, V(0), e), select(above, V(0), e)};
    }
};

// One of V's elements of what decode_function returns; without AFFINE gamma is 1, and beta 0.
template <class Function, bool DERIVATIVE, bool AFFINE, class V>
[[gnu::always_inline]] static inline V smoothed(const SmoothGroup &group, V u, V gamma, V beta, V correction) {
    const auto [x, slope, bend] = along_curve(group, u);
    // adding 0 takes the sign from a negative zero, as beta does
    const V y = AFFINE ? fused(x, gamma, beta) : x + beta;
    const Derivatives<V> f = Function::of(y);
    const V value = DERIVATIVE ? f.first : f.value;
    const V first = DERIVATIVE ? f.second : f.first;
    const V second = DERIVATIVE ? f.third : f.second;
    const V bound = least(slope, V(MOST_SMOOTH_SLOPE));
    const V by_value = AFFINE ? gamma * fused(second, gamma * bound, first * bend) : fused(second, bound, first * bend);
    const V result = fused(V(0) - correction, by_value, value);
    // bounds make a number of a NaN
    return select(ordered(y), result, y);
}

// Call choose.operator()<Function, DERIVATIVE, AFFINE>() for the function of an actnn_smooth.
template <class Choose> static void visit_smooth(int function, bool derivative, bool affine, Choose choose) {
    const auto visit = [&]<class Function>(Function) {
        if (affine) {
            derivative ? choose.template operator()<Function, true, true>()
                       : choose.template operator()<Function, false, true>();
        } else {
            derivative ? choose.template operator()<Function, true, false>()
                       : choose.template operator()<Function, false, false>();
        }
    };
    switch (function) {
    case ACTNN_GELU: return visit(Gelu{});
    case ACTNN_GELU_TANH: return visit(GeluTanh{});
    case ACTNN_SILU: return visit(Silu{});
    case ACTNN_SIGMOID: return visit(Sigmoid{});
    case ACTNN_TANH: return visit(Tanh{});
    case ACTNN_HARDSWISH: return visit(Hardswish{});
    case ACTNN_HARDSIGMOID: return visit(Hardsigmoid{});
    case ACTNN_SOFTPLUS: return visit(Softplus{});
    case ACTNN_MISH: return visit(Mish{});
    case ACTNN_ELU: return visit(Elu{});
    case ACTNN_QUICK_GELU: return visit(QuickGelu{});
    }
}

} // namespace actnn
