"""Triton's interpreter without what takes it most of its time.

It replaces the functions of ``triton.language`` by its own whenever a kernel is launched, and again at every call of a
device function, of which a program has hundreds: thousands of attributes are looked at each time. Once a launch is
enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.runtime import interpreter


class Once:
    """Replaces what the functions of a module call, until the launch that did so first is over."""

    def __init__(self, replace: Callable[[Any], Any]) -> None:
        self._replace = replace
        self._done: set[int] = set()

    def __call__(self, function: Any) -> Any:
        """Replace what a function calls where that was not done yet; return what a launch restores."""
        modules = {id(value) for value in function.__globals__.values() if value is tl or value is tl.core}
        if self._done and modules <= self._done:
            # a device function, which restores nothing
            return None
        scope, launched = self._replace(function), not self._done
        self._done |= modules
        if launched:
            scope.restore = self._restoring(scope.restore)
        return scope

    def _restoring(self, restore: Callable[[], None]) -> Callable[[], None]:
        def restored() -> None:
            self._done.clear()
            restore()

        return restored


def quicken() -> None:
    """Let Triton's interpreter replace functions once a launch."""
    interpreter._patch_lang = Once(interpreter._patch_lang)
