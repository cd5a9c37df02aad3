"""Convolutions that work in parts write over inputs and gradients of the same shape, where nobody reads those again."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from overwriting import both, images, step
from torch import nn

from actnn.torch.functions import maps

CHANNELS = 6


@pytest.fixture(autouse=True)
def tiny_parts(monkeypatch):
    """Let every convolution work in parts, and every tensor count as large."""
    from actnn.session import session
    from actnn.torch import release
    from actnn.torch.functions import activation

    monkeypatch.setattr(session, "WORKING_BYTES", 4096)
    monkeypatch.setattr(activation, "LARGE_BYTES", 1)
    monkeypatch.setattr(release, "LARGE_BYTES", 1)


@pytest.fixture
def written(monkeypatch):
    """Count convolutions that write over what they read, forward and backward."""
    counted, in_pieces = Counter(), maps.in_pieces

    def counting(parts, compute, whole=None):
        counted["over" if whole is not None else "beside"] += 1
        return in_pieces(parts, compute, whole)

    monkeypatch.setattr(maps, "in_pieces", counting)
    return counted


def chain(*between):
    """Return convolutions of which the second keeps the shape of its input."""
    return nn.Sequential(
        *(nn.Conv2d(3, CHANNELS, 3, padding=1), *between),
        *(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.ReLU(), nn.Conv2d(CHANNELS, 2, 1)),
    )


BETWEEN = ([nn.BatchNorm2d(CHANNELS), nn.ReLU()], [nn.BatchNorm2d(CHANNELS)], [nn.ReLU()], [])


@pytest.mark.parametrize("between", BETWEEN)
def test_no_bit_changes(between, written):
    # the input of the network is its user's, and the loss reads the output
    both(chain(*between), images(), steps=4)
    assert written["over"]


def test_the_second_of_two_writes_over_what_only_it_reads_in_both_passes(written):
    both(chain(nn.BatchNorm2d(CHANNELS), nn.ReLU()), images(), steps=4)
    # forward from the second step on: in the first it has no parts yet
    assert written["over"] == 3 + 4


class TwoReaders(nn.Module):
    """A block whose convolution is not the last to read its input."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, CHANNELS, 1), nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.norm = nn.BatchNorm2d(CHANNELS)

    def forward(self, x):
        x = self.norm(self.stem(x))
        return self.conv(x) + x


def test_an_input_that_is_read_again_stays(written):
    both(TwoReaders(), images(), steps=4)
    assert not written["over"]


def test_a_hook_sees_the_input_as_it_was(written):
    def run(model, x):
        seen = []
        handle = model[3].register_forward_hook(lambda layer, given, out: seen.append(given[0].detach().clone()))
        results = step(model, x)
        handle.remove()
        return [*results, *seen]

    both(chain(nn.BatchNorm2d(CHANNELS), nn.ReLU()), images(), steps=4, run=run)


def test_a_gradient_that_a_hook_keeps_stays(written):
    def run(model, x):
        seen = []
        handle = model[4].register_forward_hook(lambda layer, given, out: given[0].register_hook(seen.append) and None)
        results = step(model, x)
        handle.remove()
        return [*results, *seen]

    both(chain(nn.BatchNorm2d(CHANNELS), nn.ReLU()), images(), steps=4, run=run)


def test_what_is_known_of_an_input_is_not_taken_for_its_output():
    # both versions of the memory are results of a norm and a convolution that changed it once
    network = nn.Sequential(
        *(nn.Conv2d(3, CHANNELS, 1), nn.BatchNorm2d(CHANNELS), nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)),
        *(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS), nn.Conv2d(CHANNELS, 2, 1)),
    )
    both(network, images(), steps=4)


def test_an_output_of_another_precision_has_memory_of_its_own():
    def run(model, x):
        with torch.autocast("cpu", torch.bfloat16):
            return step(model, x)

    both(chain(), images(), steps=4, run=run)


def test_the_order_of_channels_last_stays(written):
    network = chain(nn.BatchNorm2d(CHANNELS), nn.ReLU()).to(memory_format=torch.channels_last)
    both(network, images().contiguous(memory_format=torch.channels_last), steps=4)
    assert written["over"] == 3 + 4
