"""``actnn bench step``: one training step, compressed against exact and checkpointed.

Times come from contestants in turns, each in a process of its own; memory from a further one for each, with allocator
settings under which resident memory is what the program holds. Those settings cost time, hence two records. The
contestant ``exact-kept-heap`` is exact training where the C library keeps freed blocks, as a conversion tells it to.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from actnn.amounts import readable
from actnn.bench import measurements, tables
from actnn.bench.arguments import add_recording, add_table, add_training, different, one_of, parser_of, size, task_of
from actnn.console.arguments import at_least
from actnn.measuring import runs
from actnn.measuring.processes import Told
from actnn.measuring.runs import Group
from actnn.workloads import options
from actnn.workloads.task import EXACT, Task, words_of

ALLOCATORS = {"default": {}, "hugepages": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}}
WEIGHED = ("kept", "forward", "peak")
EXAMPLE = "actnn bench step --model resnet50 --batch 8 --size 224 --contestants exact,checkpoint,L3 --bits 2"


def main(argv: Sequence[str]) -> int:
    """Measure all contestants and print one JSON line each."""
    arguments = parse(argv)
    return runs.interruptible(arguments.out, lambda: measure_all(arguments))


def parse(argv: Sequence[str]) -> Namespace:
    """Read the arguments."""
    parser = parser_of("step", __doc__, EXAMPLE)
    add_training(parser, contestants=("exact", "checkpoint", "L2", "L3"))
    parser.add_argument("--models", type=options.names, help="several of them, comma-separated, instead of --model")
    parser.add_argument("--batch", type=at_least(1), default=8)
    parser.add_argument("--size", type=size, help="of an image, such as 224 or 512x1024 (default: that of the paper)")
    parser.add_argument("--rounds", type=at_least(1), default=7, help="timed turns of each contestant (default: 7)")
    parser.add_argument(
        "--allocators",
        type=different(one_of(tuple(ALLOCATORS))),
        default=["default"],
        help=f"comma-separated: {', '.join(ALLOCATORS)}",
    )
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--rounding", default="dither")
    parser.add_argument("--no-sharing", action="store_true", help="one code for each reader, as in the original")
    add_recording(parser)
    add_table(parser)
    return parser.parse_args(argv)


def measure_all(arguments: Namespace) -> None:
    """Measure the contestants of a model as one group, since their times are compared with each other's."""
    models = arguments.models or [arguments.model]
    tasks = {
        model: task_of(
            arguments,
            model=model,
            batch=arguments.batch,
            channels_last=arguments.channels_last,
            rounding=arguments.rounding,
            share_codes=not arguments.no_sharing,
        )
        for model in models
    }
    common = {"rounds": arguments.rounds, "allocators": arguments.allocators}
    runs.print_all(
        [
            [{"benchmark": "step"} | task.run_of(name) | common for name in arguments.contestants]
            for task in tasks.values()
        ],
        lambda group, told: measured(tasks[group[0]["model"]], group, told),
        arguments,
        table=tables.step if arguments.table else None,
        words=words_of,
        found=described,
    )


def measured(task: Task, group: Group, told: Told) -> list[dict[str, Any]]:
    """Return all figures of each contestant, with their ratios to exact training where that takes part."""
    names = [run["contestant"] for run in group]
    times = {
        allocator: measurements.times_of(task, names, group[0]["rounds"], ALLOCATORS[allocator], told)
        for allocator in group[0]["allocators"]
    }
    memory = {name: measurements.memory_of(task, name, told) for name in names}
    return [figures(name, times, memory) for name in names]


def figures(name: str, times: Mapping[str, Any], memory: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of one contestant."""
    result: dict[str, Any] = {}
    for allocator, seconds in times.items():
        result[f"step_{allocator}"] = seconds[name]
        if EXACT in seconds:
            result[f"time_ratio_{allocator}"] = round(seconds[name]["seconds"] / seconds[EXACT]["seconds"], 4)
    result |= memory[name]
    if EXACT in memory:
        for figure in WEIGHED:
            ratio = memory[EXACT][f"{figure}_bytes"] / max(1, memory[name][f"{figure}_bytes"])
            result[f"{figure}_ratio"] = round(ratio, 3)
    return result


def described(record: Mapping[str, Any]) -> str:
    """Return the figures of a record that matter most."""
    allocator = record["allocators"][0]
    return f"{record[f'step_{allocator}']['seconds']:.3f} s a step, {readable(record['kept_bytes'])} kept"
