// What the forward and the backward of a normalisation over rows share: arguments, parts of rows, parameters.
#pragma once

#include "arrays.h"
#include "layout.h"
#include "rows.h"
#include "spread.h"

namespace actnn {

// Rows up to this width are measured, or decoded, while they are in the second-level cache.
constexpr int64_t NARROW = 8192;

// The most groups that a row of some width has a part in.
constexpr int64_t parts_of(int64_t width) { return (width - 1) / GROUP + 2; }

// Call visit(part, start, stop) for the parts of a row that begins `place` elements into its sample; start and stop
// count from there.
template <class Visit> void visit_row(int64_t place, int64_t width, Visit visit) {
    int64_t start = 0;
    for (int64_t part = 0; start < width; ++part) {
        const int64_t stop = std::min(width, start + GROUP - (place + start) % GROUP);
        visit(part, start, static_cast<int>(stop - start));
        start = stop;
    }
}

// Finds the parts of rows in groups; rows count over all samples.
class RowCursor {
  public:
    explicit RowCursor(int64_t width) : width_(width) {}

    // Call visit(row, start, length) for the parts in a group.
    template <class Visit> void visit(const Group &group, Visit visit) {
        // groups follow each other, as a rule, and a division takes its time
        if (group.first != next_) {
            row_ = group.first / width_;
            left_ = width_ - group.first % width_;
        }
        next_ = group.first + group.length;
        for (int start = 0; start < group.length;) {
            const int length = static_cast<int>(std::min<int64_t>(group.length - start, left_));
            visit(row_, start, length);
            start += length;
            left_ -= length;
            if (left_ == 0) {
                ++row_;
                left_ = width_;
            }
        }
    }

  private:
    int64_t width_;
    int64_t next_ = -1; // the element that `row_` and `left_` are about
    int64_t row_ = 0;
    int64_t left_ = 0;
};

// The arguments of a forward or a backward, checked.
struct RowCall {
    SplitLayout split;
    actnn_row_norm layer;
    const GroupKernels *groups;
    const ChannelKernels *channels;
    const RowKernels *kernels;
    int32_t threads;
    int32_t dtype;

    int64_t width() const { return layer.rows.width; }
    int64_t parameters() const { return layer.rows.parameters.channels; }
    int64_t rows() const { return split.planes.count() / std::max<int64_t>(1, width()); }
    bool narrow() const { return width() <= NARROW; }
    // Which part of its row lies in a group: `first` is an element of both.
    int64_t part_of(int64_t row, int64_t first) const {
        const int64_t elements = split.planes.elements;
        return first % elements / GROUP - row * width() % elements / GROUP;
    }
};

inline bool are_rows(const actnn_rows *rows, int64_t samples, int64_t elements) {
    if (rows == nullptr || check_shape(samples, elements) != ACTNN_OK) return false;
    if (rows->width < 0 || !are_channels(&rows->parameters, samples, elements)) return false;
    return samples == 0 || elements == 0 || (rows->width > 0 && elements % rows->width == 0);
}

inline actnn_status read_row_call(const actnn_layout *layout, const actnn_row_norm &layer, int32_t simd,
                                  int32_t threads, int32_t dtype, const void *buffer, RowCall &call) {
    if (threads < 1 || !is_dtype(dtype) || simd < ACTNN_SCALAR || simd > ACTNN_AVX2 || buffer == nullptr) {
        return ACTNN_BAD_ARGUMENT;
    }
    if (!is_dtype(layer.gamma_dtype) || !is_dtype(layer.beta_dtype)) return ACTNN_BAD_ARGUMENT;
    if (const actnn_status status = read_layout(layout, call.split); status != ACTNN_OK) return status;
    if (layout->negative[MOST_BITS] != 0) return ACTNN_BAD_ARGUMENT;
    if (!are_rows(&layer.rows, layout->samples, layout->elements)) return ACTNN_BAD_ARGUMENT;
    if (call.split.planes.count() > 0 && (!layer.saved || !layer.workspace)) return ACTNN_BAD_ARGUMENT;
    call.groups = kernels_of(simd);
    if (call.groups == nullptr) return ACTNN_UNSUPPORTED;
    call.layer = layer;
    call.channels = &channels_of(simd);
    call.kernels = &rows_of(simd);
    call.threads = threads;
    call.dtype = dtype;
    return ACTNN_OK;
}

// Arrays of one float a parameter as consecutive elements of a sample see them.
template <int COUNT> class ElementParameters {
  public:
    struct Elements {
        const float *arrays[COUNT];
    };

    ElementParameters(const actnn_channels &channels, const float *const (&arrays)[COUNT]) : channels_(channels) {
        std::copy_n(arrays, COUNT, arrays_);
    }

    // Good until the next call; `length` is at most that of a group.
    Elements of(int64_t place, int length) {
        Elements result;
        // elements follow each other, as a rule, and a division takes its time
        const bool next = channels_.inner == 1 && place == next_ && next_channel_ < channels_.channels;
        const int64_t channel = next ? next_channel_ : place / channels_.inner % channels_.channels;
        next_ = place + length;
        next_channel_ = channel + length;
        if (channels_.inner == 1 && channel + length <= channels_.channels) {
            for (int k = 0; k < COUNT; ++k) result.arrays[k] = arrays_[k] + channel;
            return result;
        }
        const bool alone = place % channels_.inner + length <= channels_.inner;
        // long runs of one parameter are spread once
        if (!alone || channel != channel_ || length > spread_length_) {
            visit_runs(channels_, place, length, [&](int64_t of, int start, int stop) {
                for (int k = 0; k < COUNT; ++k) std::fill(spread_[k] + start, spread_[k] + stop, arrays_[k][of]);
            });
            channel_ = alone ? channel : -1;
            spread_length_ = length;
        }
        for (int k = 0; k < COUNT; ++k) result.arrays[k] = spread_[k];
        return result;
    }

  private:
    actnn_channels channels_;
    const float *arrays_[COUNT];
    int64_t next_ = -1, next_channel_ = 0; // where the last elements ended
    int64_t channel_ = -1;                 // which the whole of spread_ belongs to
    int spread_length_ = 0;
    alignas(64) float spread_[COUNT][GROUP];
};

} // namespace actnn
