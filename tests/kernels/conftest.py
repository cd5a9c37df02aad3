"""Fixtures over kernel backends."""

from __future__ import annotations

import numpy as np
import pytest
from code_cases import BACKENDS, NATIVE_BACKENDS, backend_named


@pytest.fixture(scope="session", params=BACKENDS)
def backend(request):
    """Every backend in turn."""
    return backend_named(request.param)


@pytest.fixture(scope="session", params=NATIVE_BACKENDS)
def native(request):
    """Every compiled form of the kernels in turn."""
    return backend_named(request.param)


@pytest.fixture(autouse=True)
def numpy_is_quiet():
    """Silence numpy about NaN and overflow, which these tests feed on purpose."""
    with np.errstate(all="ignore"):
        yield
