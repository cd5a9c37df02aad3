// Inputs, layouts and guarded buffers that the tests share.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <tuple>
#include <vector>

#include "check.h"
#include "group.h"
#include "layout.h"
#include "numbers.h"

namespace actnn {

constexpr uint8_t POISON_BYTE = 0xab;
constexpr uint32_t KEY[4] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};

enum Family {
    AFFINE,
    ZERO_EXACT,
    TWO_SIDED,
    COMPANDED,
    NORMALIZED,
    TWO_SIDED_NORMALIZED,
    ZERO_EXACT_COMPANDED,
    ROOT_FAMILY,
};
constexpr Family FAMILIES[] = {AFFINE,     ZERO_EXACT,           TWO_SIDED,            COMPANDED,
                               NORMALIZED, TWO_SIDED_NORMALIZED, ZERO_EXACT_COMPANDED, ROOT_FAMILY};
constexpr uint8_t ONE_BELOW[10] = {0, 0, 1, 1, 1, 1, 1, 1, 1}, SOME_BELOW[10] = {0, 0, 2, 3, 6, 12, 24, 48, 96};
constexpr uint8_t NONE_BELOW[10] = {};
constexpr const uint8_t *NEGATIVE[] = {NONE_BELOW, ONE_BELOW,  SOME_BELOW, NONE_BELOW,
                                       NONE_BELOW, SOME_BELOW, ONE_BELOW,  NONE_BELOW};
constexpr uint8_t CURVES[] = {ACTNN_LINEAR, ACTNN_LINEAR, ACTNN_LINEAR, ACTNN_CUBIC,
                              ACTNN_CUBIC,  ACTNN_CUBIC,  ACTNN_CUBIC,  ACTNN_ROOT};
constexpr uint8_t UNITS[] = {0, 0, 0, 1, 0, 0, 1, 0};
constexpr int ROUNDINGS[] = {ACTNN_DITHER, ACTNN_STOCHASTIC, ACTNN_NEAREST};
constexpr int DTYPES[] = {ACTNN_FLOAT32, ACTNN_FLOAT16, ACTNN_BFLOAT16};
constexpr int64_t LENGTHS[] = {0, 1, 7, 8, 9, 31, 33, 255, 256, 257, 1000};

inline int least_bits(Family family) { return NEGATIVE[family][MOST_BITS] == 0 ? 1 : 2; }

// A curve knows no stochastic rounding.
inline bool is_code(Family family, int rounding) {
    return CURVES[family] == ACTNN_LINEAR || rounding != ACTNN_STOCHASTIC;
}

inline Words words_of(Family family, int bits, int rounding) {
    return {bits, NEGATIVE[family][bits], rounding, CURVES[family], UNITS[family] == 1};
}

inline bool have_vectors() { return actnn_best_simd() != ACTNN_SCALAR; }

// A small generator with a fixed sequence on every platform.
class Random {
  public:
    explicit Random(uint32_t seed) : state_(seed * 0x9e3779b9u + 1) {}
    uint32_t bits() { return mix(state_ += 0x6d2b79f5u, 0x51ed270bu); }
    float uniform() { return static_cast<float>(bits() >> 8) * 0x1p-24f; }
    float normal() { return (uniform() + uniform() + uniform() + uniform() - 2) * 1.7f; }

  private:
    uint32_t state_;
};

enum class Kind { NORMAL, RECTIFIED, CONSTANT, ZEROS, SUBNORMAL, HUGE_VALUES, ONE_NAN, ONE_INFINITY, ANY_BITS };
constexpr Kind KINDS[] = {Kind::NORMAL,      Kind::RECTIFIED, Kind::CONSTANT,     Kind::ZEROS,   Kind::SUBNORMAL,
                          Kind::HUGE_VALUES, Kind::ONE_NAN,   Kind::ONE_INFINITY, Kind::ANY_BITS};

inline float value_of(Kind kind, Random &random, size_t index, size_t count) {
    const float x = random.normal();
    switch (kind) {
    case Kind::NORMAL: return x;
    case Kind::RECTIFIED: return std::max(x, 0.0f);
    case Kind::CONSTANT: return -1.7f;
    case Kind::ZEROS: return random.bits() & 1 ? -0.0f : 0.0f;
    case Kind::SUBNORMAL: return std::bit_cast<float>(random.bits() & 0x807fffffu);
    case Kind::HUGE_VALUES: return x * 1e38f;
    case Kind::ONE_NAN: return index == count / 2 ? std::numeric_limits<float>::quiet_NaN() : x;
    case Kind::ONE_INFINITY: return index == count / 3 ? -std::numeric_limits<float>::infinity() : x;
    case Kind::ANY_BITS: return std::bit_cast<float>(random.bits());
    }
    return x;
}

// The same numbers are wanted by the thousand: they are made once.
inline const std::vector<float> &floats(Kind kind, size_t count, uint32_t seed = 1) {
    static std::map<std::tuple<Kind, size_t, uint32_t>, std::vector<float>> made;
    const auto [place, is_new] = made.try_emplace({kind, count, seed});
    std::vector<float> &values = place->second;
    if (is_new) {
        Random random(seed);
        values.resize(count);
        for (size_t i = 0; i < count; ++i) values[i] = value_of(kind, random, i, count);
    }
    return values;
}

// Bytes between two fences; intact() tells whether the fences still stand.
class Guarded {
  public:
    explicit Guarded(size_t size) : size_(size), bytes_(size + 2 * FENCE, POISON_BYTE) {}
    uint8_t *data() { return bytes_.data() + FENCE; } // aligned as a new array is
    size_t size() const { return size_; }

    bool intact() const {
        uint8_t fence[FENCE];
        std::memset(fence, POISON_BYTE, FENCE);
        return std::memcmp(bytes_.data(), fence, FENCE) == 0 &&
               std::memcmp(bytes_.data() + FENCE + size_, fence, FENCE) == 0;
    }

    bool operator==(const Guarded &other) const { return bytes_ == other.bytes_; }

  private:
    static constexpr int FENCE = 64;
    size_t size_;
    std::vector<uint8_t> bytes_;
};

inline Guarded array_of(const std::vector<float> &values, int dtype) {
    Guarded array(values.size() * static_cast<size_t>(bytes_of(dtype)));
    for (size_t i = 0; i < values.size(); ++i) store_number(values[i], dtype, static_cast<int64_t>(i), array.data());
    return array;
}

inline actnn_layout layout_of(Family family, int64_t samples, int64_t elements, int bits, int rounding) {
    actnn_layout layout{samples, elements, bits, rounding, {}, CURVES[family], UNITS[family], nullptr, nullptr};
    std::copy_n(NEGATIVE[family], 10, layout.negative);
    return layout;
}

inline size_t buffer_bytes(const actnn_layout &layout) {
    SplitLayout split;
    CHECK(read_layout(&layout, split) == ACTNN_OK);
    return static_cast<size_t>(Planes(split.planes).offset_of(layout.samples - 1) +
                               split.planes.bits_of(layout.samples - 1) * plane_bytes(layout.elements));
}

inline Guarded encoded(const actnn_layout &layout, int simd, int threads, Guarded &values, int dtype) {
    Guarded buffer(buffer_bytes(layout));
    CHECK(actnn_encode(&layout, simd, threads, KEY, values.data(), dtype, buffer.data()) == ACTNN_OK);
    CHECK(buffer.intact());
    return buffer;
}

inline Guarded decoded(const actnn_layout &layout, int simd, int threads, Guarded &buffer, int part, int dtype) {
    Guarded values(static_cast<size_t>(layout.samples * layout.elements * bytes_of(dtype)));
    CHECK(actnn_decode(&layout, simd, threads, 0, layout.samples, buffer.data(), part, values.data(), dtype) == ACTNN_OK);
    CHECK(values.intact());
    return values;
}

// Floats of an array of any type.
inline std::vector<float> numbers_of(Guarded &array, int dtype) {
    std::vector<float> values(array.size() / static_cast<size_t>(bytes_of(dtype)));
    for (size_t i = 0; i < values.size(); ++i) values[i] = load_number(array.data(), dtype, static_cast<int64_t>(i));
    return values;
}

} // namespace actnn
