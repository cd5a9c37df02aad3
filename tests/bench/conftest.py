"""What tests of benchmarks share."""

from __future__ import annotations

import json
from importlib import import_module

import pytest

from actnn.measuring import processes, turns


@pytest.fixture
def in_this_process(monkeypatch):
    """Let measurements run in this process, where what they weigh of a process is not looked at.

    A process of its own takes seconds to import a framework; one test of each benchmark has real ones.
    """

    def call(function, settings, *, told=processes.nobody, **_):
        module, _, name = function.partition(":")
        found = getattr(import_module(module), name)(json.loads(json.dumps(settings)), told)
        return json.loads(json.dumps(found))

    def call_all(function, settings, *, told=processes.nobody, **_):
        return {name: call(function, own, told=told) for name, own in settings.items()}

    monkeypatch.setattr(processes, "call", call)
    monkeypatch.setattr(turns, "call", call_all)
