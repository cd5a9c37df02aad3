"""verify: the bias and the variance that codes give a model's gradient, before anybody trains with them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from actnn.core.verification import Comparison, Verification
from actnn.errors import ConfigError, ShapeError, UnsupportedError
from actnn.torch.convert import QModule

LossFunction = Callable[[Any, Any], Tensor]

# steps in which sites learn who reads them, and widths settle
WARM_UP = 3
MOST_PARTS = 8
LEAST_SAMPLES = 2
ROUNDINGS = 2


def verify(
    model: nn.Module,
    batch: tuple[Any, Any],
    loss_function: LossFunction,
    draws: int = 32,
    **conversion: Any,
) -> Verification:
    """Compare a model's gradient from codes with its exact one, in training mode on one batch; change neither.

    ``model`` is plain, and converted as ``QModule(model, **conversion)`` would (``level``, ``exact``, ``seed``...), or
    a QModule, whose own settings hold. ``batch`` is a pair of inputs and targets, each a tensor or a nest of them: a
    tuple or list of inputs is given to the model as arguments, a dict as named ones. ``loss_function(output, targets)``
    returns a mean over samples.

    ``measured`` is the variance over ``draws`` gradients with noise of their own; fewer than 10 cannot prove a bias.
    ``predicted`` is what theory expects of the code that a layer reads. Of the noise that the input gradient of a
    BatchNorm hands down it holds an estimate for the layer that the BatchNorm follows, and nothing for those further
    below, where ``measured`` may be larger.
    ``sampling``, for scale, is the variance that another batch of this size makes, estimated from up to 8 parts of
    this one. A BatchNorm normalises each part by itself: with parts of a few samples, take it as a rough guide.

    Raises ConfigError, UnsupportedError or ShapeError where an argument is not as described or a gradient not finite.
    """
    check_arguments(model, batch, draws, conversion)
    generators = Generators()
    try:
        with torch.enable_grad():
            names, comparison = exact_gradients(model, batch, loss_function, generators)
            copy = in_training(model)
            coded = copy if isinstance(copy, QModule) else QModule(copy, **conversion)
            step = Step(coded, batch, loss_function, generators)
            for _ in range(WARM_UP):
                step.run()
            session = coded._session
            session.predictions = {}
            for _ in range(draws):
                step.run()
                comparison.add_draw(gathered(coded, names))
            predicted = {layer: value / draws for layer, value in owned(coded, session.predictions).items()}
    finally:
        generators.rewind()
    return comparison.result(predicted, share=part_size(batch) / max(1, samples(batch)))


def check_arguments(model: Any, batch: Any, draws: Any, conversion: Mapping[str, Any]) -> None:
    """Raise a typed error unless there is something to verify."""
    if not isinstance(model, nn.Module):
        raise UnsupportedError(f"verify was given a {type(model).__name__}: expected a torch.nn.Module.")
    if isinstance(model, QModule):
        model._session.check_open()
        if conversion:
            raise ConfigError(
                f"{', '.join(conversion)} given with a model that was converted with settings of its own: expected a "
                "plain one. Call model.restore() first to verify other settings."
            )
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        shown = f"{len(batch)} things" if isinstance(batch, (tuple, list)) else f"a {type(batch).__name__}"
        raise UnsupportedError(f"verify was given a batch of {shown}: expected a pair, (inputs, targets).")
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 2:
        raise ConfigError(f"draws={draws!r}: expected a whole number of at least 2, which a variance takes.")


def exact_gradients(
    model: nn.Module, batch: Any, loss_function: LossFunction, generators: Generators
) -> tuple[dict[str, list[str]], Comparison]:
    """Return the parameters that get a gradient, by layer, and the comparison with exact gradients taken in."""
    copy = in_training(model)
    plain = copy.restore() if isinstance(copy, QModule) else copy
    # layers that users made compressed are exact at this level too
    plain = QModule(plain, level="L0")
    Step(plain, batch, loss_function, generators).run()
    names = layers_with_gradients(plain)
    if not names:
        raise UnsupportedError("no parameter of this model gets a gradient from this loss: there is nothing to verify.")
    comparison = Comparison(gathered(plain, names))
    generators.rewind()
    for part in parts(batch):
        # without rewinding: dropout adds to the variance between batches
        Step(plain, part, loss_function).run()
        comparison.add_part(gathered(plain, names))
    for _ in range(ROUNDINGS):
        round_differently(plain)
        Step(plain, batch, loss_function, generators).run()
        comparison.add_rounded(gathered(plain, names))
    return names, comparison


class Generators:
    """The random generators that a model may draw from, in the state that they had."""

    def __init__(self) -> None:
        self._python, self._numpy, self._torch = random.getstate(), np.random.get_state(), torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def rewind(self) -> None:
        """Give every generator its state back."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)


class Step:
    """One forward and backward, which leaves gradients in the model and the batch as it was.

    With ``generators``, every run draws the same dropout masks.
    """

    def __init__(
        self, model: nn.Module, batch: Any, loss_function: LossFunction, generators: Generators | None = None
    ) -> None:
        self._model, self._batch, self._loss_function, self._generators = model, batch, loss_function, generators

    def run(self) -> None:
        """Compute the gradients."""
        if self._generators is not None:
            self._generators.rewind()
        self._model.zero_grad(set_to_none=True)
        inputs, targets = mapped(fresh, self._batch)
        loss = self._loss_function(called(self._model, inputs), targets)
        check_loss(loss)
        loss.backward()


def check_loss(loss: Any) -> None:
    """Raise a typed error unless ``loss`` can begin a backward."""
    if not isinstance(loss, Tensor):
        raise UnsupportedError(f"the loss function returned a {type(loss).__name__}: expected a scalar tensor.")
    if loss.numel() != 1:
        raise ShapeError(
            f"the loss function returned a tensor of shape {tuple(loss.shape)}: expected a scalar, "
            "such as the mean over samples."
        )
    if not loss.requires_grad:
        raise UnsupportedError("the loss depends on no parameter that requires a gradient: there is nothing to verify.")


def in_training(model: nn.Module) -> nn.Module:
    """Return a copy in training mode; layers that the user switched off within a training model stay so."""
    copy = deepcopy(model)
    return copy if copy.training else copy.train()


def called(model: nn.Module, inputs: Any) -> Any:
    """Return the output for one input, a sequence of them or named ones."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def mapped(function: Callable[[Tensor], Tensor], nest: Any) -> Any:
    """Return a nest with every tensor replaced; what is neither a nest nor a tensor stays."""
    if isinstance(nest, Tensor):
        return function(nest)
    if isinstance(nest, Mapping):
        return {key: mapped(function, value) for key, value in nest.items()}
    if isinstance(nest, (tuple, list)):
        values = [mapped(function, value) for value in nest]
        return type(nest)(*values) if hasattr(nest, "_fields") else type(nest)(values)
    return nest


def fresh(x: Tensor) -> Tensor:
    """Return a tensor of the batch for one step, which may change it in place."""
    return x.detach().clone().requires_grad_(x.requires_grad)


def samples(batch: Any) -> int:
    """Return how many samples a batch holds: the length of its first tensor."""
    lengths: list[int] = []
    mapped(lambda x: lengths.append(len(x)) if x.dim() else None, batch)
    return lengths[0] if lengths else 0


def part_size(batch: Any) -> int:
    """Return how many samples each part of the batch has, 0 where it is too small for two parts."""
    count = samples(batch)
    number = min(MOST_PARTS, count // LEAST_SAMPLES)
    return count // number if number > 1 else 0


def parts(batch: Any) -> Iterator[Any]:
    """Yield equal parts of a batch; tensors of another length belong to every one."""
    count, size = samples(batch), part_size(batch)
    for part in range(min(MOST_PARTS, count // size) if size else 0):
        rows = slice(part * size, (part + 1) * size)
        yield mapped(lambda x, rows=rows: x[rows] if x.dim() and len(x) == count else x, batch)


def round_differently(model: nn.Module) -> None:
    """Change every parameter by one unit in the last place, up or down."""
    with torch.no_grad():
        for parameter in filter(torch.is_floating_point, model.parameters()):
            epsilon = torch.finfo(parameter.dtype).eps
            if torch.is_autocast_enabled(parameter.device.type):
                epsilon = max(epsilon, torch.finfo(torch.get_autocast_dtype(parameter.device.type)).eps)
            parameter.mul_(1 + epsilon * torch.randn_like(parameter).sign())


def layers_with_gradients(model: nn.Module) -> dict[str, list[str]]:
    """Return the names of the parameters that have a gradient, by layer."""
    names: dict[str, list[str]] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            names.setdefault(layer_of(name), []).append(name)
    return names


def layer_of(parameter: str) -> str:
    """Return the layer that a parameter's name begins with, as sites are named."""
    return parameter.rpartition(".")[0] or "model"


def gathered(model: nn.Module, names: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
    """Return the gradient of each layer as one vector; a parameter that got none this time has zeros."""
    parameters = dict(model.named_parameters())
    return {layer: np.concatenate([vector(parameters[name]) for name in own]) for layer, own in names.items()}


def vector(parameter: nn.Parameter) -> np.ndarray:
    """Return the gradient of a parameter."""
    if parameter.grad is None:
        return np.zeros(parameter.numel() * (2 if parameter.is_complex() else 1), np.float32)
    grad = parameter.grad.to_dense() if parameter.grad.layout is not torch.strided else parameter.grad
    if grad.is_complex():
        grad = torch.view_as_real(grad)
    # numpy has no bfloat16
    return grad.flatten().to("cpu", torch.promote_types(grad.dtype, torch.float32)).numpy()


def owned(model: nn.Module, predictions: Mapping[str, float]) -> dict[str, float]:
    """Return predictions under the layer that owns the weight: tied weights have the sum of all that share them."""
    owners = {id(parameter): layer_of(name) for name, parameter in model.named_parameters()}
    found: dict[str, float] = {}
    for path, layer in model.named_modules():
        weight = next(layer.parameters(recurse=False), None)
        if weight is not None:
            owner = owners[id(weight)]
            found[owner] = found.get(owner, 0.0) + predictions.get(path or "model", 0.0)
    return found
