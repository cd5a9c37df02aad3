// The channel kernels for AVX2; what is left after the last whole vector goes to the scalar ones.

#include <algorithm>
#include <limits>

#include "avx2.h"
#include "channels.h"

namespace actnn {
namespace avx2 {
namespace {

int whole_vectors(int length) { return length / LANES * LANES; }

__m256i lanes_below(int64_t count) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lane);
}

// The parameters of a vector of elements.
template <int COUNT> struct Parameters {
    __m256 value[COUNT];

    static Parameters of_elements(const Spread<COUNT> &spread, int i) {
        Parameters result;
        for (int k = 0; k < COUNT; ++k) result.value[k] = _mm256_loadu_ps(spread.arrays[k] + i);
        return result;
    }

    static Parameters of_channel(const Spread<COUNT> &spread, int64_t channel) {
        Parameters result;
        for (int k = 0; k < COUNT; ++k) result.value[k] = _mm256_broadcast_ss(spread.arrays[k] + channel);
        return result;
    }

    // These in the first lanes, `others` in the rest.
    Parameters before(const Parameters &others, int64_t lanes) const {
        const __m256 mine = _mm256_castsi256_ps(lanes_below(lanes));
        Parameters result;
        for (int k = 0; k < COUNT; ++k) result.value[k] = _mm256_blendv_ps(others.value[k], value[k], mine);
        return result;
    }
};

// Call body(i, parameters) for every whole vector of elements.
template <int COUNT, class Body> void visit_vectors(const Spread<COUNT> &spread, int length, Body body) {
    const int whole = whole_vectors(length);
    if (spread.inner == 0) {
        // of a copy that nothing the body writes can change: its pointers stay in registers
        const Spread<COUNT> elements = spread;
        for (int i = 0; i < whole; i += LANES) body(i, Parameters<COUNT>::of_elements(elements, i));
        return;
    }
    int64_t channel = spread.channel, left = spread.left;
    auto current = Parameters<COUNT>::of_channel(spread, channel);
    for (int i = 0; i < whole;) {
        const int64_t within = whole - i < left ? whole - i : left;
        const int stop = i + static_cast<int>(within) / LANES * LANES;
        for (; i < stop; i += LANES) body(i, current);
        if (i >= whole) return;
        // a run is no shorter than a vector, so no vector sees three of them
        left = left % LANES;
        channel = channel + 1 == spread.channels ? 0 : channel + 1;
        const auto next = Parameters<COUNT>::of_channel(spread, channel);
        if (left > 0) {
            body(i, current.before(next, left));
            i += LANES;
            left = spread.inner - (LANES - left);
        } else {
            left = spread.inner;
        }
        current = next;
    }
}

// What a group looks like from element `start` on.
template <int COUNT> Spread<COUNT> rest_of(Spread<COUNT> spread, int start) {
    if (spread.inner == 0) {
        for (const float *&array : spread.arrays) array += start;
    } else if (start >= spread.left) {
        const int64_t runs = 1 + (start - spread.left) / spread.inner;
        spread.left += runs * spread.inner - start;
        spread.channel = (spread.channel + runs) % spread.channels;
    } else {
        spread.left -= start;
    }
    return spread;
}

// What a vector of elements is normalised and coded to.
struct Normalized {
    __m256 output, coded;

    Normalized(__m256 value, const Parameters<5> &parameters) {
        const auto &[slope, offset, mean, inverse, threshold] = parameters.value;
        output = _mm256_add_ps(_mm256_mul_ps(value, slope), offset);
        coded = _mm256_sub_ps(_mm256_mul_ps(_mm256_sub_ps(value, mean), inverse), threshold);
    }
};

// The whole vectors of y and of v; returns the extremes of v.
inline Extremes normalize_affine(const float *x, const Spread<5> &spread, int length, float *y, float *v) {
    AffineExtremes extremes;
    visit_vectors(spread, length, [&](int i, const Parameters<5> &parameters) {
        const Normalized normalized(_mm256_loadu_ps(x + i), parameters);
        extremes.add(normalized.coded);
        _mm256_storeu_ps(y + i, normalized.output);
        _mm256_storeu_ps(v + i, normalized.coded);
    });
    return extremes.extremes();
}

// A v that is 0 or not on the side of y becomes this on the side of y: too small for any scale, it is coded as level 0.
constexpr float LEAST_CODED = 0x1p-126f;

// The same where v has the side of y.
inline Extremes normalize_sided(const float *x, const Spread<5> &spread, int length, float *y, float *v) {
    const __m256 least = _mm256_set1_ps(LEAST_CODED);
    const __m256 sign_bit = _mm256_set1_ps(-0.0f);
    __m256i furthest = _mm256_setzero_si256(); // on the other side than y
    SplitExtremes extremes;
    visit_vectors(spread, length, [&](int i, const Parameters<5> &parameters) {
        const Normalized normalized(_mm256_loadu_ps(x + i), parameters);
        const __m256 below = _mm256_cmp_ps(normalized.output, _mm256_setzero_ps(), _CMP_LE_OQ);
        const __m256 sign = _mm256_and_ps(below, sign_bit);
        const __m256 towards = _mm256_xor_ps(normalized.coded, sign);
        furthest = _mm256_max_epu32(furthest, _mm256_castps_si256(towards));
        // a maximum with a NaN is its second operand
        const __m256 coded = _mm256_xor_ps(_mm256_max_ps(least, towards), sign);
        extremes.add(coded);
        _mm256_storeu_ps(y + i, normalized.output);
        _mm256_storeu_ps(v + i, coded);
    });
    const auto unsigned_max = [](__m256i a, __m256i b) { return _mm256_max_epu32(a, b); };
    Extremes result = extremes.extremes();
    result.finite = result.finite && first_lane(fold_lanes(furthest, unsigned_max)) < (INFINITY_BITS | 1u << 31);
    return result;
}

// What is left of y and v after the whole vectors; returns whether every v is finite.
bool normalize_rest(const float *x, const Spread<5> &spread, int length, bool sided, float *y, float *v) {
    const int whole = whole_vectors(length);
    if (whole == length) return true;
    bool finite = true;
    visit_elements(rest_of(spread, whole), length - whole, [&](int rest, const float (&parameters)[5]) {
        const auto [slope, offset, mean, inverse, threshold] = parameters;
        const int i = whole + rest;
        const float value = x[i]; // y may be x
        const float coded = (value - mean) * inverse - threshold;
        y[i] = value * slope + offset;
        const float side = y[i] <= 0 ? -1.0f : 1.0f;
        v[i] = sided ? side * std::max(LEAST_CODED, side * coded) : coded;
        finite = finite && is_finite(coded);
    });
    return finite;
}

// A group that is full, as the compiler then knows, or any other.
template <bool full>
void normalize_group(const Words &words, GroupKey key, const float *x, const Spread<5> &spread, int length, float *y,
                     uint8_t *scales, uint8_t *planes) {
    alignas(32) float v[GROUP];
    const int known = full ? GROUP : length;
    const bool sided = !words.affine();
    const Extremes extremes =
        sided ? normalize_sided(x, spread, known, y, v) : normalize_affine(x, spread, known, y, v);
    if (full && words.curve != ACTNN_ROOT && (!sided || extremes.finite)) {
        encode_within(words, key, extremes, v, {x, y}, nullptr, scales, planes);
        return;
    }
    const bool rest_finite = normalize_rest(x, spread, known, sided, y, v);
    if (!sided || (extremes.finite && rest_finite)) {
        encode(words, key, v, nullptr, known, scales, planes);
        return;
    }
    // the sign of a NaN says nothing about the side of y
    uint8_t side[PLANE_BYTES];
    scalar_kernels.encode_mask(y, known, side);
    v[0] = std::numeric_limits<float>::quiet_NaN();
    encode(words, key, v, side, known, scales, planes);
}

void normalize(const Words &words, GroupKey key, const float *x, const Spread<5> &spread, int length, float *y,
               uint8_t *scales, uint8_t *planes) {
    const auto group = length == GROUP ? normalize_group<true> : normalize_group<false>;
    group(words, key, x, spread, length, y, scales, planes);
}

void scale(const float *values, const Spread<2> &spread, int length, float *out) {
    visit_vectors(spread, length, [&](int i, const Parameters<2> &parameters) {
        const auto &[factor, shift] = parameters.value;
        _mm256_storeu_ps(out + i, _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(values + i), factor), shift));
    });
    const int whole = whole_vectors(length);
    if (whole < length) scalar_channels.scale(values + whole, rest_of(spread, whole), length - whole, out + whole);
}

void combine(const float *grad, const float *v, const Spread<3> &spread, int length, float *out) {
    visit_vectors(spread, length, [&](int i, const Parameters<3> &parameters) {
        const auto &[of_grad, of_value, constant] = parameters.value;
        const __m256 rest = _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(v + i), of_value), constant);
        _mm256_storeu_ps(out + i, _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(grad + i), of_grad), rest));
    });
    const int whole = whole_vectors(length);
    if (whole < length) {
        scalar_channels.combine(grad + whole, v + whole, rest_of(spread, whole), length - whole, out + whole);
    }
}

float total(__m256 x) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

GradientSums sums(const float *grad, const float *v, int length) {
    __m256 grads[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    __m256 products[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    const auto add = [&](int half, __m256 g, __m256 value) {
        grads[half] = _mm256_add_ps(grads[half], g);
        products[half] = _mm256_fmadd_ps(g, value, products[half]);
    };
    int i = 0;
    for (; i + 2 * LANES <= length; i += 2 * LANES) {
        add(0, _mm256_loadu_ps(grad + i), _mm256_loadu_ps(v + i));
        add(1, _mm256_loadu_ps(grad + i + LANES), _mm256_loadu_ps(v + i + LANES));
    }
    if (i + LANES <= length) {
        add(0, _mm256_loadu_ps(grad + i), _mm256_loadu_ps(v + i));
        i += LANES;
    }
    if (i < length) {
        const __m256i within = lanes_below(length - i);
        add(1, _mm256_maskload_ps(grad + i, within), _mm256_maskload_ps(v + i, within));
    }
    return {total(_mm256_add_ps(grads[0], grads[1])), total(_mm256_add_ps(products[0], products[1]))};
}

void add_sums(const float *grad, const float *v, int length, float *grads, float *products) {
    const int whole = whole_vectors(length);
    for (int i = 0; i < whole; i += LANES) {
        const __m256 g = _mm256_loadu_ps(grad + i);
        _mm256_storeu_ps(grads + i, _mm256_add_ps(_mm256_loadu_ps(grads + i), g));
        _mm256_storeu_ps(products + i, _mm256_fmadd_ps(g, _mm256_loadu_ps(v + i), _mm256_loadu_ps(products + i)));
    }
    if (whole < length) {
        scalar_channels.add_sums(grad + whole, v + whole, length - whole, grads + whole, products + whole);
    }
}

struct VectorMoments {
    __m256 sum, square, lowest, highest;

    void add(__m256 value, __m256 pivot) {
        const __m256 centred = _mm256_sub_ps(value, pivot);
        sum = _mm256_add_ps(sum, centred);
        square = _mm256_fmadd_ps(centred, centred, square);
        lowest = _mm256_min_ps(lowest, value);
        highest = _mm256_max_ps(highest, value);
    }

    // Add the lanes of a mask only.
    void add_some(__m256 value, __m256 pivot, __m256 mask) {
        const __m256 centred = _mm256_and_ps(_mm256_sub_ps(value, pivot), mask);
        sum = _mm256_add_ps(sum, centred);
        square = _mm256_fmadd_ps(centred, centred, square);
        lowest = _mm256_min_ps(lowest, _mm256_blendv_ps(lowest, value, mask));
        highest = _mm256_max_ps(highest, _mm256_blendv_ps(highest, value, mask));
    }

    template <class Arrays> static VectorMoments load(const Arrays &arrays, int i) {
        return {_mm256_loadu_ps(arrays.sum + i), _mm256_loadu_ps(arrays.square + i), _mm256_loadu_ps(arrays.lowest + i),
                _mm256_loadu_ps(arrays.highest + i)};
    }

    template <class Arrays> void store(Arrays &arrays, int i) const {
        _mm256_storeu_ps(arrays.sum + i, sum);
        _mm256_storeu_ps(arrays.square + i, square);
        _mm256_storeu_ps(arrays.lowest + i, lowest);
        _mm256_storeu_ps(arrays.highest + i, highest);
    }
};

void add_moments(const float *values, int64_t length, float pivot, Moments &moments) {
    // two chains of additions hide their latency; more would not fit the registers
    constexpr int CHAINS = 2;
    const __m256 centre = _mm256_set1_ps(pivot);
    const VectorMoments before = VectorMoments::load(moments, 0);
    VectorMoments chains[CHAINS];
    // values are added up by themselves first: fewer roundings touch the larger sums
    const __m256 zero = _mm256_setzero_ps();
    for (VectorMoments &chain : chains) chain = {zero, zero, before.lowest, before.highest};
    int64_t i = 0;
    for (; i + CHAINS * LANES <= length; i += CHAINS * LANES) {
        for (int k = 0; k < CHAINS; ++k) chains[k].add(_mm256_loadu_ps(values + i + k * LANES), centre);
    }
    for (; i + LANES <= length; i += LANES) chains[0].add(_mm256_loadu_ps(values + i), centre);
    if (i < length) {
        const __m256i within = lanes_below(length - i);
        const __m256 rest = _mm256_maskload_ps(values + i, within);
        chains[1].add_some(rest, centre, _mm256_castsi256_ps(within));
    }
    chains[0].sum = _mm256_add_ps(before.sum, _mm256_add_ps(chains[0].sum, chains[1].sum));
    chains[0].square = _mm256_add_ps(before.square, _mm256_add_ps(chains[0].square, chains[1].square));
    chains[0].lowest = _mm256_min_ps(chains[0].lowest, chains[1].lowest);
    chains[0].highest = _mm256_max_ps(chains[0].highest, chains[1].highest);
    chains[0].store(moments, 0);
}

// Add rows to VECTORS vectors of columns; ROWS is `count` where that is known, else 0.
template <int VECTORS, int ROWS>
inline void add_columns(const float *const *rows, int count, int i, ColumnMoments &moments) {
    __m256 pivot[VECTORS];
    VectorMoments columns[VECTORS];
    for (int k = 0; k < VECTORS; ++k) {
        pivot[k] = _mm256_loadu_ps(moments.pivot + i + k * LANES);
        columns[k] = VectorMoments::load(moments, i + k * LANES);
        // rows are added up by themselves first: fewer roundings touch the larger sums
        columns[k].sum = columns[k].square = _mm256_setzero_ps();
    }
#pragma GCC unroll 8
    for (int row = 0; row < (ROWS ? ROWS : count); ++row) {
        for (int k = 0; k < VECTORS; ++k) columns[k].add(_mm256_loadu_ps(rows[row] + i + k * LANES), pivot[k]);
    }
    for (int k = 0; k < VECTORS; ++k) {
        const VectorMoments before = VectorMoments::load(moments, i + k * LANES);
        columns[k].sum = _mm256_add_ps(columns[k].sum, before.sum);
        columns[k].square = _mm256_add_ps(columns[k].square, before.square);
        columns[k].store(moments, i + k * LANES);
    }
}

// The same for eight rows; returns the first column that is left.
int add_eight_rows(const float *const *rows, int start, int length, ColumnMoments &moments) {
    // of copies that nothing written can change: they stay in registers
    const float *const eight[] = {rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], rows[6], rows[7]};
    int i = start;
    for (; i + 2 * LANES <= length; i += 2 * LANES) add_columns<2, 8>(eight, 8, i, moments);
    return i;
}

void add_rows(const float *const *rows, int count, int start, int length, ColumnMoments &moments) {
    int i = count == 8 ? add_eight_rows(rows, start, length, moments) : start;
    for (; i + LANES <= length; i += LANES) add_columns<1, 0>(rows, count, i, moments);
    if (i < length) scalar_channels.add_rows(rows, count, i, length, moments);
}

template <bool masked> Range range_of(const float *x, const Spread<3> &spread, int length, uint8_t *mask) {
    VectorRange<masked> range(mask);
    visit_vectors(spread, length, [&](int i, const Parameters<3> &parameters) {
        const auto &[mean, inverse, threshold] = parameters.value;
        const __m256 centred = _mm256_sub_ps(_mm256_loadu_ps(x + i), mean);
        range.add(i, _mm256_sub_ps(_mm256_mul_ps(centred, inverse), threshold));
    });
    const int whole = whole_vectors(length);
    if (whole == length) return range.range(whole);
    uint8_t *const rest = masked ? mask + whole / LANES : nullptr;
    return range.range(whole, scalar_channels.range(x + whole, rest_of(spread, whole), length - whole, rest));
}

void coded(const float *x, const Spread<3> &spread, int length, float *v) {
    visit_vectors(spread, length, [&](int i, const Parameters<3> &parameters) {
        const auto &[mean, inverse, threshold] = parameters.value;
        const __m256 normalized = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(x + i), mean), inverse);
        _mm256_storeu_ps(v + i, _mm256_sub_ps(normalized, threshold));
    });
    const int whole = whole_vectors(length);
    if (whole < length) scalar_channels.coded(x + whole, rest_of(spread, whole), length - whole, v + whole);
}

Range range(const float *x, const Spread<3> &spread, int length, uint8_t *mask) {
    return mask ? range_of<true>(x, spread, length, mask) : range_of<false>(x, spread, length, nullptr);
}

Sides weigh(const uint8_t *mask, const float *weights, int length) {
    static_assert(WEIGHT_LANES == LANES);
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256 negative = _mm256_setzero_ps(), positive = _mm256_setzero_ps();
    const auto add = [&](int i, __m256 weight) {
        const __m256i clear = _mm256_andnot_si256(_mm256_set1_epi32(mask[i / LANES]), bit);
        const __m256 above = _mm256_castsi256_ps(_mm256_cmpeq_epi32(clear, _mm256_setzero_si256()));
        negative = _mm256_add_ps(negative, _mm256_andnot_ps(above, weight));
        positive = _mm256_add_ps(positive, _mm256_and_ps(above, weight));
    };
    const int whole = whole_vectors(length);
    for (int i = 0; i < whole; i += LANES) add(i, _mm256_loadu_ps(weights + i));
    if (whole < length) add(whole, _mm256_maskload_ps(weights + whole, lanes_below(length - whole)));

    alignas(32) float lanes[2][LANES];
    _mm256_store_ps(lanes[0], negative);
    _mm256_store_ps(lanes[1], positive);
    Sides sides{0, 0};
    for (int lane = 0; lane < LANES; ++lane) {
        sides.negative += lanes[0][lane];
        sides.positive += lanes[1][lane];
    }
    return sides;
}

} // namespace
} // namespace avx2

const ChannelKernels avx2_channels = {
    avx2::normalize,   avx2::scale,    avx2::combine,  avx2::sums,  avx2::add_sums,
    avx2::add_moments, avx2::add_rows, avx2::coded,    avx2::range, avx2::weigh,
};

} // namespace actnn
