"""``actnn bench kept``: what autograd keeps after one forward, exact and at each level, and which operations keep it.

Every block of memory that autograd saved counts once, for the operation that saved it first; parameters and buffers do
not count, codes do. Beside that stands by how much the process grew, which counts whatever else is held, outputs too.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from actnn.bench.arguments import add_models, add_recording, different, one_of, parser_of, size, task_of
from actnn.console.arguments import MOST_THREADS, at_least, width
from actnn.console.columns import aligned
from actnn.errors import ActnnError
from actnn.measuring import processes, runs
from actnn.measuring.memory import MALLOC_SETTINGS, resident
from actnn.measuring.processes import Told
from actnn.measuring.records import Record
from actnn.measuring.runs import Group
from actnn.settings import LEVELS
from actnn.workloads.frameworks import trainee
from actnn.workloads.task import EXACT, IMAGENET_SIZE, SIZES, Task, words_of

MODELS = (
    *("vit_b_16", "timm:vit_small_patch16_224", "bert", "gpt2", "llama", "swin_t", "convnext_tiny", "efficientnet_b0"),
    *("mobilenet_v3_large", "googlenet", "timm:regnety_008", "timm:resnetv2_50"),
)
# sites learn their readers in the second step, and widths settle in the third
WARM_UP_STEPS = 3
# how many of the largest exact parts a table names
NAMED = 3
HEADING = ["model, batch, size", "training", "exact", "kept", "ratio", "codes", "grown by forward", "still exact"]
EXAMPLE = "actnn bench kept --models vit_b_16,gpt2:layers=4,width=256,swin_t --levels L2,L3 --bits 2"


def main(argv: Sequence[str]) -> int:
    """Measure all models and levels and print a table."""
    arguments = parse(argv)
    return runs.interruptible(arguments.out, lambda: measure_all(arguments))


def parse(argv: Sequence[str]) -> Namespace:
    """Read the arguments."""
    parser = parser_of("kept", __doc__, EXAMPLE)
    add_models(parser, MODELS)
    parser.add_argument(
        "--levels",
        type=different(one_of(tuple(LEVELS))),
        default=["L3"],
        help=f"comma-separated, of {', '.join(LEVELS)} (default: L3)",
    )
    parser.add_argument("--bits", type=width, default=2, help="average width of codes (default: 2)")
    parser.add_argument("--batch", type=at_least(1), default=2, help="examples in a step (default: 2)")
    parser.add_argument("--size", dest="image_size", type=size, help="of an image, where a model takes them")
    parser.add_argument("--threads", type=at_least(1, MOST_THREADS), default=os.cpu_count() or 1)
    add_recording(parser)
    parser.set_defaults(framework="torch")
    return parser.parse_args(argv)


def measure_all(arguments: Namespace) -> None:
    """Measure one model after the other, its levels beside exact training."""
    tasks = {name: task_for(arguments, name) for name in arguments.models}
    groups = [
        [{"benchmark": "kept"} | task.run_of(name) for name in (EXACT, *arguments.levels)] for task in tasks.values()
    ]
    records = runs.carry_out(
        groups,
        lambda group, told: measured(tasks[group[0]["model"]], group, told),
        out=arguments.out,
        again=arguments.again,
        words=words_of,
        found=described,
        steps=1 + WARM_UP_STEPS * len(arguments.levels),
    )
    print("\n".join(aligned([HEADING, *rows(records)])))


def task_for(arguments: Namespace, model: str) -> Task:
    """Return a step of one of several models, of which only some take images."""
    height, width = arguments.image_size or SIZES.get(model, IMAGENET_SIZE)
    return task_of(arguments, model=model, batch=arguments.batch, height=height, width=width)


def measured(task: Task, group: Group, told: Told) -> list[dict[str, Any]]:
    """Return what each contestant keeps, and its ratio to exact training."""
    found = []
    for run in group:
        settings = {"task": task.settings, "contestant": run["contestant"]}
        try:
            found.append(processes.call(f"{__name__}:weigh", settings, environment=MALLOC_SETTINGS, told=told))
        except ActnnError as problem:
            raise type(problem)(f"{words_of(run)}: {problem}") from problem
    exact = found[0]["kept_bytes"]
    return [each | {"exact_bytes": exact, "kept_ratio": round(exact / max(1, each["kept_bytes"]), 3)} for each in found]


def weigh(settings: Mapping[str, Any], tell: Told) -> dict[str, Any]:
    """Return what autograd keeps after a forward of one contestant, by operation, and by how much the process grew."""
    from actnn.torch.savers import Savers

    trained = trainee(Task.of(settings["task"]), settings["contestant"])
    # exact training too: what a framework allocates once, in its first step, is not kept
    for _ in range(1 if settings["contestant"] == EXACT else WARM_UP_STEPS):
        trained.step(keep_gradients=True)
        tell(1)
    trained.clear(keep=True)
    before = resident("VmRSS")
    with Savers(trained.model) as savers:
        loss = trained.forward()
    growth = resident("VmRSS") - before
    parts = savers.parts(loss)
    return {
        "kept_bytes": sum(part.nbytes for part in parts),
        "code_bytes": sum(part.nbytes for part in parts if part.is_code),
        "forward_bytes": growth,
        "exact_parts": [[part.operation, part.nbytes] for part in parts if not part.is_code],
    }


def described(record: Mapping[str, Any]) -> str:
    """Return the figures of a record that matter most."""
    return f"{megabytes(record['kept_bytes'])} MB kept, {record['kept_ratio']:.1f}× less than exact training"


def rows(records: Sequence[Record]) -> list[list[str]]:
    """Return a row for each model and level, in MB."""
    return [
        [
            f"{record['model']}, {record['batch']}, {record['size']}",
            f"{record['contestant']}, {record['bits']:g} bits" if record["bits"] else record["contestant"],
            *(megabytes(record[name]) for name in ("exact_bytes", "kept_bytes")),
            f"{record['kept_ratio']:.1f}",
            *(megabytes(record[name]) for name in ("code_bytes", "forward_bytes")),
            ", ".join(f"{name} {megabytes(count)}" for name, count in record["exact_parts"][:NAMED]),
        ]
        for record in records
        if record["contestant"] != EXACT
    ]


def megabytes(count: int) -> str:
    """Return a number of bytes in MB."""
    return f"{count / 1e6:.1f}"
