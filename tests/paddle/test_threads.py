"""The kernels compute with Paddle's own threads: a second team would spin against them on the same cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from actnn import kernels
from actnn.paddle import threads

PROGRAM = """
import json, os
import numpy as np
import paddle
from actnn import kernels
from actnn.core.format import TWO_SIDED, Layout
from actnn.paddle.tensors import ARRAYS

count = lambda: len(os.listdir("/proc/self/task"))
x = paddle.to_tensor(np.random.default_rng(0).normal(size=(1024, 1024)).astype("float32"))
layout = Layout(1024, 1024, TWO_SIDED, 2)
code = kernels.select(ARRAYS, x).encode(ARRAYS, x, layout, (1, 2, 3, 4))
before = count()
paddle.matmul(x, x)
print(json.dumps({"threads": ARRAYS.threads(), "new": count() - before, "sum": int(code.astype("int64").sum())}))
"""


def compute(wanted: int) -> dict[str, int]:
    """Return what a process found whose Paddle computes with so many threads."""
    environment = os.environ | {"OMP_NUM_THREADS": str(wanted)}
    ran = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's list of a process's threads")
def test_paddle_needs_no_threads_beside_those_of_the_kernels():
    if threads.shared() is None:
        pytest.skip("this Paddle, or this build, has no OpenMP runtime to share")
    one, two = compute(1), compute(2)
    assert (one["threads"], two["threads"]) == (1, 2)
    assert one["new"] == two["new"] == 0
    assert one["sum"] == two["sum"]


def test_a_runtime_that_is_not_loaded_is_not_used(tmp_path):
    backend, _ = kernels.host_backend()
    if not isinstance(backend, kernels.Native):
        pytest.skip("runs on the reference kernels")
    before = backend.max_threads
    (tmp_path / "libiomp5.so").write_bytes(b"no library")
    assert not backend.use_runtime(tmp_path / "libiomp5.so")
    assert backend.max_threads == before


def test_without_a_runtime_to_share_the_environment_tells_how_many_threads(monkeypatch):
    monkeypatch.setattr(threads, "shared", lambda: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads.count() == 3
