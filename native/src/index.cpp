// Index codes: integers of 1 to 24 bits as planes. Lossless, and too rare to need intrinsics.

#include <cstring>

#include "layout.h"
#include "parallel.h"
#include "planes.h"

using namespace actnn;

namespace {

constexpr int MOST_INDEX_BITS = 24;

actnn_status check(const Planes &planes, int32_t threads) {
    if (check_shape(planes.samples, planes.elements) != ACTNN_OK || threads < 1) return ACTNN_BAD_ARGUMENT;
    return planes.bits >= 1 && planes.bits <= MOST_INDEX_BITS ? ACTNN_OK : ACTNN_BAD_WIDTH;
}

} // namespace

int32_t actnn_encode_index(int64_t samples, int64_t elements, int32_t bits, int32_t threads, const int32_t *values,
                           uint8_t *buffer) {
    const Planes planes{samples, elements, bits};
    if (const actnn_status status = check(planes, threads); status != ACTNN_OK) return status;
    if (planes.count() == 0) return ACTNN_OK;
    if (values == nullptr || buffer == nullptr) return ACTNN_BAD_ARGUMENT;

    const uint8_t *const numbers = reinterpret_cast<const uint8_t *>(values);
    share_groups(planes.groups(), threads, [&](int64_t begin, int64_t end) {
        visit_groups(planes, begin, end, [&](const Group &group) {
            int32_t indices[GROUP];
            std::memcpy(indices, numbers + 4 * group.first, sizeof(int32_t) * static_cast<size_t>(group.length));
            pack_integers(indices, group.length, group.bits, buffer + group.planes);
        });
    });
    return ACTNN_OK;
}

int32_t actnn_decode_index(int64_t samples, int64_t elements, int32_t bits, int32_t threads, const uint8_t *buffer,
                           int32_t *values) {
    const Planes planes{samples, elements, bits};
    if (const actnn_status status = check(planes, threads); status != ACTNN_OK) return status;
    if (planes.count() == 0) return ACTNN_OK;
    if (values == nullptr || buffer == nullptr) return ACTNN_BAD_ARGUMENT;

    uint8_t *const numbers = reinterpret_cast<uint8_t *>(values);
    share_groups(planes.groups(), threads, [&](int64_t begin, int64_t end) {
        visit_groups(planes, begin, end, [&](const Group &group) {
            int32_t indices[GROUP];
            unpack_integers(buffer + group.planes, group.length, group.bits, indices);
            std::memcpy(numbers + 4 * group.first, indices, sizeof(int32_t) * static_cast<size_t>(group.length));
        });
    });
    return ACTNN_OK;
}
