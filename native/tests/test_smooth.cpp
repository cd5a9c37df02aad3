// Smooth functions in every instruction set of this CPU: those of the library choose the widest.

#include "samples.h"
#include "smooth.h"

using namespace actnn;

namespace {

std::vector<SmoothKernel> kernels_of_this_cpu() {
    std::vector<SmoothKernel> kernels;
#ifdef ACTNN_HAS_AVX2
    if (__builtin_cpu_supports("avx2")) kernels.push_back(avx2_smooth);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) kernels.push_back(avx512_smooth);
#endif
    return kernels;
}

// What a kernel makes of values; nothing past them may be touched.
std::vector<float> made(SmoothKernel kernel, int function, const SmoothGroup &group, const std::vector<float> &values,
                        bool affine, bool with_grad) {
    const int length = static_cast<int>(values.size());
    const auto gamma = floats(Kind::NORMAL, values.size(), 3), beta = floats(Kind::NORMAL, values.size(), 4);
    const auto grad = floats(Kind::NORMAL, values.size(), 5);
    const std::vector<float> corrections(values.size(), 0.01f);
    std::vector<float> out(values.size() + 1, 77.0f);
    kernel(function, group, values.data(), affine ? gamma.data() : nullptr, affine ? beta.data() : nullptr,
           corrections.data(), with_grad ? grad.data() : nullptr, length, out.data());
    CHECK(out.back() == 77.0f);
    return out;
}

bool same(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b); }

} // namespace

TEST("smooth functions have the same bits in every instruction set, whatever their length") {
    for (int function = ACTNN_GELU; function <= ACTNN_QUICK_GELU; ++function) {
        for (const int derivative : {0, 1}) {
            for (const int curve : {ACTNN_LINEAR, ACTNN_CUBIC, ACTNN_ROOT}) {
                for (const size_t length : {256u, 100u, 17u, 16u, 7u, 1u}) {
                    for (const Kind kind : KINDS) {
                        const auto values = floats(kind, length, 6);
                        const SmoothGroup group{derivative, curve, 1.5f};
                        for (const bool affine : {false, true}) {
                            const bool with_grad = affine != (length % 2 == 0);
                            const auto expected = made(scalar_smooth, function, group, values, affine, with_grad);
                            for (const SmoothKernel kernel : kernels_of_this_cpu()) {
                                const auto found = made(kernel, function, group, values, affine, with_grad);
                                for (size_t i = 0; i < length; ++i) CHECK(same(found[i], expected[i]));
                            }
                        }
                    }
                }
            }
        }
    }
}
