"""Fixtures over kernel backends."""

from __future__ import annotations

import os
from collections import defaultdict

import numpy as np
import pytest
from code_cases import BACKENDS, INTERPRETED, NATIVE_BACKENDS, backend_named
from covering import covering, traits
from hypothesis import settings

# what an interpreter takes too long for, and what is about threads and instruction sets of a compiled library
NOT_INTERPRETED = (
    *("threads", "few_million", "many_groups", "many groups", "many_samples", "many_elements", "copy"),
    *("of_few_values_is_unbiased", "a_runtime_is_chosen"),
)
# kernels of Triton take tensors of torch
OF_ANOTHER_FRAMEWORK = "test_paddle_arrays.py"
# what takes it seconds for each row: of few there is one that is quick
ROW_BY_ROW, QUICK = "test_row_norm_kernels.py::test_a_backward", "one row a sample"
# whether a process interprets not all tests, but of each file few in which most tests and parameters occur: one takes
# the interpreter five seconds
FEW, MOST = os.environ.get("ACTNN_TRITON_TESTS", "all") == "few", 4


@pytest.fixture(scope="session", params=BACKENDS)
def backend(request):
    """Every backend in turn."""
    return backend_named(request.param)


@pytest.fixture(scope="session", params=NATIVE_BACKENDS)
def native(request):
    """Every compiled form of the kernels in turn."""
    return backend_named(request.param)


if INTERPRETED:
    from quick_interpreter import quicken

    quicken()
    settings.register_profile("interpreted", max_examples=4, deadline=None)
    settings.load_profile("interpreted")


def pytest_collection_modifyitems(config, items):
    """In a process that interprets Triton, leave its backend's tests, or few of them."""
    if not INTERPRETED:
        return
    left = [item for item in items if is_interpreted(item)]
    if FEW:
        cases = defaultdict(dict)
        for item in left:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            cases[item.path][item.nodeid] = traits(parameters | {"test": item.originalname})
        few = set().union(*(covering(of_file, MOST) for of_file in cases.values()))
        left = [item for item in left if item.nodeid in few]
    kept = set(left)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = left


def is_interpreted(item) -> bool:
    """Tell whether a test is about kernels of Triton, and of those that are interpreted here."""
    if not {"native", "backend", "interpreted"} & set(item.fixturenames) or item.path.name == OF_ANOTHER_FRAMEWORK:
        return False
    slow = any(word in item.name for word in NOT_INTERPRETED)
    return not slow and not (FEW and ROW_BY_ROW in item.nodeid and QUICK not in item.name)


@pytest.fixture(scope="session")
def interpreted():
    """The kernels of Triton on torch tensors, in a process that interprets Triton."""
    if not INTERPRETED:
        pytest.skip("needs TRITON_INTERPRET=1 before Triton is imported: make test-triton")
    from actnn.kernels.triton import Triton

    return Triton()


@pytest.fixture(autouse=True)
def numpy_is_quiet():
    """Silence numpy about NaN and overflow, which these tests feed on purpose."""
    with np.errstate(all="ignore"):
        yield
