// Smooth functions of what a code stands for: actnn_decode_function.

#include "arrays.h"
#include "layout.h"
#include "parallel.h"
#include "smooth.h"
#include "spread.h"
#include "wide.h"

namespace actnn {
namespace {

SmoothKernel smooth_of(int32_t simd) {
#ifdef ACTNN_HAS_AVX2
    if (simd == ACTNN_AVX2) return wide_vectors ? avx512_smooth : avx2_smooth;
#endif
    (void)simd;
    return scalar_smooth;
}

// Half the variance of a decoded u, whose step is given.
float correction_of(int rounding, float step) {
    const float variance = rounding == ACTNN_DITHER ? step * step * TWELFTH
                           : rounding == ACTNN_NEAREST ? 0.0f * step
                                                       : step * step * (2 * TWELFTH);
    return variance * 0.5f > MOST_CORRECTION ? MOST_CORRECTION : variance * 0.5f;
}

// One thread's room for a group, and what it decodes.
class FunctionReader {
  public:
    FunctionReader(const SplitLayout &split, const GroupKernels &kernels, const uint8_t *buffer, int derivative)
        : split_(split), kernels_(kernels), buffer_(buffer), key_(read_key(buffer)), derivative_(derivative) {
        std::fill_n(ones_, GROUP, 1.0f);
    }

    // Read what is coded in a group, with its corrections.
    SmoothGroup read(const Group &group) {
        const Words words = split_.words(group.bits), inner = straight(words);
        const uint8_t *const stored = buffer_ + split_.scales_of(group.index), *const planes = buffer_ + group.planes;
        kernels_.decode(inner, group_key(key_, group.index), ACTNN_WHOLE, stored, planes, group.length, values);
        const Scales scales = read_scales(inner, stored);
        const float above = whole_step(words.positive(), scales.second, scales.second);
        if (words.affine()) {
            std::fill_n(corrections, group.length, correction_of(words.rounding, above));
        } else {
            const float below = whole_step(words.negative, scales.first, scales.second);
            uint8_t mask[PLANE_BYTES];
            kernels_.mask_of_split(inner, planes, group.length, mask);
            kernels_.apply_mask(mask, correction_of(words.rounding, above), correction_of(words.rounding, below), ones_,
                                group.length, corrections);
        }
        return {derivative_, words.curve, unbending_of(words, stored).reach};
    }

    alignas(64) float values[GROUP];
    alignas(64) float corrections[GROUP];

  private:
    const SplitLayout &split_;
    const GroupKernels &kernels_;
    const uint8_t *buffer_;
    Key key_;
    int derivative_;
    alignas(64) float ones_[GROUP];
};

// The gamma and beta of every element.
class ElementParameters {
  public:
    void read(const actnn_output &parameters, int64_t place, int length) {
        const int64_t channel = place / parameters.channels.inner;
        const bool alone = (place + length - 1) / parameters.channels.inner == channel;
        // long runs of one channel are spread once
        if (alone && channel == channel_ && length <= length_) return;
        channel_ = alone ? channel : -1;
        length_ = length;
        visit_runs(parameters.channels, place, length, [&](int64_t channel, int start, int stop) {
            const float gamma = number_or(parameters.gamma, parameters.gamma_dtype, channel, 1.0f);
            const float beta = number_or(parameters.beta, parameters.beta_dtype, channel, 0.0f);
            std::fill(numbers_[0] + start, numbers_[0] + stop, gamma);
            std::fill(numbers_[1] + start, numbers_[1] + stop, beta);
        });
    }

    const float *gamma() const { return numbers_[0]; }
    const float *beta() const { return numbers_[1]; }

  private:
    int64_t channel_ = -1; // which the first `length_` numbers belong to
    int length_ = 0;
    alignas(64) float numbers_[2][GROUP];
};

actnn_status check(const actnn_layout *layout, int32_t function, int32_t derivative, const actnn_output *parameters,
                   int32_t simd, int32_t threads, const uint8_t *buffer, int32_t dtype, SplitLayout &split) {
    if (function < ACTNN_GELU || function > ACTNN_QUICK_GELU || derivative < 0 || derivative > 1) {
        return ACTNN_BAD_ARGUMENT;
    }
    if (buffer == nullptr || threads < 1 || !is_dtype(dtype) || simd < ACTNN_SCALAR || simd > ACTNN_AVX2) {
        return ACTNN_BAD_ARGUMENT;
    }
    if (const actnn_status status = read_layout(layout, split); status != ACTNN_OK) return status;
    if (parameters) {
        if (!are_channels(&parameters->channels, layout->samples, layout->elements)) return ACTNN_BAD_ARGUMENT;
        if (!is_dtype(parameters->gamma_dtype) || !is_dtype(parameters->beta_dtype)) return ACTNN_BAD_ARGUMENT;
        if (parameters->threshold || layout->negative[MOST_BITS] > 0) return ACTNN_BAD_ARGUMENT;
    }
    return kernels_of(simd) ? ACTNN_OK : ACTNN_UNSUPPORTED;
}

} // namespace
} // namespace actnn

using namespace actnn;

int32_t actnn_decode_function(const actnn_layout *layout, int32_t function, int32_t derivative,
                              const actnn_output *parameters, int32_t simd, int32_t threads, int64_t first,
                              int64_t count, const uint8_t *buffer, const void *grad, void *values, int32_t dtype) {
    SplitLayout split;
    const actnn_status status =
        check(layout, function, derivative, parameters, simd, threads, buffer, dtype, split);
    if (status != ACTNN_OK) return status;
    if (!has_samples(split.planes, first, count)) return ACTNN_BAD_ARGUMENT;
    if (count * split.planes.elements == 0) return ACTNN_OK;
    if (values == nullptr) return ACTNN_BAD_ARGUMENT;

    const GroupKernels &kernels = *kernels_of(simd);
    const SmoothKernel smooth = smooth_of(simd);
    const Output output(kernels, values, dtype, false);
    const Input input(kernels, grad, dtype);
    const int64_t groups = groups_of(split.planes.elements), skipped = first * split.planes.elements;
    share_groups(count * groups, threads, [&](int64_t begin, int64_t end) {
        FunctionReader reader(split, kernels, buffer, derivative);
        ElementParameters of_elements;
        alignas(64) float values_of_group[GROUP];
        alignas(64) float grad_of_group[GROUP];
        visit_groups(split.planes, first * groups + begin, first * groups + end, [&](const Group &group) {
            const SmoothGroup shape = reader.read(group);
            if (parameters) of_elements.read(*parameters, group.place, group.length);
            const float *const factor =
                grad ? input.read(group.first - skipped, group.length, grad_of_group) : nullptr;
            output.write(group.first - skipped, group.length, values_of_group, [&](float *out) {
                smooth(function, shape, reader.values, parameters ? of_elements.gamma() : nullptr,
                       parameters ? of_elements.beta() : nullptr, reader.corrections, factor, group.length, out);
            });
        });
    });
    return ACTNN_OK;
}
