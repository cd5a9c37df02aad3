"""The steps of a code's groups are those that its words were made with."""

from __future__ import annotations

import numpy as np
import pytest
from code_cases import KEY, NUMPY

from actnn.format import AFFINE, Layout, Part, Rounding
from actnn.kernels.reference.steps import group_steps, of_elements

ELEMENTS = 700


@pytest.mark.parametrize("widths", [(1, 1, 1, 1), (3, 3, 3, 3), (2, 5, 5, 8)])
def test_rounding_to_the_nearest_level_errs_by_half_a_step(backend, widths):
    # groups of very different ranges
    values = np.random.default_rng(0).standard_normal((4, ELEMENTS)).astype(np.float32)
    values[:, 256:512] *= 100
    layout = Layout(4, ELEMENTS, AFFINE, 0, Rounding.NEAREST, widths)
    buffer = backend.encode(NUMPY, values, layout, KEY)
    decoded = backend.decode(NUMPY, buffer, layout, Part.WHOLE, "float32")
    steps = group_steps(NUMPY, buffer, layout)
    assert steps.shape == (4, 3)
    error = np.abs(decoded - values) / of_elements(NUMPY, steps, ELEMENTS)
    largest = [error[:, start : start + 256].max(1) for start in range(0, ELEMENTS, 256)]
    assert np.all((np.array(largest) > 0.4) & (np.array(largest) < 0.501))


@pytest.mark.parametrize("shape", [(0, ELEMENTS), (3, 0)])
def test_an_empty_code_has_no_steps(backend, shape):
    layout = Layout(*shape, AFFINE, 2)
    buffer = backend.encode(NUMPY, np.zeros(shape, np.float32), layout, KEY)
    steps = group_steps(NUMPY, buffer, layout)
    assert of_elements(NUMPY, steps, shape[1]).shape == shape


def test_a_poisoned_group_has_no_number_for_a_step(backend):
    values = np.ones((1, ELEMENTS), np.float32)
    values[0, 300] = np.inf
    layout = Layout(1, ELEMENTS, AFFINE, 2)
    steps = group_steps(NUMPY, backend.encode(NUMPY, values, layout, KEY), layout)
    assert np.isnan(steps).tolist() == [[False, True, False]]
