"""What is kept between forward and backward: counted by the framework's own hooks, and told by the report."""

from __future__ import annotations

import logging
import re
import weakref

import numpy as np
import pytest
from frameworks import Framework, Model, cases, input_of, numbers
from layer_cases import FUNCTIONAL, KINDS, MAPS, NORMS, SIZES, Case
from networks import images, small_network
from steps import close

import actnn


def saved(framework: Framework, model: Model, x, wanted: bool = True) -> int:
    """Return the bytes that are kept of a call; ``wanted`` says whether the input has a gradient."""
    leaf = framework.tensor(x, gradient=wanted)
    return framework.saved_bytes(model, lambda: model(leaf))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@cases([*MAPS, *NORMS])
def test_a_layer_keeps_about_its_width_an_element(framework: Framework, case: Case, bits: int):
    # wide enough for scales and key to weigh little
    layer, x = framework.plain_layer(case), np.tile(input_of(case), (8, *[1] * (len(case.shape) - 1)))
    ours = framework.compressed(layer, bits)
    framework.step(ours, x)
    assert saved(framework, ours, x) <= x.size * (1.1 * bits / 8 + 0.05) + 100


@cases(KINDS, FUNCTIONAL)
def test_no_layer_keeps_its_input(framework: Framework, case: Case):
    ours = framework.compressed(framework.plain_layer(case), 2)
    activation = framework.tensor(input_of(case), gradient=True) * 1
    kept_alive = weakref.ref(activation)
    y = ours(activation)
    del activation
    assert framework.wants_gradient(y)
    assert kept_alive() is None or kept_alive().grad_fn is None


@cases([case for case in KINDS if case.kind in ("ReLU", "ReLU6", "LeakyReLU", "Dropout")])
def test_activations_keep_one_bit_an_element(framework: Framework, case: Case):
    ours, x = framework.compressed(framework.plain_layer(case), 8), input_of(case)
    # the first step learns that nobody else reads the code
    framework.step(ours, x)
    # a sample's last byte may be partly used
    assert saved(framework, ours, x) <= x.size / 8 + len(x)


def test_average_pooling_keeps_nothing(framework: Framework):
    ours = framework.compressed(framework.layer("AvgPool2d", 2))
    assert saved(framework, ours, numbers((4, 6, 12, 12))) == 0


def test_max_pooling_keeps_two_bits_for_each_window_of_four(framework: Framework):
    ours = framework.compressed(framework.layer("MaxPool2d", 2))
    assert saved(framework, ours, numbers((4, 4, 16, 16))) == 4 * 4 * 8 * 8 * 2 // 8


# defect 11: very small features get larger than fp32
@cases(KINDS, SIZES, FUNCTIONAL)
@pytest.mark.parametrize("bits", [1, 8])
def test_a_layer_never_keeps_more_than_exact_training(framework: Framework, case: Case, bits: int):
    layer, x = framework.plain_layer(case), input_of(case)
    ours = framework.compressed(layer, bits)
    assert saved(framework, ours, x) <= max(saved(framework, layer, x), x.nbytes)


@pytest.mark.parametrize("features", [1, 2, 3, 5, 8, 13])
def test_a_linear_layer_of_few_features_keeps_no_more_than_its_input(framework: Framework, features: int):
    ours, x = framework.compressed(framework.layer("Linear", features, 4), 8), numbers((64, features))
    assert saved(framework, ours, x, wanted=False) <= x.nbytes


# defect 10: frozen layers keep their input
@cases(MAPS)
def test_a_frozen_layer_keeps_nothing(framework: Framework, case: Case):
    ours = framework.freeze(framework.compressed(framework.plain_layer(case)))
    assert saved(framework, ours, input_of(case)) == 0


@cases(MAPS)
def test_a_frozen_layer_passes_the_exact_gradient(framework: Framework, case: Case):
    layer, x = framework.freeze(framework.plain_layer(case)), input_of(case)
    found, expected = framework.step(framework.compressed(layer, 2), x), framework.step(layer, x)
    np.testing.assert_allclose(found.gradients["input"], expected.gradients["input"], rtol=1.3e-6, atol=1e-5)


@cases(MAPS)
def test_a_layer_with_a_frozen_weight_keeps_nothing_for_its_bias(framework: Framework, case: Case):
    ours = framework.compressed(framework.plain_layer(case))
    framework.freeze(ours.weight)
    assert saved(framework, ours, input_of(case), wanted=False) == 0


@cases(KINDS, FUNCTIONAL)
def test_nothing_is_kept_where_nobody_wants_a_gradient(framework: Framework, case: Case):
    ours = framework.freeze(framework.compressed(framework.plain_layer(case)))
    assert saved(framework, ours, input_of(case), wanted=False) == 0
    assert ours.report().kept_bytes == 0


@cases(KINDS, FUNCTIONAL)
def test_nothing_is_kept_under_no_grad(framework: Framework, case: Case):
    ours = framework.compressed(framework.plain_layer(case))
    with framework.no_grad():
        assert saved(framework, ours, input_of(case), wanted=False) == 0
    assert ours.report().kept_bytes == 0


def test_an_evaluated_network_without_gradients_keeps_nothing(framework: Framework):
    ours = framework.evaluating(framework.compressed(small_network(framework)))
    with framework.no_grad():
        assert saved(framework, ours, images(), wanted=False) == 0


def test_a_frozen_network_in_evaluation_keeps_no_activation_but_masks(framework: Framework):
    plain = small_network(framework)
    ours = framework.compressed(plain)
    found, expected = (
        saved(framework, framework.freeze(framework.evaluating(model)), images()) for model in (ours, plain)
    )
    assert found < expected / 10


def fan(model: Model, x):
    h = model.first(x)
    return model.one(h) + model.two(h) + model.three(h) + model.four(h)


# defect 11: an input read by several convs is kept once for each
def test_an_activation_read_by_several_layers_is_kept_once(framework: Framework):
    heads = {name: framework.layer("Conv2d", 8, 8, 1) for name in ("one", "two", "three", "four")}
    ours = framework.compressed(framework.wired(fan, first=framework.layer("Conv2d", 3, 8, 3, padding=1), **heads), 2)
    x = numbers((4, 3, 16, 16))
    framework.step(ours, x)
    one_code = 4 * 8 * 256 * 2 // 8
    assert saved(framework, ours, x, wanted=False) < 3 * 4 * 256 / 4 + one_code * 1.5


def test_a_network_keeps_a_tenth_of_exact_training_at_two_bits(framework: Framework):
    network, x = small_network(framework), images(16)
    ours = framework.compressed(network, 2)
    framework.step(ours, x)
    assert saved(framework, ours, x, wanted=False) < saved(framework, network, x, wanted=False) / 10


def test_the_report_tells_what_is_kept(framework: Framework):
    ours, x = framework.compressed(small_network(framework), 2), images(16)
    framework.step(ours, x)
    kept = saved(framework, ours, x, wanted=False)
    assert ours.report().kept_bytes == pytest.approx(kept, rel=0.01)


def test_the_report_tells_what_exact_training_keeps(framework: Framework):
    network, x = small_network(framework), images(16)
    ours = framework.compressed(network, 2)
    framework.step(ours, x)
    ours(framework.tensor(x))
    assert ours.report().exact_bytes == pytest.approx(saved(framework, network, x, wanted=False), rel=0.01)


@cases(KINDS, FUNCTIONAL)
def test_the_report_of_one_layer_tells_what_is_kept(framework: Framework, case: Case):
    ours, x = framework.compressed(framework.plain_layer(case), 2), input_of(case)
    framework.step(ours, x)
    kept = saved(framework, ours, x)
    assert ours.report().kept_bytes == pytest.approx(kept, abs=64)


def test_the_report_adds_up_over_its_rows(framework: Framework):
    ours = framework.compressed(small_network(framework), 2)
    framework.step(ours, images())
    report = ours.report()
    assert report.kept_bytes == sum(row.kept_bytes for row in report.rows)


def test_the_report_is_of_one_step_however_many_there_were(framework: Framework):
    ours, reports = framework.compressed(small_network(framework), 2), []
    for _ in range(4):
        framework.step(ours, images())
        reports.append(ours.report())
    # the first step learns who reads what
    assert reports[1].kept_bytes == reports[3].kept_bytes


def test_the_report_before_any_step_tells_what_to_do(framework: Framework):
    assert "run a training step" in str(framework.compressed(small_network(framework)).report())


def half(model: Model, x):
    return model.used(x)


def test_the_report_names_layers_that_took_no_part(framework: Framework):
    used, unused = (framework.layer("Linear", 70, 70) for _ in range(2))
    ours = framework.compressed(framework.wired(half, used=used, unused=unused))
    framework.step(ours, numbers((8, 70)))
    assert "unused" in ours.report().idle


def test_the_report_of_l1_tells_why_batch_norm_is_exact(framework: Framework):
    ours = framework.compressed(small_network(framework), level="L1")
    reasons = {layer: reason for layer, _, reason in ours.report().left_exact}
    assert "exact" in reasons["stem.1"]


def softened(model: Model, x):
    return model.soft(model.relu(model.conv(x)))


def test_the_report_tells_what_is_not_compressed(framework: Framework):
    conv, soft = framework.layer("Conv2d", 3, 8, 3, padding=1), framework.layer("Softsign")
    ours = framework.compressed(framework.wired(softened, conv=conv, soft=soft, relu=framework.relu))
    framework.step(ours, images())
    report = ours.report()
    text = str(report)
    assert ("what other layers and functions keep is not counted here" in text) == (report.whole is None)
    assert "not compressed, and not in the table: 1 Softsign" in text


@pytest.mark.parametrize(
    ("level", "layers"), [("L0", [("Conv2d", 3, 8, 3)]), ("L3", [("Softsign",), ("Softsign",)])], ids=["L0", "L3"]
)
def test_the_report_tells_that_nothing_is_compressed(framework: Framework, level: str, layers):
    plain = framework.sequential(*(framework.layer(*each) for each in layers))
    ours = framework.compressed(plain, level=level)
    framework.step(ours, images())
    assert "no layer of this model is compressed" in str(ours.report())


def test_an_activation_kept_by_nobody_is_freed_in_forward(framework: Framework):
    convolution = framework.layer
    layers = convolution("Conv2d", 3, 8, 3), convolution("Conv2d", 8, 8, 3), convolution("Conv2d", 8, 8, 3)
    ours, seen = framework.compressed(framework.sequential(*layers), 2), []
    for layer in ours.children():
        framework.after_forward(layer, lambda output: seen.append(weakref.ref(output)))
    y = ours(framework.tensor(numbers((2, 3, 16, 16))))
    assert [activation() is None for activation in seen] == [True, True, False]
    assert framework.wants_gradient(y)


def test_wanted_layer_groups_reach_the_bytes_that_are_kept(framework: Framework):
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [1, 8]
    x = numbers((16, 1024))
    layers = [framework.made_by_hand("Linear", 1024, 3, group=group) for group in (0, 1)]
    narrow, wide = (saved(framework, layer, x, wanted=False) for layer in layers)
    assert wide - narrow == 16 * 1024 * 7 // 8


def test_gradients_do_not_depend_on_whether_anybody_counts(framework: Framework):
    ours, x = framework.compressed(small_network(framework), 8), images()
    expected = framework.step(ours, x).gradients["head.weight"]
    saved(framework, ours, x)
    close(framework.step(ours, x).gradients["head.weight"], expected, 0.02)


@pytest.mark.parametrize(
    ("setting", "words"), [("debug_memory_model", "keeps .* bytes instead of"), ("debug_speed", "encode: .* ms")]
)
def test_debugging_logs_what_it_promises(framework: Framework, caplog, setting, words):
    ours = framework.compressed(framework.layer("Linear", 300, 4), **{setting: True})
    with caplog.at_level(logging.WARNING, logger="actnn"):
        framework.step(ours, numbers((8, 300)))
    assert any(re.search(words, record.getMessage()) for record in caplog.records)


def test_without_debugging_nothing_is_logged(framework: Framework, caplog):
    ours = framework.compressed(small_network(framework))
    with caplog.at_level(logging.DEBUG, logger="actnn"):
        framework.step(ours, images())
    assert [record for record in caplog.records if record.name.startswith("actnn")] == []
