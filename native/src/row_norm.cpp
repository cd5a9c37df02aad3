// The forward of a normalisation over rows: statistics of each row, the output, and a code of the normalised values.

#include <cmath>

#include "parallel.h"
#include "ranges.h"
#include "row_norm.h"

namespace actnn {
namespace {

struct Statistics {
    float mean;
    float inverse;
};

float inverse_deviation(const RowCall &call, float squares) {
    const float variance = squares / static_cast<float>(call.width());
    return 1.0f / std::sqrt(variance + static_cast<float>(call.layer.epsilon));
}

// Measures narrow rows, each while it is in the cache.
class RowReader {
  public:
    RowReader(const RowCall &call, const Input &input) : call_(call), input_(input) {}

    Statistics read(int64_t row) {
        const int64_t width = call_.width(), first = row * width, place = first % call_.split.planes.elements;
        const int64_t parts = parts_of(width);
        const float *x = nullptr;
        std::fill_n(sums_, parts, 0.0f);
        visit_row(place, width, [&](int64_t part, int64_t start, int length) {
            const float *const values = input_.read(first + start, length, buffer_ + start);
            if (part == 0) x = values; // the parts follow each other, wherever they are
            if (call_.layer.centred) sums_[part] = call_.kernels->sum(values, length);
        });
        const float mean = folded(sums_, parts) / static_cast<float>(width);
        std::fill_n(sums_, parts, 0.0f);
        visit_row(place, width, [&](int64_t part, int64_t start, int length) {
            sums_[part] = call_.kernels->squares(x + start, mean, length);
        });
        return {mean, inverse_deviation(call_, folded(sums_, parts))};
    }

  private:
    const RowCall &call_;
    const Input &input_;
    float sums_[parts_of(NARROW)];
    alignas(64) float buffer_[NARROW];
};

// Yields the statistics of narrow rows in order, measured on the way.
class MeasuredRows {
  public:
    // `first` is the first element that is asked for.
    MeasuredRows(const RowCall &call, const Input &input, int64_t first)
        : reader_(call, input), saved_(call.layer.saved), own_((first + call.width() - 1) / call.width()) {}

    Statistics operator()(int64_t row) {
        if (row == row_) return current_;
        row_ = row;
        current_ = reader_.read(row);
        // a row that begins before the first element is another thread's, too
        if (row >= own_) saved_[row] = current_.inverse;
        return current_;
    }

  private:
    RowReader reader_;
    float *saved_;
    int64_t own_;
    int64_t row_ = -1;
    Statistics current_{};
};

// Fold what was summed up in each part of wide rows.
template <class Write> void fold_rows(const RowCall &call, float *parts, Write write) {
    const int64_t count = parts_of(call.width());
    share_tasks(call.rows(), call.split.planes.groups() / GROUP, call.threads, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) write(row, folded(parts + row * count, count));
    });
}

// Let sum(row, x, length) fill the parts of wide rows.
template <class Sum> void sum_parts(const RowCall &call, const Input &input, float *parts, Sum sum) {
    const int64_t count = parts_of(call.width());
    std::fill_n(parts, call.rows() * count, 0.0f);
    share_groups(call.split.planes.groups(), call.threads, [&](int64_t begin, int64_t end) {
        RowCursor rows(call.width());
        alignas(64) float buffer[GROUP];
        visit_groups(call.split.planes, begin, end, [&](const Group &group) {
            const float *const x = input.read(group.first, group.length, buffer);
            rows.visit(group, [&](int64_t row, int start, int length) {
                parts[row * count + call.part_of(row, group.first + start)] = sum(row, x + start, length);
            });
        });
    });
}

// Measure all rows before anything else is done.
void measure_rows(const RowCall &call, const Input &input, float *mean, float *parts) {
    float *const saved = call.layer.saved;
    if (call.narrow()) {
        share_tasks(call.rows(), call.split.planes.groups(), call.threads, [&](int64_t begin, int64_t end) {
            RowReader reader(call, input);
            for (int64_t row = begin; row < end; ++row) {
                const Statistics found = reader.read(row);
                mean[row] = found.mean;
                saved[row] = found.inverse;
            }
        });
        return;
    }
    std::fill_n(mean, call.rows(), 0.0f);
    if (call.layer.centred) {
        sum_parts(call, input, parts, [&](int64_t, const float *x, int length) { return call.kernels->sum(x, length); });
        fold_rows(call, parts, [&](int64_t row, float sum) { mean[row] = sum / static_cast<float>(call.width()); });
    }
    sum_parts(call, input, parts, [&](int64_t row, const float *x, int length) {
        return call.kernels->squares(x, mean[row], length);
    });
    fold_rows(call, parts, [&](int64_t row, float squares) { saved[row] = inverse_deviation(call, squares); });
}

// Write output and code; make(first) returns what yields the statistics of rows from an element on.
template <class Make>
void normalize_rows(const RowCall &call, const Key &key, const Input &input, const Output &output, const float *gamma,
                    const float *beta, uint8_t *buffer, Make make) {
    const Planes &planes = call.split.planes;
    share_groups(planes.groups(), call.threads, [&](int64_t begin, int64_t end) {
        const int64_t groups = groups_of(planes.elements);
        auto statistics = make(begin / groups * planes.elements + begin % groups * GROUP);
        ElementParameters<2> parameters(call.layer.rows.parameters, {gamma, beta});
        RowCursor rows(call.width());
        alignas(64) float values_of_group[GROUP], out_of_group[GROUP], v[GROUP];
        visit_groups(planes, begin, end, [&](const Group &group) {
            const float *const x = input.read(group.first, group.length, values_of_group);
            output.write(group.first, group.length, out_of_group, [&](float *y) {
                Extremes extremes{INFINITY, -INFINITY, true};
                rows.visit(group, [&](int64_t row, int start, int length) {
                    const Statistics of_row = statistics(row);
                    const auto [scale, shift] = parameters.of(group.place + start, length).arrays;
                    const Extremes part = call.kernels->normalize(x + start, of_row.mean, of_row.inverse, scale, shift,
                                                                  length, v + start, y + start);
                    extremes = joined(extremes, part);
                });
                call.kernels->encode(call.split.words(group.bits), group_key(key, group.index), extremes, v, x, y,
                                     group.length, buffer + call.split.scales_of(group.index), buffer + group.planes);
            });
        });
        output.finish();
    });
}

// The arrays of a workspace, in this order.
struct Workspace {
    float *gamma, *beta, *weight, *mean, *parts;

    Workspace(float *memory, int64_t parameters, int64_t rows)
        : gamma(memory), beta(gamma + parameters), weight(beta + parameters), mean(weight + parameters),
          parts(mean + rows) {}

    void fill(const actnn_row_norm &layer) const {
        for (int64_t p = 0; p < layer.rows.parameters.channels; ++p) {
            gamma[p] = number_or(layer.gamma, layer.gamma_dtype, p, 1.0f);
            beta[p] = number_or(layer.beta, layer.beta_dtype, p, 0.0f);
            weight[p] = gamma[p] * gamma[p];
        }
    }
};

// Ranges of the normalised values, which readers of the output see weighted by the squares of gamma.
int32_t divide_rows(const actnn_layout &layout, const actnn_division &division, const actnn_forward_row &call,
                    const Workspace &workspace, int64_t rows) {
    // what nothing is shifted by
    std::fill_n(workspace.parts, rows, 0.0f);
    const actnn_rows &form = call.layer.rows;
    const RangeRule rule{{rows, form.width}, workspace.mean, call.layer.saved, workspace.parts, true,
                         form.parameters,    workspace.weight};
    const int32_t status = measure_ranges(layout, rule, call.simd, call.threads, division.stride, call.values,
                                          call.dtype, division.ranges);
    return status == ACTNN_OK ? actnn_divide(&layout, &division) : status;
}

} // namespace
} // namespace actnn

using namespace actnn;

int64_t actnn_row_forward_workspace(const actnn_layout *layout, const actnn_rows *rows) {
    if (layout == nullptr || !are_rows(rows, layout->samples, layout->elements)) return 0;
    const int64_t count = layout->samples * layout->elements / std::max<int64_t>(1, rows->width);
    return 3 * rows->parameters.channels + count + count * (rows->width > NARROW ? parts_of(rows->width) : 1);
}

int32_t actnn_row_norm_forward(const actnn_layout *layout, const actnn_division *division,
                               const actnn_forward_row *given) {
    if (layout == nullptr || given == nullptr) return ACTNN_BAD_ARGUMENT;
    const auto &[layer, simd, threads, dtype, key_words, values, out, buffer] = *given;
    actnn_layout chosen = *layout;
    if (division) {
        // widths that are still to be divided say nothing yet
        chosen.bits = division->least_bits;
        chosen.sample_bits = nullptr;
        chosen.sample_offsets = nullptr;
    }
    RowCall call;
    if (const actnn_status status = read_row_call(&chosen, layer, simd, threads, dtype, buffer, call);
        status != ACTNN_OK) {
        return status;
    }
    const bool nothing = call.split.planes.count() == 0;
    if (!nothing && (!values || !out)) return ACTNN_BAD_ARGUMENT;

    const Workspace workspace(layer.workspace, call.parameters(), nothing ? 0 : call.rows());
    const Input input(*call.groups, values, dtype);
    // threads that write their rows must not change what others still measure
    const bool apart = division || values == out || !call.narrow();
    if (!nothing) workspace.fill(layer);
    if (!nothing && apart) measure_rows(call, input, workspace.mean, workspace.parts);
    if (division) {
        const int32_t status = divide_rows(*layout, *division, *given, workspace, nothing ? 0 : call.rows());
        if (status != ACTNN_OK) return status;
        chosen = divided_layout(*layout, *division);
        if (const actnn_status bad = read_layout(&chosen, call.split); bad != ACTNN_OK) return bad;
    }
    const Key key{{key_words[0], key_words[1], key_words[2], key_words[3]}};
    write_key(key, buffer);
    if (nothing) return ACTNN_OK;

    const bool stream = out != values && call.split.planes.count() * bytes_of(dtype) >= STREAMED_BYTES;
    const Output output(*call.groups, out, dtype, stream);
    const auto normalize = [&](auto make) {
        normalize_rows(call, key, input, output, workspace.gamma, workspace.beta, buffer, make);
    };
    if (apart) {
        const float *const mean = workspace.mean, *const inverse = layer.saved;
        normalize([=](int64_t) { return [=](int64_t row) { return Statistics{mean[row], inverse[row]}; }; });
    } else {
        normalize([&](int64_t first) { return MeasuredRows(call, input, first); });
    }
    return ACTNN_OK;
}
