// Mean, variance, minimum and maximum of each channel of an activation.
//
// Values are summed about a pivot near their mean, in float32 over short stretches and in double beyond, so the
// variance does not suffer from a mean far from zero. Stretches and their order depend on the shape alone.

#include <bit>
#include <cmath>
#include <limits>

#include "arrays.h"
#include "layout.h"
#include "parallel.h"
#include "spread.h"

namespace actnn {
namespace {

constexpr float INFINITE = std::numeric_limits<float>::infinity();

// Statistics that grow by joining: the variance of a union from those of its parts.
struct Statistics {
    double count = 0;
    double mean = 0;
    double squares = 0; // sum of squared distances from the mean
    float lowest = INFINITE;
    float highest = -INFINITE;

    void join(const Statistics &other) {
        if (other.count == 0) return;
        const double total = count + other.count;
        const double distance = other.mean - mean;
        squares += other.squares + distance * distance * (count * other.count / total);
        mean += distance * (other.count / total);
        count = total;
        lowest = std::min(lowest, other.lowest);
        highest = std::max(highest, other.highest);
    }
};

Statistics about_pivot(int64_t values, float pivot, double sum, double square, float lowest, float highest) {
    if (values <= 0) return {};
    const double count = static_cast<double>(values), shift = sum / count;
    return {count, pivot + shift, std::max(0.0, square - sum * shift), lowest, highest};
}

// A pivot of few digits: 16-bit values less such a number are exact, where the error of their differences from any
// other would be the same for many of them and add up.
float pivot_near(float mean) { return std::bit_cast<float>(std::bit_cast<uint32_t>(mean) & 0xfffff000u); }

struct Activation {
    int64_t samples;
    int64_t elements;
    actnn_channels channels;
    int32_t dtype;
    const void *values;
    Input input;
    const ChannelKernels &kernels;

    bool neighbours() const { return channels.inner == 1; }
    int64_t rows() const { return samples * (elements / channels.channels) / channels.inner; }
    int64_t row_length() const { return channels.channels * channels.inner; }
};

// The definition, one value after another: for channels in which something is not finite.
Statistics slow_statistics(const Activation &x, int64_t channel) {
    const uint8_t *const bytes = static_cast<const uint8_t *>(x.values);
    const auto visit = [&](auto each) {
        for (int64_t row = 0; row < x.rows(); ++row) {
            const int64_t first = row * x.row_length() + channel * x.channels.inner;
            for (int64_t i = first; i < first + x.channels.inner; ++i) {
                each(load_number(bytes + i * bytes_of(x.dtype), x.dtype, 0));
            }
        }
    };
    Statistics result;
    result.count = static_cast<double>(x.rows() * x.channels.inner);
    visit([&](float value) {
        result.mean += value;
        // a NaN stays: no comparison with it holds
        if (!(result.lowest <= value) && result.lowest == result.lowest) result.lowest = value;
        if (!(result.highest >= value) && result.highest == result.highest) result.highest = value;
    });
    result.mean /= result.count;
    visit([&](float value) { result.squares += (value - result.mean) * (value - result.mean); });
    return result;
}

struct Results {
    float *mean;
    float *variance;
    float *low;
    float *high;

    void write(const Activation &x, int64_t channel, Statistics statistics) const {
        if (!std::isfinite(statistics.mean) || !std::isfinite(statistics.squares)) {
            statistics = slow_statistics(x, channel);
        }
        const double count = std::max(1.0, statistics.count);
        mean[channel] = static_cast<float>(statistics.mean);
        variance[channel] = static_cast<float>(statistics.squares / count);
        low[channel] = statistics.lowest;
        high[channel] = statistics.highest;
    }
};

// Collects runs of one channel: about one pivot as long as float32 sums of them are accurate, then about a better one.
class Collector {
  public:
    explicit Collector(const Activation &x) : x_(x), part_(holds_floats(x.values, x.dtype) ? MOST : GROUP) {}

    void add(int64_t first, int64_t length) {
        for (int64_t start = 0; start < length;) {
            const int64_t count = std::min(length - start, part_);
            if (count_ + count > MOST) flush();
            if (count_ == 0) begin(first + start, count);
            const float *const values = x_.input.read(first + start, static_cast<int>(count), buffer_);
            x_.kernels.add_moments(values, count, pivot_, moments_);
            count_ += count;
            start += count;
        }
    }

    Statistics finish() {
        flush();
        return whole_;
    }

  private:
    static constexpr int64_t MOST = 16 * GROUP;

    void begin(int64_t first, int64_t length) {
        moments_ = {};
        std::fill_n(moments_.lowest, Moments::LANES, INFINITE);
        std::fill_n(moments_.highest, Moments::LANES, -INFINITE);
        pivot_ = pivot_near(whole_.count > 0 ? static_cast<float>(whole_.mean) : first_mean(first, length));
    }

    // An outlier alone would make a poor pivot.
    float first_mean(int64_t first, int64_t length) {
        const int few = static_cast<int>(std::min<int64_t>(length, 16));
        const float *const values = x_.input.read(first, few, buffer_);
        float sum = 0;
        for (int i = 0; i < few; ++i) sum += values[i];
        return sum / static_cast<float>(few);
    }

    void flush() {
        double sum = 0, square = 0;
        for (int lane = 0; lane < Moments::LANES; ++lane) {
            sum += moments_.sum[lane];
            square += moments_.square[lane];
        }
        const float lowest = *std::min_element(moments_.lowest, moments_.lowest + Moments::LANES);
        const float highest = *std::max_element(moments_.highest, moments_.highest + Moments::LANES);
        whole_.join(about_pivot(count_, pivot_, sum, square, lowest, highest));
        count_ = 0;
    }

    const Activation &x_;
    int64_t part_; // at a time: what is not float32 passes through the buffer
    int64_t count_ = 0;
    float pivot_ = 0;
    Moments moments_{};
    Statistics whole_;
    alignas(64) float buffer_[GROUP];
};

// Channels that are runs of values.
void run_statistics(const Activation &x, int64_t channel, const Results &results) {
    Collector collector(x);
    for (int64_t row = 0; row < x.rows(); ++row) {
        collector.add(row * x.row_length() + channel * x.channels.inner, x.channels.inner);
    }
    results.write(x, channel, collector.finish());
}

// Neighbouring channels are the columns of a matrix, cut into tiles: a block of rows by at most 256 columns. Where the
// channels are few, several rows of the activation make one of the matrix, so that its columns fill vectors.
class Tiles {
  public:
    Tiles(const actnn_channels &channels, int64_t rows)
        : channels_(channels.channels), rows_(rows), folded_(std::max<int64_t>(1, GROUP / channels_)),
          columns_(folded_ * channels_), widths_((columns_ + GROUP - 1) / GROUP),
          blocks_((rows + ROWS * folded_ - 1) / (ROWS * folded_)) {}

    int64_t blocks() const { return blocks_; }
    int64_t tiles() const { return blocks_ * widths_; }
    int64_t block(int64_t tile) const { return tile / widths_; }
    int64_t first_column(int64_t tile) const { return tile % widths_ * GROUP; }
    int width(int64_t tile) const { return static_cast<int>(std::min<int64_t>(GROUP, columns_ - first_column(tile))); }
    // Elements of the activation that a block covers.
    int64_t begin(int64_t block) const { return block * ROWS * columns_; }
    int64_t end(int64_t block) const { return std::min(rows_ * channels_, begin(block + 1)); }
    int64_t columns() const { return columns_; }
    int64_t rows_of(int64_t block) const { return (end(block) - begin(block)) / channels_; }
    int channels_of(int64_t tile) const { return static_cast<int>(std::min<int64_t>(width(tile), channels_)); }

  private:
    static constexpr int64_t ROWS = 256; // of the matrix, summed in float32

    int64_t channels_, rows_, folded_, columns_, widths_, blocks_;
};

// One pivot a channel, wherever it repeats: the mean of its first values.
void choose_pivots(const float *const *rows, int count, int length, int channels, float *pivots) {
    float sums[GROUP] = {};
    for (int start = 0; start < length; start += channels) {
        const int width = std::min(channels, length - start);
        for (int row = 0; row < count; ++row) {
            for (int c = 0; c < width; ++c) sums[c] += rows[row][start + c];
        }
    }
    for (int c = 0; c < channels; ++c) {
        const int values = c < length ? count * (1 + (length - 1 - c) / channels) : 0;
        pivots[c] = values > 0 ? pivot_near(sums[c] / static_cast<float>(values)) : 0.0f;
    }
    for (int i = channels; i < GROUP; ++i) pivots[i] = pivots[i - channels];
}

// Add the rows of a tile; they are of one length, but for the last of all.
void add_tile(const Activation &x, const Tiles &tiles, int64_t tile, ColumnMoments &moments) {
    constexpr int AT_ONCE = 8; // the moments of a column stay in registers for so many
    alignas(64) float buffers[AT_ONCE][GROUP];
    const float *rows[AT_ONCE];
    const int64_t block = tiles.block(tile), past = tiles.end(block);
    int count = 0, length = tiles.width(tile);
    bool has_pivot = false;
    const auto add = [&] {
        if (count == 0) return;
        if (!has_pivot) choose_pivots(rows, count, length, tiles.channels_of(tile), moments.pivot);
        has_pivot = true;
        x.kernels.add_rows(rows, count, 0, length, moments);
        count = 0;
    };
    for (int64_t first = tiles.begin(block) + tiles.first_column(tile); first < past; first += tiles.columns()) {
        const int available = static_cast<int>(std::min<int64_t>(tiles.width(tile), past - first));
        if (count == AT_ONCE || available < length) add();
        length = available;
        rows[count] = x.input.read(first, length, buffers[count]);
        // the first level is full of the rows before them
        x.input.prefetch<Cache::SECOND>(first + AT_ONCE * tiles.columns(), tiles.width(tile));
        ++count;
    }
    add();
}

// Write mean, squares, lowest and highest of the tile's channels to the block's row of the workspace.
void tile_statistics(const Activation &x, const Tiles &tiles, int64_t tile, float *row) {
    ColumnMoments moments{};
    std::fill_n(moments.lowest, GROUP, INFINITE);
    std::fill_n(moments.highest, GROUP, -INFINITE);
    add_tile(x, tiles, tile, moments);

    const int64_t channels = x.channels.channels;
    const int distinct = tiles.channels_of(tile);
    for (int c = 0; c < distinct; ++c) {
        double sum = 0, square = 0;
        float lowest = INFINITE, highest = -INFINITE;
        for (int i = c; i < tiles.width(tile); i += distinct) {
            sum += moments.sum[i];
            square += moments.square[i];
            lowest = std::min(lowest, moments.lowest[i]);
            highest = std::max(highest, moments.highest[i]);
        }
        const int64_t count = tiles.rows_of(tiles.block(tile));
        const Statistics statistics = about_pivot(count, moments.pivot[c], sum, square, lowest, highest);
        float *const place = row + tiles.first_column(tile) + c;
        place[0] = static_cast<float>(statistics.mean);
        place[channels] = static_cast<float>(statistics.squares);
        place[2 * channels] = statistics.lowest;
        place[3 * channels] = statistics.highest;
    }
}

void join_blocks(const Activation &x, const Tiles &tiles, const float *workspace, int64_t channel,
                 const Results &results) {
    const int64_t channels = x.channels.channels;
    Statistics whole;
    for (int64_t block = 0; block < tiles.blocks(); ++block) {
        const float *const place = workspace + 4 * channels * block + channel;
        whole.join({static_cast<double>(tiles.rows_of(block)), place[0], place[channels], place[2 * channels],
                    place[3 * channels]});
    }
    results.write(x, channel, whole);
}

} // namespace
} // namespace actnn

using namespace actnn;

int64_t actnn_statistics_workspace(int64_t samples, int64_t elements, const actnn_channels *channels) {
    if (check_shape(samples, elements) != ACTNN_OK || !are_channels(channels, samples, elements)) return 0;
    if (samples == 0 || elements == 0 || channels->inner != 1) return 0;
    return 4 * channels->channels * Tiles(*channels, samples * (elements / channels->channels)).blocks();
}

int32_t actnn_channel_statistics(int64_t samples, int64_t elements, const actnn_channels *channels, int32_t simd,
                                 int32_t threads, const void *values, int32_t dtype, float *workspace, float *mean,
                                 float *variance, float *low, float *high) {
    if (check_shape(samples, elements) != ACTNN_OK || !are_channels(channels, samples, elements)) {
        return ACTNN_BAD_ARGUMENT;
    }
    if (threads < 1 || !is_dtype(dtype) || simd < ACTNN_SCALAR || simd > ACTNN_AVX2) return ACTNN_BAD_ARGUMENT;
    if (channels->channels == 0) return ACTNN_OK;
    if (!mean || !variance || !low || !high) return ACTNN_BAD_ARGUMENT;
    if (samples == 0 || elements == 0) {
        for (float *const array : {mean, variance, low, high}) std::fill_n(array, channels->channels, 0.0f);
        return ACTNN_OK;
    }
    if (values == nullptr || (channels->inner == 1 && workspace == nullptr)) return ACTNN_BAD_ARGUMENT;
    const GroupKernels *const kernels = kernels_of(simd);
    if (kernels == nullptr) return ACTNN_UNSUPPORTED;

    const Activation x{samples, elements, *channels, dtype, values, Input(*kernels, values, dtype), channels_of(simd)};
    const Results results{mean, variance, low, high};
    if (!x.neighbours()) {
        share_tasks(channels->channels, samples * groups_of(elements), threads, [&](int64_t begin, int64_t end) {
            for (int64_t channel = begin; channel < end; ++channel) run_statistics(x, channel, results);
        });
        return ACTNN_OK;
    }
    const Tiles tiles(*channels, x.rows());
    share_tasks(tiles.tiles(), samples * groups_of(elements), threads, [&](int64_t begin, int64_t end) {
        for (int64_t tile = begin; tile < end; ++tile) {
            tile_statistics(x, tiles, tile, workspace + 4 * channels->channels * tiles.block(tile));
        }
    });
    // to join two blocks takes about as long as to read an eighth of a group
    const int64_t joined = channels->channels * tiles.blocks() / 8;
    share_tasks(channels->channels, joined, threads, [&](int64_t begin, int64_t end) {
        for (int64_t channel = begin; channel < end; ++channel) join_blocks(x, tiles, workspace, channel, results);
    });
    return ACTNN_OK;
}
