"""``actnn bench noise``: how much noise codes add to gradients of many models, beside what batches let them vary by.

Each model is trained exactly for some steps, on Python's documentation byte by byte or on scikit-learn's digits. Its
gradient on the next batch is then drawn many times with other noise, and held against how gradients of different
batches vary: that of the whole, and that of each parameter against its own. Parameters that hardly have a gradient on
any batch are counted apart (``without``), with the noise in them as a share of the whole's sampling variance; those
``above`` the bar are counted with their part of it. Gammas and betas of BatchNorms whose ``scales`` a later one undoes
stand among the others with the part of their gradient that changes anything, and apart with the other one, whose noise
is told as a share of the whole's sampling variance, and the largest of a pair's own (``bench/scales.py``). ``bias`` is
the squared one of the mean, relative to the squared gradient, with its standard error.
"""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from actnn.bench import variance
from actnn.bench.arguments import add_models, add_recording, parser_of
from actnn.bench.gradients import Draws, Gradients, energy, gradients, own_noise, spread
from actnn.bench.scales import Pair, turned, undone
from actnn.console.arguments import at_least, width
from actnn.console.columns import aligned
from actnn.errors import ConfigError
from actnn.measuring import runs
from actnn.measuring.processes import Told
from actnn.measuring.records import Record
from actnn.workloads import language, texts

SMALL = "layers=4,width=128,heads=4,tokens=64,vocabulary=256"
# small enough for a minute or two on one core; the size of images where a model takes them
MODELS: Mapping[str, int | None] = {
    **{f"{family}:{SMALL}": None for family in language.FAMILIES},
    "timm:vit_tiny_patch16_224:depth=4,embed_dim=96,num_heads=3,img_size=64,patch_size=8": 64,
    "timm:swin_tiny_patch4_window7_224:embed_dim=48,img_size=64,window_size=4": 64,
    "timm:convnext_atto": 64,
    "efficientnet_b0": 96,
    "mobilenet_v3_large": 96,
    "mobilenet_v2": 96,
    "resnet18": 64,
    "resnet50": 64,
}
IMAGE_SIZE = 64
DIGITS = "digits"
IMAGES = 1024
NAMED = 5
# what noise in the whole gradient, and in that of each parameter, is to stay below, of sampling variance
WHOLE_BAR = 0.02
OWN_BAR = 0.05
HEADING = ["model, batch, size", "kept", "whole", "worst own", "which", "95 % of own", "above", "which vary by", "of"]
HEADING += ["without", "undone scales", "noise along", "worst of a pair", "squared bias", "in errors"]
EXAMPLE = "actnn bench noise --models gpt2:layers=2,width=64,tokens=64,vocabulary=256,resnet18 --draws 100"


def main(argv: Sequence[str]) -> int:
    """Measure what is not recorded yet and print a table."""
    arguments = parse(argv)
    return runs.interruptible(arguments.out, lambda: measure_all(arguments))


def parse(argv: Sequence[str]) -> Namespace:
    """Read the arguments."""
    parser = parser_of("noise", __doc__, EXAMPLE)
    add_models(parser, tuple(MODELS))
    parser.add_argument("--level", choices=("L2", "L2.5", "L3"), default="L3")
    parser.add_argument("--bits", type=width, default=2, help="average width of codes (default: 2)")
    parser.add_argument("--batch", type=at_least(2), default=8, help="examples in a step (default: 8)")
    parser.add_argument("--size", type=at_least(8), help=f"of an image (default: {IMAGE_SIZE}, or that of the list)")
    parser.add_argument("--steps", type=at_least(1), default=60, help="of training beforehand (default: 60)")
    parser.add_argument("--draws", type=at_least(3), default=100, help="default: 100")
    parser.add_argument("--batches", type=at_least(2), default=16, help="that tell sampling variance (default: 16)")
    add_recording(parser)
    return parser.parse_args(argv)


def measure_all(arguments: Namespace) -> None:
    """Measure one model after the other, each a record of its own."""
    records = runs.carry_out(
        [[run_of(arguments, model)] for model in arguments.models],
        measured,
        out=arguments.out,
        again=arguments.again,
        words=lambda run: str(run["model"]),
        found=described,
        steps=arguments.steps + arguments.batches + arguments.draws,
    )
    heading, lines = table(records)
    print("\n".join(aligned([heading, *lines])))


def run_of(arguments: Namespace, model: str) -> dict[str, Any]:
    """Return the settings of one model, which name its record."""
    reads = language.find(model)
    data = {"data": DIGITS, "images": IMAGES, "size": arguments.size or MODELS.get(model) or IMAGE_SIZE}
    if reads is not None:
        data = {"data": texts.TEXT, "images": None, "size": f"{reads.tokens} tokens"}
    common = ("level", "bits", "batch", "steps", "draws", "batches")
    return {"benchmark": "noise", "model": model} | data | {name: getattr(arguments, name) for name in common}


def measured(group: runs.Group, told: Told) -> list[dict[str, Any]]:
    """Return the figures of one model."""
    (run,) = group
    settings = Namespace(**run, data_dir=None)
    stream = variance.examples(settings)
    _, plain = variance.trained_exactly(settings, stream)
    batch = next(stream).batch
    told_as = f"{run['model']} after {run['steps']} steps"
    exact = finite(gradients(copy.deepcopy(plain), batch), told_as)
    pairs = undone(plain, exact)
    exact = turned(exact, pairs)
    others = copy.deepcopy(plain)
    batches = islice(stream, run["batches"])
    sampled = spread((turned(finite(gradients(others, each.batch), told_as), pairs) for each in batches), exact)
    assert sampled is not None
    exact_bytes = variance.kept_bytes(others, batch)
    model = variance.made(run["level"], plain, batch, run["bits"])
    for _ in range(variance.SETTLING_STEPS):
        gradients(model, batch)
    drawn = Draws(exact)
    for _ in range(run["draws"]):
        drawn.add(turned(finite(gradients(model, batch), f"{run['model']} with codes"), pairs))
        told(1)
    kept = {"kept_bytes": variance.kept_bytes(model, batch), "exact_bytes": exact_bytes}
    return [figures(drawn, exact, sampled, pairs) | kept]


def finite(found: Gradients, of: str) -> Gradients:
    """Return a gradient; raise ConfigError where it is none: shares of what is not a number tell nothing."""
    if wrong := [name for name, own in found.items() if not own.isfinite().all()]:
        raise ConfigError(
            f"the gradient of {of} is not finite at {', '.join(wrong[:NAMED])}: expected numbers. Give other --steps; "
            "where the exact gradient is finite and that with codes is not, report it as a defect."
        )
    return found


def figures(drawn: Draws, exact: Gradients, sampled: Mapping[str, float], pairs: Sequence[Pair] = ()) -> dict[str, Any]:
    """Return what a table tells of a gradient's noise."""
    whole = sum(sampled.values())
    bias, error = drawn.bias()
    along = {pair.along for pair in pairs}
    own = own_noise(drawn, {name: grad for name, grad in exact.items() if name not in along}, sampled)
    whole_pairs = {pair.gamma: sampled[pair.along] + sampled[pair.across] for pair in pairs}
    of_pairs = {pair.gamma: drawn.variances[pair.along] / whole_pairs[pair.gamma] for pair in pairs}
    noisiest_pairs = sorted(of_pairs, key=lambda name: -of_pairs[name])
    noisiest = sorted(own.shares.items(), key=lambda each: -each[1])
    above = [name for name, share in noisiest if share > OWN_BAR]
    return {
        "sampling_variance": whole / energy(exact),
        "variance": drawn.variance,
        "of_sampling": sum(drawn.variances.values()) / whole,
        "noisiest": [[name, share] for name, share in noisiest[:NAMED]],
        "noisiest_matrices": [[name, share] for name, share in noisiest if exact[name].ndim > 1][:NAMED],
        "most_of_95_percent": float(np.quantile(list(own.shares.values()), 0.95)),
        "parameters": len(own.shares),
        "above": len(above),
        "share_above": sum(sampled[name] for name in above) / whole,
        "without": len(own.without),
        "noise_without": sum(drawn.variances[name] for name in own.without) / whole,
        "scales": len(pairs),
        "noise_of_scales": sum(drawn.variances[name] for name in along) / whole,
        "noisiest_scales": [[name, of_pairs[name]] for name in noisiest_pairs[:NAMED]],
        "bias": bias,
        "bias_error": error,
    }


def described(record: Mapping[str, Any]) -> str:
    """Return the figures of a record that matter most."""
    name, share = record["noisiest"][0]
    return f"{record['of_sampling']:.2%} of sampling variance, {name} {share:.1%} of its own"


def table(records: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Return a row for each model, the newest record of each setting."""
    names = ("model", "size", "level", "bits", "batch")
    newest = {tuple(record[name] for name in names): record for record in records}
    return HEADING, [row(record) for record in newest.values()]


def row(record: Record) -> list[str]:
    """Return the figures of one model as words."""
    name, share = record["noisiest"][0]
    return [
        f"{record['model']}, {record['batch']}, {record['size']}",
        f"{variance.less_kept(record):.1f}×",
        f"{record['of_sampling']:.2%}",
        f"{share:.1%}",
        name,
        f"{record['most_of_95_percent']:.1%}",
        str(record["above"]),
        f"{record['share_above']:.1e}",
        str(record["parameters"]),
        str(record["without"]),
        str(record["scales"]),
        f"{record['noise_of_scales']:.3%}",
        *(f"{share:.1%}" for _, share in record["noisiest_scales"][:1] or [("", 0.0)]),
        f"{record['bias']:.1e} ± {record['bias_error']:.1e}",
        f"{record['bias'] / record['bias_error']:.1f}",
    ]
