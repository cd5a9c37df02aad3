"""QModule: one line converts a model, in place, and one call undoes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from actnn.core.memory import parse_memory
from actnn.core.policy import Policy
from actnn.core.report import Report
from actnn.core.samples import check_indices
from actnn.core.session import Session
from actnn.core.settings import QScheme, config
from actnn.core.site import Site
from actnn.errors import ConfigError, UnsupportedError
from actnn.torch.layers import COMPRESSED, Compressed, CompressedBatchNorm
from actnn.torch.memory import KeptBytes
from actnn.torch.swapping import SwappedActivations

Exact = str | type[nn.Module]


class QModule(nn.Module):
    """A model whose layers keep codes instead of activations.

    The wrapper shares the model's own dictionaries of parameters, buffers and children: names, state_dict keys and
    everything that walks the tree see the plain model. All other attributes are the wrapped model's.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        level: str | None = None,
        exact: Sequence[Exact] = (),
        seed: int = 0,
        memory: str | float | None = None,
    ) -> None:
        super().__init__()
        check_model(model)
        policy = config.policy(level)
        stream = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        session = Session(policy, seed, stream, None if memory is None else parse_memory(memory))
        chosen = plan(model, session, policy, exact)
        previous = [(layer, getattr(layer, "site", None)) for layer, _, _ in chosen]
        for layer, twin, site in chosen:
            twin.adopt(layer, site)
        own = self.__dict__
        own["_model"], own["_session"], own["_previous"], own["_samples"] = model, session, previous, None
        for shared in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            own[shared] = model.__dict__[shared]
        # the flag is the model's, reached like its other attributes
        del own["training"]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the wrapped model."""
        session = self._session
        session.forward_begins(self._batch_indices())
        if not (self.training and torch.is_grad_enabled()):
            return self._model(*args, **kwargs)
        if session.swaps_activations:
            with SwappedActivations(self._model, session, session.whole_model()):
                return self._model(*args, **kwargs)
        if not session.measures_memory:
            return self._model(*args, **kwargs)
        with KeptBytes(self._model) as kept:
            result = self._model(*args, **kwargs)
        session.all_kept(kept.total)
        return result

    def set_samples(self, indices: Any) -> None:
        """Tell which samples of the training set the next batches hold, by position; None where that is not known.

        Where widths are decided while training, samples whose gradients were large get more bits.
        """
        self.__dict__["_samples"] = None if indices is None else sample_indices(indices, None)

    def _batch_indices(self) -> Any:
        if self._samples is not None or not self._session.policy.use_gradient or QScheme.batch is None:
            return self._samples
        return sample_indices(QScheme.batch, QScheme.num_samples)

    def report(self) -> Report:
        """Return the bytes that each layer kept in the last training step."""
        return self._session.report()

    def restore(self) -> nn.Module:
        """Give the plain model back: same object, same parameters; this wrapper keeps nothing any more."""
        for layer, site in self._previous:
            if site is None:
                layer.release()
            else:
                layer.site = site
        self.__dict__["_previous"] = []
        self._session.close()
        return self._model

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the plain model's state."""
        return self._model.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load the plain model's state."""
        return self._model.load_state_dict(*args, **kwargs)

    def session_state(self) -> dict[str, Any]:
        """Return, between steps, what codes depend on besides weights: keys, and what was learnt about widths.

        A checkpoint that holds it beside ``state_dict()`` lets training go on bit for bit. It is plain data.
        """
        samples = None if self._samples is None else self._samples.tolist()
        return self._session.state_dict() | {"samples": samples}

    def load_session_state(self, state: dict[str, Any]) -> None:
        """Go on where a conversion of the same model with the same settings was when its state was taken."""
        self._session.load_state_dict(state)
        self.set_samples(state.get("samples"))

    def train(self, mode: bool = True) -> QModule:
        """Switch this model, and no other, between training and evaluation."""
        self._model.train(mode)
        return self

    def __getattr__(self, name: str) -> Any:
        model = self.__dict__.get("_model")
        if model is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if "_model" in self.__dict__ and name not in self.__dict__:
            setattr(self._model, name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._model, name)

    def __getitem__(self, key: Any) -> Any:
        return self._model[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._model[key] = value

    def __contains__(self, key: Any) -> bool:
        return key in self._model

    def __iter__(self) -> Iterator[Any]:
        return iter(self._model)

    def __len__(self) -> int:
        return len(self._model)

    def __bool__(self) -> bool:
        # without it, a model that has no length would have no truth value either
        return True

    def __repr__(self) -> str:
        # a model that is a single layer has no children to show
        return super().__repr__() if self._modules else f"QModule({self._model!r})"

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._model)})


def sample_indices(given: Any, num_samples: int | None) -> Any:
    """Return positions in the training set as an array on the host."""
    if isinstance(given, Tensor):
        # numpy knows no bfloat16; floats are refused, but with a reason
        given = (given.float() if given.is_floating_point() else given).detach().cpu().numpy()
    return check_indices(given, num_samples)


def check_model(model: Any) -> None:
    """Raise a typed error unless ``model`` can be converted."""
    if isinstance(model, QModule):
        raise ConfigError("this model was converted already. Call model.restore() first to convert it anew.")
    if not isinstance(model, nn.Module):
        raise UnsupportedError(f"QModule was given a {type(model).__name__}: expected a torch.nn.Module.")
    for name, layer in model.named_modules():
        if isinstance(layer, QModule):
            raise ConfigError(f"{name!r} was converted already. Call restore() on it before converting what holds it.")


def plan(
    model: nn.Module, session: Session, policy: Policy, exact: Sequence[Exact]
) -> list[tuple[nn.Module, type[Compressed], Site]]:
    """Choose, without changing anything, the layers to convert; note in the session what is left exact and why."""
    patterns = Patterns(exact)
    chosen = []
    for name, layer in model.named_modules():
        twin = type(layer) if isinstance(layer, Compressed) else COMPRESSED.get(type(layer))
        reason = patterns.reason(name, layer) or reason_to_leave(layer, twin, policy)
        if reason is None and twin is not None:
            group = layer.site.group if isinstance(layer, Compressed) else 0
            chosen.append((layer, twin, session.site(name or "model", twin.__name__, group, twin.normalizes)))
        elif reason is not None:
            session.left_exact.append((name or "model", type(layer).__name__, reason))
    patterns.check_all_matched(model)
    return chosen


def reason_to_leave(layer: nn.Module, twin: type[Compressed] | None, policy: Policy) -> str | None:
    """Return why a layer is not converted; None where it is, or where nobody would expect it."""
    if twin is None:
        for base in COMPRESSED:
            if isinstance(layer, base):
                if hasattr(layer, "parametrizations"):
                    return "it is parametrised, so its weight is computed anew in each forward"
                return f"it is a subclass of {base.__name__}, which may compute something else"
        return None
    if issubclass(twin, CompressedBatchNorm) and policy.compress and not policy.compress_batch_norm:
        return "this level keeps BatchNorm exact"
    if getattr(layer, "return_indices", False):
        return "it returns indices"
    return None


class Patterns:
    """The layers that the user wants exact: by path, by path with wildcards, or by type."""

    def __init__(self, exact: Sequence[Exact]) -> None:
        if isinstance(exact, (str, type)):
            raise ConfigError(f"exact={exact!r}: expected a list, such as [{exact!r}].")
        for pattern in exact:
            if not isinstance(pattern, str) and not (isinstance(pattern, type) and issubclass(pattern, nn.Module)):
                raise ConfigError(f"exact holds {pattern!r}: expected paths of layers or types of layers.")
        self._patterns = list(exact)
        self._matched: set[int] = set()

    def reason(self, name: str, layer: nn.Module) -> str | None:
        """Return a reason where a pattern names this layer."""
        for index, pattern in enumerate(self._patterns):
            if isinstance(pattern, str):
                hit = any(fnmatchcase(path, pattern) for path in with_parents(name))
            else:
                hit = isinstance(layer, pattern)
            if hit:
                self._matched.add(index)
                if type(layer) in COMPRESSED or isinstance(layer, Compressed):
                    shown = pattern if isinstance(pattern, str) else pattern.__name__
                    return f"exact asks for it ({shown})"
        return None

    def check_all_matched(self, model: nn.Module) -> None:
        """Raise ConfigError where a pattern names nothing: a typing error would go unseen."""
        missing = [pattern for index, pattern in enumerate(self._patterns) if index not in self._matched]
        if missing:
            some = ", ".join(name for name, _ in list(model.named_modules())[1:6])
            raise ConfigError(f"exact={missing} matches no layer of this model. Its layers are named like {some}.")


def with_parents(name: str) -> Iterator[str]:
    """Yield a path and the paths of the modules that hold it."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        yield ".".join(parts[:count])
