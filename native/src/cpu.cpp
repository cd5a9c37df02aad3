// What this build and this CPU can run.

#include "group.h"
#include "parallel.h"

namespace actnn {

thread_local actnn_runtime other_runtime{};

namespace {

bool has_avx2() {
#ifdef ACTNN_HAS_AVX2
    // F16C is older than AVX2: every CPU with the latter has it
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
#else
    return false;
#endif
}

} // namespace

const GroupKernels *kernels_of(int32_t simd) {
    if (simd == ACTNN_SCALAR) return &scalar_kernels;
#ifdef ACTNN_HAS_AVX2
    if (simd == ACTNN_AVX2 && has_avx2()) return &avx2_kernels;
#endif
    return nullptr;
}

} // namespace actnn

int32_t actnn_abi_version(void) { return ACTNN_ABI_VERSION; }

int32_t actnn_best_simd(void) { return actnn::has_avx2() ? ACTNN_AVX2 : ACTNN_SCALAR; }

int32_t actnn_use_runtime(const actnn_runtime *runtime) {
    if (runtime != nullptr && !(runtime->parallel && runtime->thread_num && runtime->num_threads)) {
        return ACTNN_BAD_ARGUMENT;
    }
    actnn::other_runtime = runtime == nullptr ? actnn_runtime{} : *runtime;
    return ACTNN_OK;
}

int32_t actnn_max_threads(void) {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}
