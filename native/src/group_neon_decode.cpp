// Decoding a group with NEON: bit for bit what group_scalar.cpp makes.

#include <algorithm>

#include "curves.h"
#include "neon.h"
#include "planes.h"

namespace actnn::neon {
namespace {

// What decoding yields: an affine code, a split code, or the positive part of a split code.
enum class Reading { AFFINE, WHOLE, POSITIVE };

template <Reading reading, bool cubic>
void dequantize(const Words &words, GroupKey key, const uint8_t *stored, const uint8_t *planes, float *out) {
    const Scales scales = read_scales(straight(words), stored);
    const Unbending unbending = cubic ? unbending_of(words, stored) : Unbending{};
    const float32x4_t mean_above = vdupq_n_f32(unbending.above), mean_below = vdupq_n_f32(unbending.below);
    const float32x4_t zero = vdupq_n_f32(scales.first), nothing = vdupq_n_f32(0.0f * scales.second);
    const float32x4_t above = vdupq_n_f32(step_of(words.positive(), scales.second, scales.second));
    const float32x4_t below = vdupq_n_f32(-step_of(words.negative, scales.first, scales.second));
    const uint8x16_t first_positive = vdupq_n_u8(static_cast<uint8_t>(words.negative));
    const bool dithered = words.rounding == ACTNN_DITHER;
    Noise noise(key);
    for (int block = 0; block < BLOCKS; ++block) {
        uint8x16_t levels = words_of(planes, words.bits, block);
        uint32x4_t negative[VECTORS];
        if constexpr (reading != Reading::AFFINE) {
            const uint8x16_t side = vcltq_u8(levels, first_positive);
            levels = veorq_u8(vsubq_u8(levels, first_positive), side);
            widened(side, negative);
        }
        uint32x4_t positions[VECTORS];
        widened(levels, positions);
        int32x4_t drawn[VECTORS];
        if (dithered) noise.next(drawn);
        for (int i = 0; i < VECTORS; ++i) {
            // a level of 128 or more was widened as a negative byte
            const uint32x4_t level = vandq_u32(positions[i], vdupq_n_u32(0xff));
            int32x4_t position = vreinterpretq_s32_u32(vshlq_n_u32(level, 17));
            if (dithered) position = vaddq_s32(position, vsubq_s32(vdupq_n_s32(65535), vshlq_n_s32(drawn[i], 1)));
            const float32x4_t twice = vcvtq_f32_s32(position);
            float32x4_t x, mean = mean_above;
            if constexpr (reading == Reading::AFFINE) {
                x = vaddq_f32(zero, vmulq_f32(twice, above));
            } else if constexpr (reading == Reading::WHOLE) {
                x = vmulq_f32(twice, vbslq_f32(negative[i], below, above));
                mean = vbslq_f32(negative[i], mean_below, mean_above);
            } else {
                x = vmulq_f32(twice, above);
            }
            if constexpr (cubic) x = vmulq_n_f32(vmulq_f32(x, vaddq_f32(vmulq_f32(x, x), mean)), unbending.reach);
            if constexpr (reading == Reading::POSITIVE) x = vbslq_f32(negative[i], nothing, x);
            vst1q_f32(out + block * BLOCK + i * LANES, x);
        }
    }
}

using Dequantize = void (*)(const Words &, GroupKey, const uint8_t *, const uint8_t *, float *);

template <bool cubic> Dequantize dequantizer_of(const Words &words, int part) {
    if (words.affine()) return dequantize<Reading::AFFINE, cubic>;
    return part == ACTNN_POSITIVE ? dequantize<Reading::POSITIVE, cubic> : dequantize<Reading::WHOLE, cubic>;
}

} // namespace

void decode(const Words &words, GroupKey key, int part, const uint8_t *scales, const uint8_t *planes, int length,
            float *out) {
    const auto dequantizer = words.curve == ACTNN_CUBIC ? dequantizer_of<true> : dequantizer_of<false>;
    const Dequantize full = dequantizer(words, part);
    if (length == GROUP) {
        full(words, key, scales, planes, out);
    } else {
        float wide[GROUP];
        uint8_t wide_planes[MOST_BITS * PLANE_BYTES];
        widen_planes(planes, length, words.bits, wide_planes);
        full(words, key, scales, wide_planes, wide);
        std::copy_n(wide, length, out);
    }
    if (words.curve == ACTNN_ROOT) {
        const float correction = correction_of_square(straight(words), scales);
        for (int i = 0; i < length; ++i) out[i] = out[i] * out[i] - correction;
    }
}

} // namespace actnn::neon
