"""``actnn bench scaling``: step time, kept bytes and bytes sent at 1, 2, … processes that share one batch (DDP, gloo).

The batch of all processes together is the same for every count, and so is the number of threads: what changes is how
they are shared out. Every count is a group of fresh processes; the first one's times count: all wait for each other.
"""

from __future__ import annotations

import os
import socket
from argparse import Namespace
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from actnn.amounts import readable
from actnn.bench.arguments import add_recording, add_training, different, parser_of, size, task_of
from actnn.console.arguments import at_least
from actnn.errors import ConfigError
from actnn.measuring import processes, runs, timing
from actnn.measuring.processes import Told
from actnn.measuring.runs import Group
from actnn.workloads.frameworks import trainee
from actnn.workloads.processes import DDP, distributed_model, joined
from actnn.workloads.task import EXACT, OF_WHOLE_PROCESS, Task, words_of

COUNTS = (1, 2)
CONTESTANTS = (EXACT, "L2", "L3")
# a level learns in its first steps who reads its codes, and DDP which gradients come together
WARM_UP_STEPS = 3
EXAMPLE = "actnn bench scaling --model resnet50 --batch 16 --processes 1,2"


def main(argv: Sequence[str]) -> int:
    """Measure all contestants at all counts of processes and print one JSON line each."""
    arguments = parse(argv)
    return runs.interruptible(arguments.out, lambda: measure_all(arguments))


def parse(argv: Sequence[str]) -> Namespace:
    """Read the arguments."""
    parser = parser_of("scaling", __doc__, EXAMPLE)
    add_training(parser, contestants=CONTESTANTS)
    counts = ",".join(map(str, COUNTS))
    parser.add_argument("--batch", type=at_least(1), default=16, help="of all processes together (default: 16)")
    parser.add_argument(
        "--processes", type=different(at_least(1)), default=list(COUNTS), help=f"comma-separated (default: {counts})"
    )
    parser.add_argument("--size", type=size, help="of an image, such as 224 or 512x1024 (default: that of the paper)")
    parser.add_argument("--rounds", type=at_least(1), default=2, help="turns of each count (default: 2)")
    parser.add_argument("--steps", type=at_least(1), default=3, help="timed steps of a turn (default: 3)")
    add_recording(parser)
    arguments = parser.parse_args(argv)
    if arguments.framework != "torch":
        parser.error("the processes share out models of torch: leave --framework out")
    if disturbing := [name for name in arguments.contestants if name in OF_WHOLE_PROCESS]:
        parser.error(f"{' and '.join(disturbing)} changes how the whole process works: leave it out")
    for count in arguments.processes:
        if arguments.batch % count:
            parser.error(f"--batch {arguments.batch} cannot be shared out evenly to {count} processes")
    return arguments


def measure_all(arguments: Namespace) -> None:
    """Measure one contestant after the other, its counts of processes in turns."""
    task = task_of(arguments, batch=arguments.batch)
    common = {"rounds": arguments.rounds, "steps": arguments.steps}
    groups = [
        [{"benchmark": "scaling"} | task.run_of(name) | common | {"processes": count} for count in arguments.processes]
        for name in arguments.contestants
    ]
    runs.print_all(
        groups,
        lambda group, told: measured(task, group, told),
        arguments,
        words=lambda run: f"{words_of(run)}, {run['processes']} processes",
        found=described,
    )


def measured(task: Task, group: Group, told: Told) -> list[dict[str, Any]]:
    """Return the figures of each count of processes."""
    seconds: dict[int, list[float]] = {run["processes"]: [] for run in group}
    last: dict[int, dict[str, Any]] = {}
    for _ in range(group[0]["rounds"]):
        for run in group:
            count = run["processes"]
            last[count] = turn(task, run, told)
            seconds[count] += last[count].pop("seconds")
    return [figures(task, seconds[count], last[count]) for count in seconds]


def turn(task: Task, run: Mapping[str, Any], told: Told) -> dict[str, Any]:
    """Let so many processes take some steps together; return what the first one measured."""
    count = run["processes"]
    shared = Task.of(task.settings | {"batch": task.batch // count, "threads": max(1, task.threads // count)})
    settings = {"task": shared.settings, "contestant": run["contestant"], "steps": run["steps"]}
    port = str(free_port())

    def one(rank: int) -> dict[str, Any]:
        place = {"RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = place | {"GLOO_SOCKET_IFNAME": loopback(), "OMP_NUM_THREADS": str(shared.threads)}
        tell = told if rank == 0 else processes.nobody
        return processes.call(f"{__name__}:steps", settings, environment=environment, told=tell)

    with ThreadPoolExecutor(count) as pool:
        first, *_ = pool.map(one, range(count))
        return first


def free_port() -> int:
    """Return a port of this machine that nobody listens to."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def loopback() -> str:
    """Return the network interface by which processes of one machine reach each other."""
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    if not names:
        raise ConfigError("this machine has no loopback interface: set GLOO_SOCKET_IFNAME and use torchrun instead.")
    return os.environ.get("GLOO_SOCKET_IFNAME", names[0])


def steps(settings: Mapping[str, Any], tell: Told) -> dict[str, Any]:
    """Take steps in one of the processes; return their times, what the last one kept, and what it sent."""
    task = Task.of(settings["task"])
    with joined(DDP if int(os.environ["WORLD_SIZE"]) > 1 else None) as group:
        trained = trainee(task, settings["contestant"])
        kept = trained.kept()["kept_bytes"]
        learner, reduced = trained.model, [0]
        if group.together:
            learner = distributed_model(trained.model, group)
            # DDP takes no hook whose arguments are annotated by other names than its own
            learner.register_comm_hook(reduced, lambda state, bucket: counted(state, bucket))
        trained.model = learner
        seconds: list[float] = []
        for turn in range(WARM_UP_STEPS + settings["steps"]):
            group.wait()
            reduced[0], before = 0, written()
            taken = timing.timed(lambda: trained.step(keep_gradients=True))
            sent = written() - before
            seconds += taken if turn >= WARM_UP_STEPS else []
            tell(1)
    return {"seconds": seconds, "kept_bytes": kept, "reduced_bytes": reduced[0], "sent_bytes": sent}


def counted(total: list[int], bucket: Any) -> Any:
    """Average a bucket of gradients over all processes, as DDP does by itself, and count its bytes."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    total[0] += bucket.buffer().nbytes
    return allreduce_hook(None, bucket)  # type: ignore[arg-type]


def written() -> int:
    """Return the bytes that this process has written to anything, connections to other processes among them."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))


def figures(task: Task, seconds: list[float], last: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of one count of processes."""
    step = timing.summary(seconds)
    return {**last, "step": step, "images_per_second": round(task.batch / step["seconds"], 3)}


def described(record: Mapping[str, Any]) -> str:
    """Return the figures of a record that matter most."""
    kept, sent = readable(record["kept_bytes"]), readable(record["sent_bytes"])
    return f"{record['step']['seconds']:.3f} s a step, each process keeps {kept} and sends {sent}"
