"""timm's training loop: ``loss_scaler = SessionScaler(model)`` goes where its scripts have their loss scaler.

``CheckpointSaver(…, amp_scaler=loss_scaler)`` and ``resume_checkpoint(…, loss_scaler=loss_scaler)`` then save and
restore the session's state, and ``update_summary`` logs ``figures(model)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from actnn.integrations.session import figures, missing
from actnn.model.checkpoint import PROCESSES
from actnn.torch.checkpoint import SessionStates

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

try:
    from timm.utils.clip_grad import dispatch_clip_grad
except ImportError as problem:
    raise missing("timm") from problem

__all__ = ["SessionScaler", "figures"]


class SessionScaler:
    """A loss scaler of timm's kind, around another one where there is one, whose state holds that of the session.

    timm saves in the first process alone, so its state is that of all after resuming.
    """

    state_dict_key = "actnn"

    def __init__(self, model: nn.Module, scaler: Any = None) -> None:
        self._states, self._scaler = SessionStates(model, generators=True), scaler

    def __call__(
        self,
        loss: Tensor,
        optimizer: Optimizer,
        clip_grad: float | None = None,
        clip_mode: str = "norm",
        parameters: Iterable[Tensor] | None = None,
        create_graph: bool = False,
        need_update: bool = True,
    ) -> None:
        """Do the rest of a step: backward, clipping and update."""
        if self._scaler is not None:
            self._scaler(loss, optimizer, clip_grad, clip_mode, parameters, create_graph, need_update)
            return
        loss.backward(create_graph=create_graph)
        if need_update:
            if clip_grad is not None:
                dispatch_clip_grad(parameters, clip_grad, mode=clip_mode)
            optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the session, and of the scaler within."""
        scaler = None if self._scaler is None else self._scaler.state_dict()
        return {"format": PROCESSES, "processes": [self._states.own_state()], "scaler": scaler}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was taken."""
        self._states.load_state_dict(state)
        if self._scaler is not None and state["scaler"] is not None:
            self._scaler.load_state_dict(state["scaler"])
