"""The threads that Paddle computes with, on which the kernels run too.

Paddle brings an OpenMP runtime of its own, whose threads spin for a fifth of a second when they have nothing to do. A
second team on the same cores would wait for them in every kernel, and they for it in every convolution.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import paddle

from actnn import kernels


def count() -> int:
    """Return how many threads compute: Paddle sets this number when it is imported, and a user may change it."""
    return int(os.environ.get("OMP_NUM_THREADS", "1"))


@cache
def runtime() -> Path | None:
    """Return the file of Paddle's own OpenMP runtime; None where it has none."""
    return next((Path(paddle.__file__).parent / "libs").glob("libiomp5*"), None)


def described() -> str:
    """Tell on which threads the kernels run."""
    backend, _ = kernels.host_backend()
    if not isinstance(backend, kernels.Native):
        return "the reference kernels run in it"
    found = runtime()
    if found is not None and backend.shares(found):
        return f"the kernels run on its threads ({found.name})"
    return "the kernels run on threads of their own: no OpenMP runtime of Paddle's was found that they can use"
