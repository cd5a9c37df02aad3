"""``actnn run``: run a command whose processes give large blocks of memory back in order."""

from __future__ import annotations

import os
import shutil
import sys
from argparse import REMAINDER
from collections.abc import Sequence

from actnn.console.arguments import parser_with_example
from actnn.errors import ConfigError
from actnn.kernels.native import preload

EXAMPLE = "actnn run python train.py --epochs 3"


def main(argv: Sequence[str]) -> int:
    """Become the command; return only where nothing was asked for but help."""
    parser = parser_with_example("actnn run", __doc__.partition(": ")[2], EXAMPLE)
    parser.add_argument("command", nargs=REMAINDER, metavar="COMMAND …", help="a program and what it is called with")
    command = parser.parse_args(argv).command
    if not command:
        parser.error("no command given: expected one, as in the example below")
    program = shutil.which(command[0])
    if program is None:
        raise ConfigError(f"there is no program {command[0]!r}: expected one by its path, or of those in PATH.")
    environment = preload.environment(os.environ)
    sys.stdout.flush()
    os.execve(program, command, environment)
