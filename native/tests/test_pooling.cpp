// Max pooling: maxima, positions and scattered gradients against loops written from the definition.

#include "samples.h"

using namespace actnn;

namespace {

struct Geometry {
    int kernel[2], stride[2], padding[2], dilation[2];
    bool ceil;
};

constexpr Geometry GEOMETRIES[] = {
    {{3, 3}, {2, 2}, {1, 1}, {1, 1}, false}, {{2, 2}, {2, 2}, {0, 0}, {1, 1}, false},
    {{2, 2}, {2, 2}, {0, 0}, {1, 1}, true},  {{3, 2}, {1, 3}, {1, 0}, {2, 1}, true},
    {{1, 1}, {1, 1}, {0, 0}, {1, 1}, false}, {{9, 9}, {1, 1}, {4, 4}, {1, 1}, false},
};

int64_t outputs(int64_t input, const Geometry &g, int axis) {
    const int64_t room = input + 2 * g.padding[axis] - g.dilation[axis] * (g.kernel[axis] - 1) - 1;
    int64_t output = (room + (g.ceil ? g.stride[axis] - 1 : 0)) / g.stride[axis] + 1;
    // no window may begin behind the input and its first padding
    if (g.ceil && (output - 1) * g.stride[axis] >= input + g.padding[axis]) --output;
    return output;
}

actnn_pool pool_of(const Geometry &g, int64_t samples, int64_t channels, int64_t height, int64_t width, bool last) {
    actnn_pool pool{};
    pool.samples = samples;
    pool.channels = channels;
    pool.channels_last = last;
    const int64_t input[2] = {height, width};
    for (int axis = 0; axis < 2; ++axis) {
        pool.input[axis] = input[axis];
        pool.output[axis] = outputs(input[axis], g, axis);
        pool.kernel[axis] = g.kernel[axis];
        pool.stride[axis] = g.stride[axis];
        pool.padding[axis] = g.padding[axis];
        pool.dilation[axis] = g.dilation[axis];
    }
    pool.bits = std::max(1, static_cast<int>(std::bit_width(static_cast<unsigned>(g.kernel[0] * g.kernel[1] - 1))));
    return pool;
}

size_t place(const actnn_pool &pool, const int64_t *size, int64_t n, int64_t c, int64_t row, int64_t column) {
    const int64_t index = pool.channels_last ? ((n * size[0] + row) * size[1] + column) * pool.channels + c
                                             : ((n * pool.channels + c) * size[0] + row) * size[1] + column;
    return static_cast<size_t>(index);
}

struct Expected {
    std::vector<float> maxima;
    std::vector<int32_t> positions;
    std::vector<size_t> sources; // of the maxima, in the input
};

Expected expected_of(const actnn_pool &pool, const std::vector<float> &x) {
    const size_t count = static_cast<size_t>(pool.samples * pool.channels * pool.output[0] * pool.output[1]);
    Expected result{std::vector<float>(count), std::vector<int32_t>(count), std::vector<size_t>(count)};
    for (int64_t n = 0; n < pool.samples; ++n)
        for (int64_t c = 0; c < pool.channels; ++c)
            for (int64_t i = 0; i < pool.output[0]; ++i)
                for (int64_t j = 0; j < pool.output[1]; ++j) {
                    const size_t at = place(pool, pool.output, n, c, i, j);
                    bool first = true;
                    for (int32_t k = 0; k < pool.kernel[0] * pool.kernel[1]; ++k) {
                        const int64_t top = i * pool.stride[0] - pool.padding[0];
                        const int64_t left = j * pool.stride[1] - pool.padding[1];
                        const int64_t row = top + k / pool.kernel[1] * pool.dilation[0];
                        const int64_t column = left + k % pool.kernel[1] * pool.dilation[1];
                        if (row < 0 || row >= pool.input[0] || column < 0 || column >= pool.input[1]) continue;
                        const size_t source = place(pool, pool.input, n, c, row, column);
                        if (!first && !(x[source] > result.maxima[at]) && x[source] == x[source]) continue;
                        first = false;
                        result.maxima[at] = x[source];
                        result.positions[at] = k;
                        result.sources[at] = source;
                    }
                }
    return result;
}

template <class Visit> void visit_pools(Visit visit) {
    for (const Geometry &geometry : GEOMETRIES) {
        for (const int64_t channels : {1, 3, 20, 300}) {
            for (const bool last : {false, true}) visit(pool_of(geometry, 2, channels, 11, 14, last));
        }
        visit(pool_of(geometry, 1, 2, 9, 600, false));
    }
}

size_t inputs(const actnn_pool &pool) {
    return static_cast<size_t>(pool.samples * pool.channels * pool.input[0] * pool.input[1]);
}

Guarded planes_of(const actnn_pool &pool, const std::vector<int32_t> &positions) {
    const int64_t elements = static_cast<int64_t>(positions.size()) / pool.samples;
    Guarded planes(static_cast<size_t>(pool.samples * pool.bits * plane_bytes(elements)));
    CHECK(actnn_encode_index(pool.samples, elements, pool.bits, 1, positions.data(), planes.data()) == ACTNN_OK);
    return planes;
}

} // namespace

TEST("max pooling finds the first greatest value of every window and keeps its position") {
    visit_pools([](const actnn_pool &pool) {
        for (const int dtype : DTYPES) {
            for (const Kind kind : {Kind::NORMAL, Kind::RECTIFIED, Kind::CONSTANT, Kind::ONE_NAN, Kind::ONE_INFINITY}) {
                Guarded x = array_of(floats(kind, inputs(pool)), dtype);
                const Expected expected = expected_of(pool, numbers_of(x, dtype));
                Guarded expected_planes = planes_of(pool, expected.positions);
                for (const int threads : {1, 3}) {
                    Guarded y(expected.maxima.size() * static_cast<size_t>(bytes_of(dtype)));
                    Guarded planes(expected_planes.size());
                    CHECK(actnn_max_pool(&pool, threads, x.data(), dtype, y.data(), planes.data()) == ACTNN_OK);
                    CHECK(y == array_of(expected.maxima, dtype));
                    CHECK(planes == expected_planes);
                }
            }
        }
    });
}

TEST("a window of nothing but negative infinity keeps its first cell") {
    const actnn_pool pool = pool_of(GEOMETRIES[0], 1, 3, 11, 14, false);
    Guarded x = array_of(std::vector<float>(inputs(pool), -INFINITY), ACTNN_FLOAT32);
    const Expected expected = expected_of(pool, numbers_of(x, ACTNN_FLOAT32));
    Guarded expected_planes = planes_of(pool, expected.positions), planes(expected_planes.size());
    Guarded y(expected.maxima.size() * sizeof(float));
    CHECK(actnn_max_pool(&pool, 1, x.data(), ACTNN_FLOAT32, y.data(), planes.data()) == ACTNN_OK);
    CHECK(planes == expected_planes);
}

TEST("the gradient of max pooling goes to the maxima, summed in the order of the output") {
    visit_pools([](const actnn_pool &pool) {
        for (const int dtype : DTYPES) {
            const auto x = floats(Kind::NORMAL, inputs(pool));
            const Expected expected = expected_of(pool, x);
            Guarded planes = planes_of(pool, expected.positions);
            Guarded grad = array_of(floats(Kind::NORMAL, expected.maxima.size(), 2), dtype);
            const auto grads = numbers_of(grad, dtype);
            Guarded sums = array_of(std::vector<float>(x.size()), dtype);
            for (size_t i = 0; i < grads.size(); ++i) {
                const int target = static_cast<int>(expected.sources[i]);
                store_number(load_number(sums.data(), dtype, target) + grads[i], dtype, target, sums.data());
            }
            for (const int threads : {1, 2, 5}) {
                Guarded found(sums.size());
                CHECK(actnn_max_pool_backward(&pool, threads, planes.data(), grad.data(), dtype, found.data()) ==
                      ACTNN_OK);
                CHECK(found == sums);
            }
        }
    });
}

TEST("max pooling refuses windows without a cell and widths too small for its positions") {
    Guarded x = array_of(floats(Kind::NORMAL, 3 * 11 * 14), ACTNN_FLOAT32), y(x.size()), planes(x.size());
    const actnn_pool good = pool_of(GEOMETRIES[0], 1, 3, 11, 14, false);
    const auto status = [&](const actnn_pool &pool) {
        return actnn_max_pool(&pool, 1, x.data(), ACTNN_FLOAT32, y.data(), planes.data());
    };
    CHECK(status(good) == ACTNN_OK);
    actnn_pool bad = good;
    bad.bits = 3;
    CHECK(status(bad) == ACTNN_BAD_WIDTH);
    bad = good;
    bad.output[0] = 9;
    CHECK(status(bad) == ACTNN_BAD_ARGUMENT);
    bad = good;
    bad.padding[1] = 3;
    CHECK(status(bad) == ACTNN_BAD_ARGUMENT);
    bad = good;
    bad.stride[0] = 0;
    CHECK(status(bad) == ACTNN_BAD_ARGUMENT);
}
