// Max pooling that keeps the position of each maximum within its window as an index code.

#include <algorithm>
#include <cmath>
#include <limits>

#include "arrays.h"
#include "layout.h"
#include "numbers.h"
#include "parallel.h"
#include "planes.h"

namespace actnn {
namespace {

// The number types as the inner loops see them.
struct Float32 {
    using Stored = float;
    static float load(float number) { return number; }
    static float store(float number) { return number; }
};

struct Float16 {
    using Stored = uint16_t;
    static float load(uint16_t number) { return from_float16(number); }
    static uint16_t store(float number) { return to_float16(number); }
};

struct BFloat16 {
    using Stored = uint16_t;
    static float load(uint16_t number) { return from_bfloat16(number); }
    static uint16_t store(float number) { return to_bfloat16(number); }
};

template <class Number> float get(const uint8_t *values, int64_t index) {
    typename Number::Stored stored;
    std::memcpy(&stored, values + index * static_cast<int64_t>(sizeof stored), sizeof stored);
    return Number::load(stored);
}

template <class Number> void set(uint8_t *values, int64_t index, float number) {
    const typename Number::Stored stored = Number::store(number);
    std::memcpy(values + index * static_cast<int64_t>(sizeof stored), &stored, sizeof stored);
}

template <class Call> void with_number(int32_t dtype, Call call) {
    if (dtype == ACTNN_FLOAT32) {
        call(Float32{});
    } else if (dtype == ACTNN_FLOAT16) {
        call(Float16{});
    } else {
        call(BFloat16{});
    }
}

// The cells of a window along one axis that lie within the input.
struct Cells {
    int64_t start; // of the whole window, negative where it begins in the padding
    int first;
    int past;
};

struct Axis {
    int64_t input, output;
    int kernel, stride, padding, dilation;

    int64_t start(int64_t place) const { return place * stride - padding; }

    Cells cells(int64_t place) const {
        const int64_t begin = start(place);
        const int64_t first = begin < 0 ? (-begin + dilation - 1) / dilation : 0;
        const int64_t past = begin < input ? (input - begin + dilation - 1) / dilation : 0;
        return {begin, static_cast<int>(std::min<int64_t>(first, kernel)),
                static_cast<int>(std::min<int64_t>(past, kernel))};
    }

    // Every window holds a cell of the input, as the frameworks guarantee.
    bool sound() const {
        if (input < 0 || output < 0 || kernel < 1 || stride < 1 || padding < 0 || dilation < 1) return false;
        if (output == 0) return true;
        const Cells head = cells(0), tail = cells(output - 1);
        return input > 0 && head.first < head.past && tail.first < tail.past;
    }
};

struct Pool {
    Axis height, width;
    int64_t samples, channels;
    bool channels_last;
    Planes planes;

    int64_t input() const { return height.input * width.input; }
    int64_t output() const { return height.output * width.output; }
    // Distance between neighbours of a row, and between values of neighbouring channels.
    int64_t step() const { return channels_last ? channels : 1; }
    int64_t channel_step() const { return channels_last ? 1 : input(); }
};

actnn_status read_pool(const actnn_pool *pool, int32_t threads, int32_t dtype, Pool &out) {
    if (pool == nullptr || threads < 1 || !is_dtype(dtype)) return ACTNN_BAD_ARGUMENT;
    const auto axis = [&](int i) {
        return Axis{pool->input[i],   pool->output[i],  pool->kernel[i],
                    pool->stride[i], pool->padding[i], pool->dilation[i]};
    };
    out.height = axis(0);
    out.width = axis(1);
    if (pool->samples < 0 || pool->channels < 0 || !out.height.sound() || !out.width.sound()) return ACTNN_BAD_ARGUMENT;
    if (pool->bits < 1 || pool->bits > 24) return ACTNN_BAD_WIDTH;
    if (int64_t{pool->kernel[0]} * pool->kernel[1] > int64_t{1} << pool->bits) return ACTNN_BAD_WIDTH;
    out.samples = pool->samples;
    out.channels = pool->channels;
    out.channels_last = pool->channels_last != 0;
    out.planes = {pool->samples, pool->channels * out.output(), pool->bits};
    return ACTNN_OK;
}

// A stretch of outputs that are neighbours in memory: of a row, or of the channels of one place.
struct Stretch {
    int64_t channel, row, column;
    int start, length; // within the group
};

// Call visit(Stretch) for the stretches of a group, whose first element is `first` of its sample.
template <class Visit> void visit_stretches(const Pool &pool, int64_t first, int length, Visit visit) {
    const int64_t unit = pool.channels_last ? pool.channels : pool.width.output;
    int64_t outer = first / unit, inner = first % unit;
    for (int start = 0; start < length; ++outer, inner = 0) {
        const int count = static_cast<int>(std::min<int64_t>(length - start, unit - inner));
        if (pool.channels_last) {
            visit(Stretch{inner, outer / pool.width.output, outer % pool.width.output, start, count});
        } else {
            visit(Stretch{outer / pool.height.output, outer % pool.height.output, inner, start, count});
        }
        start += count;
    }
}

// The greatest values so far of the outputs of a group, and where in their windows they are.
struct Maxima {
    float value[GROUP];
    int32_t position[GROUP];

    // Let outputs `start` to `start + count - 1` take the candidates at `place` of their windows; NaN wins.
    template <class Number, int STEP>
    void take(const uint8_t *candidates, int64_t any_step, int start, int count, int32_t place) {
        const int64_t step = STEP ? STEP : any_step;
        float *const values = value + start;
        int32_t *const positions = position + start;
        for (int i = 0; i < count; ++i) {
            const float candidate = get<Number>(candidates, i * step);
            const bool taken = (candidate > values[i]) | (candidate != candidate);
            values[i] = taken ? candidate : values[i];
            positions[i] = taken ? place : positions[i];
        }
    }
};

template <class Number>
void take(Maxima &maxima, const uint8_t *candidates, int64_t step, int start, int count, int32_t place) {
    if (count <= 0) return;
    if (step == 1) {
        maxima.take<Number, 1>(candidates, step, start, count, place);
    } else if (step == 2) {
        maxima.take<Number, 2>(candidates, step, start, count, place);
    } else {
        maxima.take<Number, 0>(candidates, step, start, count, place);
    }
}

// The columns whose windows have cell `k` within the input.
struct Columns {
    int64_t first;
    int64_t past;

    Columns(const Axis &width, int k) {
        const int64_t shift = width.padding - int64_t{k} * width.dilation;
        first = shift > 0 ? (shift + width.stride - 1) / width.stride : 0;
        const int64_t room = width.input + shift;
        past = room > 0 ? std::min(width.output, (room + width.stride - 1) / width.stride) : 0;
    }
};

// Pool the channels of one place. `sample` points to the sample's values.
template <class Number>
void pool_channels(const Pool &pool, const uint8_t *sample, const Stretch &part, Maxima &maxima) {
    constexpr int64_t BYTES = sizeof(typename Number::Stored);
    const Cells rows = pool.height.cells(part.row), columns = pool.width.cells(part.column);
    std::fill_n(maxima.position + part.start, part.length, rows.first * pool.width.kernel + columns.first);
    for (int r = rows.first; r < rows.past; ++r) {
        const int64_t row = (rows.start + int64_t{r} * pool.height.dilation) * pool.width.input;
        for (int c = columns.first; c < columns.past; ++c) {
            const int64_t cell = row + columns.start + int64_t{c} * pool.width.dilation;
            take<Number>(maxima, sample + (cell * pool.channels + part.channel) * BYTES, 1, part.start, part.length,
                         r * pool.width.kernel + c);
        }
    }
}

// Pool neighbours of one row.
template <class Number> void pool_row(const Pool &pool, const uint8_t *sample, const Stretch &part, Maxima &maxima) {
    constexpr int64_t BYTES = sizeof(typename Number::Stored);
    const Axis &width = pool.width;
    const Cells rows = pool.height.cells(part.row);
    const int64_t past = part.column + part.length;
    std::fill_n(maxima.position + part.start, part.length, rows.first * width.kernel);
    for (int64_t column = part.column; column < past && width.start(column) < 0; ++column) {
        maxima.position[part.start + column - part.column] += width.cells(column).first;
    }
    for (int r = rows.first; r < rows.past; ++r) {
        const int64_t row = rows.start + int64_t{r} * pool.height.dilation;
        const int64_t line = part.channel * pool.input() + row * width.input;
        for (int c = 0; c < width.kernel; ++c) {
            const Columns within(width, c);
            const int64_t first = std::max(part.column, within.first);
            const int64_t count = std::min(past, within.past) - first;
            const int64_t cell = line + width.start(first) + int64_t{c} * width.dilation;
            const int start = part.start + static_cast<int>(first - part.column);
            take<Number>(maxima, sample + cell * BYTES, width.stride, start, static_cast<int>(count),
                         r * width.kernel + c);
        }
    }
}

template <class Number>
void pool_groups(const Pool &pool, int64_t begin, int64_t end, const uint8_t *values, uint8_t *out, uint8_t *planes) {
    constexpr int64_t BYTES = sizeof(typename Number::Stored);
    Maxima maxima;
    visit_groups(pool.planes, begin, end, [&](const Group &group) {
        const int64_t sample = group.first / pool.planes.elements;
        const uint8_t *const values_of_sample = values + sample * pool.channels * pool.input() * BYTES;
        std::fill_n(maxima.value, group.length, -std::numeric_limits<float>::infinity());
        visit_stretches(pool, group.first % pool.planes.elements, group.length, [&](const Stretch &part) {
            (pool.channels_last ? pool_channels<Number> : pool_row<Number>)(pool, values_of_sample, part, maxima);
        });
        for (int i = 0; i < group.length; ++i) set<Number>(out, group.first + i, maxima.value[i]);
        pack_integers(maxima.position, group.length, group.bits, planes + group.planes);
    });
}

// From a position within a window to the distance of its cell from the window's start.
class Distances {
  public:
    explicit Distances(const Pool &pool) : pool_(pool) {
        const int64_t area = int64_t{pool.height.kernel} * pool.width.kernel;
        for (int32_t i = 0; i < std::min<int64_t>(area, KEPT); ++i) kept_[i] = distance(i);
    }

    int64_t of(int32_t position) const { return position < KEPT ? kept_[position] : distance(position); }

  private:
    static constexpr int KEPT = 64;

    int64_t distance(int32_t position) const {
        const int64_t row = position / pool_.width.kernel, column = position % pool_.width.kernel;
        return (row * pool_.height.dilation * pool_.width.input + column * pool_.width.dilation) * pool_.step();
    }

    const Pool &pool_;
    int64_t kept_[KEPT] = {};
};

// Some channels of one sample: no other task writes their gradient.
struct Channels {
    int64_t sample;
    int64_t begin;
    int64_t end;

    int64_t count() const { return end - begin; }
};

template <class Number> void clear(const Pool &pool, const Channels &task, uint8_t *grad_values) {
    constexpr int64_t BYTES = sizeof(typename Number::Stored);
    uint8_t *const sample = grad_values + task.sample * pool.channels * pool.input() * BYTES;
    if (!pool.channels_last || task.count() == pool.channels) {
        const int64_t bytes = pool.input() * BYTES;
        std::memset(sample + task.begin * bytes, 0, static_cast<size_t>(task.count() * bytes));
        return;
    }
    for (int64_t i = 0; i < pool.input(); ++i) {
        std::memset(sample + (i * pool.channels + task.begin) * BYTES, 0, static_cast<size_t>(task.count() * BYTES));
    }
}

template <class Number>
void scatter(const Pool &pool, const Distances &distances, const Channels &task, const uint8_t *planes,
             const uint8_t *grad, uint8_t *grad_values) {
    constexpr int64_t BYTES = sizeof(typename Number::Stored);
    clear<Number>(pool, task, grad_values);
    const int64_t elements = pool.planes.elements, first_group = task.sample * groups_of(elements);
    const int64_t from = pool.channels_last ? 0 : task.begin * pool.output();
    const int64_t to = pool.channels_last ? elements : task.end * pool.output();
    uint8_t *const sample = grad_values + task.sample * pool.channels * pool.input() * BYTES;
    int32_t positions[GROUP];
    visit_groups(pool.planes, first_group + from / GROUP, first_group + groups_of(to), [&](const Group &group) {
        unpack_integers(planes + group.planes, group.length, group.bits, positions);
        visit_stretches(pool, group.first % elements, group.length, [&](const Stretch &part) {
            const int64_t window = pool.height.start(part.row) * pool.width.input + pool.width.start(part.column);
            const int64_t start = window * pool.step() + part.channel * pool.channel_step();
            const int64_t step = pool.channels_last ? 1 : pool.width.stride;
            int first = 0, past = part.length;
            if (pool.channels_last) {
                first = static_cast<int>(std::max<int64_t>(0, task.begin - part.channel));
                past = static_cast<int>(std::min<int64_t>(past, task.end - part.channel));
            } else if (part.channel < task.begin || part.channel >= task.end) {
                return;
            }
            for (int i = first; i < past; ++i) {
                const int64_t target = start + i * step + distances.of(positions[part.start + i]);
                set<Number>(sample, target,
                            get<Number>(sample, target) + get<Number>(grad, group.first + part.start + i));
            }
        });
    });
}

} // namespace
} // namespace actnn

using namespace actnn;

int32_t actnn_max_pool(const actnn_pool *pool_given, int32_t threads, const void *values, int32_t dtype, void *out,
                       uint8_t *planes) {
    Pool pool;
    const actnn_status status = read_pool(pool_given, threads, dtype, pool);
    if (status != ACTNN_OK) return status;
    if (pool.planes.count() == 0) return ACTNN_OK;
    if (values == nullptr || out == nullptr || planes == nullptr) return ACTNN_BAD_ARGUMENT;
    with_number(dtype, [&](auto number) {
        using Number = decltype(number);
        share_groups(pool.planes.groups(), threads, [&](int64_t begin, int64_t end) {
            pool_groups<Number>(pool, begin, end, static_cast<const uint8_t *>(values), static_cast<uint8_t *>(out),
                                planes);
        });
    });
    return ACTNN_OK;
}

int32_t actnn_max_pool_backward(const actnn_pool *pool_given, int32_t threads, const uint8_t *planes, const void *grad,
                                int32_t dtype, void *grad_values) {
    Pool pool;
    const actnn_status status = read_pool(pool_given, threads, dtype, pool);
    if (status != ACTNN_OK) return status;
    if (pool.samples * pool.channels * pool.input() == 0) return ACTNN_OK;
    const bool empty = pool.planes.count() == 0;
    if (grad_values == nullptr || (!empty && (planes == nullptr || grad == nullptr))) return ACTNN_BAD_ARGUMENT;

    // Each cell is summed by one task in the order of the output, however the channels are cut. Tasks that share a
    // group unpack it twice, so they are large; channels_last cuts a sample only for lack of samples.
    const int64_t least = std::min<int64_t>(pool.channels_last ? 16 : 1, pool.channels);
    const int64_t wanted =
        pool.channels_last ? pool.channels * pool.samples / threads : 16 * GROUP / (pool.output() + 1);
    const int64_t block = std::clamp<int64_t>(wanted, least, pool.channels);
    const int64_t blocks = (pool.channels + block - 1) / block;
    with_number(dtype, [&](auto number) {
        using Number = decltype(number);
        share_tasks(pool.samples * blocks, threads, [&](int64_t begin, int64_t end) {
            const Distances distances(pool);
            for (int64_t task = begin; task < end; ++task) {
                const int64_t first = task % blocks * block;
                const Channels channels{task / blocks, first, std::min(pool.channels, first + block)};
                scatter<Number>(pool, distances, channels, planes, static_cast<const uint8_t *>(grad),
                                static_cast<uint8_t *>(grad_values));
            }
        });
    });
    return ACTNN_OK;
}
