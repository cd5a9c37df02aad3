"""The input of a stage goes when its first block has read it, unless anybody may read it again."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from overwriting import both, images, step
from torch import nn

from actnn.torch import release

# channels that only the output of the stem has
STEM = 5
# that each network is trained for
STEPS = 3


@pytest.fixture(autouse=True)
def released(monkeypatch):
    """Let every tensor count as large, and count those of the stem whose memory was given back."""
    counted, forgotten = Counter(), release.forgotten

    def counting(*arguments):
        found = forgotten(*arguments)
        counted["all"] += found and arguments[3].shape[1] == STEM
        return found

    monkeypatch.setattr(release, "LARGE_BYTES", 1)
    monkeypatch.setattr(release, "forgotten", counting)
    return counted


class Block(nn.Module):
    def __init__(self, inputs: int = 8, outputs: int = 8) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(True)

    def forward(self, x):
        return self.relu(self.norm(self.conv(x)))


class Network(nn.Module):
    """A stem and a stage of two blocks, which a subclass wires."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stage = Block(3, STEM), nn.Sequential(Block(STEM), Block())
        self.kept, self.flag = [], False

    def forward(self, x):
        x = self.stem(x)
        x = self.stage(x)
        return x


class Two(nn.Module):
    """A stage that is not a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(STEM), Block()

    def forward(self, h):
        h = self.first(h)
        return self.second(h)


def test_the_input_of_a_sequence_is_released(released):
    both(Network(), images())
    assert released["all"] == STEPS


class Tail(Block):
    """A block that goes on after its last reader of the input."""

    def forward(self, x):
        x = self.conv(x)
        return self.relu(self.norm(x))


def test_the_input_of_a_stage_is_released_by_its_last_reader(released):
    network = Network()
    network.stage = nn.Sequential(Tail(STEM), Tail())
    both(network, images())
    assert released["all"] == STEPS


def test_the_input_of_a_stage_with_code_of_its_own_is_released(released):
    network = Network()
    network.stage = Two()
    both(network, images())
    assert released["all"] == STEPS


def test_sequences_within_sequences_are_released(released):
    network = Network()
    network.stage = nn.Sequential(nn.Sequential(Block(STEM), Block()), Block())
    both(network, images())
    assert released["all"] == STEPS


class Nested(Network):
    def forward(self, x):
        return self.stage(self.stem(x))


class NestedTwice(Network):
    def __init__(self) -> None:
        super().__init__()
        self.stage = nn.Sequential(nn.Sequential(Block(STEM), Block()), Block())

    def forward(self, x):
        return self.stage(self.stem(x))


@pytest.mark.parametrize("kind", [Nested, NestedTwice])
def test_what_no_variable_holds_is_released(kind, released):
    both(kind(), images())
    assert released["all"] == STEPS


class ReadAgain(Network):
    def forward(self, x):
        h = self.stem(x)
        return self.stage(h) + h.mean()


class ReadInABranch(Network):
    def forward(self, x):
        h = self.stem(x)
        out = self.stage(h)
        return out + h.mean() if self.flag else out


class Kept(Network):
    def forward(self, x):
        x = self.stem(x)
        self.kept = [x]
        x = self.stage(x)
        return x + self.kept[0].mean()


class KeptOnTheWay(Network):
    def forward(self, x):
        x = self.stage(self.noted(self.stem(x)))
        return x + self.kept[0].mean()

    def noted(self, x):
        self.kept = [x]
        return x


class Printed(Network):
    def forward(self, x):
        h = self.stem(x)
        out = self.stage(h)
        self.kept = [str(h.sum())]
        return out


class Viewed(Network):
    def forward(self, x):
        x = self.stem(x)
        rows = x.flatten(2)
        x = self.stage(x)
        return x.mean() + rows.square().mean()


class Saved(Network):
    def forward(self, x):
        x = self.stem(x)
        square = x * x
        x = self.stage(x)
        return x + square.mean()


class Stage(Two):
    """A stage that reads its input after its first block."""

    def forward(self, h):
        out = self.first(h)
        return self.second(out) + h.mean()


@pytest.mark.parametrize("kind", [ReadAgain, ReadInABranch, Kept, KeptOnTheWay, Printed, Viewed, Saved])
def test_an_input_that_may_be_read_again_stays(kind, released):
    both(kind(), images())
    assert not released["all"]


def test_an_input_that_the_stage_reads_again_stays(released):
    network = Network()
    network.stage = Stage()
    both(network, images())
    assert not released["all"]


@pytest.mark.parametrize("place", ["stage", "stage.0"])
def test_hooks_see_the_input_as_it_was(place, released):
    def run(model, x):
        seen = []
        layer = model.get_submodule(place)
        handle = layer.register_forward_hook(lambda layer, given, out: seen.append(given[0].detach().clone()))
        out = model(x)
        out.square().mean().backward()
        handle.remove()
        return [out.detach().clone(), *seen, *(own.grad.clone() for own in model.parameters())]

    both(Network(), images(), run=run)
    assert not released["all"]


@pytest.mark.parametrize("place", ["stage", "stage.0", "stage.0.conv"])
def test_hooks_that_are_blind_change_nothing(place, released):
    class Blind:
        blind = True

        def __call__(self, *_):
            return None

    def run(model, x):
        layer = model.get_submodule(place)
        handles = [layer.register_forward_pre_hook(Blind()), layer.register_forward_hook(Blind())]
        results = step(model, x)
        for handle in handles:
            handle.remove()
        return results

    both(Network(), images(), run=run)
    assert released["all"] == STEPS


def test_a_debugger_sees_the_input_as_it_was(released):
    def run(model, x):
        sys.settrace(lambda *_: None)
        try:
            return [model(x).detach().clone()]
        finally:
            sys.settrace(None)

    both(Network(), images(), run=run)
    assert not released["all"]


def test_a_batch_is_never_released():
    network = nn.Sequential(nn.Sequential(Block(3), Block()), Block())
    x = images().requires_grad_()
    both(network, x, run=lambda model, x: [model(x).detach().clone()])
    assert x.shape == (4, 3, 12, 12)
