"""The errors that actnn raises: every one says what was given, what was expected and what to do."""


class ActnnError(Exception):
    """Base of all errors of this package."""


class ConfigError(ActnnError, ValueError):
    """A setting that does not exist or cannot take effect."""


class UnsupportedError(ActnnError, TypeError):
    """A tensor, layer or device that cannot be compressed."""


class FormatError(ActnnError, ValueError):
    """Bytes, widths or shapes that do not follow docs/format.md."""


class SessionError(ActnnError, RuntimeError):
    """A session that was closed, or used in a way its state does not allow."""


class ShapeError(ActnnError, RuntimeError, ValueError):
    """An input whose shape a layer cannot take; also a RuntimeError and a ValueError, as the frameworks raise."""
