from __future__ import annotations

import shutil

import pytest
from tiny_runs import train


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory):
    """Return the folder of a run that was trained to its end; nobody may change it."""
    pytest.importorskip("torch")
    out = tmp_path_factory.mktemp("whole") / "run"
    assert train(out) == 0
    return out


@pytest.fixture
def complete(whole_run, tmp_path, capsys):
    """Return a folder of this test's own that holds a complete run."""
    shutil.copytree(whole_run, tmp_path / "complete")
    capsys.readouterr()
    return tmp_path / "complete"
