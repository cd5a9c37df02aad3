// Ranges of samples by a rule that other kernels may have, too.
#pragma once

#include "actnn.h"

namespace actnn {

// How the coded value and the weight of an element follow from its channels.
struct RangeRule {
    actnn_channels channels;
    // v = (x - mean) * inverse - threshold, one of each a channel; NULL where the values are coded as they are
    const float *mean, *inverse, *threshold;
    bool over_samples; // whether these channels count on from sample to sample
    actnn_channels weighted;
    const float *weight; // NULL where nothing is weighted
};

// As actnn_ranges, of arguments that are known to fit together.
int32_t measure_ranges(const actnn_layout &layout, const RangeRule &rule, int32_t simd, int32_t threads, int64_t stride,
                       const void *values, int32_t dtype, float *ranges);

} // namespace actnn
