// The loops over a full group with AVX-512, which the AVX2 kernels take where the CPU has it: byte for byte and bit for
// bit what group_scalar.cpp makes.
//
// Sixteen elements are a vector. Masks are bits of planes: a comparison yields them, and words are made from them.

#include <immintrin.h>

#include <cstring>

#include "wide.h"

namespace actnn {
namespace {

constexpr int LANES = 16;
constexpr int VECTORS = GROUP / LANES;
constexpr int MASK_BYTES = LANES / 8;

// Four bits of a lane are what a permutation of one vector looks at, five bits a permutation of two.
constexpr int BITS_OF_LANE = 4;

__m512i lane_numbers() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

// The mask of a vector in one plane, or in the mask of a group.
__mmask16 load_mask(const uint8_t *plane, int vector) {
    uint16_t bits;
    std::memcpy(&bits, plane + MASK_BYTES * vector, sizeof bits);
    return static_cast<__mmask16>(bits);
}

void store_mask(__mmask16 mask, uint8_t *plane, int vector) {
    const auto bits = static_cast<uint16_t>(mask);
    std::memcpy(plane + MASK_BYTES * vector, &bits, sizeof bits);
}

// The noise of a group, two vectors at a time.
class Noise {
  public:
    explicit Noise(GroupKey key) : key_(_mm512_set1_epi32(static_cast<int>(key.b))) {
        const __m512i stride = _mm512_set1_epi32(static_cast<int>(COUNTER_STRIDE));
        counter_ = _mm512_add_epi32(_mm512_mullo_epi32(lane_numbers(), stride),
                                    _mm512_set1_epi32(static_cast<int>(key.a)));
    }

    // The hash of the next two vectors.
    __m512i next() {
        __m512i x = counter_;
        counter_ = _mm512_add_epi32(counter_, _mm512_set1_epi32(static_cast<int>(LANES * COUNTER_STRIDE)));
        x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
        x = _mm512_mullo_epi32(x, _mm512_set1_epi32(static_cast<int>(MIX_FIRST)));
        x = _mm512_xor_si512(x, key_);
        x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 15));
        x = _mm512_mullo_epi32(x, _mm512_set1_epi32(static_cast<int>(MIX_SECOND)));
        return _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
    }

    // The noise of both: eight lanes have that of eight elements in their low halves, and of the next in the others.
    static void spread(__m512i x, __m512i (&noise)[2]) {
        const __m512i low = _mm512_and_si512(x, _mm512_set1_epi32(0xffff)), high = _mm512_srli_epi32(x, 16);
        noise[0] = _mm512_shuffle_i64x2(low, high, 0x44);
        noise[1] = _mm512_shuffle_i64x2(low, high, 0xee);
    }

  private:
    __m512i key_;
    __m512i counter_;
};

void draw(GroupKey key, __m512i *out) {
    Noise noise(key);
    for (int i = 0; i < VECTORS / 2; ++i) out[i] = noise.next();
}

// Numbers by their places: sixteen, or 32.
template <bool twice> class Table {
  public:
    Table() = default;

    // The number at a place is that lane of make(places).
    template <class Make> explicit Table(Make make) {
        first_ = make(lane_numbers());
        if constexpr (twice) second_ = make(_mm512_add_epi32(lane_numbers(), _mm512_set1_epi32(LANES)));
    }

    __m512 at(__m512i place) const {
        if constexpr (twice) return _mm512_permutex2var_ps(first_, place, second_);
        return _mm512_permutexvar_ps(place, first_);
    }

  private:
    __m512 first_ = _mm512_setzero_ps(), second_ = _mm512_setzero_ps();
};

// Thresholds of words, a vector of words at a time.
template <bool sided> class VectorThresholds {
  public:
    explicit VectorThresholds(const Thresholds &thresholds)
        : first_positive_(_mm512_set1_epi32(thresholds.negative)), zero_(_mm512_set1_ps(thresholds.zero)),
          above_(_mm512_set1_ps(thresholds.above)), below_(_mm512_set1_ps(thresholds.below)) {}

    __m512 bases(__m512i k) const {
        const __m512i one = _mm512_set1_epi32(1);
        if constexpr (!sided) {
            const __m512i place = _mm512_sub_epi32(_mm512_slli_epi32(k, 17), one);
            return _mm512_add_ps(zero_, _mm512_mul_ps(_mm512_cvtepi32_ps(place), above_));
        }
        const __mmask16 positive = _mm512_cmpgt_epi32_mask(k, first_positive_);
        const __mmask16 negative = _mm512_cmpgt_epi32_mask(first_positive_, k);
        __m512i place = _mm512_slli_epi32(_mm512_sub_epi32(k, first_positive_), 17);
        place = _mm512_mask_sub_epi32(place, positive, place, one);
        place = _mm512_mask_add_epi32(place, negative, place, one);
        const __m512 step = _mm512_mask_blend_ps(positive, below_, above_);
        return _mm512_add_ps(zero_, _mm512_mul_ps(_mm512_cvtepi32_ps(place), step));
    }

  private:
    __m512i first_positive_;
    __m512 zero_, above_, below_;
};

// Vectors that take turns: each of their operations has to wait for the one before it. Their number by measurement.
constexpr int turns_of(int bits) { return bits < 3 ? 2 : bits < 5 ? 4 : 8; }

__m512 cubic_of(__m512 t) {
    return _mm512_mul_ps(t, _mm512_add_ps(_mm512_mul_ps(t, t), _mm512_set1_ps(1.0f)));
}

// Finds the words of elements, a vector at a time, by halves of what is left.
template <int bits, bool sided> class Search {
  public:
    static constexpr int TURNS = turns_of(bits);

    explicit Search(const VectorThresholds<sided> &thresholds) : thresholds_(thresholds) {
        tables_[0] = thresholds.bases(middle(_mm512_setzero_si512(), 0));
        for (int depth = 1; depth < bits && depth < TABLED; ++depth) {
            const __m512i known = _mm512_srli_epi32(lane_numbers(), static_cast<unsigned>(TOP + 1 - depth));
            tables_[depth] = thresholds.bases(middle(known, depth));
        }
        if constexpr (bits > TABLED) {
            widest_ = Table<true>([&](__m512i known) { return thresholds.bases(middle(known, TABLED)); });
        }
        if constexpr (bits > 1) {
            upper_ = _mm512_permutexvar_ps(_mm512_set1_epi32(1 << TOP), tables_[1]);
            tables_[1] = _mm512_broadcastss_ps(_mm512_castps512_ps128(tables_[1]));
        }
    }

    // Write the words of some vectors, of which `first` is the first.
    void find(const __m512 (&y)[TURNS], const __m512 (&dither)[TURNS], int first, uint8_t *planes) const {
        __m512i known[TURNS] = {};
        __mmask16 beyond[TURNS] = {};
#pragma GCC unroll 8
        for (int depth = 0; depth < bits; ++depth) {
            __m512 t[TURNS];
            for (int i = 0; i < TURNS; ++i) t[i] = _mm512_add_ps(base_of(depth, known[i], beyond[i]), dither[i]);
            for (int i = 0; i < TURNS; ++i) t[i] = cubic_of(t[i]);
            for (int i = 0; i < TURNS; ++i) {
                beyond[i] = _mm512_cmp_ps_mask(y[i], t[i], _CMP_GT_OQ);
                store_mask(beyond[i], planes + (bits - 1 - depth) * PLANE_BYTES, first + i);
                if (depth < bits - 1) known[i] = extended(depth, known[i], beyond[i]);
            }
        }
    }

  private:
    // The depth at which a table takes two vectors; beyond it thresholds are computed.
    static constexpr int TABLED = BITS_OF_LANE + 1;

    // The bits of a word that are known are a place in a table: the first of them is this one, the others lie below.
    static constexpr int TOP = bits < TABLED ? bits - 2 : TABLED - 2;

    // What is known once the bit at some depth is. From where the last bit of a place is taken, it is a number.
    static __m512i extended(int depth, __m512i known, __mmask16 bit) {
        if (depth > TOP) {
            const __m512i next = _mm512_add_epi32(known, known);
            return _mm512_mask_add_epi32(next, bit, next, _mm512_set1_epi32(1));
        }
        const __m512i at = _mm512_set1_epi32(1 << (TOP - depth));
        return depth == 0 ? _mm512_maskz_mov_epi32(bit, at) : _mm512_mask_or_epi32(known, bit, known, at);
    }

    // The word in the middle of those that begin with the bits that are known.
    static __m512i middle(__m512i known, int depth) {
        const __m512i next = _mm512_add_epi32(_mm512_add_epi32(known, known), _mm512_set1_epi32(1));
        return _mm512_slli_epi32(next, static_cast<unsigned>(bits - 1 - depth));
    }

    // The thresholds at some depth, of words of which the bits before are known; `beyond` is the last of them.
    __m512 base_of(int depth, __m512i known, __mmask16 beyond) const {
        if (depth == 0) return tables_[0];
        if (depth == 1) return _mm512_mask_blend_ps(beyond, tables_[1], upper_);
        if (depth > TABLED) return thresholds_.bases(middle(known, depth));
        if (depth == TABLED) return widest_.at(known);
        return _mm512_permutexvar_ps(known, tables_[depth]);
    }

    VectorThresholds<sided> thresholds_;
    __m512 tables_[bits < TABLED ? bits : TABLED];
    __m512 upper_ = _mm512_setzero_ps();
    Table<true> widest_;
};

template <int bits, Side side, bool noisy>
void quantize(const Thresholds &thresholds, GroupKey key, float factor, const float *values, const Ahead &ahead,
              const uint8_t *given, uint8_t *planes) {
    constexpr bool sided = side != Side::NONE;
    constexpr int TURNS = turns_of(bits);
    const Search<bits, sided> search{VectorThresholds<sided>(thresholds)};
    const __m512 of_reach = _mm512_set1_ps(factor);
    const __m512 above = _mm512_set1_ps(-2 * thresholds.above), below = _mm512_set1_ps(2 * thresholds.below);
    const __m512 least = _mm512_set1_ps(LEAST_BENT), nothing = _mm512_setzero_ps();
    // The scales take a long chain of dependent operations; the noise, all drawn here, fills that time.
    __m512i hashes[noisy ? VECTORS / 2 : 1];
    if constexpr (noisy) draw(key, hashes);
    for (int first = 0; first < VECTORS; first += TURNS) {
        for (int place = first * LANES; place < (first + TURNS) * LANES; place += FLOATS_OF_LINE) {
            __builtin_prefetch(ahead.read + FLOATS_AHEAD_OF_READING + place);
            if (ahead.write) __builtin_prefetch(ahead.write + FLOATS_AHEAD_OF_WRITING + place, 1);
        }
        __m512 y[TURNS], dither[TURNS];
        __m512i noise[2] = {_mm512_set1_epi32(1 << 15), _mm512_set1_epi32(1 << 15)};
        for (int i = 0; i < TURNS; ++i) {
            if (noisy && i % 2 == 0) Noise::spread(hashes[(first + i) / 2], noise);
            const __m512 x = _mm512_loadu_ps(values + (first + i) * LANES);
            y[i] = _mm512_mul_ps(x, of_reach);
            __m512 step = above;
            if constexpr (sided) {
                const __mmask16 positive = side == Side::GIVEN ? load_mask(given, first + i)
                                                               : _mm512_cmp_ps_mask(x, nothing, _CMP_NLE_UQ);
                step = _mm512_mask_blend_ps(positive, below, above);
                // all are numbers: of others the group is poisoned
                if constexpr (side == Side::GIVEN) {
                    y[i] = _mm512_mask_min_ps(y[i], _mm512_knot(positive), y[i], nothing);
                }
                y[i] = _mm512_mask_max_ps(y[i], positive, y[i], least);
            }
            dither[i] = _mm512_mul_ps(_mm512_cvtepi32_ps(noise[i % 2]), step);
        }
        search.find(y, dither, first, planes);
    }
}

// The value of what is coded along a cubic.
__m512 unbent(__m512 u, __m512 mean, __m512 reach) {
    return _mm512_mul_ps(_mm512_mul_ps(u, _mm512_add_ps(_mm512_mul_ps(u, u), mean)), reach);
}

// The words of a vector, shifted, plus `start`, which has no such bits.
template <int bits> __m512i words_of(const uint8_t *planes, int vector, int shift, __m512i start) {
    __m512i words = start;
    for (int k = 0; k < bits; ++k) {
        const __mmask16 set = load_mask(planes + k * PLANE_BYTES, vector);
        words = _mm512_mask_or_epi32(words, set, words, _mm512_set1_epi32(1 << (shift + k)));
    }
    return words;
}

// Decode a full group by what is left to do of each vector and its noise.
template <bool dithered, class Write> void decode_vectors(GroupKey key, float *out, Write write) {
    Noise drawn(key);
    for (int vector = 0; vector < VECTORS; vector += 2) {
        __m512i noise[2] = {};
        if constexpr (dithered) Noise::spread(drawn.next(), noise);
        for (int i = 0; i < 2; ++i) {
            const int place = (vector + i) * LANES;
            __builtin_prefetch(out + FLOATS_AHEAD_OF_WRITING + place, 1);
            _mm512_storeu_ps(out + place, write(vector + i, noise[i]));
        }
    }
}

template <int bits, Reading reading, bool dithered, bool cubic>
void dequantize(const Levels &of_group, GroupKey key, const uint8_t *planes, float *out) {
    const __m512 mean_above = _mm512_set1_ps(of_group.unbending.above);
    const __m512 mean_below = _mm512_set1_ps(of_group.unbending.below);
    const __m512 reach = _mm512_set1_ps(of_group.unbending.reach);
    const __m512 zero = _mm512_set1_ps(of_group.zero), nothing = _mm512_set1_ps(of_group.nothing);
    const __m512 above = _mm512_set1_ps(of_group.above), below = _mm512_set1_ps(of_group.below);
    constexpr int SHIFT = 17; // from a level to twice its position
    const __m512i middle = _mm512_set1_epi32(dithered ? 65535 : 0);
    const __m512i first_positive = _mm512_set1_epi32(of_group.negative << SHIFT);
    const __m512i last_negative = _mm512_set1_epi32((of_group.negative - 1) << SHIFT);
    decode_vectors<dithered>(key, out, [&](int vector, __m512i noise) {
        const __m512i words = words_of<bits>(planes, vector, SHIFT, _mm512_setzero_si512());
        __mmask16 negative = 0;
        __m512i position = words;
        if constexpr (reading != Reading::AFFINE) {
            negative = _mm512_cmplt_epi32_mask(words, first_positive);
            position = _mm512_sub_epi32(words, first_positive);
            position = _mm512_mask_sub_epi32(position, negative, last_negative, words);
        }
        // rounded once: at eight bits it may be no float
        if constexpr (dithered) {
            const __m512i around = _mm512_sub_epi32(middle, _mm512_add_epi32(noise, noise));
            position = _mm512_add_epi32(position, around);
        }
        const __m512 twice = _mm512_cvtepi32_ps(position);
        __m512 x;
        __m512 mean = mean_above;
        if constexpr (reading == Reading::AFFINE) {
            x = _mm512_add_ps(zero, _mm512_mul_ps(twice, above));
        } else if constexpr (reading == Reading::WHOLE) {
            x = _mm512_mul_ps(twice, _mm512_mask_blend_ps(negative, above, below));
            if constexpr (cubic) mean = _mm512_mask_blend_ps(negative, mean, mean_below);
        } else {
            x = _mm512_mul_ps(twice, above);
        }
        if constexpr (cubic) x = unbent(x, mean, reach);
        if constexpr (reading == Reading::POSITIVE) x = _mm512_mask_blend_ps(negative, x, nothing);
        return x;
    });
}

// As dequantize, for words that are places in a table: 1 to 5 bits.
template <int bits, Reading reading, bool dithered, bool cubic>
void dequantize_by_table(const Levels &of_group, GroupKey key, const uint8_t *planes, float *out) {
    static_assert(bits <= BITS_OF_LANE + 1);
    constexpr bool two = bits > BITS_OF_LANE;
    constexpr bool whole = reading == Reading::WHOLE;
    // nothing is not unbent: a reach may be infinite, and a mean below zero
    constexpr bool apart = reading == Reading::POSITIVE && cubic;
    constexpr bool one_step = reading == Reading::AFFINE || apart;
    const Unbending &unbending = of_group.unbending;
    const __m512 reach = _mm512_set1_ps(unbending.reach);
    const __m512 zero = _mm512_set1_ps(of_group.zero), nothing = _mm512_set1_ps(of_group.nothing);
    const __m512 above = _mm512_set1_ps(of_group.above), mean_above = _mm512_set1_ps(unbending.above);
    const __m512i first_positive = _mm512_set1_epi32(of_group.negative);
    const __m512i last_negative = _mm512_set1_epi32(of_group.negative - 1);
    const auto is_negative = [&](__m512i word) { return _mm512_cmplt_epi32_mask(word, first_positive); };

    // of each word, the position at noise 0, the step, and the mean along a cubic
    const auto twice_of = [&](__m512i word) {
        const __mmask16 negative = is_negative(word);
        __m512i level = _mm512_sub_epi32(word, first_positive);
        level = _mm512_mask_sub_epi32(level, negative, last_negative, word);
        const __m512i middle = _mm512_set1_epi32(dithered ? 65535 : 0);
        const __m512 twice = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(level, 17), middle));
        // a position that no noise makes negative: the product is never -0
        if constexpr (reading == Reading::POSITIVE && !apart) {
            return _mm512_mask_blend_ps(negative, twice, _mm512_set1_ps(131072));
        }
        return twice;
    };
    const auto step_of_word = [&](__m512i word) {
        const __m512 below = whole ? _mm512_set1_ps(of_group.below) : nothing;
        return _mm512_mask_blend_ps(is_negative(word), above, below);
    };
    const auto mean_of_word = [&](__m512i word) {
        return _mm512_mask_blend_ps(is_negative(word), mean_above, _mm512_set1_ps(unbending.below));
    };
    const auto value_of = [&](__m512i word, __m512 twice, __m512 step, __m512 mean) {
        __m512 x = _mm512_mul_ps(twice, step);
        if constexpr (reading == Reading::AFFINE) x = _mm512_add_ps(zero, x);
        if constexpr (cubic) x = unbent(x, mean, reach);
        if constexpr (apart) x = _mm512_mask_blend_ps(is_negative(word), x, nothing);
        return x;
    };

    if constexpr (!dithered) {
        // a bit that no permutation looks at: of nothing, GCC would make the first bit anew for every vector
        const __m512i unseen = _mm512_set1_epi32(1 << (BITS_OF_LANE + 1));
        const Table<two> values([&](__m512i word) {
            return value_of(word, twice_of(word), one_step ? above : step_of_word(word),
                            whole ? mean_of_word(word) : mean_above);
        });
        decode_vectors<dithered>(key, out, [&](int vector, __m512i) {
            return values.at(words_of<bits>(planes, vector, 0, unseen));
        });
    } else {
        const Table<two> positions(twice_of), steps(step_of_word), means(mean_of_word);
        decode_vectors<dithered>(key, out, [&](int vector, __m512i noise) {
            const __m512i word = words_of<bits>(planes, vector, 0, _mm512_setzero_si512());
            const __m512 twice =
                _mm512_fmadd_ps(_mm512_cvtepi32_ps(noise), _mm512_set1_ps(-2), positions.at(word)); // exact
            const __m512 step = one_step ? above : steps.at(word);
            return value_of(word, twice, step, whole && cubic ? means.at(word) : mean_above);
        });
    }
}

// Whether AVX2 takes longer, by measurement. Without noise, making words is most of the work, and AVX2 makes some faster:
// decoding takes 0.07 ns an element instead of 0.08 at three bits, and 0.13 instead of 0.17 at eight.
constexpr bool is_faster(int bits, Reading reading, bool dithered, bool cubic) {
    if (dithered) return true;
    const int many = cubic ? 8 : reading == Reading::AFFINE ? 5 : 6;
    return bits != 3 && bits < many;
}

} // namespace

constinit const CubicQuantizers avx512_cubic_quantizers = cubic_quantizers(
    []<int bits, Side side, bool noisy>() -> QuantizeCubic { return quantize<bits, side, noisy>; });

constinit const Dequantizers avx512_dequantizers =
    dequantizers([]<int bits, Reading reading, bool dithered, bool cubic>() -> Dequantize {
        if constexpr (!is_faster(bits, reading, dithered, cubic)) {
            return nullptr;
        } else if constexpr (bits <= BITS_OF_LANE + 1) {
            return dequantize_by_table<bits, reading, dithered, cubic>;
        } else {
            return dequantize<bits, reading, dithered, cubic>;
        }
    });

} // namespace actnn
