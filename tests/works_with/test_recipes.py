"""Ways to train that people combine: with codes of 8 bits they end where exact training does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import actnn

STEPS = 3
# what codes of 8 bits may move weights by, of what they move in all
CLOSE = 0.08
Weights = dict[str, Tensor]
Recipe = Callable[[nn.Module], Weights]
works_with = pytest.mark.works_with


def network() -> nn.Sequential:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    second = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    return nn.Sequential(first, second, nn.Sequential(nn.Flatten(), nn.Linear(8 * 64, 5)))


def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, 3, 12, 12, generator=generator) for _ in range(STEPS)]


def converted(model: nn.Module) -> actnn.QModule:
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [8]
    return actnn.QModule(model)


def loss(outputs: Tensor) -> Tensor:
    return (outputs.flatten(1) - 1).square().mean()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)


def train(model: nn.Module, forward: Callable[[Any], Tensor] | None = None) -> Weights:
    """Take some steps; return the weights."""
    optimizer = optimizer_of(model)
    for x in batches():
        optimizer.zero_grad()
        loss((forward or model)(x)).backward()
        optimizer.step()
    return dict(model.named_parameters())


def same(recipe: Recipe, build: Callable[[], nn.Module] = network) -> actnn.QModule:
    """Raise unless a recipe ends with codes where it ends without; return the converted model."""
    before = {name: weight.detach() for name, weight in build().named_parameters()}
    ours = converted(build())
    torch.manual_seed(2)
    expected = recipe(build())
    torch.manual_seed(2)
    found = recipe(ours)
    assert found.keys() == expected.keys()
    # of weights that a recipe makes itself nobody knows where they began
    moved = distance(expected, before, before.keys() & expected.keys())
    assert distance(found, expected, expected.keys()) < CLOSE * moved
    report = ours.report()
    assert {row.bits for row in report.rows if row.bits is not None} == {8.0}
    assert report.ratio > 1
    return ours


def distance(one: Weights, other: Weights, names: Iterable[str]) -> float:
    return sum(float((one[name] - other[name]).detach().square().sum()) for name in names) ** 0.5


class Anew(nn.Sequential):
    """Computes all parts but the last anew in backward."""

    def __init__(self, parts: nn.Sequential, **options: Any) -> None:
        super().__init__(*parts)
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        for part in list(self)[:-1]:
            x = checkpoint(part, x, **self.options)
        return self[-1](x)


class Segments(nn.Sequential):
    """Computes two segments anew in backward."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint_sequential(list(self), 2, x, use_reentrant=False)


@works_with("checkpoint, reentrant")
def test_reentrant_checkpointing():
    same(train, lambda: Anew(network(), use_reentrant=True))


@works_with("checkpoint, non-reentrant")
def test_checkpointing_that_is_not_reentrant():
    same(train, lambda: Anew(network(), use_reentrant=False))


@works_with("checkpoint, sequential")
def test_checkpointing_in_segments():
    same(train, lambda: Segments(*network()))


def policy(context: Any, operation: Any, *_: Any, **__: Any) -> CheckpointPolicy:
    kept = operation == torch.ops.aten.convolution.default
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


@works_with("checkpoint, selective")
def test_checkpointing_of_some_operations():
    contexts = partial(create_selective_checkpoint_contexts, policy)
    same(train, lambda: Anew(network(), use_reentrant=False, context_fn=contexts))


@works_with("autocast, bfloat16")
def test_mixed_precision_with_bfloat16():
    def forward(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float()

    same(lambda model: train(model, partial(forward, model)))


@works_with("autocast, float16")
def test_mixed_precision_with_float16_and_a_scaler():
    def recipe(model: nn.Module) -> Weights:
        optimizer, scaler = optimizer_of(model), torch.amp.GradScaler("cpu", init_scale=2.0**8)
        for x in batches():
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                outputs = model(x)
            scaler.scale(loss(outputs.float())).backward()
            scaler.step(optimizer)
            scaler.update()
        return dict(model.named_parameters())

    same(recipe)


@works_with("EMA")
def test_an_exponential_average_of_weights():
    def recipe(model: nn.Module) -> Weights:
        average, optimizer = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5)), optimizer_of(model)
        for x in batches():
            optimizer.zero_grad()
            loss(model(x)).backward()
            optimizer.step()
            average.update_parameters(model)
        average.eval()(batches()[0])
        return dict(average.module.named_parameters())

    same(recipe)


@works_with("SWA")
def test_stochastic_weight_averaging():
    def recipe(model: nn.Module) -> Weights:
        average, optimizer = AveragedModel(model), optimizer_of(model)
        schedule = SWALR(optimizer, swa_lr=0.02)
        for x in batches():
            optimizer.zero_grad()
            loss(model(x)).backward()
            optimizer.step()
            average.update_parameters(model)
            schedule.step()
        update_bn(batches(), average)
        statistics = {name: each for name, each in average.module.named_buffers() if each.is_floating_point()}
        return dict(average.module.named_parameters()) | statistics

    same(recipe)


@works_with("SAM")
def test_sharpness_aware_minimisation():
    def recipe(model: nn.Module) -> Weights:
        optimizer, weights = optimizer_of(model), list(model.parameters())
        for x in batches():
            optimizer.zero_grad()
            loss(model(x)).backward()
            norm = torch.stack([weight.grad.norm() for weight in weights]).norm()
            steps = [0.05 * weight.grad / norm for weight in weights]
            with torch.no_grad():
                torch._foreach_add_(weights, steps)
            optimizer.zero_grad()
            loss(model(x)).backward()
            with torch.no_grad():
                torch._foreach_sub_(weights, steps)
            optimizer.step()
        return dict(model.named_parameters())

    same(recipe)


@works_with("GAN")
def test_two_networks_that_train_each_other():
    def recipe(judge: nn.Module) -> Weights:
        torch.manual_seed(3)
        maker = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3 * 144), nn.Unflatten(1, (3, 12, 12)))
        if isinstance(judge, actnn.QModule):
            maker = converted(maker)
        judging, making = optimizer_of(judge), optimizer_of(maker)
        for real in batches():
            noise = torch.randn(8, 64)
            judging.zero_grad()
            (loss(judge(real)) + judge(maker(noise).detach()).square().mean()).backward()
            judging.step()
            making.zero_grad()
            loss(judge(maker(noise))).backward()
            making.step()
        if isinstance(maker, actnn.QModule):
            assert 0 < maker.report().kept_bytes < maker.report().exact_bytes
        return dict(judge.named_parameters()) | {f"maker {name}": each for name, each in maker.named_parameters()}

    same(recipe)


@pytest.mark.parametrize("later", [False, True], ids=["before", "after"])
@works_with("weight_norm")
def test_weights_of_a_direction_and_a_length(later):
    def normed(model: nn.Module) -> nn.Module:
        parametrizations.weight_norm(model[0][0])
        parametrizations.weight_norm(model[2][1])
        return model

    ours = same(lambda model: train(normed(model))) if later else same(train, lambda: normed(network()))
    plain = ours.restore()
    nn.utils.parametrize.remove_parametrizations(plain[2][1], "weight")
    assert type(plain[2][1]) is nn.Linear


@pytest.mark.parametrize("later", [False, True], ids=["before", "after"])
@works_with("prune")
def test_pruned_weights_stay_away(later):
    def pruned(model: nn.Module) -> nn.Module:
        prune.l1_unstructured(model[0][0], "weight", 0.5)
        prune.l1_unstructured(model[2][1], "weight", 0.5)
        return model

    ours = same(lambda model: train(pruned(model))) if later else same(train, lambda: pruned(network()))
    for layer in (ours[0][0], ours[2][1]):
        assert 0.4 < float((layer.weight == 0).float().mean()) < 0.6
        prune.remove(layer, "weight")
    assert type(ours.restore()[2][1]) is nn.Linear
