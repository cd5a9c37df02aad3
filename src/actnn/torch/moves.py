"""Copies between an accelerator and pinned host memory, on a stream of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from actnn.errors import UnsupportedError


class TorchMoves:
    """The moves of the kernels' contract for one device, by its streams and events."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module = torch.get_device_module(device)
        if not hasattr(self._module, "Stream"):
            raise UnsupportedError(
                f"codes on {device} cannot be swapped: torch has no streams for such a device. Choose a level without "
                "swapping, such as 'L3'."
            )
        self._side = self._module.Stream(device)
        # only memory that cannot be moved is copied beside other work
        self._pinned = device.type != "cpu"

    def out(self, buffer: Tensor) -> tuple[Tensor, Any]:
        host = torch.empty(buffer.shape, dtype=buffer.dtype, device="cpu", pin_memory=self._pinned)
        # what is to be copied may still be in the making
        self._side.wait_stream(self._module.current_stream(self._device))
        return host, self._copy(host, buffer)

    def back(self, host: Tensor) -> tuple[Tensor, Any]:
        with self._module.stream(self._side):
            buffer = torch.empty(host.shape, dtype=host.dtype, device=self._device)
        return buffer, self._copy(buffer, host)

    def arrived(self, event: Any) -> bool:
        arrived: bool = event.query()
        return arrived

    def finish(self, event: Any) -> None:
        event.synchronize()

    def wait(self, buffer: Tensor, event: Any) -> None:
        stream = self._module.current_stream(self._device)
        stream.wait_event(event)
        if buffer.device.type != "cpu":
            # its memory belongs to the side stream, and may not be used again before this one is done with it
            buffer.record_stream(stream)

    def _copy(self, target: Tensor, source: Tensor) -> Any:
        with self._module.stream(self._side):
            target.copy_(source, non_blocking=True)
            event = self._module.Event()
            event.record(self._side)
        return event
