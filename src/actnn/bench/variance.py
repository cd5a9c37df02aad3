"""``actnn bench variance``: the noise that codes add to a gradient, by scheme, measured and predicted.

The network is trained for a while, at L3 with per-sample gradients. All schemes then compute the gradient of the same
weights on the next batch many times, each time with other noise. Figures are relative to the squared norm of the exact
gradient; ``bias`` is that of the mean, its own noise taken off; ``rank_correlation`` (Spearman's) compares the layers'
predicted variances with the measured ones.
"""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from actnn.bench.arguments import add_recording, parser_of
from actnn.console.arguments import at_least, width
from actnn.measuring import runs
from actnn.measuring.processes import Told
from actnn.model.verification import Moments
from actnn.model.wrapper import session_of
from actnn.workloads import datasets, models
from actnn.workloads.training import compressed

if TYPE_CHECKING:
    from torch import Tensor

SETTLING_STEPS = 3
PREDICTED_STEPS = 3
SAMPLES = "L3, samples"
SCHEMES: dict[str, dict[str, Any]] = {
    "original": {"level": "L2", "share_codes": False, "rounding": "stochastic"},
    "L2": {"level": "L2"},
    "L2, stochastic": {"level": "L2", "rounding": "stochastic"},
    "L2.5": {"level": "L2.5"},
    "L3": {"level": "L3"},
    "L3, stochastic": {"level": "L3", "rounding": "stochastic"},
}
EXAMPLE = "actnn bench variance --model resnet50 --batch 8 --size 224 --draws 10"


class Batch(NamedTuple):
    """Images and labels, and their positions in the data set."""

    images: Tensor
    labels: Tensor
    positions: Tensor


def main(argv: Sequence[str]) -> int:
    """Measure all schemes and print one JSON line each."""
    arguments = parse(argv)
    return runs.interruptible(arguments.out, lambda: measure_all(arguments))


def parse(argv: Sequence[str]) -> Namespace:
    """Read the arguments."""
    parser = parser_of("variance", __doc__, EXAMPLE)
    parser.add_argument("--model", default="small_resnet", help=f"{models.HELP} (default: small_resnet)")
    parser.add_argument("--data", default="auto", choices=("auto", "digits", "fashion-mnist"))
    parser.add_argument("--data-dir", type=Path, help="folder of the IDX files of Fashion-MNIST")
    parser.add_argument("--images", type=at_least(4), default=1024, help="images to train on")
    parser.add_argument("--batch", type=at_least(2), default=64)
    parser.add_argument("--size", type=at_least(8), default=32, help="height and width of an image")
    parser.add_argument("--bits", type=width, default=2)
    parser.add_argument("--steps", type=at_least(1), default=64, help="steps of training beforehand")
    parser.add_argument("--draws", type=at_least(2), default=20)
    add_recording(parser)
    arguments = parser.parse_args(argv)
    arguments.data = datasets.chosen(arguments.data, arguments.data_dir)
    return arguments


def measure_all(arguments: Namespace) -> None:
    """Measure all schemes as one group: they share a trained model, and are compared with each other."""
    settings = ("model", "data", "images", "batch", "size", "bits", "steps", "draws")
    common = {"benchmark": "variance"} | {name: getattr(arguments, name) for name in settings}
    runs.print_all(
        [[common | {"scheme": name} for name in (*SCHEMES, SAMPLES)]],
        lambda group, told: figures(arguments, told),
        arguments,
        steps=len(SCHEMES) + 1,
        words=lambda run: f"{run['model']}, {run['data']}, {run['scheme']}",
        found=lambda record: f"variance {record['variance']:.4g}, {record['kept_ratio']:.1f}× less kept",
    )


def figures(arguments: Namespace, told: Told) -> list[dict[str, Any]]:
    """Return the figures of all schemes on the gradient of one trained model, and their ratios."""
    stream = batches(arguments)
    model = trained(arguments, stream)
    batch, plain = next(stream), copy.deepcopy(model).restore()
    exact = gradients(copy.deepcopy(plain), batch)
    found = {}
    for name, settings in SCHEMES.items():
        contestant = compressed(copy.deepcopy(plain), bits=arguments.bits, **settings)
        found[name] = measured(contestant, batch, exact, arguments.draws)
        told(name)
    model.set_samples(batch.positions)
    found[SAMPLES] = measured(model, batch, exact, arguments.draws)
    told(SAMPLES)
    for each in found.values():
        for other in ("original", "L2"):
            each[f"ratio_to_{other.lower()}"] = round(each["variance"] / found[other]["variance"], 4)
    return list(found.values())


def batches(arguments: Namespace) -> Iterator[Batch]:
    """Yield batches of real images for ever, enlarged, in as many channels as the model takes."""
    import torch
    from torch.nn import functional

    learnt = datasets.load(arguments.data, arguments.data_dir).limited(arguments.images).train
    images, labels = learnt.batch(torch.arange(learnt.image_count), None)
    generator = torch.Generator().manual_seed(0)
    while True:
        for chosen in torch.randperm(len(images), generator=generator).split(arguments.batch):
            if len(chosen) == min(arguments.batch, len(images)):
                batch = functional.interpolate(images[chosen], size=(arguments.size,) * 2, mode="bilinear")
                yield Batch(batch.repeat(1, channels(arguments), 1, 1), labels[chosen], chosen)


def channels(arguments: Namespace) -> int:
    """Return how many channels the images have: colours only where the model expects them."""
    return 1 if arguments.model == "small_resnet" else 3


def trained(arguments: Namespace, stream: Iterator[Batch]) -> Any:
    """Return the model after some steps of training at L3, in which it learns which samples are hard."""
    import torch

    torch.manual_seed(0)
    classes = datasets.CLASSES if arguments.model == "small_resnet" else 1000
    model = models.build(arguments.model, classes=classes, channels=channels(arguments))
    converted = compressed(model, "L3", arguments.bits)
    optimizer = torch.optim.SGD(converted.parameters(), lr=0.02, momentum=0.9)
    for _, batch in zip(range(arguments.steps), stream, strict=False):
        converted.set_samples(batch.positions)
        gradients(converted, batch)
        optimizer.step()
    return converted


def measured(model: Any, batch: Batch, exact: dict[str, Tensor], draws: int) -> dict[str, Any]:
    """Return variance, bias and prediction of one scheme's gradient, relative to the exact one, and the saving."""
    for _ in range(SETTLING_STEPS):
        gradients(model, batch)
    moments = {name: Moments(grad.numel()) for name, grad in exact.items()}
    for _ in range(draws):
        for name, grad in gradients(model, batch).items():
            moments[name].add((grad - exact[name]).flatten().double().numpy())
    report = model.report()
    norm = sum(float(grad.square().sum()) for grad in exact.values())
    variance = sum(each.variance for each in moments.values()) / norm
    bias = sum(each.energy_of_mean for each in moments.values()) / norm - variance / draws
    predicted = predictions(model, batch)
    return {
        "variance": variance,
        "bias": bias,
        "predicted": sum(predicted.values()) / norm,
        "rank_correlation": round(rank_correlation(moments, predicted), 4),
        "kept_ratio": round(report.ratio, 3),
        "average_bits": round(report.average_bits, 4),
    }


def predictions(model: Any, batch: Batch) -> dict[str, float]:
    """Return the variance that theory gives each layer's gradient."""
    session = session_of(model)
    session.predictions = {}
    for _ in range(PREDICTED_STEPS):
        gradients(model, batch)
    found = {name: total / PREDICTED_STEPS for name, total in session.predictions.items()}
    session.predictions = None
    return found


def rank_correlation(moments: dict[str, Moments], predicted: dict[str, float]) -> float:
    """Return Spearman's correlation over the layers that read a code."""
    found: dict[str, float] = {}
    for name, each in moments.items():
        layer = name.rpartition(".")[0]
        found[layer] = found.get(layer, 0.0) + each.variance
    layers = [layer for layer in found if layer in predicted]
    ranks = [np.argsort(np.argsort([values[layer] for layer in layers])) for values in (found, predicted)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def gradients(model: Any, batch: Batch) -> dict[str, Tensor]:
    """Return the gradient of every parameter."""
    import torch

    model.zero_grad()
    torch.nn.functional.cross_entropy(model(batch.images), batch.labels).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
