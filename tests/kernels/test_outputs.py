"""Where results are written: arrays that the caller gives, of any shape where a backend allows it."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from code_cases import KEY, NUMPY, REFERENCE, PoisonedArrays, assorted_values, layout_of, same_bits, span_of

from actnn.format import AFFINE, Layout, Part
from actnn.kernels.contract import Channels, OutputAffine, Pool

SAMPLES, CHANNELS, INNER = 4, 5, 77
VALUES = assorted_values(SAMPLES, CHANNELS * INNER)
GRAD = assorted_values(SAMPLES, CHANNELS * INNER, seed=1)
ROWS = VALUES.shape
SHAPE = (SAMPLES, CHANNELS, 7, 11)
POOL = Pool(SAMPLES, CHANNELS, (7, 11), (3, 5), (2, 2), (2, 2), (0, 0), (1, 1), False)


def shaped(backend, values):
    """Return values in the shape that a backend is to be given."""
    return values.reshape(SHAPE) if backend.any_shape else values


def room(backend, dtype: str = "float32"):
    return shaped(backend, PoisonedArrays().empty(ROWS, dtype, VALUES))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_decoding_writes_to_the_array_that_is_given(backend, dtype):
    layout, out = layout_of(VALUES, "two_sided", 3), room(backend, dtype)
    code = backend.encode(NUMPY, shaped(backend, VALUES), layout, KEY)
    assert backend.decode(NUMPY, code, layout, Part.WHOLE, dtype, out=out) is out
    same_bits(out.reshape(ROWS), backend.decode(NUMPY, code, layout, Part.WHOLE, dtype))


def test_masks_are_made_and_applied_where_they_are_wanted(backend):
    mask = backend.encode_mask(NUMPY, shaped(backend, VALUES), rows=ROWS)
    assert np.array_equal(mask, REFERENCE.encode_mask(NUMPY, VALUES))
    out = room(backend)
    assert backend.apply_mask(NUMPY, mask, None, shaped(backend, GRAD), 1.0, 0.5, ROWS, out) is out
    same_bits(out.reshape(ROWS), REFERENCE.apply_mask(NUMPY, mask, None, GRAD, 1.0, 0.5))


def test_the_energy_is_written_to_a_span(backend):
    span = span_of(SAMPLES)
    assert backend.energy(NUMPY, shaped(backend, VALUES), 2, span, ROWS) is None
    np.testing.assert_array_equal(span.values, backend.energy(NUMPY, VALUES, 2))
    assert np.isnan(span.stretch.memory.view(np.float32)[[0, -1]]).all()


def test_a_pooling_writes_its_gradient_to_the_array_that_is_given(backend):
    planes = backend.max_pool(NUMPY, VALUES, np.empty((SAMPLES, 75), np.float32), POOL)
    grad = np.random.default_rng(0).standard_normal((SAMPLES, 75)).astype(np.float32)
    out = room(backend)
    assert backend.max_pool_backward(NUMPY, planes, grad, POOL, out) is out
    same_bits(out.reshape(ROWS), REFERENCE.max_pool_backward(NUMPY, planes, grad, POOL))


@pytest.mark.parametrize("part", Part)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("given", ["all", "no threshold", "gamma", "beta", "nothing"])
def test_the_output_of_a_batch_norm_decodes_as_by_the_reference(native, part, dtype, given):
    generator = np.random.default_rng(2)
    gamma, beta = generator.normal(size=(2, CHANNELS)).astype(dtype)
    threshold = generator.normal(size=CHANNELS).astype(np.float32)
    affine = OutputAffine(
        Channels(CHANNELS, INNER),
        gamma if given in ("all", "no threshold", "gamma") else None,
        beta if given in ("all", "no threshold", "beta") else None,
        threshold if given in ("all", "gamma", "beta") else None,
    )
    layout, lender = layout_of(VALUES, "two_sided", 3), PoisonedArrays(3)
    code = REFERENCE.encode(NUMPY, VALUES, layout, KEY)
    for samples in (None, range(1, 3)):
        found = native.decode(lender, code, layout, part, "float32", affine, samples)
        same_bits(found, REFERENCE.decode(NUMPY, code, layout, part, "float32", affine, samples))
    lender.check_guards()


@pytest.mark.parametrize("part", Part)
def test_the_output_is_gamma_times_the_normalised_value_plus_beta(backend, part):
    values = np.random.default_rng(0).standard_normal(ROWS).astype(np.float32)
    gamma, beta, threshold = np.float32([[2, -3, 0.5, 1, -1], [1, 2, 3, -4, 0.5], [0.5, -1, 2, 0.25, 1]])
    layout = layout_of(values, "two_sided", 8)
    code = backend.encode(NUMPY, values, layout, KEY)
    decoded = backend.decode(NUMPY, code, layout, part, "float32").reshape(SAMPLES, CHANNELS, INNER)
    shift = (beta + np.abs(gamma) * threshold)[:, None]
    shift = shift if part is Part.WHOLE else np.maximum(shift, 0)
    affine = OutputAffine(Channels(CHANNELS, INNER), gamma, beta, threshold)
    found = backend.decode(NUMPY, code, layout, part, "float32", affine)
    np.testing.assert_allclose(found, (decoded * np.abs(gamma)[:, None] + shift).reshape(ROWS), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("part", Part)
def test_the_threshold_may_be_a_row_of_a_matrix(backend, part):
    saved = np.random.default_rng(5).normal(size=(2, CHANNELS)).astype(np.float32)
    layout, channels = layout_of(VALUES, "two_sided", 3), Channels(CHANNELS, INNER)
    code = backend.encode(NUMPY, VALUES, layout, KEY)
    own = backend.decode(NUMPY, code, layout, part, "float32", OutputAffine(channels, threshold=saved[1].copy()))
    found = backend.decode(NUMPY, code, layout, part, "float32", OutputAffine(channels, None, None, saved, 1))
    same_bits(found, own)


def test_copies_of_a_layout_that_kernels_know_are_equal_and_of_use(native):
    layout = layout_of(VALUES, "affine", sample_bits=(1, 8, 3, 3))
    code = native.encode(NUMPY, VALUES, layout, KEY)
    for same in (copy.deepcopy(layout), pickle.loads(pickle.dumps(layout))):
        assert same == layout
        assert np.array_equal(native.encode(NUMPY, VALUES, same, KEY), code)
    pool = copy.deepcopy(POOL)
    assert pool == POOL


def test_a_runtime_is_chosen_only_after_one_was_lent(native, monkeypatch):
    class Lender(PoisonedArrays):
        def __init__(self, lent):
            super().__init__(1)
            self.lent, self.lends_threads = lent, lent is not None

        def runtime(self):
            return self.lent

    fresh = type(native)(native.path, native.simd)
    used = []
    monkeypatch.setattr(fresh._library, "actnn_use_runtime", used.append)
    layout = Layout(1, 8, AFFINE, 2)
    for lent in (None, None, "/nowhere/libomp.so", None):
        fresh.encode(Lender(lent), np.ones((1, 8), np.float32), layout, KEY)
    assert used == [None, None]
