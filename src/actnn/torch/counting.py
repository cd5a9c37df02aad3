"""What autograd keeps of a whole model, by whoever saved it, and what exact training would keep instead.

NOTE [Counting]
1. Saved-tensor hooks count, in the first three steps and then in those whose number is a power of two: all other steps
   go without. Where somebody else's hooks are in place, nothing is counted.
2. Each block of memory counts once, for the first that saved it; the model's own parameters and buffers do not count.
3. Who saved it, the stack tells: the innermost module, and the function that the door saw last. An operation of ours
   saves codes and a few statistics; weights that were computed, as by a parametrisation, are neither.
4. What exact training keeps is counted when a report is asked for, by one more forward of the plain model on numbers of
   the same forms. It saves nothing: what autograd would keep is counted and dropped. Random generators and buffers are
   put back, and many processes, which would have to run it together, go without.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch import distributed as dist
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from actnn.model.layers import CompressedLayer
from actnn.session.session import Session
from actnn.session.whole import Part
from actnn.torch.door.mode import Door
from actnn.torch.memory import KeptBytes, address, has_memory, whole_bytes

FIRST_STEPS = 3
# numbers of an operation of ours that are fewer bytes than this count with its code
STATISTICS_BYTES = 16 * 2**10
COMPUTED_ANEW = "checkpointing keeps it, to compute anew what follows"
BESIDE_A_CODE = "an operation with codes needs it exactly: weights that were computed, or statistics of rows"
OWN = tuple(str(Path(__file__).parents[1] / folder) for folder in ("torch", "operations"))
# the files of hooks, and those between an operation of ours and the hooks on what it saves
HOOKS = tuple(str(Path(__file__).parent / f"{name}.py") for name in ("counting", "memory", "others"))
BETWEEN = (torch.autograd.function.__file__, *HOOKS)
MODULE_CALL, DOOR = nn.Module._call_impl.__code__, Door.__torch_function__.__code__
# what may be given to a model again as it is
PLAIN = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.Size)


def is_due(step: int) -> bool:
    """Tell whether a step is one of those that are counted."""
    return step <= FIRST_STEPS or step & (step - 1) == 0


def hooks_in_place() -> bool:
    """Tell whether saved-tensor hooks are in place, which ours would put out of force."""
    # no public function tells it
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def hooks_of_others() -> bool:
    """Tell whether what is saved now goes through other hooks than those that count, which copy nothing."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and not isinstance(getattr(hooks[0], "__self__", None), KeptBytes)


class Saver(NamedTuple):
    """Whoever had autograd save something: a module, and the function that it called where the door saw that."""

    module: nn.Module | None
    function: Any
    ours: bool
    checkpoints: bool


def saver() -> Saver:
    """Return who has autograd save something now."""
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename in BETWEEN:
        frame = frame.f_back
    ours = frame.f_code.co_filename.startswith(OWN) and frame.f_code is not DOOR
    checkpoints = frame.f_code.co_filename == torch.utils.checkpoint.__file__
    function = None
    while frame is not None and frame.f_code is not MODULE_CALL:
        if frame.f_code is DOOR and function is None:
            function = frame.f_locals["function"]
        frame = frame.f_back
    return Saver(None if frame is None else frame.f_locals["self"], function, ours, checkpoints)


class Count(KeptBytes):
    """Counts what autograd saves while it is entered, by whoever had it saved."""

    def __init__(self, model: nn.Module, door: Door) -> None:
        super().__init__(model)
        self._door = door
        self._names = {id(module): name or "model" for name, module in model.named_modules()}
        self._parts: dict[int, tuple[Part, int]] = {}
        self.coded_bytes = 0

    def _note(self, tensor: Tensor) -> Any:
        if not self._blocks.knows(place := address(tensor)):
            size, who = whole_bytes(tensor), saver()
            if not who.ours:
                self._parts[place] = self._part(who), size
            elif tensor.is_floating_point() and size >= STATISTICS_BYTES:
                self._parts[place] = self._part(who)._replace(reason=BESIDE_A_CODE), size
            else:
                self.coded_bytes += size
        return super()._note(tensor)

    def _note_code(self, buffer: Tensor) -> None:
        """Count a code that a hook made, not an operation."""
        if not self._blocks.knows(place := address(buffer)):
            size = whole_bytes(buffer)
            self.coded_bytes += size
            self._blocks.count(place, size)

    def _part(self, who: Saver) -> Part:
        name = self._names.get(id(who.module), "") if who.module is not None else "model"
        kind = "" if who.module is None else type(who.module).__name__
        function = "" if who.function is None else getattr(who.function, "__name__", str(who.function)).strip("_")
        return Part(name, kind, function, self._reason(name, who, function))

    def _reason(self, name: str, who: Saver, function: str) -> str:
        if who.checkpoints:
            return COMPUTED_ANEW
        left = {layer: reason for layer, _, reason in self._door.session.left_exact}
        if name in left:
            return left[name]
        frames = self._door.frames
        if frames and not frames[-1].active:
            return "it is to stay exact"
        if isinstance(who.module, CompressedLayer):
            return "a code would be no smaller, or its form is not served"
        if who.function is None:
            return "no function that can be served saved it"
        if who.function in self._door.rules:
            return "a code would be no smaller, or its form is not served"
        return f"there is no rule for {function}"

    @property
    def parts(self) -> Mapping[Part, int]:
        """What each part keeps that is no code."""
        found: dict[Part, int] = {}
        for part, size in self._parts.values():
            found[part] = found.get(part, 0) + size
        return found


class Dropped(saved_tensors_hooks):
    """Counts what autograd would save while it is entered, and lets it go."""

    def __init__(self, own: Iterable[Tensor]) -> None:
        self.total = 0
        self._own = frozenset(map(address, own))
        # what was let go may leave its address to another
        self._seen: dict[int, weakref.ref[Any]] = {}
        super().__init__(self._note, self._refuse)

    def _note(self, tensor: Tensor) -> None:
        place = address(tensor)
        memory = tensor.untyped_storage() if has_memory(tensor) else tensor
        known = self._seen.get(place)
        if place in self._own or (known is not None and known() is memory):
            return
        self._seen[place] = weakref.ref(memory)
        self.total += whole_bytes(tensor)

    def _refuse(self, saved: None) -> Tensor:
        raise RuntimeError("nothing was kept of this forward: it was run to be counted")


@dataclass(frozen=True)
class Numbers:
    """The form of a tensor of numbers, to make another one of."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    wants_gradient: bool

    @classmethod
    def of(cls, x: Tensor) -> Numbers:
        """Return the form of a tensor."""
        return cls(x.shape, x.stride(), x.dtype, x.device, x.requires_grad)

    def made(self) -> Tensor:
        """Return a tensor of this form."""
        x = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)
        return x.normal_().requires_grad_(self.wants_gradient)


class NotPlainError(TypeError):
    """What a model was called with cannot be made again."""


@dataclass(frozen=True)
class Example:
    """What a model was called with, numbers by their form and everything else as it is, and in which modes."""

    arguments: Any
    modes: tuple[bool, ...]
    autocast: tuple[tuple[str, torch.dtype], ...]

    @classmethod
    def of(cls, model: nn.Module, arguments: Any) -> Example | None:
        """Return what a call takes; None where that cannot be made again."""
        try:
            taken = mapped(form_of, arguments)
        except NotPlainError:
            return None
        devices = {parameter.device.type for parameter in model.parameters()}
        casts = [(device, torch.get_autocast_dtype(device)) for device in devices if torch.is_autocast_enabled(device)]
        return cls(taken, tuple(module.training for module in model.modules()), tuple(casts))

    def same(self, other: Example | None) -> bool:
        """Tell whether another one lets autograd keep as much."""
        if other is None:
            return False
        return (repr_of(self.arguments), self.modes, self.autocast) == (
            repr_of(other.arguments),
            other.modes,
            other.autocast,
        )

    def exact_bytes(self, model: nn.Module, session: Session) -> int | None:
        """Return what autograd would keep of a call without codes; None where that cannot be tried."""
        if dist.is_available() and dist.is_initialized():
            return None
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        with ExitStack() as stack:
            for context in (session.suspended(), in_modes(model, self.modes), torch.enable_grad()):
                stack.enter_context(context)
            devices = [parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"]
            stack.enter_context(torch.random.fork_rng(list(set(devices))))
            for device, dtype in self.autocast:
                stack.enter_context(torch.autocast(device, dtype))
            arguments, options = mapped(made, self.arguments)
            dropped = stack.enter_context(Entered(Dropped((*model.parameters(), *buffers.values()))))
            try:
                functional_call(model, buffers, tuple(arguments), options)
            # whatever the model's own code raises on numbers that mean nothing: then it cannot be counted
            except Exception:
                return None
        return dropped.total


class Entered:
    """A context that gives what it enters: torch's own hooks give None."""

    def __init__(self, hooks: Dropped) -> None:
        self._hooks = hooks

    def __enter__(self) -> Dropped:
        self._hooks.__enter__()
        return self._hooks

    def __exit__(self, *raised: Any) -> None:
        self._hooks.__exit__(*raised)


@contextmanager
def in_modes(model: nn.Module, modes: Iterable[bool]) -> Iterator[None]:
    """Let modules train, or not, as they did."""
    before = [(module, module.training) for module in model.modules()]
    for (module, _), mode in zip(before, modes, strict=False):
        module.training = mode
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode


def form_of(x: Any) -> Any:
    """Return what another tensor like this one is made of; raise NotPlainError for what is none and not plain."""
    if isinstance(x, PLAIN):
        return x
    if not isinstance(x, Tensor) or not has_memory(x):
        raise NotPlainError(type(x).__name__)
    return Numbers.of(x) if x.is_floating_point() else x.detach().clone()


def made(x: Any) -> Any:
    """Return a tensor of some form."""
    return x.made() if isinstance(x, Numbers) else x


def repr_of(taken: Any) -> Any:
    """Return what tells forms from others."""
    return mapped(lambda x: (x.shape, x.dtype) if isinstance(x, Tensor) else x, taken)


def mapped(function: Any, nest: Any) -> Any:
    """Return a nest of tuples, lists and dictionaries with all else replaced."""
    if isinstance(nest, Mapping):
        return {key: mapped(function, value) for key, value in nest.items()}
    if isinstance(nest, (tuple, list)) and not isinstance(nest, torch.Size):
        return [mapped(function, value) for value in nest]
    return function(nest)
