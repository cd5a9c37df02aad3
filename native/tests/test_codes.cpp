// Whole split codes: vectors against scalar byte for byte, and what the format promises about them.

#include "samples.h"

using namespace actnn;

namespace {

// Equal bytes, but for the sign of what is not a number, which compilers are free to choose.
bool same_numbers(Guarded &found, Guarded &expected, int dtype) {
    if (found == expected) return true;
    if (found.size() != expected.size()) return false;
    const auto equal = [&](auto sign, auto infinity) {
        using Bits = decltype(sign);
        for (size_t i = 0; i < found.size(); i += sizeof(Bits)) {
            Bits one, other;
            std::memcpy(&one, found.data() + i, sizeof(Bits));
            std::memcpy(&other, expected.data() + i, sizeof(Bits));
            const auto magnitude = [=](Bits bits) { return static_cast<Bits>(bits & static_cast<Bits>(~sign)); };
            if (one != other && !(magnitude(one) > infinity && magnitude(other) > infinity)) return false;
        }
        return true;
    };
    if (dtype == ACTNN_FLOAT32) return equal(uint32_t{0x80000000}, uint32_t{0x7f800000});
    return equal(uint16_t{0x8000}, uint16_t{dtype == ACTNN_FLOAT16 ? uint16_t{0x7c00} : uint16_t{0x7f80}});
}

// Every way to make the code and to read it back must agree with one scalar thread.
void check_agreement(const actnn_layout &layout, const std::vector<float> &values, int dtype) {
    Guarded array = array_of(values, dtype);
    Guarded buffer = encoded(layout, ACTNN_SCALAR, 1, array, dtype);
    Guarded whole = decoded(layout, ACTNN_SCALAR, 1, buffer, ACTNN_WHOLE, dtype);
    Guarded positive = decoded(layout, ACTNN_SCALAR, 1, buffer, ACTNN_POSITIVE, dtype);
    for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
        for (int threads = 1; threads <= 3; ++threads) {
            CHECK(encoded(layout, simd, threads, array, dtype) == buffer);
            Guarded again = decoded(layout, simd, threads, buffer, ACTNN_WHOLE, dtype);
            CHECK(same_numbers(again, whole, dtype));
            Guarded part = decoded(layout, simd, threads, buffer, ACTNN_POSITIVE, dtype);
            CHECK(same_numbers(part, positive, dtype));
        }
    }
}

template <class Visit> void for_each_code(Visit visit) {
    for (const Family family : FAMILIES) {
        for (int bits = least_bits(family); bits <= MOST_BITS; ++bits) {
            for (const int rounding : ROUNDINGS) {
                if (is_code(family, rounding)) visit(family, bits, rounding);
            }
        }
    }
}

} // namespace

TEST("this machine can compare kernels for vectors with scalar ones") {
    if (!have_vectors()) std::printf("      neither AVX2 nor NEON here: only scalar kernels are tested\n");
}

TEST("codes agree over instruction sets and threads at every width, rounding, type and length") {
    for_each_code([](Family family, int bits, int rounding) {
        for (const int dtype : DTYPES) {
            for (const int64_t elements : LENGTHS) {
                const auto values = floats(Kind::NORMAL, static_cast<size_t>(3 * elements));
                check_agreement(layout_of(family, 3, elements, bits, rounding), values, dtype);
            }
        }
    });
}

TEST("codes agree for constants, zeros, subnormals, huge values and values that are not finite") {
    for_each_code([](Family family, int bits, int rounding) {
        for (const Kind kind : KINDS) {
            const auto values = floats(kind, 2 * 600);
            check_agreement(layout_of(family, 2, 600, bits, rounding), values, ACTNN_FLOAT32);
            check_agreement(layout_of(family, 2, 600, bits, rounding), values, ACTNN_FLOAT16);
        }
    });
}

TEST("codes of many groups agree over threads") {
    const auto values = floats(Kind::NORMAL, 7 * 9999);
    for (const Family family : FAMILIES) {
        check_agreement(layout_of(family, 7, 9999, 3, ACTNN_DITHER), values, ACTNN_FLOAT32);
    }
}

TEST("no array needs alignment") {
    const auto values = floats(Kind::NORMAL, 3 * 1000);
    for (const int dtype : DTYPES) {
        const actnn_layout layout = layout_of(TWO_SIDED, 3, 1000, 3, ACTNN_DITHER);
        Guarded array = array_of(values, dtype);
        Guarded buffer = encoded(layout, ACTNN_SCALAR, 1, array, dtype);
        Guarded whole = decoded(layout, ACTNN_SCALAR, 1, buffer, ACTNN_WHOLE, dtype);
        for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
            std::vector<uint8_t> odd_array(array.size() + 1), odd_buffer(buffer.size() + 1), odd_out(whole.size() + 1);
            std::memcpy(odd_array.data() + 1, array.data(), array.size());
            CHECK(actnn_encode(&layout, simd, 2, KEY, odd_array.data() + 1, dtype, odd_buffer.data() + 1) == ACTNN_OK);
            CHECK(std::memcmp(odd_buffer.data() + 1, buffer.data(), buffer.size()) == 0);
            CHECK(actnn_decode(&layout, simd, 2, 0, layout.samples, odd_buffer.data() + 1, ACTNN_WHOLE,
                               odd_out.data() + 1, dtype) == ACTNN_OK);
            CHECK(std::memcmp(odd_out.data() + 1, whole.data(), whole.size()) == 0);
        }
    }
}

TEST("any run of samples decodes to what it is in the whole") {
    const auto values = floats(Kind::NORMAL, 5 * 700);
    for (const Family family : FAMILIES) {
        const actnn_layout layout = layout_of(family, 5, 700, 3, ACTNN_DITHER);
        Guarded array = array_of(values, ACTNN_FLOAT32);
        Guarded buffer = encoded(layout, ACTNN_SCALAR, 1, array, ACTNN_FLOAT32);
        Guarded whole = decoded(layout, ACTNN_SCALAR, 1, buffer, ACTNN_WHOLE, ACTNN_FLOAT32);
        for (int64_t first = 0; first <= 5; ++first) {
            for (int64_t count = 0; count <= 5 - first; ++count) {
                Guarded part(static_cast<size_t>(count * 700) * sizeof(float));
                CHECK(actnn_decode(&layout, actnn_best_simd(), 2, first, count, buffer.data(), ACTNN_WHOLE,
                                   part.data(), ACTNN_FLOAT32) == ACTNN_OK);
                CHECK(std::memcmp(part.data(), whole.data() + first * 700 * 4, part.size()) == 0);
            }
        }
        CHECK(actnn_decode(&layout, 0, 1, 3, 3, buffer.data(), 0, whole.data(), 0) == ACTNN_BAD_ARGUMENT);
        CHECK(actnn_decode(&layout, 0, 1, -1, 1, buffer.data(), 0, whole.data(), 0) == ACTNN_BAD_ARGUMENT);
    }
}

TEST("samples of different widths lie one after another, or where their offsets say") {
    const std::vector<uint8_t> widths = {3, 8, 2, 2, 5, 7, 4, 6};
    const auto values = floats(Kind::NORMAL, widths.size() * 3000);
    for (const Family family : FAMILIES) {
        actnn_layout layout = layout_of(family, static_cast<int64_t>(widths.size()), 3000, 0, ACTNN_DITHER);
        layout.sample_bits = widths.data();
        check_agreement(layout, values, ACTNN_FLOAT32);

        Guarded array = array_of(values, ACTNN_FLOAT32);
        Guarded consecutive = encoded(layout, ACTNN_SCALAR, 2, array, ACTNN_FLOAT32);
        std::vector<int64_t> offsets;
        int64_t offset = 16 + static_cast<int64_t>(widths.size()) * 12 * 2 * words_of(family, 3, 0).scales();
        for (const uint8_t bits : widths) {
            offsets.push_back(offset);
            offset += bits * 375;
        }
        CHECK(static_cast<size_t>(offset) == consecutive.size());
        layout.sample_offsets = offsets.data();
        CHECK(encoded(layout, actnn_best_simd(), 3, array, ACTNN_FLOAT32) == consecutive);
    }
}

TEST("a code of eight values has the bytes of the written format") {
    // from docs/format.md by an independent program
    const std::vector<float> values = {-1.0f, -0.5f, 0.0f, 0.25f, 0.75f, 1.0f, 2.0f, -2.0f};
    const uint32_t key[4] = {1, 2, 3, 4};
    const uint8_t expected[23] = {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, // key
                                  0x00, 0x40, 0x00, 0x40,                          // scales: 2 and 2
                                  0x73, 0x44, 0x78};                               // planes
    const actnn_layout layout = layout_of(TWO_SIDED, 1, 8, 3, ACTNN_DITHER);
    for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
        uint8_t buffer[23];
        CHECK(actnn_encode(&layout, simd, 1, key, values.data(), ACTNN_FLOAT32, buffer) == ACTNN_OK);
        CHECK(std::memcmp(buffer, expected, sizeof buffer) == 0);
    }
}

TEST("no noise carries the largest value past the last level") {
    // a scale at which rounding makes the product exceed 65536 (L - 1); noise of 65535 then needs the minimum
    const int bits = 8, levels = 256 - NEGATIVE[TWO_SIDED][bits];
    const float last = 65536.0f * static_cast<float>(levels - 1);
    float scale = 1.0f;
    while (scale < 2 && scale * (last / scale) <= last) scale += 0x1p-7f;
    CHECK(scale < 2);
    const size_t count = 1 << 20; // the noise of some 16 elements is 65535
    const std::vector<float> values(count, scale);
    const actnn_layout layout = layout_of(TWO_SIDED, 1, 1 << 20, bits, ACTNN_DITHER);
    Guarded array = array_of(values, ACTNN_FLOAT32);
    for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
        Guarded buffer = encoded(layout, simd, 2, array, ACTNN_FLOAT32);
        Guarded out = decoded(layout, simd, 2, buffer, ACTNN_WHOLE, ACTNN_FLOAT32);
        for (const float x : numbers_of(out, ACTNN_FLOAT32)) CHECK(std::abs(x - scale) < 0.01f);
    }
}

TEST("a value that is not finite makes its group NaN and no other") {
    for_each_code([](Family family, int bits, int rounding) {
        for (const Kind kind : {Kind::ONE_NAN, Kind::ONE_INFINITY}) {
            auto values = floats(family == ROOT_FAMILY ? Kind::RECTIFIED : Kind::NORMAL, 700);
            const auto sick = floats(kind, 256);
            std::copy(sick.begin(), sick.end(), values.begin() + 256);
            const actnn_layout layout = layout_of(family, 1, 700, bits, rounding);
            Guarded array = array_of(values, ACTNN_FLOAT32);
            Guarded buffer = encoded(layout, actnn_best_simd(), 1, array, ACTNN_FLOAT32);
            Guarded out = decoded(layout, actnn_best_simd(), 1, buffer, ACTNN_WHOLE, ACTNN_FLOAT32);
            const auto decoded_values = numbers_of(out, ACTNN_FLOAT32);
            for (size_t i = 0; i < 700; ++i) CHECK(std::isnan(decoded_values[i]) == (i / 256 == 1));
        }
    });
}

TEST("dither leaves at most half a step, and its mean error vanishes") {
    const auto values = floats(Kind::NORMAL, 1 << 16);
    const actnn_layout layout = layout_of(AFFINE, 1, 1 << 16, 2, ACTNN_DITHER);
    Guarded array = array_of(values, ACTNN_FLOAT32);
    Guarded buffer = encoded(layout, actnn_best_simd(), 2, array, ACTNN_FLOAT32);
    Guarded out = decoded(layout, actnn_best_simd(), 2, buffer, ACTNN_WHOLE, ACTNN_FLOAT32);
    const auto decoded_values = numbers_of(out, ACTNN_FLOAT32);
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i) {
        const double error = decoded_values[i] - values[i];
        CHECK(std::abs(error) <= 0.5 * 6.9 / 3); // the range of values is below 6.9, and has three steps
        sum += error;
    }
    CHECK(std::abs(sum) / static_cast<double>(values.size()) < 0.01); // some 4 deviations of the mean
}

TEST("a zero-exact code keeps zeros as zeros") {
    for (const int rounding : ROUNDINGS) {
        const auto values = floats(Kind::RECTIFIED, 1000);
        const actnn_layout layout = layout_of(ZERO_EXACT, 1, 1000, 2, rounding);
        Guarded array = array_of(values, ACTNN_FLOAT32);
        Guarded buffer = encoded(layout, actnn_best_simd(), 1, array, ACTNN_FLOAT32);
        Guarded out = decoded(layout, actnn_best_simd(), 1, buffer, ACTNN_WHOLE, ACTNN_FLOAT32);
        const auto decoded_values = numbers_of(out, ACTNN_FLOAT32);
        for (size_t i = 0; i < 1000; ++i) CHECK(values[i] != 0 || decoded_values[i] == 0);
    }
}
