"""Which backend serves, and what happens where the compiled one cannot; a fresh process each, for it chooses once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ENCODE_TWICE = """
import warnings
import numpy as np
from actnn import kernels
from actnn.format import AFFINE, Layout, Part
from actnn.kernels.numpy_arrays import NumpyArrays
arrays, values, layout = NumpyArrays(), np.ones((1, 5), np.float32), Layout(1, 5, AFFINE, 4)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for _ in range(2):
        backend = kernels.select(arrays, values)
        backend.encode(arrays, values, layout, (1, 2, 3, 4))
print(backend.name, len(seen), *(str(each.message) for each in seen))
"""


def run(program: str, **environment: str) -> subprocess.CompletedProcess:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ACTNN_")}
    return subprocess.run(
        [sys.executable, "-c", program], env={**clean, **environment}, capture_output=True, text=True, check=False
    )


def answer(program: str, **environment: str) -> str:
    finished = run(program, **environment)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


def test_without_the_compiled_library_the_reference_serves_with_one_warning():
    assert answer(ENCODE_TWICE, ACTNN_LIBRARY="/nowhere/lib.so").startswith("reference 1 ")


def test_the_warning_names_the_library_that_could_not_be_loaded():
    assert "/nowhere/lib.so" in answer(ENCODE_TWICE, ACTNN_LIBRARY="/nowhere/lib.so")


def test_a_library_of_something_else_is_refused_with_a_reason(tmp_path):
    import ctypes.util

    other = ctypes.util.find_library("m")
    assert "built from other sources" in answer(ENCODE_TWICE, ACTNN_LIBRARY=other)


def test_a_file_that_is_no_library_is_refused_with_a_reason(tmp_path):
    (tmp_path / "lib.so").write_text("not a library")
    assert "cannot be loaded" in answer(ENCODE_TWICE, ACTNN_LIBRARY=str(tmp_path / "lib.so"))


def test_the_reference_can_be_asked_for_without_a_warning():
    assert answer(ENCODE_TWICE, ACTNN_BACKEND="reference") == "reference 0"


def test_an_unknown_backend_is_a_config_error():
    finished = run(ENCODE_TWICE, ACTNN_BACKEND="turbo")
    assert "ConfigError: ACTNN_BACKEND is 'turbo': expected 'native' or 'reference'" in finished.stderr


def test_the_status_tells_the_reason_for_the_reference():
    program = "from actnn import kernels; print(kernels.status())"
    assert "/nowhere/lib.so" in answer(program, ACTNN_LIBRARY="/nowhere/lib.so")


def test_training_works_without_the_compiled_library():
    program = """
import torch, actnn
from torch import nn
model = actnn.QModule(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)), level="L2")
model(torch.rand(4, 3, 16, 16)).sum().backward()
print(torch.isfinite(model.get_submodule("0").weight.grad).all().item())
"""
    assert answer(program, ACTNN_LIBRARY="/nowhere/lib.so") == "True"


SELECT_ON_AN_ACCELERATOR = """
import sys, warnings
import numpy as np
from actnn import kernels
from actnn.kernels.numpy_arrays import NumpyArrays
class Elsewhere(NumpyArrays):
    def on_host(self, x): return False
    def device(self, x): return "cuda:0"
{before}
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for _ in range(2):
        backend = kernels.select(Elsewhere(), np.ones((1, 5), np.float32))
print(backend.name, len(seen), *(str(each.message) for each in seen))
"""


def test_without_triton_the_reference_serves_an_accelerator_with_one_warning():
    hidden = "from actnn.kernels import table; table.find_spec = lambda name: None"
    found = answer(SELECT_ON_AN_ACCELERATOR.format(before=hidden))
    assert found.startswith("reference 1 ")
    assert "pip install 'actnn[triton]'" in found


def test_without_a_driver_the_reference_serves_an_accelerator_and_the_warning_says_so():
    triton = pytest.importorskip("triton")
    no_driver = "import triton; triton.runtime.driver._active = None"
    absent = """
class Absent:
    def get_current_target(self): raise RuntimeError("0 active drivers ([]). There should only be one.")
triton.runtime.driver.set_active(Absent())"""
    found = answer(SELECT_ON_AN_ACCELERATOR.format(before=no_driver + absent))
    assert found.startswith("reference 1 ")
    assert f"Triton {triton.__version__} finds no accelerator (0 active drivers" in found


def test_where_triton_finds_a_driver_its_kernels_serve_an_accelerator():
    pytest.importorskip("triton")
    present = """
import triton
from triton.backends.compiler import GPUTarget
class Present:
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
triton.runtime.driver.set_active(Present())"""
    assert answer(SELECT_ON_AN_ACCELERATOR.format(before=present)) == "triton 0"


def test_the_reference_can_be_asked_for_on_an_accelerator_too():
    assert answer(SELECT_ON_AN_ACCELERATOR.format(before=""), ACTNN_BACKEND="reference") == "reference 0"


def test_a_device_that_has_no_kernels_is_served_by_the_reference_with_one_warning():
    found = answer(SELECT_ON_AN_ACCELERATOR.replace("cuda:0", "mps:0").format(before=""))
    assert found.startswith("reference 1 ")
    assert "there are none for devices of kind 'mps'" in found


def test_a_device_that_has_no_kernels_needs_no_warning_where_the_reference_was_asked_for():
    program = SELECT_ON_AN_ACCELERATOR.replace("cuda:0", "mps:0").format(before="")
    assert answer(program, ACTNN_BACKEND="reference") == "reference 0"
