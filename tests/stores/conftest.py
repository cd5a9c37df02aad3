"""What tests of the disk store share."""

from __future__ import annotations

import pytest
from disk_stores import KB
from patience import nothing_hangs  # noqa: F401

from actnn.stores.disk import SwapStore


@pytest.fixture
def store(tmp_path):
    made = SwapStore(tmp_path, buffer_bytes=64 * KB)
    yield made
    made.close()
