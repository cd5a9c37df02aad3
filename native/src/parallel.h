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

// Call work(begin, end) for contiguous parts of 0 to count - 1, by at most `team` threads.
template <class Work> void share(int64_t count, int64_t team, Work work) {
#ifdef _OPENMP
    if (team > 1) {
#pragma omp parallel num_threads(static_cast<int>(team))
        {
            // the runtime may grant fewer threads than were asked for
            const int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
            const int64_t size = count / parts, rest = count % parts;
            const int64_t begin = part * size + std::min(part, rest);
            work(begin, begin + size + (part < rest));
        }
        return;
    }
#else
    (void)team;
#endif
    if (count > 0) work(int64_t{0}, count);
}

template <class Work> void share_groups(int64_t groups, int32_t threads, Work work) {
    const int64_t useful = (groups + LEAST_GROUPS_OF_THREAD - 1) / LEAST_GROUPS_OF_THREAD;
    share(groups, std::min<int64_t>(threads, useful), work);
}

// The same for tasks of many groups each.
template <class Work> void share_tasks(int64_t tasks, int32_t threads, Work work) {
    share(tasks, std::min<int64_t>(threads, tasks), work);
}

} // namespace actnn
