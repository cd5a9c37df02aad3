"""The command line: ``actnn doctor | demo | train | profile | run | bench …``, each imported only when it is called."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import NamedTuple, NoReturn

from actnn.console import INTERRUPTED
from actnn.errors import ActnnError

# what a shell reports of a program that wrote to a closed pipe
PIPE_CLOSED = 141
# how the system says that output cannot be written
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
GROUP = "bench "


class Command(NamedTuple):
    """A command: its function as ``module:function``, taking the remaining arguments and returning an exit code."""

    target: str
    summary: str

    def load(self) -> Callable[[Sequence[str]], int]:
        """Import the function."""
        module, function = self.target.split(":")
        loaded: Callable[[Sequence[str]], int] = getattr(import_module(module), function)
        return loaded


COMMANDS = {
    "doctor": Command("actnn.cli.doctor:main", "say what was found: frameworks, kernels, processor, versions"),
    "demo": Command("actnn.cli.demo:main", "train a small ResNet exactly and compressed, and compare the two"),
    "train": Command("actnn.cli.train:main", "train for a task, with checkpoints that resume exactly"),
    "profile": Command("actnn.cli.profile:main", "show where the memory of a training step goes, layer by layer"),
    "run": Command("actnn.cli.run:main", "run a command with an allocator that keeps memory in order"),
    "bench kernels": Command("actnn.bench.kernels:main", "time the kernels against memcpy and memset"),
    "bench variance": Command("actnn.bench.variance:main", "measure the noise that codes add to a gradient"),
    "bench noise": Command("actnn.bench.noise:main", "hold the noise of many models against their sampling noise"),
    "bench convergence": Command(
        "actnn.bench.convergence:main", "train at every level and width, and compare accuracy"
    ),
    "bench losses": Command("actnn.bench.losses:main", "compare the losses of real models over their first steps"),
    "bench tasks": Command("actnn.bench.tasks:main", "train every task with every contestant, over seeds"),
    "bench step": Command("actnn.bench.step:main", "time and weigh a training step against exact training"),
    "bench compile": Command("actnn.bench.compile:main", "compare steps plain and with codes, compiled and not"),
    "bench overhead": Command("actnn.bench.overhead:main", "time what conversion adds to a step of tiny tensors"),
    "bench memory": Command("actnn.bench.memory:main", "weigh training by batch size, as in the paper's table"),
    "bench roofline": Command("actnn.bench.roofline:main", "estimate kernels of accelerators, without one"),
    "bench kept": Command("actnn.bench.kept:main", "name what autograd keeps of real models, by operation"),
    "bench speed": Command("actnn.bench.speed:main", "count images a second by batch size"),
    "bench scaling": Command("actnn.bench.scaling:main", "compare steps of one process with those of several"),
    "bench maxbatch": Command("actnn.bench.maxbatch:main", "find the largest batch under a memory limit"),
    "bench maxmodel": Command("actnn.bench.maxmodel:main", "find the largest model under a memory limit"),
    "bench fragmentation": Command(
        "actnn.bench.fragmentation:main", "compare what is resident with what lives, over changing shapes"
    ),
    "bench tables": Command("actnn.bench.tables:main", "write committed records as tables into a Markdown file"),
    "bench plots": Command("actnn.bench.plots:main", "draw committed records"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 1 for an error, 2 for bad arguments, 130 when interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # a question mark for what the encoding lacks
            stream.reconfigure(errors="replace")
    try:
        return flushed(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        print("actnn: interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        discard_output()
        return PIPE_CLOSED
    except OSError as problem:
        if problem.errno not in UNWRITABLE:
            raise
        discard_output()
        print(f"actnn: the output cannot be written: {problem}. Make room, or send it elsewhere.", file=sys.stderr)
        return 1


def flushed(arguments: Sequence[str]) -> int:
    """Run one command and write out what it printed."""
    try:
        return carry_out(arguments)
    finally:
        # as Python ends, a failure could not be handled any more
        if sys.stdout is not None:
            sys.stdout.flush()


def carry_out(arguments: Sequence[str]) -> int:
    """Run one command; an error of actnn is one line."""
    name = called(arguments)
    if name is None:
        reject(arguments)
    try:
        return COMMANDS[name].load()(arguments[len(name.split()) :])
    except ActnnError as error:
        print(f"actnn: {error}", file=sys.stderr)
        return 1


def discard_output() -> None:
    """Let the rest of the output go nowhere: Python would try to write it once more as it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def called(arguments: Sequence[str]) -> str | None:
    """Return the command that the arguments begin with."""
    return next((name for name in COMMANDS if list(arguments[: len(name.split())]) == name.split()), None)


def reject(arguments: Sequence[str]) -> NoReturn:
    """Answer a call without a known command: help and version where asked for, otherwise exit code 2."""
    from argparse import RawDescriptionHelpFormatter

    from actnn import __version__
    from actnn.console.arguments import Parser

    group = GROUP if arguments[:1] == GROUP.split() else ""
    given = arguments[len(group.split()) :]
    known = {name.removeprefix(group): command for name, command in COMMANDS.items() if name.startswith(group)}
    width = max(map(len, known))
    prog = f"actnn {group}".strip()
    parser = Parser(
        prog=prog,
        usage=f"{prog} [--help] [--version] command …",
        description="Activation compressed training.",
        epilog="commands:\n" + "\n".join(f"  {name:<{width}} {command.summary}" for name, command in known.items()),
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    if given and given[0].startswith("-"):
        parser.parse_args(given)
    complaint = f"unknown command {given[0]!r}" if given else "no command given"
    parser.error(f"{complaint}: expected one of {', '.join(known)}")
