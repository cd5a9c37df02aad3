"""Files of tensors and plain data, for Paddle, whose own are pickles: reading one of those runs code from it.

A file is one of numpy's archives: an array for each tensor, and one that holds the rest as JSON, in which a value that
JSON has no word for is a pair of its kind and its content.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from actnn.errors import ConfigError
from actnn.paddle.tensors import NAMES

PLAIN = "plain"
MAPPING, TUPLE, TENSOR = "mapping", "tuple", "tensor"
Arrays = dict[str, NDArray[Any]]


def packed(value: Any) -> memoryview:
    """Return the content of a file that holds a value."""
    arrays: Arrays = {}
    text = json.dumps(described(value, arrays, "checkpoint"))
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{PLAIN: np.frombuffer(text.encode(), np.uint8)}, **arrays)
    return buffer.getbuffer()


def unpacked(path: str | os.PathLike[str]) -> Any:
    """Return what a file holds, tensors on the host; raise ValueError where it is none of these files."""
    with np.load(path, allow_pickle=False) as archive:
        if not isinstance(archive, np.lib.npyio.NpzFile) or PLAIN not in archive:
            raise ValueError("it is no archive of tensors and plain data")
        return restored(json.loads(archive[PLAIN].tobytes()), archive)


def described(value: Any, arrays: Arrays, place: str) -> Any:
    """Return a value as JSON takes it; its tensors go to ``arrays``."""
    if isinstance(value, Tensor):
        name = f"tensor{len(arrays)}"
        # bfloat16, which numpy does not know, comes as whole numbers of its width
        arrays[name] = value.numpy()
        return [TENSOR, [name, NAMES.get(value.dtype)]]
    if isinstance(value, Mapping):
        return [MAPPING, [[key, described(each, arrays, f"{place}[{key!r}]")] for key, each in value.items()]]
    if isinstance(value, list | tuple):
        content = [described(each, arrays, f"{place}[{index}]") for index, each in enumerate(value)]
        return [TUPLE if isinstance(value, tuple) else "list", content]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(
        f"{place} is a {type(value).__name__}, which a checkpoint cannot hold: expected tensors, numbers, words, lists "
        "and mappings of them."
    )


def restored(value: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Return what was described."""
    if not isinstance(value, list):
        return value
    kind, content = value
    if kind == TENSOR:
        name, dtype = content
        tensor = paddle.to_tensor(arrays[name], place=paddle.CPUPlace())
        return tensor.view(dtype) if dtype == "bfloat16" else tensor
    if kind == MAPPING:
        return {key: restored(each, arrays) for key, each in content}
    found = [restored(each, arrays) for each in content]
    return tuple(found) if kind == TUPLE else found
