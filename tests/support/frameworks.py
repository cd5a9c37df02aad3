"""One face for all frameworks: what the tests of the front ends need, in torch's spelling, with numpy at the edges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from importlib import import_module
from importlib.util import find_spec
from math import prod, sqrt
from types import ModuleType
from typing import Any

import numpy as np
import paddle_spelling
import pytest
from layer_cases import Case
from steps import Step

Array = np.ndarray
Model = Any
Tensor = Any

NAMES = ("torch", "paddle")


def load(name: str) -> Framework:
    """Return a framework's face, or skip the test where it is not installed."""
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    return import_module(f"{name}_framework").FRAMEWORK


def cases(*tables: Iterable[Case], equal: Sequence[Case] = ()) -> pytest.MarkDecorator:
    """Run a test for every case of the tables and every framework that has such a layer.

    Of ``equal`` cases all frameworks compute the same (test_parity), so that one of them tells what many draws come to.
    """
    pairs = [(name, case) for name in NAMES for table in tables for case in table if offers(name, case)]
    pairs = [(name, case) for name, case in pairs if name == NAMES[0] or case not in equal]
    return pytest.mark.parametrize(
        ("framework", "case"), pairs, indirect=["framework"], ids=[f"{name} {case}" for name, case in pairs]
    )


def offers(name: str, case: Case) -> bool:
    """Tell whether a framework has a layer that does what a case asks for."""
    return name == "torch" or not paddle_spelling.missing(case)


def numbers(shape: Iterable[int], seed: int = 5) -> Array:
    """Return normal random numbers, the same in every framework."""
    # shape (): a scalar, which default_rng would give as a Python float
    return np.asarray(np.random.default_rng(seed).standard_normal(tuple(shape)), np.float32)


def input_of(case: Case) -> Array:
    """Return an input for a case."""
    return numbers(case.shape)


def vector(gradients: dict[str, Array]) -> Array:
    """Return all gradients as one vector."""
    return np.concatenate([gradient.reshape(-1) for gradient in gradients.values()])


class Framework(ABC):
    """What tests ask of a framework. Names of layers, options and parameters are torch's."""

    name: str
    tensor_type: type
    module_type: type
    # what its layers of half precision can be made of on the host
    halves: tuple[str, ...]
    # what two orders of one sum may differ by, as a part of its norm
    rounding = 1e-6

    @property
    @abstractmethod
    def actnn(self) -> ModuleType:
        """The public names of actnn for this framework."""

    # layers and models

    @abstractmethod
    def layer(self, kind: str, *arguments: Any, **options: Any) -> Model:
        """Return a plain layer."""

    @abstractmethod
    def made_by_hand(self, kind: str, *arguments: Any, **options: Any) -> Model:
        """Return a compressed layer that no conversion made."""

    @abstractmethod
    def wired(self, forward: Callable[..., Tensor], **parts: Any) -> Model:
        """Return a model of some parts; ``forward(model, x)``, a function of a module, says how they are joined."""

    @abstractmethod
    def type_name(self, kind: str) -> str:
        """Return the name of a layer's type."""

    @abstractmethod
    def layers(self, model: Model) -> Iterator[tuple[str, Model]]:
        """Yield every layer of a model with its path, the model itself first."""

    def sequential(self, *layers: Model) -> Model:
        """Return layers in a row."""
        return self.layer("Sequential", *layers)

    def at(self, model: Model, path: str) -> Model:
        """Return the layer at a path."""
        return dict(self.layers(model))[path]

    def kind_at(self, model: Model, path: str) -> str:
        """Return the name of the type of the layer at a path."""
        return type(self.at(model, path)).__name__

    def plain_layer(self, case: Case) -> Model:
        """Return the layer of a case with parameters that are not special in any way."""
        layer = self.initialised(self.layer(case.kind, *case.arguments, **case.options), 1)
        if "Norm" in case.kind:
            # Paddle's statistics are among the parameters of its layers
            own = self.own_parameters(layer)
            for name, mean in (("weight", 0.5), ("bias", 0.0)):
                if name in own:
                    self.assign(own[name], mean + numbers(own[name].shape, 20 + len(name)))
        return layer

    def initialised(self, model: Model, seed: int = 6) -> Model:
        """Give convolutions and linear layers parameters from a seed, the same in every framework."""
        generator = np.random.default_rng(seed)
        for _, layer in self.layers(model):
            weight = self.own_parameters(layer).get("weight")
            if weight is None or "Norm" in type(layer).__name__:
                continue
            shape = self.array(weight).shape
            linear = "Linear" in type(layer).__name__
            if linear and self.linear_is_transposed:
                shape = shape[::-1]
            bound = 1 / sqrt(prod(shape[1:]))
            values = generator.uniform(-bound, bound, shape).astype(np.float32)
            self.assign(weight, values.T if linear and self.linear_is_transposed else values)
            bias = self.own_parameters(layer).get("bias")
            if bias is not None:
                self.assign(bias, generator.uniform(-bound, bound, bias.shape).astype(np.float32))
        return model

    linear_is_transposed = False

    @abstractmethod
    def own_parameters(self, layer: Model) -> dict[str, Tensor]:
        """Return the parameters of a layer without those of its children."""

    @abstractmethod
    def assign(self, parameter: Tensor, values: Array) -> None:
        """Give a parameter or buffer other values."""

    @abstractmethod
    def freeze(self, thing: Any, frozen: bool = True) -> Any:
        """Let a model or a parameter learn nothing any more, or learn again; return it."""

    @abstractmethod
    def is_frozen(self, parameter: Tensor) -> bool:
        """Tell whether a parameter learns nothing."""

    @abstractmethod
    def training(self, model: Model, mode: bool = True) -> Model:
        """Switch a model to training or evaluation; return it."""

    def evaluating(self, model: Model) -> Model:
        """Switch a model to evaluation; return it."""
        return self.training(model, False)

    @abstractmethod
    def cast(self, thing: Any, dtype: str) -> Any:
        """Return a model or a tensor in another type."""

    def compressed(self, model: Model, bits: float = 8, seed: int = 0, level: str = "L2", **settings: object) -> Model:
        """Return a converted copy of a model."""
        self.prepare(bits, level, **settings)
        return self.actnn.QModule(deepcopy(model), seed=seed)

    def prepare(self, bits: float = 8, level: str = "L2", **settings: object) -> None:
        """Choose the settings of the next conversion."""
        self.actnn.set_optimization_level(level)
        self.actnn.config.activation_compression_bits = [bits]
        for name, value in settings.items():
            setattr(self.actnn.config, name, value)

    # tensors

    @abstractmethod
    def tensor(self, values: Any, gradient: bool = False) -> Tensor:
        """Return a leaf with the values of an array; ``gradient`` says whether a gradient is wanted of it."""

    @abstractmethod
    def parameter(self, values: Array) -> Tensor:
        """Return a parameter that belongs to no layer yet."""

    @abstractmethod
    def array(self, tensor: Tensor) -> Array:
        """Return a tensor's values; types that numpy does not have become float32."""

    @abstractmethod
    def dtype_of(self, tensor: Tensor) -> str:
        """Return the name of a tensor's type."""

    @abstractmethod
    def wants_gradient(self, tensor: Tensor) -> bool:
        """Tell whether a gradient reaches a tensor."""

    @abstractmethod
    def concatenated(self, tensors: list[Tensor], axis: int) -> Tensor:
        """Join tensors along an axis."""

    @abstractmethod
    def relu(self, x: Tensor) -> Tensor:
        """Return the framework's own ReLU."""

    @abstractmethod
    def cross_entropy(self, logits: Tensor, targets: Array, reduction: str = "mean") -> Tensor:
        """Return the usual loss of a classifier."""

    @abstractmethod
    def after_forward(self, layer: Model, call: Callable[[Tensor], object]) -> None:
        """Call something with every output of a layer."""

    # training

    @abstractmethod
    def use_one_thread(self) -> None:
        """Use one thread: tensors are tiny here, and waking a second one costs more than it computes."""

    @abstractmethod
    def seed(self, number: int) -> None:
        """Seed the framework's own generator."""

    @abstractmethod
    def random_numbers(self, count: int) -> Array:
        """Draw from the framework's own generator."""

    @abstractmethod
    def no_grad(self) -> AbstractContextManager[Any]:
        """Record nothing."""

    @abstractmethod
    def enable_gradients(self) -> None:
        """Record again where a failed backward left that off."""

    @abstractmethod
    def autocast(self, dtype: str) -> AbstractContextManager[Any]:
        """Let the framework choose types."""

    @abstractmethod
    def checkpoint(self, block: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply a block that is computed anew in backward."""

    @abstractmethod
    def recording_checkpoint(self, block: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply a block that is computed anew in backward, and recorded in forward too."""

    @abstractmethod
    def clear(self, model: Model) -> None:
        """Drop all gradients."""

    @abstractmethod
    def optimizer(self, model: Model, rate: float, momentum: float = 0.0, decay: float = 0.0) -> Callable[[], None]:
        """Return a call that takes a step of gradient descent with the gradients that are there."""

    @abstractmethod
    def saved_bytes(self, model: Model, call: Callable[[], object]) -> int:
        """Return the bytes that are kept of a call for its backward besides the model's own parameters and buffers.

        Tensors that share memory count once.
        """

    @abstractmethod
    def saved_codes(self, call: Callable[[], object]) -> list[bytes]:
        """Return the bytes of every code that is kept of a call for its backward, in their order, each once."""

    def canonical(self, model: Model, gradients: dict[str, Array]) -> dict[str, Array]:
        """Return gradients in torch's layout."""
        # a wrapper stands for a model that is one layer
        kinds = {path: type(getattr(layer, "_model", layer)).__name__ for path, layer in self.layers(model)}
        linear = {f"{path}.weight".lstrip(".") for path, kind in kinds.items() if kind.endswith("Linear")}
        turned = linear if self.linear_is_transposed else set()
        return {name: value.T if name in turned else value for name, value in gradients.items()}

    def gradients(self, model: Model) -> dict[str, Array]:
        """Return the gradients of parameters by name."""
        return {
            name: self.array(parameter.grad).copy()
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        }

    def buffers(self, model: Model) -> dict[str, Array]:
        """Return copies of buffers by name."""
        return {name: self.array(buffer).copy() for name, buffer in model.named_buffers()}

    def state(self, model: Model) -> dict[str, Array]:
        """Return a copy of a model's state."""
        return {name: self.array(value).copy() for name, value in model.state_dict().items()}

    def step(
        self,
        model: Model,
        x: Array,
        grad: Array | Callable[[Tensor], Tensor] | None = None,
        dtype: str = "float32",
        autocast: str | None = None,
    ) -> Step:
        """Run one forward and backward; ``grad`` defaults to fixed numbers, the framework's generator is seeded."""
        self.clear(model)
        leaf = self.leaf(self.cast(self.tensor(x), dtype))
        self.seed(3)
        activation = self.activation(leaf, getattr(model, "inplace", False))
        if autocast is None:
            y = model(activation)
        else:
            with self.autocast(autocast):
                y = model(activation)
        if callable(grad):
            grad = grad(y)
        elif grad is None or isinstance(grad, Array):
            grad = self.cast(self.tensor(numbers(y.shape, 4) if grad is None else grad), self.dtype_of(y))
        y.backward(grad)
        return self._step(model, leaf, y)

    def _step(self, model: Model, leaf: Tensor, y: Tensor) -> Step:
        found = {"input": leaf.grad, **{name: each.grad for name, each in model.named_parameters()}}
        found = {name: gradient for name, gradient in found.items() if gradient is not None}
        dtypes = {name: self.dtype_of(gradient) for name, gradient in found.items()}
        dtypes["output"] = self.dtype_of(y)
        gradients = {name: self.array(gradient).copy() for name, gradient in found.items()}
        return Step(self.array(y).copy(), gradients, self.buffers(model), dtypes)

    @abstractmethod
    def load(self, model: Model, state: dict[str, Any]) -> None:
        """Give a model a state."""

    @abstractmethod
    def leaf(self, x: Tensor) -> Tensor:
        """Return a tensor of which a gradient is wanted."""

    @abstractmethod
    def activation(self, leaf: Tensor, inplace: bool) -> Tensor:
        """Return what an operation made of a leaf, with its values; it may be changed in place where that is said."""

    def many_gradients(self, model: Model, x: Array, repeats: int) -> dict[str, Array]:
        """Return the gradients of many steps on one input, each under keys of its own, stacked by name."""
        # as step has them, but for what would be made, or copied, in every step alike
        values, inplace, upstream = self.tensor(x), getattr(model, "inplace", False), None
        found: dict[str, list[Array]] = {}
        for _ in range(repeats):
            self.clear(model)
            leaf = self.leaf(values)
            self.seed(3)
            y = model(self.activation(leaf, inplace))
            upstream = self.tensor(numbers(y.shape, 4)) if upstream is None else upstream
            y.backward(upstream)
            for name, gradient in {"input": self.array(leaf.grad).copy(), **self.gradients(model)}.items():
                found.setdefault(name, []).append(gradient)
        return {name: np.stack(each) for name, each in found.items()}
