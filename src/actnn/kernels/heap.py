"""The heap of this process: how much of it nobody uses, and how to let the system have that."""

from __future__ import annotations

from actnn.kernels import Native, host_backend

# larger blocks are apart from others; smaller ones leave only small holes
SEPARATE_BYTES = 2**20


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
