"""``actnn.compile``: a model that runs compiled, and whose forward keeps codes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo import config as dynamo
from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit

from actnn.errors import ActnnError, ConfigError, UnsupportedError
from actnn.format import MAX_BITS
from actnn.settings import Policy, config
from actnn.torch.compiled.backend import Backend
from actnn.torch.compiled.partition import Partition
from actnn.torch.compiled.report import CompiledReport
from actnn.torch.convert import SHARED
from actnn.torch.tensors import ARRAYS

# wrappers that let many processes or devices train a model
PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)
# levels whose widths are fixed
LEVELS = ("L0", "L1", "L2")


class Compiled(nn.Module):
    """A model compiled by torch.compile whose forward keeps codes of activations until its backward.

    It shares the model's own dictionaries of parameters, buffers and children: names and state_dict keys are those of
    the plain model. The model itself is not changed, and may still be called uncompressed.
    """

    def __init__(self, model: nn.Module, policy: Policy, bits: int, seed: int, options: dict[str, Any]) -> None:
        super().__init__()
        for name in SHARED:
            self.__dict__[name] = model.__dict__[name]
        self.__dict__["_model"] = model
        self.__dict__["training"] = model.training
        calls = itertools.count()

        def draws() -> Tensor:
            # one row of numbers for each process, and another for each call; trainers form groups of processes late
            return torch.tensor([seed, (ARRAYS.process() << 40) + next(calls)], dtype=torch.int64)

        self.__dict__["_partition"] = partition = Partition(policy, bits)
        self.__dict__["_compiled"] = torch.compile(model, backend=Backend(partition, draws), dynamic=False, **options)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns."""
        try:
            # beyond the limit torch would run the plain model, which keeps everything
            with dynamo.patch(fail_on_recompile_limit_hit=True):
                return self.__dict__["_compiled"](*args, **kwargs)
        except FailOnRecompileLimitHit as failure:
            raise UnsupportedError(
                f"actnn.compile was given more kinds of inputs than torch compiles a model for: {failure} Give batches "
                "of a few fixed shapes, or raise torch._dynamo.config.recompile_limit."
            ) from failure
        except BackendCompilerFailed as failure:
            if isinstance(failure.inner_exception, ActnnError):
                raise failure.inner_exception from None
            raise

    def train(self, mode: bool = True) -> Compiled:
        """Set the mode of the model."""
        super().train(mode)
        self.__dict__["_model"].train(mode)
        return self

    def report(self) -> CompiledReport:
        """Return what the forwards that were compiled for training keep."""
        return CompiledReport(tuple(self.__dict__["_partition"].reports))


def compile(
    model: nn.Module, *, level: str | None = None, bits: int | None = None, seed: int = 0, **options: Any
) -> Compiled:
    """Return a model compiled by torch.compile whose forward keeps codes of ``bits`` bits.

    ``options`` are those of torch.compile, such as ``fullgraph`` and ``mode``; the backend and static shapes are ours.
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
    policy = config.policy("L2" if level is None else level)
    if policy.adaptive or policy.swap or policy.arena:
        raise ConfigError(f"actnn.compile has fixed widths: expected one of {list(LEVELS)} and bits, not {level!r}.")
    if bits is None:
        bits = int(policy.bits_of(0))
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= MAX_BITS:
        raise ConfigError(f"actnn.compile was given bits={bits!r}: expected a whole number from 1 to {MAX_BITS}.")
    return Compiled(model, replace(policy, bits=(float(bits),)), bits, seed, options)
