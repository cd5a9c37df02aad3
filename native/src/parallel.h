// Work over groups, shared among OpenMP threads.
#pragma once

#include <algorithm>
#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace actnn {

// Fewer groups than this take less time than waking another thread.
constexpr int64_t LEAST_GROUPS_OF_THREAD = 32;

// Call work(begin, end) for contiguous parts of 0 to groups - 1.
template <class Work> void share_groups(int64_t groups, int32_t threads, Work work) {
#ifdef _OPENMP
    const int64_t useful = (groups + LEAST_GROUPS_OF_THREAD - 1) / LEAST_GROUPS_OF_THREAD;
    const int team = static_cast<int>(std::min<int64_t>(threads, useful));
    if (team > 1) {
#pragma omp parallel num_threads(team)
        {
            // the runtime may grant fewer threads than were asked for
            const int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
            const int64_t size = groups / parts, rest = groups % parts;
            const int64_t begin = part * size + std::min(part, rest);
            work(begin, begin + size + (part < rest));
        }
        return;
    }
#else
    (void)threads;
#endif
    if (groups > 0) work(int64_t{0}, groups);
}

} // namespace actnn
