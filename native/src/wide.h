// What the loops over a full group have in AVX2 and in AVX-512, which takes over where the CPU has it: plain data.
//
// A file compiled for AVX-512 includes no other header of vectors, and calls no function of a header with external
// linkage: the linker could merge it into what runs on a CPU that has AVX2 alone.
#pragma once

#include <utility>

#include "curves.h"
#include "group.h"

namespace actnn {

// Whether AVX2's kernels take loops from AVX-512: if this CPU has it, and until a test says otherwise.
extern bool wide_vectors;

// Kernels that work on values in the cache let memory bring, or make ready to be written, what comes this many floats
// later: between the passes over a group nothing else would ask for it. Distances by measurement.
constexpr int FLOATS_AHEAD_OF_READING = 1024;
constexpr int FLOATS_AHEAD_OF_WRITING = 512;
constexpr int FLOATS_OF_LINE = 16;

// Where the values of a group came from and, unless it is NULL, where others went: what follows there, memory may bring
// or make ready while the group is coded.
struct Ahead {
    const float *read;
    const float *write;
};

// Where the side of an element comes from.
enum class Side { NONE, SIGN, GIVEN };
constexpr int SIDES = 3;

// What decoding yields: an affine code, a split code, or the positive part of a split code.
enum class Reading { AFFINE, WHOLE, POSITIVE };
constexpr int READINGS = 3;

// What the words of a group stand for: `negative` as in Words, and steps by which twice a position is multiplied.
struct Levels {
    int negative;
    float zero;    // what an affine code adds
    float above;   // the step of the positive side
    float below;   // that of the negative side, negated
    float nothing; // what the positive part has on the negative side
    Unbending unbending;
};

// Encode values times `factor` along a cubic.
using QuantizeCubic = void (*)(const Thresholds &thresholds, GroupKey key, float factor, const float *values,
                               const Ahead &ahead, const uint8_t *given, uint8_t *planes);
using Dequantize = void (*)(const Levels &levels, GroupKey key, const uint8_t *planes, float *out);

// The loops of an instruction set: a row for each variant, with widths 1 to 8.
template <class Loop, int VARIANTS> struct Loops {
    Loop of[VARIANTS][MOST_BITS];
};
using CubicQuantizers = Loops<QuantizeCubic, SIDES * 2>;
using Dequantizers = Loops<Dequantize, READINGS * 4>;

static constexpr int variant_of(Side side, bool noisy) { return static_cast<int>(side) * 2 + noisy; }

static constexpr int variant_of(Reading reading, bool dithered, bool cubic) {
    return static_cast<int>(reading) * 4 + dithered * 2 + cubic;
}

template <class Table, class Choose, int... k>
static constexpr Table table_of(Choose choose, std::integer_sequence<int, k...>) {
    Table table{};
    ((table.of[k / MOST_BITS][k % MOST_BITS] = choose.template operator()<k % MOST_BITS + 1, k / MOST_BITS>()), ...);
    return table;
}

// The table of what choose.operator()<bits, side, noisy>() returns.
template <class Choose> static constexpr CubicQuantizers cubic_quantizers(Choose choose) {
    const auto of_variant = [choose]<int bits, int variant>() {
        return choose.template operator()<bits, static_cast<Side>(variant / 2), variant % 2 == 1>();
    };
    return table_of<CubicQuantizers>(of_variant, std::make_integer_sequence<int, SIDES * 2 * MOST_BITS>());
}

// The table of what choose.operator()<bits, reading, dithered, cubic>() returns.
template <class Choose> static constexpr Dequantizers dequantizers(Choose choose) {
    const auto of_variant = [choose]<int bits, int variant>() {
        return choose.template operator()<bits, static_cast<Reading>(variant / 4), variant / 2 % 2 == 1,
                                          variant % 2 == 1>();
    };
    return table_of<Dequantizers>(of_variant, std::make_integer_sequence<int, READINGS * 4 * MOST_BITS>());
}

extern const CubicQuantizers avx512_cubic_quantizers;
extern const Dequantizers avx512_dequantizers; // NULL where AVX2 is faster

} // namespace actnn
