"""Where data lie, as ``--data`` names it: ``format:path``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from actnn.errors import ConfigError

if TYPE_CHECKING:
    from actnn.workloads.runs.settings import Settings


def source_of(settings: Settings, formats: Sequence[str]) -> tuple[str, str]:
    """Return the format and the path that a run names, one of those that its task reads."""
    kind, colon, path = settings.data.partition(":")
    if not colon or kind not in formats or not path:
        raise ConfigError(
            f"--task {settings.task} cannot learn from --data {settings.data}: expected "
            f"{' or '.join(f'{name}:PATH' for name in formats)}."
        )
    return kind, path
