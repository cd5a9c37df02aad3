"""Traces one training step with torch's profiler, with annotations that tell what each block of memory is for."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from actnn.profiling import trace
from actnn.profiling.holders import holders
from actnn.session.session import Session
from actnn.stores.store import Memory, Store, Swap

if TYPE_CHECKING:
    from torch import Tensor, nn


class Tracer:
    """The annotations of one step: layers, phases, and what an address holds."""

    def __init__(self, model: nn.Module, session: Session | None) -> None:
        self._model, self._session = model, session
        self._looks = 0
        self._own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}

    def traced(self, forward: Callable[[], Tensor], optimize: Callable[[], None]) -> trace.Step:
        """Run one step and return what it took."""
        from torch.profiler import ProfilerActivity, profile

        with ExitStack() as stack:
            for context in (self._layers(), self._codes()):
                stack.enter_context(context)
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
                with self._saved(), self.span(trace.PHASE, "forward"):
                    loss = forward()
                self._watch_gradients(loss)
                with self.span(trace.PHASE, "backward"):
                    loss.backward()
                del loss
                with self.span(trace.PHASE, "optimizer"):
                    optimize()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            return trace.read(json.loads(path.read_text()))

    def span(self, kind: str, value: object) -> Any:
        """Return a context that annotates what runs within it."""
        from torch.profiler import record_function

        return record_function(trace.annotation(kind, value))

    def mark(self, kind: str, value: object) -> None:
        """Annotate this moment."""
        with self.span(kind, value):
            pass

    def mark_tensor(self, kind: str, tensor: Tensor) -> None:
        """Say what a tensor's memory holds, unless it is the model's own."""
        address = tensor.untyped_storage().data_ptr()
        if address not in self._own:
            self.mark(kind, address)

    def mark_holders(self, frame: FrameType | None) -> None:
        """Say which variables of the functions that led here hold tensors."""
        self._looks += 1
        for tensor, holder in holders(frame):
            address = tensor.untyped_storage().data_ptr()
            if address not in self._own:
                self.mark(trace.HELD, trace.SEPARATOR.join((str(address), str(self._looks), holder)))

    @contextmanager
    def _layers(self) -> Iterator[None]:
        """Annotate every module's forward."""
        handles: list[Any] = []
        spans: list[Any] = []
        for name, module in self._model.named_modules():
            handles.append(module.register_forward_pre_hook(Begins(self, name or trace.ROOT, spans)))
            handles.append(module.register_forward_hook(Ends(spans), always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _saved(self) -> Any:
        """Mark what autograd saves."""
        from torch.autograd.graph import saved_tensors_hooks

        def pack(tensor: Tensor) -> Tensor:
            self.mark_tensor(trace.SAVED, tensor)
            return tensor

        return saved_tensors_hooks(pack, lambda kept: kept)

    def _watch_gradients(self, loss: Tensor) -> None:
        """Mark every gradient that reaches a node of the graph."""
        for node in nodes(loss.grad_fn):
            kind = trace.PARAMETER_GRADIENT if hasattr(node, "variable") else trace.GRADIENT
            node.register_prehook(self._marker(kind))

    def _marker(self, kind: str) -> Callable[..., None]:
        def hook(gradients: tuple[Tensor | None, ...]) -> None:
            for gradient in gradients:
                if gradient is not None:
                    self.mark_tensor(kind, gradient)
            self.sample_store()

        return hook

    @contextmanager
    def _codes(self) -> Iterator[None]:
        """Mark codes where they are stored, and what decodes them."""
        if self._session is None:
            yield
            return
        session, store, watch = self._session, self._session.store, self._session.watch

        def watched(site: Any, what: str, work: Callable[[], Any]) -> Any:
            done = work if watch is None else partial(watch, site, what, work)
            if what != trace.DECODE:
                return done()
            with self.span(trace.DECODE, site.name):
                return done()

        mark = trace.CODE if session.policy.compress else trace.SAVED
        session.store, session.watch = WatchedStore(store, self, mark), watched
        try:
            yield
        finally:
            session.store, session.watch = store, watch

    def sample_store(self) -> None:
        """Note how much a store holds in memory of its own, where it tells."""
        if self._session is not None and isinstance(self._session.store, WatchedStore):
            store = self._session.store
            if (held := store.memory_bytes()) is not None:
                self.mark(trace.OUTSIDE, f"{store.mark}{trace.SEPARATOR}{held}")


class Begins:
    """A hook that annotates a module's forward, and sees none of its arguments: they may be overwritten as ever."""

    blind = True

    def __init__(self, tracer: Tracer, name: str, spans: list[Any]) -> None:
        self._tracer, self._name, self._spans = tracer, name, spans

    def __call__(self, *_: Any) -> None:
        self._tracer.mark_holders(sys._getframe(1))
        self._spans.append(self._tracer.span(trace.LAYER, self._name))
        self._spans[-1].__enter__()


class Ends:
    """The hook at the end of that forward."""

    blind = True

    def __init__(self, spans: list[Any]) -> None:
        self._spans = spans

    def __call__(self, *_: Any) -> None:
        self._spans.pop().__exit__(None, None, None)


class WatchedStore:
    """A store that marks what it is given."""

    keeps_in_place, allocates = False, True

    def __init__(self, store: Store, tracer: Tracer, mark: str) -> None:
        self._store, self._tracer, self.mark = store, tracer, mark

    def allocate(self, arrays: Any, nbytes: int, like: Any) -> Any:
        buffer = self._store.allocate(arrays, nbytes, like)
        self._tracer.sample_store()
        return buffer

    def put(self, arrays: Any, buffer: Any, kept: Callable[[int], None] | None = None) -> Any:
        self._tracer.mark_tensor(self.mark, buffer)
        saved = self._store.put(arrays, buffer, kept)
        if saved is not buffer:
            self._tracer.mark_tensor(trace.STORED, buffer)
        self._tracer.sample_store()
        return saved

    def get(self, arrays: Any, saved: Any) -> Any:
        buffer = self._store.get(arrays, saved)
        self._tracer.sample_store()
        return buffer

    def step_begins(self) -> None:
        self._store.step_begins()

    def close(self) -> None:
        self._store.close()

    def memory_bytes(self) -> int | None:
        """Return what the store holds in memory beyond the framework's own, None where it has none."""
        held = []
        if isinstance(self._store, Swap):
            held.append(self._store.statistics().memory_bytes)
        if isinstance(self._store, Memory) and self._store.slabs is not None:
            # what waits to be written or was read back lies in slabs too
            held.append(self._store.slabs.statistics().taken_bytes)
        return max(held, default=None)


def nodes(root: Any) -> Iterator[Any]:
    """Yield every node of a graph once."""
    seen, waiting = {root}, [root]
    while waiting:
        node = waiting.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
