// The group kernels for NEON: number types, masks and the table of all. What compilers make vectors of by themselves is
// that of the scalar kernels.

#include <algorithm>

#include "neon.h"
#include "numbers.h"
#include "planes.h"

namespace actnn {
namespace neon {
namespace {

void load(const void *values, int dtype, int length, float *out) {
    if (dtype == ACTNN_FLOAT32) {
        std::memcpy(out, values, static_cast<size_t>(length) * sizeof(float));
    } else {
        scalar_kernels.load(values, dtype, length, out);
    }
}

void store(const float *values, int dtype, int length, bool stream, void *out) {
    if (dtype == ACTNN_FLOAT32) {
        std::memcpy(out, values, static_cast<size_t>(length) * sizeof(float));
    } else {
        scalar_kernels.store(values, dtype, length, stream, out);
    }
}

void fence() {}

void encode_mask_full(const float *values, uint8_t *mask) {
    for (int block = 0; block < BLOCKS; ++block) {
        uint32x4_t below[VECTORS];
        for (int i = 0; i < VECTORS; ++i) below[i] = below_of(vld1q_f32(values + block * BLOCK + i * LANES));
        gather(vmvnq_u8(narrowed(below)), mask + BLOCK_BYTES * block);
    }
}

void encode_mask(const float *values, int length, uint8_t *mask) {
    if (length == GROUP) {
        encode_mask_full(values, mask);
        return;
    }
    float wide[GROUP] = {};
    std::copy_n(values, length, wide);
    uint8_t wide_mask[PLANE_BYTES];
    encode_mask_full(wide, wide_mask);
    trim_planes(wide_mask, length, 1, mask);
}

void mask_of_split(const Words &words, const uint8_t *planes, int length, uint8_t *mask) {
    uint8_t wide_planes[MOST_BITS * PLANE_BYTES], wide_mask[PLANE_BYTES];
    widen_planes(planes, length, words.bits, wide_planes);
    const uint8x16_t first_positive = vdupq_n_u8(static_cast<uint8_t>(words.negative));
    for (int block = 0; block < BLOCKS; ++block) {
        gather(vcgeq_u8(words_of(wide_planes, words.bits, block), first_positive), wide_mask + BLOCK_BYTES * block);
    }
    trim_planes(wide_mask, length, 1, mask);
}

void apply_mask(const uint8_t *mask, float above, float below, const float *grad, int length, float *out) {
    const float32x4_t set = vdupq_n_f32(above), clear = vdupq_n_f32(below);
    const int whole = length / BLOCK * BLOCK;
    for (int place = 0; place < whole; place += BLOCK) {
        uint32x4_t chosen[VECTORS];
        widened(spread(mask + place / 8), chosen);
        for (int i = 0; i < VECTORS; ++i) {
            const float32x4_t factor = vbslq_f32(chosen[i], set, clear);
            vst1q_f32(out + place + i * LANES, vmulq_f32(vld1q_f32(grad + place + i * LANES), factor));
        }
    }
    for (int i = whole; i < length; ++i) out[i] = grad[i] * (mask[i / 8] >> (i % 8) & 1 ? above : below);
}

Range range(const float *values, int length, uint8_t *mask) { return scalar_kernels.range(values, length, mask); }

int count(const uint8_t (&mask)[PLANE_BYTES], int start, int stop) { return scalar_kernels.count(mask, start, stop); }

float magnitudes(const float *values, int length) { return scalar_kernels.magnitudes(values, length); }

double squares(const float *values, int length) { return scalar_kernels.squares(values, length); }

void slopes(const Slopes &slopes, const float *values, const float *weights, int length, Sides &counted,
            Sides &weighted) {
    scalar_kernels.slopes(slopes, values, weights, length, counted, weighted);
}

} // namespace
} // namespace neon

const GroupKernels neon_kernels = {
    neon::load,          neon::store,      neon::fence, neon::encode, neon::decode, neon::encode_mask,
    neon::mask_of_split, neon::apply_mask, neon::range, neon::count,  neon::magnitudes,
    neon::squares,       neon::slopes,
};

} // namespace actnn
