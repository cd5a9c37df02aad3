"""``actnn.compile``: a model that runs compiled, and whose forward keeps codes."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo import config as dynamo

from actnn.amounts import parse_memory
from actnn.errors import ConfigError, SessionError, UnsupportedError
from actnn.format import MAX_BITS
from actnn.kernels import heap
from actnn.settings import Policy, config
from actnn.torch.compiled.backend import Backend, Plan
from actnn.torch.compiled.library import draw_of
from actnn.torch.compiled.report import CompiledReport, GraphReport
from actnn.torch.compiled.widths import Redraws, measure, planned
from actnn.torch.convert import SHARED
from actnn.torch.tensors import ARRAYS

# wrappers that let many processes or devices train a model
PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)
# of the last, widths are planned
LEVELS = ("L0", "L1", "L2", "L3")
# each compilation of a model has its own count of kinds of inputs, or calibrating often would reach torch's limit;
# versions of torch that do not count apart refuse beyond it
ISOLATED: dict[str, Any] = {
    name: True for name in ("isolate_recompiles",) if name in inspect.signature(torch.compile).parameters
}


@dataclass(frozen=True)
class Settings:
    """What a model is compiled with: widths of ``bits``, fixed or on average, and bytes that forwards may keep."""

    policy: Policy
    bits: int
    seed: int
    adaptive: bool
    memory: int | None


class Compiled(nn.Module):
    """A model compiled by torch.compile whose forward keeps codes of activations until its backward.

    It shares the model's own dictionaries of parameters, buffers and children: names and state_dict keys are those of
    the plain model. The model itself is not changed, and may still be called uncompressed.
    """

    def __init__(self, model: nn.Module, settings: Settings, options: dict[str, Any]) -> None:
        super().__init__()
        for name in SHARED:
            self.__dict__[name] = model.__dict__[name]
        self.__dict__["_model"] = model
        self.__dict__["training"] = model.training
        self.__dict__["_settings"], self.__dict__["_options"] = settings, options
        self.__dict__["_backend"] = self.__dict__["_compiled"] = None
        if settings.policy.compress:
            # as conversion does
            heap.keep_blocks()
        if not settings.adaptive:
            self._compile(None)

    def _compile(self, plan: Plan | None) -> None:
        settings, calls = self.__dict__["_settings"], itertools.count()

        def draws(_: GraphReport | None) -> Tensor:
            # one row of numbers for each process, and another for each call; trainers form groups of processes late
            return draw_of(settings.seed, (ARRAYS.process() << 40) + next(calls))

        self._run_by(Backend(settings.policy, settings.bits, draws, plan, settings.memory))

    def _run_by(self, backend: Backend) -> None:
        model, options = self.__dict__["_model"], self.__dict__["_options"]
        self.__dict__["_backend"] = backend
        self.__dict__["_compiled"] = torch.compile(model, backend=backend, dynamic=False, **ISOLATED | options)

    def calibrate(self, step: Callable[[], Tensor]) -> CompiledReport:
        """Plan the width of every code by what noise in it costs in a step, and compile with these from now on.

        ``step`` computes the loss of this model for a typical batch and returns it; it is called once for each code,
        and once more, and computes the same each time. Parameters, their gradients, buffers and generators of random
        numbers stay as they are. Returns what the forwards that were measured keep.
        """
        settings = self.__dict__["_settings"]
        if not settings.adaptive:
            raise ConfigError("calibrate plans widths, and those of this model are fixed: compile it with level='L3'.")
        before = self.__dict__["_backend"], self.__dict__["_compiled"]
        draws = Redraws(settings.seed)
        self._run_by(Backend(settings.policy, settings.bits, draws, compiled=False))
        try:
            plan = planned(*measure(self.__dict__["_model"], step, draws), settings.memory)
            kept = self.report()
        except BaseException:
            self.__dict__["_backend"], self.__dict__["_compiled"] = before
            raise
        self._compile(plan)
        return kept

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns."""
        if self.__dict__["_compiled"] is None:
            if self.training and torch.is_grad_enabled():
                raise SessionError(
                    "a model compiled with widths that are planned was trained before they were: call its "
                    "calibrate(step) first, where step() returns the loss of a batch."
                )
            return self.__dict__["_model"](*args, **kwargs)
        # the backend refuses versions beyond the limit, where torch would run the plain model
        self.__dict__["_backend"].begin(dynamo.recompile_limit)
        most = max(dynamo.recompile_limit, dynamo.accumulated_recompile_limit)
        with dynamo.patch(recompile_limit=most, fail_on_recompile_limit_hit=True):
            return self.__dict__["_compiled"](*args, **kwargs)

    def train(self, mode: bool = True) -> Compiled:
        """Set the mode of the model."""
        super().train(mode)
        self.__dict__["_model"].train(mode)
        return self

    def report(self) -> CompiledReport:
        """Return what the forwards that were compiled for training keep."""
        backend = self.__dict__["_backend"]
        return CompiledReport(() if backend is None else tuple(backend.reports))


def compile(
    model: nn.Module,
    *,
    level: str | None = None,
    bits: int | None = None,
    memory: str | float | None = None,
    seed: int = 0,
    **options: Any,
) -> Compiled:
    """Return a model compiled by torch.compile whose forward keeps codes of ``bits`` bits.

    At level L3, or with ``memory``, which is what a forward may keep, ``bits`` is an average: each code has a width
    that ``calibrate`` plans. ``options`` are those of torch.compile, such as ``fullgraph`` and ``mode``; the backend
    and static shapes are ours.
    """
    if not isinstance(model, nn.Module):
        raise UnsupportedError(f"actnn.compile was given a {type(model).__name__}: expected a torch.nn.Module.")
    for path, part in model.named_modules():
        if isinstance(part, PARALLEL):
            kind = type(part).__name__
            raise UnsupportedError(
                f"actnn.compile was given a model with a {kind} at {path!r}, of which torch compiles parts that keep "
                f"everything. Compile first, and give the result to {kind}."
            )
    for name in ("backend", "dynamic"):
        if name in options:
            raise ConfigError(f"actnn.compile was given {name}={options[name]!r}: it has its own. Leave it out.")
    if level is None:
        level = "L2" if memory is None else "L3"
    policy = config.policy(level)
    if level not in LEVELS:
        raise ConfigError(
            f"actnn.compile was given level={level!r}: expected one of {list(LEVELS)}. Codes of a compiled model have "
            "a width each and lie in memory; QModule has the other levels."
        )
    if memory is not None and not policy.adaptive:
        raise ConfigError(f"actnn.compile was given memory={memory!r} at level {level!r}: only 'L3' plans widths.")
    if bits is None:
        bits = int(policy.bits_of(0))
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= MAX_BITS:
        raise ConfigError(f"actnn.compile was given bits={bits!r}: expected a whole number from 1 to {MAX_BITS}.")
    limit = None if memory is None else parse_memory(memory)
    policy = replace(policy, bits=(float(bits),))
    return Compiled(model, Settings(policy, bits, seed, policy.adaptive, limit), options)
