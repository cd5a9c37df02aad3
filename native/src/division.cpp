// How the planes of a code are divided between its samples: actnn_divide and actnn_encode_divided.

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "layout.h"

namespace actnn {
namespace {

constexpr int MOST_STEPS = MOST_BITS - 1;

// What the planes of samples after the least width gain, in an order that integers keep.
class Gains {
  public:
    explicit Gains(const actnn_division &division)
        : division_(division), steps_(MOST_BITS - division.least_bits), negative_(division.relief),
          positive_(division.relief + MOST_STEPS) {}

    int steps() const { return steps_; }

    // Call visit(step, gain) for the planes of a sample.
    template <class Visit> void visit(int64_t sample, Visit visit) const {
        const float *const ranges = division_.ranges + 4 * sample;
        const double *const weights = division_.weights;
        double negative = weights[0] * ranges[0] + weights[2] * ranges[2];
        double positive = weights[1] * ranges[1] + weights[3] * ranges[3];
        if (division_.norms) {
            negative *= division_.norms[sample];
            positive *= division_.norms[sample];
        }
        for (int step = 0; step < steps_; ++step) visit(step, positive_[step] * positive + negative_[step] * negative);
    }

    // The same with whole numbers of the same order.
    template <class Visit> void visit_keys(int64_t sample, Visit visit) const {
        Gains::visit(sample, [&](int step, double gain) { visit(step, key_of(gain)); });
    }

    bool finite(int64_t samples) const {
        bool finite = true;
        for (int64_t n = 0; n < samples; ++n) {
            for (int k = 0; k < 4; ++k) finite = finite && std::isfinite(division_.ranges[4 * n + k]);
            visit(n, [&](int, double gain) { finite = finite && std::isfinite(gain); });
        }
        return finite;
    }

  private:
    static uint64_t key_of(double gain) {
        const uint64_t bits = std::bit_cast<uint64_t>(gain + 0.0); // the sum makes one of the two zeros
        constexpr uint64_t SIGN = uint64_t{1} << 63;
        return bits & SIGN ? ~bits : bits | SIGN;
    }

    const actnn_division &division_;
    int steps_;
    const double *negative_;
    const double *positive_;
};

// The leading digits of the least key that is bought: all above them, and `some` of those that have them.
struct Threshold {
    uint64_t digits;
    uint64_t mask;
    int64_t some;
};

// Of few keys, by putting them in order.
constexpr int64_t FEW = 256;

Threshold threshold_of_few(const Gains &gains, int64_t samples, int64_t wanted) {
    uint64_t keys[FEW] = {};
    uint64_t *end = keys;
    for (int64_t n = 0; n < samples; ++n) gains.visit_keys(n, [&](int, uint64_t key) { *end++ = key; });
    uint64_t *const least = keys + wanted - 1;
    std::nth_element(keys, least, end, std::greater{});
    return {*least, ~uint64_t{0}, wanted - std::count_if(keys, end, [&](uint64_t key) { return key > *least; })};
}

// Find the threshold of the `wanted` largest keys, digit by digit; `wanted` is at least 1 and at most all.
Threshold threshold_of(const Gains &gains, int64_t samples, int64_t wanted) {
    constexpr int DIGIT = 8;
    if (samples * gains.steps() <= FEW) return threshold_of_few(gains, samples, wanted);
    Threshold found{0, 0, wanted};
    for (int shift = 64 - DIGIT; shift >= 0; shift -= DIGIT) {
        int64_t counts[1 << DIGIT] = {};
        for (int64_t n = 0; n < samples; ++n) {
            gains.visit_keys(n, [&](int, uint64_t key) {
                counts[key >> shift & 0xff] += (key & found.mask) == found.digits;
            });
        }
        uint64_t digit = 0xff;
        for (; counts[digit] < found.some; --digit) found.some -= counts[digit];
        found.digits |= digit << shift;
        found.mask |= uint64_t{0xff} << shift;
        if (counts[digit] == found.some) break; // all that have these digits are bought
    }
    return found;
}

void divide_evenly(int64_t samples, int64_t planes, uint8_t *widths) {
    for (int64_t n = 0; n < samples; ++n) {
        widths[n] = static_cast<uint8_t>(planes / samples + (n < planes % samples));
    }
}

void divide_by_gain(const Gains &gains, int64_t samples, int64_t bought, int least, uint8_t *widths) {
    std::fill_n(widths, samples, static_cast<uint8_t>(least));
    if (bought == 0) return;
    Threshold threshold = threshold_of(gains, samples, bought);
    for (int64_t n = 0; n < samples; ++n) {
        gains.visit_keys(n, [&](int, uint64_t key) { widths[n] += (key & threshold.mask) > threshold.digits; });
    }
    for (int step = 0; step < gains.steps() && threshold.some > 0; ++step) {
        for (int64_t n = 0; n < samples && threshold.some > 0; ++n) {
            gains.visit_keys(n, [&](int of_plane, uint64_t key) {
                const bool equal = of_plane == step && (key & threshold.mask) == threshold.digits;
                widths[n] += equal;
                threshold.some -= equal;
            });
        }
    }
}

} // namespace
} // namespace actnn

using namespace actnn;

int32_t actnn_divide(const actnn_layout *layout, const actnn_division *division) {
    if (layout == nullptr || division == nullptr) return ACTNN_BAD_ARGUMENT;
    if (check_shape(layout->samples, layout->elements) != ACTNN_OK) return ACTNN_BAD_ARGUMENT;
    const auto &[planes, stride, relief, norms, weights, weighted, least, ranges, widths, offsets] = *division;
    const int64_t samples = layout->samples;
    if (!offsets || (samples > 0 && (!ranges || !widths)) || (weighted && !relief)) return ACTNN_BAD_ARGUMENT;
    if (least < 1 || least > MOST_BITS || !is_width(least, layout->negative)) return ACTNN_BAD_WIDTH;
    if (planes < samples * least || planes > samples * MOST_BITS) return ACTNN_BAD_ARGUMENT;

    if (const Gains gains(*division); weighted && gains.finite(samples)) {
        divide_by_gain(gains, samples, planes - samples * least, least, widths);
    } else {
        divide_evenly(samples, planes, widths);
    }
    const actnn_layout divided = divided_layout(*layout, *division);
    SplitLayout split;
    if (const actnn_status status = read_layout(&divided, split); status != ACTNN_OK) return status;
    offsets[0] = split.planes.offset;
    for (int64_t n = 0; n < samples; ++n) offsets[n + 1] = offsets[n] + widths[n] * plane_bytes(layout->elements);
    return ACTNN_OK;
}

int32_t actnn_encode_divided(const actnn_layout *layout, const actnn_division *division, int32_t simd, int32_t threads,
                             const uint32_t key[4], const void *values, int32_t dtype, uint8_t *buffer) {
    if (division == nullptr || key == nullptr || buffer == nullptr) return ACTNN_BAD_ARGUMENT;
    int32_t status = actnn_ranges(layout, nullptr, nullptr, nullptr, simd, threads, division->stride, values, dtype,
                                  division->ranges);
    if (status == ACTNN_OK) status = actnn_divide(layout, division);
    if (status != ACTNN_OK) return status;
    const actnn_layout divided = divided_layout(*layout, *division);
    return actnn_encode(&divided, simd, threads, key, values, dtype, buffer);
}
