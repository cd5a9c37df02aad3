"""What benchmarks measure inside a child: times in turns, memory, and whether a training step fits."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import Any

from actnn.measuring import processes, timing, turns
from actnn.measuring.memory import MALLOC_SETTINGS, peak_growth, reset_peak, resident
from actnn.measuring.processes import Told
from actnn.measuring.turns import Baton
from actnn.workloads import language
from actnn.workloads.frameworks import trainee
from actnn.workloads.peers import PEERS
from actnn.workloads.task import EXACT, Task

WARM_UP_STEPS = 2


def call(name: str, task: Task, *, told: Told = processes.nobody, **options: Any) -> dict[str, Any]:
    """Carry out one of the measurements below in a child.

    ``environment``, ``data_limit`` and ``timeout`` are the child's, all other options the measurement's.
    """
    own = {key: options.pop(key) for key in ("environment", "data_limit", "timeout") if key in options}
    return processes.call(f"{__name__}:{name}", {"task": task.settings, **options}, told=told, **own)


def memory_of(task: Task, contestant: str, told: Told = processes.nobody) -> dict[str, Any]:
    """Return the memory of one contestant, from a child in which resident memory is what the program holds."""
    return call("memory", task, contestant=contestant, environment=MALLOC_SETTINGS, told=told)


def times_of(
    task: Task, contestants: Sequence[str], rounds: int, environment: Mapping[str, str], told: Told
) -> dict[str, dict[str, Any]]:
    """Return the times of a step of each contestant, which take turns."""
    settings = {name: {"task": task.settings, "contestant": name, "rounds": rounds} for name in contestants}
    return turns.call(f"{__name__}:times", settings, environment=environment, told=told)


def times(settings: Mapping[str, Any], tell: Told) -> dict[str, Any]:
    """Return the times of a step of one contestant, in turns with those of other processes."""
    trained = trainee(Task.of(settings["task"]), settings["contestant"])

    def step() -> None:
        trained.step(keep_gradients=True)
        tell(1)

    return timing.summary(Baton.of(settings).seconds(step, settings["rounds"], WARM_UP_STEPS))


def memory(settings: Mapping[str, Any], tell: Told) -> dict[str, Any]:
    """Return what one contestant keeps, by how much its forward grows, and the peaks of a whole step.

    ``peak_bytes`` is above model, gradients and optimizer, ``total_bytes`` above a process without a model.
    """
    task = Task.of(settings["task"])
    # a tiny model first: what the framework allocates once is not the model's; not every method takes that one
    contestant = settings["contestant"]
    trainee(smallest(task), EXACT if contestant in PEERS else contestant).step()
    gc.collect()
    empty = resident("VmRSS")
    trained = trainee(task, contestant)
    for _ in range(WARM_UP_STEPS):
        trained.step(keep_gradients=True)
        tell(1)
    trained.clear(keep=True)
    before = resident("VmRSS")
    loss = trained.forward()
    growth = resident("VmRSS") - before
    trained.finish(loss)
    del loss
    tell(1)
    trained.clear(keep=True)
    settled = resident("VmRSS")
    peak = peak_growth(lambda: trained.step(keep_gradients=True))
    tell(1)
    figures = {"forward_bytes": growth, "peak_bytes": peak, "total_bytes": settled - empty + peak}
    return trained.kept() | figures | {"own_bytes": trained.own_bytes()}


def smallest(task: Task) -> Task:
    """Return the same task with a small model and batch; a language model brings its package along."""
    model = language.find(task.model)
    small = {"model": "resnet18" if model is None else model.smallest, "batch": 2, "height": 32, "width": 32}
    return Task.of(task.settings | small)


def trial(settings: Mapping[str, Any], tell: Told) -> dict[str, Any]:
    """Take some steps of one contestant; return their times, and how much private memory the last one needed at most.

    Ends with an error of memory where a step does not fit.
    """
    task = Task.of(settings["task"])
    trained = trainee(task, settings["contestant"])
    seconds: list[float] = []
    peak = 0
    for _ in range(settings["steps"]):
        private = resident("VmData") - resident("VmRSS")
        reset_peak()
        seconds += timing.timed(trained.step)
        peak = private + resident("VmHWM")
        tell(1)
    return {"seconds": seconds, "private_bytes": peak}
