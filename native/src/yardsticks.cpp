// Copying and clearing memory with the kernels' own threads: what the benchmark measures kernels against.

#include <cstring>

#include "actnn.h"
#include "parallel.h"

extern "C" int32_t actnn_copy(int64_t bytes, int32_t threads, const uint8_t *from, uint8_t *to) {
    if (bytes < 0 || threads < 1 || !from || !to) return ACTNN_BAD_ARGUMENT;
    actnn::share(bytes, threads, [=](int64_t begin, int64_t end) {
        std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
    });
    return ACTNN_OK;
}

extern "C" int32_t actnn_clear(int64_t bytes, int32_t threads, uint8_t *to) {
    if (bytes < 0 || threads < 1 || !to) return ACTNN_BAD_ARGUMENT;
    actnn::share(bytes, threads, [=](int64_t begin, int64_t end) {
        std::memset(to + begin, 0, static_cast<size_t>(end - begin));
    });
    return ACTNN_OK;
}
