// A whole forward and a whole backward of BatchNorm: the passes, and what leads from one to the next.
//
// Numbers of a channel are computed in single float32 operations, in the order of the reference: its threshold decides
// on which side of a code an element lies.

#include <cmath>

#include "arrays.h"
#include "layout.h"
#include "spread.h"

namespace actnn {
namespace {

// Rows of one float a channel, one after another.
class Rows {
  public:
    Rows(float *memory, int64_t channels) : next_(memory), channels_(channels) {}

    float *next() {
        float *const row = next_;
        next_ += channels_;
        return row;
    }

    float *rest() const { return next_; }

  private:
    float *next_;
    int64_t channels_;
};

constexpr int64_t FORWARD_ROWS = 9;
constexpr int64_t BACKWARD_ROWS = 6;

// Up to so many values of a channel, what each adds to the noise of its own gradient is taken out.
constexpr int64_t MOST_VALUES = 1024;

struct Statistics {
    const float *mean, *variance, *low, *high;
};

bool are_dtypes(const actnn_batch_norm &layer) {
    return is_dtype(layer.gamma_dtype) && is_dtype(layer.beta_dtype) && is_dtype(layer.mean_dtype) &&
           is_dtype(layer.variance_dtype);
}

// Let running statistics follow new ones, each times a ratio.
void track(const actnn_batch_norm &layer, const float *values, float ratio, int32_t dtype, void *running) {
    if (running == nullptr) return;
    const float kept = static_cast<float>(1.0 - layer.momentum), added = static_cast<float>(layer.momentum);
    for (int64_t c = 0; c < layer.channels.channels; ++c) {
        const float old = load_number(running, dtype, c);
        store_number(kept * old + added * (values[c] * ratio), dtype, c, running);
    }
}

void track_all(const actnn_batch_norm &layer, const Statistics &statistics) {
    const double count = static_cast<double>(layer.count);
    const double ratio = layer.unbiased ? count / std::max(1.0, count - 1) : 1.0;
    track(layer, statistics.mean, 1.0f, layer.mean_dtype, layer.running_mean);
    track(layer, statistics.variance, static_cast<float>(ratio), layer.variance_dtype, layer.running_variance);
    if (layer.batches) ++*layer.batches;
}

// Where the output changes sign, within the range of the normalised input.
float crossing_of(float gamma, float beta, float low, float high) {
    float crossing = -beta / gamma;
    // with gamma 0 the output is beta everywhere: all of the channel lies on one side
    if (gamma == 0) crossing = beta > 0 ? low : high;
    if (crossing < low) crossing = low;
    if (crossing > high) crossing = high;
    return crossing;
}

float sign_of(float gamma) { return gamma < 0 ? -1.0f : 1.0f; }

// What the passes of a forward read, in the rows of a workspace.
struct Prepared {
    float *slope, *offset, *inverse, *threshold, *weight;

    explicit Prepared(Rows &rows)
        : slope(rows.next()), offset(rows.next()), inverse(rows.next()), threshold(rows.next()), weight(rows.next()) {}

    void fill(const actnn_batch_norm &layer, const Statistics &statistics, bool affine) const {
        const float epsilon = static_cast<float>(layer.epsilon);
        const int64_t channels = layer.channels.channels;
        for (int64_t c = 0; c < channels; ++c) {
            const float gamma = number_or(layer.gamma, layer.gamma_dtype, c, 1.0f);
            const float beta = number_or(layer.beta, layer.beta_dtype, c, 0.0f);
            const float mean = statistics.mean[c];
            const float deviation = 1.0f / std::sqrt(statistics.variance[c] + epsilon);
            layer.saved[c] = deviation;
            slope[c] = gamma * deviation;
            offset[c] = beta - mean * slope[c];
            weight[c] = gamma * gamma;
            if (affine) {
                inverse[c] = deviation;
                threshold[c] = 0.0f * deviation;
                continue;
            }
            const float low = (statistics.low[c] - mean) * deviation, high = (statistics.high[c] - mean) * deviation;
            inverse[c] = sign_of(gamma) * deviation;
            threshold[c] = sign_of(gamma) * crossing_of(gamma, beta, low, high);
            layer.saved[channels + c] = threshold[c];
        }
    }
};

// How a backward reads the coded value: the normalised input is factor * v + shift.
struct Scheme {
    float slope, factor, shift;
    bool plain; // the coded value is the normalised input itself

    Scheme(const actnn_backward &call, bool affine, int64_t c) : plain(affine && !call.of_input) {
        const actnn_batch_norm &layer = call.layer;
        const float gamma = number_or(layer.gamma, layer.gamma_dtype, c, 1.0f), inverse = layer.saved[c];
        slope = gamma * inverse;
        if (plain) return;
        const float second = layer.saved[layer.channels.channels + c];
        factor = call.of_input ? inverse : sign_of(gamma);
        shift = call.of_input ? -inverse * second : factor * second;
    }

    float gamma_gradient(float sum_grad, float sum_product) const {
        return plain ? sum_product : factor * sum_product + shift * sum_grad;
    }

    // The gradient of the input is of_grad * grad + of_value * v + constant.
    void combine(float of_gamma, float of_beta, float count, float &of_grad, float &of_value, float &constant) const {
        const float of_normalized = -slope * of_gamma / count;
        of_grad = slope;
        of_value = plain ? of_normalized : of_normalized * factor;
        constant = -slope * of_beta / count;
        if (!plain) constant = constant + of_normalized * shift;
    }

    // The mean of grad times the normalised input contains each element, and is multiplied by it: on average the
    // gradient of the input lacks this times the variance of v, relatively.
    float own_noise(float count) const { return plain ? 1.0f / count : factor * factor / count; }
};

bool is_affine(const actnn_layout &layout) { return layout.negative[MOST_BITS] == 0; }

} // namespace
} // namespace actnn

using namespace actnn;

int64_t actnn_forward_workspace(const actnn_layout *layout, const actnn_channels *channels) {
    if (layout == nullptr || !are_channels(channels, layout->samples, layout->elements)) return 0;
    return FORWARD_ROWS * channels->channels +
           actnn_statistics_workspace(layout->samples, layout->elements, channels);
}

int32_t actnn_batch_norm_forward(const actnn_layout *layout, const actnn_division *division,
                                 const actnn_forward *call) {
    if (layout == nullptr || call == nullptr || !are_dtypes(call->layer)) return ACTNN_BAD_ARGUMENT;
    const auto &[layer, simd, threads, dtype, key, values, out, buffer] = *call;
    if (!are_channels(&layer.channels, layout->samples, layout->elements)) return ACTNN_BAD_ARGUMENT;
    const int64_t channels = layer.channels.channels;
    if (channels > 0 && (!layer.saved || !layer.workspace)) return ACTNN_BAD_ARGUMENT;
    const bool nothing = layout->samples == 0 || layout->elements == 0;
    if (buffer == nullptr || (!nothing && (!values || !out))) return ACTNN_BAD_ARGUMENT;

    Rows rows(layer.workspace, channels);
    const Prepared prepared(rows);
    Statistics statistics;
    int32_t status = ACTNN_OK;
    if (layer.statistics) {
        Rows given(const_cast<float *>(layer.statistics), channels);
        statistics = {given.next(), given.next(), given.next(), given.next()};
    } else {
        float *const mean = rows.next(), *const variance = rows.next(), *const low = rows.next(),
                     *const high = rows.next();
        status = actnn_channel_statistics(layout->samples, layout->elements, &layer.channels, simd, threads, values,
                                          dtype, rows.rest(), mean, variance, low, high);
        statistics = {mean, variance, low, high};
    }
    if (status != ACTNN_OK) return status;
    prepared.fill(layer, statistics, is_affine(*layout));

    const actnn_normalization normalization{prepared.slope, prepared.offset, statistics.mean, prepared.inverse,
                                            prepared.threshold};
    actnn_layout chosen = *layout;
    if (division) {
        status = actnn_ranges(layout, &layer.channels, &normalization, prepared.weight, simd, threads,
                              division->stride, values, dtype, division->ranges);
        if (status == ACTNN_OK) status = actnn_divide(layout, division);
        if (status != ACTNN_OK) return status;
        chosen = divided_layout(*layout, *division);
    }
    status = actnn_normalize(&chosen, &layer.channels, &normalization, simd, threads, key, values, out, dtype, buffer);
    if (status == ACTNN_OK) track_all(layer, statistics);
    return status;
}

int64_t actnn_backward_workspace(const actnn_layout *layout, const actnn_channels *channels) {
    if (layout == nullptr || !are_channels(channels, layout->samples, layout->elements)) return 0;
    return BACKWARD_ROWS * channels->channels + actnn_gradient_workspace(layout, channels);
}

int32_t actnn_batch_norm_backward(const actnn_layout *layout, const actnn_backward *call) {
    if (layout == nullptr || call == nullptr || !are_dtypes(call->layer)) return ACTNN_BAD_ARGUMENT;
    const auto &[layer, simd, threads, dtype, rectified, of_input, buffer, grad, grads, sums, out, stride, energy] =
        *call;
    if (!are_channels(&layer.channels, layout->samples, layout->elements)) return ACTNN_BAD_ARGUMENT;
    const int64_t channels = layer.channels.channels;
    if (channels > 0 && (!layer.saved || !layer.workspace || !(grads || sums))) return ACTNN_BAD_ARGUMENT;

    const bool affine = is_affine(*layout);
    Rows rows(layer.workspace, channels);
    const float *of_gamma = sums, *of_beta = sums ? sums + channels : nullptr;
    if (sums == nullptr) {
        float *const sum_grad = rows.next(), *const sum_product = rows.next();
        Rows coefficients = rows;
        for (int k = 0; k < 4; ++k) coefficients.next();
        int32_t status = actnn_gradient_sums(layout, &layer.channels, rectified, simd, threads, buffer, grad, dtype,
                                             coefficients.rest(), sum_grad, sum_product);
        if (status == ACTNN_OK && energy) {
            status = actnn_energy(layout->samples, layout->elements, simd, threads, stride, grad, dtype, energy);
        }
        if (status != ACTNN_OK) return status;
        for (int64_t c = 0; c < channels; ++c) {
            grads[c] = Scheme(*call, affine, c).gamma_gradient(sum_grad[c], sum_product[c]);
            grads[channels + c] = sum_grad[c];
        }
        of_gamma = grads;
        of_beta = grads + channels;
    }
    if (out == nullptr) return ACTNN_OK;
    float *const of_grad = rows.next(), *const of_value = rows.next(), *const constant = rows.next();
    float *const of_noise = rows.next();
    const float count = static_cast<float>(layer.count);
    for (int64_t c = 0; c < channels; ++c) {
        const Scheme scheme(*call, affine, c);
        scheme.combine(of_gamma[c], of_beta[c], count, of_grad[c], of_value[c], constant[c]);
        of_noise[c] = scheme.own_noise(count);
    }
    return actnn_gradient(layout, &layer.channels, rectified, simd, threads, buffer, grad, dtype, of_grad, of_value,
                          constant, layer.count > MOST_VALUES ? nullptr : of_noise, out);
}
