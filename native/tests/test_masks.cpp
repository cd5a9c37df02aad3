// Masks: made from values, read out of split codes, and applied.

#include <cmath>

#include "samples.h"

using namespace actnn;

namespace {

bool bit(Guarded &mask, int64_t elements, int64_t sample, int64_t i) {
    return mask.data()[sample * plane_bytes(elements) + i / 8] >> (i % 8) & 1;
}

Guarded mask_of(Guarded &values, int64_t samples, int64_t elements, int simd, int threads, int dtype) {
    Guarded mask(static_cast<size_t>(samples * plane_bytes(elements)));
    CHECK(actnn_encode_mask(samples, elements, simd, threads, NAN, values.data(), dtype, mask.data()) == ACTNN_OK);
    CHECK(mask.intact());
    return mask;
}

} // namespace

TEST("a mask holds not (x <= 0) of every element and zeros behind the last") {
    for (const Kind kind : KINDS) {
        for (const int dtype : DTYPES) {
            for (const int64_t elements : LENGTHS) {
                Guarded array = array_of(floats(kind, static_cast<size_t>(3 * elements)), dtype);
                const auto values = numbers_of(array, dtype);
                for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
                    Guarded mask = mask_of(array, 3, elements, simd, 2, dtype);
                    const int64_t places = 8 * plane_bytes(elements);
                    for (int64_t i = 0; i < 3 * places; ++i) {
                        const int64_t sample = i / places, within = i % places;
                        const bool expected =
                            within < elements && !(values[static_cast<size_t>(sample * elements + within)] <= 0);
                        CHECK(bit(mask, elements, sample, within) == expected);
                    }
                }
            }
        }
    }
}

TEST("applying a mask multiplies by above or below, also in place") {
    for (const int dtype : DTYPES) {
        for (const int64_t elements : {1, 9, 256, 1000, 20000}) {
            Guarded values = array_of(floats(Kind::NORMAL, static_cast<size_t>(3 * elements)), dtype);
            Guarded grad = array_of(floats(Kind::ANY_BITS, static_cast<size_t>(3 * elements), 2), dtype);
            Guarded mask = mask_of(values, 3, elements, ACTNN_SCALAR, 1, dtype);
            const auto grads = numbers_of(grad, dtype);
            Guarded expected(grad.size());
            for (int64_t i = 0; i < 3 * elements; ++i) {
                const float factor = bit(mask, elements, i / elements, i % elements) ? 1.5f : -0.25f;
                store_number(grads[static_cast<size_t>(i)] * factor, dtype, static_cast<int>(i), expected.data());
            }
            for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
                for (int threads = 1; threads <= 3; ++threads) {
                    Guarded out(grad.size());
                    CHECK(actnn_apply_mask(nullptr, 3, elements, simd, threads, mask.data(), 1.5f, -0.25f, grad.data(),
                                           out.data(), dtype) == ACTNN_OK);
                    CHECK(out == expected);
                    Guarded same = grad;
                    CHECK(actnn_apply_mask(nullptr, 3, elements, simd, threads, mask.data(), 1.5f, -0.25f, same.data(),
                                           same.data(), dtype) == ACTNN_OK);
                    CHECK(same == expected);
                }
            }
        }
    }
}

TEST("a split code read as a mask is the mask of its values, even where they are not finite") {
    for (const Family family : {ZERO_EXACT, TWO_SIDED}) {
        for (int bits = 2; bits <= MOST_BITS; ++bits) {
            for (const Kind kind : KINDS) {
                const int64_t elements = 777;
                Guarded values = array_of(floats(kind, 2 * 777), ACTNN_FLOAT32);
                Guarded mask = mask_of(values, 2, elements, ACTNN_SCALAR, 1, ACTNN_FLOAT32);
                const actnn_layout layout = layout_of(family, 2, elements, bits, ACTNN_DITHER);
                Guarded buffer = encoded(layout, actnn_best_simd(), 1, values, ACTNN_FLOAT32);
                Guarded grad = array_of(floats(Kind::NORMAL, 2 * 777, 3), ACTNN_FLOAT32);
                Guarded expected(grad.size());
                CHECK(actnn_apply_mask(nullptr, 2, elements, ACTNN_SCALAR, 1, mask.data(), 1.0f, 0.0f, grad.data(),
                                       expected.data(), ACTNN_FLOAT32) == ACTNN_OK);
                for (int simd = ACTNN_SCALAR; simd <= actnn_best_simd(); ++simd) {
                    Guarded out(grad.size());
                    CHECK(actnn_apply_mask(&layout, 2, elements, simd, 2, buffer.data(), 1.0f, 0.0f, grad.data(),
                                           out.data(), ACTNN_FLOAT32) == ACTNN_OK);
                    CHECK(out == expected);
                }
            }
        }
    }
}

TEST("a mask over more bytes than the caches hold is applied alike") {
    const int64_t elements = (int64_t{64} << 20) / 4 + 13; // past the size at which the output is streamed
    std::vector<float> grad(static_cast<size_t>(elements), 3.0f), out(static_cast<size_t>(elements), 0.0f);
    std::vector<uint8_t> mask(static_cast<size_t>(plane_bytes(elements)), 0x0f);
    CHECK(actnn_apply_mask(nullptr, 1, elements, actnn_best_simd(), 2, mask.data(), 1.0f, 0.0f, grad.data(), out.data(),
                           ACTNN_FLOAT32) == ACTNN_OK);
    for (int64_t i = 0; i < elements; ++i) CHECK(out[static_cast<size_t>(i)] == (i % 8 < 4 ? 3.0f : 0.0f));
}
