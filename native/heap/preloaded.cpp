// The functions of the C library that allocate, for a process that loads this library before it (LD_PRELOAD).
//
// Large blocks lie in a range of their own (range.h), all others stay where they were. Which of the two a block is tells
// its address. Whatever the range has no room for is the C library's as well.

#include <cerrno>
#include <cstring>
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>

#include "range.h"

extern "C" {
// what the C library's own functions are called where others take their place
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);
}

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

// smaller blocks leave only small holes
constexpr size_t LARGE = size_t{1} << 20;
// more than any machine has, and little of what a process may address
constexpr size_t ADDRESSES = size_t{1} << 42;
constexpr size_t LEAST_ADDRESSES = size_t{1} << 34;
constexpr size_t PAGE = 4096;

// neither is ever destroyed: others free what they have as the process ends
constinit actnn::Range range;
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

class Locked {
  public:
    Locked() { pthread_mutex_lock(&mutex); }
    ~Locked() { pthread_mutex_unlock(&mutex); }
    Locked(const Locked &) = delete;
    Locked &operator=(const Locked &) = delete;
};

__attribute__((constructor)) void begin() {
    // a system may limit addresses
    for (size_t bytes = ADDRESSES; bytes >= LEAST_ADDRESSES && !range.reserve(bytes); bytes /= 2) {
    }
    // a child of this process must not wait for a thread that it does not have
    pthread_atfork([] { pthread_mutex_lock(&mutex); }, [] { pthread_mutex_unlock(&mutex); },
                   [] { pthread_mutex_unlock(&mutex); });
}

void *large(size_t size, bool *cleared) {
    if (size < LARGE) return nullptr;
    const Locked locked;
    return range.take(size, cleared);
}

// The bytes of a block of the range, 0 of all others.
size_t size_of(void *block) {
    if (!range.holds(block)) return 0;
    const Locked locked;
    return range.size_of(block);
}

void *aligned(size_t alignment, size_t size) {
    bool cleared;
    if (alignment <= PAGE) {
        if (void *block = large(size, &cleared)) return block;
    }
    return __libc_memalign(alignment, size);
}

} // namespace

EXPORTED void *malloc(size_t size) {
    bool cleared;
    void *block = large(size, &cleared);
    return block ? block : __libc_malloc(size);
}

EXPORTED void free(void *block) {
    if (!range.holds(block)) return __libc_free(block);
    const Locked locked;
    range.give_back(block);
}

EXPORTED void *calloc(size_t count, size_t size) {
    size_t bytes;
    bool cleared = false;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        errno = ENOMEM;
        return nullptr;
    }
    void *block = large(bytes, &cleared);
    if (!block) return __libc_calloc(count, size);
    return cleared ? block : std::memset(block, 0, bytes);
}

EXPORTED void *realloc(void *block, size_t size) {
    const size_t before = block ? size_of(block) : 0;
    // what the C library holds it lets grow itself, by moving pages and not bytes
    if (!before) return block ? __libc_realloc(block, size) : malloc(size);
    if (size == 0) {
        free(block);
        return nullptr;
    }
    if (size <= before && size > before / 2) return block;
    void *other = malloc(size);
    if (!other) return nullptr;
    std::memcpy(other, block, before < size ? before : size);
    free(block);
    return other;
}

EXPORTED void *memalign(size_t alignment, size_t size) { return aligned(alignment, size); }

EXPORTED void *aligned_alloc(size_t alignment, size_t size) { return aligned(alignment, size); }

EXPORTED int posix_memalign(void **block, size_t alignment, size_t size) {
    if (alignment % sizeof(void *) || alignment == 0 || alignment & (alignment - 1)) return EINVAL;
    const int before = errno;
    void *found = aligned(alignment, size);
    errno = before;
    if (!found) return ENOMEM;
    *block = found;
    return 0;
}

EXPORTED size_t malloc_usable_size(void *block) {
    using Function = size_t (*)(void *);
    if (!block) return 0;
    if (const size_t size = size_of(block)) return size;
    static const auto next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "malloc_usable_size"));
    return next(block);
}

// Begins a step: gives back what no block needs, and counts anew what lives at most.
EXPORTED void actnn_heap_begin_step() {
    const Locked locked;
    range.begin_step();
}

// Tells the bytes of blocks, of idle pages, of the most blocks since the step began, and of all pages given back.
EXPORTED void actnn_heap_counts(uint64_t counts[4]) {
    const Locked locked;
    const actnn::RangeCounts found = range.counts();
    counts[0] = found.alive;
    counts[1] = found.idle;
    counts[2] = found.peak;
    counts[3] = found.returned;
}
