// The backward of a normalisation over rows: the sums of each row, the gradients of its parameters and of its input.

#include <numeric>

#include "parallel.h"
#include "row_norm.h"

namespace actnn {
namespace {

// The rows of a batch, or the groups where rows are wide, in tasks that do not depend on the number of threads. A task
// owns one row of partial sums: (grad * v, grad) of every parameter.
class Tasks {
  public:
    Tasks(int64_t samples, int64_t elements, const actnn_rows &rows) : narrow_(rows.width <= NARROW) {
        const int64_t width = std::max<int64_t>(1, rows.width), unit = narrow_ ? width : GROUP;
        units_ = narrow_ ? samples * elements / width : samples * groups_of(elements);
        // partial sums stay a small part of the activation
        const int64_t least = std::max(ELEMENTS, 64 * rows.parameters.channels);
        units_of_task_ = (least + unit - 1) / unit;
        // groups that two tasks have a part in are decoded by both: where some rows are whole groups, take those
        const int64_t whole = GROUP / std::gcd<int64_t>(GROUP, unit);
        if (units_of_task_ >= whole) units_of_task_ = units_of_task_ / whole * whole;
        count_ = (units_ + units_of_task_ - 1) / units_of_task_;
    }

    int64_t count() const { return count_; }
    int64_t begin(int64_t task) const { return task * units_of_task_; }
    int64_t end(int64_t task) const { return std::min(units_, begin(task) + units_of_task_); }

  private:
    static constexpr int64_t ELEMENTS = 64 * GROUP;

    bool narrow_;
    int64_t units_, units_of_task_, count_;
};

// What a backward reads and writes.
struct Backward {
    const RowCall &call;
    const uint8_t *buffer;
    Key key;
    Input grad;
    Output out;
    bool of_parameters, of_input; // which gradients are wanted
    const float *gamma;

    // Decode a group, and tell the variance of its noise as a share of the row's width.
    void decode(const Group &group, float *v, float *noise) const {
        const Words words = call.split.words(group.bits), inner = straight(words);
        const uint8_t *const scales = buffer + call.split.scales_of(group.index);
        call.groups->decode(inner, group_key(key, group.index), ACTNN_WHOLE, scales, buffer + group.planes,
                            group.length, v);
        const float width = static_cast<float>(call.width());
        const float range = read_scales(inner, scales).second;
        const NoiseVariance variance = noise_variance(words, whole_step(words.positive(), range, range), REACH);
        if (words.curve == ACTNN_LINEAR) {
            std::fill_n(noise, group.length, variance.constant / width);
            return;
        }
        call.kernels->unbend(unbending_of(words, scales),
                             {variance.constant / width, variance.quadratic / width, variance.quartic / width},
                             group.length, v, noise);
    }

    float mean(float *parts) const {
        return folded(parts, parts_of(call.width())) / static_cast<float>(call.width());
    }
};

// Adds what consecutive elements of a sample contribute to the gradients of the parameters.
void add_parameters(const RowCall &call, const float *grad, const float *v, int64_t place, int length, float *sums) {
    const actnn_channels &channels = call.layer.rows.parameters;
    float *const products = sums, *const grads = sums + channels.channels;
    if (channels.inner > 1) {
        visit_runs(channels, place, length, [&](int64_t channel, int start, int stop) {
            const GradientSums found = call.channels->sums(grad + start, v + start, stop - start);
            grads[channel] += found.grad;
            products[channel] += found.product;
        });
        return;
    }
    for (int start = 0; start < length;) {
        const int64_t channel = (place + start) % channels.channels;
        const int count = static_cast<int>(std::min<int64_t>(length - start, channels.channels - channel));
        call.channels->add_sums(grad + start, v + start, count, grads + channel, products + channel);
        start += count;
    }
}

// The decoded values of the groups that a row has parts in. Rows are asked for in order: what two of them have in common
// is decoded once.
class Window {
  public:
    explicit Window(const Backward &backward) : backward_(backward) {}

    // Decode the groups begin to end - 1; returns the first element of the first.
    const float *read(int64_t begin, int64_t end) {
        const int64_t kept = begin >= begin_ && begin < end_ ? end_ - begin : 0;
        if (kept > 0 && begin > begin_) {
            std::copy_n(values_ + (begin - begin_) * GROUP, kept * GROUP, values_);
            std::copy_n(noise_ + (begin - begin_) * GROUP, kept * GROUP, noise_);
        }
        visit_groups(backward_.call.split.planes, begin + kept, end, [&](const Group &group) {
            const int64_t slot = group.index - begin;
            backward_.decode(group, values_ + slot * GROUP, noise_ + slot * GROUP);
        });
        begin_ = begin;
        end_ = std::max(end, begin + kept);
        return values_;
    }

    // The noise of what was read, element by element.
    const float *noise() const { return noise_; }

  private:
    const Backward &backward_;
    int64_t begin_ = 0, end_ = 0;
    alignas(64) float values_[parts_of(NARROW) * GROUP], noise_[parts_of(NARROW) * GROUP];
};

// Does narrow rows one after another: sums, then the gradient, both in the cache.
class NarrowRows {
  public:
    explicit NarrowRows(const Backward &backward)
        : backward_(backward), window_(backward), gamma_(backward.call.layer.rows.parameters, {backward.gamma}) {}

    void run(int64_t row, float *partial) {
        const RowCall &call = backward_.call;
        const Planes &planes = call.split.planes;
        const int64_t width = call.width(), first = row * width, place = first % planes.elements;
        const int64_t base = first / planes.elements * groups_of(planes.elements);
        const float *const v = window_.read(base + place / GROUP, base + groups_of(place + width)) + place % GROUP;
        const int64_t parts = parts_of(width);
        std::fill_n(sums_, parts, 0.0f);
        std::fill_n(products_, parts, 0.0f);
        visit_row(place, width, [&](int64_t part, int64_t start, int length) {
            const float *const grad = backward_.grad.read(first + start, length, buffer_);
            backward_.grad.prefetch<Cache::FIRST>(first + start + AHEAD, length);
            if (backward_.of_parameters) add_parameters(call, grad, v + start, place + start, length, partial);
            if (!backward_.of_input) return;
            const float *const gamma = gamma_.of(place + start, length).arrays[0];
            const RowSums found = call.kernels->weigh(grad, gamma, v + start, length, weighed_ + start);
            sums_[part] = found.weighed;
            products_[part] = found.product;
        });
        if (!backward_.of_input) return;
        const float *const noise = window_.noise() + place % GROUP;
        RowGradient gradient{call.layer.saved[row], backward_.mean(products_), 0.0f};
        if (call.layer.centred) gradient.constant = backward_.mean(sums_);
        visit_row(place, width, [&](int64_t, int64_t start, int length) {
            backward_.out.write(first + start, length, buffer_, [&](float *out) {
                call.kernels->gradient(weighed_ + start, v + start, noise + start, gradient, length, out);
            });
        });
    }

  private:
    // decoding asks memory for nothing
    static constexpr int64_t AHEAD = 1024;

    const Backward &backward_;
    Window window_;
    ElementParameters<1> gamma_;
    float sums_[parts_of(NARROW)], products_[parts_of(NARROW)];
    alignas(64) float buffer_[GROUP];
    alignas(64) float weighed_[NARROW];
};

// Reads the groups of wide rows: decoded values, and the gradient times gamma.
class WideRows {
  public:
    explicit WideRows(const Backward &backward)
        : backward_(backward), gamma_(backward.call.layer.rows.parameters, {backward.gamma}),
          rows_(backward.call.width()) {}

    // Add up the parts of rows in a group.
    void sum(const Group &group, float *partial, float *sums, float *products) {
        const RowCall &call = backward_.call;
        const int64_t count = parts_of(call.width());
        const float *const grad = read(group);
        if (backward_.of_parameters) add_parameters(call, grad, v_, group.place, group.length, partial);
        if (!backward_.of_input) return;
        rows_.visit(group, [&](int64_t row, int start, int length) {
            const float *const gamma = gamma_.of(group.place + start, length).arrays[0];
            const RowSums found = call.kernels->weigh(grad + start, gamma, v_ + start, length, weighed_);
            const int64_t part = row * count + call.part_of(row, group.first + start);
            sums[part] = found.weighed;
            products[part] = found.product;
        });
    }

    // Write the gradient of the input by the means of rows.
    void write(const Group &group, const float *mean, const float *mean_product) {
        const RowCall &call = backward_.call;
        const float *const grad = read(group);
        rows_.visit(group, [&](int64_t row, int start, int length) {
            const float *const gamma = gamma_.of(group.place + start, length).arrays[0];
            call.kernels->weigh(grad + start, gamma, v_ + start, length, weighed_);
            const RowGradient gradient{call.layer.saved[row], mean_product[row], mean[row]};
            backward_.out.write(group.first + start, length, buffer_, [&](float *out) {
                call.kernels->gradient(weighed_, v_ + start, noise_ + start, gradient, length, out);
            });
        });
    }

  private:
    const float *read(const Group &group) {
        backward_.decode(group, v_, noise_);
        return backward_.grad.read(group.first, group.length, grad_);
    }

    const Backward &backward_;
    ElementParameters<1> gamma_;
    RowCursor rows_;
    alignas(64) float v_[GROUP], noise_[GROUP], grad_[GROUP], weighed_[GROUP], buffer_[GROUP];
};

// The arrays of a workspace, in this order; those past the partial sums are there for wide rows only.
struct Workspace {
    float *gamma, *partial, *sums, *products, *mean, *mean_product;

    Workspace(float *memory, int64_t parameters, int64_t tasks, int64_t rows, int64_t width)
        : gamma(memory), partial(gamma + parameters), sums(partial + 2 * parameters * tasks),
          products(sums + rows * parts_of(width)), mean(products + rows * parts_of(width)),
          mean_product(mean + rows) {}
};

void run_narrow(const Backward &backward, const Tasks &tasks, const Workspace &workspace) {
    const RowCall &call = backward.call;
    share_tasks(tasks.count(), call.split.planes.groups(), call.threads, [&](int64_t begin, int64_t end) {
        NarrowRows rows(backward);
        for (int64_t task = begin; task < end; ++task) {
            float *const partial = workspace.partial + 2 * task * call.parameters();
            std::fill_n(partial, 2 * call.parameters(), 0.0f);
            for (int64_t row = tasks.begin(task); row < tasks.end(task); ++row) rows.run(row, partial);
        }
        backward.out.finish();
    });
}

void run_wide(const Backward &backward, const Tasks &tasks, const Workspace &workspace) {
    const RowCall &call = backward.call;
    const Planes &planes = call.split.planes;
    const int64_t count = parts_of(call.width());
    std::fill_n(workspace.sums, 2 * call.rows() * count, 0.0f);
    share_tasks(tasks.count(), planes.groups(), call.threads, [&](int64_t begin, int64_t end) {
        WideRows rows(backward);
        for (int64_t task = begin; task < end; ++task) {
            float *const partial = workspace.partial + 2 * task * call.parameters();
            std::fill_n(partial, 2 * call.parameters(), 0.0f);
            visit_groups(planes, tasks.begin(task), tasks.end(task), [&](const Group &group) {
                rows.sum(group, partial, workspace.sums, workspace.products);
            });
        }
    });
    if (!backward.of_input) return;
    for (int64_t row = 0; row < call.rows(); ++row) {
        const float mean = backward.mean(workspace.sums + row * count);
        workspace.mean[row] = call.layer.centred ? mean : 0.0f;
        workspace.mean_product[row] = backward.mean(workspace.products + row * count);
    }
    share_groups(planes.groups(), call.threads, [&](int64_t begin, int64_t end) {
        WideRows rows(backward);
        visit_groups(planes, begin, end, [&](const Group &group) {
            rows.write(group, workspace.mean, workspace.mean_product);
        });
        backward.out.finish();
    });
}

// Add up partial sums, always in the same order.
void add_tasks(const float *partial, int64_t tasks, int64_t count, float *out) {
    constexpr int64_t WIDTH = 64;
    for (int64_t start = 0; start < count; start += WIDTH) {
        const int64_t width = std::min(WIDTH, count - start);
        double totals[WIDTH] = {};
        for (int64_t task = 0; task < tasks; ++task) {
            const float *const values = partial + task * count + start;
            for (int64_t i = 0; i < width; ++i) totals[i] += values[i];
        }
        for (int64_t i = 0; i < width; ++i) out[start + i] = static_cast<float>(totals[i]);
    }
}

} // namespace
} // namespace actnn

using namespace actnn;

int64_t actnn_row_backward_workspace(const actnn_layout *layout, const actnn_rows *rows) {
    if (layout == nullptr || !are_rows(rows, layout->samples, layout->elements)) return 0;
    const int64_t count = layout->samples * layout->elements / std::max<int64_t>(1, rows->width);
    const int64_t tasks = Tasks(layout->samples, layout->elements, *rows).count();
    return rows->parameters.channels * (1 + 2 * tasks) +
           (rows->width > NARROW ? 2 * count * (parts_of(rows->width) + 1) : 0);
}

int32_t actnn_row_norm_backward(const actnn_layout *layout, const actnn_backward_row *given) {
    if (layout == nullptr || given == nullptr) return ACTNN_BAD_ARGUMENT;
    const auto &[layer, simd, threads, dtype, buffer, grad, grads, out, stride, energy] = *given;
    RowCall call;
    int32_t status = read_row_call(layout, layer, simd, threads, dtype, buffer, call);
    if (status != ACTNN_OK) return status;
    const Planes &planes = call.split.planes;
    const int64_t parameters = call.parameters();
    if (planes.count() > 0 && grad == nullptr) return ACTNN_BAD_ARGUMENT;
    if (energy) status = actnn_energy(planes.samples, planes.elements, simd, threads, stride, grad, dtype, energy);
    if (status != ACTNN_OK) return status;
    if (planes.count() == 0) {
        if (grads) std::fill_n(grads, 2 * parameters, 0.0f);
        return ACTNN_OK;
    }
    if (!grads && !out) return ACTNN_OK;

    const Tasks tasks(planes.samples, planes.elements, layer.rows);
    const Workspace workspace(layer.workspace, parameters, tasks.count(), call.rows(), call.width());
    for (int64_t p = 0; p < parameters; ++p) {
        workspace.gamma[p] = number_or(layer.gamma, layer.gamma_dtype, p, 1.0f);
    }
    const bool stream = out != grad && planes.count() * bytes_of(dtype) >= STREAMED_BYTES;
    const Backward backward{call,
                            buffer,
                            read_key(buffer),
                            Input(*call.groups, grad, dtype),
                            Output(*call.groups, out, dtype, stream),
                            grads != nullptr,
                            out != nullptr,
                            workspace.gamma};
    (call.narrow() ? run_narrow : run_wide)(backward, tasks, workspace);
    if (grads) add_tasks(workspace.partial, tasks.count(), 2 * parameters, grads);
    return ACTNN_OK;
}
