"""``actnn profile``: where the memory of a training step goes, layer by layer, exact against compressed."""

from __future__ import annotations

import errno
import json
import os
import sys
from argparse import ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from actnn.console.arguments import Parser, amount, at_least, width
from actnn.console.extras import require
from actnn.errors import ActnnError, ConfigError
from actnn.files import write_atomically
from actnn.measuring import machine, processes
from actnn.measuring.memory import MALLOC_SETTINGS, machine_total
from actnn.profiling import page, terminal
from actnn.profiling.child import Settings
from actnn.profiling.growth import needs_of
from actnn.settings import LEVELS
from actnn.workloads import language, workload

EXAMPLE = """\
examples:
  actnn profile resnet50 --batch 8 --size 224 --level L3 --bits 2 --html report.html
  actnn profile mymodels:unet --input 1,256,256 --batch 4 --peak
  actnn profile gpt2:layers=4,width=256,tokens=128 --batch 4"""
SIZE = 224
# threads that spin while they wait are slow beside whatever else the machine does; the profiler's log is not ours
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "KINETO_LOG_LEVEL": "99", **MALLOC_SETTINGS}


def main(argv: Sequence[str]) -> int:
    """Profile one model; print tables, and write the report where asked for."""
    arguments = parse(argv)
    require("the profile", ("torch",))
    for path in (arguments.html, arguments.json):
        check_writable(path)
    compressed = Settings(
        arguments.model, arguments.batch, arguments.input, arguments.classes, arguments.level, arguments.bits
    )
    profile: dict[str, Any] = {"settings": asdict(compressed), "machine": machine.facts()}
    memory = arguments.memory or machine_total()
    for name, settings in (("exact", replace(compressed, level=None)), ("compressed", compressed)):
        profile[name] = measured(name, settings)
        profile[name]["needs"] = needs_of(partial(needed, settings), settings.batch, memory)
    try:
        if arguments.json is not None:
            write(arguments.json, json.dumps(profile))
        if arguments.html is not None:
            write(arguments.html, page.html(profile, memory))
    finally:
        # what was measured is not lost with a file that cannot be written, nor a file with output that cannot be
        print("\n".join(terminal.lines(profile, arguments.peak, memory)))
    return 0


def write(path: Path, text: str) -> None:
    """Write a file, whole or not at all, and say so."""
    content = memoryview(text.encode())
    try:
        if path.exists() and not path.is_file():
            # a pipe or a terminal, such as /dev/stdout, has no place beside it
            path.write_bytes(content)
        else:
            write_atomically(Path(os.path.realpath(path)), content)
    except OSError as error:
        raise refused(path, error) from error
    print(f"actnn profile: wrote {path}", file=sys.stderr)


def parse(argv: Sequence[str]) -> Namespace:
    """Read the arguments."""
    parser = Parser(
        prog="actnn profile",
        description=__doc__.partition(": ")[2],
        epilog=EXAMPLE,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help=workload.HELP)
    parser.add_argument("--batch", type=at_least(1), default=8, help="examples in a step (default: 8)")
    parser.add_argument("--size", type=at_least(1), help="height and width of an image (default: 224)")
    parser.add_argument("--input", type=shape, metavar="C,H,W", help="shape of one input, instead of --size")
    parser.add_argument("--classes", type=at_least(1), default=1000, help="classes to build for (default: 1000)")
    parser.add_argument("--level", default="L3", choices=LEVELS, help=f"{', '.join(LEVELS)} (default: L3)")
    parser.add_argument("--bits", type=width, help="average width of codes (default: the level's)")
    parser.add_argument("--memory", type=amount, help="memory that batches are to fit in (default: this machine's)")
    parser.add_argument("--peak", action="store_true", help="print everything that lives at the peak")
    parser.add_argument("--html", type=Path, help="write a report that opens in any browser, offline")
    parser.add_argument("--json", type=Path, help="write everything that was measured")
    arguments = parser.parse_args(argv)
    arguments.input = input_of(arguments)
    if arguments.bits is None:
        arguments.bits = own_width(arguments.level)
    files = [os.path.realpath(path) for path in (arguments.html, arguments.json) if path is not None]
    if len(set(files)) < len(files):
        parser.error(f"--html and --json both name {str(arguments.html)!r}: give each a file of its own")
    return arguments


def input_of(arguments: Namespace) -> tuple[int, ...]:
    """Return the shape of one input, which the name of a language model tells."""
    texts = language.find(arguments.model)
    if texts is None:
        size = arguments.size or SIZE
        return arguments.input or (3, size, size)
    if arguments.size or arguments.input:
        raise ConfigError(
            f"{arguments.model} learns from texts: leave --size and --input out, and name the length of a text in an "
            "option of the model, tokens=128."
        )
    return (texts.tokens,)


def own_width(level: str) -> float | None:
    """Return the width that a level has by itself, None where it has no codes."""
    widths: list[float] = LEVELS[level].get("activation_compression_bits", [])
    return widths[0] if widths else None


def shape(text: str) -> tuple[int, ...]:
    """Read a shape such as 3,224,224."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise ArgumentTypeError(f"{text!r} is not a shape such as 3,224,224")
    return tuple(map(int, parts))


def check_writable(path: Path | None) -> None:
    """Raise ConfigError before anything is measured for a file that cannot be written."""
    if path is None:
        return
    # where a link leads: the link itself stays
    place = Path(os.path.realpath(path))
    existed = place.exists()
    try:
        with place.open("a"):
            pass
        if not existed:
            place.unlink()
        elif place.is_file() and not os.access(place.parent, os.W_OK):
            # it is written beside its place first
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise refused(path, error) from error


def refused(path: Path, error: OSError) -> ConfigError:
    """Return the error for a file that the system does not let be written."""
    return ConfigError(f"cannot write {str(path)!r} ({error.strerror}): choose another file.")


def measured(name: str, settings: Settings) -> dict[str, Any]:
    """Return what one contestant measures, in a fresh process."""
    if sys.stderr.isatty():
        print(f"measuring {name} training …", file=sys.stderr, flush=True)
    try:
        return processes.call("actnn.profiling.child:measure", asdict(settings), environment=ENVIRONMENT)
    except processes.DoesNotFit as error:
        raise ActnnError(f"there is too little memory for {name} training: {error} Try a smaller --batch.") from error


def needed(settings: Settings, batch: int) -> int | None:
    """Return what a process needs to train with some batch, in a fresh one; None where that does not fit or show."""
    given = asdict(replace(settings, batch=batch))
    try:
        found: int | None = processes.call("actnn.profiling.child:need", given, environment=ENVIRONMENT)["bytes"]
    except processes.DoesNotFit:
        return None
    return found
