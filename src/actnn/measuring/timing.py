"""The one place that takes times: contestants in turns, warm-up, medians, and what machine it was."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from actnn.errors import ConfigError

CPU_FLAGS = ("avx2", "fma", "f16c", "bmi2", "avx512f", "avx512_bf16", "amx_bf16", "neon", "asimd", "sve")
PACKAGES = ("actnn", "torch", "torchvision", "paddlepaddle", "numpy")
# what the code that is measured was made from, seen from the top of a checkout; a record is no change of it
SOURCES = (":/src", ":/native", ":/CMakeLists.txt", ":/pyproject.toml")
CHANGED = "-changed"


def interleaved(
    contestants: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Let all contestants run once a round, in turns; return the seconds of each, the warm-up left out."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(warm_up + rounds):
        for name, run in contestants.items():
            taken = timed(run)
            if turn >= warm_up:
                seconds[name] += taken
    return seconds


def timed(run: Callable[[], object]) -> list[float]:
    """Return the seconds that something takes, as a list of one."""
    start = time.perf_counter()
    run()
    return [time.perf_counter() - start]


def summary(seconds: list[float]) -> dict[str, float]:
    """Return the median and the quartiles of some times."""
    if len(seconds) < 2:
        return {"seconds": seconds[0], "first_quartile": seconds[0], "third_quartile": seconds[0]}
    first, median, third = statistics.quantiles(seconds, n=4, method="inclusive")
    return {"seconds": median, "first_quartile": first, "third_quartile": third}


def machine() -> dict[str, Any]:
    """Say what a record was made on: processor, cores, memory, versions and commit."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory_bytes() / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := installed(name))},
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def memory_bytes() -> int:
    """Return the memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def processor() -> str:
    """Return the model of the processor and those of its features that matter here, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = set((facts.get("flags") or facts.get("Features") or "").split())
    found = " ".join(flag for flag in CPU_FLAGS if flag in flags)
    return f"{facts.get('model name', 'unknown model')}; {found or 'no features of note'}"


def installed(name: str) -> str | None:
    """Return a package's version, None where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """Return the commit of the working directory, with a mark where its sources differ; None outside a checkout."""
    if (head := git("rev-parse", "--short=12", "HEAD")) is None:
        return None
    return f"{head}{CHANGED}" if git("status", "--porcelain", "--", *SOURCES) else head


def git(*arguments: str) -> str | None:
    """Return what git answers, None where it has nothing to say."""
    command = ["git", *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return answer.stdout.strip() or None


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
    """Return the size of an end that is no line: of a record that was being written when its program ended."""
    return len(content) - (content.rfind(b"\n") + 1)


def records(source: Path) -> list[dict[str, Any]]:
    """Return the records of a file, oldest first; none where there is no file, and no part of one."""
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


def record_of(line: bytes, number: int, source: Path) -> dict[str, Any]:
    """Return the record that a line of a file holds."""
    try:
        found = json.loads(line.decode())
        if not isinstance(found, dict):
            raise ValueError(f"a JSON object was expected, not {type(found).__name__}")
    except ValueError as problem:
        raise ConfigError(f"line {number} of {source} is not a record ({problem}): remove that line.") from problem
    return found
