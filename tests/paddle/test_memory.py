"""Memory that a step may not change, and memory that caches of accelerators hold unused."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from paddle import Tensor, nn

import actnn
from actnn.paddle import memory
from actnn.paddle.tensors import ARRAYS


class Overwriting(nn.Layer):
    """Changes what backward needs: a small tensor, or a weight."""

    def __init__(self, small: bool) -> None:
        super().__init__()
        self.small, self.linear = small, nn.Linear(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        """Return something whose backward needs what this changes."""
        y = self.linear(x)
        changed = self.linear.weight
        if self.small:
            changed = self.linear.weight[0, :8].exp()
            y = y.sum() + changed * changed.sin()
        with paddle.no_grad():
            changed.add_(changed)
        return y


@pytest.fixture
def gradients_on_again():
    """Make up for Paddle, which records nothing more once a backward has failed."""
    yield
    paddle.set_grad_enabled(True)


@pytest.mark.usefixtures("gradients_on_again")
@pytest.mark.parametrize("small", [True, False], ids=["a small tensor", "a weight"])
def test_what_stays_in_memory_may_not_be_overwritten(small):
    x = paddle.randn([64, 256])
    x.stop_gradient = False
    with pytest.raises(RuntimeError, match="inplace"):
        Overwriting(small)(x).sum().backward()
    paddle.set_grad_enabled(True)
    # Paddle raises an error of its own for what a hook raises, with the words of that
    with pytest.raises(OSError, match=r"SessionError: .* changed in place"):
        actnn.QModule(Overwriting(small), level="swap")(x).sum().backward()


class Cache:
    """An accelerator's cache, as Paddle tells of it."""

    def __init__(self, reserved: int, used: int) -> None:
        self.memory_reserved, self.memory_allocated = (lambda index: reserved), (lambda index: used)
        self.emptied = 0

    def empty_cache(self) -> None:
        self.emptied += 1


@pytest.mark.parametrize(
    ("reserved", "used", "emptied"), [(100, 79, 1), (100, 80, 0), (100, 100, 0), (100, 0, 1), (0, 0, 0)]
)
def test_a_cache_is_emptied_where_more_than_a_share_of_it_is_not_in_use(monkeypatch, reserved, used, emptied):
    cache = Cache(reserved, used)
    place = SimpleNamespace(is_gpu_place=lambda: True, gpu_device_id=lambda: 0)
    monkeypatch.setattr(memory.paddle.device, "cuda", cache)
    memory.trim_caches(SimpleNamespace(parameters=lambda: [SimpleNamespace(place=place)] * 2), 0.2)
    assert cache.emptied == emptied


@pytest.mark.parametrize(("level", "asked"), [("L2", 0), ("L3.1", 1), ("L5", 1)])
def test_a_forward_trims_where_its_level_says_so(monkeypatch, level, asked):
    seen = []
    monkeypatch.setattr("actnn.paddle.steps.trim_caches", lambda model, threshold: seen.append(threshold))
    actnn.QModule(nn.Linear(2, 2), level=level)(paddle.randn([1, 2]))
    assert seen == [0.2] * asked


def test_the_host_has_no_cache_to_empty(monkeypatch):
    monkeypatch.setattr(memory.paddle.device, "cuda", SimpleNamespace())
    memory.trim_caches(nn.Linear(2, 2), 0.0)


def test_a_tensor_may_end_with_another():
    """Such an end never returned where both tensors were made by from_dlpack: codes in slabs, behind tickets."""
    held = [ARRAYS.from_numpy(np.zeros(8, np.uint8))]
    ticket = ARRAYS.ticket(7, lambda number: held.clear())
    assert ticket.tolist() == [7]
    del ticket
    assert not held


def test_a_tensor_shares_the_memory_of_an_array_and_holds_it():
    array = np.zeros(8, np.uint8)
    gone = weakref.ref(array)
    x = ARRAYS.from_numpy(array)
    array[3] = 5
    assert x[3].item() == 5
    assert x.data_ptr() == array.ctypes.data
    del array
    assert gone() is not None
    del x
    assert gone() is None
