"""verify: the bias and the variance that codes give a model's gradient, before anybody trains with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from actnn.model.verify import Verifier
from actnn.torch.convert import QModule


class TorchVerifier(Verifier):
    """What verify asks of torch."""

    tensor_type, layer_type, layer_name, wrapper = Tensor, nn.Module, "torch.nn.Module", QModule

    def recording(self) -> AbstractContextManager[Any]:
        """Return a context in which autograd records."""
        return torch.enable_grad()

    def generator_states(self) -> Callable[[], None]:
        """Return a function that gives torch's random generators the state that they have now."""
        host = torch.get_rng_state()
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

        def rewind() -> None:
            torch.set_rng_state(host)
            if cuda:
                torch.cuda.set_rng_state_all(cuda)

        return rewind

    def in_training(self, model: nn.Module) -> nn.Module:
        """Return a copy in training mode; layers that the user switched off within a training model stay so."""
        copy = deepcopy(model)
        return copy if copy.training else copy.train()

    def parameters(self, model: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
        """Return the parameters of a model with their names, each once."""
        return model.named_parameters()

    def layers(self, model: nn.Module) -> Iterable[tuple[str, nn.Parameter | None]]:
        """Return the paths of all layers with the first parameter of each."""
        return ((path, next(layer.parameters(recurse=False), None)) for path, layer in model.named_modules())

    def clear(self, model: nn.Module) -> None:
        """Forget all gradients."""
        model.zero_grad(set_to_none=True)

    def gradient(self, parameter: nn.Parameter) -> np.ndarray | None:
        """Return the gradient of a parameter as a vector; None where it has none."""
        if parameter.grad is None:
            return None
        grad = parameter.grad.to_dense() if parameter.grad.layout is not torch.strided else parameter.grad
        if grad.is_complex():
            grad = torch.view_as_real(grad)
        # numpy has no bfloat16
        return grad.flatten().to("cpu", torch.promote_types(grad.dtype, torch.float32)).numpy()

    def nothing(self, parameter: nn.Parameter) -> np.ndarray:
        """Return a gradient of zeros, as a vector."""
        return np.zeros(parameter.numel() * (2 if parameter.is_complex() else 1), np.float32)

    def fresh(self, x: Tensor) -> Tensor:
        """Return a tensor of the batch for one step, which may change it in place."""
        return x.detach().clone().requires_grad_(x.requires_grad)

    def wants_gradient(self, x: Tensor) -> bool:
        """Tell whether a tensor depends on what learns."""
        return x.requires_grad

    def round_differently(self, model: nn.Module) -> None:
        """Change every parameter by one unit in the last place, up or down."""
        with torch.no_grad():
            for parameter in filter(torch.is_floating_point, model.parameters()):
                epsilon = torch.finfo(parameter.dtype).eps
                if torch.is_autocast_enabled(parameter.device.type):
                    epsilon = max(epsilon, torch.finfo(torch.get_autocast_dtype(parameter.device.type)).eps)
                parameter.mul_(1 + epsilon * torch.randn_like(parameter).sign())


verify = TorchVerifier().verify
