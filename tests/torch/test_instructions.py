"""What instructions tell of a call holds for random functions, and of unknown interpreters nothing is told."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import random_functions
from random_functions import Failure, function, tried

from actnn.torch import instructions
from actnn.torch.instructions import KNOWN_VERSIONS, Call, call_at


def test_no_random_function_reads_what_it_let_go():
    assert tried(call_at, 0, 30) > 30


def test_random_functions_would_tell(monkeypatch):
    monkeypatch.setattr(instructions, "is_read", lambda *_: False)
    with pytest.raises(AssertionError, match="read that was let go"):
        tried(call_at, 0, 30)


@pytest.mark.parametrize("version", [f"{major}.{minor}" for major, minor in KNOWN_VERSIONS])
def test_other_interpreters_tell_the_same(version):
    # installed as such, or kept by pyenv, which only lets the one that was chosen be found
    found_here = shutil.which(f"python{version}")
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python")) or [found_here]
    if kept[-1] is None or version == "{}.{}".format(*sys.version_info):
        pytest.skip(f"there is no other Python {version}")
    script = [random_functions.__file__, instructions.__file__, "0", "15"]
    found = subprocess.run([kept[-1], "-I", *script], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) > 15


def test_unknown_instructions_tell_nothing(monkeypatch):
    found = []

    class Layer:
        def call(self, value):
            frame = sys._getframe(1)
            found.append(call_at(frame.f_code, frame.f_lasti))

    def known(self, value):
        self.call(value)

    known(Layer(), 1)
    monkeypatch.setattr(instructions, "KNOWN", False)
    known(Layer(), 1)
    assert found == [Call("value", ("self", "call")), None]


def test_random_functions_have_failures_to_catch():
    texts = [function(number)[1] for number in range(30)]
    assert any(f"except {Failure.__name__}" in text for text in texts)
