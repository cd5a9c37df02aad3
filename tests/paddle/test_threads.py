"""The kernels compute with Paddle's own threads: a second team would spin against them on the same cores."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import paddle
import pytest

from actnn import kernels
from actnn.kernels.numpy_arrays import NumpyArrays
from actnn.paddle import threads
from actnn.paddle.tensors import ARRAYS

PROGRAM = """
import json, os
import numpy as np
import paddle
from actnn import kernels
from actnn.format import TWO_SIDED, Layout
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


def native() -> kernels.Native:
    """Return the compiled backend, which alone has threads."""
    backend, reason = kernels.host_backend()
    if not isinstance(backend, kernels.Native):
        pytest.skip(reason)
    return backend


def runtime() -> Path:
    """Return Paddle's own OpenMP runtime."""
    found = list((Path(paddle.__file__).parent / "libs").glob("libiomp5*"))
    if not found:
        pytest.skip("this Paddle has no OpenMP runtime of its own")
    return found[0]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's list of a process's threads")
def test_paddle_needs_no_threads_beside_those_of_the_kernels():
    native(), runtime()
    one, two = compute(1), compute(2)
    assert (one["threads"], two["threads"]) == (1, 2)
    assert one["new"] == two["new"] == 0
    assert one["sum"] == two["sum"]


def test_the_runtime_of_paddle_is_found_and_shared():
    assert threads.runtime() == runtime()
    assert native().shares(runtime())
    assert "run on its threads" in threads.described()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's list of loaded files")
def test_a_runtime_that_is_not_loaded_is_not_shared_and_stays_so(tmp_path):
    copied = Path(shutil.copy(runtime(), tmp_path))
    assert not native().shares(copied)
    assert str(copied) not in Path("/proc/self/maps").read_text()


def test_kernels_on_other_arrays_keep_the_threads_of_their_own_runtime(monkeypatch):
    # one that nobody has lent a runtime yet
    backend, used = type(native())(native().path), []
    library = SimpleNamespace(actnn_use_runtime=lambda chosen: used.append(chosen is not None))
    monkeypatch.setattr(backend, "_library", library)
    for arrays in (NumpyArrays(), ARRAYS, NumpyArrays()):
        backend._threads(arrays)
    assert used == ([True, False] if runtime() is not None else [])


def test_the_environment_tells_how_many_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert ARRAYS.threads() == 3
