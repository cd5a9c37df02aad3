"""What users do with torch's autograd: retain, ask for a part, checkpoint reentrantly, share between threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from frameworks import Array, input_of
from layer_cases import KINDS, Case
from networks import images, small_network
from steps import check_close_gradients, check_equal_gradients, close
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_framework import FRAMEWORK, close_tensors, same_tensors
from z_tests import check_unbiased

import actnn

kinds = pytest.mark.parametrize("case", KINDS, ids=str)


def check_close(found: dict[str, Array], expected: dict[str, Array], relative: float) -> None:
    """Raise unless all gradients are close, those that are nothing but rounding left aside."""
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        if np.linalg.norm(gradient) > 1e-4:
            close(found[name], gradient, relative, name)


# defect 10: retain_graph fails
@kinds
def test_a_retained_graph_gives_the_same_gradient_again(case: Case):
    ours, x = FRAMEWORK.compressed(FRAMEWORK.plain_layer(case), 2), FRAMEWORK.tensor(input_of(case), gradient=True)
    y = ours(x)
    grad = torch.randn_like(y)
    wanted = [x, *ours.parameters()]
    first = torch.autograd.grad(y, wanted, grad, retain_graph=True)
    for ours_again, before in zip(torch.autograd.grad(y, wanted, grad), first, strict=True):
        same_tensors(ours_again, before)


def test_a_retained_graph_of_a_network_gives_the_same_gradient_again():
    ours = FRAMEWORK.compressed(small_network(FRAMEWORK), 2)
    loss = ours(FRAMEWORK.tensor(images())).square().sum()
    wanted = list(ours.parameters())
    first = torch.autograd.grad(loss, wanted, retain_graph=True)
    for ours_again, before in zip(torch.autograd.grad(loss, wanted), first, strict=True):
        same_tensors(ours_again, before)


# average pooling keeps nothing that could be freed
@pytest.mark.parametrize("case", [case for case in KINDS if case.kind != "AvgPool2d"], ids=str)
def test_a_second_backward_without_retaining_is_refused_as_by_torch(case: Case):
    ours, x = FRAMEWORK.compressed(FRAMEWORK.plain_layer(case)), FRAMEWORK.tensor(input_of(case)).requires_grad_()
    y = ours(x).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


@kinds
def test_the_gradient_of_a_gradient_is_refused_with_the_name_of_the_layer(case: Case):
    ours, x = (
        FRAMEWORK.compressed(nn.Sequential(FRAMEWORK.plain_layer(case))),
        FRAMEWORK.tensor(input_of(case)).requires_grad_(),
    )
    with pytest.raises(actnn.UnsupportedError, match="gradient of a gradient was asked for at '0'"):
        torch.autograd.grad(ours(x).sum(), x, create_graph=True)


def test_a_layer_left_exact_has_a_gradient_of_a_gradient():
    actnn.set_optimization_level("L2")
    plain, x = nn.Sequential(nn.Linear(70, 5), nn.Softsign()), torch.randn(4, 70).requires_grad_()

    def second(model: nn.Module) -> torch.Tensor:
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), x)[0]

    expected = second(plain)
    assert torch.equal(second(actnn.QModule(plain, exact=["0"])), expected)


def test_level_zero_has_the_gradient_of_a_gradient_of_the_plain_network():
    network, x = small_network(FRAMEWORK), FRAMEWORK.tensor(images(), gradient=True)
    ours = FRAMEWORK.compressed(network, level="L0")
    for model in (ours, network):
        (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        gradient.square().sum().backward()
    check_equal_gradients(FRAMEWORK.gradients(ours), FRAMEWORK.gradients(network))


def test_only_the_wanted_gradients_are_computed():
    ours, x = FRAMEWORK.compressed(nn.Conv2d(6, 5, 3)), torch.randn(4, 6, 11, 13).requires_grad_()
    (gradient,) = torch.autograd.grad(ours(x).sum(), [ours.bias])
    assert gradient.tolist() == [4 * 9 * 11] * 5


def test_saved_tensor_hooks_may_move_codes_elsewhere():
    network, x = small_network(FRAMEWORK), FRAMEWORK.tensor(images())
    ours = FRAMEWORK.compressed(network, 2)
    expected = FRAMEWORK.compressed(network, 2)
    expected(x).square().sum().backward()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor.clone()):
        loss = ours(x).square().sum()
    loss.backward()
    check_equal_gradients(FRAMEWORK.gradients(ours), FRAMEWORK.gradients(expected))


class Checkpointed(nn.Module):
    """The small network with its block recomputed in backward."""

    def __init__(self, reentrant: bool = True) -> None:
        super().__init__()
        self.network, self.reentrant = small_network(FRAMEWORK), reentrant

    def forward(self, x):
        x = self.network.pool(self.network.stem(x))
        x = checkpoint(self.network.block, x, use_reentrant=self.reentrant)
        return self.network.head(self.network.average(x).flatten(1))


def test_reentrant_checkpointing_gives_the_plain_gradient_at_eight_bits():
    network, x = Checkpointed(), images()
    ours = FRAMEWORK.compressed(network)
    for _ in range(3):
        found, expected = FRAMEWORK.step(ours, x), FRAMEWORK.step(network, x)
        check_close(found.gradients, expected.gradients, 0.03)


def test_reentrant_checkpointing_is_unbiased():
    network, x = Checkpointed(), images()
    exact = FRAMEWORK.step(network, x).gradients
    found = FRAMEWORK.many_gradients(FRAMEWORK.compressed(network, 2), x, 150)
    for name in exact.keys() - {"input"}:
        check_unbiased(found[name], exact[name])


def test_running_statistics_under_reentrant_checkpointing_are_the_plain_ones():
    network, x = Checkpointed(), images()
    found, expected = FRAMEWORK.step(FRAMEWORK.compressed(network), x), FRAMEWORK.step(network, x)
    for name, buffer in expected.buffers.items():
        close(found.buffers[name], buffer, 1e-4, name)


class CheckpointedBehindReLU(Checkpointed):
    """The same, with a block that begins with a convolution of what a BatchNorm and a ReLU made."""

    def forward(self, x):
        x = checkpoint(self.network.block, self.network.stem(x), use_reentrant=self.reentrant)
        return self.network.head(self.network.average(self.network.pool(x)).flatten(1))


def test_a_block_that_shares_a_code_with_what_is_before_it_can_be_computed_anew_reentrantly():
    network, x = CheckpointedBehindReLU(), images()
    ours = FRAMEWORK.compressed(network)
    for _ in range(3):
        found, expected = FRAMEWORK.step(ours, x), FRAMEWORK.step(network, x)
        check_close(found.gradients, expected.gradients, 0.03)


def test_blocks_in_a_chain_can_all_be_computed_anew_reentrantly():
    class Chain(Checkpointed):
        def forward(self, x):
            network = self.network
            for part in (network.stem, network.block, network.pool):
                x = checkpoint(part, x, use_reentrant=self.reentrant)
            return network.head(network.average(x).flatten(1))

    network, x = Chain(), images()
    ours = FRAMEWORK.compressed(network)
    for _ in range(3):
        found, expected = FRAMEWORK.step(ours, x), FRAMEWORK.step(network, x)
        check_close(found.gradients, expected.gradients, 0.03)


def test_two_forwards_with_a_block_that_is_computed_anew_may_share_a_backward():
    network, x = CheckpointedBehindReLU(reentrant=False), FRAMEWORK.tensor(images())
    ours = FRAMEWORK.compressed(network)
    for _ in range(2):
        for model in (network, ours):
            model.zero_grad()
            (model(x).square().sum() + model(2 * x).square().sum()).backward()
    check_close(FRAMEWORK.gradients(ours), FRAMEWORK.gradients(network), 0.03)


def test_one_model_may_run_backward_from_several_threads():
    network, x = small_network(FRAMEWORK).eval(), FRAMEWORK.tensor(images())
    ours = FRAMEWORK.compressed(network)

    def gradient(_: int) -> torch.Tensor:
        return torch.autograd.grad(ours(x).square().sum(), ours.head.weight)[0]

    expected = torch.autograd.grad(network(x).square().sum(), network.head.weight)[0]
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(gradient, range(16)):
            close_tensors(found, expected, 0.03)


def test_one_model_in_training_may_run_from_several_threads():
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(300, 64), nn.ReLU(), nn.Linear(64, 10), nn.ReLU(), nn.Linear(10, 3))
    x = torch.randn(32, 300)
    ours = FRAMEWORK.compressed(network)
    wanted = [parameter for name, parameter in ours.named_parameters() if "weight" in name]

    def gradient(_: int) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(ours(x).square().sum(), wanted)

    plain = [parameter for name, parameter in network.named_parameters() if "weight" in name]
    expected = torch.autograd.grad(network(x).square().sum(), plain)
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(gradient, range(32)):
            for ours_one, exact in zip(found, expected, strict=True):
                close_tensors(ours_one, exact, 0.02)


def test_a_code_of_an_activation_that_another_graph_freed_is_not_needed():
    torch.manual_seed(1)
    first, second = nn.Linear(150, 150), nn.Linear(150, 5)
    network = nn.ModuleDict({"first": first, "second": second})
    ours = FRAMEWORK.compressed(network, 8)
    x = torch.randn(8, 150)
    for model in (ours, network):
        h = model.first(x)
        model.second(h).square().sum().backward(retain_graph=True)
        model.second(h).square().sum().backward()
    check_close_gradients(FRAMEWORK.gradients(ours), FRAMEWORK.gradients(network), 0.02)
