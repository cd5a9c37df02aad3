// What the widths of samples are chosen by, measured on some groups of each: actnn_ranges and actnn_energy.
//
// Sums are taken in double, over the groups of a chunk and then over the chunks, both in order. Chunks depend on the
// shape alone, and what a group adds is exact or summed in one order: every instruction set and every number of threads
// gives the same bits.

#include <limits>
#include <optional>

#include "arrays.h"
#include "curves.h"
#include "layout.h"
#include "parallel.h"
#include "ranges.h"
#include "spread.h"

namespace actnn {
namespace {

// Which groups of a sample are read: every stride-th, from the middle of the first stride on, or else the first one.
// There are elements.
class Sampling {
  public:
    Sampling(int64_t elements, int64_t stride)
        : elements_(elements), stride_(stride), first_(stride / 2 < groups_of(elements) ? stride / 2 : 0),
          count_(1 + (groups_of(elements) - 1 - first_) / stride),
          chunks_(std::clamp<int64_t>(count_ / LEAST_GROUPS_OF_THREAD, 1, MOST_CHUNKS)) {}

    int64_t elements() const { return elements_; }
    int64_t count() const { return count_; }
    bool dense() const { return stride_ == 1; }
    // Element of the sample at which the index-th of the groups begins, and its length.
    int64_t place(int64_t index) const { return (first_ + index * stride_) * GROUP; }
    int length(int64_t index) const { return static_cast<int>(std::min<int64_t>(GROUP, elements_ - place(index))); }

    // From sums over the groups that are read to those over the sample.
    double factor() const {
        return static_cast<double>(elements_) / static_cast<double>((count_ - 1) * GROUP + length(count_ - 1));
    }

    int64_t chunks() const { return chunks_; }
    int64_t begin(int64_t chunk) const { return count_ * chunk / chunks_; }

  private:
    static constexpr int64_t MOST_CHUNKS = 32;

    int64_t elements_, stride_, first_, count_, chunks_;
};

// Call write(sample, sums) with what a reader finds in each sample; make() returns a reader for one thread.
template <class Sums, class Make, class Write>
void measure(const Sampling &sampling, int64_t samples, int32_t threads, Make make, Write write) {
    constexpr int64_t ROOM = 512;
    Sums sums[ROOM];
    const int64_t chunks = sampling.chunks(), batch = ROOM / chunks;
    for (int64_t start = 0; start < samples; start += batch) {
        const int64_t count = std::min(batch, samples - start);
        const int64_t useful = count * sampling.count() / LEAST_GROUPS_OF_THREAD + 1;
        share(count * chunks, std::min<int64_t>(threads, useful), [&](int64_t begin, int64_t end) {
            auto reader = make();
            for (int64_t task = begin; task < end; ++task) {
                const int64_t sample = start + task / chunks, chunk = task % chunks;
                Sums sum{};
                for (int64_t index = sampling.begin(chunk); index < sampling.begin(chunk + 1); ++index) {
                    reader.read(sample, index, sum);
                }
                sums[task] = sum;
            }
        });
        for (int64_t n = 0; n < count; ++n) {
            Sums whole{};
            for (int64_t chunk = 0; chunk < chunks; ++chunk) whole.join(sums[n * chunks + chunk]);
            write(start + n, whole);
        }
    }
}

// Reads the chosen groups. Where there are others in between, it asks for those that come next: the CPU does not guess.
class SampledInput {
  public:
    SampledInput(const Sampling &sampling, const Input &input) : sampling_(sampling), input_(input) {}

    const float *read(int64_t sample, int64_t index, float *buffer) const {
        const int64_t first = sample * sampling_.elements();
        if (const int64_t next = index + AHEAD; !sampling_.dense() && next < sampling_.count()) {
            input_.prefetch<Cache::FIRST>(first + sampling_.place(next), sampling_.length(next));
        }
        return input_.read(first + sampling_.place(index), sampling_.length(index), buffer);
    }

  private:
    static constexpr int64_t AHEAD = 4; // by measurement

    const Sampling &sampling_;
    const Input &input_;
};

struct Ranges {
    Sides counted{};
    Sides weighted{};
    bool finite = true;

    void join(const Ranges &other) {
        counted.negative += other.counted.negative;
        counted.positive += other.counted.positive;
        weighted.negative += other.weighted.negative;
        weighted.positive += other.weighted.positive;
        finite = finite && other.finite;
    }

    void write(double factor, float *out) const {
        constexpr float nan = std::numeric_limits<float>::quiet_NaN();
        const double sums[] = {counted.negative, counted.positive, weighted.negative, weighted.positive};
        for (const double sum : sums) *out++ = finite ? static_cast<float>(sum * factor) : nan;
    }
};

struct RangesCall {
    const Sampling &sampling;
    const Input &input;
    const GroupKernels &groups;
    const ChannelKernels &kernels;
    int negative; // 0 affine, 1 zero-exact, 2 or more two-sided
    int curve;
    bool unit;
    const RangeRule &rule;

    bool affine() const { return negative == 0; }
};

class RangesReader {
  public:
    explicit RangesReader(const RangesCall &call) : call_(call), input_(call.sampling, call.input) {
        const RangeRule &rule = call.rule;
        const float *const parameters[] = {rule.mean, rule.inverse, rule.threshold}, *const weights[] = {rule.weight};
        if (rule.mean) parameters_.emplace(rule.channels, parameters);
        if (rule.weight) weights_.emplace(rule.weighted, weights);
        std::fill_n(mask_, PLANE_BYTES, uint8_t{0xff});
    }

    void read(int64_t sample, int64_t index, Ranges &ranges) {
        const int length = call_.sampling.length(index);
        const int64_t place = call_.sampling.place(index);
        const float *const values = input_.read(sample, index, buffer_);
        const int64_t counted = place + (call_.rule.over_samples ? sample * call_.sampling.elements() : 0);
        if (call_.curve != ACTNN_LINEAR) {
            read_curved(coded_values(values, counted, length), place, length, ranges);
            return;
        }
        // without sides, every element is on the positive one
        uint8_t *const mask = weights_ && !call_.affine() ? mask_ : nullptr;
        const Range range = parameters_ ? call_.kernels.range(values, parameters_->of(counted, length), length, mask)
                                        : call_.groups.range(values, length, mask);
        const Sides squares = squares_of(range);
        const int positive = call_.affine() ? length : range.positive;
        const Sides count{static_cast<double>(length - positive), static_cast<double>(positive)};
        add(squares, count, ranges.counted);
        add(squares, weights_ ? weights_of(place, length) : count, ranges.weighted);
        ranges.finite = ranges.finite && range.finite;
    }

  private:
    // What is coded, in an array.
    const float *coded_values(const float *values, int64_t place, int length) {
        if (!parameters_) return values;
        call_.kernels.coded(values, parameters_->of(place, length), length, coded_);
        return coded_;
    }

    // Along a curve an element counts by its squared slope.
    void read_curved(const float *values, int64_t place, int length, Ranges &ranges) {
        const bool root = call_.curve == ACTNN_ROOT;
        const float unit = call_.unit ? unit_of(call_.groups.magnitudes(values, length), length) : 1.0f;
        const float reach = reach_of(call_.affine(), call_.unit, unit), factor = 1.0f / reach;
        Range range = call_.groups.range(values, length, nullptr);
        ranges.finite = ranges.finite && range.finite && !(root && range.lowest < 0);
        const auto bent = [&](float x) { return root ? std::sqrt(x) : inverse_cubic(x * factor); };
        range.lowest = bent(range.lowest);
        range.highest = bent(range.highest);
        const Sides squares = squares_of(range);
        Sides counted, weighted;
        call_.groups.slopes({root, call_.affine(), factor, reach}, values, weights_ ? spread_weights(place, length) : nullptr,
                            length, counted, weighted);
        add(squares, counted, ranges.counted);
        add(squares, weighted, ranges.weighted);
    }

    // The weight of every element, in an array.
    const float *spread_weights(int64_t place, int length) {
        const Spread<1> spread = weights_->of(place, length);
        if (spread.inner == 0) return spread.arrays[0];
        visit_runs(call_.rule.weighted, place, length, [&](int64_t channel, int start, int stop) {
            std::fill(own_weights_ + start, own_weights_ + stop, spread.arrays[0][channel]);
        });
        return own_weights_;
    }

    Sides squares_of(const Range &range) const {
        const double lowest = range.lowest, highest = range.highest;
        if (call_.affine()) return {0, (highest - lowest) * (highest - lowest)};
        const double below = std::max(0.0, -lowest), above = std::max(0.0, highest);
        return {call_.negative == 1 ? 0 : below * below, above * above};
    }

    static void add(const Sides &squares, const Sides &elements, Sides &sums) {
        sums.negative += squares.negative * elements.negative;
        sums.positive += squares.positive * elements.positive;
    }

    Sides weights_of(int64_t place, int length) {
        const Spread<1> spread = weights_->of(place, length);
        const float *const weights = spread.arrays[0];
        if (spread.inner == 0) return call_.kernels.weigh(mask_, weights, length);
        Sides sum{};
        visit_runs(call_.rule.weighted, place, length, [&](int64_t channel, int start, int stop) {
            const int above = call_.groups.count(mask_, start, stop);
            sum.negative += static_cast<double>(weights[channel]) * (stop - start - above);
            sum.positive += static_cast<double>(weights[channel]) * above;
        });
        return sum;
    }

    const RangesCall &call_;
    SampledInput input_;
    std::optional<Spreader<3>> parameters_;
    std::optional<Spreader<1>> weights_;
    uint8_t mask_[PLANE_BYTES];
    alignas(64) float buffer_[GROUP];
    alignas(64) float coded_[GROUP];
    alignas(64) float own_weights_[GROUP];
};

struct Energy {
    double squares = 0;

    void join(const Energy &other) { squares += other.squares; }
};

class EnergyReader {
  public:
    EnergyReader(const Sampling &sampling, const Input &input, const GroupKernels &kernels)
        : sampling_(sampling), kernels_(kernels), input_(sampling, input) {}

    void read(int64_t sample, int64_t index, Energy &energy) {
        energy.squares += kernels_.squares(input_.read(sample, index, buffer_), sampling_.length(index));
    }

  private:
    const Sampling &sampling_;
    const GroupKernels &kernels_;
    SampledInput input_;
    alignas(64) float buffer_[GROUP];
};

actnn_status check(int64_t samples, int64_t elements, int32_t simd, int32_t threads, int64_t stride, const void *values,
                   int32_t dtype, const float *result) {
    if (check_shape(samples, elements) != ACTNN_OK || threads < 1 || stride < 1 || !is_dtype(dtype)) {
        return ACTNN_BAD_ARGUMENT;
    }
    if (simd < ACTNN_SCALAR || simd > ACTNN_AVX2) return ACTNN_BAD_ARGUMENT;
    if (samples > 0 && (result == nullptr || (values == nullptr && elements > 0))) return ACTNN_BAD_ARGUMENT;
    return kernels_of(simd) ? ACTNN_OK : ACTNN_UNSUPPORTED;
}

} // namespace

int32_t measure_ranges(const actnn_layout &layout, const RangeRule &rule, int32_t simd, int32_t threads, int64_t stride,
                       const void *values, int32_t dtype, float *ranges) {
    const int64_t samples = layout.samples, elements = layout.elements;
    const actnn_status status = check(samples, elements, simd, threads, stride, values, dtype, ranges);
    if (status != ACTNN_OK) return status;
    if (samples == 0 || elements == 0) {
        std::fill_n(ranges, 4 * samples, 0.0f);
        return ACTNN_OK;
    }
    const GroupKernels &kernels = *kernels_of(simd);
    const Sampling sampling(elements, stride);
    const Input input(kernels, values, dtype);
    const RangesCall call{sampling, input, kernels, channels_of(simd), layout.negative[MOST_BITS],
                          layout.curve, layout.unit == 1, rule};
    measure<Ranges>(
        sampling, samples, threads, [&] { return RangesReader(call); },
        [&](int64_t sample, const Ranges &found) { found.write(sampling.factor(), ranges + 4 * sample); });
    return ACTNN_OK;
}

} // namespace actnn

using namespace actnn;

int32_t actnn_ranges(const actnn_layout *layout, const actnn_channels *channels,
                     const actnn_normalization *normalization, const float *weight, int32_t simd, int32_t threads,
                     int64_t stride, const void *values, int32_t dtype, float *ranges) {
    if (layout == nullptr || !has_curve(*layout)) return ACTNN_BAD_ARGUMENT;
    const int64_t samples = layout->samples, elements = layout->elements;
    if (channels ? !are_channels(channels, samples, elements) : normalization || weight) return ACTNN_BAD_ARGUMENT;
    const auto [slope, offset, mean, inverse, threshold] = normalization ? *normalization : actnn_normalization{};
    if (normalization && samples > 0 && elements > 0 && (!mean || !inverse || !threshold)) return ACTNN_BAD_ARGUMENT;
    const actnn_channels form = channels ? *channels : actnn_channels{1, 1};
    const RangeRule rule{form, mean, inverse, threshold, false, form, weight};
    return measure_ranges(*layout, rule, simd, threads, stride, values, dtype, ranges);
}

int32_t actnn_energy(int64_t samples, int64_t elements, int32_t simd, int32_t threads, int64_t stride,
                     const void *values, int32_t dtype, float *energy) {
    const actnn_status status = check(samples, elements, simd, threads, stride, values, dtype, energy);
    if (status != ACTNN_OK) return status;
    if (samples == 0 || elements == 0) {
        std::fill_n(energy, samples, 0.0f);
        return ACTNN_OK;
    }
    const GroupKernels &kernels = *kernels_of(simd);
    const Sampling sampling(elements, stride);
    const Input input(kernels, values, dtype);
    measure<Energy>(
        sampling, samples, threads, [&] { return EnergyReader(sampling, input, kernels); },
        [&](int64_t sample, const Energy &found) {
            energy[sample] = static_cast<float>(found.squares * sampling.factor());
        });
    return ACTNN_OK;
}
