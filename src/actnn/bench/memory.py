"""``actnn bench memory``: what training takes, by batch size: activations and all of the process's memory.

Activations are what the network keeps for backward (what the loss keeps is recorded apart); the total is the peak of a
child process above a process without a model. Batches that do not fit are computed and marked so: exact training on
tensors without memory, all others from what two small batches keep.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from actnn.amounts import readable
from actnn.bench import measurements
from actnn.bench.arguments import add_models, add_recording, add_training, different, parser_of, size, task_of
from actnn.console.arguments import amount, at_least
from actnn.measuring import memory, runs
from actnn.measuring.processes import Told
from actnn.measuring.runs import Group
from actnn.workloads import language
from actnn.workloads.frameworks.torch import TorchTrainee
from actnn.workloads.task import EXACT, Task, words_of

if TYPE_CHECKING:
    from torch import Tensor

# the paper's table
BATCHES = {"resnet152": (32, 64), "fcn_hrnet_w48": (2, 4)}
SMALL_BATCHES = (2, 4)
# what else a step needs beside activations and the model: outputs, workspaces, temporary gradients
ROOM = 1.25
EXAMPLE = "actnn bench memory --models resnet152 --batches 32,64 --contestants exact,L3"


def main(argv: Sequence[str]) -> int:
    """Measure or compute all contestants and print one JSON line each."""
    arguments = parse(argv)
    return runs.interruptible(arguments.out, lambda: measure_all(arguments))


def parse(argv: Sequence[str]) -> Namespace:
    """Read the arguments."""
    parser = parser_of("memory", __doc__, EXAMPLE)
    add_models(parser, list(BATCHES))
    parser.add_argument("--batches", type=different(at_least(1)), help="default: those of the paper's table")
    parser.add_argument("--size", type=size, help="of an image, such as 224 or 512x1024 (default: that of the paper)")
    parser.add_argument("--memory-limit", type=amount, help="compute what needs more (default: what is available)")
    add_training(parser, contestants=("exact", "L2", "L3"), model=None)
    add_recording(parser)
    return parser.parse_args(argv)


def measure_all(arguments: Namespace) -> None:
    """Measure or compute each model, batch and contestant; each is a run of its own."""
    tasks = {
        (model, batch): task_of(arguments, model=model, batch=batch)
        for model in arguments.models
        for batch in arguments.batches or BATCHES.get(model, (8,))
    }
    limit = arguments.memory_limit or memory.available()

    def measured(group: Group, told: Told) -> list[dict[str, Any]]:
        (run,) = group
        return [figures(tasks[run["model"], run["batch"]], run["contestant"], told, limit)]

    groups = [
        [{"benchmark": "memory"} | task.run_of(name)] for task in tasks.values() for name in arguments.contestants
    ]

    # what was computed is measured where it fits by now
    def counts(record: Mapping[str, Any]) -> bool:
        return record.get("how") != "computed" or not fits(record, limit)

    runs.print_all(groups, measured, arguments, words=words_of, found=described, counts=counts)


def figures(task: Task, contestant: str, told: Told, limit: int) -> dict[str, Any]:
    """Return the memory of one contestant, measured if it fits, else computed."""
    # nobody needs more than exact training, so that what fits for it need not be computed for others
    for bound in dict.fromkeys((EXACT, contestant)):
        calculated = computed(task, bound, told)
        if fits(calculated, limit):
            found = measurements.memory_of(task, contestant, told)
            return {"how": "measured", "activation_bytes": found["kept_bytes"] - found["loss_bytes"]} | found
    return calculated


def fits(calculated: Mapping[str, Any], limit: int) -> bool:
    """Tell whether what was computed can be measured within so much memory."""
    return bool(ROOM * calculated["total_bytes"] <= limit)


def computed(task: Task, contestant: str, told: Told) -> dict[str, Any]:
    """Return the memory that one contestant needs at least, without training it at that size."""
    # language models look at values that such tensors do not have
    if contestant == EXACT and task.framework == "torch" and language.find(task.model) is None:
        found = exact_bytes(task)
    else:
        small = [
            measurements.memory_of(Task.of(task.settings | {"batch": batch}), contestant, told)
            for batch in SMALL_BATCHES
        ]
        names = ("kept_bytes", "loss_bytes", "own_bytes")
        found = {name: line(task.batch, [each[name] for each in small]) for name in names}
    return {
        "how": "computed",
        "activation_bytes": found["kept_bytes"] - found["loss_bytes"],
        "total_bytes": found["kept_bytes"] + found["own_bytes"],
    } | found


def exact_bytes(task: Task) -> dict[str, int]:
    """Return ``kept_bytes``, ``loss_bytes`` and ``own_bytes`` of exact training, from tensors without memory."""
    import torch
    from torch.autograd.graph import saved_tensors_hooks

    with torch.device("meta"):
        trained = TorchTrainee(task, EXACT)
        own = {id(storage) for storage in storages(trained.model)}
        # held as long as they are counted: an address means nothing without memory, and an identity would be reused
        blocks: dict[int, Any] = {}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            blocks[id(storage)] = storage
            return tensor

        def counted() -> int:
            return sum(storage.nbytes() for key, storage in blocks.items() if key not in own)

        with saved_tensors_hooks(note, lambda tensor: tensor):
            outputs = trained.outputs()
            network = counted()
            trained.loss(outputs)
        return {
            "kept_bytes": counted(),
            "loss_bytes": counted() - network,
            "own_bytes": trained.own_bytes(),
        }


def storages(model: Any) -> list[Any]:
    """Return the blocks of memory of a model's own tensors."""
    return [tensor.untyped_storage() for tensor in (*model.parameters(), *model.buffers())]


def line(batch: int, needs: Sequence[int]) -> int:
    """Return the need of a batch on the line through those of the small batches."""
    slope = (needs[1] - needs[0]) / (SMALL_BATCHES[1] - SMALL_BATCHES[0])
    return round(needs[0] + slope * (batch - SMALL_BATCHES[0]))


def described(record: Mapping[str, Any]) -> str:
    """Return the figures of a record that matter most."""
    activations, total = (readable(record[name]) for name in ("activation_bytes", "total_bytes"))
    return f"activations {activations}, total {total}, {record['how']}"
