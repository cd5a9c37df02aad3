"""When a step of a converted model begins, whichever way the model was called.

NOTE [Ways in]
1. A call of the wrapper, or of the model that it holds, begins a step.
2. A method that is called through the wrapper, or a part of the model called by itself, belongs to the step that
   goes on; where a backward ran since, the first part that it calls begins the next one.
3. Nothing begins inside a backward: checkpointing computes a part anew there.
4. What is measured or swapped out is so from the outermost call to its end, and for parts by themselves one by one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from actnn.planning.samples import Indices, check_indices
from actnn.session.session import Session
from actnn.session.whole import Whole
from actnn.settings import QScheme


class Counting(Protocol):
    """A context that counts what autograd keeps; it may be entered again."""

    @property
    def total(self) -> int:
        """Bytes counted so far."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *problem: Any) -> Any: ...


class Calls(threading.local):
    """How deep in calls of one model this thread is, and what holds until the outermost one ends."""

    depth = 0
    context: AbstractContextManager[Any] | None = None


class Steps:
    """The steps of one converted model; a front end says how its framework does what is asked here."""

    def __init__(self, session: Session, model: Any) -> None:
        self.session, self.model = session, model
        self.samples: Indices | None = None
        self._calls = Calls()
        self._kept: Counting | None = None
        # whether a memory budget asked for that
        self._measures = False
        # how many steps began in training
        self.begun = 0

    def recording(self) -> bool:
        """Tell whether autograd records operations now."""
        raise NotImplementedError

    def in_backward(self) -> bool:
        """Tell whether the running code was called by a backward."""
        raise NotImplementedError

    def trim_caches(self, threshold: float) -> None:
        """Empty the caches of accelerators of which more than a share is not in use."""
        raise NotImplementedError

    def swapping(self) -> AbstractContextManager[Any]:
        """Return a context in which what autograd saves leaves memory."""
        raise NotImplementedError

    def counting(self) -> Counting | None:
        """Return a context that counts what autograd keeps; None where that is not possible now."""
        raise NotImplementedError

    def due(self) -> bool:
        """Tell whether what autograd keeps is to be counted in this step for the report's sake."""
        return False

    def whole(self) -> Whole | None:
        """Return what autograd keeps of the whole model; None where that was not counted."""
        return None

    def takes(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Note what the whole model was called with."""

    def counted(self, kept: Any) -> None:
        """Take what was counted in this step."""

    def indices(self, given: Any, num_samples: int | None) -> Indices:
        """Return positions in the training set as an array on the host."""
        return check_indices(given, num_samples)

    def enter(self, whole: bool) -> None:
        """Note a call; one of the ``whole`` model begins a step, others only where they call its parts."""
        calls = self._calls
        calls.depth += 1
        if calls.depth > 1 or self.session.closed or self.in_backward():
            return
        if whole:
            self._begin()
        if self.model.training and self.recording():
            # before a method calls anything, the step that it may begin is not known to be measured
            calls.context = self._context()
            if calls.context is not None:
                calls.context.__enter__()

    def leave(self, raised: BaseException | None = None) -> None:
        """Note the end of a call, which may have raised something."""
        calls = self._calls
        calls.depth -= 1
        if calls.depth or calls.context is None:
            return
        context, calls.context = calls.context, None
        context.__exit__(None if raised is None else type(raised), raised, None)
        if raised is None and context is self._kept and not self.session.over:
            if self._measures:
                self.session.all_kept(self._kept.total)
            self.counted(self._kept)

    @contextmanager
    def called(self, whole: bool) -> Iterator[None]:
        """Note a call from its beginning to its end."""
        self.enter(whole)
        try:
            yield
        except BaseException as raised:
            self.leave(raised)
            raise
        self.leave()

    def begin_late(self) -> None:
        """Begin a step where a part of the model is called after a backward, and not by one."""
        if not self.session.closed and self.recording() and not self.in_backward():
            self._begin()

    def _begin(self) -> None:
        session = self.session
        if (threshold := session.policy.trim_threshold) is not None:
            self.trim_caches(threshold)
        if self._calls.context is None:
            self._kept = None
        self.begun += bool(self.model.training)
        session.forward_begins(self._batch_indices())

    def _context(self) -> AbstractContextManager[Any] | None:
        """Return what holds during a call that trains."""
        if self.session.swaps_activations:
            return self.swapping()
        if self.session.over:
            self._kept = None
        if self._kept is None:
            self._measures = self.session.measures_memory
            if self._measures or self.due():
                self._kept = self.counting()
        return self._kept

    def _batch_indices(self) -> Indices | None:
        if self.samples is not None or not self.session.policy.use_gradient or QScheme.batch is None:
            return self.samples
        return self.indices(QScheme.batch, QScheme.num_samples)

    def __getstate__(self) -> dict[str, Any]:
        # calls are those of this process
        return self.__dict__ | {"_calls": None, "_kept": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._calls = Calls()
