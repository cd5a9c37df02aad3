"""What functions without a rule have autograd save, as codes: ``config.other_bits``.

A saved-tensor hook is in place while the model's forward runs in training, unless somebody else's is: Paddle allows one
pair. It takes what functions of Paddle save that a layer's own code calls. What our own functions and those with rules
save is left alone, and so is what an operator saves: no code of Paddle's tells which one it is. Parameters, buffers,
the model's inputs, small tensors, and views that do not lie densely stay too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import paddle
from paddle import Tensor, nn

from actnn.operations.others import Coded, keep_other, sensitive, tensors_in
from actnn.paddle.door.calls import calls
from actnn.paddle.hooks import apart
from actnn.paddle.memory import KeptBytes
from actnn.paddle.tensors import ARRAYS, FLOATING
from actnn.session.saved import Left
from actnn.session.session import Session

OF_PADDLE = str(Path(paddle.__file__).parent)


class Wanted(NamedTuple):
    """A code, and whether the tensor in whose place it is wants a gradient."""

    coded: Coded
    gradient: bool


class OtherCodes(KeptBytes):
    """Codes what functions without a rule have autograd save while it is entered; counts all of it if asked to."""

    purpose, instead = "other_bits codes what functions save", "other_bits = None"

    def __init__(self, model: nn.Layer, session: Session, counts: bool) -> None:
        super().__init__(model)
        self._session, self._counts = session, counts
        self._own = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())}

    def takes(self, inputs: Any) -> None:
        """Leave the model's inputs as they are."""
        self._own |= {x.data_ptr() for x in tensors_in(inputs, Tensor) if x.is_dense()}

    def _pack(self, x: Tensor) -> Any:
        coded = self._coded(x)
        if coded is None:
            return self._note(x) if self._counts else Left.of(ARRAYS, apart(x))
        if self._counts:
            for own in coded.kept.tensors:
                if own is not None:
                    self._blocks.count(own.data_ptr(), ARRAYS.nbytes(own))
        return Wanted(coded, ARRAYS.wants_gradient(x))

    def _unpack(self, kept: Left | Wanted) -> Tensor:
        if isinstance(kept, Left):
            left: Tensor = kept.unchanged(ARRAYS)
            return left
        x: Tensor = kept.coded.value()
        x.stop_gradient = not kept.gradient
        return x

    def _coded(self, x: Tensor) -> Coded | None:
        frames = calls.frames
        if not frames or not frames[-1].active or frames[-1].session is not self._session or self._stays(x):
            return None
        code = sys._getframe(2).f_code
        name = code.co_name.strip("_")
        if not code.co_filename.startswith(OF_PADDLE) or sensitive(name, ()):
            return None
        with paddle.no_grad(), calls.closed(frames):
            return keep_other(ARRAYS, x.detach(), self._session, frames[-2].name, name)

    def _stays(self, x: Tensor) -> bool:
        # Paddle reads what comes back by strides and offset of what left, as if it still lay in the same memory
        movable = x.is_dense() and x.is_contiguous() and x.offset == 0
        return x.dtype not in FLOATING or not movable or x.data_ptr() in self._own
