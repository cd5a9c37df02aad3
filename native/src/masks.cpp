// Masks over whole activations: actnn_encode_mask and actnn_apply_mask.

#include "arrays.h"
#include "layout.h"
#include "parallel.h"

using namespace actnn;

namespace {

actnn_status check(int64_t samples, int64_t elements, int32_t simd, int32_t threads, int32_t dtype) {
    if (check_shape(samples, elements) != ACTNN_OK || threads < 1 || !is_dtype(dtype)) return ACTNN_BAD_ARGUMENT;
    if (simd < ACTNN_SCALAR || simd > ACTNN_AVX2) return ACTNN_BAD_ARGUMENT;
    return kernels_of(simd) ? ACTNN_OK : ACTNN_UNSUPPORTED;
}

} // namespace

int32_t actnn_encode_mask(int64_t samples, int64_t elements, int32_t simd, int32_t threads, float upper,
                          const void *values, int32_t dtype, uint8_t *mask) {
    const actnn_status status = check(samples, elements, simd, threads, dtype);
    if (status != ACTNN_OK) return status;
    const Planes planes{samples, elements, 1};
    if (planes.count() == 0) return ACTNN_OK;
    if (values == nullptr || mask == nullptr) return ACTNN_BAD_ARGUMENT;

    const GroupKernels &kernels = *kernels_of(simd);
    const Input input(kernels, values, dtype);
    const bool bounded = upper == upper;
    share_groups(planes.groups(), threads, [&](int64_t begin, int64_t end) {
        alignas(64) float values_of_group[GROUP];
        alignas(64) float below_upper[GROUP];
        visit_groups(planes, begin, end, [&](const Group &group) {
            const float *x = input.read(group.first, group.length, values_of_group);
            if (bounded) {
                for (int i = 0; i < group.length; ++i) below_upper[i] = x[i] >= upper ? 0.0f : x[i];
                x = below_upper;
            }
            kernels.encode_mask(x, group.length, mask + group.planes);
        });
    });
    return ACTNN_OK;
}

int32_t actnn_apply_mask(const actnn_layout *layout, int64_t samples, int64_t elements, int32_t simd, int32_t threads,
                         const uint8_t *buffer, float above, float below, const void *grad, void *out, int32_t dtype) {
    actnn_status status = check(samples, elements, simd, threads, dtype);
    if (status != ACTNN_OK) return status;
    SplitLayout split{{samples, elements, 1}, ACTNN_NEAREST, nullptr};
    if (layout) {
        status = read_layout(layout, split);
        if (status != ACTNN_OK) return status;
        if (layout->samples != samples || layout->elements != elements) return ACTNN_BAD_ARGUMENT;
    }
    if (split.planes.count() == 0) return ACTNN_OK;
    if (buffer == nullptr || grad == nullptr || out == nullptr) return ACTNN_BAD_ARGUMENT;

    const GroupKernels &kernels = *kernels_of(simd);
    const Input input(kernels, grad, dtype);
    // in place, the lines to write are in the cache anyway
    const bool stream = out != grad && split.planes.count() * bytes_of(dtype) >= STREAMED_BYTES;
    const Output output(kernels, out, dtype, stream);
    share_groups(split.planes.groups(), threads, [&](int64_t begin, int64_t end) {
        alignas(64) float grad_of_group[GROUP];
        alignas(64) float out_of_group[GROUP];
        uint8_t mask_of_group[PLANE_BYTES];
        visit_groups(split.planes, begin, end, [&](const Group &group) {
            const uint8_t *mask = buffer + group.planes;
            if (layout) {
                kernels.mask_of_split(split.words(group.bits), mask, group.length, mask_of_group);
                mask = mask_of_group;
            }
            const float *const x = input.read(group.first, group.length, grad_of_group);
            output.write(group.first, group.length, out_of_group,
                         [&](float *y) { kernels.apply_mask(mask, above, below, x, group.length, y); });
        });
        output.finish();
    });
    return ACTNN_OK;
}
