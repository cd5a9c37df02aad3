"""Copies between an accelerator and host memory, one after another with the device's other work."""

from __future__ import annotations

from typing import Any

from paddle import Tensor


class PaddleMoves:
    """The moves of the kernels' contract for one device; a copy is done when its call returns."""

    def __init__(self, place: Any) -> None:
        self._place = place

    def out(self, buffer: Tensor) -> tuple[Tensor, None]:
        return buffer.cpu(), None

    def back(self, host: Tensor) -> tuple[Tensor, None]:
        return host.to(self._place), None

    def arrived(self, event: None) -> bool:
        return True

    def finish(self, event: None) -> None:
        pass

    def wait(self, buffer: Tensor, event: None) -> None:
        pass
