"""``actnn train`` in pairs of processes with the environment that torchrun gives them.

``python trained_together.py FOLDER NAME=ARGUMENTS…``, the arguments as JSON, imports what they need once and forks the
processes of each run, which train into ``FOLDER/NAME``; what they say goes to ``FOLDER/NAME.txt``.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import traceback
from pathlib import Path

import torch

from actnn import cli

PROCESSES = 2
# what a forked process is not to import by itself
IMPORTED = (
    "sklearn.datasets",
    "small_classifiers",
    "actnn.cli.train",
    "actnn.torch.sharded",
    "actnn.workloads.runs.run",
    "torch.distributed.fsdp",
)


def forked(rank: int, port: int, arguments: list[str], said: Path) -> int:
    """Begin to train in one of the processes; return its number."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(PROCESSES)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        with said.open("a", buffering=1) as words:
            sys.stdout = sys.stderr = words
            code = cli.main(["train", *arguments])
    except BaseException:
        with said.open("a") as words:
            traceback.print_exc(file=words)
    finally:
        # nothing of the parent's is to be cleaned up here
        os._exit(code)


def free_port() -> int:
    """Return a port of this machine that nobody listens to."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def main(folder: Path, runs: list[str]) -> int:
    """Carry out some runs one after the other; return 1 where a process failed."""
    for name in IMPORTED:
        importlib.import_module(name)
    failed = False
    for run in runs:
        name, _, arguments = run.partition("=")
        port, said = free_port(), folder / f"{name}.txt"
        given = [*json.loads(arguments), "--out", str(folder / name)]
        for process in [forked(rank, port, given, said) for rank in range(PROCESSES)]:
            failed |= os.waitpid(process, 0)[1] != 0
    return int(failed)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
