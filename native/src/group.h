// The group-level interface: what every instruction set offers for one group of at most 256 elements.
//
// Kernels that produce values on the fly call it with a buffer of floats that never leaves the first-level cache.
// Headers that a simd file includes declare functions `static`: an inline function with external linkage could be
// merged into its AVX2 copy by the linker, and would then crash on a CPU that the scalar kernels are there for.
#pragma once

#include <cstdint>

#include "actnn.h"
#include "noise.h"

namespace actnn {

constexpr int GROUP = 256;
constexpr int PLANE_BYTES = GROUP / 8;
constexpr int MOST_BITS = 8;

// How the words of a split code are made and read.
struct Words {
    int bits;
    int negative; // N: 0 affine, 1 zero-exact, 2 or more two-sided
    int rounding; // actnn_rounding
    int curve = ACTNN_LINEAR;
    bool unit = false; // whether groups store one

    bool affine() const { return negative == 0; }
    int positive() const { return (1 << bits) - negative; }
    int scales() const { return (negative == 1 ? 1 : 2) + unit; }
};

struct Range {
    float lowest;
    float highest;
    int positive; // elements where not (x <= 0)
    bool finite;  // of every value, not only of these two
};

// What the elements of each side count.
struct Sides {
    double negative;
    double positive;
};

// How much noise in what is coded of an element grows when it is decoded: by the squared slope of the curve there.
struct Slopes {
    bool root; // else a cubic of values times `factor`, decoded times `reach`
    bool affine; // all elements are on the positive side
    float factor;
    float reach;
};

constexpr int WEIGHT_LANES = 8;

// Squares go to this many sums in turn: an order that every instruction set can keep.
constexpr int SQUARE_LANES = 16;

template <class Number, int COUNT> static double sum_of_lanes(const Number (&sums)[COUNT]) {
    double sum = 0;
    for (const Number lane : sums) sum += lane;
    return sum;
}

// `length` is 1 to 256 everywhere; nothing past it is read or written. Planes and masks of a group have
// ceil(length / 8) bytes each, scales 2 bytes each. Arrays of floats are aligned as floats, the rest is not aligned.
struct GroupKernels {
    void (*load)(const void *values, int dtype, int length, float *out);

    // `stream` asks to bypass the caches; call `fence` before another thread may read what was streamed.
    void (*store)(const float *values, int dtype, int length, bool stream, void *out);
    void (*fence)();

    // `side` is NULL for `not (x <= 0)`, or a mask that decides the side of each element in its place; an element on
    // the side that its sign contradicts has magnitude 0. The scales span all values either way. Ignored when affine.
    void (*encode)(const Words &words, GroupKey key, const float *values, const uint8_t *side, int length,
                   uint8_t *scales, uint8_t *planes);
    void (*decode)(const Words &words, GroupKey key, int part, const uint8_t *scales, const uint8_t *planes, int length,
                   float *out);

    void (*encode_mask)(const float *values, int length, uint8_t *mask);
    // mask = word >= N
    void (*mask_of_split)(const Words &words, const uint8_t *planes, int length, uint8_t *mask);
    // out = grad * (bit ? above : below), also in place
    void (*apply_mask)(const uint8_t *mask, float above, float below, const float *grad, int length, float *out);

    // `mask` is NULL, or takes `not (x <= 0)`
    Range (*range)(const float *values, int length, uint8_t *mask);
    // how many of the bits start to stop - 1 are set
    int (*count)(const uint8_t (&mask)[PLANE_BYTES], int start, int stop);
    // the sum of magnitudes, by halves: element i with i + 128, these sums i with i + 64, down to one
    float (*magnitudes)(const float *values, int length);
    // element i goes to sum i % SQUARE_LANES, and these are added in order
    double (*squares)(const float *values, int length);
    // The squared slopes of each side, and the same times `weights`, which may be NULL. Element i goes to the float32
    // sum i % WEIGHT_LANES of its side, and these are added in order.
    void (*slopes)(const Slopes &slopes, const float *values, const float *weights, int length, Sides &counted,
                   Sides &weighted);
};

extern const GroupKernels scalar_kernels;
extern const GroupKernels avx2_kernels; // defined in builds for x86 only
extern const GroupKernels neon_kernels; // and these for 64-bit Arm

// The kernels of an actnn_simd; NULL where this build or this CPU lacks them.
const GroupKernels *kernels_of(int32_t simd);

} // namespace actnn
