// The row kernels for AVX2: bit for bit what rows_scalar.cpp makes.

#include "avx2.h"
#include "rows.h"

namespace actnn {
namespace avx2 {
namespace {

constexpr int VECTORS = ROW_LANES / LANES;

__m256i lanes_below(int count) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane);
}

// A vector of elements that are all there.
struct Whole {
    __m256 load(const float *place) const { return _mm256_loadu_ps(place); }
    void store(float *place, __m256 x) const { _mm256_storeu_ps(place, x); }
    __m256 only(__m256 x) const { return x; }
    __m256 repeated(__m256 x) const { return x; }
};

// One of which some are there: the others read as zero.
struct Rest {
    __m256i within;

    __m256 load(const float *place) const { return _mm256_maskload_ps(place, within); }
    void store(float *place, __m256 x) const { _mm256_maskstore_ps(place, within, x); }
    __m256 only(__m256 x) const { return _mm256_and_ps(x, _mm256_castsi256_ps(within)); }
    // the first in place of those that are not there
    __m256 repeated(__m256 x) const {
        const __m256 first = _mm256_broadcastss_ps(_mm256_castps256_ps128(x));
        return _mm256_blendv_ps(first, x, _mm256_castsi256_ps(within));
    }
};

// Call body(vector, i, elements) for vectors of elements, which belong to the vectors of lanes in turn.
template <class Body> inline void visit_lanes(int length, Body body) {
    int i = 0;
    for (; i + ROW_LANES <= length; i += ROW_LANES) {
#pragma GCC unroll 4
        for (int k = 0; k < VECTORS; ++k) body(k, i + k * LANES, Whole{});
    }
#pragma GCC unroll 4
    for (int k = 0; k < VECTORS; ++k) {
        const int left = length - i - k * LANES;
        if (left >= LANES) {
            body(k, i + k * LANES, Whole{});
        } else if (left > 0) {
            body(k, i + k * LANES, Rest{lanes_below(left)});
        }
    }
}

// The sums of lanes, in registers.
struct Lanes {
    __m256 sums[VECTORS] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};

    void add(int vector, __m256 x) { sums[vector] = _mm256_add_ps(sums[vector], x); }

    float folded() const {
        const __m256 x = _mm256_add_ps(_mm256_add_ps(sums[0], sums[2]), _mm256_add_ps(sums[1], sums[3]));
        __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        half = _mm_add_ps(half, _mm_movehl_ps(half, half));
        return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
    }
};

float sum(const float *x, int length) {
    Lanes lanes;
    visit_lanes(length, [&](int vector, int i, auto elements) { lanes.add(vector, elements.load(x + i)); });
    return lanes.folded();
}

float squares(const float *x, float mean, int length) {
    const __m256 middle = _mm256_set1_ps(mean);
    Lanes lanes;
    visit_lanes(length, [&](int vector, int i, auto elements) {
        const __m256 centred = elements.only(_mm256_sub_ps(elements.load(x + i), middle));
        lanes.add(vector, _mm256_mul_ps(centred, centred));
    });
    return lanes.folded();
}

Extremes normalize(const float *x, float mean, float inverse, const float *gamma, const float *beta, int length,
                   float *v, float *y) {
    const __m256 middle = _mm256_set1_ps(mean), factor = _mm256_set1_ps(inverse);
    AffineExtremes extremes;
    visit_lanes(length, [&](int, int i, auto elements) {
        const __m256 value = _mm256_mul_ps(_mm256_sub_ps(elements.load(x + i), middle), factor);
        const __m256 scaled = _mm256_mul_ps(value, elements.load(gamma + i));
        extremes.add(elements.repeated(value));
        elements.store(v + i, value);
        elements.store(y + i, _mm256_add_ps(scaled, elements.load(beta + i)));
    });
    return extremes.extremes();
}

void encode_group(const Words &words, GroupKey key, const Extremes &extremes, const float *v, const float *x,
                  const float *y, int length, uint8_t *scales, uint8_t *planes) {
    if (length == GROUP && words.curve != ACTNN_ROOT) {
        encode_within(words, key, extremes, v, {x, y}, nullptr, scales, planes);
    } else {
        encode(words, key, v, nullptr, length, scales, planes);
    }
}

RowSums weigh(const float *grad, const float *gamma, const float *v, int length, float *weighed) {
    Lanes sums, products;
    visit_lanes(length, [&](int vector, int i, auto elements) {
        const __m256 x = _mm256_mul_ps(elements.load(grad + i), elements.load(gamma + i));
        sums.add(vector, x);
        products.add(vector, _mm256_mul_ps(x, elements.load(v + i)));
        elements.store(weighed + i, x);
    });
    return {sums.folded(), products.folded()};
}

void unbend(const Unbending &unbending, const NoiseVariance &variance, int length, float *v, float *noise) {
    const __m256 mean = _mm256_set1_ps(unbending.above), reach = _mm256_set1_ps(unbending.reach);
    const __m256 quartic = _mm256_set1_ps(variance.quartic), quadratic = _mm256_set1_ps(variance.quadratic);
    const __m256 constant = _mm256_set1_ps(variance.constant);
    visit_lanes(length, [&](int, int i, auto elements) {
        const __m256 u = elements.load(v + i), square = _mm256_mul_ps(u, u);
        const __m256 slope = _mm256_add_ps(_mm256_mul_ps(quartic, square), quadratic);
        elements.store(noise + i, _mm256_add_ps(_mm256_mul_ps(slope, square), constant));
        elements.store(v + i, _mm256_mul_ps(_mm256_mul_ps(u, _mm256_add_ps(square, mean)), reach));
    });
}

void gradient(const float *weighed, const float *v, const float *noise, const RowGradient &row, int length,
              float *out) {
    const __m256 inverse = _mm256_set1_ps(row.inverse), of_value = _mm256_set1_ps(row.of_value);
    const __m256 constant = _mm256_set1_ps(row.constant), one = _mm256_set1_ps(1);
    visit_lanes(length, [&](int vector, int i, auto elements) {
        if (vector * LANES % FLOATS_OF_LINE == 0) __builtin_prefetch(out + FLOATS_AHEAD_OF_WRITING + i, 1);
        const __m256 share = _mm256_add_ps(one, elements.load(noise + i));
        const __m256 own = _mm256_mul_ps(elements.load(weighed + i), share);
        const __m256 others = _mm256_add_ps(_mm256_mul_ps(elements.load(v + i), of_value), constant);
        elements.store(out + i, _mm256_mul_ps(_mm256_sub_ps(own, others), inverse));
    });
}

} // namespace
} // namespace avx2

const RowKernels avx2_rows = {avx2::sum,   avx2::squares, avx2::normalize, avx2::encode_group,
                              avx2::weigh, avx2::unbend,  avx2::gradient};

} // namespace actnn
