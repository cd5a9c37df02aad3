// How planes are divided between samples: as a greedy buyer would, one plane after another.

#include "samples.h"

using namespace actnn;

namespace {

constexpr int STEPS = 7;

struct Relief {
    double of[2][STEPS] = {};

    explicit Relief(Family family) {
        const auto squared_step = [](int levels) { return levels > 1 ? 1.0 / ((levels - 1.0) * (levels - 1.0)) : 0.0; };
        const auto levels = [&](int side, int bits) {
            return side == 0 ? NEGATIVE[family][bits] : (1 << bits) - NEGATIVE[family][bits];
        };
        for (int side = 0; side < 2; ++side) {
            for (int t = 0; t < MOST_BITS - least_bits(family); ++t) {
                const int bits = least_bits(family) + t;
                of[side][t] = squared_step(levels(side, bits)) - squared_step(levels(side, bits + 1));
            }
        }
    }
};

struct Divided {
    std::vector<float> ranges;
    std::vector<uint8_t> widths;
    std::vector<int64_t> offsets;

    explicit Divided(size_t samples) : ranges(4 * samples), widths(samples, 77), offsets(samples + 1, -1) {}

    actnn_division division(const Relief &relief, int64_t planes, Family family) {
        return {planes,        8,
                relief.of[0],  nullptr,
                {1, 2, 0.5, 1}, 1,
                least_bits(family), ranges.data(),
                widths.data(), offsets.data()};
    }
};

// Buy planes one by one, always the first of those with the largest gain.
std::vector<uint8_t> bought(const Relief &relief, const actnn_division &division, size_t samples) {
    const int least = division.least_bits;
    std::vector<uint8_t> widths(samples, static_cast<uint8_t>(least));
    std::vector<bool> taken(samples * STEPS);
    for (int64_t plane = static_cast<int64_t>(samples) * least; plane < division.planes; ++plane) {
        double most = -1;
        size_t best = 0;
        for (size_t t = 0; t < static_cast<size_t>(MOST_BITS - least); ++t) {
            for (size_t n = 0; n < samples; ++n) {
                const float *const r = division.ranges + 4 * n;
                const double norm = division.norms ? division.norms[n] : 1.0;
                const double negative = (division.weights[0] * r[0] + division.weights[2] * r[2]) * norm;
                const double positive = (division.weights[1] * r[1] + division.weights[3] * r[3]) * norm;
                const double gain = relief.of[1][t] * positive + relief.of[0][t] * negative;
                if (gain > most && !taken[t * samples + n]) {
                    most = gain;
                    best = t * samples + n;
                }
            }
        }
        taken[best] = true;
        ++widths[best % samples];
    }
    return widths;
}

} // namespace

TEST("planes go where they gain most, and among equals to the lower width and the first sample") {
    Random random(5);
    for (const Family family : FAMILIES) {
        const Relief relief(family);
        for (const size_t samples : {size_t{1}, size_t{2}, size_t{7}, size_t{40}}) {
            const int64_t count = static_cast<int64_t>(samples), least = least_bits(family);
            const actnn_layout layout = layout_of(family, count, 300, 0, ACTNN_DITHER);
            for (int64_t planes = count * least; planes <= count * MOST_BITS; planes += 1 + count / 6) {
                for (const int distinct : {1, 3, 1000}) {
                    Divided divided(samples);
                    std::vector<double> norms(samples);
                    for (float &range : divided.ranges) range = static_cast<float>(random.bits() % distinct);
                    for (double &norm : norms) norm = 1.0 + random.bits() % distinct;
                    actnn_division division = divided.division(relief, planes, family);
                    if (planes % 2) division.norms = norms.data();
                    CHECK(actnn_divide(&layout, &division) == ACTNN_OK);
                    CHECK(divided.widths == bought(relief, division, samples));
                    int64_t offset = KEY_BYTES + 2 * count * SCALE_BYTES * words_of(family, least, 0).scales();
                    for (size_t n = 0; n < samples; ++n) {
                        CHECK(divided.offsets[n] == offset);
                        offset += divided.widths[n] * plane_bytes(300);
                    }
                    CHECK(divided.offsets[samples] == offset);
                }
            }
        }
    }
}

TEST("planes are divided evenly without weights, and where a range is not finite") {
    const Relief relief(TWO_SIDED);
    const actnn_layout layout = layout_of(TWO_SIDED, 4, 300, 0, ACTNN_DITHER);
    const std::vector<uint8_t> even = {4, 4, 3, 3};
    for (const float bad : {1.0f, NAN, INFINITY}) {
        Divided divided(4);
        divided.ranges = {9, 8, 7, 6, 5, 4, 3, 2, 1, bad, 1, 1, 1, 1, 1, 100};
        actnn_division division = divided.division(relief, 14, TWO_SIDED);
        if (bad == 1) division.weighted = 0;
        CHECK(actnn_divide(&layout, &division) == ACTNN_OK);
        CHECK(divided.widths == even);
    }
}

TEST("no samples have the offset of the end alone") {
    const Relief relief(AFFINE);
    const actnn_layout layout = layout_of(AFFINE, 0, 300, 0, ACTNN_DITHER);
    Divided divided(0);
    const actnn_division division = divided.division(relief, 0, AFFINE);
    CHECK(actnn_divide(&layout, &division) == ACTNN_OK);
    CHECK(divided.offsets[0] == KEY_BYTES);
}

TEST("a code at divided widths is that of the widths, on every instruction set and thread count") {
    for (const Family family : FAMILIES) {
        const Relief relief(family);
        const actnn_layout layout = layout_of(family, 5, 10'007, 0, ACTNN_DITHER);
        const Kind kinds[] = {Kind::NORMAL, Kind::RECTIFIED, Kind::ONE_NAN, Kind::ZEROS};
        for (const Kind kind : kinds) {
            for (const int dtype : DTYPES) {
                Guarded x = array_of(floats(kind, 5 * 10'007), dtype);
                for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
                    for (const int threads : {1, 3}) {
                        Divided divided(5), measured(5);
                        const actnn_division division = divided.division(relief, 23, family);
                        Guarded found(static_cast<size_t>(KEY_BYTES) +
                                      5 * 40 * static_cast<size_t>(2 * words_of(family, 2, 0).scales()) +
                                      23 * static_cast<size_t>(plane_bytes(10'007)));
                        CHECK(actnn_encode_divided(&layout, &division, simd, threads, KEY, x.data(), dtype,
                                                   found.data()) == ACTNN_OK);
                        CHECK(found.intact());
                        CHECK(actnn_ranges(&layout, nullptr, nullptr, nullptr, ACTNN_SCALAR, 1, 8, x.data(), dtype,
                                           measured.ranges.data()) == ACTNN_OK);
                        CHECK(std::memcmp(measured.ranges.data(), divided.ranges.data(), 20 * sizeof(float)) == 0);
                        actnn_layout widths = layout;
                        widths.sample_bits = divided.widths.data();
                        CHECK(found == encoded(widths, ACTNN_SCALAR, 1, x, dtype));
                    }
                }
            }
        }
    }
}

TEST("planes that cannot be divided are refused") {
    const Relief relief(TWO_SIDED);
    const actnn_layout layout = layout_of(TWO_SIDED, 4, 300, 0, ACTNN_DITHER);
    Divided divided(4);
    const actnn_division good = divided.division(relief, 14, TWO_SIDED);
    const auto expect = [&](int status, auto change) {
        actnn_division division = good;
        change(division);
        CHECK(actnn_divide(&layout, &division) == status);
    };
    expect(ACTNN_OK, [](actnn_division &) {});
    expect(ACTNN_BAD_ARGUMENT, [](actnn_division &division) { division.planes = 7; });
    expect(ACTNN_BAD_ARGUMENT, [](actnn_division &division) { division.planes = 33; });
    expect(ACTNN_BAD_ARGUMENT, [](actnn_division &division) { division.relief = nullptr; });
    expect(ACTNN_BAD_ARGUMENT, [](actnn_division &division) { division.ranges = nullptr; });
    expect(ACTNN_BAD_ARGUMENT, [](actnn_division &division) { division.sample_bits = nullptr; });
    expect(ACTNN_BAD_ARGUMENT, [](actnn_division &division) { division.sample_offsets = nullptr; });
    expect(ACTNN_BAD_WIDTH, [](actnn_division &division) { division.least_bits = 0; });
    CHECK(actnn_divide(nullptr, &good) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_divide(&layout, nullptr) == ACTNN_BAD_ARGUMENT);
    Guarded x = array_of(floats(Kind::NORMAL, 1200), ACTNN_FLOAT32), code(4000);
    CHECK(actnn_encode_divided(&layout, &good, ACTNN_SCALAR, 1, nullptr, x.data(), ACTNN_FLOAT32, code.data()) ==
          ACTNN_BAD_ARGUMENT);
    CHECK(actnn_encode_divided(&layout, &good, ACTNN_SCALAR, 1, KEY, nullptr, ACTNN_FLOAT32, code.data()) ==
          ACTNN_BAD_ARGUMENT);
    CHECK(actnn_encode_divided(&layout, nullptr, ACTNN_SCALAR, 1, KEY, x.data(), ACTNN_FLOAT32, code.data()) ==
          ACTNN_BAD_ARGUMENT);
}
