// Index codes.

#include "samples.h"

using namespace actnn;

TEST("indices of 1 to 24 bits come back exactly, over any number of threads") {
    for (int bits = 1; bits <= 24; ++bits) {
        for (const int64_t elements : LENGTHS) {
            Random random(static_cast<uint32_t>(bits));
            std::vector<int32_t> values(static_cast<size_t>(5 * elements) + 1);
            for (int32_t &value : values) value = static_cast<int32_t>(random.bits() & ((1u << bits) - 1));
            for (int threads = 1; threads <= 3; ++threads) {
                Guarded planes(static_cast<size_t>(5 * bits * plane_bytes(elements)));
                Guarded out(static_cast<size_t>(5 * elements * 4) + 1);
                CHECK(actnn_encode_index(5, elements, bits, threads, values.data(), planes.data()) == ACTNN_OK);
                CHECK(planes.intact());
                // one byte off any alignment, which the ABI allows
                int32_t *const unaligned = reinterpret_cast<int32_t *>(out.data() + 1);
                CHECK(actnn_decode_index(5, elements, bits, threads, planes.data(), unaligned) == ACTNN_OK);
                CHECK(out.intact());
                CHECK(std::memcmp(unaligned, values.data(), out.size() - 1) == 0);
            }
        }
    }
}

TEST("bit i of plane k is bit k of index i, and unused bits are zero") {
    const int32_t values[9] = {1, 2, 4, 8, 16, 0x200, 0, 0x3ff, 0x155};
    uint8_t planes[20];
    std::fill_n(planes, 20, POISON_BYTE);
    CHECK(actnn_encode_index(1, 9, 10, 1, values, planes) == ACTNN_OK);
    for (int k = 0; k < 10; ++k) {
        for (int i = 0; i < 16; ++i) {
            const int expected = i < 9 ? values[i] >> k & 1 : 0;
            CHECK((planes[2 * k + i / 8] >> (i % 8) & 1) == expected);
        }
    }
}
