"""A profile names the variables of the user's functions that hold memory, and the line that they are at."""

from __future__ import annotations

import sys
from inspect import currentframe
from pathlib import Path

import pytest
from traces import Trace

from actnn.profiling import trace
from actnn.profiling.blocks import pieces
from actnn.profiling.timeline import Timeline

torch = pytest.importorskip("torch")

HERE = Path(__file__).name


def test_variables_and_lists_of_callers_are_found():
    from actnn.profiling.holders import holders

    def within(h):
        return list(holders(sys._getframe())), currentframe().f_lineno

    identity, features = torch.zeros(1), [torch.zeros(2)]
    found, line = within(identity)
    places = {holder.split(" (")[0]: tensor for tensor, holder in found if HERE in holder}
    own = "test_variables_and_lists_of_callers_are_found"
    assert places[f"h in {own}.<locals>.within"] is identity
    assert places[f"identity in {own}"] is identity
    assert places[f"features in {own}"] is features[0]
    assert any(holder.endswith(f"within ({HERE}:{line})") for _, holder in found)


def test_looking_holds_nothing():
    from actnn.profiling.holders import holders

    held = torch.zeros(1)
    before = sys.getrefcount(held)
    for _ in holders(sys._getframe()):
        pass
    del _
    assert sys.getrefcount(held) == before


def looked_at() -> Trace:
    """Return a step in which a block is held by one variable, then by another, and another block at first only."""
    made = Trace()
    made.annotate(trace.PHASE, "forward", 0, 100)
    made.annotate(trace.PHASE, "backward", 100, 200)
    made.take(1, 10, 1000)
    made.take(2, 20, 500)
    made.annotate(trace.HELD, "10|1|x in f (a.py:1)", 5)
    made.annotate(trace.HELD, "20|1|y in f (a.py:1)", 6)
    made.annotate(trace.HELD, "10|2|identity in f (a.py:2)", 15)
    made.annotate(trace.LAYER, "conv", 20, 40)
    made.take(30, 30, 100)
    made.give_back(150, 30, 100)
    return made


def test_who_holds_memory_is_who_held_it_at_the_last_look():
    step = looked_at().read()
    timeline = Timeline(step, pieces(step))
    assert timeline.holders(30) == {"identity in f (a.py:2)": 1000}
    assert timeline.holders(10) == {"x in f (a.py:1)": 1000, "y in f (a.py:1)": 500}
    (moment,) = timeline.highest(step.passes, 1)
    assert moment.holders == {"identity in f (a.py:2)": 1000}
    assert ("identity in f (a.py:2)",) in [share.holders for share in timeline.at_peak()]


def test_functions_of_the_forward_hold_nothing_in_backward():
    step = looked_at().read()
    assert Timeline(step, pieces(step)).holders(160) == {}


def test_a_traced_step_tells_the_line_that_holds_a_shortcut():
    from torch import nn

    import actnn
    from actnn.profiling.tracing import Tracer

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

        def forward(self, x):
            shortcut = x
            x = self.conv(x)
            return self.norm(x) + shortcut

    model = actnn.QModule(nn.Sequential(nn.Conv2d(3, 4, 3), Residual()), level="L3", seed=1)
    x = torch.randn(2, 3, 34, 34)
    step = Tracer(model, model._session).traced(lambda: model(x).square().mean(), lambda: None)
    held = {holder.place for block in step.blocks for holder in block.held}
    first = Residual.forward.__code__.co_firstlineno
    assert f"shortcut in {Residual.forward.__qualname__} ({HERE}:{first + 3})" in held
