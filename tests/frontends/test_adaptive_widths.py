"""Widths decided while training: the average that was asked for, what may differ from it, and where it works."""

from __future__ import annotations

import numpy as np
import pytest
from frameworks import Framework, Model, numbers
from planned_networks import (
    CLASSES,
    NETWORKS,
    averages,
    check_all_finite,
    classifier,
    in_a_row,
    pictures,
    plain_network,
    ranges,
    residual_network,
    run,
    train,
    unit,
    widths_of,
)
from steps import check_equal_gradients

import actnn
from actnn.planning.records import DEPTHWISE_EXTRA

STEPS = 3
every_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
every_level = pytest.mark.parametrize("level", ["L2.5", "L3"])
every_average = pytest.mark.parametrize("bits", [1.25, 1.5, 2, 2.5, 3, 4])


@every_network
@every_level
@every_average
@pytest.mark.parametrize("batch", [8, 16])
def test_every_step_has_the_average_that_was_asked_for(
    framework: Framework, network, level: str, bits: float, batch: int
):
    found = averages(framework, framework.compressed(network(framework), bits, level=level), [batch] * STEPS)
    assert found == pytest.approx([bits] * STEPS, rel=0.01)


@every_network
@every_level
@every_average
def test_an_odd_batch_has_the_average_but_for_a_plane_of_one_sample(
    framework: Framework, network, level: str, bits: float
):
    batch = 3
    model = framework.compressed(network(framework), bits, level=level)
    for average in averages(framework, model, [batch] * STEPS):
        rows = model.report().rows
        plane = max(row.elements for row in rows) / batch / sum(row.elements for row in rows)
        assert 0.99 * bits - plane <= average <= 1.01 * bits


@every_level
@pytest.mark.parametrize("bits", [1.5, 2])
def test_no_batch_has_more_than_the_average(framework: Framework, level: str, bits: float):
    model = framework.compressed(residual_network(framework), bits, level=level)
    assert max(averages(framework, model, [8, 8, 3, 8, 1, 8, 5, 2, 16, 7])) <= 1.01 * bits


@every_level
def test_a_small_last_batch_has_about_the_average(framework: Framework, level: str):
    model = framework.compressed(residual_network(framework), 2, level=level)
    assert averages(framework, model, [8, 8, 8, 3, 8]) == pytest.approx([2] * 5, rel=0.03)


def test_batch_norm_is_inside_the_average(framework: Framework):
    model = framework.compressed(plain_network(framework), 2, level="L3")
    averages(framework, model, [8] * STEPS)
    rows = [row for row in model.report().rows if row.elements]
    norms = [row for row in rows if row.kind == f"Q{framework.type_name('BatchNorm2d')}"]
    assert sum(row.elements for row in norms) > 0.5 * sum(row.elements for row in rows)
    values = sum((row.bits - row.sign_bits) * row.elements for row in rows)
    assert values == pytest.approx(2 * sum(row.elements for row in rows), rel=0.01)


def test_a_batch_norm_that_keeps_no_code_is_not_inside_the_average(framework: Framework):
    norm = framework.layer("BatchNorm2d", 3)
    network = in_a_row(framework, norm, *unit(framework, 3, 8), *classifier(framework, 8))
    model = framework.compressed(network, 2, level="L3")
    framework.freeze(model[0].weight)
    train(framework, model, pictures())
    rows = {row.layer: row for row in model.report().rows}
    assert (rows["0"].kept_bytes, rows["0"].bits, rows["0"].elements) == (0, None, 0)


@every_network
@every_level
@pytest.mark.parametrize("bits", [2, 3])
def test_the_first_step_is_uniform(framework: Framework, network, level: str, bits: int):
    found = widths_of(framework, framework.compressed(network(framework), bits, level=level), pictures())
    assert all(len(set(widths)) == 1 for widths in found.values())


@every_network
def test_the_first_step_has_neighbouring_widths_where_the_average_is_fractional(framework: Framework, network):
    found = widths_of(framework, framework.compressed(network(framework), 1.5, level="L3"), pictures())
    assert all(max(widths) - min(widths) <= 1 for widths in found.values())


@every_network
@every_level
def test_later_steps_give_samples_different_widths(framework: Framework, network, level: str):
    model = framework.compressed(network(framework), 2, level=level)
    train(framework, model, pictures())
    found = widths_of(framework, model, pictures())
    assert any(len(set(widths)) > 1 for widths in found.values())


def test_at_level_three_layers_have_different_averages(framework: Framework):
    model = framework.compressed(plain_network(framework), 2, level="L3")
    train(framework, model, pictures())
    found = widths_of(framework, model, pictures())
    assert len({sum(widths) for widths in found.values()}) > 1


def test_without_perlayer_level_three_is_level_two_and_a_half(framework: Framework):
    found = run(framework, framework.compressed(plain_network(framework), 2, level="L3", perlayer=False))
    check_equal_gradients(found, run(framework, framework.compressed(plain_network(framework), 2, level="L2.5")))


def test_without_perlayer_every_layer_has_the_average(framework: Framework):
    model = framework.compressed(plain_network(framework), 2, level="L3", perlayer=False)
    run(framework, model)
    assert {row.bits - row.sign_bits for row in model.report().rows if row.elements} == {2.0}


def uniform(framework: Framework, model: Model) -> dict[str, bool]:
    """Train; return, for each layer that makes codes, whether all samples of its last one have one width."""
    run(framework, model)
    return {name: len(set(widths)) == 1 for name, widths in widths_of(framework, model, pictures()).items()}


def norms_of(framework: Framework, model: Model, names) -> dict[str, bool]:
    """Return which layers are BatchNorms."""
    return {name: "BatchNorm" in framework.kind_at(model, name) for name in names}


@pytest.mark.parametrize("network", [plain_network, residual_network])
@pytest.mark.parametrize("of_norms", [False, True])
def test_without_a_scheme_only_the_other_layers_have_different_samples(framework: Framework, network, of_norms: bool):
    setting = "adaptive_bn_scheme" if of_norms else "adaptive_conv_scheme"
    model = framework.compressed(network(framework), 2, level="L3", **{setting: False})
    found = uniform(framework, model)
    norms = norms_of(framework, model, found)
    assert all(same for name, same in found.items() if norms[name] == of_norms)
    assert not all(same for name, same in found.items() if norms[name] != of_norms)


WITHOUT_SCHEMES = {"adaptive_conv_scheme": False, "adaptive_bn_scheme": False}


@every_network
def test_without_either_scheme_every_layer_has_one_width(framework: Framework, network):
    model = framework.compressed(network(framework), 2, level="L3", **WITHOUT_SCHEMES)
    assert all(uniform(framework, model).values())


def test_without_either_scheme_layers_still_differ(framework: Framework):
    model = framework.compressed(plain_network(framework), 2, level="L3", **WITHOUT_SCHEMES)
    run(framework, model)
    assert len({row.bits for row in model.report().rows}) > 1


def test_groups_of_layers_keep_their_own_averages(framework: Framework):
    actnn.set_optimization_level("L3")
    actnn.config.activation_compression_bits = [2, 4]
    groups, channels = (0, 1, 1, 0, 1), (3, 6, 6, 6, 6)
    layers = [
        layer
        for group, inputs in zip(groups, channels, strict=True)
        for layer in (
            framework.made_by_hand("Conv2d", inputs, 6, 3, padding=1, group=group),
            framework.layer("Hardtanh"),
        )
    ]
    head = framework.layer("AdaptiveAvgPool2d", 1), framework.layer("Flatten")
    model = framework.actnn.QModule(in_a_row(framework, *layers, *head))
    for number in range(STEPS):
        rows = {row.layer: row for row in train(framework, model, pictures(seed=number)).rows}
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
def test_other_settings_work_with_it(framework: Framework, level: str, settings):
    model = framework.compressed(plain_network(framework), 2, level=level, **settings)
    assert averages(framework, model, [8] * STEPS) == pytest.approx([2] * STEPS, rel=0.01)
    check_all_finite(framework, model)


def flat(framework: Framework, channels: int, *layers: Model) -> Model:
    """Return layers with a mean over positions and a classifier behind them, whatever their rank."""
    layer = framework.layer
    tail = layer("Flatten", 2), layer("AdaptiveAvgPool1d", 1), layer("Flatten"), layer("Linear", channels, CLASSES)
    return in_a_row(framework, *layers, *tail)


def of_rank(framework: Framework, rank: int) -> Model:
    layer = framework.layer
    sizes = ((3, 8), (8, 8))
    return flat(framework, 8, *(
        each
        for size in sizes
        for each in (layer(f"Conv{rank}d", *size, 3, padding=1), layer(f"BatchNorm{rank}d", 8), layer("ReLU"))
    ))  # fmt: skip


def transposed(framework: Framework, rank: int) -> Model:
    layer, kind, norm = framework.layer, f"ConvTranspose{rank}d", f"BatchNorm{rank}d"
    first = layer(kind, 3, 8, 3, stride=2), layer(norm, 8), layer("ReLU")
    return flat(framework, 6, *first, layer(kind, 8, 6, 3, groups=2), layer(norm, 6), layer("ReLU"))


def with_middle(framework: Framework, kind: str, *arguments, **options) -> Model:
    layer = framework.layer
    tail = layer("BatchNorm2d", 8), layer("ReLU"), layer("Conv2d", 8, 8, 1)
    return flat(framework, 8, *unit(framework, 3, 8), layer(kind, *arguments, **options), *tail)


SQUARE = (8, 3, 16, 16)
FORMS = {
    "1d": (lambda f: of_rank(f, 1), (8, 3, 300)),
    "2d": (lambda f: of_rank(f, 2), SQUARE),
    "3d": (lambda f: of_rank(f, 3), (8, 3, 8, 8, 8)),
    "1d transposed": (lambda f: transposed(f, 1), (8, 3, 100)),
    "2d transposed": (lambda f: transposed(f, 2), (8, 3, 10, 10)),
    "3d transposed": (lambda f: transposed(f, 3), (8, 3, 5, 5, 5)),
    "grouped": (lambda f: with_middle(f, "Conv2d", 8, 8, 3, groups=2), SQUARE),
    "dilated": (lambda f: with_middle(f, "Conv2d", 8, 8, 3, dilation=2, padding="same"), SQUARE),
    "leaky": (lambda f: with_middle(f, "LeakyReLU", 0.1), SQUARE),
    "pooled": (lambda f: with_middle(f, "MaxPool2d", 2), SQUARE),
}


@every_level
@pytest.mark.parametrize(("network", "shape"), FORMS.values(), ids=FORMS)
def test_all_kinds_of_convolution_keep_the_average(framework: Framework, level: str, network, shape: tuple[int, ...]):
    model = framework.compressed(network(framework), 2, level=level)
    x = numbers(shape) * ranges(shape[0], len(shape))
    found = [train(framework, model, x).average_bits for _ in range(3)]
    assert found == pytest.approx([2] * 3, rel=0.01)
    check_all_finite(framework, model)


def test_what_a_depthwise_convolution_reads_brings_more_bits_where_layers_share_them(framework: Framework):
    network = with_middle(framework, "Conv2d", 8, 8, 3, groups=8, padding=1)
    model = framework.compressed(network, 2, level="L3")
    found = [train(framework, model, numbers(SQUARE)).average_bits for _ in range(3)]
    assert found[0] == pytest.approx(2, rel=0.01)
    # one code of three is read by it
    assert 2 < found[1] <= 2 + DEPTHWISE_EXTRA
    assert found[2] == pytest.approx(found[1], rel=0.01)
    check_all_finite(framework, model)


@pytest.mark.parametrize("shape", [(8, 5, 60), (8, 16, 60)], ids=["other features than channels", "as many"])
def test_a_batch_norm_over_the_tokens_of_a_linear_layer_trains(framework: Framework, shape: tuple[int, ...]):
    layer, tokens = framework.layer, shape[1]
    layers = layer("Linear", 60, 16), layer("BatchNorm1d", tokens), layer("ReLU"), layer("Flatten")
    model = framework.compressed(in_a_row(framework, *layers, layer("Linear", 16 * tokens, CLASSES)), 2, level="L3")
    for seed in range(3):
        train(framework, model, numbers(shape, seed))
    check_all_finite(framework, model)


@every_network
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_autocast_keeps_the_average(framework: Framework, network, dtype: str):
    model, found = framework.compressed(network(framework), 2, level="L3"), []
    for seed in range(3):
        framework.clear(model)
        with framework.autocast(dtype):
            logits = model(framework.tensor(pictures(seed=seed)))
        framework.cross_entropy(framework.cast(logits, "float32"), np.arange(8) % CLASSES).backward()
        found.append(model.report().average_bits)
    assert found == pytest.approx([2] * 3, rel=0.01)
    check_all_finite(framework, model)


@every_level
@every_network
def test_equal_runs_have_equal_gradients(framework: Framework, level: str, network):
    models = [framework.compressed(network(framework), 1.5, level=level) for _ in range(2)]
    check_equal_gradients(*(run(framework, model) for model in models))


def test_runs_of_other_seeds_have_other_gradients(framework: Framework):
    models = [framework.compressed(plain_network(framework), 2, seed, level="L3") for seed in range(2)]
    first, second = (run(framework, model) for model in models)
    assert not np.array_equal(first["0.weight"], second["0.weight"])
