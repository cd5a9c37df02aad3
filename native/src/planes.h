// Words to bit planes and back, eight elements at a time, and the trimming of short groups.
#pragma once

#include <cstdint>
#include <cstring>

#include "group.h"

namespace actnn {

static inline int bytes_of_plane(int length) { return (length + 7) / 8; }

// The bits of a plane's last byte that belong to elements.
static inline uint8_t last_byte_mask(int length) { return static_cast<uint8_t>(0xff >> (-length & 7)); }

// Transpose an 8 x 8 matrix of bits; byte i, bit k <-> byte k, bit i.
static inline uint64_t transpose(uint64_t x) {
    uint64_t t = (x ^ (x >> 7)) & 0x00aa00aa00aa00aa;
    x ^= t ^ (t << 7);
    t = (x ^ (x >> 14)) & 0x0000cccc0000cccc;
    x ^= t ^ (t << 14);
    t = (x ^ (x >> 28)) & 0x00000000f0f0f0f0;
    return x ^ t ^ (t << 28);
}

// Write the planes of words of up to 8 bits; plane k starts at `planes + k * ceil(length / 8)`.
static inline void pack_planes(const uint8_t *words, int length, int bits, uint8_t *planes) {
    const int bytes = bytes_of_plane(length);
    for (int byte = 0; byte < bytes; ++byte) {
        const int count = length - 8 * byte < 8 ? length - 8 * byte : 8;
        uint64_t eight = 0;
        for (int i = 0; i < count; ++i) eight |= static_cast<uint64_t>(words[8 * byte + i]) << (8 * i);
        eight = transpose(eight);
        for (int k = 0; k < bits; ++k) planes[k * bytes + byte] = static_cast<uint8_t>(eight >> (8 * k));
    }
}

static inline void unpack_planes(const uint8_t *planes, int length, int bits, uint8_t *words) {
    const int bytes = bytes_of_plane(length);
    for (int byte = 0; byte < bytes; ++byte) {
        uint64_t eight = 0;
        for (int k = 0; k < bits; ++k) eight |= static_cast<uint64_t>(planes[k * bytes + byte]) << (8 * k);
        eight = transpose(eight);
        const int count = length - 8 * byte < 8 ? length - 8 * byte : 8;
        for (int i = 0; i < count; ++i) words[8 * byte + i] = static_cast<uint8_t>(eight >> (8 * i));
    }
}

// The same for integers of any width, eight planes at a time.
static inline void pack_integers(const int32_t *integers, int length, int bits, uint8_t *planes) {
    for (int shift = 0; shift < bits; shift += 8) {
        uint8_t bytes[GROUP];
        for (int i = 0; i < length; ++i) bytes[i] = static_cast<uint8_t>(integers[i] >> shift);
        pack_planes(bytes, length, bits - shift < 8 ? bits - shift : 8, planes + shift * bytes_of_plane(length));
    }
}

static inline void unpack_integers(const uint8_t *planes, int length, int bits, int32_t *integers) {
    for (int i = 0; i < length; ++i) integers[i] = 0;
    for (int shift = 0; shift < bits; shift += 8) {
        uint8_t bytes[GROUP];
        unpack_planes(planes + shift * bytes_of_plane(length), length, bits - shift < 8 ? bits - shift : 8, bytes);
        for (int i = 0; i < length; ++i) integers[i] |= bytes[i] << shift;
    }
}

// Cut the planes of a full group down to those of a short one.
static inline void trim_planes(const uint8_t *full, int length, int bits, uint8_t *planes) {
    const int bytes = bytes_of_plane(length);
    for (int k = 0; k < bits; ++k) {
        std::memcpy(planes + k * bytes, full + k * PLANE_BYTES, static_cast<size_t>(bytes));
        planes[k * bytes + bytes - 1] &= last_byte_mask(length);
    }
}

// Widen the planes of a short group to those of a full one; what lies past its end is 0.
static inline void widen_planes(const uint8_t *planes, int length, int bits, uint8_t *full) {
    const int bytes = bytes_of_plane(length);
    std::memset(full, 0, static_cast<size_t>(bits) * PLANE_BYTES);
    for (int k = 0; k < bits; ++k) {
        std::memcpy(full + k * PLANE_BYTES, planes + k * bytes, static_cast<size_t>(bytes));
    }
}

} // namespace actnn
