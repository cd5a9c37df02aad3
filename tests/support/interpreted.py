"""The kernels of Triton in its interpreter, on arrays of numpy: what tests of kernels run through."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch

from actnn.kernels.contract import BatchNorm, Block, RowNorm
from actnn.kernels.triton import Triton
from actnn.torch.tensors import ARRAYS, TorchArrays

# classes without a dataclass's fields, whose arrays lie in slots
CALLS = (BatchNorm, RowNorm)


class LentTensors(TorchArrays):
    """torch tensors in memory of a numpy lender, so that its guards watch over them."""

    def __init__(self, lender: Any) -> None:
        self._lender = lender

    def empty(self, shape, dtype, like):
        return (
            ARRAYS.empty(shape, dtype, like) if dtype == "bfloat16" else tensor(self._lender.empty(shape, dtype, None))
        )

    def bytes(self, count, like):
        return tensor(self._lender.empty((count,), "uint8", None))


def tensor(x: Any) -> Any:
    """Return a tensor that shares the memory of a numpy array; anything else as it is, with the arrays in it shared."""
    if isinstance(x, np.ndarray):
        return torch.from_numpy(x)
    if isinstance(x, tuple) and type(x) is tuple:
        return tuple(map(tensor, x))
    if isinstance(x, CALLS):
        parts = (
            tensor(getattr(x, name)) for name in x.__init__.__code__.co_varnames[1 : x.__init__.__code__.co_argcount]
        )
        return type(x)(*parts)
    if is_dataclass(x) and any(isinstance(getattr(x, field.name), np.ndarray) for field in fields(x)):
        return replace(x, **{field.name: tensor(getattr(x, field.name)) for field in fields(x)})
    return x


def array(x: Any) -> Any:
    """Return a numpy array that shares the memory of a tensor."""
    if isinstance(x, torch.Tensor):
        return x.numpy()
    return tuple(map(array, x)) if isinstance(x, tuple) else x


class Interpreted:
    """A backend whose rows take numpy arrays, and run Triton's kernels on them."""

    name = "triton"
    any_shape = True

    def __init__(self) -> None:
        self._backend = Triton()

    def __getattr__(self, row: str) -> Any:
        call = getattr(self._backend, row)

        def converted(arrays: Any, *arguments: Any, **named: Any) -> Any:
            if row == "divide":
                return self.divided(arrays, *arguments)
            lender = arrays if isinstance(arrays, TorchArrays) else LentTensors(arrays)
            if lender is arrays:
                return call(arrays, *arguments, **named)
            tensors = tuple(map(tensor, arguments)), {name: tensor(value) for name, value in named.items()}
            result = array(call(lender, *tensors[0], **tensors[1]))
            for given in (*arguments, *named.values()):
                if isinstance(given, np.ndarray) and isinstance(result, np.ndarray) and shares(given, result):
                    return given
            return result

        return converted

    def divided(self, layout, division) -> None:
        """Divide planes where an accelerator does, from the ranges that the host has."""
        block = layout.block
        memory = torch.from_numpy(block.stretch.viewed(block.address, Block.nbytes(layout.samples)))
        self._backend.divide_on_device(ARRAYS, memory, layout, division)


def shares(x: np.ndarray, y: np.ndarray) -> bool:
    """Tell whether two arrays are one."""
    return x.ctypes.data == y.ctypes.data and x.nbytes == y.nbytes and x.shape == y.shape
