"""What all tests share: helper modules, fixed seeds, and settings that no test leaves behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import settings

# helper modules are imported by name; this folder is not one that a framework's name could hide in
sys.path.insert(0, str(Path(__file__).parent / "support"))

# equal runs on every machine, and no deadline: tests never measure time
settings.register_profile("actnn", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("actnn")


def pytest_configure(config):
    """Silence what torch itself says once about a padding that some cases ask for on purpose."""
    config.addinivalue_line("filterwarnings", "ignore:Using padding='same' with even kernel:UserWarning")


@pytest.fixture(autouse=True)
def settings_are_reset():
    """Give every test the default settings, and undo what it sets."""
    import actnn

    actnn.config.reset()
    yield
    actnn.config.reset()
