"""What one of two processes does with a compiled model under DistributedDataParallel; results go to files."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn

import actnn


def network() -> nn.Module:
    """Return a small network with the same weights everywhere, of products alone: they need no compiler of C++."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(96, 128), nn.Linear(128, 4))


def batch(rank: int) -> torch.Tensor:
    """Return the batch of one process."""
    return torch.randn(64, 96, generator=torch.Generator().manual_seed(rank))


def train(rank: int, folder: str) -> None:
    """Run a step in one of two processes; save its own gradient, and the one that both agreed on."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    file = f"file://{Path(folder) / 'meeting'}"
    dist.init_process_group("gloo", init_method=file, rank=rank, world_size=2, timeout=timedelta(seconds=120))
    try:
        model = network()
        wrapped = nn.parallel.DistributedDataParallel(actnn.compile(model, bits=8))
        wrapped(batch(rank)).square().mean().backward()
        torch.save([parameter.grad for parameter in model.parameters()], Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()
