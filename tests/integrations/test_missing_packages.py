"""A trainer that is not installed: the error says what to install."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from actnn.errors import UnsupportedError
from actnn.integrations.session import EXTRAS


@pytest.mark.parametrize("package", EXTRAS)
def test_the_error_says_what_to_install(package, monkeypatch):
    module = f"actnn.integrations.{EXTRAS[package]}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    for loaded in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnsupportedError, match=rf"pip install 'actnn\[{EXTRAS[package]}\]'"):
        import_module(module)
