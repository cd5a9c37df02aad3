// Which channel the elements of a group belong to, and per-channel arrays spread over them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "channels.h"

namespace actnn {

// Whether samples of `elements` values divide into these channels.
inline bool are_channels(const actnn_channels *channels, int64_t samples, int64_t elements) {
    if (channels == nullptr || channels->channels < 0 || channels->inner < 0) return false;
    if (samples == 0 || elements == 0) return true;
    if (channels->channels == 0 || channels->inner == 0 || channels->channels > elements) return false;
    return elements / channels->channels % channels->inner == 0 && elements % channels->channels == 0;
}

// Call visit(channel, start, stop) for the runs of one channel among the elements `first` to `first + length - 1` of a
// sample; start and stop count from `first`.
template <class Visit> void visit_runs(const actnn_channels &channels, int64_t first, int length, Visit visit) {
    int64_t channel = first / channels.inner % channels.channels;
    int64_t left = channels.inner - first % channels.inner;
    for (int start = 0; start < length;) {
        const int stop = static_cast<int>(std::min<int64_t>(length, start + left));
        visit(channel, start, stop);
        channel = channel + 1 == channels.channels ? 0 : channel + 1;
        left = channels.inner;
        start = stop;
    }
}

// Spreads arrays of one float a channel over the elements of groups.
template <int COUNT> class Spreader {
  public:
    Spreader(const actnn_channels &channels, const float *const (&arrays)[COUNT])
        : channels_(channels), repeats_(channels.inner == 1 && channels.channels <= GROUP) {
        std::copy_n(arrays, COUNT, arrays_);
        if (repeats_) repeat();
    }

    // The parameters of elements `first` to `first + length - 1` of a sample; good until the next call.
    Spread<COUNT> of(int64_t first, int length) {
        if (channels_.inner == 1) return of_neighbours(first % channels_.channels, length);
        if (channels_.inner >= LEAST_RUN) return of_runs(first);
        visit_runs(channels_, first, length, [&](int64_t channel, int start, int stop) {
            for (int k = 0; k < COUNT; ++k) std::fill(spread_[k] + start, spread_[k] + stop, arrays_[k][channel]);
        });
        return by_element(spread_);
    }

  private:
    // Shorter runs would cross vectors more than once.
    static constexpr int LEAST_RUN = 8;

    Spread<COUNT> of_runs(int64_t first) const {
        const int64_t run = first / channels_.inner;
        Spread<COUNT> result;
        std::copy_n(arrays_, COUNT, result.arrays);
        result.channel = run % channels_.channels;
        result.channels = channels_.channels;
        result.left = (run + 1) * channels_.inner - first;
        result.inner = channels_.inner;
        return result;
    }

    // Channels that are neighbours in memory, the first of them again after the last.
    Spread<COUNT> of_neighbours(int64_t channel, int length) {
        if (repeats_) return by_element(spread_, channel);
        if (channel + length <= channels_.channels) return by_element(arrays_, channel);
        const int64_t before = channels_.channels - channel;
        for (int k = 0; k < COUNT; ++k) {
            float *const rest = std::copy_n(arrays_[k] + channel, before, spread_[k]);
            std::copy_n(arrays_[k], length - before, rest);
        }
        return by_element(spread_);
    }

    // Few channels are repeated once, far enough for a group to begin at any of them.
    void repeat() {
        const int count = static_cast<int>(channels_.channels);
        for (int k = 0; k < COUNT; ++k) {
            for (int i = 0; i < count + GROUP; ++i) spread_[k][i] = i < count ? arrays_[k][i] : spread_[k][i - count];
        }
    }

    template <class Arrays> static Spread<COUNT> by_element(const Arrays &arrays, int64_t start = 0) {
        Spread<COUNT> result{};
        for (int k = 0; k < COUNT; ++k) result.arrays[k] = arrays[k] + start;
        return result;
    }

    actnn_channels channels_;
    bool repeats_;
    const float *arrays_[COUNT];
    alignas(64) float spread_[COUNT][2 * GROUP];
};

} // namespace actnn
