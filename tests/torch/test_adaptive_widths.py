"""Widths decided while training: the average that was asked for, what may differ from it, and where it works."""

from __future__ import annotations

import pytest
import torch
from adaptive_networks import (
    CLASSES,
    NETWORKS,
    averages,
    check_equal_gradients,
    check_finite,
    classifier,
    gradients,
    linear_network,
    loss_of,
    pictures,
    plain_network,
    residual_network,
    train,
    unit,
    widths_of,
)
from torch import nn
from torch_layers import compressed

import actnn

STEPS = 3
every_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
every_level = pytest.mark.parametrize("level", ["L2.5", "L3"])
every_average = pytest.mark.parametrize("bits", [1.25, 1.5, 2, 2.5, 3, 4])


@every_network
@every_level
@every_average
@pytest.mark.parametrize("batch", [8, 16])
def test_every_step_has_the_average_that_was_asked_for(network, level: str, bits: float, batch: int):
    found = averages(compressed(network(), bits, level=level), [batch] * STEPS)
    assert found == pytest.approx([bits] * STEPS, rel=0.01)


@every_network
@every_level
@every_average
def test_an_odd_batch_has_the_average_but_for_a_plane_of_one_sample(network, level: str, bits: float):
    batch = 3
    model = compressed(network(), bits, level=level)
    for average in averages(model, [batch] * STEPS):
        rows = model.report().rows
        plane = max(row.elements for row in rows) / batch / sum(row.elements for row in rows)
        assert 0.99 * bits - plane <= average <= 1.01 * bits


@every_level
@pytest.mark.parametrize("bits", [1.5, 2])
def test_no_batch_has_more_than_the_average(level: str, bits: float):
    found = averages(compressed(residual_network(), bits, level=level), [8, 8, 3, 8, 1, 8, 5, 2, 16, 7])
    assert max(found) <= 1.01 * bits


@every_level
def test_a_small_last_batch_has_about_the_average(level: str):
    found = averages(compressed(residual_network(), level=level, bits=2), [8, 8, 8, 3, 8])
    assert found == pytest.approx([2] * 5, rel=0.03)


def test_batch_norm_is_inside_the_average():
    model = compressed(plain_network(), 2, level="L3")
    averages(model, [8] * STEPS)
    rows = model.report().rows
    norms = [row for row in rows if row.kind == "QBatchNorm2d"]
    assert sum(row.elements for row in norms) > 0.5 * sum(row.elements for row in rows)
    values = sum((row.bits - row.sign_bits) * row.elements for row in rows)
    assert values == pytest.approx(2 * sum(row.elements for row in rows), rel=0.01)


def test_a_batch_norm_that_keeps_no_code_is_not_inside_the_average():
    model = compressed(nn.Sequential(nn.BatchNorm2d(3), *unit(3, 8), *classifier(8)), 2, level="L3")
    model[0].weight.requires_grad_(False)
    train(model, pictures())
    rows = {row.layer: row for row in model.report().rows}
    assert (rows["0"].kept_bytes, rows["0"].bits, rows["0"].elements) == (0, None, 0)


@every_network
@every_level
@pytest.mark.parametrize("bits", [2, 3])
def test_the_first_step_is_uniform(network, level: str, bits: int):
    found = widths_of(compressed(network(), bits, level=level), pictures())
    assert all(len(set(widths)) == 1 for widths in found.values())


@every_network
def test_the_first_step_has_neighbouring_widths_where_the_average_is_fractional(network):
    found = widths_of(compressed(network(), 1.5, level="L3"), pictures())
    assert all(max(widths) - min(widths) <= 1 for widths in found.values())


@every_network
@every_level
def test_later_steps_give_samples_different_widths(network, level: str):
    model = compressed(network(), 2, level=level)
    train(model, pictures())
    found = widths_of(model, pictures())
    assert any(len(set(widths)) > 1 for widths in found.values())


def test_at_level_three_layers_have_different_averages():
    model = compressed(plain_network(), 2, level="L3")
    train(model, pictures())
    found = widths_of(model, pictures())
    assert len({sum(widths) for widths in found.values()}) > 1


def run(model: nn.Module, steps: int = STEPS) -> list[torch.Tensor]:
    """Train for some steps; return the gradients of the last one."""
    for number in range(steps):
        train(model, pictures(seed=number))
    return gradients(model)


def test_without_perlayer_level_three_is_level_two_and_a_half():
    found = run(compressed(plain_network(), 2, level="L3", perlayer=False))
    check_equal_gradients(found, run(compressed(plain_network(), 2, level="L2.5")))


def test_without_perlayer_every_layer_has_the_average():
    model = compressed(plain_network(), 2, level="L3", perlayer=False)
    run(model)
    assert {row.bits - row.sign_bits for row in model.report().rows} == {2.0}


def uniform(model: actnn.QModule) -> dict[str, bool]:
    """Train; return, for each layer that makes codes, whether all samples of its last one have one width."""
    run(model)
    return {name: len(set(widths)) == 1 for name, widths in widths_of(model, pictures()).items()}


def kinds(model: nn.Module, names) -> dict[str, bool]:
    """Return which layers are BatchNorms."""
    return {name: isinstance(model.get_submodule(name), nn.BatchNorm2d) for name in names}


@pytest.mark.parametrize("network", [plain_network, residual_network])
def test_without_adaptive_conv_scheme_only_batch_norms_have_different_samples(network):
    model = compressed(network(), 2, level="L3", adaptive_conv_scheme=False)
    found = uniform(model)
    norms = kinds(model, found)
    assert all(same for name, same in found.items() if not norms[name])
    assert not all(same for name, same in found.items() if norms[name])


@pytest.mark.parametrize("network", [plain_network, residual_network])
def test_without_adaptive_bn_scheme_only_other_layers_have_different_samples(network):
    model = compressed(network(), 2, level="L3", adaptive_bn_scheme=False)
    found = uniform(model)
    norms = kinds(model, found)
    assert all(same for name, same in found.items() if norms[name])
    assert not all(same for name, same in found.items() if not norms[name])


@every_network
def test_without_either_scheme_every_layer_has_one_width(network):
    model = compressed(network(), 2, level="L3", adaptive_conv_scheme=False, adaptive_bn_scheme=False)
    assert all(uniform(model).values())


def test_without_either_scheme_layers_still_differ():
    model = compressed(plain_network(), 2, level="L3", adaptive_conv_scheme=False, adaptive_bn_scheme=False)
    run(model)
    assert len({row.bits for row in model.report().rows}) > 1


def test_groups_of_layers_keep_their_own_averages():
    actnn.set_optimization_level("L3")
    actnn.config.activation_compression_bits = [2, 4]
    torch.manual_seed(0)
    groups, channels = (0, 1, 1, 0, 1), (3, 6, 6, 6, 6)
    layers = [
        layer
        for group, inputs in zip(groups, channels, strict=True)
        for layer in (actnn.QConv2d(inputs, 6, 3, padding=1, group=group), nn.Tanh())
    ]
    model = actnn.QModule(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    for number in range(STEPS):
        rows = {row.layer: row for row in train(model, pictures(seed=number)).rows}
        for group, bits in ((0, 2), (1, 4)):
            own = [rows[str(2 * place)] for place, each in enumerate(groups) if each == group]
            average = sum(row.bits * row.elements for row in own) / sum(row.elements for row in own)
            assert average == pytest.approx(bits, rel=0.01)


SETTINGS = {
    "stochastic rounding": {"rounding": "stochastic"},
    "nearest rounding": {"rounding": "nearest"},
    "no randomness": {"stochastic": False},
    "a code for every layer": {"share_codes": False},
    "exact BatchNorm": {"enable_quantized_bn": False},
    "gradients in pieces": {"pipeline_threshold": 4000},
}


@every_level
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_other_settings_work_with_it(level: str, settings):
    model = compressed(plain_network(), 2, level=level, **settings)
    assert averages(model, [8] * STEPS) == pytest.approx([2] * STEPS, rel=0.01)
    check_finite(model)


def flat(*layers: nn.Module) -> nn.Module:
    """Return layers with a mean over positions and a classifier behind them, whatever their rank."""
    return nn.Sequential(*layers, nn.Flatten(2), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.LazyLinear(CLASSES))


def of_rank(rank: int) -> nn.Module:
    convolution, norm = getattr(nn, f"Conv{rank}d"), getattr(nn, f"BatchNorm{rank}d")
    return flat(
        convolution(3, 8, 3, padding=1), norm(8), nn.ReLU(), convolution(8, 8, 3, padding=1), norm(8), nn.ReLU()
    )


def transposed(rank: int) -> nn.Module:
    convolution, norm = getattr(nn, f"ConvTranspose{rank}d"), getattr(nn, f"BatchNorm{rank}d")
    return flat(convolution(3, 8, 3, stride=2), norm(8), nn.ReLU(), convolution(8, 6, 3, groups=2), norm(6), nn.ReLU())


def with_middle(middle: nn.Module) -> nn.Module:
    return flat(*unit(3, 8), middle, nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1))


FORMS = {
    "1d": (lambda: of_rank(1), (8, 3, 300)),
    "2d": (lambda: of_rank(2), (8, 3, 16, 16)),
    "3d": (lambda: of_rank(3), (8, 3, 8, 8, 8)),
    "1d transposed": (lambda: transposed(1), (8, 3, 100)),
    "2d transposed": (lambda: transposed(2), (8, 3, 10, 10)),
    "3d transposed": (lambda: transposed(3), (8, 3, 5, 5, 5)),
    "grouped": (lambda: with_middle(nn.Conv2d(8, 8, 3, groups=2)), (8, 3, 16, 16)),
    "depthwise": (lambda: with_middle(nn.Conv2d(8, 8, 3, groups=8, padding=1)), (8, 3, 16, 16)),
    "dilated": (lambda: with_middle(nn.Conv2d(8, 8, 3, dilation=2, padding="same")), (8, 3, 16, 16)),
    "leaky": (lambda: with_middle(nn.LeakyReLU(0.1)), (8, 3, 16, 16)),
    "pooled": (lambda: with_middle(nn.MaxPool2d(2)), (8, 3, 16, 16)),
}


@every_level
@pytest.mark.parametrize(("network", "shape"), FORMS.values(), ids=FORMS)
def test_all_kinds_of_convolution_keep_the_average(level: str, network, shape: tuple[int, ...]):
    torch.manual_seed(0)
    plain = network()
    x = torch.randn(shape) * torch.logspace(-1, 0.7, shape[0]).view(-1, *[1] * (len(shape) - 1))
    plain(x)  # lets lazy layers know their shape
    model = compressed(plain, 2, level=level)
    found = [train(model, x).average_bits for _ in range(3)]
    assert found == pytest.approx([2] * 3, rel=0.01)
    check_finite(model)


@pytest.mark.parametrize("shape", [(8, 5, 60), (8, 16, 60)], ids=["other features than channels", "as many"])
def test_a_batch_norm_over_the_tokens_of_a_linear_layer_trains(shape: tuple[int, ...]):
    torch.manual_seed(0)
    tokens = shape[1]
    layers = nn.Linear(60, 16), nn.BatchNorm1d(tokens), nn.ReLU(), nn.Flatten(), nn.Linear(16 * tokens, CLASSES)
    model = compressed(nn.Sequential(*layers), 2, level="L3")
    for _ in range(3):
        train(model, torch.randn(shape))
    check_finite(model)


def test_channels_last_keeps_the_average():
    model = compressed(residual_network(), 2, level="L3").to(memory_format=torch.channels_last)
    found = [
        train(model, pictures(seed=seed).contiguous(memory_format=torch.channels_last)).average_bits
        for seed in range(STEPS)
    ]
    assert found == pytest.approx([2] * STEPS, rel=0.01)
    check_finite(model)


@every_network
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_the_average(network, dtype: torch.dtype):
    model = compressed(network(), 2, level="L3")
    found = []
    for seed in range(3):
        model.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = loss_of(model, pictures(seed=seed))
        loss.backward()
        found.append(model.report().average_bits)
    assert found == pytest.approx([2] * 3, rel=0.01)
    check_finite(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_a_model_of_half_precision_keeps_the_average(dtype: torch.dtype):
    model = compressed(plain_network(), 2, level="L3").to(dtype)
    found = [train(model, pictures(seed=seed).to(dtype)).average_bits for seed in range(3)]
    assert found == pytest.approx([2] * 3, rel=0.01)
    check_finite(model)


@every_level
@every_network
def test_equal_runs_have_equal_gradients(level: str, network):
    check_equal_gradients(*(run(compressed(network(), 1.5, level=level)) for _ in range(2)))


def test_runs_of_other_seeds_have_other_gradients():
    first, second = (run(compressed(plain_network(), 2, seed, level="L3")) for seed in range(2))
    assert not torch.equal(first[0], second[0])


@pytest.fixture
def threads():
    """Let a test change the number of threads."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_gradients_do_not_depend_on_the_number_of_threads(threads):
    found = []
    for count in (1, 2):
        threads(count)
        # linear layers: torch's own convolutions sum in another order with other threads
        found.append(run(compressed(linear_network(), 2, level="L3")))
    check_equal_gradients(*found)


@every_network
def test_widths_do_not_depend_on_the_number_of_threads(network, threads):
    found = []
    for count in (1, 2):
        threads(count)
        model = compressed(network(), 1.5, level="L3")
        run(model)
        found.append(widths_of(model, pictures()))
    assert found[0] == found[1]
