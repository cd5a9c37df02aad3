// What the C library's allocator holds of freed memory, and how to let the system have it.

#include "actnn.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

// mallinfo2 came with glibc 2.33; the older mallinfo counts in 32 bits
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
#define ACTNN_KNOWS_ITS_HEAP
#endif

int32_t actnn_heap_usage(int64_t *held, int64_t *unused) {
    if (!held || !unused) return ACTNN_BAD_ARGUMENT;
#ifdef ACTNN_KNOWS_ITS_HEAP
    const struct mallinfo2 heap = mallinfo2();
    *held = static_cast<int64_t>(heap.arena + heap.hblkhd);
    *unused = static_cast<int64_t>(heap.fordblks);
    return ACTNN_OK;
#else
    return ACTNN_UNSUPPORTED;
#endif
}

int32_t actnn_trim_heap(void) {
#if defined(__GLIBC__)
    malloc_trim(0);
    return ACTNN_OK;
#else
    return ACTNN_UNSUPPORTED;
#endif
}

int32_t actnn_separate_blocks(int64_t least) {
    if (least < 1 || least > INT32_MAX) return ACTNN_BAD_ARGUMENT;
#if defined(__GLIBC__)
    // a block that is mapped by itself goes back to the system when it is freed, and leaves no hole
    return mallopt(M_MMAP_THRESHOLD, static_cast<int>(least)) ? ACTNN_OK : ACTNN_BAD_ARGUMENT;
#else
    return ACTNN_UNSUPPORTED;
#endif
}
