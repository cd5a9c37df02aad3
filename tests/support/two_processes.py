"""What the two processes of the tests of joined BatchNorm compute; results go to files."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn

import actnn

FEATURES = 6
# samples of each process: alike, and not alike
BATCHES = {"equal": (8, 8), "unequal": (11, 5)}


def norm() -> nn.BatchNorm2d:
    """Return a BatchNorm with parameters that are not special."""
    torch.manual_seed(1)
    layer = nn.BatchNorm2d(FEATURES)
    nn.init.normal_(layer.weight, 0.5)
    nn.init.normal_(layer.bias)
    return layer


def joined_batch(batches: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the whole batch and the whole gradient."""
    generator = torch.Generator().manual_seed(2)
    shape = (sum(BATCHES[batches]), FEATURES, 13, 11)
    x = torch.randn(shape, generator=generator)
    # samples differ, so that statistics of one process are not those of both
    x = x * torch.linspace(0.5, 2, len(x)).view(-1, 1, 1, 1) + torch.linspace(-1, 1, len(x)).view(-1, 1, 1, 1)
    return x, torch.randn(shape, generator=generator)


def part(values: torch.Tensor, batches: str, rank: int) -> torch.Tensor:
    """Return one process's samples."""
    return values.split(BATCHES[batches])[rank]


def layers() -> dict[str, nn.Module]:
    """Return the layers under test: alone, and followed by a ReLU that may share its code."""
    synced = nn.SyncBatchNorm(FEATURES)
    synced.load_state_dict(norm().state_dict())
    followed = nn.Sequential(nn.SyncBatchNorm(FEATURES), nn.ReLU())
    followed[0].load_state_dict(norm().state_dict())
    return {"alone": synced, "followed": followed}


def train(rank: int, folder: str) -> None:
    """Run a few steps in one of two processes and save what came out of the last."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    early = converted_for_noise()
    file = f"file://{Path(folder) / 'meeting'}"
    dist.init_process_group("gloo", init_method=file, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    try:
        results = {
            (name, batches): one_layer(layer, batches, rank) for batches in BATCHES for name, layer in layers().items()
        }
        results["evaluation"] = evaluation(rank)
        results["distributed"] = distributed(rank)
        results["noise"] = {"early": noise(early), "late": noise(converted_for_noise()), "by hand": noise(by_hand())}
        torch.save(results, Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def one_layer(layer: nn.Module, batches: str, rank: int) -> dict[str, torch.Tensor]:
    """Return output, gradients and statistics of the second step, so that the layer knows who reads its code."""
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [8]
    model = actnn.QModule(layer)
    whole, gradient = joined_batch(batches)
    for _ in range(2):
        model.zero_grad()
        x = part(whole, batches, rank).clone().requires_grad_()
        y = model(x)
        y.backward(part(gradient, batches, rank))
    gradients = {name.rpartition(".")[2]: parameter.grad for name, parameter in model.named_parameters()}
    buffers = {name.rpartition(".")[2]: buffer for name, buffer in model.named_buffers()}
    return {"output": y.detach(), "input": x.grad, **gradients, **buffers, "kept": model.report().kept_bytes}


def evaluation(rank: int) -> torch.Tensor:
    """Return the output in evaluation, which needs no other process: only the first one runs it."""
    if rank:
        return torch.empty(0)
    layer = layers()["alone"].eval()
    with torch.no_grad():
        return actnn.QModule(layer, level="L2")(joined_batch("equal")[0])


def distributed(rank: int) -> dict[str, torch.Tensor]:
    """Return the gradients of a converted model under DistributedDataParallel, and the keys of its state."""
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [2]
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(FEATURES, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(396, 3))
    wrapped = nn.parallel.DistributedDataParallel(actnn.QModule(model))
    x = part(joined_batch("equal")[0], "equal", rank)
    for _ in range(2):
        wrapped.zero_grad()
        wrapped(x).square().sum().backward()
    return {
        "gradient": model[0].weight.grad.clone(),
        "keys": sorted(wrapped.module.state_dict()),
    }


def converted_for_noise() -> nn.Module:
    """Return a converted layer, the same in each process."""
    torch.manual_seed(4)
    return actnn.QModule(nn.Linear(300, 3), level="L2", seed=5)


def by_hand() -> nn.Module:
    """Return a layer made by hand, the same in each process."""
    torch.manual_seed(4)
    return actnn.QLinear(300, 3)


def noise(model: nn.Module) -> torch.Tensor:
    """Return a gradient of the same layer on the same input, made by each process for itself."""
    model(torch.ones(4, 300) * torch.linspace(0, 1, 300)).sum().backward()
    return model.weight.grad
