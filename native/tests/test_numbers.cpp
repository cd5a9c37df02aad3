// Conversions between number types, and the noise.

#include "samples.h"

using namespace actnn;

TEST("every 16-bit number becomes the same float with vectors as in scalar kernels") {
    for (const int dtype : {ACTNN_FLOAT16, ACTNN_BFLOAT16}) {
        for (uint32_t first = 0; first < 0x10000; first += GROUP) {
            uint16_t halves[GROUP];
            for (uint32_t i = 0; i < GROUP; ++i) halves[i] = static_cast<uint16_t>(first + i);
            float expected[GROUP], out[GROUP];
            scalar_kernels.load(halves, dtype, GROUP, expected);
            kernels_of(actnn_best_simd())->load(halves, dtype, GROUP, out);
            // a NaN of bfloat16 passes through float registers untouched
            CHECK(std::memcmp(out, expected, sizeof out) == 0);
        }
    }
}

TEST("floats round to the same 16-bit number with vectors as in scalar kernels, ties included") {
    Random random(11);
    for (int round = 0; round < 4000; ++round) {
        float values[GROUP];
        for (int i = 0; i < GROUP; ++i) {
            const uint32_t bits = random.bits();
            const int32_t nudge = static_cast<int32_t>(random.bits() % 3) - 1;
            // any bits at all; or a float16, a half step off, give or take one
            const float half = from_float16(static_cast<uint16_t>(bits));
            const uint32_t tie = std::bit_cast<uint32_t>(half) + 0x1000u + static_cast<uint32_t>(nudge);
            values[i] = std::bit_cast<float>(round % 2 ? bits : tie);
        }
        for (const int dtype : {ACTNN_FLOAT16, ACTNN_BFLOAT16}) {
            uint16_t expected[GROUP], out[GROUP];
            scalar_kernels.store(values, dtype, GROUP, false, expected);
            kernels_of(actnn_best_simd())->store(values, dtype, GROUP, false, out);
            CHECK(std::memcmp(out, expected, sizeof out) == 0);
        }
    }
}

TEST("float16 numbers survive the way to float32 and back") {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
        const uint16_t half = static_cast<uint16_t>(bits);
        const bool nan = (half & 0x7fff) > 0x7c00;
        CHECK(to_float16(from_float16(half)) == (nan ? half | 0x0200 : half));
    }
}

TEST("the noise of a key is the one of the written format") {
    const GroupKey key = group_key({{1, 2, 3, 4}}, 5);
    CHECK(key.a == 0x653203e1u);
    CHECK(key.b == 0x5c81b40cu);
    CHECK(mix(7 * COUNTER_STRIDE + key.a, key.b) == 0xc0029cc0u);
}
