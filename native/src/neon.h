// What the NEON files share. Only files compiled for 64-bit Arm may include this.
//
// A block is 16 elements, four vectors of 4: the two bytes that a block has in each plane. Short groups are widened to
// full ones on the stack, so the loops over a group run over 16 whole blocks.
#pragma once

#include <arm_neon.h>

#include "group.h"
#include "scales.h"

namespace actnn::neon {

constexpr int LANES = 4;
constexpr int BLOCK = 16;
constexpr int VECTORS = BLOCK / LANES;
constexpr int BLOCKS = GROUP / BLOCK;
constexpr int BLOCK_BYTES = BLOCK / 8;

// Draws the noise of a block at a time: its first half has the low halves of eight hashes, its second half the high ones.
class Noise {
  public:
    explicit Noise(GroupKey key) : key_(vdupq_n_u32(key.b)) {
        const uint32x4_t lane = {0, 1, 2, 3};
        counters_[0] = vaddq_u32(vmulq_n_u32(lane, COUNTER_STRIDE), vdupq_n_u32(key.a));
        counters_[1] = vaddq_u32(counters_[0], vdupq_n_u32(LANES * COUNTER_STRIDE));
    }

    void next(int32x4_t (&noise)[VECTORS]) {
        for (int i = 0; i < 2; ++i) {
            uint32x4_t x = counters_[i];
            counters_[i] = vaddq_u32(x, vdupq_n_u32(2 * LANES * COUNTER_STRIDE));
            x = veorq_u32(x, vshrq_n_u32(x, 16));
            x = veorq_u32(vmulq_n_u32(x, MIX_FIRST), key_);
            x = veorq_u32(x, vshrq_n_u32(x, 15));
            x = vmulq_n_u32(x, MIX_SECOND);
            x = veorq_u32(x, vshrq_n_u32(x, 16));
            noise[i] = vreinterpretq_s32_u32(vandq_u32(x, vdupq_n_u32(0xffff)));
            noise[i + 2] = vreinterpretq_s32_u32(vshrq_n_u32(x, 16));
        }
    }

  private:
    uint32x4_t key_;
    uint32x4_t counters_[2];
};

static inline uint8x16_t bits_of_bytes() { return uint8x16_t{1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128}; }

// The bits of a block as bytes of all bits or none, and back.
static inline uint8x16_t spread(const uint8_t *bits) {
    return vtstq_u8(vcombine_u8(vdup_n_u8(bits[0]), vdup_n_u8(bits[1])), bits_of_bytes());
}

static inline void gather(uint8x16_t bytes, uint8_t *bits) {
    const uint8x16_t own = vandq_u8(bytes, bits_of_bytes());
    bits[0] = vaddv_u8(vget_low_u8(own));
    bits[1] = vaddv_u8(vget_high_u8(own));
}

// The lowest byte of every lane of a block.
static inline uint8x16_t narrowed(const uint32x4_t (&x)[VECTORS]) {
    const uint16x8_t first = vcombine_u16(vmovn_u32(x[0]), vmovn_u32(x[1]));
    const uint16x8_t second = vcombine_u16(vmovn_u32(x[2]), vmovn_u32(x[3]));
    return vcombine_u8(vmovn_u16(first), vmovn_u16(second));
}

// Bytes as lanes; those of all bits stay so.
static inline void widened(uint8x16_t bytes, int32x4_t (&out)[VECTORS]) {
    const int8x16_t x = vreinterpretq_s8_u8(bytes);
    const int16x8_t first = vmovl_s8(vget_low_s8(x)), second = vmovl_s8(vget_high_s8(x));
    out[0] = vmovl_s16(vget_low_s16(first));
    out[1] = vmovl_s16(vget_high_s16(first));
    out[2] = vmovl_s16(vget_low_s16(second));
    out[3] = vmovl_s16(vget_high_s16(second));
}

static inline void widened(uint8x16_t bytes, uint32x4_t (&out)[VECTORS]) {
    int32x4_t lanes[VECTORS];
    widened(bytes, lanes);
    for (int i = 0; i < VECTORS; ++i) out[i] = vreinterpretq_u32_s32(lanes[i]);
}

// Where not x > 0; a NaN is on the positive side.
static inline uint32x4_t below_of(float32x4_t x) { return vclezq_f32(x); }

// The words of a block.
static inline uint8x16_t words_of(const uint8_t *planes, int bits, int block) {
    uint8x16_t words = vdupq_n_u8(0);
    for (int k = 0; k < bits; ++k) {
        const uint8x16_t set = spread(planes + k * PLANE_BYTES + BLOCK_BYTES * block);
        words = vorrq_u8(words, vandq_u8(set, vdupq_n_u8(static_cast<uint8_t>(1 << k))));
    }
    return words;
}

static inline void write_words(uint8x16_t words, int bits, int block, uint8_t *planes) {
    for (int k = 0; k < bits; ++k) {
        const uint8x16_t set = vtstq_u8(words, vdupq_n_u8(static_cast<uint8_t>(1 << k)));
        gather(set, planes + k * PLANE_BYTES + BLOCK_BYTES * block);
    }
}

// The entries of GroupKernels that have a file of their own.
void encode(const Words &words, GroupKey key, const float *values, const uint8_t *side, int length, uint8_t *scales,
            uint8_t *planes);
void decode(const Words &words, GroupKey key, int part, const uint8_t *scales, const uint8_t *planes, int length,
            float *out);

} // namespace actnn::neon
