"""The threads that torch computes with, on which the kernels run too: one team a process."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch


@cache
def own_runtime() -> Path | None:
    """Return the file of torch's OpenMP runtime where that has a name of its own, as some wheels give it.

    None where torch brings it by its usual name: under that the kernels ask for it, and share it.
    """
    return renamed(Path(torch.__file__).parent)


def renamed(package: Path) -> Path | None:
    """Return GCC's OpenMP runtime of a package if its name was changed so that no other package shares it."""
    folders = package / "lib", package.with_name(f"{package.name}.libs")
    return next((found for folder in folders for found in sorted(folder.glob("libgomp-*.so*"))), None)
