"""Bytes of tensors in any container, and of this process."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import pytest

import actnn
from actnn.errors import UnsupportedError
from actnn.model import usage
from actnn.model.usage import compute_tensor_bytes, resident_bytes

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64")
Pair = namedtuple("Pair", "first second")


@dataclass
class Held:
    x: object
    name: str = "a name takes nothing"


@pytest.mark.parametrize(
    "container",
    [
        lambda a, b: [a, b],
        lambda a, b: (a, (b,)),
        lambda a, b: {"one": a, "two": [b]},
        lambda a, b: OrderedDict(one={"deep": (a, [b])}),
        lambda a, b: Pair(a, Held(b)),
        lambda a, b: iter([a, None, 3, "text", b"bytes", b]),
    ],
)
def test_tensors_in_any_container_are_counted(container):
    assert compute_tensor_bytes(container(np.zeros(10, np.float32), np.zeros((3, 4), np.int64))) == 40 + 96


def test_an_array_alone_and_nothing_at_all_are_counted():
    assert compute_tensor_bytes(np.zeros((2, 3), np.complex128)) == 96
    assert compute_tensor_bytes(None) == compute_tensor_bytes([]) == 0


@needs_torch
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_of_element_of_torch_is_counted(dtype):
    import torch

    x = torch.zeros(5, 7, dtype=getattr(torch, dtype))
    assert compute_tensor_bytes({"x": [x]}) == 35 * x.element_size()


@needs_torch
def test_a_sparse_tensor_counts_what_it_is_made_of():
    import torch

    dense = torch.eye(100)
    assert compute_tensor_bytes(dense.to_sparse()) == 100 * (2 * 8 + 4)
    assert compute_tensor_bytes(dense.to_sparse_csr()) == 101 * 8 + 100 * (8 + 4)


@needs_torch
def test_views_count_their_own_elements():
    import torch

    assert compute_tensor_bytes(torch.zeros(10, 10)[:3]) == 120


@pytest.mark.own_process
def test_this_process_uses_memory_that_grows_with_what_it_holds():
    before = resident_bytes()
    held = np.ones(32 * 2**20, np.uint8)
    assert resident_bytes() - before > 0.9 * held.nbytes


def test_a_system_that_does_not_tell_is_said_so(monkeypatch, tmp_path):
    monkeypatch.setattr(usage, "STATUS", tmp_path / "nothing")
    with pytest.raises(UnsupportedError, match="does not tell"):
        resident_bytes()


def test_without_an_accelerator_the_memory_of_the_process_counts(capsys):
    assert actnn.get_memory_usage(print_info=True) == pytest.approx(resident_bytes(), rel=0.1)
    assert "resident in this process" in capsys.readouterr().out


@needs_torch
def test_tensors_on_an_accelerator_count_where_there_are_some(monkeypatch, capsys):
    class Accelerator:
        is_available = is_initialized = staticmethod(lambda: True)
        device_count = staticmethod(lambda: 2)
        memory_allocated = staticmethod(lambda index: 1000 * (index + 1))

    import torch

    from actnn.torch import memory

    monkeypatch.setattr(memory, "ACCELERATORS", ("stand_in",))
    monkeypatch.setattr(torch, "stand_in", Accelerator, raising=False)
    assert memory.get_memory_usage(print_info=True) == actnn.get_memory_usage() == 3000
    assert "accelerators" in capsys.readouterr().out
