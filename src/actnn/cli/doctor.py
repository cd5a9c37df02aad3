"""``actnn doctor``: say what was found and whether the kernels agree with their definition."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from actnn import __version__, kernels
from actnn.bench.agreement import DisagreementError, check_agreement
from actnn.console.arguments import parser_with_example
from actnn.errors import UnsupportedError
from actnn.format import TWO_SIDED, Rounding, derive_key, uniform_layout
from actnn.kernels.native import preload
from actnn.kernels.numpy_arrays import NumpyArrays
from actnn.measuring.machine import processor

EXAMPLE = "actnn doctor"
FRAMEWORKS = ("torch", "paddle")
# what a process prints last that imports a framework
VERSION = "import {0}; print({0}.__version__)"
PROGRAMS = {
    "paddle": "import paddle; from actnn.paddle import threads; print(f'{paddle.__version__}; {threads.described()}')"
}
# how the finding of a self check begins that did not pass
FAILED = "FAILED: "


def main(argv: Sequence[str]) -> int:
    """Print one line for each thing that was looked at, or all as JSON; return 1 when the self check failed."""
    parser = parser_with_example("actnn doctor", __doc__.partition(": ")[2], EXAMPLE)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    as_json = parser.parse_args(argv).json
    found: dict[str, str] = {}
    for label, finding in findings():
        found[label] = finding
        if not as_json:
            print(f"{label:<16} {finding}", flush=True)
    if as_json:
        print(json.dumps(found))
    return int(any(finding.startswith(FAILED) for finding in found.values()))


def findings() -> Iterator[tuple[str, str]]:
    """Yield a label and what was found for it."""
    with warnings.catch_warnings():
        # the lines below say it in full
        warnings.simplefilter("ignore", RuntimeWarning)
        status = kernels.status()
        on_accelerators, why = kernels.accelerator_backend()
    yield "actnn", __version__
    yield "python", f"{platform.python_version()}, {sys.executable}"
    yield "system", f"{platform.system()} {platform.release()}, {platform.machine()}"
    yield "numpy", np.__version__
    for framework in FRAMEWORKS:
        yield framework, framework_state(framework)
    yield "kernels", f"{status.name}: {status.reason}"
    yield "on accelerators", f"{on_accelerators.name}: {why} (torch on CUDA and ROCm)"
    yield "elsewhere", "reference: it runs on any device, that of Paddle on accelerators among them"
    yield "library", status.library or "none"
    yield "instructions", status.simd
    yield "threads", f"{status.threads} for the kernels, {available_cores()} available to this process"
    yield "large blocks", allocator()
    yield "processor", processor()
    yield "self check", self_check(status)


def framework_state(framework: str) -> str:
    """Import a framework in a process of its own, where it can fail as it likes, and return its version or why not."""
    if find_spec(framework) is None:
        return f"not installed (pip install 'actnn[{framework}]')"
    program = PROGRAMS.get(framework, VERSION.format(framework))
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if child.returncode == 0:
        return child.stdout.splitlines()[-1]
    reason = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
    return f"installed, but cannot be imported: {reason}"


def allocator() -> str:
    """Tell what allocates large blocks in this process."""
    if preload.counts() is not None:
        return "actnn's allocator, which keeps what is resident near what lives"
    try:
        preload.library()
    except UnsupportedError as problem:
        return f"the C library ({problem})"
    return "the C library (with `actnn run COMMAND …` actnn's allocator, which keeps what is resident near what lives)"


def available_cores() -> int:
    """Return how many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def self_check(status: kernels.Status) -> str:
    """Encode and decode the same values on both backends and compare every byte."""
    if status.library is None:
        return "skipped: there is only the reference backend"
    arrays, key = NumpyArrays(), derive_key(seed=0, site=0, call=0)
    values = np.random.default_rng(0).standard_normal((3, 1000), dtype=np.float32)
    layout = uniform_layout(*values.shape, TWO_SIDED, 3, Rounding.DITHER)
    try:
        nbytes = check_agreement(kernels.Native(Path(status.library)), arrays, values, layout, key)
    except DisagreementError as problem:
        return f"{FAILED}{problem}"
    return f"passed: {nbytes} bytes and {values.size} decoded values are equal on both backends"
