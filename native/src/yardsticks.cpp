// Copying and clearing memory with the kernels' own threads: what the benchmark measures kernels against.

#include <algorithm>
#include <cstring>

#include "actnn.h"
#include "parallel.h"

namespace {

// Call work(offset, size) for the pieces of a range, by at most `threads` threads.
template <class Work> void in_pieces(int64_t bytes, int64_t piece, int32_t threads, Work work) {
    const int64_t pieces = bytes / piece + (bytes % piece != 0);
    actnn::share_tasks(pieces, threads, [=](int64_t begin, int64_t end) {
        for (int64_t index = begin; index < end; ++index) {
            const int64_t offset = index * piece;
            work(offset, static_cast<size_t>(std::min(piece, bytes - offset)));
        }
    });
}

} // namespace

int32_t actnn_copy(int64_t bytes, int64_t piece, int32_t threads, const uint8_t *from, uint8_t *to) {
    if (bytes < 0 || piece < 1 || threads < 1 || !from || !to) return ACTNN_BAD_ARGUMENT;
    in_pieces(bytes, piece, threads,
              [=](int64_t offset, size_t size) { std::memcpy(to + offset, from + offset, size); });
    return ACTNN_OK;
}

int32_t actnn_clear(int64_t bytes, int64_t piece, int32_t threads, uint8_t *to) {
    if (bytes < 0 || piece < 1 || threads < 1 || !to) return ACTNN_BAD_ARGUMENT;
    in_pieces(bytes, piece, threads, [=](int64_t offset, size_t size) { std::memset(to + offset, 0, size); });
    return ACTNN_OK;
}
