// What the ABI refuses, and that a refusal writes nothing.

#include <cmath>

#include "samples.h"

using namespace actnn;

namespace {

struct Call {
    actnn_layout layout = layout_of(TWO_SIDED, 2, 300, 3, ACTNN_DITHER);
    int simd = ACTNN_SCALAR;
    int threads = 1;
    int dtype = ACTNN_FLOAT32;
    int part = ACTNN_WHOLE;
};

// Change one thing in a good call and see the status of encoding and of decoding.
template <class Change> void expect(int status, Change change) {
    Call call;
    change(call);
    Guarded values(2 * 300 * 4), buffer(2000);
    std::memset(values.data(), 0, values.size());
    const Guarded values_before = values, buffer_before = buffer;
    if (call.part == ACTNN_WHOLE) {
        CHECK(actnn_encode(&call.layout, call.simd, call.threads, KEY, values.data(), call.dtype, buffer.data()) ==
              status);
    }
    CHECK(actnn_decode(&call.layout, call.simd, call.threads, 0, call.layout.samples, buffer.data(), call.part,
                       values.data(), call.dtype) ==
          status);
    if (status != ACTNN_OK) CHECK(values == values_before && buffer == buffer_before);
}

} // namespace

TEST("the version is the header's") { CHECK(actnn_abi_version() == ACTNN_ABI_VERSION); }

TEST("there is at least one thread") { CHECK(actnn_max_threads() >= 1); }

namespace {

// A runtime that grants two threads, one after the other, and counts its teams.
int teams = 0, current = 0;

void run_in_turn(void (*work)(void *), void *data, unsigned, unsigned) {
    ++teams;
    for (current = 0; current < 2; ++current) work(data);
}

const actnn_runtime IN_TURN{run_in_turn, [] { return current; }, [] { return 2; }};

} // namespace

TEST("kernels compute in the runtime that was chosen, and no part is left out") {
    const actnn_layout layout = layout_of(TWO_SIDED, 3, 40000, 3, ACTNN_DITHER);
    std::vector<float> values(3 * 40000);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 97) - 40.0f;
    std::vector<uint8_t> expected(200000), found(200000);
    const auto encode = [&](int threads, std::vector<uint8_t> &buffer) {
        return actnn_encode(&layout, ACTNN_SCALAR, threads, KEY, values.data(), ACTNN_FLOAT32, buffer.data());
    };
    CHECK(encode(1, expected) == ACTNN_OK);
    CHECK(actnn_use_runtime(&IN_TURN) == ACTNN_OK);
    CHECK(encode(3, found) == ACTNN_OK);
    CHECK(teams == 1 && found == expected);
    CHECK(encode(1, found) == ACTNN_OK);
    CHECK(teams == 1);
    CHECK(actnn_use_runtime(nullptr) == ACTNN_OK);
    CHECK(encode(2, found) == ACTNN_OK);
    CHECK(teams == 1);
}

TEST("a runtime that lacks a function is a bad argument") {
    actnn_runtime lacking = IN_TURN;
    lacking.num_threads = nullptr;
    CHECK(actnn_use_runtime(&lacking) == ACTNN_BAD_ARGUMENT);
}

TEST("a good call is accepted") {
    expect(ACTNN_OK, [](Call &) {});
}

TEST("sizes, enumerators and thread counts outside their range are bad arguments") {
    expect(ACTNN_BAD_ARGUMENT, [](Call &call) { call.layout.samples = -1; });
    expect(ACTNN_BAD_ARGUMENT, [](Call &call) { call.layout.elements = -1; });
    expect(ACTNN_BAD_ARGUMENT, [](Call &call) { call.layout.elements = std::numeric_limits<int64_t>::max(); });
    expect(ACTNN_BAD_ARGUMENT, [](Call &call) { call.layout.rounding = 3; });
    expect(ACTNN_BAD_ARGUMENT, [](Call &call) { call.threads = 0; });
    expect(ACTNN_BAD_ARGUMENT, [](Call &call) { call.dtype = 3; });
    expect(ACTNN_BAD_ARGUMENT, [](Call &call) { call.simd = 2; });
    expect(ACTNN_BAD_ARGUMENT, [](Call &call) { call.simd = -1; });
    expect(ACTNN_BAD_ARGUMENT, [](Call &call) { call.part = 2; });
}

TEST("a curve that does not go with the rest of its layout is a bad argument") {
    expect(ACTNN_OK, [](Call &call) { call.layout.curve = ACTNN_CUBIC; });
    expect(ACTNN_BAD_ARGUMENT, [](Call &call) { call.layout.curve = 3; });
    expect(ACTNN_BAD_ARGUMENT, [](Call &call) { call.layout.curve = ACTNN_ROOT; });
    expect(ACTNN_BAD_ARGUMENT, [](Call &call) { call.layout.unit = 1; });
    expect(ACTNN_BAD_ARGUMENT, [](Call &call) {
        call.layout.curve = ACTNN_CUBIC;
        call.layout.unit = 2;
    });
    expect(ACTNN_BAD_ARGUMENT, [](Call &call) {
        call.layout.curve = ACTNN_CUBIC;
        call.layout.rounding = ACTNN_STOCHASTIC;
    });
}

TEST("functions and derivatives that there are not, and parameters beside sides, are bad arguments") {
    const actnn_layout layout = layout_of(AFFINE, 1, 8, 2, ACTNN_DITHER), sided = layout_of(TWO_SIDED, 1, 8, 2, 0);
    const actnn_output parameters{{8, 1}, nullptr, nullptr, nullptr, nullptr, 0, 0};
    uint8_t buffer[64] = {};
    float out[8];
    const auto status = [&](const actnn_layout &chosen, int function, int derivative, const actnn_output *given) {
        return actnn_decode_function(&chosen, function, derivative, given, ACTNN_SCALAR, 1, 0, 1, buffer, nullptr, out,
                                     ACTNN_FLOAT32);
    };
    CHECK(status(layout, ACTNN_GELU, 1, &parameters) == ACTNN_OK);
    CHECK(status(sided, ACTNN_QUICK_GELU, 0, nullptr) == ACTNN_OK);
    CHECK(status(layout, -1, 0, nullptr) == ACTNN_BAD_ARGUMENT);
    CHECK(status(layout, ACTNN_QUICK_GELU + 1, 0, nullptr) == ACTNN_BAD_ARGUMENT);
    CHECK(status(layout, ACTNN_GELU, 2, nullptr) == ACTNN_BAD_ARGUMENT);
    CHECK(status(sided, ACTNN_GELU, 0, &parameters) == ACTNN_BAD_ARGUMENT);
}

TEST("widths and numbers of negative levels outside the format are bad widths") {
    expect(ACTNN_BAD_WIDTH, [](Call &call) { call.layout.bits = 0; });
    expect(ACTNN_BAD_WIDTH, [](Call &call) { call.layout.bits = 9; });
    expect(ACTNN_BAD_WIDTH, [](Call &call) { call.layout.negative[3] = 7; });
    expect(ACTNN_BAD_WIDTH, [](Call &call) {
        call.layout.bits = 1;
        call.layout.negative[1] = 1;
    });
    static const uint8_t outside[2] = {3, 9}, kinds[2] = {2, 3};
    expect(ACTNN_BAD_WIDTH, [](Call &call) { call.layout.sample_bits = outside; });
    expect(ACTNN_BAD_WIDTH, [](Call &call) {
        call.layout.sample_bits = kinds;
        call.layout.negative[2] = 1; // zero-exact in one sample, two-sided in the other
    });
}

TEST("null pointers are bad arguments, except where there is nothing to read or write") {
    const actnn_layout layout = layout_of(AFFINE, 1, 8, 2, ACTNN_NEAREST);
    const actnn_layout empty = layout_of(AFFINE, 0, 8, 2, ACTNN_NEAREST);
    float values[8] = {};
    int32_t indices[8] = {};
    uint8_t buffer[64] = {};
    CHECK(actnn_encode(nullptr, 0, 1, KEY, values, 0, buffer) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_encode(&layout, 0, 1, nullptr, values, 0, buffer) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_encode(&layout, 0, 1, KEY, nullptr, 0, buffer) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_encode(&layout, 0, 1, KEY, values, 0, nullptr) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_encode(&empty, 0, 1, KEY, nullptr, 0, buffer) == ACTNN_OK);
    CHECK(actnn_decode(&layout, 0, 1, 0, 1, nullptr, 0, values, 0) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_decode(&layout, 0, 1, 0, 1, buffer, 0, nullptr, 0) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_decode(&empty, 0, 1, 0, 0, buffer, 0, nullptr, 0) == ACTNN_OK);
    CHECK(actnn_encode_mask(1, 8, 0, 1, NAN, nullptr, 0, buffer) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_encode_mask(1, 8, 0, 1, NAN, values, 0, nullptr) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_encode_mask(1, 0, 0, 1, NAN, nullptr, 0, nullptr) == ACTNN_OK);
    CHECK(actnn_apply_mask(nullptr, 1, 8, 0, 1, nullptr, 1, 0, values, values, 0) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_apply_mask(nullptr, 1, 8, 0, 1, buffer, 1, 0, nullptr, values, 0) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_apply_mask(nullptr, 1, 8, 0, 1, buffer, 1, 0, values, nullptr, 0) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_apply_mask(&layout, 1, 9, 0, 1, buffer, 1, 0, values, values, 0) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_encode_index(1, 8, 4, 1, nullptr, buffer) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_decode_index(1, 8, 4, 1, buffer, nullptr) == ACTNN_BAD_ARGUMENT);
    CHECK(actnn_encode_index(1, 8, 0, 1, indices, buffer) == ACTNN_BAD_WIDTH);
    CHECK(actnn_decode_index(1, 8, 25, 1, buffer, indices) == ACTNN_BAD_WIDTH);
}

TEST("instructions that this CPU lacks are unsupported, not ignored") {
    if (have_vectors()) return;
    const actnn_layout layout = layout_of(AFFINE, 1, 8, 2, ACTNN_NEAREST);
    float values[8] = {};
    uint8_t buffer[64] = {};
    CHECK(actnn_encode(&layout, ACTNN_AVX2, 1, KEY, values, 0, buffer) == ACTNN_UNSUPPORTED);
}
