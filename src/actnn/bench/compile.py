"""``actnn bench compile``: a training step plain and with codes, each as it is and compiled by torch.compile.

Times come from one process in which all four take turns. Kept is what autograd holds after a forward: every block of
memory that it saved, once, apart from parameters and buffers.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from actnn.bench.arguments import add_models, add_recording, parser_of, size
from actnn.console.arguments import MOST_THREADS, at_least
from actnn.console.columns import aligned
from actnn.measuring import processes, runs, timing
from actnn.measuring.processes import Told
from actnn.measuring.records import Record
from actnn.measuring.runs import Group

MODELS = ("resnet50", "timm:vit_small_patch16_224")
PLAIN, PLAIN_COMPILED, CODED, CODED_COMPILED = CONTESTANTS = ("plain", "plain, compiled", "codes", "codes, compiled")
# compilation, and what sites learn of their readers
WARM_UP_STEPS = 3
HEADING = ["model, batch, size", "training", "step in ms", "of plain compiled", "kept in MB", "less than plain"]
EXAMPLE = "actnn bench compile --models resnet50 --batch 8 --bits 2 --rounds 7"


def main(argv: Sequence[str]) -> int:
    """Measure all models and print a table."""
    arguments = parse(argv)
    return runs.interruptible(arguments.out, lambda: measure_all(arguments))


def parse(argv: Sequence[str]) -> Namespace:
    """Read the arguments."""
    parser = parser_of("compile", __doc__, EXAMPLE)
    add_models(parser, MODELS)
    parser.add_argument("--batch", type=at_least(1), default=8)
    parser.add_argument("--size", type=size, default=(224, 224), help="of an image, such as 224 or 512x1024")
    parser.add_argument("--bits", type=at_least(1, 8), default=2, help="width of codes (default: 2)")
    parser.add_argument("--threads", type=at_least(1, MOST_THREADS), default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=at_least(1), default=7, help="timed steps of each contestant (default: 7)")
    add_recording(parser)
    return parser.parse_args(argv)


def measure_all(arguments: Namespace) -> None:
    """Measure the contestants of one model after the other."""
    groups = [[run_of(arguments, model, name) for name in CONTESTANTS] for model in arguments.models]
    records = runs.carry_out(
        groups,
        measured,
        out=arguments.out,
        again=arguments.again,
        words=lambda run: f"{run['model']}, {run['batch']} images of {run['size']}, {run['contestant']}",
        found=described,
        steps=len(CONTESTANTS) * (arguments.rounds + WARM_UP_STEPS),
    )
    print("\n".join(aligned([HEADING, *map(row, records)])))


def run_of(arguments: Namespace, model: str, contestant: str) -> dict[str, Any]:
    """Return the settings of one run, which its record repeats."""
    height, width = arguments.size
    return {
        "benchmark": "compile",
        "contestant": contestant,
        "model": model,
        "batch": arguments.batch,
        "size": height if height == width else f"{height}x{width}",
        "bits": arguments.bits if contestant in (CODED, CODED_COMPILED) else None,
        "threads": arguments.threads,
        "rounds": arguments.rounds,
    }


def measured(group: Group, told: Told) -> list[dict[str, Any]]:
    """Return the figures of each contestant, with their ratios."""
    settings = dict(group[0]) | {"bits": next(run["bits"] for run in group if run["bits"])}
    found = processes.call(f"{__name__}:measure", settings, told=told)
    compiled, plain = found["seconds"][PLAIN_COMPILED]["seconds"], found["kept"][PLAIN]
    return [
        {
            "step": found["seconds"][name],
            "time_ratio": round(found["seconds"][name]["seconds"] / compiled, 4),
            "kept_bytes": found["kept"][name],
            "kept_ratio": round(plain / max(1, found["kept"][name]), 3),
        }
        for name in CONTESTANTS
    ]


def measure(settings: Mapping[str, Any], tell: Told) -> dict[str, Any]:
    """Return the times of a step and the bytes that it keeps, of all contestants."""
    import torch
    from torch.nn.functional import cross_entropy

    from actnn.torch.memory import KeptBytes

    torch.set_num_threads(settings["threads"])
    torch.manual_seed(0)
    sides = str(settings["size"]).split("x")
    images = torch.randn(settings["batch"], 3, int(sides[0]), int(sides[-1]))
    labels = torch.randint(1000, (settings["batch"],))
    trained = contestants(settings["model"], settings["bits"])

    def step(model: Any) -> None:
        cross_entropy(model(images), labels).backward()
        model.zero_grad(set_to_none=True)

    def turn(name: str) -> None:
        step(trained[name])
        tell(name)

    turns = {name: partial(turn, name) for name in trained}
    seconds = timing.interleaved(turns, settings["rounds"], WARM_UP_STEPS)
    kept = {}
    for name, model in trained.items():
        with KeptBytes(model) as counted:
            loss = cross_entropy(model(images), labels)
        kept[name] = counted.total
        del loss
    return {"seconds": {name: timing.summary(each) for name, each in seconds.items()}, "kept": kept}


def contestants(name: str, bits: int) -> dict[str, Any]:
    """Return four copies of a model in training, one for each contestant."""
    import torch

    from actnn.settings import config
    from actnn.torch import QModule
    from actnn.torch.compiled import compile as compile_with_codes
    from actnn.workloads import models

    def build() -> torch.nn.Module:
        torch.manual_seed(0)
        return models.build(name).train()

    config.set_optimization_level("L2")
    config.activation_compression_bits = [bits]
    compiled: Any = torch.compile(build())
    return {
        PLAIN: build(),
        PLAIN_COMPILED: compiled,
        CODED: QModule(build()),
        CODED_COMPILED: compile_with_codes(build(), bits=bits),
    }


def described(record: Mapping[str, Any]) -> str:
    """Return the figures of a record that matter most."""
    _, _, time, ratio, kept, less = row(record)
    return f"{time} ms a step, {ratio} of plain compiled, {kept} MB kept, {less}× less than plain"


def row(record: Record | Mapping[str, Any]) -> list[str]:
    """Return the figures of a record as a row of the table."""
    return [
        f"{record['model']}, {record['batch']}, {record['size']}",
        f"{record['contestant']}, {record['bits']} bits" if record["bits"] else record["contestant"],
        f"{1e3 * record['step']['seconds']:.0f}",
        f"{record['time_ratio']:.3f}",
        f"{record['kept_bytes'] / 1e6:.1f}",
        f"{record['kept_ratio']:.1f}",
    ]
