"""What machine a record was made on: its processor and memory, the versions of packages, and the commit."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from actnn.measuring.memory import machine_total

CPU_FLAGS = ("avx2", "fma", "f16c", "bmi2", "avx512f", "avx512_bf16", "amx_bf16", "neon", "asimd", "sve")
PACKAGES = ("actnn", "torch", "torchvision", "timm", "transformers", "paddlepaddle", "numpy")
# what the code that is measured was made from, seen from the top of a checkout; a record is no change of it
SOURCES = (":/src", ":/native", ":/CMakeLists.txt", ":/pyproject.toml")
CHANGED = "-changed"


def facts() -> dict[str, Any]:
    """Say what a record was made on: processor, cores, memory, versions and commit."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(machine_total() / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := installed(name))},
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


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
