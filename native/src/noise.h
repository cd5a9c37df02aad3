// The counter-based noise of docs/format.md, section 8.
#pragma once

#include <cstdint>

namespace actnn {

constexpr uint32_t MIX_FIRST = 0x7feb352d;
constexpr uint32_t MIX_SECOND = 0x846ca68b;
constexpr uint32_t COUNTER_STRIDE = 0x9e3779b1;

struct Key {
    uint32_t word[4];
};

// What the noise of one group is drawn from.
struct GroupKey {
    uint32_t a;
    uint32_t b;
};

static inline uint32_t mix(uint32_t x, uint32_t k) {
    x ^= x >> 16;
    x *= MIX_FIRST;
    x ^= k;
    x ^= x >> 15;
    x *= MIX_SECOND;
    return x ^ (x >> 16);
}

static inline GroupKey group_key(const Key &key, int64_t group) {
    const uint32_t j = static_cast<uint32_t>(group);
    return {mix(j * 0x9e3779b1u + key.word[0], key.word[1]), mix(j * 0x85ebca77u + key.word[2], key.word[3])};
}

} // namespace actnn
