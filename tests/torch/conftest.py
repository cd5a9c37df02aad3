"""The PyTorch tests need torch, one thread of it, and the same random numbers each time."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

# without torch there is nothing to collect here
collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Use one thread: tensors are tiny here, and waking a second one costs more than it computes."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def tiny_tensors_are_overwritten(monkeypatch):
    """Let layers and backwards write over tensors of any size, as over large ones."""
    from actnn.torch import readers
    from actnn.torch.functions import activation, batch_norm, gradients
    from actnn.torch.layers import batch_norm as layer

    for module in (readers, gradients, activation, batch_norm, layer):
        monkeypatch.setattr(module, "LEAST_BYTES", 0)


@pytest.fixture(autouse=True)
def fixed_seed():
    """Seed torch's own generator."""
    import torch

    torch.manual_seed(0)
