// The group-level interface as later kernels call it, above all with a side that is given.

#include "samples.h"

using namespace actnn;

namespace {

struct GroupCode {
    Guarded scales;
    Guarded planes;

    bool operator==(const GroupCode &other) const { return scales == other.scales && planes == other.planes; }
};

GroupCode encode_group(const GroupKernels &kernels, const Words &words, const std::vector<float> &values,
                       const uint8_t *side) {
    GroupCode code{Guarded(static_cast<size_t>(2 * words.scales())),
                   Guarded(static_cast<size_t>(words.bits) * ((values.size() + 7) / 8))};
    kernels.encode(words, {123, 456}, values.data(), side, static_cast<int>(values.size()), code.scales.data(),
                   code.planes.data());
    CHECK(code.scales.intact() && code.planes.intact());
    return code;
}

std::vector<uint8_t> some_mask(int length, uint32_t seed) {
    Random random(seed);
    std::vector<uint8_t> mask(static_cast<size_t>((length + 7) / 8));
    for (uint8_t &byte : mask) byte = static_cast<uint8_t>(random.bits());
    mask.back() &= static_cast<uint8_t>(0xff >> (-length & 7));
    return mask;
}

template <class Visit> void for_each_split(Visit visit) {
    for (const Family family : {ZERO_EXACT, TWO_SIDED, TWO_SIDED_NORMALIZED, ZERO_EXACT_COMPANDED}) {
        for (int bits = 2; bits <= MOST_BITS; ++bits) {
            for (const int rounding : ROUNDINGS) {
                if (is_code(family, rounding)) visit(words_of(family, bits, rounding));
            }
        }
    }
}

} // namespace

TEST("a given side equal to the sign changes nothing") {
    for_each_split([](const Words &words) {
        for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
            const GroupKernels &kernels = *kernels_of(simd);
            for (const Kind kind : KINDS) {
                for (const size_t length : {256u, 100u, 1u}) {
                    const auto values = floats(kind, length);
                    uint8_t side[PLANE_BYTES];
                    kernels.encode_mask(values.data(), static_cast<int>(length), side);
                    CHECK(encode_group(kernels, words, values, side) == encode_group(kernels, words, values, nullptr));
                }
            }
        }
    });
}

TEST("a given side is the mask of the code, whatever the sign, with vectors as in scalar kernels") {
    for_each_split([](const Words &words) {
        for (const Kind kind : KINDS) {
            for (const int length : {256, 255, 65, 32, 8, 3}) {
                const auto values = floats(kind, static_cast<size_t>(length), 9);
                const auto side = some_mask(length, 5);
                const GroupCode scalar = encode_group(scalar_kernels, words, values, side.data());
                for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
                    const GroupKernels &kernels = *kernels_of(simd);
                    GroupCode code = encode_group(kernels, words, values, side.data());
                    CHECK(code == scalar);
                    Guarded mask(side.size());
                    kernels.mask_of_split(words, code.planes.data(), length, mask.data());
                    CHECK(mask.intact());
                    CHECK(std::memcmp(mask.data(), side.data(), side.size()) == 0);
                }
            }
        }
    });
}

TEST("an element on the side that its sign contradicts decodes within half a step of zero") {
    const Words words{8, 96, ACTNN_DITHER};
    const std::vector<float> values(GROUP, -1.0f);
    const std::vector<uint8_t> side(PLANE_BYTES, 0xff);
    for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
        const GroupKernels &kernels = *kernels_of(simd);
        GroupCode code = encode_group(kernels, words, values, side.data());
        float out[GROUP];
        kernels.decode(words, {123, 456}, ACTNN_WHOLE, code.scales.data(), code.planes.data(), GROUP, out);
        for (const float x : out) CHECK(x == 0); // the positive side has no range at all here
    }
}

TEST("the positive part has zeros on the negative side, even where the reach of a cubic is infinite") {
    const std::vector<float> values{1.5e38f, 0.0f}; // six units are more than the largest float
    for (const int rounding : {ACTNN_DITHER, ACTNN_NEAREST}) {
        for (int bits = 2; bits <= MOST_BITS; ++bits) {
            const Words words = words_of(ZERO_EXACT_COMPANDED, bits, rounding);
            for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
                const GroupKernels &kernels = *kernels_of(simd);
                GroupCode code = encode_group(kernels, words, values, nullptr);
                float out[2];
                kernels.decode(words, {123, 456}, ACTNN_POSITIVE, code.scales.data(), code.planes.data(), 2, out);
                CHECK(std::bit_cast<uint32_t>(out[1]) == 0);
            }
        }
    }
}

TEST("every length of a group is coded and decoded alike, and nothing past it is touched") {
    for (int length = 1; length <= GROUP; ++length) {
        const auto values = floats(Kind::NORMAL, static_cast<size_t>(length));
        for (const Words &words :
             {Words{3, 3, ACTNN_DITHER}, Words{2, 0, ACTNN_STOCHASTIC}, Words{5, 1, ACTNN_NEAREST},
              words_of(COMPANDED, 2, ACTNN_DITHER), words_of(TWO_SIDED_NORMALIZED, 4, ACTNN_DITHER),
              words_of(ZERO_EXACT_COMPANDED, 3, ACTNN_NEAREST)}) {
            GroupCode scalar = encode_group(scalar_kernels, words, values, nullptr);
            for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
                const GroupKernels &kernels = *kernels_of(simd);
                CHECK(encode_group(kernels, words, values, nullptr) == scalar);
                float expected[GROUP + 1], out[GROUP + 1];
                std::fill_n(out, GROUP + 1, 77.0f);
                scalar_kernels.decode(words, {123, 456}, ACTNN_WHOLE, scalar.scales.data(), scalar.planes.data(),
                                      length, expected);
                kernels.decode(words, {123, 456}, ACTNN_WHOLE, scalar.scales.data(), scalar.planes.data(), length, out);
                CHECK(std::memcmp(out, expected, sizeof(float) * static_cast<size_t>(length)) == 0);
                CHECK(std::all_of(out + length, out + GROUP + 1, [](float x) { return x == 77.0f; }));
            }
        }
    }
}
