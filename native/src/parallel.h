// Work over groups, shared among OpenMP threads.
#pragma once

#include "actnn.h"

#include <algorithm>
#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace actnn {

// The runtime that the calling thread chose, empty where that is the one this library was linked to.
extern thread_local actnn_runtime other_runtime;

// Fewer groups than this take less time than waking another thread.
constexpr int64_t LEAST_GROUPS_OF_THREAD = 32;

// Call work(begin, end) for one of `parts` contiguous parts of 0 to count - 1.
template <class Work> void do_part(int64_t count, int64_t part, int64_t parts, Work &work) {
    const int64_t size = count / parts, rest = count % parts;
    const int64_t begin = part * size + std::min(part, rest);
    work(begin, begin + size + (part < rest));
}

// Let a team of another runtime do all parts.
template <class Work> void share_in(const actnn_runtime &runtime, int64_t count, int64_t team, Work &work) {
    struct Task {
        const actnn_runtime &runtime;
        int64_t count;
        Work &work;
    } task{runtime, count, work};
    const auto run = [](void *given) {
        const Task &task = *static_cast<const Task *>(given);
        do_part(task.count, task.runtime.thread_num(), task.runtime.num_threads(), task.work);
    };
    runtime.parallel(run, &task, static_cast<unsigned>(team), 0);
}

// Call work(begin, end) for contiguous parts of 0 to count - 1, by at most `team` threads: a runtime may grant fewer.
template <class Work> void share(int64_t count, int64_t team, Work work) {
    if (team > 1) {
        if (other_runtime.parallel != nullptr) return share_in(other_runtime, count, team, work);
#ifdef _OPENMP
#pragma omp parallel num_threads(static_cast<int>(team))
        do_part(count, omp_get_thread_num(), omp_get_num_threads(), work);
        return;
#endif
    }
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

// The same for tasks of which there may be many to a group; `groups` is what all of them amount to.
template <class Work> void share_tasks(int64_t tasks, int64_t groups, int32_t threads, Work work) {
    const int64_t useful = (groups + LEAST_GROUPS_OF_THREAD - 1) / LEAST_GROUPS_OF_THREAD;
    share(tasks, std::min<int64_t>({threads, tasks, useful}), work);
}

} // namespace actnn
