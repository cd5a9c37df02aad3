"""Nothing is overwritten or released that somebody reads past variables, or by a hook that came late."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from types import SimpleNamespace

import pytest
import torch
from overwriting import both, images, step
from torch import nn

from actnn.frames import variables_of
from actnn.torch import release
from actnn.torch.callers import evaluated_elsewhere, observed

CHANNELS = 6


@pytest.fixture(autouse=True)
def tiny_tensors_are_released(monkeypatch):
    """Let every tensor count as large."""
    monkeypatch.setattr(release, "LARGE_BYTES", 1)


class Block(nn.Module):
    """A convolution, a norm, a rectifier and another convolution, which a subclass wires."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS)
        self.relu, self.last = nn.ReLU(), nn.Conv2d(CHANNELS, 4, 1)


class WeaklyHeld(Block):
    def forward(self, x):
        before = self.conv(x)
        held = weakref.ref(before)
        out = self.norm(before)
        return self.last(self.relu(out)) + self.last(held())


class OutputWeaklyHeld(Block):
    def forward(self, x):
        before = self.norm(self.conv(x))
        held = weakref.ref(before)
        out = self.relu(before)
        return self.last(out) + self.last(held())


class Memory(Block):
    def forward(self, x):
        before = self.conv(x)
        memory, shape = before.untyped_storage(), before.shape
        out = self.norm(before)
        return self.last(self.relu(out)) + torch.empty(0).set_(memory, 0, shape).mean()


class Array(Block):
    def forward(self, x):
        before = self.conv(x)
        array = before.detach().numpy()
        out = self.norm(before)
        return self.last(self.relu(out)) + float(array.mean())


class Marked(Block):
    def forward(self, x):
        before = self.norm(self.conv(x))
        before.marked = True
        out = self.relu(before)
        return self.last(out) + float(hasattr(out, "marked"))


class OtherCallable(Block):
    """What the name of a layer stands for later is a function in C, which calls that layer with another tensor."""

    def forward(self, x):
        kept, outs = [self.conv(x) * 1.0], []
        function, argument = self.norm, self.conv(x)
        for _ in range(2):
            outs.append(function(argument))
            function, argument = next, map(self.norm, kept)
        return self.last(self.relu(outs[0])) + self.last(outs[1]) + self.last(kept[0])


class Walrus(Block):
    def forward(self, x):
        out = self.norm(before := self.conv(x))
        return self.last(self.relu(out)) + self.last(before)


class Starred(Block):
    def forward(self, x):
        before = (self.conv(x),)
        out = self.norm(*before)
        return self.last(self.relu(out)) + self.last(before[0])


class Keyword(Block):
    def forward(self, x):
        before = self.conv(x)
        out = self.norm(input=before)
        return self.last(self.relu(out)) + self.last(before)


class Comprehension(Block):
    def forward(self, x):
        befores = [self.conv(x) for _ in range(2)]
        outs = [self.norm(before) for before in befores]
        return sum(self.last(self.relu(out)) for out in outs) + self.last(befores[0])


class Suppressed(Block):
    def forward(self, x):
        out = self.norm(self.conv(x))
        with contextlib.suppress(ZeroDivisionError):
            out = self.relu(out) * (1 // 0)
        return self.last(out)


class Finally(Block):
    def forward(self, x):
        before = self.conv(x)
        try:
            out = self.norm(before)
        finally:
            total = before.detach().sum()
        return self.last(self.relu(out)) + total


class Matched(Block):
    def forward(self, x):
        before = self.conv(x)
        out = self.norm(before)
        match before:
            case torch.Tensor():
                out = out + before
        return self.last(self.relu(out))


class Decorated(Block):
    def forward(self, x):
        kept = []

        @functools.wraps(self.norm.forward)
        def keeping(h):
            kept.append(h)
            return self.norm(h)

        return self.last(self.relu(keeping(self.conv(x)))) + self.last(kept[0])


class Default(Block):
    def forward(self, x):
        before = self.conv(x)

        def later(h=before):
            return self.last(h)

        out = self.norm(before)
        return self.last(self.relu(out)) + later()


class Executed(Block):
    def forward(self, x):
        space = {"self": self, "x": x}
        exec("h = self.conv(x); out = self.norm(h); y = self.last(self.relu(out)) + self.last(h)", space)
        return space["y"]


class Parameter(Block):
    def forward(self, x):
        before = self.conv(x)
        return self.within(before) + self.last(before)

    def within(self, h):
        return self.last(self.relu(self.norm(h)))


class Raised(Block):
    def forward(self, x):
        before = self.conv(x)
        try:
            raise ValueError(before)
        except ValueError as error:
            out = self.norm(before)
            return self.last(self.relu(out)) + self.last(error.args[0])


class Awaited(Block):
    def forward(self, x):
        async def coroutine():
            before = self.conv(x)
            out = self.norm(before)
            return self.last(self.relu(out)) + self.last(before)

        try:
            coroutine().send(None)
        except StopIteration as end:
            return end.value


class Deleted(Block):
    def forward(self, x):
        before = self.conv(x)
        kept = before
        out = self.norm(before)
        del before
        return self.last(self.relu(out)) + self.last(kept)


class GradientsChanged(Block):
    def forward(self, x):
        h = self.conv(x)
        h.register_hook(lambda grad: 2 * grad)
        h = self.norm(h)
        h.register_hook(lambda grad: 3 * grad)
        h.retain_grad()
        h = self.relu(h)
        h.register_hook(lambda grad: 0.5 * grad)
        return self.last(h)


KINDS = (
    *(WeaklyHeld, OutputWeaklyHeld, Memory, Array, Marked, OtherCallable, Walrus, Starred, Keyword, Comprehension),
    *(
        Suppressed,
        Finally,
        Matched,
        Decorated,
        Default,
        Executed,
        Parameter,
        Raised,
        Awaited,
        Deleted,
        GradientsChanged,
    ),
)


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_reads_an_input_reads_what_it_was(kind):
    both(kind(), images(2, 8), 2)


@pytest.mark.parametrize("kept", [weakref.ref, torch.Tensor.untyped_storage], ids=["weakly", "memory"])
def test_an_input_that_is_held_another_way_is_not_released(kept):
    class Network(Staged):
        def forward(self, x):
            x = self.stem(x)
            shape, held = x.shape, kept(x)
            out = self.stage(x)
            seen = held() if isinstance(held, weakref.ref) else torch.empty(0).set_(held, 0, shape)
            return out + seen.detach().mean()

    both(Network(), images(2, 8), 2)


class Part(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(True)

    def forward(self, x):
        return self.relu(self.norm(self.conv(x)))


class Staged(nn.Module):
    """A stem and a stage whose first part is the last reader of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stage = Part(3, 5), nn.Sequential(Part(5, 8), Part(8, 8))

    def forward(self, x):
        x = self.stem(x)
        x = self.stage(x)
        return x


@pytest.mark.parametrize("place", ["stage", "stage.0", "everywhere"])
def test_hooks_that_come_after_the_first_step_see_the_input_as_it_was(place):
    def run(model, x):
        step(model, x)
        model.zero_grad()
        seen = []

        def watch(layer, given, out):
            seen.append(given[0].detach().clone())

        if place == "everywhere":
            handle = nn.modules.module.register_module_forward_hook(watch)
        else:
            handle = model.get_submodule(place).register_forward_hook(watch)
        results = step(model, x)
        handle.remove()
        return [*results, *seen]

    both(Staged(), images(2, 8), 1, run)


@pytest.mark.parametrize("arrange", [torch.Tensor.to_sparse, torch.Tensor.to_mkldnn], ids=["sparse", "mkldnn"])
def test_tensors_without_memory_of_their_own_run_plainly(arrange):
    class Arranged(Block):
        def forward(self, x):
            return self.last(self.relu(arrange(self.norm(self.conv(x)))).to_dense())

    both(Arranged(), images(2, 8), 1)


def test_a_debugger_that_monitors_is_seen(monkeypatch):
    assert not observed()
    monitoring = SimpleNamespace(DEBUGGER_ID=0, get_tool={0: "debugger"}.get)
    monkeypatch.setattr(sys, "monitoring", monitoring, raising=False)
    assert observed()


def test_functions_that_a_compiler_evaluates_are_told():
    found = []

    def backend(graph, inputs):
        found.append(evaluated_elsewhere())
        return graph.forward

    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
    assert found == [True]
    assert not evaluated_elsewhere()


def test_variables_that_somebody_else_holds_are_left_to_him():
    value = object()
    frame = sys._getframe()
    seen = frame.f_locals
    assert variables_of(frame, ("value",)) == [value]
    assert seen["value"] is value
