"""Memory as people ask for it while they train: what some tensors take, and what this process uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from actnn.amounts import readable
from actnn.errors import UnsupportedError

STATUS = Path("/proc/self/status")
# the arrays that a sparse tensor is made of, by the name of its layout
SPARSE = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
}


def compute_tensor_bytes(tensors: Any) -> int:
    """Return the bytes of a tensor's elements, or of all tensors that lists, tuples, dictionaries and so on hold.

    Tensors of any framework, and of any type of element; numbers, strings and None take nothing.
    """
    return sum(_bytes_of(tensor) for tensor in _tensors(tensors))


def memory_usage(device_bytes: int, print_info: bool) -> int:
    """Return what a program uses: of its accelerators where it has tensors there, else what the process holds."""
    used = device_bytes or resident_bytes()
    if print_info:
        where = "allocated on accelerators" if device_bytes else "resident in this process"
        print(f"{readable(used)} {where}")  # noqa: T201
    return used


def resident_bytes() -> int:
    """Return the memory that this process uses; raises UnsupportedError where the system does not tell."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError as error:
        raise UnsupportedError(f"this system does not tell how much memory a process uses ({error}).") from error
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def _tensors(found: Any) -> Iterator[Any]:
    """Yield what has elements, out of containers in containers."""
    if _is_tensor(found):
        yield found
    elif isinstance(found, Mapping):
        for value in found.values():
            yield from _tensors(value)
    elif is_dataclass(found) and not isinstance(found, type):
        for field in fields(found):
            yield from _tensors(getattr(found, field.name))
    elif isinstance(found, Iterable) and not isinstance(found, (str, bytes)):
        for value in found:
            yield from _tensors(value)


def _is_tensor(found: Any) -> bool:
    return hasattr(found, "dtype") and (hasattr(found, "element_size") or hasattr(found, "itemsize"))


def _bytes_of(tensor: Any) -> int:
    if not hasattr(tensor, "element_size"):
        return int(tensor.nbytes)
    if parts := SPARSE.get(str(getattr(tensor, "layout", ""))):
        return sum(_bytes_of(getattr(tensor, part)()) for part in parts)
    return int(tensor.numel()) * int(tensor.element_size())
