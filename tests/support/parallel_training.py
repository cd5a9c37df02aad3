"""Gradients of models that two processes train together, by every way that torch has; results go to files.

Each process sees half of a batch, or with tensor parallelism all of it; what comes out is the gradient of the whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import actnn
from actnn.torch.layers.batch_norm import join_statistics

PROCESSES = 2
SAMPLES, TOKENS, WIDTH, HEADS = 8, 16, 64, 4


class Block(nn.Module):
    """A transformer block whose attention and activation are calls of functions."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        heads = (
            linear(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(*heads)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


def transformer() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block())


def vision_transformer() -> nn.Module:
    """Return a small transformer of timm's, which calls F.scaled_dot_product_attention."""
    import timm

    torch.manual_seed(0)
    shape = {"img_size": 16, "patch_size": 4, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 5}
    return timm.models.VisionTransformer(**shape)


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(8 * 144, 5)),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "transformer": (transformer, (TOKENS, WIDTH)),
    "timm": (vision_transformer, (3, 16, 16)),
    "convolutions": (convolutions, (3, 16, 16)),
}


def batch(model: str) -> torch.Tensor:
    """Return the batch of all processes."""
    return torch.randn((SAMPLES, *MODELS[model][1]), generator=torch.Generator().manual_seed(1))


def loss(outputs: torch.Tensor) -> torch.Tensor:
    """Return a loss that is a mean over samples."""
    return (outputs.flatten(1) - 1).square().mean()


def exact_gradients(model: str) -> dict[str, torch.Tensor]:
    """Return the gradient of the whole batch, without codes, in one process."""
    plain = MODELS[model][0]()
    loss(plain(batch(model))).backward()
    return {name: parameter.grad for name, parameter in plain.named_parameters()}


def converted(model: str) -> Any:
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [8]
    return actnn.QModule(MODELS[model][0]())


def data_parallel(model: str) -> tuple[Any, Any]:
    compressed = converted(model)
    learner = DistributedDataParallel(compressed)
    join_statistics(compressed)
    return learner, compressed


def fully_sharded(model: str) -> tuple[Any, Any]:
    from torch.distributed.fsdp import fully_shard

    compressed = converted(model)
    for part in compressed.children():
        if not isinstance(part, nn.ReLU | nn.Flatten) and any(True for _ in part.parameters()):
            fully_shard(part)
    fully_shard(compressed)
    join_statistics(compressed)
    return compressed, compressed


def flat_sharded(model: str) -> tuple[Any, Any]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    compressed = converted(model)
    learner = FullyShardedDataParallel(compressed, use_orig_params=True, device_id=torch.device("cpu"))
    join_statistics(compressed)
    return learner, compressed


def tensor_parallel(model: str) -> tuple[Any, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {f"*.{name}": ColwiseParallel() for name in ("query", "key", "value", "up")}
    plan |= {f"*.{name}": RowwiseParallel() for name in ("out", "down")}
    compressed = parallelize_module(converted(model), init_device_mesh("cpu", (PROCESSES,)), plan)
    return compressed, compressed


WAYS: dict[str, Callable[[str], tuple[Any, Any]]] = {
    "DDP": data_parallel,
    "FSDP1": flat_sharded,
    "FSDP2": fully_sharded,
    "tensor parallel": tensor_parallel,
}
CASES = [("DDP", "convolutions"), ("DDP", "transformer"), ("DDP", "timm"), ("FSDP1", "transformer")]
CASES += [("FSDP2", "convolutions"), ("FSDP2", "transformer"), ("FSDP2", "timm"), ("tensor parallel", "transformer")]


def gradients(way: str, model: str, rank: int) -> dict[str, Any]:
    """Return the whole gradient of the second step, and the bytes that it kept."""
    learner, compressed = WAYS[way](model)
    x = batch(model)
    own = x if way == "tensor parallel" else x[rank::PROCESSES]
    for _ in range(2):
        learner.zero_grad()
        loss(learner(own)).backward()
    return {"gradients": whole_gradients(way, learner, compressed), "kept": compressed.report().kept_bytes}


def whole_gradients(way: str, learner: Any, compressed: Any) -> dict[str, torch.Tensor]:
    if way == "FSDP1":
        with type(learner).summon_full_params(learner, with_grads=True):
            return {name: parameter.grad.clone() for name, parameter in compressed.named_parameters()}
    found = {name: parameter.grad for name, parameter in compressed.named_parameters()}
    return {name: grad.full_tensor() if hasattr(grad, "full_tensor") else grad for name, grad in found.items()}


def refusal() -> str:
    """Return what a layer says that cannot take a distributed tensor."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

    mesh = init_device_mesh("cpu", (PROCESSES,))
    model = parallelize_module(converted("transformer"), mesh, {"0.norm": SequenceParallel()})
    try:
        model(batch("transformer"))
    except TypeError as problem:
        return str(problem)
    return "nothing"


def train(rank: int, folder: str, cases: list[tuple[str, str]]) -> None:
    """Compute the gradients of some cases in one of two processes."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    file = f"file://{Path(folder) / 'meeting'}"
    options = {"rank": rank, "world_size": PROCESSES, "timeout": timedelta(seconds=60)}
    dist.init_process_group("gloo", init_method=file, **options)
    try:
        results: dict[Any, Any] = {case: gradients(*case, rank) for case in cases}
        results["refusal"] = refusal()
        if rank == 0:
            torch.save(results, Path(folder) / "results.pt")
    finally:
        dist.destroy_process_group()


def results_of(folder: Path, cases: list[tuple[str, str]]) -> dict[Any, Any]:
    """Return what two processes compute."""
    torch.multiprocessing.spawn(train, (str(folder), cases), nprocs=PROCESSES)
    return torch.load(folder / "results.pt", weights_only=False)


def difference(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Return by how much a gradient differs from another, relative to that; all parameters as one vector."""
    assert found.keys() == expected.keys()
    apart = sum(float((found[name] - expected[name]).square().sum()) for name in expected)
    return (apart / sum(float(grad.square().sum()) for grad in expected.values())) ** 0.5
