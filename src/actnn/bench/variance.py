"""``actnn bench variance``: the noise that codes add to a gradient, shared codes against the original's scheme.

Both contestants compute the gradient of the same weights on the same real images many times, each time with other
noise. Figures are relative to the squared norm of the exact gradient; ``bias`` is that of the mean, its own noise
taken off. The network is trained exactly for a while first.
"""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actnn.bench import harness, models
from actnn.cli.arguments import Parser, at_least
from actnn.cli.datasets import DIGITS, digits
from actnn.cli.small_resnet import small_resnet
from actnn.cli.training import compressed

if TYPE_CHECKING:
    from torch import Tensor, nn

SCHEMES = {
    "actnn": {"share_codes": True, "rounding": "dither"},
    "original": {"share_codes": False, "rounding": "stochastic"},
}
EXAMPLE = "actnn bench variance --model resnet50 --batch 8 --size 224 --draws 10"


def main(argv: Sequence[str]) -> int:
    """Measure all schemes and print one JSON line each."""
    parser = Parser(prog="actnn bench variance", description=__doc__.partition(": ")[2], epilog=f"example: {EXAMPLE}")
    parser.add_argument("--model", default="small_resnet", choices=("small_resnet", *models.NAMES))
    parser.add_argument("--batch", type=at_least(2), default=64)
    parser.add_argument("--size", type=at_least(8), default=32, help="height and width of an image")
    parser.add_argument("--bits", type=at_least(1), default=2)
    parser.add_argument("--steps", type=at_least(0), default=60, help="steps of exact training beforehand")
    parser.add_argument("--draws", type=at_least(2), default=20)
    parser.add_argument("--out", type=Path, help="append the lines to this file")
    arguments = parser.parse_args(argv)

    model = trained(arguments)
    images, labels = next(batches(arguments))
    exact = gradient(copy.deepcopy(model), images, labels)
    figures = {name: measure(arguments, model, images, labels, exact, settings) for name, settings in SCHEMES.items()}
    described = harness.machine()
    for name, found in figures.items():
        record: dict[str, Any] = {"benchmark": "variance", "scheme": name, "model": arguments.model}
        record |= {"batch": arguments.batch, "size": arguments.size, "bits": arguments.bits, "draws": arguments.draws}
        record |= found | {"ratio": round(found["variance"] / figures["original"]["variance"], 4)}
        harness.write(record | {"machine": described}, arguments.out)
    return 0


def batches(arguments: Namespace) -> Any:
    """Yield batches of handwritten digits for ever, enlarged, in as many channels as the model takes."""
    import torch
    from torch.nn import functional

    images, labels = digits(DIGITS, 0).train
    generator = torch.Generator().manual_seed(0)
    while True:
        for chosen in torch.randperm(len(images), generator=generator).split(arguments.batch):
            if len(chosen) == arguments.batch:
                batch = functional.interpolate(images[chosen], size=(arguments.size,) * 2, mode="bilinear")
                yield batch if arguments.model == "small_resnet" else batch.repeat(1, 3, 1, 1), labels[chosen]


def trained(arguments: Namespace) -> nn.Module:
    """Return the model after some steps of exact training."""
    import torch

    torch.manual_seed(0)
    model = small_resnet() if arguments.model == "small_resnet" else models.build(arguments.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _, (images, labels) in zip(range(arguments.steps), batches(arguments), strict=False):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model


def measure(
    arguments: Namespace,
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    exact: Tensor,
    settings: dict[str, Any],
) -> dict[str, float]:
    """Return variance and bias of one scheme's gradient, relative to the exact one, and the saving."""
    import torch

    noisy = compressed(copy.deepcopy(model), "L2", arguments.bits, **settings)
    gradient(noisy, images, labels)  # the first step teaches the sites who reads them
    draws = torch.stack([gradient(noisy, images, labels) for _ in range(arguments.draws)])
    norm, mean = exact.square().sum(), draws.mean(0)
    variance = (draws - mean).square().sum() / (arguments.draws - 1) / norm
    bias = (mean - exact).square().sum() / norm - variance / arguments.draws
    return {"variance": float(variance), "bias": float(bias), "kept_ratio": round(noisy.report().ratio, 3)}


def gradient(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return the gradient of all parameters as one vector."""
    import torch

    model.zero_grad()
    loss: Callable[..., Tensor] = torch.nn.functional.cross_entropy
    loss(model(images), labels).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).clone()
