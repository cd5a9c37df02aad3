"""``actnn bench variance``: the noise that codes add to a gradient, by scheme, measured and predicted.

The network is trained for a while, at L3 with per-sample gradients or exactly. All schemes then compute the gradient of
the same weights on the next batch many times, each time with other noise. Figures are relative to the squared norm of
the exact gradient: ``bias`` is the squared one of the mean, with its standard error; ``sampling_variance`` that of
gradients of different batches, for scale; ``noisiest`` are parameters, relative to their own squares, and
``noisiest_of_sampling`` relative to how their own gradients vary from batch to batch; ``of_sampling`` is that of the
whole.
``rank_correlation`` (Spearman's) compares the layers' predicted variances with the measured ones. ``kept_bytes`` and
``exact_bytes`` are all that autograd keeps of the network; methods of others, which have widths of their own, predict
nothing.
"""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from actnn.bench.arguments import add_recording, parser_of
from actnn.bench.gradients import Draws, Gradients, gradients, spread
from actnn.console.arguments import at_least, width
from actnn.errors import ConfigError
from actnn.measuring import runs
from actnn.measuring.processes import Told
from actnn.model.wrapper import session_of
from actnn.workloads import datasets, language, models, peers, texts, workload
from actnn.workloads.batch import Batch
from actnn.workloads.peers import PEERS
from actnn.workloads.training import compressed

if TYPE_CHECKING:
    from torch import Tensor, nn

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
# methods of others whose gradients are not exact; the original is a scheme already
LOSSY_PEERS = tuple(name for name, peer in PEERS.items() if not peer.lossless and name not in SCHEMES)
TOKENS = "tokens"
NOISIEST = 5
# over which the learning rate rises, without which transformers learn little
WARM_UP_STEPS = 10
EXAMPLE = "actnn bench variance --model gpt2:layers=4,width=256,tokens=128 --batch 8 --schemes L2 L3 --draws 20"


class Example(NamedTuple):
    """A batch, and the positions of its images in their data set, None where there is no set."""

    batch: Batch
    positions: Tensor | None


def main(argv: Sequence[str]) -> int:
    """Measure all schemes and print one JSON line each."""
    arguments = parse(argv)
    return runs.interruptible(arguments.out, lambda: measure_all(arguments))


def parse(argv: Sequence[str]) -> Namespace:
    """Read the arguments."""
    parser = parser_of("variance", __doc__, EXAMPLE)
    parser.add_argument("--model", default="small_resnet", help=f"{workload.HELP} (default: small_resnet)")
    parser.add_argument("--data", default="auto", choices=("auto", "digits", "fashion-mnist", texts.TEXT))
    parser.add_argument("--data-dir", type=Path, help="folder of the IDX files of Fashion-MNIST")
    parser.add_argument("--images", type=at_least(4), default=1024, help="images to train on")
    parser.add_argument("--batch", type=at_least(2), default=64)
    parser.add_argument("--size", type=at_least(8), default=32, help="height and width of an image")
    parser.add_argument("--bits", type=width, default=2)
    parser.add_argument(
        "--schemes",
        nargs="+",
        choices=(*SCHEMES, SAMPLES, *LOSSY_PEERS),
        help="default: all of ours that the training allows",
    )
    parser.add_argument(
        "--training",
        choices=TRAININGS,
        help="beforehand: at L3 with gradients of each sample (default for images), or exactly (for texts)",
    )
    parser.add_argument("--steps", type=at_least(1), default=64, help="steps of training beforehand")
    parser.add_argument("--draws", type=at_least(2), default=20)
    parser.add_argument("--batches", type=at_least(0), default=8, help="whose gradients tell the sampling variance")
    add_recording(parser)
    arguments = parser.parse_args(argv)
    return with_defaults(arguments)


def with_defaults(arguments: Namespace) -> Namespace:
    """Fill in what depends on whether a model learns from images or from texts."""
    reads = language.find(arguments.model)
    arguments.training = arguments.training or ("samples" if reads is None else "exact")
    learns_samples = arguments.training == "samples"
    if (reads is None and arguments.data == texts.TEXT) or (
        reads is not None and (learns_samples or arguments.data not in ("auto", texts.TEXT))
    ):
        raise ConfigError(
            f"{arguments.model} does not learn from --data {arguments.data} with --training {arguments.training}: "
            f"expected {texts.TEXT} or nothing, which is random tokens, for models of language, whose texts never come "
            "twice; images for others."
        )
    if reads is None:
        arguments.data = datasets.chosen(arguments.data, arguments.data_dir)
    else:
        arguments.data = TOKENS if arguments.data == "auto" else arguments.data
        arguments.images, arguments.size = None, f"{reads.tokens} tokens"
    arguments.schemes = list(dict.fromkeys(arguments.schemes or [*SCHEMES, *([SAMPLES] if learns_samples else [])]))
    if SAMPLES in arguments.schemes and not learns_samples:
        raise ConfigError(f"the scheme {SAMPLES!r} needs --training samples, in which gradients of samples are learnt.")
    return arguments


def measure_all(arguments: Namespace) -> None:
    """Measure all schemes as one group: they share a trained model, and are compared with each other."""
    settings = ("model", "data", "images", "batch", "size", "bits", "training", "steps", "draws", "batches")
    common = {"benchmark": "variance"} | {name: getattr(arguments, name) for name in settings}
    widths = {name: {"bits": PEERS[name].bits} for name in LOSSY_PEERS}
    runs.print_all(
        [[common | {"scheme": name} | widths.get(name, {}) for name in arguments.schemes]],
        lambda group, told: figures(arguments, told),
        arguments,
        steps=len(arguments.schemes),
        words=lambda run: f"{run['model']}, {run['data']}, {run['scheme']}",
        found=lambda record: f"variance {record['variance']:.4g}, {less_kept(record):.1f}× less kept",
    )


def less_kept(record: Mapping[str, Any]) -> float:
    """Return how many times less than exact training is kept; records of an earlier form tell it of codes alone."""
    return float(record["exact_bytes"] / record["kept_bytes"] if "kept_bytes" in record else record["kept_ratio"])


def figures(arguments: Namespace, told: Told) -> list[dict[str, Any]]:
    """Return the figures of the schemes on the gradient of one trained model, and their ratios."""
    stream = examples(arguments)
    model, plain = TRAININGS[arguments.training](arguments, stream)
    batch, positions = next(stream)
    exact = gradients(copy.deepcopy(plain), batch)
    others = copy.deepcopy(plain)
    sampled = spread((gradients(others, next(stream).batch) for _ in range(arguments.batches)), exact)
    exact_bytes = kept_bytes(others, batch)
    found = {}
    for name in arguments.schemes:
        if name == SAMPLES:
            model.set_samples(positions)
            contestant = model
        else:
            contestant = made(name, copy.deepcopy(plain), batch, arguments.bits)
        found[name] = measured(contestant, batch, exact, arguments.draws, sampled)
        found[name] |= {"kept_bytes": kept_bytes(contestant, batch), "exact_bytes": exact_bytes}
        told(name)
    for each in found.values():
        for other in {"original", "L2"} & found.keys():
            each[f"ratio_to_{other.lower()}"] = round(each["variance"] / found[other]["variance"], 4)
    return list(found.values())


def made(name: str, model: Any, batch: Batch, bits: float) -> Any:
    """Return a plain model as a scheme, or the method of others, trains it."""
    if name in SCHEMES:
        return compressed(model, bits=bits, **SCHEMES[name])
    model = PEERS[name].applied(model)
    if peers.is_to_prepare(model):
        peers.prepare(model, lambda: gradients(model, batch))
    return model


def kept_bytes(model: Any, batch: Batch) -> int:
    """Return what autograd keeps after a forward, the loss left out."""
    from actnn.torch.memory import KeptBytes

    with KeptBytes(model) as kept:
        outputs = batch.outputs(model)
        total: int = kept.total
    del outputs
    return total


def examples(arguments: Namespace) -> Iterator[Example]:
    """Yield batches for ever: random tokens, pieces of a text, or real images."""
    import torch

    reads = language.find(arguments.model)
    if reads is None:
        yield from enlarged_images(arguments)
        return
    text = texts.load(arguments.data) if texts.is_text(arguments.data) else None
    if text is not None and reads.vocabulary < texts.VOCABULARY:
        raise ConfigError(
            f"{arguments.model} has {reads.vocabulary} tokens for the bytes of a text: give it "
            f"vocabulary={texts.VOCABULARY} or more."
        )
    draw = np.random.default_rng(0)
    for seed in count(1):
        # others draw random numbers between two batches
        torch.manual_seed(seed)
        if text is None:
            yield Example(reads.batch(arguments.batch), None)
        else:
            pieces = torch.from_numpy(texts.pieces(text, arguments.batch, reads.tokens, draw))
            yield Example(reads.batch_of(pieces), None)


def enlarged_images(arguments: Namespace) -> Iterator[Example]:
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
                yield Example(Batch((batch.repeat(1, channels(arguments), 1, 1),), {}, labels[chosen]), chosen)


def channels(arguments: Namespace) -> int:
    """Return how many channels the images have: colours only where the model expects them."""
    return 1 if arguments.model == "small_resnet" else 3


def build(arguments: Namespace) -> nn.Module:
    """Return the model before its first step."""
    import torch

    torch.manual_seed(0)
    reads = language.find(arguments.model)
    classes = datasets.CLASSES if arguments.model == "small_resnet" else 1000
    if reads is None:
        return models.build(arguments.model, classes=classes, channels=channels(arguments)).train()
    return reads.build().train()


def trained_at_l3(arguments: Namespace, stream: Iterator[Example]) -> tuple[Any, Any]:
    """Return the model after some steps at L3, in which it learns which samples are hard, and its plain form."""
    import torch

    converted = compressed(build(arguments), "L3", arguments.bits)
    optimizer = torch.optim.SGD(converted.parameters(), lr=0.02, momentum=0.9)
    for step, (batch, positions) in zip(range(arguments.steps), stream, strict=False):
        converted.set_samples(positions)
        gradients(converted, batch, seed=step)
        optimizer.step()
    return converted, copy.deepcopy(converted).restore()


def trained_exactly(arguments: Namespace, stream: Iterator[Example]) -> tuple[None, Any]:
    """Return no converted model, and a plain one after some exact steps of AdamW."""
    import torch

    model = build(arguments)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    rates = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / WARM_UP_STEPS, total_iters=WARM_UP_STEPS)
    for step, (batch, _) in zip(range(arguments.steps), stream, strict=False):
        gradients(model, batch, seed=step)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rates.step()
    return None, model


# make the model that all schemes begin from, and where it learnt of samples, the converted model that did
TRAININGS: Mapping[str, Callable[[Namespace, Iterator[Example]], tuple[Any, Any]]] = {
    "samples": trained_at_l3,
    "exact": trained_exactly,
}


def measured(
    model: Any, batch: Batch, exact: Gradients, draws: int, sampled: Mapping[str, float] | None
) -> dict[str, Any]:
    """Return variance, bias and prediction of one scheme's gradient, relative to the exact one, and the saving.

    ``sampled`` is how each parameter's gradient varies from batch to batch.
    """
    for _ in range(SETTLING_STEPS):
        gradients(model, batch)
    drawn = Draws(exact)
    for _ in range(draws):
        drawn.add(gradients(model, batch))
    norm = sum(float(grad.square().sum()) for grad in exact.values())
    bias, error = drawn.bias()
    sampling = None if sampled is None else sum(sampled.values()) / norm
    return {
        "variance": drawn.variance,
        "bias": bias,
        "bias_error": error,
        # what rounds to the nearest has no variance, and all of its error in the bias
        "error": drawn.variance + max(0.0, bias),
        "noisiest": drawn.noisiest(NOISIEST),
        "noisiest_of_sampling": None if sampled is None else drawn.noisiest(NOISIEST, sampled),
        "sampling_variance": sampling,
        "of_sampling": None if not sampling else drawn.variance / sampling,
        **(own_figures(model, batch, drawn, norm) if hasattr(model, "report") else {}),
    }


def own_figures(model: Any, batch: Batch, drawn: Draws, norm: float) -> dict[str, Any]:
    """Return what a model of ours tells besides: the variance that it predicts, and how wide its codes are."""
    report, predicted = model.report(), predictions(model, batch)
    return {
        "predicted": sum(predicted.values()) / norm,
        "rank_correlation": rank_correlation(drawn.variances, predicted),
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


def rank_correlation(variances: Mapping[str, float], predicted: Mapping[str, float]) -> float | None:
    """Return Spearman's correlation over the layers that read a code, None where there are fewer than two."""
    found: dict[str, float] = {}
    for name, variance in variances.items():
        layer = name.rpartition(".")[0]
        found[layer] = found.get(layer, 0.0) + variance
    layers = [layer for layer in found if layer in predicted]
    if len(layers) < 2:
        return None
    ranks = [np.argsort(np.argsort([values[layer] for layer in layers])) for values in (found, predicted)]
    return round(float(np.corrcoef(ranks[0], ranks[1])[0, 1]), 4)
