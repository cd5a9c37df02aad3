"""The threads that Paddle computes with, on which the kernels run too.

Paddle brings an OpenMP runtime of its own, whose threads spin for a fifth of a second when they have nothing to do. A
second team on the same cores would wait for them in every kernel, and they for it in every convolution.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import paddle

from actnn import kernels
from actnn.kernels import Native


@lru_cache(maxsize=1)
def shared() -> Native | None:
    """Return the native backend once it computes with Paddle's threads; None where it cannot."""
    backend, _ = kernels.host_backend()
    if isinstance(backend, Native):
        for runtime in (Path(paddle.__file__).parent / "libs").glob("*iomp5*"):
            if backend.use_runtime(runtime):
                return backend
    return None


def count() -> int:
    """Return how many threads Paddle computes with."""
    backend = shared()
    # Paddle sets the variable when it is imported
    return int(os.environ.get("OMP_NUM_THREADS", "1")) if backend is None else backend.max_threads
