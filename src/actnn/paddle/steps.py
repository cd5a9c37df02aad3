"""How Paddle does what the steps of a converted model ask for."""

from __future__ import annotations

import sys
import warnings
from inspect import unwrap
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import backward_mode

from actnn.model.steps import Steps
from actnn.paddle.memory import KeptBytes, trim_caches
from actnn.paddle.others import OtherCodes
from actnn.paddle.swapping import SwappedActivations

# the functions of Paddle in which a backward runs, in the thread that called them
BACKWARDS = frozenset(unwrap(function).__code__ for function in (Tensor.backward, paddle.grad, backward_mode.backward))


class PaddleSteps(Steps):
    """The steps of a converted model of Paddle."""

    def recording(self) -> bool:
        """Tell whether autograd records operations now."""
        return bool(paddle.is_grad_enabled())

    def in_backward(self) -> bool:
        """Tell whether the running code was called by a backward."""
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code in BACKWARDS:
                return True
            frame = frame.f_back  # type: ignore[assignment]
        return False

    def trim_caches(self, threshold: float) -> None:
        """Empty the caches of accelerators of which more than a share is not in use."""
        trim_caches(self.model, threshold)

    def swapping(self) -> SwappedActivations:
        """Return a context in which what autograd saves leaves memory."""
        return SwappedActivations(self.model, self.session, self.session.whole_model())

    def counting(self) -> KeptBytes | None:
        """Return a context that counts what autograd keeps; None, with a warning, where that is not possible now."""
        kept = OtherCodes(self.model, self.session, counts=True) if self._codes_others else KeptBytes(self.model)
        if kept.possible():
            return kept
        warnings.warn(
            "saved-tensor hooks are in place, of which Paddle allows one pair: what this forward keeps for backward "
            "cannot be measured against memory=. The next forward without them will be.",
            UserWarning,
            stacklevel=2,
        )
        return None

    @property
    def _codes_others(self) -> bool:
        policy = self.session.policy
        return policy.compress and policy.other_bits is not None

    def takes(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Note what the whole model was called with: its user holds that anyway."""
        if isinstance(context := self._calls.context, OtherCodes):
            context.takes([arguments, options])

    def _context(self) -> Any:
        found = super()._context()
        if found is not None or not self._codes_others:
            return found
        codes = OtherCodes(self.model, self.session, counts=False)
        return codes if codes.possible() else None

    def indices(self, given: Any, num_samples: int | None) -> Any:
        """Return positions in the training set as an array on the host."""
        if isinstance(given, Tensor):
            # numpy knows no bfloat16; floats are refused, but with a reason
            given = (given.astype(paddle.float32) if given.is_floating_point() else given).numpy()
        return super().indices(given, num_samples)
