"""One code per activation: who shares it, when it may be trusted, and that gradients stay unbiased."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from z_tests import check_unbiased

import actnn

CHANNELS = 8


class Residual(nn.Module):
    """A small residual network with in-place operations and zero-initialised last gammas, as ResNets have."""

    def __init__(self, inplace: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, CHANNELS, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(CHANNELS)
        self.conv1 = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(CHANNELS)
        self.conv2 = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(CHANNELS)
        self.relu = nn.ReLU(inplace=inplace)
        self.head = nn.Conv2d(CHANNELS, 4, 1)
        nn.init.zeros_(self.norm2.weight[: CHANNELS // 2])
        nn.init.normal_(self.norm1.weight)
        nn.init.normal_(self.norm1.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.stem_norm(self.stem(x)))
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += x
        return self.head(self.relu(out)).mean((2, 3))


def compressed(model: nn.Module, bits: int = 2, seed: int = 0, **settings: object) -> actnn.QModule:
    """Return a converted copy of a model at level L2."""
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [bits]
    for name, value in settings.items():
        setattr(actnn.config, name, value)
    return actnn.QModule(copy.deepcopy(model), seed=seed)


def gradient(model: nn.Module, run) -> torch.Tensor:
    """Return all gradients of one run as a vector."""
    model.zero_grad()
    run(model).backward(retain_graph=True)
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def check_gradients(model: nn.Module, run, repeats: int = 300, allowance: float = 0.02, **settings: object) -> None:
    """Raise unless the mean gradient over many keys is the exact one.

    BatchNorm's own gradient has a bias of the order of 1 / (elements of a channel); ``allowance`` bounds it relative to
    the largest gradient.
    """
    exact = gradient(copy.deepcopy(model), run)
    noisy = compressed(model, **settings)
    samples = torch.stack([gradient(noisy, run) for _ in range(repeats)])
    check_unbiased(samples, exact, allowance=allowance * exact.abs().max().item())


def batch(samples: int = 6, size: int = 12) -> torch.Tensor:
    """Return images, the same in every test."""
    return torch.randn(samples, 3, size, size, generator=torch.Generator().manual_seed(7))


def loss_of(x: torch.Tensor):
    """Return a run: the model's loss on ``x``."""
    return lambda model: F.cross_entropy(model(x), torch.arange(len(x)) % 4)


def saved_bytes(run) -> int:
    """Return the bytes that autograd keeps for a run, each block once, parameters left out."""
    blocks: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, nn.Parameter):
            blocks[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        result = run()
    total = sum(blocks.values())
    del result
    return total


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("bits", [1, 2])
def test_a_residual_network_with_shared_codes_is_unbiased(inplace, bits):
    torch.manual_seed(0)
    check_gradients(Residual(inplace), loss_of(batch()), bits=bits)


def test_forward_is_exact_up_to_rounding_with_shared_codes():
    torch.manual_seed(0)
    model = Residual()
    noisy = compressed(model)
    torch.testing.assert_close(noisy(batch()), model(batch()), rtol=1e-5, atol=1e-6)


def test_one_code_serves_batch_norm_relu_and_convolution():
    model = compressed(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 1)))
    model(batch()).sum().backward()
    rows = {row.layer: row for row in model.report().rows}
    assert rows["1"].readers == ("2", "3")
    assert "2" not in rows
    assert "3" not in rows


def test_an_activation_read_by_several_layers_is_kept_once():
    class Fork(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.left, self.right = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 1)

        def forward(self, x):
            x = self.stem(x)
            return self.left(x) + self.right(x)

    model = compressed(Fork())
    model(batch()).sum().backward()
    rows = {row.layer: row for row in model.report().rows}
    assert rows["left"].readers == ("right",)
    assert "right" not in rows


def test_the_report_counts_what_autograd_keeps():
    model = compressed(Residual())
    model(batch()).sum().backward()
    kept = saved_bytes(lambda: model(batch()).sum())
    # the output's sum and mean keep shapes only
    assert kept == model.report().kept_bytes


def test_an_addition_in_place_invalidates_the_tag():
    """``out += x`` keeps the tensor object: a tag without a version check would give ReLU the mask of before."""

    class Addition(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.relu, self.head = (
                nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1),
            )  # fmt: skip
            self.skip = nn.Conv2d(3, 8, 1)

        def forward(self, x):
            out = self.norm(self.conv(x))
            out += 3 * self.skip(x)
            return self.head(self.relu(out)).mean((2, 3))

    torch.manual_seed(1)
    model, x = Addition(), batch()
    exact, noisy = copy.deepcopy(model), compressed(model, bits=8)
    reference = gradient(exact, loss_of(x))
    assert (gradient(noisy, loss_of(x)) - reference).norm() < 0.02 * reference.norm()


def test_a_tensor_that_outlives_the_step_is_coded_anew():
    """Frozen noise would make every later step repeat the error of the first."""
    torch.manual_seed(2)
    source = nn.Conv2d(3, 8, 3)
    held = source(batch())
    head = compressed(nn.Sequential(nn.Conv2d(8, 4, 1)))
    first, second = (gradient(head, lambda model: model(held).square().mean()) for _ in range(2))
    assert not torch.equal(first, second)


def test_the_input_batch_is_coded_anew_in_every_step():
    model, x = compressed(nn.Sequential(nn.Conv2d(3, 8, 3))), batch()
    first, second = (gradient(model, lambda model: model(x).square().mean()) for _ in range(2))
    assert not torch.equal(first, second)


GAMMAS = {
    "zero": [0.0, 0.0, 0.0, 0.0],
    "negative": [-1.0, -0.5, -2.0, -0.1],
    "tiny": [1e-8, -1e-8, 1e-20, -1e-30],
    "mixed": [1.0, -1.0, 0.0, 1e-6],
}


@pytest.mark.parametrize("beta", [0.0, 0.3, -0.3, 50.0, -50.0])
@pytest.mark.parametrize("gamma", GAMMAS.values(), ids=GAMMAS.keys())
@pytest.mark.parametrize("inplace", [True, False])
def test_the_mask_read_from_a_batch_norms_code_is_exact(gamma, beta, inplace):
    norm = nn.BatchNorm2d(4)
    norm.weight.data = torch.tensor(gamma)
    norm.bias.data = torch.tensor([beta, -beta, beta, 0.0])
    model = compressed(nn.Sequential(norm, nn.ReLU(inplace=inplace)))
    y = model(torch.randn(5, 4, 7, 9, requires_grad=True))
    positive = (y.detach() > 0).sum((0, 2, 3)).float()
    y.backward(torch.ones_like(y))
    # the gradient of beta sums the masked gradient, exactly one for each positive output
    assert torch.equal(model[0].bias.grad, positive)


@pytest.mark.parametrize("gamma", GAMMAS.values(), ids=GAMMAS.keys())
@pytest.mark.parametrize("beta", [0.2, 5.0, -5.0])
def test_what_follows_a_batch_norm_is_unbiased_for_every_gamma(gamma, beta):
    torch.manual_seed(3)
    model = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 3, 1), nn.Flatten())
    model[0].weight.data = torch.tensor(gamma)
    model[0].bias.data = torch.tensor([beta, -beta, beta, 0.0])
    x = torch.randn(4, 4, 6, 6)
    check_gradients(model, lambda model: model(x).square().mean(), repeats=200)


def test_batch_norm_without_parameters_shares_its_code():
    torch.manual_seed(4)
    layers = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, affine=False), nn.ReLU(inplace=True), nn.Conv2d(4, 3, 1)
    x = batch()
    check_gradients(nn.Sequential(*layers), lambda model: model(x).square().mean(), repeats=200)


def test_an_in_place_relu_leaves_batch_norm_what_it_needs():
    torch.manual_seed(5)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    x = batch()
    reference = gradient(copy.deepcopy(model), lambda model: model(x).square().mean())
    found = gradient(compressed(model, bits=8), lambda model: model(x).square().mean())
    # the bias before a BatchNorm has no gradient
    weight = slice(0, 8 * 27)
    assert (found - reference)[weight].norm() < 0.02 * reference[weight].norm()


class TwoReaders(nn.Module):
    """A BatchNorm whose output is read before a ReLU overwrites it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x))
        before = (2.0 * y).tanh()
        return self.relu(y) * 1.5 + before


def test_other_readers_of_a_batch_norm_add_to_the_relus_gradient():
    torch.manual_seed(6)
    model, x = TwoReaders(), batch()
    reference = gradient(copy.deepcopy(model), lambda model: model(x).square().mean())
    found = gradient(compressed(model, bits=8), lambda model: model(x).square().mean())
    weight = slice(0, 8 * 27)
    assert (found - reference)[weight].norm() < 0.02 * reference[weight].norm()


@pytest.mark.parametrize("watch", ["hook", "retain_grad"])
def test_a_watched_batch_norm_output_still_gets_its_gradient(watch):
    model = compressed(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    relu = compressed(nn.Sequential(nn.ReLU(inplace=True)))
    y = model(batch())
    seen = []
    if watch == "hook":
        y.register_hook(seen.append)
    else:
        y.retain_grad()
    relu(y).sum().backward()
    assert seen or y.grad is not None


def test_a_site_that_no_relu_reads_uses_a_plane_less_from_the_second_step_on():
    model = compressed(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)))
    kept = []
    for _ in range(3):
        model(batch()).sum().backward()
        kept.append({row.layer: row.kept_bytes for row in model.report().rows}["1"])
    assert kept[1] < 0.75 * kept[0]
    assert kept[2] == kept[1]


def test_a_site_that_a_relu_reads_again_learns_that_too():
    class Switch(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.relu = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
            self.head, self.rectify = nn.Conv2d(8, 4, 1), True

        def forward(self, x):
            x = self.norm(self.conv(x))
            return self.head(self.relu(x) if self.rectify else x)

    model = compressed(Switch())
    rows = []
    for rectify in (True, False, False, True, True):
        model.rectify = rectify
        model(batch()).sum().backward()
        rows.append({row.layer: row for row in model.report().rows})
    assert "relu" in rows[0]["norm"].readers
    assert "relu" in rows[3], "with a code that tells no signs the ReLU makes its own"
    assert "relu" in rows[4]["norm"].readers


def test_a_relu_without_readers_keeps_one_bit_from_the_second_step_on():
    model = compressed(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)))
    kept = []
    for _ in range(2):
        model(batch()).sum().backward()
        kept.append({row.layer: row.kept_bytes for row in model.report().rows}["1"])
    assert kept[1] == 6 * 8 * 10 * 10 / 8
    assert kept[0] > kept[1]


def test_views_and_concatenations_are_coded_by_their_readers():
    class Glue(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.relu = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
            self.joined, self.flat = nn.Conv2d(16, 4, 1), nn.Linear(8 * 100, 3)

        def forward(self, x):
            x = self.relu(self.norm(self.conv(x)))
            return self.flat(x.flatten(1)).sum() + self.joined(torch.cat([x, x + 1], 1)).sum()

    torch.manual_seed(8)
    model, x = Glue(), batch()
    reference = gradient(copy.deepcopy(model), lambda model: model(x))
    found = gradient(compressed(model, bits=8), lambda model: model(x))
    assert (found - reference).norm() < 0.02 * reference.norm()


def test_relu_before_batch_norm_shares_its_code():
    torch.manual_seed(9)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1), nn.Flatten())
    x = batch()
    check_gradients(model, lambda model: model(x).square().mean(), repeats=200)
    noisy = compressed(model)
    noisy(x).sum().backward()
    assert {row.layer: row for row in noisy.report().rows}["1"].readers == ("2",)


def test_without_sharing_every_layer_keeps_its_own():
    model = compressed(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)),
        share_codes=False,
        rounding="stochastic",
    )
    model(batch()).sum().backward()
    rows = {row.layer: row for row in model.report().rows}
    assert set(rows) == {"0", "1", "2", "3"}
    assert all(row.readers == () for row in rows.values())


def test_without_sharing_a_residual_network_is_unbiased():
    torch.manual_seed(0)
    check_gradients(Residual(), loss_of(batch()), share_codes=False, rounding="stochastic")


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_recomputes_the_same_kinds_of_code(reentrant):
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(10)
    model, x = Residual(), batch().requires_grad_()
    reference = gradient(copy.deepcopy(model), loss_of(x))
    noisy = compressed(model, bits=8)
    for _ in range(3):
        found = gradient(noisy, lambda model: loss_of(x)(lambda x: checkpoint(model, x, use_reentrant=reentrant)))
        assert (found - reference).norm() < 0.03 * reference.norm()


def test_the_bias_that_batch_norm_hands_down_is_small():
    """Its gradient multiplies x̂ by a mean that contains the same x̂: of the order of 1 / (elements of a channel)."""
    torch.manual_seed(11)
    errors = []
    for size in (4, 16):
        x = torch.randn(2, 4, size, size)
        target = torch.randn(2, 4, size, size)
        norm = nn.BatchNorm2d(4)

        def run(layer, x=x, target=target):
            leaf = x.clone().requires_grad_()
            (layer(leaf) * target).sum().backward()
            return leaf.grad

        exact = run(copy.deepcopy(norm))
        noisy = compressed(nn.Sequential(norm), rounding="stochastic")
        mean = torch.stack([run(noisy) for _ in range(400)]).mean(0)
        errors.append(((mean - exact).norm() / exact.norm()).item())
    assert errors[0] < 0.1
    assert errors[1] < 0.5 * errors[0] + 0.02


@pytest.mark.parametrize("slope", [0.1, 0.0, -0.2])
@pytest.mark.parametrize("after_norm", [True, False])
def test_a_leaky_relu_with_readers_is_unbiased(slope, after_norm):
    torch.manual_seed(12)
    norm = [nn.BatchNorm2d(8)] if after_norm else []
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), *norm, nn.LeakyReLU(slope), nn.Conv2d(8, 4, 1), nn.Flatten())
    x = batch()
    check_gradients(model, lambda model: model(x).square().mean(), repeats=200)


def test_a_leaky_relu_shares_the_code_of_its_output():
    model = compressed(nn.Sequential(nn.Conv2d(3, 8, 3), nn.LeakyReLU(0.1), nn.Conv2d(8, 4, 1)))
    model(batch()).sum().backward()
    assert {row.layer: row for row in model.report().rows}["1"].readers == ("2",)


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_a_backward_in_pieces_gives_the_same_gradient(form):
    torch.manual_seed(13)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 3), nn.Flatten(1, 2),
        nn.Linear(10, 3),
    )  # fmt: skip
    x = batch().contiguous(memory_format=form).requires_grad_()
    found = []
    for threshold in (None, 4000):
        x.grad = None
        noisy = compressed(model, pipeline_threshold=threshold)
        found.append((gradient(noisy, lambda model: model(x).square().sum()), x.grad))
    for whole, pieces in zip(*found, strict=True):
        torch.testing.assert_close(pieces, whole, rtol=1e-4, atol=1e-4 * whole.abs().max().item())


@pytest.mark.parametrize("threshold", [0, -1, 1.5, True, "1GB"])
def test_a_threshold_that_is_no_number_of_bytes_is_refused(threshold):
    with pytest.raises(actnn.ConfigError, match="pipeline_threshold"):
        actnn.config.pipeline_threshold = threshold


def test_a_batch_norm_whose_beta_alone_learns_keeps_no_code():
    torch.manual_seed(14)
    plain = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Conv2d(3, 4, 1))
    plain[0].weight.requires_grad_(False)
    model, x = compressed(plain, bits=7), batch()
    reference = gradient(plain, lambda model: model(x).square().mean())
    found = gradient(model, lambda model: model(x).square().mean())
    assert (found - reference).norm() < 0.02 * reference.norm()
    kept = saved_bytes(lambda: model(x).square().mean()) - 4 * 6 * 4 * 12 * 12  # square keeps its input
    assert kept == model.report().kept_bytes
