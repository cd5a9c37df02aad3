// Finds places for blocks, and gives pages back (range.h).

#include "range.h"

#include <algorithm>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace actnn {

namespace {
constexpr size_t NONE = SIZE_MAX;

size_t rounded(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }
} // namespace

bool Range::reserve(size_t bytes) {
    page_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    bytes = rounded(bytes, LEAST_RETURNED);
    void *memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
#ifdef MADV_HUGEPAGE
    // one fault for 512 pages; where the system has none, it goes on with small ones
    madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    begin_ = reinterpret_cast<uintptr_t>(memory);
    end_ = begin_ + bytes;
    stretches_[0] = {begin_, bytes, 0, State::EMPTY};
    count_ = 1;
    return true;
}

void *Range::take(size_t bytes, bool *cleared) {
    if (bytes > end_ - begin_) return nullptr;
    const size_t size = rounded(std::max<size_t>(bytes, 1), page_);
    // a block may leave a rest on either side
    if (count_ + 2 > MOST_STRETCHES) return nullptr;
    size_t index = smallest(size, State::IDLE);
    *cleared = index == NONE;
    if (index == NONE) {
        index = smallest(size, State::EMPTY);
        if (index == NONE || !fill(index, size)) return nullptr;
    } else {
        idle_ -= size;
    }
    split(index, size);
    stretches_[index].state = State::BLOCK;
    alive_ += size;
    peak_ = std::max(peak_, alive_);
    const uintptr_t begin = stretches_[index].begin;
    shed();
    return reinterpret_cast<void *>(begin);
}

void Range::give_back(void *block) {
    const size_t index = find(reinterpret_cast<uintptr_t>(block));
    Stretch &stretch = stretches_[index];
    alive_ -= stretch.size;
    idle_ += stretch.size;
    stretch.state = State::IDLE;
    stretch.since = ++clock_;
    merged(index);
    shed();
}

size_t Range::size_of(const void *block) const {
    const auto begin = reinterpret_cast<uintptr_t>(block);
    const Stretch &stretch = stretches_[find(begin)];
    return stretch.begin == begin && stretch.state == State::BLOCK ? stretch.size : 0;
}

void Range::begin_step() {
    peak_ = alive_;
    shed();
}

// Returns the stretch that an address lies in.
size_t Range::find(uintptr_t place) const {
    const Stretch *after = std::upper_bound(stretches_, stretches_ + count_, place,
                                            [](uintptr_t own, const Stretch &stretch) { return own < stretch.begin; });
    return static_cast<size_t>(after - stretches_) - 1;
}

// Returns the smallest stretch of some state that is large enough, the first of several.
size_t Range::smallest(size_t size, State state) const {
    size_t best = NONE;
    for (size_t index = 0; index < count_; ++index) {
        const Stretch &stretch = stretches_[index];
        if (stretch.state == state && stretch.size >= size && (best == NONE || stretch.size < stretches_[best].size))
            best = index;
    }
    return best;
}

// Lets the begin of an empty stretch have pages; where that passes a limit, after all that is idle went back.
bool Range::fill(size_t index, size_t size) {
    void *begin = reinterpret_cast<void *>(stretches_[index].begin);
    if (mprotect(begin, size, PROT_READ | PROT_WRITE) == 0) return true;
    const size_t peak = peak_;
    peak_ = 0;
    shed();
    peak_ = peak;
    // other stretches may have grown together
    return mprotect(begin, size, PROT_READ | PROT_WRITE) == 0;
}

// Cuts a stretch in two, of which the first has ``size`` bytes.
void Range::split(size_t index, size_t size) {
    Stretch &whole = stretches_[index];
    if (whole.size == size) return;
    std::memmove(&stretches_[index + 2], &stretches_[index + 1], (count_ - index - 1) * sizeof(Stretch));
    stretches_[index + 1] = {whole.begin + size, whole.size - size, whole.since, whole.state};
    stretches_[index].size = size;
    ++count_;
}

void Range::remove(size_t index) {
    std::memmove(&stretches_[index], &stretches_[index + 1], (count_ - index - 1) * sizeof(Stretch));
    --count_;
}

// Joins a stretch with its neighbours of the same state; returns where it is now.
size_t Range::merged(size_t index) {
    const State state = stretches_[index].state;
    if (index + 1 < count_ && stretches_[index + 1].state == state) {
        stretches_[index].size += stretches_[index + 1].size;
        stretches_[index].since = std::max(stretches_[index].since, stretches_[index + 1].since);
        remove(index + 1);
    }
    if (index > 0 && stretches_[index - 1].state == state) {
        stretches_[index - 1].size += stretches_[index].size;
        stretches_[index - 1].since = std::max(stretches_[index - 1].since, stretches_[index].since);
        remove(index--);
    }
    return index;
}

// Gives pages back until no more is resident than may be.
void Range::shed() {
    const size_t most = std::max(peak_ + peak_ / SPARE, alive_);
    while (alive_ + idle_ > most) {
        size_t oldest = NONE;
        for (size_t index = 0; index < count_; ++index) {
            const Stretch &stretch = stretches_[index];
            if (stretch.state == State::IDLE && (oldest == NONE || stretch.since < stretches_[oldest].since))
                oldest = index;
        }
        const size_t size = stretches_[oldest].size;
        const size_t gone = std::min(size, rounded(alive_ + idle_ - most, LEAST_RETURNED));
        if (gone < size) {
            if (count_ + 1 > MOST_STRETCHES) return;
            split(oldest, size - gone);
            ++oldest;
        }
        Stretch &stretch = stretches_[oldest];
        void *begin = reinterpret_cast<void *>(stretch.begin);
        // both keep what the range was advised of
        madvise(begin, stretch.size, MADV_DONTNEED);
        mprotect(begin, stretch.size, PROT_NONE);
        idle_ -= stretch.size;
        returned_ += stretch.size;
        stretch.state = State::EMPTY;
        merged(oldest);
    }
}

} // namespace actnn
