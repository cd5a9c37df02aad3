"""Triton's kernels in its interpreter: a process of its own runs the tests of kernels over them.

Triton reads TRITON_INTERPRET when it is imported, so other tests of this process would find it changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from code_cases import INTERPRETED
from covering import covering, traits

HERE = Path(__file__).parent
FILES = (
    *("test_agreement.py", "test_batch_norm_kernels.py", "test_batch_norm_step.py", "test_curved_codes.py"),
    *("test_decode_function.py", "test_division.py", "test_lossless_codes.py", "test_outputs.py"),
    *("test_pooling_kernels.py", "test_ranges.py", "test_row_norm_kernels.py", "test_triton_tensors.py"),
)


def test_few_cases_have_everything_that_occurs():
    cases = {f"{word} {number}": traits({"code": (word, number)}) for word in "abc" for number in range(5)}
    few = covering(cases)
    assert len(few) == 5
    assert set().union(*(cases[name] for name in few)) == set().union(*cases.values())
    assert covering(dict(reversed(cases.items()))) == few
    assert covering({"alone": traits({})}) == {"alone"}
    assert covering(cases, most=2) < few


# all tests, by make test-triton, take an hour or two
@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="this is the process that interprets")
@pytest.mark.parametrize("half", [0, 1])
def test_interpreted_kernels_pass_tests_of_kernels_in_which_most_occurs(half):
    files = [str(HERE / name) for name in FILES[half::2]]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "ACTNN_TRITON_TESTS": "few"}
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--durations=0",
        *files,
    ]
    finished = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, cwd=HERE.parents[1]
    )
    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-2000:]
