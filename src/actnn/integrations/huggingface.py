"""Hugging Face's Trainer: ``compress(Trainer(…))``, or ``ActnnCallback()`` among its callbacks.

The model is converted in place and stays the trainer's own: saving, labels and generation work as before. The session's
state lies in ``trainer_state.json`` of every checkpoint.
"""

from __future__ import annotations

from typing import Any, TypeVar

from actnn.errors import SessionError
from actnn.integrations.session import figures, missing
from actnn.model.wrapper import model_of
from actnn.torch.checkpoint import SessionStates
from actnn.torch.convert import QModule

try:
    from transformers import DefaultFlowCallback, TrainerCallback, TrainerControl, TrainerState
    from transformers.trainer_callback import ExportableState
    from transformers.trainer_utils import SaveStrategy
    from transformers.utils.generic import can_return_loss, find_labels
except ImportError as problem:
    raise missing("transformers") from problem

AnyTrainer = TypeVar("AnyTrainer")


def compress(trainer: AnyTrainer, **settings: Any) -> AnyTrainer:
    """Let a trainer's model keep codes; ``settings`` are those of QModule. Returns the trainer."""
    callback = ActnnCallback(**settings)
    handler: Any = trainer.callback_handler  # type: ignore[attr-defined]
    # after what decides whether to save, and before the loggers, which are to find the figures
    first = next(place for place, each in enumerate(handler.callbacks) if isinstance(each, DefaultFlowCallback))
    handler.callbacks.insert(first + 1, callback)
    callback.convert(handler.model)
    if isinstance(handler.model, QModule):
        name_labels(trainer, type(model_of(handler.model)))
    return trainer


def name_labels(trainer: Any, model_class: type[Any]) -> None:
    """Tell a trainer of a wrapper which inputs are labels: it asks the class of its model, and would find none."""
    if trainer.args.label_names is None:
        trainer.label_names = find_labels(model_class)  # type: ignore[no-untyped-call]
    trainer.can_return_loss = can_return_loss(model_class)  # type: ignore[no-untyped-call]


class ActnnCallback(TrainerCallback, ExportableState):
    """Converts the model of a Trainer, logs what is kept, and saves and restores the session's state.

    Loggers that the trainer calls before this callback do not see its figures: ``compress`` puts it first.
    """

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.wrapper: QModule | None = None
        self._model: Any = None
        self._states: dict[str, Any] | None = None

    def convert(self, model: Any) -> None:
        """Convert a model in place, once."""
        if isinstance(model, QModule):
            self.wrapper = model
        elif self.wrapper is None or self._model is not model:
            self._model, self.wrapper = model, QModule(model, **self.settings)

    def on_init_end(self, args: Any, state: TrainerState, control: TrainerControl, model: Any = None, **_: Any) -> None:
        """Convert the model of a trainer that was given one."""
        if model is not None:
            self.convert(model)

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, model: Any = None, **_: Any
    ) -> None:
        """Convert a model that was made only now, and go on where a checkpoint was taken."""
        self.convert(model)
        if state.global_step == 0:
            return
        callbacks: Any = state.stateful_callbacks
        saved = callbacks.get(type(self).__name__)
        states = saved["attributes"]["states"] if isinstance(saved, dict) else None
        if states is None:
            raise SessionError(
                "the checkpoint to resume from was saved without actnn, and says nothing of its session. Load its "
                "weights and begin a new run, or resume without actnn."
            )
        SessionStates(self._converted()).load_state_dict(states)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Ask all processes for their states: only the first one saves."""
        if control.should_save:
            self._states = SessionStates(self._converted()).state_dict()

    on_epoch_end = on_step_end

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Ask all processes for their states where the evaluation decides whether a checkpoint is saved."""
        if args.save_strategy == SaveStrategy.BEST:
            self._states = SessionStates(self._converted()).state_dict()

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, logs: dict[str, float] | None = None, **_: Any
    ) -> None:
        """Add what is kept to the figures of a training step."""
        if logs is not None and "loss" in logs:
            found = figures(self._converted())
            logs.update(found)
            state.log_history[-1].update(found)

    def state(self) -> dict[str, Any]:
        """Return what ``trainer_state.json`` holds of this callback."""
        return {"args": self.settings, "attributes": {"states": self._states}}

    def _converted(self) -> QModule:
        assert self.wrapper is not None
        return self.wrapper
