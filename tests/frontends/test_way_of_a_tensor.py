"""How many files a tensor goes through in one layer's forward: those of calls within calls that are handed one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from frameworks import Framework, numbers

MOST_FILES = 8
PACKAGE = "/actnn/"
LAYERS = ("Conv2d", "BatchNorm2d", "ReLU")
# from the first, which makes plans, to one with plans that neither measures gradients nor counts what is kept
STEPS = 7


class Ways:
    """A profiler of Python that notes the longest way down of each layer whose forward it sees."""

    def __init__(self, framework: Framework, layers: list[Any]) -> None:
        self.longest: dict[str, list[str]] = {}
        self.files: set[str] = set()
        self._tensor, self._layers = type(framework.tensor([0.0])), layers
        self._calls: list[tuple[FrameType, str | None]] = []
        self._layer: Any = None

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self._enter(frame)
        elif event == "return" and self._calls and self._calls[-1][0] is frame:
            self._calls.pop()

    def _enter(self, frame: FrameType) -> None:
        path, owner = Path(frame.f_code.co_filename).as_posix(), frame.f_locals.get("self")
        if PACKAGE not in path:
            return
        if not self._calls:
            if not any(owner is layer for layer in self._layers):
                return
            self._layer = owner
        handed = any(self._is_tensor(value) for value in frame.f_locals.values())
        self._calls.append((frame, path.rpartition(PACKAGE)[2] if handed else None))
        way = list(dict.fromkeys(file for _, file in self._calls if file is not None))
        self.files.update(way)
        kind = type(self._layer).__name__
        self.longest[kind] = max(self.longest.get(kind, []), way, key=len)

    def _is_tensor(self, value: Any) -> bool:
        if isinstance(value, tuple | list):
            return any(self._is_tensor(part) for part in value)
        return isinstance(value, self._tensor | np.ndarray)


def normalised(framework: Framework) -> Iterator[Any]:
    """Yield two layers of each kind, the first ones before any code is shared."""
    for channels in (3, 8):
        yield framework.layer("Conv2d", channels, 8, 3, padding=1)
        yield framework.layer("BatchNorm2d", 8)
        yield framework.layer("ReLU")


@pytest.fixture
def profiled() -> Iterator[Callable[[Any], None]]:
    """Let a test set the profiler of this thread, and put back what was there."""
    before = sys.getprofile()
    yield sys.setprofile
    sys.setprofile(before)


def test_no_layer_hands_a_tensor_through_more_than_eight_files(framework: Framework, profiled):
    model = framework.compressed(framework.sequential(*normalised(framework)), 2, level="L3")
    x = numbers((4, 3, 16, 16))
    kinds = {f"Q{framework.type_name(kind)}" for kind in LAYERS}
    ways = Ways(framework, [layer for _, layer in framework.layers(model) if type(layer).__name__ in kinds])
    for _ in range(STEPS):
        profiled(ways)
        framework.step(model, x)
        profiled(None)
    assert set(ways.longest) == kinds
    # from a layer down to a kernel
    assert {"operations/kept.py", "kernels/native/codes.py", "kernels/native/batch_norm.py"} <= ways.files
    assert {kind: way for kind, way in ways.longest.items() if len(way) > MOST_FILES} == {}
