// One reserved range of addresses in which large blocks lie, and the pages of it that the system has given.
//
// NOTE [Blocks in a range]
// 1. Blocks are whole pages, one behind the other. Addresses are not what is scarce: a hole that fits nobody costs none
//    once its pages went back.
// 2. The pages of a block that was given back stay, for the next one of its size to have without the system's clearing
//    them, as long as all that is resident is no more than what lived at most since the step began, and a share of that.
//    Beyond that the pages that lie idle longest go back first. So what is resident follows what lives, and a step that
//    takes and gives back what it took before asks the system for nothing.
// 3. Which pages are the system's is told to it by protection: they count for no limit of private memory either.
// 4. Bookkeeping lies in a table of fixed size; where that or the range is full, ``take`` has no room.

#pragma once

#include <cstddef>
#include <cstdint>

namespace actnn {

// what may be resident beyond the most that lived: a share of it, 1 / SPARE
constexpr size_t SPARE = 32;
// pages go back in pieces of this size at least, as large as the system's large pages
constexpr size_t LEAST_RETURNED = size_t{2} << 20;
constexpr size_t MOST_STRETCHES = 16384;

struct RangeCounts {
    size_t alive, idle, peak, returned;
};

class Range {
  public:
    // Reserves addresses; takes no memory. False where the system has none.
    bool reserve(size_t bytes);

    // Returns the begin of a block of whole pages, null where there is no room; ``cleared`` tells that it is all zero.
    void *take(size_t bytes, bool *cleared);

    // Takes back a block that ``take`` returned.
    void give_back(void *block);

    // Returns the bytes of a block, 0 where none begins there.
    size_t size_of(const void *block) const;

    bool holds(const void *address) const {
        const auto place = reinterpret_cast<uintptr_t>(address);
        return begin_ <= place && place < end_;
    }

    // Begins to count anew what lives at most, and gives back what is idle.
    void begin_step();

    RangeCounts counts() const { return {alive_, idle_, peak_, returned_}; }

  private:
    // a block, pages that are idle, or addresses without pages
    enum class State : uint8_t { BLOCK, IDLE, EMPTY };
    struct Stretch {
        uintptr_t begin;
        size_t size;
        uint64_t since;
        State state;
    };

    size_t find(uintptr_t begin) const;
    size_t smallest(size_t size, State state) const;
    bool fill(size_t index, size_t size);
    void split(size_t index, size_t size);
    void remove(size_t index);
    size_t merged(size_t index);
    void shed();

    uintptr_t begin_ = 0, end_ = 0;
    size_t page_ = 0, count_ = 0, alive_ = 0, idle_ = 0, peak_ = 0, returned_ = 0;
    uint64_t clock_ = 0;
    // in order of their addresses, without gaps
    Stretch stretches_[MOST_STRETCHES] = {};
};

} // namespace actnn
