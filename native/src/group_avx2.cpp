// The group kernels for AVX2, FMA and F16C: number types, masks and the table of all.

#include <algorithm>

#include "avx2.h"
#include "numbers.h"
#include "planes.h"

namespace actnn {
namespace avx2 {
namespace {

void load(const void *values, int dtype, int length, float *out) {
    if (dtype == ACTNN_FLOAT32) {
        std::memcpy(out, values, static_cast<size_t>(length) * sizeof(float));
        return;
    }
    const int whole = length / LANES * LANES;
    for (int i = 0; i < whole; i += LANES) {
        const uint8_t *place = static_cast<const uint8_t *>(values) + 2 * i;
        const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i *>(place));
        const __m256 x = dtype == ACTNN_FLOAT16
                             ? _mm256_cvtph_ps(halves)
                             : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
        _mm256_storeu_ps(out + i, x);
    }
    for (int i = whole; i < length; ++i) out[i] = load_number(values, dtype, i);
}

__m128i to_bfloat16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i unordered = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i rounded = _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), quiet, unordered);
    return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}

void store(const float *values, int dtype, int length, bool stream, void *out) {
    uint8_t *const bytes = static_cast<uint8_t *>(out);
    // streaming stores need alignment
    stream = stream && reinterpret_cast<uintptr_t>(out) % 32 == 0;
    const int whole = length / LANES * LANES;
    for (int i = 0; i < whole; i += LANES) {
        const __m256 x = _mm256_loadu_ps(values + i);
        if (dtype == ACTNN_FLOAT32) {
            float *const place = reinterpret_cast<float *>(bytes + 4 * i);
            stream ? _mm256_stream_ps(place, x) : _mm256_storeu_ps(place, x);
        } else {
            const __m128i halves =
                dtype == ACTNN_FLOAT16 ? _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT) : to_bfloat16(x);
            __m128i *const place = reinterpret_cast<__m128i *>(bytes + 2 * i);
            stream ? _mm_stream_si128(place, halves) : _mm_storeu_si128(place, halves);
        }
    }
    for (int i = whole; i < length; ++i) store_number(values[i], dtype, i, out);
}

void fence() { _mm_sfence(); }

void encode_mask(const float *values, int length, uint8_t *mask) {
    if (length == GROUP) {
        encode_mask_full(values, mask);
        return;
    }
    alignas(32) float wide[GROUP] = {};
    std::copy_n(values, length, wide);
    uint8_t wide_mask[PLANE_BYTES];
    encode_mask_full(wide, wide_mask);
    trim_planes(wide_mask, length, 1, mask);
}

void apply_mask(const uint8_t *mask, float above, float below, const float *grad, int length, float *out) {
    const __m256i to_sign = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
    const __m256 clear = _mm256_set1_ps(below), set = _mm256_set1_ps(above);
    const int whole = length / LANES * LANES;
    for (int i = 0; i < whole; i += LANES) {
        const __m256i chosen = _mm256_sllv_epi32(_mm256_set1_epi32(mask[i / LANES]), to_sign);
        const __m256 factor = _mm256_blendv_ps(clear, set, _mm256_castsi256_ps(chosen));
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_loadu_ps(grad + i), factor));
    }
    for (int i = whole; i < length; ++i) out[i] = grad[i] * (mask[i / 8] >> (i % 8) & 1 ? above : below);
}

template <bool masked> Range range_of(const float *values, int length, uint8_t *mask) {
    VectorRange<masked> range(mask);
    const int whole = length / LANES * LANES;
    for (int i = 0; i < whole; i += LANES) range.add(i, _mm256_loadu_ps(values + i));
    if (whole == length) return range.range(whole);
    uint8_t *const rest = masked ? mask + whole / LANES : nullptr;
    return range.range(whole, scalar_kernels.range(values + whole, length - whole, rest));
}

Range range(const float *values, int length, uint8_t *mask) {
    return mask ? range_of<true>(values, length, mask) : range_of<false>(values, length, nullptr);
}

int count(const uint8_t (&mask)[PLANE_BYTES], int start, int stop) {
    constexpr int BITS = 64;
    int count = 0;
    for (int word = start / BITS; word * BITS < stop; ++word) {
        uint64_t bits;
        std::memcpy(&bits, mask + word * sizeof bits, sizeof bits);
        const int before = start - word * BITS, within = stop - word * BITS;
        if (before > 0) bits = bits >> before << before;
        if (within < BITS) bits = _bzhi_u64(bits, static_cast<unsigned>(within));
        count += static_cast<int>(_mm_popcnt_u64(bits));
    }
    return count;
}

// Squares of floats are exact in double: fused or not, a sum of them rounds once.
double squares(const float *values, int length) {
    constexpr int VECTORS = SQUARE_LANES / 4;
    __m256d vectors[VECTORS];
    for (__m256d &vector : vectors) vector = _mm256_setzero_pd();
    const int whole = length / SQUARE_LANES * SQUARE_LANES;
    for (int i = 0; i < whole; i += SQUARE_LANES) {
        for (int k = 0; k < VECTORS; ++k) {
            const __m256d x = _mm256_cvtps_pd(_mm_loadu_ps(values + i + 4 * k));
            vectors[k] = _mm256_fmadd_pd(x, x, vectors[k]);
        }
    }
    alignas(32) double sums[SQUARE_LANES];
    for (int k = 0; k < VECTORS; ++k) _mm256_store_pd(sums + 4 * k, vectors[k]);
    for (int i = whole; i < length; ++i) sums[i - whole] += static_cast<double>(values[i]) * values[i];
    return sum_of_lanes(sums);
}

} // namespace

void mask_of_split(const Words &words, const uint8_t *planes, int length, uint8_t *mask) {
    uint8_t wide_planes[MOST_BITS * PLANE_BYTES];
    if (length < GROUP) {
        widen_planes(planes, length, words.bits, wide_planes);
        planes = wide_planes;
    }
    // Compare 256 words with N at once, from the lowest digit up: a digit above N's makes a word greater, one below
    // makes it less, and an equal one leaves the verdict of the digits before it.
    __m256i at_least = _mm256_set1_epi32(-1);
    for (int k = 0; k < words.bits; ++k) {
        const __m256i plane = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(planes + k * PLANE_BYTES));
        at_least = words.negative >> k & 1 ? _mm256_and_si256(at_least, plane) : _mm256_or_si256(at_least, plane);
    }
    uint8_t wide_mask[PLANE_BYTES];
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(wide_mask), at_least);
    trim_planes(wide_mask, length, 1, mask);
}

} // namespace avx2

const GroupKernels avx2_kernels = {
    avx2::load,          avx2::store,      avx2::fence, avx2::encode, avx2::decode, avx2::encode_mask,
    avx2::mask_of_split, avx2::apply_mask, avx2::range, avx2::count,  avx2::magnitudes,
    avx2::squares,       avx2::slopes,
};

} // namespace actnn
