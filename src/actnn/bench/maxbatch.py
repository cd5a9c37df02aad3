"""``actnn bench maxbatch``: the largest batch that trains under a hard memory limit, by contestant.

Each trial is a fresh process that may not have more private memory (RLIMIT_DATA) and takes real training steps with
momentum. The search begins at what two small batches let expect, goes on in doubling strides, and ends by bisection.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from actnn.bench import limits
from actnn.bench.arguments import add_recording, add_training, parser_of, size, task_of
from actnn.bench.limits import Limits, Scale, add_limits
from actnn.measuring import runs
from actnn.workloads.task import CONTESTANTS

WANTED = ("exact", "checkpoint", "L1", "L2", "L3", "L3.1", "L4", "L5")
PROBES = (4, 8)
EXAMPLE = "actnn bench maxbatch --model resnet50 --size 224 --memory-limit 3GB --contestants exact,L3"


def main(argv: Sequence[str]) -> int:
    """Search for all contestants and print one JSON line each."""
    arguments = parse(argv)
    return runs.interruptible(arguments.out, lambda: search_all(arguments))


def parse(argv: Sequence[str]) -> Namespace:
    """Read the arguments."""
    parser = parser_of("maxbatch", __doc__, EXAMPLE)
    add_training(parser, contestants=[name for name in WANTED if name in CONTESTANTS])
    parser.add_argument("--size", type=size, help="of an image, such as 224 or 512x1024 (default: that of the paper)")
    add_limits(parser, "3GB")
    add_recording(parser)
    return parser.parse_args(argv)


def search_all(arguments: Namespace) -> None:
    """Search for each contestant; each is a run of its own."""
    how = Limits.of(arguments)
    scale = Scale(lambda batch: task_of(arguments, batch=batch), least=1, probes=PROBES)
    planned = [{"benchmark": "maxbatch"} | scale.task(1).run_of(name) | how.settings for name in arguments.contestants]
    for run in planned:
        del run["batch"]
    runs.print_all(
        [[run] for run in planned],
        lambda group, told: [limits.search(scale, group[0]["contestant"], how, told)],
        arguments,
        words=lambda run: f"{run['model']}, {run['size']}, {run['memory_limit'] / 1e9:g} GB, {run['contestant']}",
        found=lambda record: f"batch {record['largest']} fits, {record['too_large']} does not",
    )
