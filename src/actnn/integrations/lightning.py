"""Lightning: ``Trainer(callbacks=[ActnnCallback()])`` converts the LightningModule in place."""

from __future__ import annotations

from typing import Any

from actnn.errors import SessionError
from actnn.integrations.session import figures, missing
from actnn.torch.checkpoint import SessionStates
from actnn.torch.convert import QModule

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as problem:
    raise missing("lightning") from problem


class ActnnCallback(Callback):
    """Converts a LightningModule, logs what is kept, and saves and restores the session's state.

    ``settings`` are those of QModule. Many processes: all take part in saving, as Lightning does.
    """

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.wrapper: QModule | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Convert the module before optimizers are made and processes share it out."""
        if stage == "fit" and self.wrapper is None:
            self.wrapper = QModule(pl_module, **self.settings)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log what the step kept."""
        for name, value in figures(self._converted()).items():
            pl_module.log(name, float(value))

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all processes for a checkpoint."""
        return {} if self.wrapper is None else SessionStates(self.wrapper).state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where a checkpoint was taken."""
        if self.wrapper is not None and state_dict:
            SessionStates(self.wrapper).load_state_dict(state_dict)

    def _converted(self) -> QModule:
        if self.wrapper is None:
            raise SessionError("ActnnCallback was called before setup(): give it to the Trainer that fits the model.")
        return self.wrapper
