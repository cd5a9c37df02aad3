"""verify: the bias and the variance that codes give a model's gradient, before anybody trains with them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np

from actnn.errors import ConfigError, ShapeError, UnsupportedError
from actnn.kernels.contract import Array
from actnn.model.verification import Comparison, Gradients, Verification
from actnn.model.wrapper import Wrapper, session_of
from actnn.session.site import Site

LossFunction = Callable[[Any, Any], Array]

# steps in which sites learn who reads them, and widths settle
WARM_UP = 3
MOST_PARTS = 8
LEAST_SAMPLES = 2
ROUNDINGS = 2


class Verifier:
    """What verify asks of a framework; a front end derives from it."""

    tensor_type: ClassVar[type[Any]]
    layer_type: ClassVar[type[Any]]
    layer_name: ClassVar[str]
    wrapper: ClassVar[Callable[..., Any]]

    def recording(self) -> AbstractContextManager[Any]:
        """Return a context in which autograd records."""
        raise NotImplementedError

    def generator_states(self) -> Callable[[], None]:
        """Return a function that gives the framework's random generators the state that they have now."""
        raise NotImplementedError

    def in_training(self, model: Any) -> Any:
        """Return a copy in training mode; layers that the user switched off within a training model stay so."""
        raise NotImplementedError

    def parameters(self, model: Any) -> Iterable[tuple[str, Array]]:
        """Return the parameters of a model with their names, each once."""
        raise NotImplementedError

    def layers(self, model: Any) -> Iterable[tuple[str, Array | None]]:
        """Return the paths of all layers with the first parameter of each."""
        raise NotImplementedError

    def clear(self, model: Any) -> None:
        """Forget all gradients."""
        raise NotImplementedError

    def gradient(self, parameter: Array) -> np.ndarray[Any, Any] | None:
        """Return the gradient of a parameter as a vector; None where it has none."""
        raise NotImplementedError

    def nothing(self, parameter: Array) -> np.ndarray[Any, Any]:
        """Return a gradient of zeros, as a vector."""
        return np.zeros(int(np.prod(parameter.shape)), np.float32)

    def fresh(self, x: Array) -> Array:
        """Return a tensor of the batch for one step, which may change it in place."""
        raise NotImplementedError

    def wants_gradient(self, x: Array) -> bool:
        """Tell whether a tensor depends on what learns."""
        raise NotImplementedError

    def round_differently(self, model: Any) -> None:
        """Change every parameter by one unit in the last place, up or down."""
        raise NotImplementedError

    def verify(
        self, model: Any, batch: Any, loss_function: LossFunction | None = None, draws: int = 32, **conversion: Any
    ) -> Verification:
        """Compare a model's gradient from codes with its exact one, in training mode on one batch; change neither.

        ``model`` is plain, and converted as ``QModule(model, **conversion)`` would (``level``, ``exact``,
        ``seed``...), or a QModule, whose own settings hold. ``batch`` is a pair of inputs and targets, each a
        tensor or a nest of them: a tuple or list of inputs is given to the model as arguments, a dict as named
        ones. ``loss_function(output, targets)`` returns a mean over samples. Without one the model's own ``loss``
        counts, as Hugging Face's models have it, and ``batch`` may be a dict of named inputs by itself.

        ``measured`` is the variance over ``draws`` gradients with noise of their own; fewer than 10 cannot
        prove a bias. ``predicted`` is what theory expects of the code that a layer, or a function which a module
        calls with a parameter, reads. Of the noise that the input gradient of a BatchNorm hands down it holds an
        estimate for the layer that the BatchNorm follows, and nothing for those further below, where ``measured``
        may be larger; nor does it hold what attention, gates and smooth functions hand down. ``unpredicted`` names
        all of these. ``sampling``, for scale, is the
        variance that another batch of this size makes, estimated from up to 8 parts of this one. A BatchNorm
        normalises each part by itself: with parts of a few samples, take it as a rough guide.

        Raises ConfigError, UnsupportedError or ShapeError where an argument is not as described or a gradient
        not finite.
        """
        if loss_function is None:
            loss_function, batch = own_loss, (batch, None) if isinstance(batch, Mapping) else batch
        self.check_arguments(model, batch, draws, conversion)
        generators = Generators(self)
        try:
            with self.recording():
                names, comparison = self.exact_gradients(model, batch, loss_function, generators)
                copy = self.in_training(model)
                coded = copy if isinstance(copy, Wrapper) else type(self).wrapper(copy, **conversion)
                step = Step(self, coded, batch, loss_function, generators)
                for _ in range(WARM_UP):
                    step.run()
                session = session_of(coded)
                session.predictions = {}
                for _ in range(draws):
                    step.run()
                    comparison.add_draw(self.gathered(coded, names))
                found, unowned = self.owned(coded, session.predictions, session.sites)
                predicted = {layer: value / draws for layer, value in found.items()}
                handing = [site.name for site in session.sites if hands_down(site, session.predictions)]
        finally:
            generators.rewind()
        share = self.part_size(batch) / max(1, self.samples(batch))
        return comparison.result(predicted, share, [*unowned, *handing])

    def check_arguments(self, model: Any, batch: Any, draws: Any, conversion: Mapping[str, Any]) -> None:
        """Raise a typed error unless there is something to verify."""
        if not isinstance(model, self.layer_type):
            raise UnsupportedError(f"verify was given a {type(model).__name__}: expected a {self.layer_name}.")
        if isinstance(model, Wrapper):
            session_of(model).check_open()
            if conversion:
                raise ConfigError(
                    f"{', '.join(conversion)} given with a model that was converted with settings of its own: expected "
                    "a plain one. Call model.restore() first to verify other settings."
                )
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            shown = f"{len(batch)} things" if isinstance(batch, (tuple, list)) else f"a {type(batch).__name__}"
            raise UnsupportedError(f"verify was given a batch of {shown}: expected a pair, (inputs, targets).")
        if isinstance(draws, bool) or not isinstance(draws, int) or draws < 2:
            raise ConfigError(f"draws={draws!r}: expected a whole number of at least 2, which a variance takes.")

    def exact_gradients(
        self, model: Any, batch: Any, loss_function: LossFunction, generators: Generators
    ) -> tuple[dict[str, list[str]], Comparison]:
        """Return the parameters that get a gradient, by layer, and the comparison with exact gradients taken in."""
        copy = self.in_training(model)
        plain = copy.restore() if isinstance(copy, Wrapper) else copy
        # layers that users made compressed are exact at this level too
        plain = type(self).wrapper(plain, level="L0")
        Step(self, plain, batch, loss_function, generators).run()
        names = self.layers_with_gradients(plain)
        if not names:
            raise UnsupportedError(
                "no parameter of this model gets a gradient from this loss: there is nothing to verify."
            )
        comparison = Comparison(self.gathered(plain, names))
        generators.rewind()
        for part in self.parts(batch):
            # without rewinding: dropout adds to the variance between batches
            Step(self, plain, part, loss_function).run()
            comparison.add_part(self.gathered(plain, names))
        for _ in range(ROUNDINGS):
            self.round_differently(plain)
            Step(self, plain, batch, loss_function, generators).run()
            comparison.add_rounded(self.gathered(plain, names))
        return names, comparison

    def check_loss(self, loss: Any) -> None:
        """Raise a typed error unless ``loss`` can begin a backward."""
        if not isinstance(loss, self.tensor_type):
            raise UnsupportedError(f"the loss function returned a {type(loss).__name__}: expected a scalar tensor.")
        if int(np.prod(loss.shape)) != 1:
            raise ShapeError(
                f"the loss function returned a tensor of shape {tuple(loss.shape)}: expected a scalar, "
                "such as the mean over samples."
            )
        if not self.wants_gradient(loss):
            raise UnsupportedError(
                "the loss depends on no parameter that requires a gradient: there is nothing to verify."
            )

    def mapped(self, function: Callable[[Array], Any], nest: Any) -> Any:
        """Return a nest with every tensor replaced; what is neither a nest nor a tensor stays."""
        if isinstance(nest, self.tensor_type):
            return function(nest)
        if isinstance(nest, Mapping):
            return {key: self.mapped(function, value) for key, value in nest.items()}
        if isinstance(nest, (tuple, list)):
            values = [self.mapped(function, value) for value in nest]
            return type(nest)(*values) if hasattr(nest, "_fields") else type(nest)(values)
        return nest

    def samples(self, batch: Any) -> int:
        """Return how many samples a batch holds: the length of its first tensor."""
        lengths: list[int] = []
        self.mapped(lambda x: lengths.append(x.shape[0]) if len(x.shape) else None, batch)
        return lengths[0] if lengths else 0

    def part_size(self, batch: Any) -> int:
        """Return how many samples each part of the batch has, 0 where it is too small for two parts."""
        count = self.samples(batch)
        number = min(MOST_PARTS, count // LEAST_SAMPLES)
        return count // number if number > 1 else 0

    def parts(self, batch: Any) -> Iterator[Any]:
        """Yield equal parts of a batch; tensors of another length belong to every one."""
        count, size = self.samples(batch), self.part_size(batch)
        for part in range(min(MOST_PARTS, count // size) if size else 0):
            rows = slice(part * size, (part + 1) * size)

            def of_part(x: Array, rows: slice = rows) -> Array:
                return x[rows] if len(x.shape) and x.shape[0] == count else x

            yield self.mapped(of_part, batch)

    def layers_with_gradients(self, model: Any) -> dict[str, list[str]]:
        """Return the names of the parameters that have a gradient, by layer."""
        names: dict[str, list[str]] = {}
        for name, parameter in self.parameters(model):
            if self.gradient(parameter) is not None:
                names.setdefault(layer_of(name), []).append(name)
        return names

    def gathered(self, model: Any, names: Mapping[str, Sequence[str]]) -> Gradients:
        """Return the gradient of each layer as one vector; a parameter that got none this time has zeros."""
        parameters = dict(self.parameters(model))
        return {layer: np.concatenate([self._vector(parameters[name]) for name in own]) for layer, own in names.items()}

    def _vector(self, parameter: Array) -> np.ndarray[Any, Any]:
        found = self.gradient(parameter)
        return self.nothing(parameter) if found is None else found

    def owned(
        self, model: Any, predictions: Mapping[str, float], sites: Sequence[Site]
    ) -> tuple[dict[str, float], list[str]]:
        """Return predictions under the layer that owns the weight, and the names of those whose weight nobody owns.

        Tied weights have the sum of all that share them. A function is known by the parameter that it was called with.
        """
        owners = {id(parameter): layer_of(name) for name, parameter in self.parameters(model)}
        layers = {path or "model": weight for path, weight in self.layers(model)}
        called_with = {site.name: site.parameter for site in sites}
        found: dict[str, float] = {}
        unowned = []
        for name, value in predictions.items():
            weight = called_with.get(name) if "/" in name else id(layers.get(name))
            owner = None if weight is None else owners.get(weight)
            if owner is not None:
                found[owner] = found.get(owner, 0.0) + value
            elif value > 0:
                unowned.append(name)
        return found, unowned


class Generators:
    """The random generators that a model may draw from, in the state that they had."""

    def __init__(self, verifier: Verifier) -> None:
        self._python, self._numpy = random.getstate(), np.random.get_state()
        self._rewind_framework = verifier.generator_states()

    def rewind(self) -> None:
        """Give every generator its state back."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        self._rewind_framework()


class Step:
    """One forward and backward, which leaves gradients in the model and the batch as it was.

    With ``generators``, every run draws the same dropout masks.
    """

    def __init__(
        self,
        verifier: Verifier,
        model: Any,
        batch: Any,
        loss_function: LossFunction,
        generators: Generators | None = None,
    ) -> None:
        self._verifier, self._model, self._batch = verifier, model, batch
        self._loss_function, self._generators = loss_function, generators

    def run(self) -> None:
        """Compute the gradients."""
        if self._generators is not None:
            self._generators.rewind()
        verifier = self._verifier
        verifier.clear(self._model)
        inputs, targets = verifier.mapped(verifier.fresh, self._batch)
        loss = self._loss_function(called(self._model, inputs), targets)
        verifier.check_loss(loss)
        loss.backward()


def hands_down(site: Site, predictions: Mapping[str, float]) -> bool:
    """Tell whether a site made codes of which only gradients of layers below are computed."""
    return site.account.elements > 0 and site.name not in predictions and not site.account.readers


def called(model: Any, inputs: Any) -> Any:
    """Return the output for one input, a sequence of them or named ones."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def own_loss(output: Any, targets: Any) -> Any:
    """Return the loss that a model computed itself."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is None:
        raise UnsupportedError(
            f"verify was given no loss function, and the model returned a {type(output).__name__} without a loss: "
            "expected one of its own, as models of Hugging Face have when they are given labels. Give a loss function."
        )
    return loss


def layer_of(parameter: str) -> str:
    """Return the layer that a parameter's name begins with, as sites are named."""
    return parameter.rpartition(".")[0] or "model"
