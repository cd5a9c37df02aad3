"""The heap of this process: how much of it nobody uses, and how to let the system have that."""

from __future__ import annotations

import numpy as np

from actnn.kernels import Native, host_backend

# larger blocks are apart from others; smaller ones leave only small holes
SEPARATE_BYTES = 2**20
# the largest block that the GNU C library ever keeps for reuse, with room for what it adds to a block
KEPT_BYTES = 32 * 2**20 - 2**16


def keep_blocks() -> None:
    """Let the C library keep freed blocks for reuse instead of returning them to the system at once.

    It returns freed memory at the end of its heap as soon as there is twice as much of it as the largest block that was
    ever mapped and freed, up to 64 MiB. Exact training holds enough memory that this hardly happens. With codes little
    is held, and every large tensor of a step would be mapped, cleared and returned again: a sixth of a step's time. To
    map and free one block, without touching it, is what tells the library; where the user fixed these limits, it does
    nothing.
    """
    np.empty(KEPT_BYTES, np.uint8)


def trim(threshold: float) -> bool:
    """Give unused memory back where it is more than a share of what the C library holds; tell whether it was."""
    backend, _ = host_backend()
    if not isinstance(backend, Native) or (usage := backend.heap_usage()) is None:
        return False
    held, unused = usage
    return unused > threshold * held and backend.trim_heap()


def separate_blocks() -> bool:
    """Let large blocks go back to the system when they are freed, from now on in this process; tell whether they do."""
    backend, _ = host_backend()
    return isinstance(backend, Native) and backend.separate_blocks(SEPARATE_BYTES) and backend.trim_heap()
