"""How torch does what the steps of a converted model ask for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from actnn.model.steps import Steps
from actnn.session.session import Session
from actnn.session.whole import Whole
from actnn.torch.counting import Count, Example, hooks_in_place, is_due
from actnn.torch.door.table import ModelDoor
from actnn.torch.memory import KeptBytes, trim_caches
from actnn.torch.others import OtherCodes
from actnn.torch.swapping import SwappedActivations

# steps of equal batches code as many numbers, but for what drops out
CLOSE = 0.01


class Counted:
    """What was counted in one step: kept in all, as codes and by parts; what exact training keeps is found later.

    ``elements`` is how many numbers the whole step coded, known once it is over: backwards may compute parts anew.
    """

    def __init__(self, kept: Count, step: int, example: Example | None) -> None:
        self.kept_bytes, self.coded_bytes, self.parts = kept.total, kept.coded_bytes, kept.parts
        self.step, self.example = step, example
        self.elements: int | None = None
        self.exact_bytes: int | None = None


class TorchSteps(Steps):
    """The steps of a converted model of torch."""

    def __init__(self, session: Session, model: nn.Module) -> None:
        super().__init__(session, model)
        self.door = ModelDoor(self)
        self._counted: Counted | None = None
        self._example: Example | None = None
        # what exact training keeps of the last example that was tried
        self._known: tuple[Example | None, int | None] = None, None

    def recording(self) -> bool:
        """Tell whether autograd records operations now."""
        return torch.is_grad_enabled()

    def in_backward(self) -> bool:
        """Tell whether the running code was called by a backward."""
        # what torch's own checkpointing asks: no public function tells it
        return bool(torch._C._current_graph_task_id() != -1)

    def trim_caches(self, threshold: float) -> None:
        """Empty the caches of accelerators of which more than a share is not in use."""
        trim_caches(self.model, threshold)

    def swapping(self) -> SwappedActivations:
        """Return a context in which what autograd saves leaves memory."""
        return SwappedActivations(self.model, self.session, self.session.whole_model())

    def counting(self) -> KeptBytes:
        """Return a context that counts what autograd keeps."""
        return OtherCodes(self.model, self.door, counts=True) if self.door.noting else Count(self.model, self.door)

    def _context(self) -> Any:
        found = super()._context()
        if found is not None or not self.door.noting or hooks_in_place():
            return found
        return OtherCodes(self.model, self.door, counts=False)

    def due(self) -> bool:
        """Tell whether what autograd keeps is to be counted in this step for the report's sake."""
        return self.session.policy.compress and is_due(self.begun) and not hooks_in_place()

    def takes(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Note what the whole model was called with, where this step is counted."""
        if isinstance(context := self._calls.context, OtherCodes):
            context.takes([arguments, options])
        if self._kept is not None:
            self._example = Example.of(self.model, [list(arguments), options])

    def counted(self, kept: Any) -> None:
        """Take what was counted in this step."""
        self._counted = Counted(kept, self.begun, self._example)

    def _begin(self) -> None:
        if self._counted is not None and self._counted.elements is None:
            self._counted.elements = self.session.coded_elements
        super()._begin()

    def whole(self) -> Whole | None:
        """Return what autograd keeps of the whole model; None where that was not counted."""
        found = self._counted
        if found is None:
            return None
        if found.exact_bytes is None and found.example is not None:
            if found.example.same(self._known[0]):
                found.exact_bytes = self._known[1]
            else:
                found.exact_bytes = found.example.exact_bytes(self.model, self.session)
                self._known = found.example, found.exact_bytes
        rows = self.session.report().exact_bytes
        scale = self.session.coded_elements / found.elements if found.elements else 1.0
        rest = found.kept_bytes - found.coded_bytes
        exact = int(rest + rows / scale) if found.exact_bytes is None else found.exact_bytes
        whole = Whole(found.kept_bytes, exact, found.coded_bytes, found.parts, found.step, found.exact_bytes is None)
        # a batch of another size since
        return whole if abs(scale - 1) < CLOSE or not scale else whole.scaled(scale)

    def indices(self, given: Any, num_samples: int | None) -> Any:
        """Return positions in the training set as an array on the host."""
        if isinstance(given, Tensor):
            # numpy knows no bfloat16; floats are refused, but with a reason
            given = (given.float() if given.is_floating_point() else given).detach().cpu().numpy()
        return super().indices(given, num_samples)
