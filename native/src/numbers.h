// Conversions between float32 and the 16-bit types, one number at a time, with the NaN bits of the x86 instructions.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "actnn.h"

namespace actnn {

static inline int bytes_of(int dtype) { return dtype == ACTNN_FLOAT32 ? 4 : 2; }

static inline float from_bfloat16(uint16_t number) { return std::bit_cast<float>(static_cast<uint32_t>(number) << 16); }

static inline uint16_t to_bfloat16(float number) {
    const uint32_t bits = std::bit_cast<uint32_t>(number);
    if (number != number) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float from_float16(uint16_t number) {
    const uint32_t sign = static_cast<uint32_t>(number & 0x8000) << 16;
    const uint32_t magnitude = number & 0x7fff;
    if (magnitude < 0x0400) {
        const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
        return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
    }
    uint32_t bits = sign | (magnitude << 13);
    if (magnitude < 0x7c00) return std::bit_cast<float>(bits + (112u << 23));
    if (magnitude > 0x7c00) bits |= 0x00400000;
    return std::bit_cast<float>(bits | 0x7f800000);
}

static inline uint16_t to_float16(float number) {
    const uint32_t bits = std::bit_cast<uint32_t>(number);
    const uint32_t sign = bits >> 16 & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;
    uint32_t half;
    if (magnitude > 0x7f800000) {
        half = 0x7e00 | (magnitude >> 13 & 0x03ff);
    } else if (magnitude >= 0x477ff000) {
        half = 0x7c00; // 65520 and above round to infinity
    } else if (magnitude >= 0x38800000) {
        half = (magnitude - (112u << 23) + 0x0fff + (magnitude >> 13 & 1)) >> 13;
    } else {
        // below the least normal float16 the addition itself rounds to its spacing of 2^-24
        half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
    }
    return static_cast<uint16_t>(sign | half);
}

static inline float load_number(const void *values, int dtype, int64_t index) {
    const uint8_t *place = static_cast<const uint8_t *>(values) + index * bytes_of(dtype);
    if (dtype == ACTNN_FLOAT32) {
        float number;
        std::memcpy(&number, place, sizeof number);
        return number;
    }
    uint16_t number;
    std::memcpy(&number, place, sizeof number);
    return dtype == ACTNN_FLOAT16 ? from_float16(number) : from_bfloat16(number);
}

// A number of an array, or another where there is no array.
static inline float number_or(const void *values, int dtype, int64_t index, float absent) {
    return values ? load_number(values, dtype, index) : absent;
}

static inline void store_number(float number, int dtype, int64_t index, void *out) {
    uint8_t *place = static_cast<uint8_t *>(out) + index * bytes_of(dtype);
    if (dtype == ACTNN_FLOAT32) {
        std::memcpy(place, &number, sizeof number);
        return;
    }
    const uint16_t half = dtype == ACTNN_FLOAT16 ? to_float16(number) : to_bfloat16(number);
    std::memcpy(place, &half, sizeof half);
}

} // namespace actnn
