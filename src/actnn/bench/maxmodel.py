"""``actnn bench maxmodel``: the deepest, the widest and the largest-image ResNet that trains under a memory limit.

The scaled ResNet is ResNet-152 at depth 152 and width 64. Searched as by ``bench maxbatch``.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from actnn.bench import limits
from actnn.bench.arguments import add_recording, add_training, different, one_of, parser_of, size, task_of
from actnn.bench.limits import Limits, Scale, add_limits
from actnn.console.arguments import at_least
from actnn.measuring import runs
from actnn.workloads import resnets
from actnn.workloads.task import CONTESTANTS, Task

WANTED = ("exact", "checkpoint", "L3", "L4", "L5")
DIMENSIONS = ("depth", "width", "resolution")
EXAMPLE = "actnn bench maxmodel --dimensions depth,width --batch 16 --memory-limit 6GB --contestants exact,L3"


def main(argv: Sequence[str]) -> int:
    """Search for all dimensions and contestants and print one JSON line each."""
    arguments = parse(argv)
    return runs.interruptible(arguments.out, lambda: search_all(arguments))


def parse(argv: Sequence[str]) -> Namespace:
    """Read the arguments."""
    parser = parser_of("maxmodel", __doc__, EXAMPLE)
    parser.add_argument(
        "--dimensions",
        type=different(one_of(DIMENSIONS)),
        default=list(DIMENSIONS),
        help=f"what grows: of {', '.join(DIMENSIONS)} (default: all)",
    )
    add_training(parser, contestants=[name for name in WANTED if name in CONTESTANTS], model=None)
    parser.add_argument("--batch", type=at_least(1), default=16, help="default: 16")
    parser.add_argument("--size", type=size, help="of an image where depth or width grows (default: 224)")
    add_limits(parser, "6GB")
    add_recording(parser)
    return parser.parse_args(argv)


def scales(arguments: Namespace) -> dict[str, Scale]:
    """Return how the ResNet grows in each dimension."""

    def task(**changed: Any) -> Task:
        return task_of(arguments, **({"model": "resnet152", "batch": arguments.batch} | changed))

    return {
        "depth": Scale(lambda depth: task(model=f"resnet-{depth}"), resnets.SMALLEST_DEPTH, (120, 152)),
        # weights grow by the square of the width, activations by the width
        "width": Scale(lambda width: task(model=f"wide-resnet-{width}"), 4, (32, 64), 1.5),
        "resolution": Scale(lambda pixels: task(height=pixels, width=pixels), 32, (96, 160), 2),
    }


def search_all(arguments: Namespace) -> None:
    """Search for each dimension and contestant; each is a run of its own."""
    how, growing = Limits.of(arguments), scales(arguments)
    planned = []
    for dimension in arguments.dimensions:
        for name in arguments.contestants:
            run = growing[dimension].task(growing[dimension].least).run_of(name)
            # what grows is no setting
            run |= {"model": "scaled resnet", "size": None if dimension == "resolution" else run["size"]}
            planned.append([{"benchmark": "maxmodel", "dimension": dimension} | run | how.settings])
    runs.print_all(
        planned,
        lambda group, told: [limits.search(growing[group[0]["dimension"]], group[0]["contestant"], how, told)],
        arguments,
        words=lambda run: f"{run['dimension']}, {run['memory_limit'] / 1e9:g} GB, {run['contestant']}",
        found=lambda record: f"{record['largest']} fits, {record['too_large']} does not",
    )
