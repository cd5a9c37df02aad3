"""Records: the results of runs, one line of JSON each, appended to a file and never changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actnn.errors import ConfigError

Record = dict[str, Any]


def append(record: Mapping[str, Any], out: Path) -> None:
    """Append a record to a file as one line of JSON."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        torn = torn_bytes(out.read_bytes()) if out.is_file() else 0
        with out.open("ab") as file:
            if torn:
                file.truncate(file.tell() - torn)
            file.write(json.dumps(record).encode() + b"\n")
    except OSError as problem:
        raise ConfigError(
            f"a record cannot be written to {out}: {problem}. Make room, or name another file."
        ) from problem


def torn_bytes(content: bytes) -> int:
    """Return the bytes behind the last line end: part of a record whose program ended while it was written."""
    return len(content) - (content.rfind(b"\n") + 1)


def recorded(source: Path) -> list[Record]:
    """Return the records of a file, oldest first, without a torn one at its end; none where there is no file."""
    if source.exists() and not source.is_file() and not source.is_dir():
        # a device may go on for ever
        raise ConfigError(f"{source} is not a file: name one in which records can be kept.")
    try:
        content = source.read_bytes()
        lines = content[: len(content) - torn_bytes(content)].splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as problem:
        raise ConfigError(f"the records in {source} cannot be read: {problem}. Name another file.") from problem
    return [record_of(line, number, source) for number, line in enumerate(lines, start=1)]


def record_of(line: bytes, number: int, source: Path) -> Record:
    """Return the record that a line of a file holds."""
    try:
        found = json.loads(line.decode())
        if not isinstance(found, dict):
            raise ValueError(f"a JSON object was expected, not {type(found).__name__}")
    except ValueError as problem:
        raise ConfigError(f"line {number} of {source} is not a record ({problem}): remove that line.") from problem
    return found
