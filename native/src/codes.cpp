// Split codes over whole activations: actnn_encode and actnn_decode.

#include "arrays.h"
#include "layout.h"
#include "noise.h"
#include "parallel.h"

namespace actnn {
namespace {

actnn_status check(const actnn_layout *layout, int32_t simd, int32_t threads, const void *values, int32_t dtype,
                   const void *buffer, SplitLayout &split) {
    if (buffer == nullptr || threads < 1 || !is_dtype(dtype) || simd < ACTNN_SCALAR || simd > ACTNN_AVX2) {
        return ACTNN_BAD_ARGUMENT;
    }
    if (const actnn_status status = read_layout(layout, split); status != ACTNN_OK) return status;
    if (values == nullptr && split.planes.count() > 0) return ACTNN_BAD_ARGUMENT;
    return kernels_of(simd) ? ACTNN_OK : ACTNN_UNSUPPORTED;
}

} // namespace
} // namespace actnn

using namespace actnn;

int32_t actnn_encode(const actnn_layout *layout, int32_t simd, int32_t threads, const uint32_t key_words[4],
                     const void *values, int32_t dtype, uint8_t *buffer) {
    SplitLayout split;
    if (key_words == nullptr) return ACTNN_BAD_ARGUMENT;
    const actnn_status status = check(layout, simd, threads, values, dtype, buffer, split);
    if (status != ACTNN_OK) return status;

    const GroupKernels &kernels = *kernels_of(simd);
    const Input input(kernels, values, dtype);
    const Key key{{key_words[0], key_words[1], key_words[2], key_words[3]}};
    write_key(key, buffer);
    share_groups(split.planes.groups(), threads, [&](int64_t begin, int64_t end) {
        alignas(64) float values_of_group[GROUP];
        visit_groups(split.planes, begin, end, [&](const Group &group) {
            const float *const x = input.read(group.first, group.length, values_of_group);
            kernels.encode(split.words(group.bits), group_key(key, group.index), x, nullptr, group.length,
                           buffer + split.scales_of(group.index), buffer + group.planes);
        });
    });
    return ACTNN_OK;
}

int32_t actnn_decode(const actnn_layout *layout, int32_t simd, int32_t threads, int64_t first, int64_t count,
                     const uint8_t *buffer, int32_t part, void *values, int32_t dtype) {
    SplitLayout split;
    if (part != ACTNN_WHOLE && part != ACTNN_POSITIVE) return ACTNN_BAD_ARGUMENT;
    const actnn_status status = check(layout, simd, threads, values, dtype, buffer, split);
    if (status != ACTNN_OK) return status;

    if (!has_samples(split.planes, first, count)) return ACTNN_BAD_ARGUMENT;
    const GroupKernels &kernels = *kernels_of(simd);
    const int64_t skipped = first * groups_of(split.planes.elements);
    // not streamed: decoding is bound by arithmetic, and was slower with streaming stores
    const Output output(kernels, values, dtype, false);
    const Key key = read_key(buffer);
    share_groups(count * groups_of(split.planes.elements), threads, [&](int64_t begin, int64_t end) {
        alignas(64) float values_of_group[GROUP];
        visit_groups(split.planes, skipped + begin, skipped + end, [&](const Group &group) {
            output.write(group.first - first * split.planes.elements, group.length, values_of_group, [&](float *x) {
                kernels.decode(split.words(group.bits), group_key(key, group.index), part,
                               buffer + split.scales_of(group.index), buffer + group.planes, group.length, x);
            });
        });
    });
    return ACTNN_OK;
}
