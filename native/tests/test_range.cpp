// Large blocks in a reserved range.

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "check.h"
#include "range.h"

using actnn::Range;

namespace {

constexpr size_t MEBIBYTE = size_t{1} << 20;

// its table is too large for a stack
std::unique_ptr<Range> range_of(size_t bytes) {
    auto range = std::make_unique<Range>();
    CHECK(range->reserve(bytes));
    return range;
}

uint8_t *taken(Range &range, size_t bytes, bool *cleared = nullptr) {
    bool ignored;
    return static_cast<uint8_t *>(range.take(bytes, cleared ? cleared : &ignored));
}

} // namespace

TEST("a block that was given back serves the next of its size, with its pages") {
    const auto range = range_of(64 * MEBIBYTE);
    bool cleared = false;
    uint8_t *first = taken(*range, 3 * MEBIBYTE, &cleared);
    CHECK(cleared);
    std::memset(first, 1, 3 * MEBIBYTE);
    range->give_back(first);
    CHECK(range->counts().idle == 3 * MEBIBYTE);
    uint8_t *second = taken(*range, 3 * MEBIBYTE, &cleared);
    CHECK(second == first && !cleared && second[MEBIBYTE] == 1);
    CHECK(range->counts().returned == 0);
}

TEST("a smaller block takes a part, and neighbours that are given back are one again") {
    const auto range = range_of(64 * MEBIBYTE);
    uint8_t *whole = taken(*range, 8 * MEBIBYTE);
    range->give_back(whole);
    uint8_t *parts[4];
    for (uint8_t *&part : parts) part = taken(*range, 2 * MEBIBYTE);
    CHECK(parts[0] == whole && parts[3] == whole + 6 * MEBIBYTE);
    for (const int place : {1, 3, 0, 2}) range->give_back(parts[place]);
    CHECK(taken(*range, 8 * MEBIBYTE) == whole);
    CHECK(range->counts().returned == 0);
}

TEST("no more is resident than lived at most, and a share of that") {
    const auto range = range_of(1024 * MEBIBYTE);
    // each is larger than the hole that the one before left
    for (size_t size = 4; size <= 64; size += 4) {
        uint8_t *block = taken(*range, size * MEBIBYTE);
        std::memset(block, 1, size * MEBIBYTE);
        range->give_back(block);
        const actnn::RangeCounts counts = range->counts();
        CHECK(counts.alive == 0 && counts.peak == size * MEBIBYTE);
        CHECK(counts.idle <= counts.peak + counts.peak / actnn::SPARE);
    }
    CHECK(range->counts().returned > 0);
}

TEST("pages that lie idle longest go back first") {
    const auto range = range_of(1024 * MEBIBYTE);
    uint8_t *const old = taken(*range, 8 * MEBIBYTE);
    uint8_t *const between = taken(*range, 8 * MEBIBYTE);
    uint8_t *const young = taken(*range, 8 * MEBIBYTE);
    std::memset(old, 1, 24 * MEBIBYTE);
    range->give_back(old);
    range->give_back(young);
    // no hole is large enough for it, and with it there would be more than lived before
    taken(*range, 10 * MEBIBYTE);
    // all of the old one, and the end of the young one: what is there then is too much by less than is returned at once
    CHECK(range->counts().returned == 10 * MEBIBYTE);
    CHECK(range->size_of(between) == 8 * MEBIBYTE && between[0] == 1);
    CHECK(taken(*range, 6 * MEBIBYTE) == young && young[0] == 1);
    bool cleared = false;
    CHECK(taken(*range, 8 * MEBIBYTE, &cleared) == old && cleared);
    for (size_t place = 0; place < 8 * MEBIBYTE; place += MEBIBYTE) CHECK(old[place] == 0);
}

TEST("a step that begins has nothing idle but a share of what lives") {
    const auto range = range_of(256 * MEBIBYTE);
    uint8_t *const kept = taken(*range, 32 * MEBIBYTE);
    uint8_t *const gone = taken(*range, 64 * MEBIBYTE);
    std::memset(gone, 1, 64 * MEBIBYTE);
    range->give_back(gone);
    range->begin_step();
    CHECK(range->counts().idle <= 32 * MEBIBYTE / actnn::SPARE);
    CHECK(range->counts().peak == 32 * MEBIBYTE);
    CHECK(range->size_of(kept) == 32 * MEBIBYTE);
    bool cleared = false;
    uint8_t *const anew = taken(*range, 64 * MEBIBYTE, &cleared);
    CHECK(cleared);
    for (size_t place = 0; place < 64 * MEBIBYTE; place += MEBIBYTE) CHECK(anew[place] == 0);
}

TEST("where the range is full there is no room, and what is given back serves again") {
    const auto range = range_of(16 * MEBIBYTE);
    uint8_t *const most = taken(*range, 12 * MEBIBYTE);
    CHECK(taken(*range, 8 * MEBIBYTE) == nullptr);
    CHECK(taken(*range, SIZE_MAX) == nullptr);
    CHECK(taken(*range, 4 * MEBIBYTE) != nullptr);
    range->give_back(most);
    CHECK(taken(*range, 12 * MEBIBYTE) == most);
}

TEST("only the begin of a block is a block") {
    const auto range = range_of(16 * MEBIBYTE);
    uint8_t *const block = taken(*range, 3 * MEBIBYTE + 1);
    CHECK(range->size_of(block) > 3 * MEBIBYTE && range->size_of(block + MEBIBYTE) == 0);
    CHECK(range->holds(block + MEBIBYTE) && !range->holds(&block));
    range->give_back(block);
    CHECK(range->size_of(block) == 0);
}

TEST("blocks never overlap, whatever comes in which order") {
    const auto range = range_of(512 * MEBIBYTE);
    std::mt19937 random(0);
    std::vector<std::pair<uint8_t *, size_t>> blocks;
    size_t alive = 0;
    for (int round = 0; round < 3000; ++round) {
        if (blocks.size() < 20 && random() % 2) {
            const size_t bytes = 1 + random() % (6 * MEBIBYTE);
            uint8_t *const block = taken(*range, bytes);
            CHECK(block != nullptr);
            // marks at both ends, which another block would overwrite
            block[0] = block[bytes - 1] = static_cast<uint8_t>(bytes % 251);
            blocks.emplace_back(block, bytes);
            alive += range->size_of(block);
        } else if (!blocks.empty()) {
            const size_t place = random() % blocks.size();
            const auto [block, bytes] = blocks[place];
            CHECK(block[0] == bytes % 251 && block[bytes - 1] == bytes % 251);
            alive -= range->size_of(block);
            range->give_back(block);
            blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(place));
        }
        if (round % 500 == 0) range->begin_step();
        CHECK(range->counts().alive == alive);
    }
}
