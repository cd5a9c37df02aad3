// AVX2 kernels with the loops they take from AVX-512 and without: the same bytes and bits, which are those of scalar.

#include "shapes.h"
#include "wide.h"

using namespace actnn;

#ifdef ACTNN_HAS_AVX2

namespace {

constexpr GroupKey GROUP_KEY{123, 456};

// Runs something with wide vectors, where this CPU has them, or without.
template <class Make> auto with_wide(bool on, Make make) {
    const bool had = wide_vectors;
    wide_vectors = on && had;
    const auto made = make();
    wide_vectors = had;
    return made;
}

struct GroupCode {
    Guarded scales;
    Guarded planes;

    bool operator==(const GroupCode &other) const { return scales == other.scales && planes == other.planes; }
};

GroupCode code_of(const GroupKernels &kernels, const Words &words, const std::vector<float> &values,
                  const uint8_t *side) {
    GroupCode code{Guarded(static_cast<size_t>(2 * words.scales())),
                   Guarded(static_cast<size_t>(words.bits) * ((values.size() + 7) / 8))};
    kernels.encode(words, GROUP_KEY, values.data(), side, static_cast<int>(values.size()), code.scales.data(),
                   code.planes.data());
    CHECK(code.scales.intact() && code.planes.intact());
    return code;
}

std::vector<float> values_of(const GroupKernels &kernels, const Words &words, GroupCode &code, int part, size_t length) {
    std::vector<float> values(length + 1, 77.0f);
    kernels.decode(words, GROUP_KEY, part, code.scales.data(), code.planes.data(), static_cast<int>(length),
                   values.data());
    CHECK(values.back() == 77.0f);
    return values;
}

void fill_with_any_bits(uint8_t *bytes, size_t count) {
    Random random(7);
    for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>(random.bits());
}

void check_decoding(const Words &words, GroupCode &code, size_t length) {
    for (const int part : {ACTNN_WHOLE, ACTNN_POSITIVE}) {
        const auto expected = values_of(scalar_kernels, words, code, part, length);
        for (const bool on : {false, true}) {
            const auto found = with_wide(on, [&] { return values_of(avx2_kernels, words, code, part, length); });
            // the sign of a NaN depends on the order in which a compiler multiplies
            CHECK(std::equal(found.begin(), found.end(), expected.begin(), same));
        }
    }
}

void check_coding(const Words &words, const std::vector<float> &values, const uint8_t *side) {
    GroupCode expected = code_of(scalar_kernels, words, values, side);
    for (const bool on : {false, true}) {
        CHECK(with_wide(on, [&] { return code_of(avx2_kernels, words, values, side); }) == expected);
    }
    check_decoding(words, expected, values.size());
}

template <class Visit> void for_each_code(Visit visit) {
    if (!have_vectors()) return;
    for (const Family family : FAMILIES) {
        for (int bits = least_bits(family); bits <= MOST_BITS; ++bits) {
            for (const int rounding : ROUNDINGS) {
                if (is_code(family, rounding)) visit(words_of(family, bits, rounding));
            }
        }
    }
}

} // namespace

TEST("groups are coded and decoded alike with and without wide vectors, whatever decides their sides") {
    uint8_t side[PLANE_BYTES];
    fill_with_any_bits(side, PLANE_BYTES);
    for_each_code([&](const Words &words) {
        for (const Kind kind : KINDS) {
            for (const size_t length : {256u, 255u, 65u, 17u, 3u}) {
                const auto &values = floats(kind, length, 21);
                check_coding(words, values, nullptr);
                uint8_t cut[PLANE_BYTES];
                std::copy_n(side, PLANE_BYTES, cut);
                const size_t last = (length - 1) / 8;
                cut[last] &= static_cast<uint8_t>(0xff >> (-length & 7));
                if (!words.affine()) check_coding(words, values, cut);
            }
        }
    });
}

TEST("words that no encoder would make of these scales are decoded alike with and without wide vectors") {
    for_each_code([](const Words &words) {
        for (const Kind kind : KINDS) {
            GroupCode code = code_of(scalar_kernels, words, floats(kind, GROUP, 22), nullptr);
            fill_with_any_bits(code.planes.data(), code.planes.size());
            check_decoding(words, code, GROUP);
        }
    });
}

TEST("normalising makes the same bytes with and without wide vectors") {
    if (!have_vectors()) return;
    for (const Shape &shape : {Shape{2, 3, 700, 1}, Shape{2, 8, 49, 1}, Shape{1, 64, 1, 100}, Shape{1, 40, 1024, 1}}) {
        const Normalization normalization(shape);
        const actnn_normalization pointers = normalization.pointers();
        const actnn_channels channels = shape.form();
        for (const Kind kind : {Kind::NORMAL, Kind::RECTIFIED, Kind::SUBNORMAL, Kind::ONE_NAN}) {
            Guarded x = array_of(floats(kind, shape.count()), ACTNN_FLOAT32);
            for (const Family family : FAMILIES) {
                for (int bits = least_bits(family); bits <= MOST_BITS; ++bits) {
                    const actnn_layout layout = layout_for(family, shape, bits);
                    const auto coded = [&](int simd) {
                        Guarded y(x.size()), code(buffer_bytes(layout));
                        CHECK(actnn_normalize(&layout, &channels, &pointers, simd, 1, KEY, x.data(), y.data(),
                                              ACTNN_FLOAT32, code.data()) == ACTNN_OK);
                        CHECK(code.intact());
                        return code;
                    };
                    const Guarded expected = coded(ACTNN_SCALAR);
                    for (const bool on : {false, true}) {
                        CHECK(with_wide(on, [&] { return coded(ACTNN_AVX2); }) == expected);
                    }
                }
            }
        }
    }
}

#endif
