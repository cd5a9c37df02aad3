// BatchNorm over whole activations: one pass forwards, and sums and one pass backwards, all beside a split code.

#include <cmath>

#include "arrays.h"
#include "curves.h"
#include "layout.h"
#include "noise.h"
#include "parallel.h"
#include "spread.h"

namespace actnn {
namespace {

// The arguments that all functions share, checked.
struct Call {
    SplitLayout split;
    actnn_channels channels;
    const GroupKernels *groups;
    const ChannelKernels *kernels;
};

actnn_status read_call(const actnn_layout *layout, const actnn_channels *channels, int32_t simd, int32_t threads,
                       int32_t dtype, const void *buffer, Call &call) {
    if (threads < 1 || !is_dtype(dtype) || simd < ACTNN_SCALAR || simd > ACTNN_AVX2 || buffer == nullptr) {
        return ACTNN_BAD_ARGUMENT;
    }
    if (const actnn_status status = read_layout(layout, call.split); status != ACTNN_OK) return status;
    if (!are_channels(channels, call.split.planes.samples, call.split.planes.elements)) return ACTNN_BAD_ARGUMENT;
    call.channels = *channels;
    call.groups = kernels_of(simd);
    if (call.groups == nullptr) return ACTNN_UNSUPPORTED;
    call.kernels = &channels_of(simd);
    return ACTNN_OK;
}

// Reads the groups of a code and the gradient beside them into the first-level cache.
class GradientReader {
  public:
    GradientReader(const Call &call, const uint8_t *buffer, bool rectified, const void *grad, int32_t dtype)
        : call_(call), buffer_(buffer), key_(read_key(buffer)), rectified_(rectified),
          input_(*call.groups, grad, dtype) {}

    struct Elements {
        const float *grad;
        const float *value;
    };

    Elements read(const Group &group) {
        const Words words = call_.split.words(group.bits);
        const uint8_t *const planes = buffer_ + group.planes;
        call_.groups->decode(words, group_key(key_, group.index), ACTNN_WHOLE,
                             buffer_ + call_.split.scales_of(group.index), planes, group.length, value_);
        const float *grad = input_.read(group.first, group.length, grad_);
        if (rectified_) {
            call_.groups->mask_of_split(words, planes, group.length, mask_);
            call_.groups->apply_mask(mask_, 1.0f, 0.0f, grad, group.length, grad_);
            grad = grad_;
        }
        return {grad, value_};
    }

  private:
    const Call &call_;
    const uint8_t *buffer_;
    Key key_;
    bool rectified_;
    Input input_;
    alignas(64) float value_[GROUP];
    alignas(64) float grad_[GROUP];
    uint8_t mask_[PLANE_BYTES];
};

// Multiplies gradients by 1 + of_noise[c] * (the variance of the noise in v): a mean that contains v, multiplied by it,
// lacks that much. In plain C++: only channels of few values ask for it.
class OwnNoise {
  public:
    OwnNoise(const Call &call, const uint8_t *buffer, bool rectified, const float *of_noise)
        : call_(call), buffer_(buffer), key_(read_key(buffer)), rectified_(rectified), of_noise_(of_noise) {}

    const float *weigh(const Group &group, const float *grad) {
        measure(group);
        if (call_.channels.inner > 1) {
            visit_runs(call_.channels, group.place, group.length, [&](int64_t channel, int start, int stop) {
                const float share = of_noise_[channel];
                for (int i = start; i < stop; ++i) weighed_[i] = grad[i] * (variance_[i] * share + 1.0f);
            });
            return weighed_;
        }
        int64_t channel = group.place % call_.channels.channels;
        for (int start = 0; start < group.length; channel = 0) {
            const int stop = static_cast<int>(std::min(int64_t{group.length}, start + call_.channels.channels - channel));
            const float *const shares = of_noise_ + channel - start;
            for (int i = start; i < stop; ++i) weighed_[i] = grad[i] * (variance_[i] * shares[i] + 1.0f);
            start = stop;
        }
        return weighed_;
    }

  private:
    // The variance of every element of a group.
    void measure(const Group &group) {
        const Words words = call_.split.words(group.bits), inner = straight(words);
        const uint8_t *const stored = buffer_ + call_.split.scales_of(group.index);
        const uint8_t *const planes = buffer_ + group.planes;
        const Scales scales = read_scales(inner, stored);
        const float reach = unbending_of(words, stored).reach;
        const auto of_side = [&](int levels, float scale) {
            return noise_variance(words, whole_step(levels, scale, scales.second), reach);
        };
        const NoiseVariance above = of_side(words.positive(), scales.second);
        if (words.curve == ACTNN_LINEAR) {
            std::fill_n(variance_, group.length, above.constant);
        } else {
            call_.groups->decode(inner, group_key(key_, group.index), ACTNN_WHOLE, stored, planes, group.length, u_);
            for (int i = 0; i < group.length; ++i) variance_[i] = above.at(u_[i]);
        }
        if (words.affine()) return;
        // behind a rectifier, the negative side has no gradient that a finite number would change
        if (rectified_ && std::isfinite(above.at(std::max(scales.first, scales.second)))) return;
        const NoiseVariance below = of_side(words.negative, scales.first);
        if (words.curve == ACTNN_LINEAR) {
            std::fill_n(u_, group.length, below.constant);
        } else {
            for (int i = 0; i < group.length; ++i) u_[i] = below.at(u_[i]);
        }
        call_.groups->mask_of_split(words, planes, group.length, mask_);
        std::fill_n(weighed_, group.length, 1.0f);
        call_.groups->apply_mask(mask_, 1.0f, 0.0f, weighed_, group.length, weighed_);
        // chosen, not added up: one of them may be infinite
        for (int i = 0; i < group.length; ++i) variance_[i] = weighed_[i] > 0 ? variance_[i] : u_[i];
    }

    const Call &call_;
    const uint8_t *buffer_;
    Key key_;
    bool rectified_;
    const float *of_noise_;
    alignas(64) float u_[GROUP], variance_[GROUP], weighed_[GROUP];
    uint8_t mask_[PLANE_BYTES];
};

// How the sums are cut into tasks that do not depend on the number of threads. A task owns one row of partial sums, or
// its part of a row: (grad, product) of every channel.
//
// Neighbouring channels (inner 1) are summed element by element over a part of a sample, which has a row to itself.
// Runs of a channel are summed run by run over some channels of a sample, and the sample has a row.
class Tasks {
  public:
    Tasks(int64_t samples, int64_t elements, const actnn_channels &channels)
        : samples_(samples), elements_(elements), channels_(channels) {
        const int64_t unit = neighbours() ? GROUP : std::max<int64_t>(1, channels.inner);
        const int64_t units = neighbours() ? groups_of(elements) : channels.channels;
        // rows of partial sums stay a small part of the activation
        const int64_t least = neighbours() ? std::max<int64_t>(ELEMENTS, 64 * channels.channels) : ELEMENTS;
        units_of_task_ = std::max<int64_t>(1, (least + unit - 1) / unit);
        tasks_of_sample_ = (units + units_of_task_ - 1) / units_of_task_;
        units_ = units;
    }

    bool neighbours() const { return channels_.inner == 1; }
    int64_t count() const { return elements_ > 0 ? samples_ * tasks_of_sample_ : 0; }
    int64_t rows() const { return neighbours() ? count() : samples_; }
    int64_t floats() const { return 2 * rows() * channels_.channels; }

    int64_t sample(int64_t task) const { return task / tasks_of_sample_; }
    int64_t row(int64_t task) const { return neighbours() ? task : sample(task); }
    // groups of the sample, or channels
    int64_t begin(int64_t task) const { return task % tasks_of_sample_ * units_of_task_; }
    int64_t end(int64_t task) const { return std::min(units_, begin(task) + units_of_task_); }

  private:
    static constexpr int64_t ELEMENTS = 64 * GROUP;

    int64_t samples_, elements_;
    actnn_channels channels_;
    int64_t units_, units_of_task_, tasks_of_sample_;
};

// Sum the channels begin to end - 1 of a sample.
void sum_runs(const Call &call, GradientReader &reader, int64_t sample, int64_t begin, int64_t end, float *row) {
    const actnn_channels &channels = call.channels;
    const Planes &planes = call.split.planes;
    const int64_t block = channels.channels * channels.inner;
    const int64_t first_group = sample * groups_of(planes.elements);
    double grad = 0, product = 0;
    int64_t current = begin;
    const auto finish = [&](int64_t next) {
        row[current] += static_cast<float>(grad);
        row[channels.channels + current] += static_cast<float>(product);
        grad = product = 0;
        current = next;
    };
    std::fill(row + begin, row + end, 0.0f);
    std::fill(row + channels.channels + begin, row + channels.channels + end, 0.0f);
    for (int64_t start = 0; start < planes.elements; start += block) {
        const int64_t from = start + begin * channels.inner, to = start + end * channels.inner;
        visit_groups(planes, first_group + from / GROUP, first_group + groups_of(to), [&](const Group &group) {
            const auto elements = reader.read(group);
            const int64_t place = group.place;
            const int skipped = static_cast<int>(std::max<int64_t>(0, from - place));
            const int past = static_cast<int>(std::min<int64_t>(group.length, to - place));
            visit_runs(channels, place + skipped, past - skipped, [&](int64_t channel, int run, int run_end) {
                if (channel != current) finish(channel);
                const GradientSums sums =
                    call.kernels->sums(elements.grad + skipped + run, elements.value + skipped + run, run_end - run);
                grad += sums.grad;
                product += sums.product;
            });
        });
    }
    finish(begin);
}

// Sum the groups begin to end - 1 of a sample, whose elements are neighbouring channels.
void sum_neighbours(const Call &call, GradientReader &reader, int64_t sample, int64_t begin, int64_t end, float *row) {
    const int64_t channels = call.channels.channels;
    const Planes &planes = call.split.planes;
    const int64_t first_group = sample * groups_of(planes.elements);
    float *const grads = row, *const products = row + channels;
    std::fill(row, row + 2 * channels, 0.0f);
    if (channels <= GROUP) {
        // long enough for a group to begin at any channel: place k belongs to channel k % channels
        alignas(64) float repeated[2][2 * GROUP] = {};
        visit_groups(planes, first_group + begin, first_group + end, [&](const Group &group) {
            const auto elements = reader.read(group);
            const int64_t channel = group.place % channels;
            call.kernels->add_sums(elements.grad, elements.value, group.length, repeated[0] + channel,
                                   repeated[1] + channel);
        });
        for (int64_t k = 0; k < channels + GROUP - 1; ++k) {
            grads[k % channels] += repeated[0][k];
            products[k % channels] += repeated[1][k];
        }
        return;
    }
    visit_groups(planes, first_group + begin, first_group + end, [&](const Group &group) {
        const auto elements = reader.read(group);
        const int64_t channel = group.place % channels;
        const int before = static_cast<int>(std::min<int64_t>(group.length, channels - channel));
        call.kernels->add_sums(elements.grad, elements.value, before, grads + channel, products + channel);
        if (before < group.length) {
            call.kernels->add_sums(elements.grad + before, elements.value + before, group.length - before, grads,
                                   products);
        }
    });
}

// Add up the rows of partial sums, always in the same order.
void add_rows(const float *partial, int64_t rows, int64_t channels, float *sum_grad, float *sum_product) {
    constexpr int64_t WIDTH = 64;
    for (int part = 0; part < 2; ++part) {
        float *const out = part == 0 ? sum_grad : sum_product;
        for (int64_t start = 0; start < channels; start += WIDTH) {
            const int64_t width = std::min(WIDTH, channels - start);
            double totals[WIDTH] = {};
            for (int64_t row = 0; row < rows; ++row) {
                const float *const values = partial + (2 * row + part) * channels + start;
                for (int64_t c = 0; c < width; ++c) totals[c] += values[c];
            }
            for (int64_t c = 0; c < width; ++c) out[start + c] = static_cast<float>(totals[c]);
        }
    }
}

// From the parameters of a BatchNorm to what leads from the coded value to its output.
void read_output(const actnn_output &parameters, int32_t part, float *scale, float *shift) {
    const auto [channels, gamma, beta, threshold, workspace, gamma_dtype, beta_dtype] = parameters;
    for (int64_t c = 0; c < channels.channels; ++c) {
        scale[c] = number_or(gamma, gamma_dtype, c, 1.0f);
        shift[c] = number_or(beta, beta_dtype, c, 0.0f);
        if (threshold == nullptr) continue;
        scale[c] = std::abs(scale[c]);
        shift[c] = shift[c] + scale[c] * threshold[c];
        // the shift is zero up to rounding unless the whole channel lies on one side of zero
        if (part == ACTNN_POSITIVE && !(shift[c] > 0)) shift[c] = 0;
    }
}

} // namespace
} // namespace actnn

using namespace actnn;

int32_t actnn_decode_output(const actnn_layout *layout, const actnn_output *parameters, int32_t simd, int32_t threads,
                            int64_t first, int64_t count, const uint8_t *buffer, int32_t part, void *values,
                            int32_t dtype) {
    Call call;
    if (parameters == nullptr || (part != ACTNN_WHOLE && part != ACTNN_POSITIVE)) return ACTNN_BAD_ARGUMENT;
    const actnn_status status = read_call(layout, &parameters->channels, simd, threads, dtype, buffer, call);
    if (status != ACTNN_OK) return status;
    const Planes &planes = call.split.planes;
    if (!has_samples(planes, first, count)) return ACTNN_BAD_ARGUMENT;
    if (!is_dtype(parameters->gamma_dtype) || !is_dtype(parameters->beta_dtype)) return ACTNN_BAD_ARGUMENT;
    if (planes.count() == 0) return ACTNN_OK;
    if (parameters->workspace == nullptr || values == nullptr) return ACTNN_BAD_ARGUMENT;

    float *const scale = parameters->workspace, *const shift = scale + call.channels.channels;
    read_output(*parameters, part, scale, shift);
    const Output output(*call.groups, values, dtype, count * planes.elements * bytes_of(dtype) >= STREAMED_BYTES);
    const Key key = read_key(buffer);
    const int64_t groups = groups_of(planes.elements);
    share_groups(count * groups, threads, [&](int64_t begin, int64_t end) {
        Spreader<2> scales(call.channels, {scale, shift});
        alignas(64) float values_of_group[GROUP];
        visit_groups(planes, first * groups + begin, first * groups + end, [&](const Group &group) {
            output.write(group.first - first * planes.elements, group.length, values_of_group, [&](float *x) {
                call.groups->decode(call.split.words(group.bits), group_key(key, group.index), part,
                                    buffer + call.split.scales_of(group.index), buffer + group.planes, group.length, x);
                call.kernels->scale(x, scales.of(group.place, group.length), group.length, x);
            });
        });
        output.finish();
    });
    return ACTNN_OK;
}

int32_t actnn_normalize(const actnn_layout *layout, const actnn_channels *channels,
                        const actnn_normalization *normalization, int32_t simd, int32_t threads,
                        const uint32_t key_words[4], const void *values, void *out, int32_t dtype, uint8_t *buffer) {
    Call call;
    if (key_words == nullptr || normalization == nullptr) return ACTNN_BAD_ARGUMENT;
    const actnn_status status = read_call(layout, channels, simd, threads, dtype, buffer, call);
    if (status != ACTNN_OK) return status;
    const Key key{{key_words[0], key_words[1], key_words[2], key_words[3]}};
    write_key(key, buffer);
    const Planes &planes = call.split.planes;
    if (planes.count() == 0) return ACTNN_OK;
    const auto [slope, offset, mean, inverse, threshold] = *normalization;
    if (!slope || !offset || !mean || !inverse || !threshold || !values || !out) return ACTNN_BAD_ARGUMENT;

    const Input input(*call.groups, values, dtype);
    // in place, the lines to write are in the cache anyway
    const bool stream = out != values && planes.count() * bytes_of(dtype) >= STREAMED_BYTES;
    const Output output(*call.groups, out, dtype, stream);
    share_groups(planes.groups(), threads, [&](int64_t begin, int64_t end) {
        Spreader<5> parameters(call.channels, {slope, offset, mean, inverse, threshold});
        alignas(64) float values_of_group[GROUP];
        alignas(64) float out_of_group[GROUP];
        visit_groups(planes, begin, end, [&](const Group &group) {
            const Spread<5> spread = parameters.of(group.place, group.length);
            const float *const x = input.read(group.first, group.length, values_of_group);
            output.write(group.first, group.length, out_of_group, [&](float *y) {
                call.kernels->normalize(call.split.words(group.bits), group_key(key, group.index), x, spread,
                                        group.length, y, buffer + call.split.scales_of(group.index),
                                        buffer + group.planes);
            });
        });
        output.finish();
    });
    return ACTNN_OK;
}

int64_t actnn_gradient_workspace(const actnn_layout *layout, const actnn_channels *channels) {
    if (layout == nullptr || !are_channels(channels, layout->samples, layout->elements)) return 0;
    return Tasks(layout->samples, layout->elements, *channels).floats();
}

int32_t actnn_gradient_sums(const actnn_layout *layout, const actnn_channels *channels, int32_t rectified, int32_t simd,
                            int32_t threads, const uint8_t *buffer, const void *grad, int32_t dtype, float *workspace,
                            float *sum_grad, float *sum_product) {
    Call call;
    const actnn_status status = read_call(layout, channels, simd, threads, dtype, buffer, call);
    if (status != ACTNN_OK) return status;
    if (call.channels.channels > 0 && (sum_grad == nullptr || sum_product == nullptr)) return ACTNN_BAD_ARGUMENT;
    const Planes &planes = call.split.planes;
    const Tasks tasks(planes.samples, planes.elements, call.channels);
    if (tasks.count() > 0 && (grad == nullptr || workspace == nullptr)) return ACTNN_BAD_ARGUMENT;

    share_tasks(tasks.count(), planes.groups(), threads, [&](int64_t begin, int64_t end) {
        GradientReader reader(call, buffer, rectified != 0, grad, dtype);
        for (int64_t task = begin; task < end; ++task) {
            float *const row = workspace + 2 * tasks.row(task) * call.channels.channels;
            const auto sum = tasks.neighbours() ? sum_neighbours : sum_runs;
            sum(call, reader, tasks.sample(task), tasks.begin(task), tasks.end(task), row);
        }
    });
    const int64_t rows = tasks.count() > 0 ? tasks.rows() : 0;
    add_rows(workspace, rows, call.channels.channels, sum_grad, sum_product);
    return ACTNN_OK;
}

int32_t actnn_gradient(const actnn_layout *layout, const actnn_channels *channels, int32_t rectified, int32_t simd,
                       int32_t threads, const uint8_t *buffer, const void *grad, int32_t dtype, const float *of_grad,
                       const float *of_value, const float *constant, const float *of_noise, void *out) {
    Call call;
    const actnn_status status = read_call(layout, channels, simd, threads, dtype, buffer, call);
    if (status != ACTNN_OK) return status;
    const Planes &planes = call.split.planes;
    if (planes.count() == 0) return ACTNN_OK;
    if (!of_grad || !of_value || !constant || !grad || !out) return ACTNN_BAD_ARGUMENT;

    const bool stream = out != grad && planes.count() * bytes_of(dtype) >= STREAMED_BYTES;
    const Output output(*call.groups, out, dtype, stream);
    share_groups(planes.groups(), threads, [&](int64_t begin, int64_t end) {
        GradientReader reader(call, buffer, rectified != 0, grad, dtype);
        OwnNoise noise(call, buffer, rectified != 0, of_noise);
        Spreader<3> parameters(call.channels, {of_grad, of_value, constant});
        alignas(64) float out_of_group[GROUP];
        visit_groups(planes, begin, end, [&](const Group &group) {
            const auto elements = reader.read(group);
            const float *const own = of_noise ? noise.weigh(group, elements.grad) : elements.grad;
            const Spread<3> spread = parameters.of(group.place, group.length);
            output.write(group.first, group.length, out_of_group, [&](float *result) {
                call.kernels->combine(own, elements.value, spread, group.length, result);
            });
        });
        output.finish();
    });
    return ACTNN_OK;
}
