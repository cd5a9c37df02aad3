"""Sizes of codes, counted by hand."""

from __future__ import annotations

import pytest

from actnn.format import AFFINE, FAMILIES, Layout, index_bytes, plane_bytes

KEY = 16


@pytest.mark.parametrize(
    ("elements", "expected"), [(0, 0), (1, 1), (8, 1), (9, 2), (255, 32), (256, 32), (257, 33), (512, 64), (700, 88)]
)
def test_a_plane_takes_a_bit_an_element_rounded_up_in_the_last_group(elements, expected):
    assert plane_bytes(elements) == expected


@pytest.mark.parametrize(
    ("family", "scales"),
    [(name, 2) for name in ("affine", "two_sided", "normalized", "two_sided_normalized", "root")]
    + [("zero_exact", 1), ("companded", 3), ("zero_exact_companded", 2)],
)
def test_a_code_is_its_key_its_scales_and_its_planes(family, scales):
    assert Layout(3, 700, FAMILIES[family], 2).nbytes == KEY + 3 * 3 * scales * 2 + 3 * 2 * 88


def test_widths_for_each_sample_add_up():
    assert Layout(3, 256, AFFINE, 8, sample_bits=(1, 2, 8)).nbytes == KEY + 3 * 4 + 32 * (1 + 2 + 8)


def test_samples_begin_where_the_ones_before_end():
    layout = Layout(3, 256, AFFINE, 8, sample_bits=(1, 2, 8))
    assert layout.sample_offsets == (28, 60, 124, 380)


def test_two_bits_cost_a_fourteenth_of_float32_in_full_groups():
    elements = 64 * 256
    assert 4 * elements / (Layout(1, elements, AFFINE, 2).nbytes - KEY) == pytest.approx(32 / 2.125)


def test_an_index_takes_its_width_in_planes():
    assert index_bytes(3, 700, 5) == 3 * 5 * 88
