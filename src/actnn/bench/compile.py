"""``actnn bench compile``: a training step plain and with codes, each as it is and compiled by torch.compile.

Times come from four processes that take turns. Kept is what autograd holds after a forward: every block of memory that
it saved, once, apart from parameters and buffers.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from actnn.bench.arguments import add_models, add_recording, parser_of, size
from actnn.console.arguments import MOST_THREADS, at_least
from actnn.console.columns import aligned
from actnn.measuring import runs, timing, turns
from actnn.measuring.processes import Told
from actnn.measuring.records import Record
from actnn.measuring.runs import Group
from actnn.measuring.turns import Baton
from actnn.workloads.training import compressed

if TYPE_CHECKING:
    from torch import nn

MODELS = ("resnet50", "timm:vit_small_patch16_224")
PLAIN, PLAIN_COMPILED, CODED, CODED_COMPILED = "plain", "plain, compiled", "codes", "codes, compiled"
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
    found = turns.call(f"{__name__}:measure", {run["contestant"]: run for run in group}, told=told)
    compiled, plain = found[PLAIN_COMPILED]["step"]["seconds"], found[PLAIN]["kept_bytes"]
    return [
        {
            "step": each["step"],
            "time_ratio": round(each["step"]["seconds"] / compiled, 4),
            "kept_bytes": each["kept_bytes"],
            "kept_ratio": round(plain / max(1, each["kept_bytes"]), 3),
        }
        for each in (found[name] for name in CONTESTANTS)
    ]


def measure(settings: Mapping[str, Any], tell: Told) -> dict[str, Any]:
    """Return the times of a step and the bytes that it keeps, of one contestant in turns with others."""
    import torch
    from torch.nn.functional import cross_entropy

    from actnn.torch.memory import KeptBytes

    torch.set_num_threads(settings["threads"])
    torch.manual_seed(0)
    sides = str(settings["size"]).split("x")
    images = torch.randn(settings["batch"], 3, int(sides[0]), int(sides[-1]))
    labels = torch.randint(1000, (settings["batch"],))
    model = CONTESTANTS[settings["contestant"]](built(settings["model"]), settings["bits"])

    def step() -> None:
        cross_entropy(model(images), labels).backward()
        model.zero_grad(set_to_none=True)
        tell(1)

    seconds = Baton.of(settings).seconds(step, settings["rounds"], WARM_UP_STEPS)
    with KeptBytes(model) as counted:
        loss = cross_entropy(model(images), labels)
    del loss
    return {"step": timing.summary(seconds), "kept_bytes": counted.total}


def built(name: str) -> Any:
    """Return a model in training; all of a name have the same weights."""
    import torch

    from actnn.workloads import models

    torch.manual_seed(0)
    return models.build(name).train()


def compiled(model: nn.Module) -> Any:
    """Return a plain model compiled."""
    import torch

    return torch.compile(model)


def compiled_with_codes(model: nn.Module, bits: int) -> Any:
    """Return a model compiled with codes in the place of what its forward saves."""
    from actnn.torch.compiled import compile

    return compile(model, bits=bits)


# what each makes of a plain model and the width of codes
CONTESTANTS: dict[str, Callable[[Any, Any], Any]] = {
    PLAIN: lambda model, bits: model,
    PLAIN_COMPILED: lambda model, bits: compiled(model),
    CODED: lambda model, bits: compressed(model, "L2", bits),
    CODED_COMPILED: compiled_with_codes,
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
