"""What all compressed layers share."""

from __future__ import annotations

from collections.abc import Iterable

import paddle
from paddle import Tensor

from actnn.errors import UnsupportedError
from actnn.model.layers.base import CompressedLayer
from actnn.paddle.tensors import ARRAYS


class Compressed(CompressedLayer):
    """A compressed layer of Paddle."""

    tensors = ARRAYS

    def own_parameters(self) -> Iterable[Tensor]:
        """Return this layer's parameters; the statistics that BatchNorm has among them do not learn."""
        own = (getattr(self, "weight", None), getattr(self, "bias", None))
        return [parameter for parameter in own if parameter is not None]

    def records(self, x: Tensor) -> bool:
        """Tell whether autograd will want a gradient through this call, and codes are to serve it."""
        if paddle.in_dynamic_mode():
            return super().records(x)
        if self.training and self.site.session.policy.compress:
            raise UnsupportedError(
                f"{self.site.name!r} is to train in a static graph, where nothing can be kept as codes: expected "
                "dynamic mode. Call paddle.disable_static(), train without paddle.jit.to_static, or call "
                "model.restore() first."
            )
        return False


def channels_last(data_format: str) -> bool:
    """Tell whether a data format has its channels on the last axis."""
    return data_format.endswith("C") and data_format != "NC"
