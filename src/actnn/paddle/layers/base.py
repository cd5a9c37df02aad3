"""What all compressed layers share."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor, nn

from actnn.errors import UnsupportedError
from actnn.model.layers import CompressedLayer
from actnn.paddle.door.calls import calls
from actnn.paddle.tensors import ARRAYS


class Compressed(CompressedLayer, nn.Layer):
    """A compressed layer of Paddle, whose parameters are ``weight`` and ``bias`` where it has any."""

    tensors = ARRAYS

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the layer with the functional door closed: what it does is its own."""
        session, frames = self.site.session, calls.frames
        if session.over and paddle.in_dynamic_mode():
            session.begin_late()
        if not frames:
            return super().__call__(*arguments, **options)
        with calls.closed(frames):
            return super().__call__(*arguments, **options)

    def plainly(self, *arguments: Any, **options: Any) -> Tensor:
        """Return what the plain layer makes of an input."""
        y: Tensor = self.plain.forward(self, *arguments, **options)
        return y

    def records(self, x: Tensor) -> bool:
        """Tell whether autograd will want a gradient through this call, and codes are to serve it."""
        if not paddle.in_dynamic_mode():
            self.check_static()
            return False
        if not (paddle.is_grad_enabled() and self.compresses()) or 0 in x.shape:
            return False
        if not x.stop_gradient:
            return True
        # by name: the statistics that BatchNorm has among its parameters do not learn
        own = (getattr(self, name, None) for name in ("weight", "bias"))
        return any(parameter is not None and not parameter.stop_gradient for parameter in own)

    def compresses(self) -> bool:
        """Tell whether this layer's level lets it keep codes."""
        return self.site.session.policy.compress

    def check_static(self) -> None:
        """Raise UnsupportedError where this layer is to train in a static graph."""
        if self.training and self.compresses():
            raise UnsupportedError(
                f"{self.site.name!r} is to train in a static graph, where nothing can be kept as codes: expected "
                "dynamic mode. Call paddle.disable_static(), train without paddle.jit.to_static, or call "
                "model.restore() first."
            )


def channels_last(data_format: str) -> bool:
    """Tell whether a data format has its channels on the last axis."""
    return data_format.endswith("C") and data_format != "NC"
