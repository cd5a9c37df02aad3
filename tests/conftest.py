"""What all tests share: helper modules, fixed seeds, and settings that no test leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from actnn.measuring.memory import MALLOC_SETTINGS

# helper modules are imported by name; this folder is not one that a framework's name could hide in
sys.path.insert(0, str(Path(__file__).parent / "support"))

import works_with

# equal runs on every machine, and no deadline: tests never measure time
settings.register_profile("actnn", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("actnn")

# files that take the longest, in processes of their own or with a compiler: a worker that met one of them last would be
# waited for
LONGEST = (
    "kernels/test_triton_interpreted.py",
    "integrations/test_trainers.py",
    "torch/test_compiled.py",
    "bench/test_limits.py",
    "paddle/test_door.py",
    "torch/test_parallel.py",
    "bench/test_step.py",
    "bench/test_losses.py",
    "cli/test_train_resume.py",
    "cli/test_train_processes.py",
    "cli/test_profile.py",
    "docs/test_snippets.py",
    "examples/test_examples.py",
    "frontends/test_unbiased_gradients.py",
    "frontends/test_adaptive_training.py",
)
# what the tests of each row found out
VERDICTS = pytest.StashKey[dict[str, str]]()
# set in the process of a test that has one of its own
OWN_PROCESS = "ACTNN_TEST_HAS_OWN_PROCESS"


def pytest_addoption(parser):
    """Add what writes the guide's table of what works together."""
    parser.addoption("--works-with", type=Path, metavar="FILE", help="write the table of what works with what into it")


# a hook of pytest's own, by its name
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Note what a test found out for a row of that table."""
    report = (yield).get_result()
    marks = list(item.iter_markers("works_with"))
    if item.config.getoption("--works-with") is None or not marks:
        return
    verdicts = item.config.stash.setdefault(VERDICTS, {})
    for mark in marks:
        (name,) = mark.args
        if report.failed:
            verdicts[name] = works_with.FAILED
        elif report.when == "call" and report.passed:
            verdicts.setdefault(name, works_with.PASSED)


def pytest_sessionfinish(session):
    """Write that table where asked for."""
    if (path := session.config.getoption("--works-with")) is not None:
        works_with.write(path, session.config.stash.get(VERDICTS, {}))


def pytest_configure(config):
    """Silence what torch itself says once about a padding that some cases ask for on purpose."""
    config.addinivalue_line("filterwarnings", "ignore:Using padding='same' with even kernel:UserWarning")


def pytest_collection_modifyitems(items):
    """Let the longest files begin first, where workers take files in order."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(f"{item.path.parent.name}/{item.path.name}", len(LONGEST)))


def pytest_pyfunc_call(pyfuncitem):
    """Run a test that weighs its process in a fresh one: in this one, what other tests left fills up or goes."""
    if pyfuncitem.get_closest_marker("own_process") is None or OWN_PROCESS in os.environ:
        return None
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-q", pyfuncitem.nodeid]
    environment = os.environ | MALLOC_SETTINGS | {OWN_PROCESS: "yes"}
    root = pyfuncitem.config.rootpath
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"in a process of its own:\n{done.stdout}{done.stderr}", pytrace=False)
    return True


@pytest.fixture(autouse=True)
def whatever_is_put_leaves_memory(monkeypatch):
    """Let stores write at once: what small networks keep would never leave memory."""
    from actnn.stores import store

    monkeypatch.setattr(store, "IDLE_BYTES", 0)


@pytest.fixture(autouse=True)
def settings_are_reset():
    """Give every test the default settings, and undo what it sets."""
    import actnn

    actnn.config.reset()
    # layers that are made by hand draw other noise one after another: which, must not depend on the tests before
    object.__setattr__(actnn.config, "_streams", 0)
    yield
    actnn.config.reset()
