"""``actnn bench step``: one training step, compressed against exact and checkpointed.

Times come from one process in which all contestants take turns; memory from a fresh process for each contestant, with
allocator settings under which resident memory is what the program holds. Those settings cost time, hence two runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actnn.bench import harness, models
from actnn.bench.checkpointing import checkpointed
from actnn.bench.memory import MALLOC_SETTINGS, reset_peak, resident
from actnn.cli.arguments import Parser, at_least
from actnn.cli.training import compressed
from actnn.core.policy import LEVELS
from actnn.errors import ActnnError

if TYPE_CHECKING:
    from torch import nn

AGAINST = ("exact", "checkpoint", *LEVELS)
ALLOCATORS = {"default": {}, "hugepages": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}}
EXAMPLE = "actnn bench step --model resnet50 --batch 8 --size 224 --level L2 --bits 2 --against exact,checkpoint"


def main(argv: Sequence[str]) -> int:
    """Measure all contestants and print one JSON line each."""
    arguments = parse(argv)
    if arguments.child:
        CHILDREN[arguments.child](arguments)
        return 0
    contestants = names(arguments)
    times = {allocator: child(arguments, "times", ALLOCATORS[allocator]) for allocator in arguments.allocators}
    memory = {name: child(arguments, "memory", MALLOC_SETTINGS, name) for name in contestants}
    described = harness.machine()
    for name in contestants:
        harness.write(record(arguments, name, times, memory) | {"machine": described}, arguments.out)
    return 0


def record(arguments: Namespace, name: str, times: dict[str, Any], memory: dict[str, Any]) -> dict[str, Any]:
    """Return all figures of one contestant, with their ratios to exact training where that takes part."""
    result: dict[str, Any] = {"benchmark": "step", "contestant": name, "model": arguments.model}
    result |= {"batch": arguments.batch, "size": arguments.size, "level": name if name in LEVELS else arguments.level}
    result |= {"bits": arguments.bits}
    for allocator, seconds in times.items():
        result[f"step_{allocator}"] = seconds[name]
        if "exact" in seconds:
            result[f"time_ratio_{allocator}"] = round(seconds[name]["seconds"] / seconds["exact"]["seconds"], 4)
    result |= memory[name]
    if "exact" in memory:
        for figure, value in memory["exact"].items():
            result[f"{figure.removesuffix('_bytes')}_ratio"] = round(value / max(1, memory[name][figure]), 3)
    return result


def parse(argv: Sequence[str]) -> Namespace:
    """Read the arguments."""
    parser = Parser(prog="actnn bench step", description=__doc__.partition(": ")[2], epilog=f"example: {EXAMPLE}")
    parser.add_argument("--model", default="resnet50", choices=models.NAMES)
    parser.add_argument("--batch", type=at_least(1), default=8)
    parser.add_argument("--size", type=at_least(16), default=224, help="height and width of an image")
    parser.add_argument("--level", default="L2")
    parser.add_argument("--bits", type=float, default=2, help="average width of codes (default: 2)")
    parser.add_argument("--against", default="exact", help=f"comma-separated: {', '.join(AGAINST)}")
    parser.add_argument("--rounds", type=at_least(1), default=7, help="timed steps of each contestant")
    parser.add_argument("--allocators", default="default", help=f"comma-separated: {', '.join(ALLOCATORS)}")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--rounding", default="dither")
    parser.add_argument("--no-sharing", action="store_true", help="one code for each reader, as in the original")
    parser.add_argument("--threads", type=at_least(1), default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, help="append the lines to this file")
    parser.add_argument("--child", help="used by the benchmark itself")
    parser.add_argument("--contestant", help="used by the benchmark itself")
    arguments = parser.parse_args(argv)
    for given, known in (("against", AGAINST), ("allocators", tuple(ALLOCATORS))):
        values = [value for value in getattr(arguments, given).split(",") if value]
        if unknown := [value for value in values if value not in known]:
            parser.error(f"--{given} {','.join(unknown)}: expected {', '.join(known)}")
        setattr(arguments, given, values)
    return arguments


def names(arguments: Namespace) -> list[str]:
    """Return the contestants in the order in which they run."""
    return [*arguments.against, "actnn"]


def child(arguments: Namespace, what: str, environment: dict[str, str], contestant: str = "") -> dict[str, Any]:
    """Run this module in a fresh process; return the JSON that it prints."""
    command = [sys.executable, "-m", "actnn", "bench", "step", "--child", what, "--contestant", contestant]
    for name in ("model", "batch", "size", "level", "bits", "rounds", "threads", "rounding"):
        command += [f"--{name}", str(getattr(arguments, name))]
    command += ["--against", ",".join(arguments.against)]
    command += ["--channels-last"] * arguments.channels_last + ["--no-sharing"] * arguments.no_sharing
    answer = subprocess.run(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=False)
    if answer.returncode:
        raise ActnnError(f"the process that measures {what} failed with code {answer.returncode}: see above.")
    result: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return result


def contestant(arguments: Namespace, name: str) -> nn.Module:
    """Return one contestant: the same model with the same weights each time."""
    import torch

    torch.manual_seed(0)
    model = models.build(arguments.model)
    if arguments.channels_last:
        model = model.to(memory_format=torch.channels_last)
    if name == "checkpoint":
        return checkpointed(model)
    if name == "actnn" or name in LEVELS:
        level = arguments.level if name == "actnn" else name
        settings = {"share_codes": not arguments.no_sharing, "rounding": arguments.rounding}
        return compressed(model, level, arguments.bits, **settings)
    return model


def training(arguments: Namespace, model: nn.Module) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Return a forward that gives the loss, and the rest of a step that takes it; gradients stay allocated."""
    import torch

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    form = torch.channels_last if arguments.channels_last else torch.contiguous_format
    images = torch.randn(arguments.batch, 3, arguments.size, arguments.size).contiguous(memory_format=form)
    labels = torch.randint(0, 1000, (arguments.batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss()

    def forward() -> Any:
        optimizer.zero_grad(set_to_none=False)
        return criterion(model(images), labels)

    def finish(loss: Any) -> None:
        loss.backward()
        optimizer.step()

    return forward, finish


def measure_times(arguments: Namespace) -> None:
    """Print the times of all contestants, taken in turns."""
    runs = {}
    for name in names(arguments):
        forward, finish = training(arguments, contestant(arguments, name))
        runs[name] = lambda forward=forward, finish=finish: finish(forward())
    times = harness.interleaved(runs, arguments.rounds, warm_up=2)
    print(json.dumps({name: harness.summary(seconds) for name, seconds in times.items()}))


def measure_memory(arguments: Namespace) -> None:
    """Print what one contestant keeps, by how much its forward grows, and the peak of a whole step."""
    model = contestant(arguments, arguments.contestant)
    forward, finish = training(arguments, model)
    for _ in range(2):
        finish(forward())
    before = resident("VmRSS")
    loss = forward()
    growth = resident("VmRSS") - before
    finish(loss)
    del loss
    before = resident("VmRSS")
    reset_peak()
    finish(forward())
    peak = resident("VmHWM") - before
    print(json.dumps({"kept_bytes": kept_bytes(model, forward), "forward_bytes": growth, "peak_bytes": peak}))


def kept_bytes(model: nn.Module, forward: Callable[[], Any]) -> int:
    """Return the bytes that autograd keeps after a forward, the model's own left out."""
    from actnn.torch.memory import KeptBytes

    with KeptBytes(model) as kept:
        loss = forward()
    del loss
    return kept.total


CHILDREN: dict[str, Callable[[Namespace], None]] = {"times": measure_times, "memory": measure_memory}
