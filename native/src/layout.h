// Where the groups of a code lie: offsets, validation, and the walk over groups.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "group.h"

namespace actnn {

constexpr int64_t KEY_BYTES = 16;
constexpr int64_t SCALE_BYTES = 2;

inline int64_t plane_bytes(int64_t elements) { return elements / 8 + (elements % 8 != 0); }

inline int64_t groups_of(int64_t elements) { return elements / GROUP + (elements % GROUP != 0); }

// The planes of an activation; a mask, an index code, or the planes of a split code.
struct Planes {
    int64_t samples;
    int64_t elements;
    int bits;                                // of every sample where sample_bits is NULL
    const uint8_t *sample_bits = nullptr;    // NULL, or the width of each sample
    const int64_t *sample_offsets = nullptr; // NULL where the planes of the samples follow each other
    int64_t offset = 0;                      // of the first sample's planes in the buffer

    int64_t groups() const { return samples * groups_of(elements); }
    int64_t count() const { return samples * elements; }
    int bits_of(int64_t sample) const { return sample_bits ? sample_bits[sample] : bits; }

    int64_t offset_of(int64_t sample) const {
        if (sample_offsets) return sample_offsets[sample];
        if (!sample_bits) return offset + sample * bits * plane_bytes(elements);
        int64_t planes = 0;
        for (int64_t n = 0; n < sample; ++n) planes += sample_bits[n];
        return offset + planes * plane_bytes(elements);
    }
};

// Whether the samples first to first + count - 1 are there.
inline bool has_samples(const Planes &planes, int64_t first, int64_t count) {
    return first >= 0 && count >= 0 && first <= planes.samples && count <= planes.samples - first;
}

struct Group {
    int64_t index; // over all samples
    int64_t first; // element
    int64_t place; // element, from the first of the sample on
    int length;
    int bits;
    int64_t planes; // offset in the buffer
};

// Call visit(Group) for the groups begin to end - 1.
template <class Visit> void visit_groups(const Planes &planes, int64_t begin, int64_t end, Visit visit) {
    if (begin >= end) return;
    const int64_t groups = groups_of(planes.elements);
    int64_t sample = begin / groups;
    int64_t offset = planes.offset_of(sample);
    for (int64_t index = begin; index < end; ++sample) {
        const int bits = planes.bits_of(sample);
        if (planes.sample_offsets) offset = planes.sample_offsets[sample];
        const int64_t past = std::min(end, (sample + 1) * groups);
        for (; index < past; ++index) {
            const int64_t within = (index - sample * groups) * GROUP;
            const int length = static_cast<int>(std::min<int64_t>(GROUP, planes.elements - within));
            visit(Group{index, sample * planes.elements + within, within, length, bits, offset + within / 8 * bits});
        }
        offset += bits * plane_bytes(planes.elements);
    }
}

inline void write_key(const Key &key, uint8_t *buffer) {
    for (int i = 0; i < KEY_BYTES; ++i) buffer[i] = static_cast<uint8_t>(key.word[i / 4] >> (8 * (i % 4)));
}

inline Key read_key(const uint8_t *buffer) {
    Key key{};
    for (int i = 0; i < KEY_BYTES; ++i) key.word[i / 4] |= static_cast<uint32_t>(buffer[i]) << (8 * (i % 4));
    return key;
}

// The buffer of a split code.
struct SplitLayout {
    Planes planes;
    int rounding;
    const uint8_t *negative;
    int curve = ACTNN_LINEAR;
    bool unit = false;

    Words words(int bits) const { return {bits, negative[bits], rounding, curve, unit}; }
    int64_t scale_bytes() const { return SCALE_BYTES * words(first_width()).scales(); }
    int first_width() const { return planes.samples > 0 ? planes.bits_of(0) : 1; }
    int64_t scales_of(int64_t group) const { return KEY_BYTES + group * scale_bytes(); }
};

inline actnn_status check_shape(int64_t samples, int64_t elements) {
    constexpr int64_t most = std::numeric_limits<int64_t>::max() / 64; // bytes of a code stay countable
    if (samples < 0 || elements < 0 || (samples > 0 && elements > most / samples)) return ACTNN_BAD_ARGUMENT;
    return ACTNN_OK;
}

// A width of a split code needs two levels on each side, but for the one word of zero-exact codes.
inline bool is_width(int bits, const uint8_t *negative) {
    if (bits < 1 || bits > MOST_BITS) return false;
    const int levels = 1 << bits;
    return negative[bits] == 0 || negative[bits] + 2 <= levels;
}

// Whether the curve of a layout goes with the rest of it: along one, no levels beside a value have it as their mean.
inline bool has_curve(const actnn_layout &layout) {
    if (layout.curve > ACTNN_ROOT || layout.unit > (layout.curve == ACTNN_CUBIC)) return false;
    if (layout.curve == ACTNN_ROOT && layout.negative[MOST_BITS] > 0) return false;
    return layout.curve == ACTNN_LINEAR || layout.rounding != ACTNN_STOCHASTIC;
}

// Check an actnn_layout and derive offsets from it.
inline actnn_status read_layout(const actnn_layout *layout, SplitLayout &out) {
    if (layout == nullptr || check_shape(layout->samples, layout->elements) != ACTNN_OK) return ACTNN_BAD_ARGUMENT;
    if (layout->rounding < ACTNN_DITHER || layout->rounding > ACTNN_NEAREST) return ACTNN_BAD_ARGUMENT;
    if (!has_curve(*layout)) return ACTNN_BAD_ARGUMENT;
    const Planes planes{layout->samples,     layout->elements,       layout->bits,
                        layout->sample_bits, layout->sample_offsets, 0};
    const auto kind = [&](int bits) { return std::min<int>(layout->negative[bits], 2); };
    const int64_t widths = planes.sample_bits ? planes.samples : 1;
    for (int64_t n = 0; n < widths; ++n) {
        if (!is_width(planes.bits_of(n), layout->negative)) return ACTNN_BAD_WIDTH;
        if (kind(planes.bits_of(n)) != kind(planes.bits_of(0))) return ACTNN_BAD_WIDTH;
    }
    out = {planes, layout->rounding, layout->negative, layout->curve, layout->unit == 1};
    out.planes.offset = out.scales_of(planes.groups());
    return ACTNN_OK;
}

// The layout at the widths that a division has written.
inline actnn_layout divided_layout(const actnn_layout &layout, const actnn_division &division) {
    actnn_layout divided = layout;
    divided.bits = division.least_bits;
    divided.sample_bits = division.sample_bits;
    divided.sample_offsets = division.sample_offsets;
    return divided;
}

} // namespace actnn
