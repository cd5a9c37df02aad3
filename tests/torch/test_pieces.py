"""Large convolutions work on parts of the batch: same forward, same gradients, and a bounded workspace."""

from __future__ import annotations

import pytest
import torch
from frameworks import input_of
from layer_cases import CONVOLUTION_GEOMETRY, MAPS, Case
from steps import check_close_gradients, close
from torch import nn
from torch_framework import FRAMEWORK, close_tensors, same_tensors

from actnn.kernels.contract import Smooth
from actnn.kernels.native.codes import CodeRows
from actnn.session import session
from actnn.session.session import Session
from actnn.settings import Config

CONVOLUTIONS = [case for case in (*MAPS, *CONVOLUTION_GEOMETRY) if case.kind.startswith("Conv")]


@pytest.fixture
def small_pieces(monkeypatch):
    """Let hardly more than a sample be worked on at once, whatever the weight."""
    monkeypatch.setattr(session, "WORKING_BYTES", 4096)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_a_convolution_in_pieces_is_the_one_in_one_piece(case: Case, monkeypatch):
    layer, x = FRAMEWORK.plain_layer(case), FRAMEWORK.tensor(input_of(case))
    found = FRAMEWORK.step(FRAMEWORK.compressed(layer, 2), x)
    monkeypatch.undo()
    expected = FRAMEWORK.step(FRAMEWORK.compressed(layer, 2), x)
    close(found.output, expected.output, 1e-6, "output")
    check_close_gradients(found.gradients, expected.gradients, 1e-5)


@pytest.mark.usefixtures("small_pieces")
def test_a_batch_in_channels_last_stays_so_in_pieces():
    layer = nn.Conv2d(6, 8, 3, padding=1)
    x = torch.randn(5, 6, 20, 20).contiguous(memory_format=torch.channels_last).requires_grad_()
    y = FRAMEWORK.compressed(layer, 2)(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    close_tensors(y, layer(x), 1e-6)
    y.square().sum().backward()
    assert x.grad.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.usefixtures("small_pieces")
def test_pieces_are_computed_in_the_dtype_of_autocast():
    layer, x = nn.Conv2d(6, 8, 3, padding=1), torch.randn(5, 6, 20, 20)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = FRAMEWORK.compressed(layer, 8)(x), layer(x)
    same_tensors(found, expected)


def test_a_large_convolution_is_cut_and_a_small_one_is_not():
    pieces = Session(Config().policy("L2")).pieces
    bound = session.WORKING_BYTES
    assert pieces(8, 0, bound) == [range(8)]
    assert pieces(8, 0, bound + 1) == [range(2), range(2, 4), range(4, 6), range(6, 8)]
    assert pieces(35, 0, 3 * bound) == [*(range(start, start + 3) for start in range(0, 33, 3)), range(33, 35)]
    assert pieces(2, 0, 100 * bound) == [range(1), range(1, 2)]
    assert pieces(0, 0, 0) == [range(0)]


def test_a_large_weight_keeps_pieces_large():
    pieces = Session(Config().policy("L2")).pieces
    bound = session.WORKING_BYTES
    assert pieces(8, 0, 4 * bound, weight_bytes=2 * bound) == [range(8)]
    assert len(pieces(8, 0, 8 * bound, weight_bytes=2 * bound)) == 2


SHAPES = {
    "no sample": (nn.Conv2d(4, 6, 3), (0, 4, 20, 20)),
    "one sample": (nn.Conv2d(4, 6, 3), (1, 4, 20, 20)),
    "no batch": (nn.Conv2d(4, 6, 3), (4, 20, 20)),
    "no batch, transposed": (nn.ConvTranspose2d(4, 6, 3, 2, output_padding=1), (4, 20, 20)),
    "output padding": (nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1), (5, 4, 12, 12)),
    "output padding of a whole stride": (nn.ConvTranspose2d(4, 6, 3, 1, 1, 1, dilation=2), (5, 4, 12, 12)),
    "groups": (nn.Conv2d(4, 8, 3, groups=2), (5, 4, 20, 20)),
    "depthwise": (nn.Conv2d(4, 8, 3, groups=4), (5, 4, 20, 20)),
    "groups, transposed": (nn.ConvTranspose2d(4, 8, 3, 2, groups=2, output_padding=1), (5, 4, 12, 12)),
    "a stride that leaves a rest": (nn.Conv2d(4, 6, 3, 3), (5, 4, 21, 22)),
    "one output channel": (nn.Conv2d(4, 1, 3), (5, 4, 20, 20)),
    "one position": (nn.Conv2d(4, 6, 20), (5, 4, 20, 20)),
    "one dimension": (nn.Conv1d(4, 6, 5, padding="same"), (5, 4, 400)),
    "three dimensions": (nn.Conv3d(2, 4, 3, padding_mode="circular", padding=1), (5, 2, 8, 8, 8)),
}
GRADIENTS = {"all": (True, True, True), "bias": (False, False, True), "weight": (False, True, False)}
GRADIENTS |= {"input": (True, False, False), "input and bias": (True, False, True)}


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("wanted", GRADIENTS)
@pytest.mark.parametrize("name", SHAPES)
def test_whatever_gradient_is_wanted_pieces_give_that_of_the_whole(name, wanted, monkeypatch):
    (layer, shape), (of_x, of_weight, of_bias) = SHAPES[name], GRADIENTS[wanted]
    layer.weight.requires_grad_(of_weight)
    layer.bias.requires_grad_(of_bias)
    found = []
    for undo in (False, True):
        if undo:
            monkeypatch.undo()
        model = FRAMEWORK.compressed(layer, 2)
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_(of_x)
        y = model(x)
        close_tensors(y, layer(x), 1e-6, "output")
        y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(2)))
        found.append((x.grad, model.weight.grad, model.bias.grad))
    for ours, theirs, needed in zip(*found, GRADIENTS[wanted], strict=True):
        assert (ours is not None) == (theirs is not None) == needed
        if needed:
            close_tensors(ours, theirs, 1e-5)


@pytest.mark.usefixtures("small_pieces")
def test_an_expanded_gradient_is_cut_like_any_other():
    layer, x = nn.Conv2d(4, 6, 3), torch.randn(5, 4, 20, 20, requires_grad=True)
    FRAMEWORK.compressed(layer, 2)(x).sum().backward()
    found, x.grad = x.grad, None
    layer(x).sum().backward()
    close_tensors(found, x.grad, 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["convolution", "linear"])
def test_a_sum_over_many_pieces_loses_nothing_in_half_precision(kind, dtype, monkeypatch):
    monkeypatch.setattr(session, "WORKING_BYTES", 1)
    samples = 300
    # all parts are alike: a sum in half precision stops growing long before the last of them
    layer = nn.Conv2d(4, 4, 1, bias=True) if kind == "convolution" else nn.Linear(256, 4)
    x = torch.ones((samples, 4, 8, 8) if kind == "convolution" else (samples, 256), dtype=dtype)
    model = FRAMEWORK.compressed(layer.to(dtype), 8, pipeline_threshold=512)
    model(x).sum().backward()
    expected = samples * (64 if kind == "convolution" else 1)
    assert abs(float(model.weight.grad.float().mean()) / expected - 1) < 0.01
    assert model.weight.grad.dtype == dtype


class Gate(nn.Module):
    """A convolution of a product of codes, one factor of which may be smaller than the other."""

    def __init__(self, gate: str) -> None:
        super().__init__()
        self.gate = gate
        self.first, self.norm, self.other = nn.Conv2d(3, 8, 1, bias=False), nn.BatchNorm2d(8), nn.Conv2d(3, 8, 1)
        self.last = nn.Conv2d(8, 4, 3)

    def forward(self, x):
        h, g = nn.functional.silu(self.norm(self.first(x))), torch.sigmoid(self.other(x))
        if self.gate == "squeezed":
            g = g.mean((2, 3), keepdim=True)
        elif self.gate == "without samples":
            g = g.mean((0, 2, 3), keepdim=True)
        elif self.gate == "fewer axes":
            g = g.mean(0)
        product = h * g
        return self.last(product.transpose(0, 1).contiguous().transpose(0, 1) if self.gate == "copied" else product)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("gate", ["full", "squeezed", "without samples", "fewer axes", "copied"])
def test_a_product_is_read_part_by_part_and_no_sample_twice(gate, monkeypatch):
    # as many samples as channels: which axis counts samples is not to be told by its size
    torch.manual_seed(4)
    layer, x = Gate(gate), torch.randn(8, 3, 16, 16)
    read = []
    decode = CodeRows.decode_function

    def counted(self, arrays, buffer, layout, function, derivative, dtype, affine=None, samples=None, *rest):
        if function is Smooth.SILU and derivative == 0:
            read.append(range(layout.samples) if samples is None else samples)
        return decode(self, arrays, buffer, layout, function, derivative, dtype, affine, samples, *rest)

    monkeypatch.setattr(CodeRows, "decode_function", counted)
    found = FRAMEWORK.step(FRAMEWORK.compressed(layer, 2), x)
    # the gate's gradient reads all samples at once, the convolution in parts
    assert sorted(n for part in read if len(part) < 8 for n in part) == list(range(8)) or gate == "copied"
    assert sum(map(len, read)) == 16
    monkeypatch.undo()
    expected = FRAMEWORK.step(FRAMEWORK.compressed(layer, 2), x)
    check_close_gradients(found.gradients, expected.gradients, 1e-5)
