"""Two real processes of Paddle that share the statistics of a batch; a module of its own, for they import it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import paddle
from paddle import distributed as dist
from paddle import nn

import actnn.paddle as actnn

CHANNELS, STEPS, WIDTH = 6, 2, 8
# how many of the samples the first process has
FIRST = {"equal": 4, "unequal": 3}
SAMPLES = 8


def joined_batch() -> tuple[np.ndarray, np.ndarray]:
    """Return the batch of both processes together, and the gradient of its output."""
    random = np.random.default_rng(5)
    return tuple(random.normal(1, 2, (SAMPLES, CHANNELS, 5, 7)).astype(np.float32) for _ in range(2))


def part(values: np.ndarray, batches: str, rank: int) -> np.ndarray:
    """Return one process's part."""
    return values[FIRST[batches] :] if rank else values[: FIRST[batches]]


def model(norm: type[nn.Layer]) -> nn.Layer:
    """Return a BatchNorm and the ReLU that reads its code."""
    layer = norm(CHANNELS)
    layer.weight.set_value(np.linspace(-1, 2, CHANNELS, dtype=np.float32))
    layer.bias.set_value(np.linspace(0.5, -0.5, CHANNELS, dtype=np.float32))
    return nn.Sequential(layer, nn.ReLU())


def trained(network: nn.Layer, batch: np.ndarray, gradient: np.ndarray) -> dict[str, np.ndarray]:
    """Return what the last of some steps gives."""
    for _ in range(STEPS):
        x = paddle.to_tensor(batch, stop_gradient=False)
        network.clear_gradients()
        y = network(x)
        y.backward(paddle.to_tensor(gradient))
    norm = network[0]
    found = {"output": y, "input": x.grad, "weight": norm.weight.grad, "bias": norm.bias.grad}
    return {name: value.numpy() for name, value in (found | {"mean": norm._mean, "variance": norm._variance}).items()}


def train(folder: str) -> None:
    """Train in one of the processes, and write down what that gives."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_parallel_env()
    rank = dist.get_rank()
    actnn.config.activation_compression_bits = [WIDTH]
    for batches in FIRST:
        ours = actnn.QModule(model(nn.SyncBatchNorm), level="L2")
        found = trained(ours, *(part(values, batches, rank) for values in joined_batch()))
        found["kept"] = np.array(ours.report().kept_bytes)
        ours.eval()
        found["evaluated"] = ours(paddle.to_tensor(joined_batch()[0])).numpy()
        np.savez(Path(folder) / f"{batches}-{rank}.npz", **found)
    np.savez(Path(folder) / f"resumed-{rank}.npz", **resumed(Path(folder) / "run", rank))


def resumed(path: Path, rank: int) -> dict[str, np.ndarray]:
    """Return the weights of a run, and those of the same run from its checkpoint on; each process has its own noise."""

    def made() -> tuple[nn.Layer, paddle.optimizer.Optimizer]:
        paddle.seed(7)
        net = paddle.DataParallel(actnn.QModule(nn.Sequential(nn.Linear(300, 4), nn.ReLU()), level="L3"))
        return net, paddle.optimizer.Adam(0.01, parameters=net.parameters())

    def steps(net: nn.Layer, optimizer: paddle.optimizer.Optimizer) -> None:
        for _ in range(2):
            optimizer.clear_grad()
            net(paddle.randn([4, 300])).square().sum().backward()
            optimizer.step()

    whole, parts = made(), made()
    paddle.seed(rank)
    steps(*whole)
    actnn.save(path, whole[0], optimizer=whole[1], epoch=1)
    steps(*whole)
    actnn.load(path, parts[0], optimizer=parts[1])
    steps(*parts)
    return {name: net.parameters()[0].numpy() for name, (net, _) in (("whole", whole), ("parts", parts))}
