"""What backward needs may not be changed in place between: the step fails, as plain training does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from frameworks import Framework, Model, Tensor, numbers
from steps import check_close_gradients

import actnn

# what a framework makes of an error in its backward
PROBLEMS = (RuntimeError, OSError, actnn.SessionError)
LAYERS = {
    "an input that is smaller than its code": ("Conv2d", (2, 4, 1), (2, 2, 1, 1), True),
    "the same of a linear layer": ("Linear", (2, 4), (2, 2), True),
    "a convolution in evaluation": ("Conv2d", (3, 4, 3), (2, 3, 16, 16), False),
    "a BatchNorm in evaluation": ("BatchNorm2d", (3,), (2, 3, 16, 16), False),
}


@pytest.fixture(autouse=True)
def gradients_on_again(framework: Framework):
    """Make up for Paddle, which records nothing more once a backward has failed."""
    yield
    framework.enable_gradients()


def output(framework: Framework, model: Model, shape: tuple[int, ...], change: Callable[[Tensor], object]) -> Tensor:
    """Return a model's output, of an input that is changed afterwards."""
    h = framework.tensor(numbers(shape), gradient=True) * 1.0
    y = model(h)
    with framework.no_grad():
        change(h)
    return y.sum()


@pytest.mark.parametrize("name", LAYERS)
def test_an_input_that_is_kept_as_it_is_may_not_change(framework: Framework, name: str):
    kind, arguments, shape, training = LAYERS[name]
    for convert in (lambda model: model, framework.compressed):
        model = framework.training(convert(framework.layer(kind, *arguments)), training)
        with pytest.raises(PROBLEMS, match=r"inplace|in place"):
            output(framework, model, shape, lambda h: h.add_(h)).backward()
        framework.enable_gradients()


@pytest.mark.parametrize("name", LAYERS)
def test_an_input_that_does_not_change_has_the_plain_gradient(framework: Framework, name: str):
    kind, arguments, shape, training = LAYERS[name]
    plain = framework.training(framework.layer(kind, *arguments), training)
    ours = framework.compressed(plain)
    for model in (ours, plain):
        output(framework, model, shape, lambda h: h).backward()
    check_close_gradients(framework.gradients(ours), framework.gradients(plain), framework.rounding)


def test_a_forward_that_is_measured_is_checked_too(framework: Framework):
    def forward(model: Model, x: Tensor) -> Tensor:
        h = model.conv(x).tanh()
        y = h * h
        with framework.no_grad():
            h.add_(h)
        return y

    model = framework.wired(forward, conv=framework.layer("Conv2d", 3, 4, 3))
    ours = framework.actnn.QModule(model, level="L3", memory="400MB")
    with pytest.raises(PROBLEMS, match=r"inplace|in place"):
        ours(framework.tensor(numbers((2, 3, 16, 16)))).sum().backward()
