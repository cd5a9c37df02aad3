"""BatchNorms write over inputs that nobody reads again, and over no others: gradients are the same bits either way."""

from __future__ import annotations

import functools
from collections import Counter

import pytest
import torch
from overwriting import both, compressed, images, step
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from actnn.torch.tensors import TorchArrays

CHANNELS = 6


@pytest.fixture
def overwritten(monkeypatch):
    """Count the tensors over which a BatchNorm writes."""
    counted, over = Counter(), TorchArrays.over

    def counting(arrays, x):
        counted["all"] += 1
        return over(arrays, x)

    monkeypatch.setattr(TorchArrays, "over", counting)
    return counted


class Block(nn.Module):
    """A convolution, a norm, a rectifier and another convolution, which a subclass wires."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS)
        self.relu, self.last = nn.ReLU(), nn.Conv2d(CHANNELS, 4, 1)
        self.kept, self.flag, self.other = [], False, None

    def forward(self, x):
        out = self.conv(x)
        out = self.norm(out)
        return self.last(self.relu(out))


class Nested(Block):
    def forward(self, x):
        return self.last(self.relu(self.norm(self.conv(x))))


class Looping(Block):
    def forward(self, x):
        out = x
        for layer in (self.conv, self.norm, self.relu, self.last):
            out = layer(out)
        return out


class Named(Block):
    def forward(self, x):
        for number in range(1):
            x = getattr(self, f"con{'v' * (number + 1)}")(x)
            x = getattr(self, f"nor{'m' * (number + 1)}")(x)
        return self.last(self.relu(x))


class Branching(Block):
    def forward(self, x):
        out = self.conv(x)
        out = self.norm(out) if out.sum() > 0 else -self.norm(out)
        return self.last(self.relu(out))


OVERWRITTEN = {
    "one variable": Block(),
    "nested calls": Nested(),
    "a loop over layers": Looping(),
    "names that are computed": Named(),
    "a branch on data": Branching(),
    "a sequence": nn.Sequential(
        nn.Conv2d(3, CHANNELS, 3), nn.BatchNorm2d(CHANNELS), nn.ReLU(), nn.Conv2d(CHANNELS, 4, 1)
    ),
    "in place": nn.Sequential(
        nn.Conv2d(3, CHANNELS, 3), nn.BatchNorm2d(CHANNELS), nn.ReLU(True), nn.Conv2d(CHANNELS, 4, 1)
    ),
}


@pytest.mark.parametrize("name", OVERWRITTEN)
def test_an_input_that_nobody_reads_again_is_overwritten(name, overwritten):
    both(OVERWRITTEN[name], images())
    assert overwritten["all"] == 3


def test_nothing_is_overwritten_where_that_is_turned_off(overwritten):
    step(compressed(Block(), overwrite=False), images())
    assert not overwritten


def test_channels_last_is_overwritten_too(overwritten):
    both(Block().to(memory_format=torch.channels_last), images().to(memory_format=torch.channels_last))
    assert overwritten["all"] == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_overwritten_too(dtype, overwritten):
    both(Block().to(dtype), images().to(dtype))
    assert overwritten["all"] == 3


class ReadAgain(Block):
    def forward(self, x):
        before = self.conv(x)
        out = self.norm(before)
        return self.last(self.relu(out)) + self.last(before)


class ReadInABranch(Block):
    def forward(self, x):
        before = self.conv(x)
        out = self.norm(before)
        if self.flag:
            out = out + before
        return self.last(self.relu(out))


class ReadInALoop(Block):
    def forward(self, x):
        before, total = self.conv(x), 0.0
        for _ in range(2):
            total = total + self.norm(before)
        return self.last(self.relu(total))


class ReadWhenCaught(Block):
    def forward(self, x):
        before = self.conv(x)
        try:
            before = self.norm(before)
        except ValueError:
            return self.last(before)
        return self.last(self.relu(before))


class Printed(Block):
    def forward(self, x):
        before = self.conv(x)
        out = self.norm(before)
        self.other = f"{before.sum():.6f}"
        return self.last(self.relu(out))


class Seen(Block):
    def forward(self, x):
        before = self.conv(x)
        out = self.norm(before)
        self.other = locals()["before"].detach().clone()
        return self.last(self.relu(out))


class InAList(Block):
    def forward(self, x):
        out = self.conv(x)
        self.kept = [out]
        out = self.norm(out)
        return self.last(self.relu(out)) + self.last(self.kept[0])


class TwoNames(Block):
    def forward(self, x):
        out = shortcut = self.conv(x)
        out = self.norm(out)
        return self.last(self.relu(out)) + self.last(shortcut)


class InAClosure(Block):
    def forward(self, x):
        before = self.conv(x)

        def later():
            return self.last(before)

        return self.last(self.relu(self.norm(before))) + later()


class View(Block):
    def forward(self, x):
        before = self.conv(x)
        view = before[:, :, 1:]
        out = self.norm(before)
        return self.last(self.relu(out)).mean() + view.square().mean()


class Saved(Block):
    def forward(self, x):
        out = self.conv(x)
        product = (out * out).mean()
        out = self.norm(out)
        return self.last(self.relu(out)) + product


class SavedResult(Block):
    def forward(self, x):
        out = torch.exp(0.1 * self.conv(x))
        out = self.norm(out)
        return self.last(self.relu(out))


class Mapped(Block):
    def forward(self, x):
        befores = [self.conv(x)]
        outs = list(map(self.norm, befores))
        return self.last(self.relu(outs[0])) + self.last(befores[0])


class Partial(Block):
    def forward(self, x):
        normed = functools.partial(self.norm, self.conv(x))
        return self.last(self.relu(normed())) + self.last(normed())


class Concatenated(Block):
    def forward(self, x):
        before = self.conv(x)
        features = [before]
        features.append(self.norm(before))
        return self.last(self.relu(torch.cat(features).flatten(0, 1).unflatten(0, (-1, CHANNELS))))


class Generated(Block):
    def forward(self, x):
        def stages(h):
            h = self.conv(h)
            yield h
            yield self.norm(h)

        before, out = stages(x)
        return self.last(self.relu(out)) + self.last(before)


READ_AGAIN = (
    *(ReadAgain, ReadInABranch, ReadInALoop, ReadWhenCaught, Printed, Seen, InAList, TwoNames, InAClosure, View, Saved),
    *(SavedResult, Mapped, Partial, Concatenated, Generated),
)


@pytest.mark.parametrize("kind", READ_AGAIN)
def test_an_input_that_may_be_read_again_is_left_alone(kind, overwritten):
    both(kind(), images())
    assert not overwritten


def test_what_is_printed_is_what_was_computed():
    models = [compressed(Printed(), overwrite) for overwrite in (False, True)]
    models[1].load_state_dict(models[0].state_dict())
    for model in models:
        step(model, images())
    assert models[0].other == models[1].other


def test_a_flag_that_is_set_later_is_no_surprise(overwritten):
    network = ReadInABranch()

    def run(model, x):
        step(model, x)
        model.zero_grad()
        model._model.flag = True
        return step(model, x)

    both(network, images(), 1, run)
    assert not overwritten


def test_a_hook_that_sees_the_input_afterwards_sees_it_as_it_was(overwritten):
    seen = []

    def run(model, x):
        seen.clear()
        handle = model.norm.register_forward_hook(lambda layer, given, out: seen.append(given[0].detach().clone()))
        results = step(model, x)
        handle.remove()
        return [*results, *seen]

    both(Block(), images(), run=run)
    assert not overwritten


def test_hooks_that_are_blind_change_nothing(overwritten):
    class Blind:
        blind = True

        def __call__(self, *_):
            return None

    def run(model, x):
        layers = (model.norm, model.relu)
        handles = [layer.register_forward_hook(Blind(), always_call=True) for layer in layers]
        results = step(model, x)
        for handle in handles:
            handle.remove()
        return results

    both(Block(), images(), run=run)
    assert overwritten["all"] == 3


def test_a_hook_that_replaces_a_temporary_keeps_it(overwritten):
    def run(model, x):
        kept = []

        def replace(layer, given):
            kept.append(given[0] * 1.0)
            return (kept[0],)

        handle = model.norm.register_forward_pre_hook(replace)
        results = step(model, x)
        handle.remove()
        return [*results, kept[0].detach().clone()]

    both(Nested(), images(), run=run)
    assert not overwritten


def test_a_hook_for_all_modules_sees_the_input_as_it_was(overwritten):
    def run(model, x):
        hook = nn.modules.module.register_module_forward_hook(lambda layer, given, out: None)
        results = step(model, x)
        hook.remove()
        return results

    both(Block(), images(), run=run)
    assert not overwritten


def test_features_that_a_hook_collects_stay_as_they_are(overwritten):
    def run(model, x):
        features = []
        handle = model.conv.register_forward_hook(lambda layer, given, out: features.append(out))
        results = step(model, x)
        handle.remove()
        return [*results, *(feature.detach() for feature in features)]

    both(Block(), images(), run=run)
    assert not overwritten


def test_features_that_a_list_of_the_caller_holds_stay_as_they_are(overwritten):
    network = nn.ModuleList([nn.Conv2d(3, CHANNELS, 3), nn.BatchNorm2d(CHANNELS), nn.ReLU()])

    class Extractor(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = network

        def forward(self, x):
            features = []
            for layer in self.layers:
                x = layer(x)
                features.append(x)
            return sum(feature.square().mean() for feature in features)

    both(Extractor(), images())
    assert not overwritten


def test_a_debugger_sees_what_was_computed(overwritten):
    import sys

    def run(model, x):
        sys.settrace(lambda *_: None)
        try:
            return step(model, x)
        finally:
            sys.settrace(None)

    both(Block(), images(), run=run)
    assert not overwritten


class Retained(Block):
    def forward(self, x):
        out = self.conv(x)
        out.retain_grad()
        self.other = out
        out = self.norm(out)
        return self.last(self.relu(out))


class Hooked(Block):
    def forward(self, x):
        out = self.conv(x)
        out.register_hook(self.kept.append)
        out = self.norm(out)
        out.register_hook(self.kept.append)
        out = self.relu(out)
        out.register_hook(self.kept.append)
        return self.last(out)


def test_a_retained_gradient_is_the_right_one(overwritten):
    def run(model, x):
        results = step(model, x)
        return [*results, model.other.grad, model.other.detach()]

    both(Retained(), images(), run=run)
    assert not overwritten


def test_gradients_that_hooks_keep_stay_as_they_are():
    def run(model, x):
        model._model.kept.clear()
        results = step(model, x)
        return [*results, *model._model.kept]

    found = both(Hooked(), images(), run=run)
    gradients = found[-3:]
    assert len({gradient.data_ptr() for gradient in gradients}) == 3


def test_a_gradient_that_the_user_gives_stays_as_it_is():
    given = torch.randn(4, CHANNELS, 12, 12)

    def run(model, x):
        own = given.clone()
        out = model(x)
        out.backward(own)
        assert torch.equal(own, given)
        return [out.detach(), *(own.grad.clone() for own in model.parameters())]

    network = nn.Sequential(nn.Conv2d(3, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS), nn.ReLU())
    both(network, images(), run=run)


def test_gradients_asked_for_by_name_stay_as_they_are():
    def run(model, x):
        x = x.clone().requires_grad_()
        h = model[1](model[0](x))
        y = model[2](h)
        return list(torch.autograd.grad(y.square().mean(), [h, y, x]))

    both(nn.Sequential(nn.Conv2d(3, CHANNELS, 3), nn.BatchNorm2d(CHANNELS), nn.ReLU()), images(), run=run)


def test_a_graph_that_is_kept_gives_the_same_gradients_twice():
    def run(model, x):
        loss = model(x).square().mean()
        loss.backward(retain_graph=True)
        first = [own.grad.clone() for own in model.parameters()]
        model.zero_grad()
        loss.backward()
        for before, own in zip(first, model.parameters(), strict=True):
            assert torch.equal(before, own.grad)
        return first

    both(Block(), images(), run=run)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_computes_the_same(reentrant, overwritten):
    class Checkpointed(Block):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=reentrant)

    both(Checkpointed(), images().requires_grad_())
    assert overwritten["all"]


def test_a_functional_call_does_not_write_over_what_a_layer_returned():
    class Functional(Block):
        def forward(self, x):
            normed = self.norm(self.conv(x))
            address = normed.data_ptr()
            out = F.relu(normed)
            assert out.data_ptr() != address
            return self.last(out)

    both(Functional(), images())
