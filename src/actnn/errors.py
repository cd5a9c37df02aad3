"""The errors that actnn raises: every one says what was given, what was expected and what to do."""


class ActnnError(Exception):
    """Base of all errors of this package."""


class ConfigError(ActnnError, ValueError):
    """A setting that does not exist or cannot take effect."""


class UnsupportedError(ActnnError, TypeError):
    """A tensor, layer or device that cannot be compressed."""


class TritonMissingError(UnsupportedError):
    """Triton, or the driver that it compiles for, is not there; the message says which."""


class FormatError(ActnnError, ValueError):
    """Bytes, widths or shapes that do not follow docs/format.md."""


class SessionError(ActnnError, RuntimeError):
    """A session that was closed, or used in a way its state does not allow."""


class ShapeError(ActnnError, RuntimeError, ValueError):
    """An input whose shape a layer cannot take; also a RuntimeError and a ValueError, as the frameworks raise."""


class SwapError(ActnnError, OSError):
    """A code that left memory and cannot be had back: its file cannot be read, or it belongs to another process."""


class DemandError(ActnnError, ValueError):
    """Sensitivities or costs that no allocation can weigh: negative, not finite, or of unequal length."""


class BudgetError(ActnnError, ValueError):
    """A budget too small for the least widths; ``smallest`` is the least one that fits."""

    def __init__(self, budget: float, smallest: float) -> None:
        super().__init__(budget, smallest)
        self.budget = budget
        self.smallest = smallest

    def __str__(self) -> str:
        return (
            f"a budget of {self.budget:.12g} does not hold every code at its least width: expected at least "
            f"{self.smallest:.12g}. Raise the budget, or leave some layers exact."
        )
