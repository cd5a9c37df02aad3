// What widths are chosen by: the sums agree with their definitions, and bit for bit on every instruction set.

#include "channels.h"
#include "shapes.h"

using namespace actnn;

namespace {

constexpr int64_t STRIDES[] = {1, 2, 3, 8, 1000};

// Enough groups for several chunks a sample, the last of them short.
constexpr Shape LONG{2, 3, 20'007, 1};

struct Case {
    Family family;
    Shape shape;
    int64_t stride;
    bool normalized, weighted;
};

std::vector<float> weights_of(const Shape &shape) {
    auto weights = per_channel(shape, 21);
    for (float &weight : weights) weight = std::abs(weight);
    return weights;
}

std::vector<float> ranges_of(const Case &c, int simd, int threads, Guarded &x, int dtype) {
    const actnn_layout layout = layout_for(c.family, c.shape);
    const actnn_channels channels = c.shape.form();
    const Normalization normalization(c.shape);
    const actnn_normalization pointers = normalization.pointers();
    const auto weight = weights_of(c.shape);
    Guarded ranges(static_cast<size_t>(c.shape.samples) * 4 * sizeof(float));
    CHECK(actnn_ranges(&layout, c.normalized || c.weighted ? &channels : nullptr, c.normalized ? &pointers : nullptr,
                       c.weighted ? weight.data() : nullptr, simd, threads, c.stride, x.data(), dtype,
                       reinterpret_cast<float *>(ranges.data())) == ACTNN_OK);
    CHECK(ranges.intact());
    return numbers_of(ranges, ACTNN_FLOAT32);
}

std::vector<float> energy_of(const Shape &shape, int64_t stride, int simd, int threads, Guarded &x, int dtype) {
    Guarded energy(static_cast<size_t>(shape.samples) * sizeof(float));
    CHECK(actnn_energy(shape.samples, shape.elements(), simd, threads, stride, x.data(), dtype,
                       reinterpret_cast<float *>(energy.data())) == ACTNN_OK);
    CHECK(energy.intact());
    return numbers_of(energy, ACTNN_FLOAT32);
}

std::vector<int64_t> groups_read(int64_t elements, int64_t stride) {
    std::vector<int64_t> groups;
    for (int64_t group = stride / 2; group < groups_of(elements); group += stride) groups.push_back(group);
    return groups.empty() ? std::vector<int64_t>{0} : groups;
}

// Call visit(sample, first, length, factor) for the groups that are read, `first` counting from the first sample.
template <class Visit> void visit_read(const Shape &shape, int64_t stride, Visit visit) {
    const auto groups = groups_read(shape.elements(), stride);
    const auto length = [&](int64_t group) { return std::min<int64_t>(GROUP, shape.elements() - group * GROUP); };
    int64_t read = 0;
    for (const int64_t group : groups) read += length(group);
    const double factor = static_cast<double>(shape.elements()) / static_cast<double>(read);
    for (int64_t n = 0; n < shape.samples; ++n) {
        for (const int64_t group : groups) {
            visit(static_cast<size_t>(n), static_cast<size_t>(n * shape.elements() + group * GROUP),
                  static_cast<size_t>(length(group)), factor);
        }
    }
}

// The definition, element by element.
std::vector<double> defined_ranges(const Case &c, const std::vector<float> &x) {
    const Normalization normalization(c.shape);
    const auto weight = weights_of(c.shape);
    std::vector<double> sums(static_cast<size_t>(c.shape.samples) * 4);
    visit_read(c.shape, c.stride, [&](size_t sample, size_t first, size_t length, double factor) {
        std::vector<float> v(length);
        for (size_t i = 0; i < length; ++i) {
            const size_t channel = c.shape.channel(first + i);
            v[i] = x[first + i];
            if (!c.normalized) continue;
            v[i] = (v[i] - normalization.mean[channel]) * normalization.inverse[channel];
            v[i] -= normalization.threshold[channel];
        }
        const double lowest = *std::min_element(v.begin(), v.end()), highest = *std::max_element(v.begin(), v.end());
        for (size_t i = 0; i < length; ++i) {
            const bool above = c.family == AFFINE || !(v[i] <= 0);
            double range = above ? std::max(0.0, highest) : std::max(0.0, -lowest);
            if (c.family == AFFINE) range = highest - lowest;
            if (c.family == ZERO_EXACT && !above) range = 0;
            const double weighted = c.weighted ? weight[c.shape.channel(first + i)] : 1.0;
            sums[4 * sample + above] += factor * range * range;
            sums[4 * sample + 2 + above] += factor * range * range * weighted;
        }
    });
    return sums;
}

template <class Visit> void for_each_case(Visit visit) {
    for (const Family family : FAMILIES) {
        for (const bool normalized : {false, true}) {
            for (const bool weighted : {false, true}) {
                for (const Shape &shape : SHAPES) {
                    for (const int64_t stride : STRIDES) visit(Case{family, shape, stride, normalized, weighted});
                }
                for (const int64_t stride : STRIDES) visit(Case{family, LONG, stride, normalized, weighted});
            }
        }
    }
}

bool same_bits(const std::vector<float> &a, const std::vector<float> &b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

bool close(float found, double expected) { return std::abs(found - expected) <= 2e-6 * std::abs(expected); }

} // namespace

TEST("ranges are sums over the elements of the groups that are read") {
    for_each_case([](const Case &c) {
        if (CURVES[c.family] != ACTNN_LINEAR) return; // the tests in Python have the definition of these
        Guarded x = array_of(floats(Kind::NORMAL, c.shape.count()), ACTNN_FLOAT32);
        const auto expected = defined_ranges(c, numbers_of(x, ACTNN_FLOAT32));
        const auto found = ranges_of(c, ACTNN_SCALAR, 1, x, ACTNN_FLOAT32);
        for (size_t i = 0; i < found.size(); ++i) CHECK(close(found[i], expected[i]));
    });
}

TEST("ranges have the same bits on every instruction set and thread count") {
    for_each_case([](const Case &c) {
        for (const int dtype : DTYPES) {
            Guarded x = array_of(floats(Kind::NORMAL, c.shape.count()), dtype);
            const auto expected = ranges_of(c, ACTNN_SCALAR, 1, x, dtype);
            for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
                for (const int threads : {1, 2, 5}) CHECK(same_bits(ranges_of(c, simd, threads, x, dtype), expected));
            }
        }
    });
}

TEST("ranges of any values are finite only where all of them are") {
    for (const Kind kind : KINDS) {
        for (const Family family : FAMILIES) {
            for (const bool normalized : {false, true}) {
                const Case c{family, {2, 20, 49, 1}, 1, normalized, true};
                Guarded x = array_of(floats(kind, c.shape.count()), ACTNN_FLOAT32);
                const auto values = numbers_of(x, ACTNN_FLOAT32);
                const auto expected = ranges_of(c, ACTNN_SCALAR, 1, x, ACTNN_FLOAT32);
                CHECK(same_bits(ranges_of(c, actnn_best_simd(), 3, x, ACTNN_FLOAT32), expected));
                for (size_t n = 0; n < 2; ++n) {
                    const auto begin = values.begin() + static_cast<int64_t>(n) * c.shape.elements();
                    const bool bad = std::any_of(begin, begin + c.shape.elements(), [](float value) {
                        return !std::isfinite(value);
                    });
                    for (size_t i = 0; i < 4 && bad; ++i) CHECK(std::isnan(expected[4 * n + i]));
                    const bool may_lack = normalized || family == ROOT_FAMILY;
                    for (size_t i = 0; i < 4 && !bad; ++i) CHECK(!std::isnan(expected[4 * n + i]) || may_lack);
                }
            }
        }
    }
}

TEST("the energy is the sum of squares of the groups that are read, with the same bits everywhere") {
    const auto check = [](const Shape &shape, int64_t stride, int dtype) {
        Guarded x = array_of(floats(Kind::NORMAL, shape.count()), dtype);
        const auto values = numbers_of(x, dtype);
        std::vector<double> expected(static_cast<size_t>(shape.samples));
        visit_read(shape, stride, [&](size_t sample, size_t first, size_t length, double factor) {
            for (size_t i = first; i < first + length; ++i) expected[sample] += factor * values[i] * values[i];
        });
        const auto one = energy_of(shape, stride, ACTNN_SCALAR, 1, x, dtype);
        for (size_t n = 0; n < one.size(); ++n) CHECK(close(one[n], expected[n]));
        for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
            for (const int threads : {1, 2, 5}) {
                CHECK(same_bits(energy_of(shape, stride, simd, threads, x, dtype), one));
            }
        }
    };
    for (const int dtype : DTYPES) {
        for (const int64_t stride : STRIDES) {
            for (const Shape &shape : SHAPES) check(shape, stride, dtype);
            check(LONG, stride, dtype);
        }
    }
}

TEST("the energy of a sample with a value that is not finite is not finite") {
    for (const Kind kind : {Kind::ONE_NAN, Kind::ONE_INFINITY}) {
        const Shape shape{1, 1, 1000, 1};
        Guarded x = array_of(floats(kind, shape.count()), ACTNN_FLOAT32);
        for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
            CHECK(!std::isfinite(energy_of(shape, 1, simd, 1, x, ACTNN_FLOAT32)[0]));
        }
    }
}

TEST("more samples than are summed at once are all written") {
    const Shape shape{3000, 1, 5, 1};
    Guarded x = array_of(std::vector<float>(shape.count(), 2.0f), ACTNN_FLOAT32);
    const Case c{TWO_SIDED, shape, 8, false, false};
    for (const int threads : {1, 4}) {
        const auto ranges = ranges_of(c, actnn_best_simd(), threads, x, ACTNN_FLOAT32);
        for (size_t i = 0; i < ranges.size(); ++i) CHECK(ranges[i] == (i % 2 ? 20.0f : 0.0f));
        for (const float energy : energy_of(shape, 8, actnn_best_simd(), threads, x, ACTNN_FLOAT32)) {
            CHECK(energy == 20.0f);
        }
    }
}

TEST("the range of a group and its mask are the same on every instruction set") {
    for (const Kind kind : KINDS) {
        for (int length = 1; length <= GROUP; ++length) {
            const auto values = floats(kind, static_cast<size_t>(length));
            for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
                const GroupKernels &kernels = *kernels_of(simd);
                Guarded mask(static_cast<size_t>((length + 7) / 8)), expected(mask.size());
                const Range range = kernels.range(values.data(), length, mask.data());
                scalar_kernels.encode_mask(values.data(), length, expected.data());
                CHECK(mask == expected);
                const auto positive = std::count_if(values.begin(), values.end(), [](float x) { return !(x <= 0); });
                const bool finite = std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
                CHECK(range.positive == positive && range.finite == finite);
                const Range alone = kernels.range(values.data(), length, nullptr);
                CHECK(alone.positive == positive && alone.finite == finite);
                if (!finite) continue;
                CHECK(range.lowest == *std::min_element(values.begin(), values.end()));
                CHECK(range.highest == *std::max_element(values.begin(), values.end()));
                CHECK(alone.lowest == range.lowest && alone.highest == range.highest);
            }
        }
    }
}

TEST("bits of a mask are counted and weighed alike on every instruction set") {
    Random random(3);
    const auto weights = weights_of({1, GROUP, 1, 1});
    uint8_t mask[PLANE_BYTES];
    for (uint8_t &byte : mask) byte = static_cast<uint8_t>(random.bits());
    for (int start = 0; start <= GROUP; ++start) {
        int count = 0;
        for (int stop = start; stop <= GROUP; ++stop) {
            for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
                CHECK(kernels_of(simd)->count(mask, start, stop) == count);
            }
            if (stop < GROUP) count += mask[stop / 8] >> (stop % 8) & 1;
        }
    }
    for (int length = 1; length <= GROUP; ++length) {
        const Sides expected = scalar_channels.weigh(mask, weights.data(), length);
        const Sides found = channels_of(actnn_best_simd()).weigh(mask, weights.data(), length);
        CHECK(found.negative == expected.negative && found.positive == expected.positive);
    }
}

TEST("empty samples have sums of zero") {
    const actnn_layout empty = layout_of(TWO_SIDED, 3, 0, 2, ACTNN_NEAREST), none = layout_of(AFFINE, 0, 8, 2, 0);
    float found[12];
    std::fill_n(found, 12, 1.0f);
    CHECK(actnn_ranges(&empty, nullptr, nullptr, nullptr, 0, 2, 8, nullptr, 0, found) == ACTNN_OK);
    for (const float value : found) CHECK(value == 0.0f);
    std::fill_n(found, 12, 1.0f);
    CHECK(actnn_energy(3, 0, 0, 2, 8, nullptr, 0, found) == ACTNN_OK);
    CHECK(found[0] == 0.0f && found[2] == 0.0f && found[3] == 1.0f);
    CHECK(actnn_ranges(&none, nullptr, nullptr, nullptr, 0, 1, 8, nullptr, 0, nullptr) == ACTNN_OK);
    CHECK(actnn_energy(0, 8, 0, 1, 8, nullptr, 0, nullptr) == ACTNN_OK);
}

TEST("ranges and energy refuse what does not fit together") {
    const actnn_layout layout = layout_of(TWO_SIDED, 1, 8, 3, ACTNN_DITHER);
    const actnn_channels good{4, 2}, wrong{3, 2};
    float values[8] = {}, parameters[4] = {}, out[4];
    const actnn_normalization normalization{nullptr, nullptr, parameters, parameters, parameters};
    const actnn_normalization missing{parameters, parameters, parameters, nullptr, parameters};
    const auto ranges = [&](const actnn_channels *channels, const actnn_normalization *chosen, const float *weight,
                            int64_t stride = 1) {
        return actnn_ranges(&layout, channels, chosen, weight, 0, 1, stride, values, 0, out);
    };
    CHECK(ranges(&good, &normalization, parameters) == ACTNN_OK);
    CHECK(ranges(nullptr, nullptr, nullptr) == ACTNN_OK);
    CHECK(ranges(nullptr, &normalization, nullptr) == ACTNN_BAD_ARGUMENT);
    CHECK(ranges(nullptr, nullptr, parameters) == ACTNN_BAD_ARGUMENT);
    CHECK(ranges(&wrong, nullptr, nullptr) == ACTNN_BAD_ARGUMENT);
    CHECK(ranges(&good, &missing, nullptr) == ACTNN_BAD_ARGUMENT);
    CHECK(ranges(&good, nullptr, nullptr, 0) == ACTNN_BAD_ARGUMENT);
    CHECK(ranges(&good, nullptr, nullptr, std::numeric_limits<int64_t>::max()) == ACTNN_OK);
    CHECK(actnn_ranges(nullptr, nullptr, nullptr, nullptr, 0, 1, 1, values, 0, out) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_ranges(&layout, nullptr, nullptr, nullptr, 0, 1, 1, nullptr, 0, out) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_ranges(&layout, nullptr, nullptr, nullptr, 0, 1, 1, values, 0, nullptr) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_ranges(&layout, nullptr, nullptr, nullptr, 9, 1, 1, values, 0, out) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_ranges(&layout, nullptr, nullptr, nullptr, 0, 0, 1, values, 0, out) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_ranges(&layout, nullptr, nullptr, nullptr, 0, 1, 1, values, 3, out) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_energy(1, 8, 0, 1, 1, nullptr, 0, out) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_energy(1, 8, 0, 1, 1, values, 0, nullptr) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_energy(1, 8, 0, 1, -1, values, 0, out) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_energy(-1, 8, 0, 1, 1, values, 0, out) == ACTNN_BAD_ARGUMENT);
}
