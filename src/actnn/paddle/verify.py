"""verify: the bias and the variance that codes give a model's gradient, before anybody trains with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn

from actnn.model.verify import Verifier
from actnn.paddle.convert import QModule


class PaddleVerifier(Verifier):
    """What verify asks of Paddle."""

    tensor_type, layer_type, layer_name, wrapper = Tensor, nn.Layer, "paddle.nn.Layer", QModule

    def recording(self) -> AbstractContextManager[Any]:
        """Return a context in which autograd records."""
        return paddle.enable_grad()

    def generator_states(self) -> Callable[[], None]:
        """Return a function that gives Paddle's random generators the state that they have now."""
        states = paddle.get_rng_state()
        return lambda: paddle.set_rng_state(states)

    def in_training(self, model: nn.Layer) -> nn.Layer:
        """Return a copy in training mode; layers that the user switched off within a training model stay so."""
        copy = deepcopy(model)
        if not copy.training:
            copy.train()
        return copy

    def parameters(self, model: nn.Layer) -> Iterable[tuple[str, Tensor]]:
        """Return the parameters of a model with their names, each once."""
        return model.named_parameters()

    def layers(self, model: nn.Layer) -> Iterable[tuple[str, Tensor | None]]:
        """Return the paths of all layers with the first parameter of each."""
        for path, layer in model.named_sublayers(include_self=True):
            yield path, next(iter(layer.parameters(include_sublayers=False)), None)

    def clear(self, model: nn.Layer) -> None:
        """Forget all gradients."""
        model.clear_gradients(set_to_zero=False)

    def gradient(self, parameter: Tensor) -> np.ndarray | None:
        """Return the gradient of a parameter as a vector; None where it has none."""
        grad = parameter.grad
        # a copy: clearing gradients may use their memory anew
        return None if grad is None else grad.detach().astype(paddle.float32).flatten().numpy().copy()

    def fresh(self, x: Tensor) -> Tensor:
        """Return a tensor of the batch for one step, which may change it in place."""
        copy = x.detach().clone()
        copy.stop_gradient = x.stop_gradient
        return copy

    def wants_gradient(self, x: Tensor) -> bool:
        """Tell whether a tensor depends on what learns."""
        return not x.stop_gradient

    def round_differently(self, model: nn.Layer) -> None:
        """Change every parameter by one unit in the last place, up or down."""
        with paddle.no_grad():
            for parameter in model.parameters():
                if parameter.is_floating_point():
                    epsilon = paddle.finfo(parameter.dtype).eps
                    parameter.multiply_(1 + epsilon * paddle.randn(parameter.shape, parameter.dtype).sign())


verify = PaddleVerifier().verify
