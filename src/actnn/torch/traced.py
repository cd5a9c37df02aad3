"""Whether something other than autograd runs a model: a tracer, an exporter, or a transform of functions.

What they see is the plain model: a graph that is recorded once, or a tensor that stands for many, has no codes.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from actnn.errors import UnsupportedError

# no public function tells whether a transform of torch.func is at work
_transforming = torch._C._are_functorch_transforms_active
_tracing_state = torch._C._get_tracing_state
# what runs whatever torch.compile returned
COMPILER, COMPILED_CALL = "torch._dynamo.eval_frame", "compile_wrapper"
WITHOUT_CODES = (
    "torch.compile was given a model, or a part of one, that QModule converted in place: what it compiles keeps no "
    "codes. Compile what QModule returned, which runs with codes and uncompiled, or a plain model by "
    "actnn.compile(model)."
)


def traced() -> bool:
    """Tell whether a compiler, a tracer or a transform runs the present code."""
    return bool(torch.compiler.is_compiling() or _tracing_state() is not None or _transforming())


def traced_with(x: Any) -> bool:
    """Tell whether something other than autograd computes with a tensor: what records or transforms functions.

    As ``traced``, in fewer calls: exporters that are no compiler hand tensors of a class of their own on.
    """
    if type(x) is not Tensor:
        return traced()
    return bool(torch.compiler.is_dynamo_compiling() or _tracing_state() is not None or _transforming())


def symbolic(x: Any) -> bool:
    """Tell whether an input stands for a tensor, where torch.fx records what is done with it."""
    return isinstance(x, Proxy)


def by_compiled_code() -> bool:
    """Tell whether the present code was called by what torch.compile made."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        # by its code: to look at the variables of a frame would hold them, and with them tensors, as long as it runs
        if frame.f_code.co_name == COMPILED_CALL and frame.f_globals.get("__name__") == COMPILER:
            return True
        frame = frame.f_back
    return False


def exporting() -> bool:
    """Tell whether torch.export runs the present code; versions of torch that cannot tell never say so."""
    return bool(getattr(torch.compiler, "is_exporting", bool)())


def tell_of_lost_codes() -> None:
    """Warn where torch.compile traces a layer whose codes are lost by that."""
    if torch.compiler.is_dynamo_compiling() and not exporting():
        _tell()


def _tell() -> None:
    warnings.warn(WITHOUT_CODES, UserWarning, stacklevel=2)


# lets it run while torch.compile traces, leaving nothing in the graph: torch.compiler.assume_constant_result would set
# it, and load a compiler that takes seconds to import
_tell._dynamo_marked_constant = True  # type: ignore[attr-defined]


def check_uncompiled(model: nn.Module) -> None:
    """Raise UnsupportedError where a model, or a part of it, was compiled already."""
    for name, module in model.named_modules():
        # the type itself is loaded with a compiler that takes seconds to import
        compiled = type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None
        if compiled:
            raise UnsupportedError(
                f"{name or 'the model'!r} was compiled before it was converted, and what a compiler made of it keeps "
                "no codes: expected a model that is not compiled. Convert first: torch.compile(actnn.QModule(model))."
            )


def check_precision(model: nn.Module, exact: Any) -> None:
    """Raise UnsupportedError where a parameter that learns is of double precision, unless its module stays exact."""
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dtype == torch.float64 and parameter.requires_grad and not exact(path, module):
                full = f"{path}.{name}" if path else name
                raise UnsupportedError(
                    f"the parameter {full!r} is of type float64: expected float32, float16 or bfloat16, of which codes "
                    f"are made. Call model.float() first, or leave its layer exact with exact=[{path or '*'!r}]."
                )
