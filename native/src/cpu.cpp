// What this build and this CPU can run.

#include "group.h"
#include "parallel.h"
#include "wide.h"

namespace actnn {

thread_local actnn_runtime other_runtime{};

#ifdef ACTNN_HAS_AVX2
bool wide_vectors = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
#endif

namespace {

// The vectors that this build has kernels for and this CPU has.
int32_t best_simd() {
#if defined(ACTNN_HAS_AVX2)
    // F16C is older than AVX2: every CPU with the latter has it
    const bool all =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    return all ? ACTNN_AVX2 : ACTNN_SCALAR;
#elif defined(ACTNN_HAS_NEON)
    // every 64-bit Arm has it
    return ACTNN_NEON;
#else
    return ACTNN_SCALAR;
#endif
}

} // namespace

const GroupKernels *kernels_of(int32_t simd) {
    if (simd == ACTNN_SCALAR) return &scalar_kernels;
    if (simd != best_simd()) return nullptr;
#if defined(ACTNN_HAS_AVX2)
    return &avx2_kernels;
#elif defined(ACTNN_HAS_NEON)
    return &neon_kernels;
#else
    return nullptr;
#endif
}

} // namespace actnn

int32_t actnn_abi_version(void) { return ACTNN_ABI_VERSION; }

int32_t actnn_best_simd(void) { return actnn::best_simd(); }

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
