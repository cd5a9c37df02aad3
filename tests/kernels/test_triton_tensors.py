"""Triton's kernels on torch tensors: bfloat16, extreme patterns of bits, one sample, whole groups and none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from code_cases import FEW_WIDTHS, KEY, REFERENCE, assorted_values, values_for

from actnn.format import FAMILIES, Layout, Part
from actnn.kernels.contract import BatchNorm, Channels, RowNorm, Rows
from actnn.torch.tensors import ARRAYS

SHAPES = [(1, 1), (1, 256), (3, 7), (5, 512), (7, 300), (1, 5000)]
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def same(found, expected) -> None:
    """Raise unless two tensors hold the same bits; every NaN counts as the same."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    kind = INTEGERS[found.element_size()]
    differ = found.contiguous().view(kind) != expected.contiguous().view(kind)
    if found.is_floating_point():
        differ &= ~(found.isnan() & expected.isnan())
    assert not differ.any(), f"{int(differ.sum())} differ, first at {differ.nonzero()[0].tolist()}"


@pytest.mark.parametrize(("family", "bits"), FEW_WIDTHS)
@pytest.mark.parametrize("shape", SHAPES)
def test_bfloat16_is_coded_and_decoded_as_by_the_reference(interpreted, family, bits, shape):
    values = torch.from_numpy(assorted_values(*shape)).to(torch.bfloat16)
    layout = Layout(*shape, FAMILIES[family], bits)
    expected = REFERENCE.encode(ARRAYS, values, layout, KEY)
    same(interpreted.encode(ARRAYS, values, layout, KEY), expected)
    decoded = REFERENCE.decode(ARRAYS, expected, layout, Part.WHOLE, "bfloat16")
    same(interpreted.decode(ARRAYS, expected, layout, Part.WHOLE, "bfloat16"), decoded)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(4))
def test_any_pattern_of_bits_is_coded_as_by_the_reference(interpreted, family, seed):
    generator = np.random.default_rng(seed)
    # most exponents alike, so that not every group is poisoned
    bits = generator.integers(0, 2**32, (6, 700), dtype=np.uint32)
    bits[1::2] = (bits[1::2] & 0x807FFFFF) | (generator.integers(0, 40, (3, 1), dtype=np.uint32) + 100 << 23)
    values = torch.from_numpy(values_for(family, bits.view(np.float32)))
    layout = Layout(6, 700, FAMILIES[family], 3)
    same(interpreted.encode(ARRAYS, values, layout, KEY), REFERENCE.encode(ARRAYS, values, layout, KEY))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", [(0, 300), (3, 0), (0, 0)])
def test_nothing_is_coded_as_by_the_reference(interpreted, family, shape):
    values, layout = torch.empty(shape), Layout(*shape, FAMILIES[family], 2)
    expected = REFERENCE.encode(ARRAYS, values, layout, KEY)
    same(interpreted.encode(ARRAYS, values, layout, KEY), expected)
    same(
        interpreted.decode(ARRAYS, expected, layout, Part.WHOLE, "float32"),
        REFERENCE.decode(ARRAYS, expected, layout, Part.WHOLE, "float32"),
    )


@pytest.mark.parametrize("channels", [Channels(8, 64), Channels(64, 1)], ids=str)
@pytest.mark.parametrize("family", ["affine", "two_sided"])
def test_batch_norm_of_bfloat16_makes_the_code_of_the_reference(interpreted, channels, family):
    generator = torch.Generator().manual_seed(5)
    values = torch.randn(3, 512, generator=generator).to(torch.bfloat16)
    layout = Layout(3, 512, FAMILIES[family], 3)
    statistics = torch.stack(REFERENCE.channel_statistics(ARRAYS, values, channels))
    found = []
    for backend in (interpreted, REFERENCE):
        saved, out = torch.empty(2, channels.count), torch.empty_like(values)
        buffer = torch.empty(layout.nbytes, dtype=torch.uint8)
        norm = BatchNorm(channels, 1e-5, 3 * 512 // channels.count, None, None, None, 0.1, statistics, saved)
        backend.batch_norm(ARRAYS, values, out, layout, norm, KEY, buffer)
        found.append((buffer, out, saved[0]))
    for ours, theirs in zip(*found, strict=True):
        same(ours, theirs)


@pytest.mark.parametrize(("family", "of_input"), [("two_sided", False), ("affine", True)])
def test_a_number_of_values_that_only_the_device_knows_weighs_as_one_of_the_host(interpreted, family, of_input):
    generator = torch.Generator().manual_seed(7)
    values, grad = torch.randn(2, 3, 512, generator=generator)
    channels, layout = Channels(8, 64), Layout(3, 512, FAMILIES[family], 3)
    code, saved = REFERENCE.encode(ARRAYS, values, layout, KEY), torch.rand(2, 8, generator=generator)
    sums, found = torch.randn(2, 8, generator=generator), []
    # 256 values are supposed, of which there are three quarters: no rounding in between
    for backend, count, share in ((interpreted, 256, 256 / 192), (REFERENCE, 256, 256 / 192), (REFERENCE, 192, None)):
        out = torch.empty_like(grad)
        there = None if share is None else torch.tensor(share)
        norm = BatchNorm(channels, 1e-5, count, None, None, None, 0.1, None, saved, share=there)
        backend.batch_norm_backward(ARRAYS, grad, code, layout, norm, False, of_input, torch.empty(2, 8), out, sums)
        found.append(out)
    same(found[0], found[1])
    torch.testing.assert_close(found[1], found[2])


@pytest.mark.parametrize("width", [64, 100, 300])
def test_row_norm_of_bfloat16_makes_the_code_of_the_reference(interpreted, width):
    values = torch.randn(2, 2 * width, generator=torch.Generator().manual_seed(6)).to(torch.bfloat16)
    layout = Layout(2, 2 * width, FAMILIES["normalized"], 3)
    found = []
    for backend in (interpreted, REFERENCE):
        saved, out = torch.empty(4), torch.empty_like(values)
        buffer = torch.empty(layout.nbytes, dtype=torch.uint8)
        norm = RowNorm(Rows(width, width, 1), 1e-5, True, None, None, saved)
        backend.row_norm(ARRAYS, values, out, layout, norm, KEY, buffer)
        found.append((buffer, out, saved))
    for ours, theirs in zip(*found, strict=True):
        same(ours, theirs)
