"""What a training step of torch learns from: inputs, and labels where the model does not compute its own loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from actnn.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

# what the further outputs of a network with several heads weigh in its loss, as in the paper of GoogLeNet
AUXILIARY = 0.3


class Batch(NamedTuple):
    """What a model is called with; ``labels`` is None where what it is called with by name holds them."""

    given: tuple[Tensor, ...]
    named: Mapping[str, Tensor]
    labels: Tensor | None

    def outputs(self, model: Any) -> Any:
        """Return what a model makes of the batch."""
        return model(*self.given, **self.named)

    def loss(self, outputs: Any) -> Tensor:
        """Return the model's own loss, or the cross entropy of what it returned."""
        from torch.nn import functional

        if self.labels is None:
            own: Tensor = outputs.loss
            return own
        first, *others = outputs if isinstance(outputs, tuple) else (outputs,)
        try:
            loss = functional.cross_entropy(first, self.labels)
            for other in others:
                loss = loss + AUXILIARY * functional.cross_entropy(other, self.labels)
        except IndexError as problem:
            raise ConfigError(
                f"the model tells {first.shape[1]} classes apart, and there are labels of more: let the function that "
                "makes it take an argument named classes."
            ) from problem
        return loss

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of the batch."""
        return [*self.given, *self.named.values(), *([] if self.labels is None else [self.labels])]
