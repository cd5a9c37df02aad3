"""What all hooks on what autograd saves have in common: Paddle allows one pair of them at a time."""

from __future__ import annotations

from typing import ClassVar

from paddle import Tensor
from paddle.autograd import saved_tensors_hooks

from actnn.errors import UnsupportedError


class SavedTensorHooks(saved_tensors_hooks):
    """A pair of hooks that tells clearly where somebody else puts another pair in place meanwhile."""

    purpose: ClassVar[str]
    instead: ClassVar[str]

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        _, problem, _ = raised
        if isinstance(problem, ValueError) and "one pair of hooks" in str(problem):
            raise UnsupportedError(
                "this model puts saved-tensor hooks in place, of which Paddle allows one pair, while "
                f"{self.purpose}: use recompute with use_reentrant=True, or {self.instead}."
            ) from problem


def apart(x: Tensor) -> Tensor:
    """Return the same memory outside of the graph: the tensor itself would hold the graph, and the graph it.

    It says whether a gradient is wanted of it, as recompute asks of what it saved.
    """
    alone = x.detach()
    alone.stop_gradient = x.stop_gradient
    return alone
