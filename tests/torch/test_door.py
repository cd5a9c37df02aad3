"""The functional door: what a model's own code calls is served like the layers of the library."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from z_tests import check_unbiased

import actnn
from actnn.torch.memory import KeptBytes

WIDTH, TOKENS, BATCH, HEADS = 64, 50, 4, 4
REPEATS = 300


class Scaled(nn.Module):
    """A norm that nobody has heard of, written out in pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Block(nn.Module):
    """Attention and a gate in functional calls, einsum, a parameter of its own, and a change in place."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Parameter(torch.randn(3 * WIDTH, WIDTH) / math.sqrt(WIDTH))
        self.out = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))
        self.gate, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.mix = nn.Parameter(torch.randn(WIDTH, WIDTH) / math.sqrt(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        normed = F.layer_norm(x, (WIDTH,))
        shape = (len(x), TOKENS, 3, HEADS, WIDTH // HEADS)
        query, key, value = F.linear(normed, self.project).view(shape).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        one, other = self.gate(F.rms_norm(x, (WIDTH,))).chunk(2, -1)
        x = x + self.down(F.silu(one) * other)
        x.mul_(0.5)
        return x + torch.einsum("btc,cd->btd", x, self.mix)


class Network(nn.Module):
    """Blocks in a loop."""

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.norm = Scaled()
        self.checkpointed: bool | None = None

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x) if self.checkpointed is None else checkpoint(block, x, use_reentrant=self.checkpointed)
        return self.norm(x)


def batch() -> Tensor:
    return torch.randn(BATCH, TOKENS, WIDTH)


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return the gradients of one step."""
    model.zero_grad(set_to_none=True)
    model(x).square().sum().backward()
    return {name: own.grad.clone() for name, own in model.named_parameters()}


def kept_bytes(model: nn.Module, x: Tensor) -> int:
    """Return what autograd keeps of a forward."""
    with KeptBytes(model) as kept:
        model(x)
    return kept.total


def converted(model: nn.Module, bits: int, level: str = "L2", **options: object) -> actnn.QModule:
    """Return a model at a fixed width."""
    actnn.set_optimization_level(level)
    actnn.config.activation_compression_bits = [bits]
    return actnn.QModule(model, **options)


def check_close(found: dict[str, Tensor], expected: dict[str, Tensor], relative: float) -> None:
    """Raise unless every gradient is within a part of its norm."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name] - value).norm() <= relative * value.norm(), name


@pytest.mark.parametrize("level", ["L2", "L3"])
def test_a_model_of_functional_calls_trains_right_at_eight_bits(level: str):
    plain, x = Network(), batch()
    expected, output = gradients(plain, x), plain(x)
    ours = converted(plain, 8, level)
    torch.testing.assert_close(ours(x), output, rtol=1e-5, atol=1e-5)
    check_close(gradients(ours, x), expected, 0.02)


def test_a_model_of_functional_calls_keeps_five_times_less_at_the_default():
    plain, x = Network(), batch()
    exact = kept_bytes(plain, x)
    ours = actnn.QModule(plain)
    ours(x).sum().backward()
    assert exact > 5 * kept_bytes(ours, x)


def test_evaluation_and_level_zero_are_bit_equal():
    plain, x = Network(), batch()
    trained, expected = gradients(plain, x), plain.eval()(x)
    assert torch.equal(converted(plain, 2)(x), expected)
    other = Network()
    other.load_state_dict(plain.state_dict())
    zero = actnn.QModule(other.train(), level="L0")
    for name, gradient in gradients(zero, x).items():
        assert torch.equal(gradient, trained[name]), name


def test_nothing_is_kept_without_a_gradient():
    ours, x = converted(Network(), 2), batch()
    with torch.no_grad():
        ours(x)
    assert not ours.report().rows


def test_sites_are_named_by_module_function_and_ordinal():
    ours, x = converted(Network(), 2), batch()
    ours(x).sum().backward()
    names = {row.layer for row in ours.report().rows}
    assert {"blocks.1/layer_norm", "blocks.1/rms_norm", "blocks.0/silu", "blocks.1/mul"} <= names
    assert "blocks.0/scaled_dot_product_attention.query" in names
    # a parametrised layer is served by the call that it makes
    assert "blocks.0.out/linear" in names


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_block_is_computed_anew_through_the_door(reentrant: bool):
    plain, x = Network(), batch().requires_grad_()
    expected = gradients(plain, x)
    ours = converted(plain, 8)
    check_close(gradients(ours, x), expected, 0.02)
    sites = len(ours._session.sites)
    plain.checkpointed = reentrant
    check_close(gradients(ours, x), expected, 0.02)
    assert len(ours._session.sites) == sites


def test_what_is_named_exact_is_left_to_torch():
    plain, x = Network(), batch()
    ours = converted(plain, 2, exact=["blocks.0"])
    ours(x).sum().backward()
    names = [row.layer for row in ours.report().rows]
    assert any(name.startswith("blocks.1") for name in names)
    assert not any(name.startswith("blocks.0") for name in names)


def test_restore_closes_the_door():
    plain, x = Network(), batch()
    expected, exact = gradients(plain, x), kept_bytes(plain, x)
    ours = converted(plain, 2)
    gradients(ours, x)
    assert ours.restore() is plain
    assert kept_bytes(plain, x) == exact
    for name, gradient in gradients(plain, x).items():
        assert torch.equal(gradient, expected[name]), name


@pytest.mark.parametrize("copy", [deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_has_a_door_of_its_own(copy: Callable[[nn.Module], nn.Module]):
    network, x = Network(), batch()
    for block in network.blocks:
        # parametrised modules cannot be pickled
        block.out = nn.Linear(WIDTH, WIDTH)
    ours = converted(network, 2)
    gradients(ours, x)
    other = copy(ours)
    found, expected = gradients(other, x), gradients(ours, x)
    for name, gradient in expected.items():
        assert torch.equal(found[name], gradient), name
    other.restore()
    assert kept_bytes(other._model, x) > 3 * kept_bytes(ours, x)


def test_a_forward_that_fails_closes_the_door():
    ours = converted(Network(), 2)
    with pytest.raises(RuntimeError):
        ours(torch.randn(2, 3))
    x = torch.randn(8, 300, requires_grad=True)
    y = F.silu(x)
    assert "SmoothFunction" not in type(y.grad_fn).__name__
    gradients(ours, batch())


def test_a_module_that_is_called_past_the_wrapper_is_served_too():
    ours, x = converted(Network(), 2), batch()
    y = ours.blocks[0](x)
    y.sum().backward()
    assert any(site.step for site in ours._session.sites if site.name.startswith("blocks.0/"))


def test_a_resumed_session_goes_on_bit_for_bit():
    x, first = batch(), converted(Network(), 2, "L3")
    weights = deepcopy(first._model.state_dict())
    for _ in range(3):
        gradients(first, x)
    state = first.session_state()
    expected = gradients(first, x)
    plain = Network()
    plain.load_state_dict(weights)
    second = converted(plain, 2, "L3")
    second.load_session_state(state)
    for name, gradient in gradients(second, x).items():
        assert torch.equal(gradient, expected[name]), name


class Gated(nn.Module):
    """A product of two functions of one tensor: their codes are not independent."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.second(torch.sigmoid(h) * torch.tanh(h))


class Product(nn.Module):
    """A product of independent codes, which the map behind it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) * self.other(x))


@pytest.mark.parametrize("kind", [Gated, Product])
def test_the_gradient_behind_a_product_is_unbiased(kind: type[nn.Module]):
    # with a false alarm below one in a million over all elements; see z_tests.check_unbiased
    plain, x = kind(), torch.randn(8, WIDTH)
    exact = gradients(plain, x)["second.weight"].numpy()
    ours = converted(plain, 4)
    found = np.stack([gradients(ours, x)["second.weight"].numpy() for _ in range(REPEATS)])
    assert found.std(0).max() > 0
    check_unbiased(found, exact, 2e-3 * np.abs(exact).max() if kind is Gated else 0.0)


def test_a_map_behind_a_product_of_independent_codes_keeps_nothing():
    ours, x = converted(Product(), 4), torch.randn(8, WIDTH)
    ours(x).sum().backward()
    rows = {row.layer: row for row in ours.report().rows}
    assert "second" not in rows or rows["second"].kept_bytes == 0
    assert "second" in rows["model/mul"].readers


class Copies(nn.Module):
    """Copies between a norm and the maps that read it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.map = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        swapped = y.transpose(0, 1).contiguous()
        return self.map(swapped).sum() + self.map(y.view(-1, WIDTH)).square().sum()


def test_copies_and_views_carry_the_code_on():
    plain, x = Copies(), batch()
    expected = gradients(plain, x)
    ours = converted(plain, 8)
    check_close(gradients(ours, x), expected, 0.02)
    rows = {row.layer: row for row in ours.report().rows}
    assert set(rows) == {"norm"}
    assert rows["norm"].readers == ("map",)


def test_a_registered_class_is_one_operation():
    plain, x = Network(), batch()
    expected = gradients(plain, x)
    actnn.register(Scaled, lambda module, x: F.rms_norm(x, (WIDTH,), module.weight, 1e-6))
    ours = converted(plain, 8)
    check_close(gradients(ours, x), expected, 0.02)
    assert "norm/rms_norm" in {row.layer for row in ours.report().rows}
    ours.restore()
    assert "forward" not in plain.norm.__dict__


def test_registering_what_is_no_module_is_refused():
    with pytest.raises(actnn.ConfigError, match="expected a class of torch modules or of paddle layers"):
        actnn.register(F.relu, F.relu)
    with pytest.raises(actnn.ConfigError, match="expected a function of the layer"):
        actnn.register(Scaled, None)


def test_half_precision_under_autocast_has_the_dtypes_of_torch():
    plain, x = Network(), batch()
    with torch.autocast("cpu", torch.bfloat16):
        expected = plain(x)
    ours = converted(plain, 8)
    with torch.autocast("cpu", torch.bfloat16):
        found = ours(x)
    assert found.dtype == expected.dtype
    found.float().square().sum().backward()
    assert all(torch.isfinite(own.grad).all() for own in ours.parameters())


class Changing(nn.Module):
    """A tensor that is changed after it was coded."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.second = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        h.mul_(torch.arange(1.0, WIDTH + 1))
        return self.second(h)


def test_a_tensor_that_is_changed_in_place_is_coded_anew():
    plain, x = Changing(), batch()
    expected = gradients(plain, x)
    check_close(gradients(converted(plain, 8), x), expected, 0.02)


class Closure(nn.Module):
    """A function that checkpointing is given, which calls modules and functions."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.block, self.reentrant = nn.Linear(WIDTH, WIDTH), Block(), reentrant

    def forward(self, x: Tensor) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            return self.block(F.silu(self.first(x)) * F.softmax(x, -1))

        return F.silu(checkpoint(inner, x, use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_function_may_call_functions_and_modules(reentrant: bool):
    plain, x = Closure(reentrant), batch().requires_grad_()
    expected = gradients(plain, x)
    check_close(gradients(converted(plain, 8), x), expected, 0.02)


class Interrupted(nn.Module):
    """A forward that the user interrupts."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(Block())
        self.inner[0].register_forward_pre_hook(self.interrupt)

    def interrupt(self, *_: object) -> None:
        raise KeyboardInterrupt

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def test_an_interrupt_closes_the_door():
    ours = converted(Interrupted(), 2)
    with pytest.raises(KeyboardInterrupt):
        ours(batch())
    y = F.silu(torch.randn(8, 300, requires_grad=True))
    assert "SmoothFunction" not in type(y.grad_fn).__name__


def test_a_report_lists_a_layer_that_only_calls_what_is_served_once():
    class OwnGELU(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.gelu(x)

    model = actnn.QModule(nn.Sequential(nn.Linear(WIDTH, WIDTH), OwnGELU(), nn.Softsign()))
    model(torch.randn(BATCH, TOKENS, WIDTH)).sum().backward()
    report = model.report()
    assert "1/gelu" in {row.layer for row in report.rows}
    assert report.other_kinds == [("Softsign", 1)]


class FourAxesRMSNorm(nn.Module):
    """A norm of images that is named like one of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(WIDTH)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            raise ValueError(f"expected four axes, not {x.dim()}")
        return x * self.weight.view(-1, 1, 1)


def test_a_report_tells_why_a_class_is_not_what_its_name_says():
    model = actnn.QModule(nn.Sequential(nn.Conv2d(3, WIDTH, 1), FourAxesRMSNorm()))
    model(torch.randn(4, 3, 8, 8)).sum().backward()
    ((layer, kind, reason),) = model.report().left_exact
    assert (layer, kind) == ("1", "FourAxesRMSNorm")
    assert "raised ValueError: expected four axes, not 2" in reason


@pytest.mark.parametrize("affine", [True, False])
def test_an_instance_norm_keeps_a_code(affine: bool):
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=affine), nn.ReLU(), nn.Conv2d(8, 4, 3))
    x = torch.randn(4, 3, 20, 20)
    expected, output = gradients(plain, x), plain(x)
    ours = converted(plain, 8)
    torch.testing.assert_close(ours(x), output, rtol=1e-5, atol=1e-5)
    found = gradients(ours, x)
    for name, value in expected.items():
        # the bias before a norm has no gradient but rounding
        assert (found[name] - value).norm() <= 0.02 * max(value.norm(), 0.1 * expected["0.weight"].norm()), name
    assert "1/instance_norm" in {row.layer for row in ours.report().rows}
