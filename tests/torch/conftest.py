"""The PyTorch tests need torch, and the same random numbers each time."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

# tensors here are tiny, and waking a second thread costs more than it computes; kernel tests vary the number of threads
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fixed_seed():
    """Seed torch's own generator."""
    torch.manual_seed(0)
