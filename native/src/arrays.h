// Arrays of any number type as groups of floats, without a copy where they already are.
#pragma once

#include <cstdint>

#include "group.h"
#include "numbers.h"

namespace actnn {

// Outputs from this size on are written past the caches, by kernels that do little but move memory: a line would be
// gone before anyone reads it.
constexpr int64_t STREAMED_BYTES = int64_t{64} << 20;

inline bool is_dtype(int32_t dtype) { return dtype >= ACTNN_FLOAT32 && dtype <= ACTNN_BFLOAT16; }

inline bool holds_floats(const void *values, int32_t dtype) {
    return dtype == ACTNN_FLOAT32 && reinterpret_cast<uintptr_t>(values) % alignof(float) == 0;
}

// The caches as the compiler counts them.
enum class Cache { SECOND = 2, FIRST = 3 };

class Input {
  public:
    Input(const GroupKernels &kernels, const void *values, int32_t dtype)
        : kernels_(kernels), values_(static_cast<const uint8_t *>(values)), dtype_(dtype),
          direct_(holds_floats(values, dtype)) {}

    // The elements of a group, in the array itself or in `buffer`.
    const float *read(int64_t first, int length, float *buffer) const {
        const uint8_t *const place = values_ + first * bytes_of(dtype_);
        if (direct_) return reinterpret_cast<const float *>(place);
        kernels_.load(place, dtype_, length, buffer);
        return buffer;
    }

    // Ask a cache for values that will be read soon; those past the end are no harm.
    template <Cache cache> void prefetch(int64_t first, int length) const {
        constexpr int LINE = 64;
        const uintptr_t place = reinterpret_cast<uintptr_t>(values_) + static_cast<uintptr_t>(first * bytes_of(dtype_));
        for (int i = 0; i < length * bytes_of(dtype_); i += LINE) {
            const void *const line = reinterpret_cast<const void *>(place + static_cast<uintptr_t>(i));
            __builtin_prefetch(line, 0, static_cast<int>(cache));
        }
    }

  private:
    const GroupKernels &kernels_;
    const uint8_t *values_;
    int32_t dtype_;
    bool direct_;
};

class Output {
  public:
    Output(const GroupKernels &kernels, void *values, int32_t dtype, bool stream)
        : kernels_(kernels), values_(static_cast<uint8_t *>(values)), dtype_(dtype), stream_(stream),
          direct_(!stream && holds_floats(values, dtype)) {}

    // Let fill(float *) make the elements of a group, in the array itself or in `buffer`.
    template <class Fill> void write(int64_t first, int length, float *buffer, Fill fill) const {
        uint8_t *const place = values_ + first * bytes_of(dtype_);
        if (direct_) {
            fill(reinterpret_cast<float *>(place));
            return;
        }
        fill(buffer);
        kernels_.store(buffer, dtype_, length, stream_, place);
    }

    // Make what this thread wrote visible to others.
    void finish() const {
        if (stream_) kernels_.fence();
    }

  private:
    const GroupKernels &kernels_;
    uint8_t *values_;
    int32_t dtype_;
    bool stream_;
    bool direct_;
};

} // namespace actnn
