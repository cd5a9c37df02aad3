"""What an operation costs that the library does not have: a rule, a function of autograd, a layer and a row of a table.

The square y = x². Keeps: a code of x, whoever made it. Shares: its code with everybody who reads the same tensor. Reads
in backward: the decoded x. Noise: 2 g times the noise of x, an element of the code's error to an element of the
gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from frameworks import Framework, Model, numbers
from steps import close, same
from torch import Tensor, nn
from torch.autograd import Function
from torch_framework import FRAMEWORK
from z_tests import check_unbiased

from actnn.kernels.contract import Array
from actnn.operations.kept import Kept, Reading, keep
from actnn.session.site import Site
from actnn.torch.functions.kept import first_order
from actnn.torch.layers import COMPRESSED, Compressed
from actnn.torch.tensors import ARRAYS

REPEATS = 300
SHAPE = (8, 6, 13, 11)


def square_gradient(reading: Reading, site: Site, saved: Sequence[Array], grad: Array) -> Array:
    """Return 2 x g, x as its code tells it."""
    samples, elements = reading.order.rows
    ((_, x),) = reading.parts(site, saved, grad, [range(samples)])
    # mean field: of a sample's noise, each element meets its own gradient alone
    reading.observe(site, grad, 4 / elements)
    return 2 * x * grad


class SquareFunction(Function):
    """x² that keeps a code of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Kept, site: Site) -> Tensor:
        ctx.site, ctx.reading = site, kept.reading
        ctx.save_for_backward(*kept.tensors)
        return x * x

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return square_gradient(ctx.reading, ctx.site, ctx.saved_tensors, grad), None, None


class Square(nn.Module):
    """The plain layer, which keeps x."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x


class QSquare(Compressed, Square):
    """The same layer, which keeps a code of x."""

    plain = Square

    def forward(self, x: Tensor) -> Tensor:
        if not self.records(x):
            return self.plainly(x)
        return SquareFunction.apply(x, keep(ARRAYS, x, self.site, self.training), self.site)


@pytest.fixture
def framework(monkeypatch) -> Framework:
    """torch, whose table of conversion has one more row."""
    monkeypatch.setitem(COMPRESSED, Square, QSquare)
    FRAMEWORK.use_one_thread()
    FRAMEWORK.seed(0)
    return FRAMEWORK


def square_and_map(model: Model, x: Tensor) -> Tensor:
    """Return what two layers make of one activation."""
    activation = model.first(x)
    return model.square(activation) + model.second(activation)


def test_conversion_replaces_the_layer_and_restores_it(framework: Framework):
    model = framework.compressed(framework.sequential(Square()))
    assert framework.kind_at(model, "0") == "QSquare"
    assert type(model.restore()[0]) is Square


def test_the_forward_is_exact(framework: Framework):
    x = numbers(SHAPE)
    found, expected = framework.step(framework.compressed(Square(), 1), x), framework.step(Square(), x)
    same(found.output, expected.output)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_the_mean_gradient_is_exact(framework: Framework, bits: int):
    # with a false alarm below one in a million over all elements; see z_tests.check_unbiased
    x = numbers(SHAPE)
    exact = framework.step(Square(), x).gradients["input"]
    found = framework.many_gradients(framework.compressed(Square(), bits), x, REPEATS)["input"]
    assert found.std(0).min() > 0
    check_unbiased(found, exact)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_the_report_counts_the_bytes_that_autograd_keeps(framework: Framework, bits: int):
    x, model = numbers(SHAPE), framework.compressed(framework.sequential(Square()), bits)
    kept = framework.saved_bytes(model, lambda: model(framework.tensor(x, gradient=True)))
    (row,) = model.report().rows
    assert (row.layer, row.kind, row.exact_bytes, row.kept_bytes) == ("0", "QSquare", x.nbytes, kept)
    assert x.size * bits / 8 < kept < x.size * (bits / 8 + 0.1)


def test_a_code_of_the_same_tensor_serves_a_map_too(framework: Framework):
    parts = {name: framework.layer("Linear", 32, 32) for name in ("first", "second")}
    model = framework.compressed(framework.wired(square_and_map, square=Square(), **parts))
    framework.step(model, numbers((64, 32)))
    readers = {row.layer: row.readers for row in model.report().rows}
    assert readers == {"first": (), "square": ("second",)}


@pytest.mark.parametrize("level", ["L0", "L1", "L2", "L2.5", "L3", "L3.1", "L4", "L5", "swap"])
def test_every_level_has_the_gradient_to_the_width_of_its_codes(framework: Framework, level: str):
    x = numbers(SHAPE)
    expected = framework.step(Square(), x).gradients["input"]
    model = framework.compressed(framework.sequential(Square()), 6, level=level)
    found = [framework.step(model, x).gradients["input"] for _ in range(4)]
    for gradient in found:
        close(gradient, expected, 0.03)
    assert np.array_equal(found[0], found[1]) == (level in ("L0", "swap"))
