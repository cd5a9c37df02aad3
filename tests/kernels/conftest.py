"""Fixtures over kernel backends."""

from __future__ import annotations

import os
from zlib import crc32

import numpy as np
import pytest
from code_cases import BACKENDS, INTERPRETED, NATIVE_BACKENDS, backend_named
from hypothesis import settings

# what an interpreter takes too long for, and what is about threads and instruction sets of a compiled library
NOT_INTERPRETED = (
    *("threads", "few_million", "many_groups", "many groups", "many_samples", "many_elements", "copy"),
    "of_few_values_is_unbiased",
)
# what takes it seconds for each row: a share has one that is quick
ROW_BY_ROW, QUICK = "test_row_norm_kernels.py::test_a_backward", "one row a sample"


@pytest.fixture(scope="session", params=BACKENDS)
def backend(request):
    """Every backend in turn."""
    return backend_named(request.param)


@pytest.fixture(scope="session", params=NATIVE_BACKENDS)
def native(request):
    """Every compiled form of the kernels in turn."""
    return backend_named(request.param)


if INTERPRETED:
    settings.register_profile("interpreted", max_examples=4, deadline=None)
    settings.load_profile("interpreted")


def pytest_collection_modifyitems(config, items):
    """In a process that interprets Triton, leave its backend's tests, or one in ACTNN_TRITON_SHARE of them."""
    if not INTERPRETED:
        return
    share = int(os.environ.get("ACTNN_TRITON_SHARE", "1"))
    left, out = [], []
    for item in items:
        fits = {"native", "backend", "interpreted"} & set(item.fixturenames)
        slow = any(word in item.name for word in NOT_INTERPRETED)
        slow |= share > 1 and ROW_BY_ROW in item.nodeid and QUICK not in item.name
        chosen = crc32(item.nodeid.rpartition("/")[2].encode()) % share == 0
        (left if fits and not slow and chosen else out).append(item)
    config.hook.pytest_deselected(items=out)
    items[:] = left


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
