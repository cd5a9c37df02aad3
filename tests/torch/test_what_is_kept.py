"""What autograd keeps: counted by torch's own hooks, freed when exact training frees it, and told by the report."""

from __future__ import annotations

import gc
import logging
import re
import weakref

import pytest
import torch
from layer_cases import KINDS, MAPS, NORMS, SIZES, Case
from torch import nn
from torch_layers import compressed, images, input_of, plain_layer, saved_bytes, small_network, step

import actnn


def cases(*tables):
    return pytest.mark.parametrize("case", [case for table in tables for case in table], ids=str)


def freeze(model: nn.Module) -> nn.Module:
    return model.requires_grad_(False)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@cases([*MAPS, *NORMS])
def test_a_layer_keeps_about_its_width_an_element(case: Case, bits: int):
    # wide enough for scales and key to weigh little
    layer, x = plain_layer(case), input_of(case).repeat(8, *[1] * (len(case.shape) - 1)).requires_grad_()
    ours = compressed(layer, bits)
    step(ours, x)
    kept = saved_bytes(ours, lambda: ours(x))
    assert kept <= x.numel() * (1.1 * bits / 8 + 0.05) + 100


@cases(KINDS)
def test_no_layer_keeps_its_input(case: Case):
    layer, x = plain_layer(case), input_of(case)
    ours = compressed(layer, 2)
    activation = x.clone().requires_grad_() * 1
    kept_alive = weakref.ref(activation)
    y = ours(activation)
    del activation
    assert y.requires_grad
    assert kept_alive() is None or kept_alive().grad_fn is None


@cases([case for case in KINDS if case.kind in ("ReLU", "ReLU6", "LeakyReLU", "Dropout")])
def test_activations_keep_one_bit_an_element(case: Case):
    layer, x = plain_layer(case), input_of(case).requires_grad_()
    ours = compressed(layer, 8)
    # the first step learns that nobody else reads the code
    step(ours, x)
    # a sample's last byte may be partly used
    assert saved_bytes(ours, lambda: ours(x)) <= x.numel() / 8 + len(x)


def test_average_pooling_keeps_nothing():
    layer, x = nn.AvgPool2d(2), torch.randn(4, 6, 12, 12).requires_grad_()
    ours = compressed(layer)
    assert saved_bytes(ours, lambda: ours(x)) == 0


def test_max_pooling_keeps_two_bits_for_each_window_of_four():
    layer, x = nn.MaxPool2d(2), torch.randn(4, 4, 16, 16).requires_grad_()
    ours = compressed(layer)
    assert saved_bytes(ours, lambda: ours(x)) == 4 * 4 * 8 * 8 * 2 // 8


# defect 11: very small features get larger than fp32
@cases(KINDS, SIZES)
@pytest.mark.parametrize("bits", [1, 8])
def test_a_layer_never_keeps_more_than_exact_training(case: Case, bits: int):
    layer, x = plain_layer(case), input_of(case).requires_grad_()
    ours = compressed(layer, bits)
    assert saved_bytes(ours, lambda: ours(x)) <= max(saved_bytes(layer, lambda: layer(x)), x.nbytes)


@pytest.mark.parametrize("features", [1, 2, 3, 5, 8, 13])
def test_a_linear_layer_of_few_features_keeps_no_more_than_its_input(features: int):
    layer, x = nn.Linear(features, 4), torch.randn(64, features)
    ours = compressed(layer, 8)
    assert saved_bytes(ours, lambda: ours(x)) <= x.nbytes


# defect 10: frozen layers keep their input
@cases(MAPS)
def test_a_frozen_layer_keeps_nothing(case: Case):
    ours, x = freeze(compressed(plain_layer(case))), input_of(case).requires_grad_()
    assert saved_bytes(ours, lambda: ours(x)) == 0


@cases(MAPS)
def test_a_frozen_layer_passes_the_exact_gradient(case: Case):
    layer, x = freeze(plain_layer(case)), input_of(case)
    found, expected = step(compressed(layer, 2), x), step(layer, x)
    torch.testing.assert_close(found.gradients["input"], expected.gradients["input"])


@cases(MAPS)
def test_a_layer_with_a_frozen_weight_keeps_nothing_for_its_bias(case: Case):
    ours, x = compressed(plain_layer(case)), input_of(case)
    ours.weight.requires_grad_(False)
    assert saved_bytes(ours, lambda: ours(x)) == 0


@cases(KINDS)
def test_nothing_is_kept_where_nobody_wants_a_gradient(case: Case):
    ours, x = freeze(compressed(plain_layer(case))), input_of(case)
    assert saved_bytes(ours, lambda: ours(x)) == 0
    assert ours.report().kept_bytes == 0


@cases(KINDS)
def test_nothing_is_kept_under_no_grad(case: Case):
    ours, x = compressed(plain_layer(case)), input_of(case)
    with torch.no_grad():
        assert saved_bytes(ours, lambda: ours(x)) == 0
    assert ours.report().kept_bytes == 0


@cases(KINDS)
def test_nothing_is_kept_in_inference_mode(case: Case):
    ours, x = compressed(plain_layer(case)), input_of(case)
    with torch.inference_mode():
        ours(x)
    assert ours.report().kept_bytes == 0


def test_an_evaluated_network_without_gradients_keeps_nothing():
    ours = compressed(small_network()).eval()
    with torch.no_grad():
        assert saved_bytes(ours, lambda: ours(images())) == 0


def test_a_frozen_network_in_evaluation_keeps_no_activation_but_masks():
    ours = freeze(compressed(small_network()).eval())
    plain = freeze(small_network().eval())
    x = images().requires_grad_()
    assert saved_bytes(ours, lambda: ours(x)) < saved_bytes(plain, lambda: plain(x)) / 10


# defect 11: an input read by several convs is kept once for each
def test_an_activation_read_by_several_layers_is_kept_once():
    class Fan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 8, 3, padding=1)
            self.heads = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in range(4))

        def forward(self, x):
            h = self.first(x)
            return sum(head(h) for head in self.heads)

    network = Fan()
    x = torch.randn(4, 3, 16, 16)
    ours = compressed(network, 2)
    step(ours, x)
    one_code = 4 * 8 * 256 * 2 // 8
    assert saved_bytes(ours, lambda: ours(x)) < 3 * 4 * 256 / 4 + one_code * 1.5


def test_a_network_keeps_a_tenth_of_exact_training_at_two_bits():
    network, x = small_network(), images(16)
    ours = compressed(network, 2)
    step(ours, x)
    assert saved_bytes(ours, lambda: ours(x)) < saved_bytes(network, lambda: network(x)) / 10


def test_the_report_tells_what_autograd_keeps():
    ours, x = compressed(small_network(), 2), images(16)
    step(ours, x)
    kept = saved_bytes(ours, lambda: ours(x))
    assert ours.report().kept_bytes == pytest.approx(kept, rel=0.01)


def test_the_report_tells_what_exact_training_keeps():
    network, x = small_network(), images(16)
    ours = compressed(network, 2)
    step(ours, x)
    ours(x)
    assert ours.report().exact_bytes == pytest.approx(saved_bytes(network, lambda: network(x)), rel=0.01)


@cases(KINDS)
def test_the_report_of_one_layer_tells_what_autograd_keeps(case: Case):
    ours, x = compressed(plain_layer(case), 2), input_of(case).requires_grad_()
    step(ours, x)
    kept = saved_bytes(ours, lambda: ours(x))
    assert ours.report().kept_bytes == pytest.approx(kept, abs=64)


def test_the_report_adds_up_over_its_rows():
    ours, x = compressed(small_network(), 2), images()
    step(ours, x)
    report = ours.report()
    assert report.kept_bytes == sum(row.kept_bytes for row in report.rows)


def test_the_report_is_of_one_step_however_many_there_were():
    ours, x = compressed(small_network(), 2), images()
    reports = []
    for _ in range(4):
        step(ours, x)
        reports.append(ours.report())
    # the first step learns who reads what
    assert reports[1].kept_bytes == reports[3].kept_bytes


def test_the_report_before_any_step_tells_what_to_do():
    assert "run a training step" in str(compressed(small_network()).report())


def test_the_report_names_layers_that_took_no_part():
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(70, 70), nn.Linear(70, 70)

        def forward(self, x):
            return self.used(x)

    ours = compressed(Half())
    step(ours, torch.randn(8, 70))
    assert "unused" in ours.report().idle


def test_the_report_of_l1_tells_why_batch_norm_is_exact():
    ours = compressed(small_network(), level="L1")
    reasons = {layer: reason for layer, _, reason in ours.report().left_exact}
    assert "exact" in reasons["stem.1"]


class Remember:
    """Weak references to everything that autograd saves of a call, apart from what the model or the caller owns."""

    def __init__(self, model: nn.Module, x: torch.Tensor) -> None:
        self._own = {id(tensor) for tensor in (*model.parameters(), *model.buffers(), x)}
        self._saved: list[weakref.ref] = []

    def __enter__(self) -> Remember:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self._hooks.__enter__()
        return self

    def __exit__(self, *problem) -> None:
        self._hooks.__exit__(*problem)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self._own:
            self._saved.append(weakref.ref(tensor))
        return tensor

    def alive(self) -> list[tuple[int, ...]]:
        """Return the shapes of what still exists."""
        gc.collect()
        assert self._saved
        return [tuple(reference().shape) for reference in self._saved if reference() is not None]


def test_codes_are_freed_by_backward_while_the_loss_is_alive():
    ours, x = compressed(small_network(), 2), images()
    with Remember(ours, x) as saved:
        loss = ours(x).square().sum()
    loss.backward()
    assert saved.alive() == []


def test_a_graph_that_is_dropped_frees_its_codes():
    ours, x = compressed(small_network(), 2), images()
    with Remember(ours, x) as saved:
        loss = ours(x).square().sum()
    del loss
    assert saved.alive() == []


def test_an_activation_kept_by_nobody_is_freed_in_forward():
    convolutions = compressed(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3)), 2)
    seen = []
    for layer in convolutions.children():
        layer.register_forward_hook(lambda _, __, output: seen.append(weakref.ref(output)))
    y = convolutions(torch.randn(2, 3, 16, 16))
    assert [activation() is None for activation in seen] == [True, True, False]
    assert y.requires_grad


def test_wanted_layer_groups_reach_the_bytes_that_are_kept():
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [1, 8]
    x = torch.randn(16, 1024)
    kept = [
        saved_bytes(layer, lambda layer=layer: layer(x)) for layer in (actnn.QLinear(1024, 3, group=g) for g in (0, 1))
    ]
    assert kept[1] - kept[0] == 16 * 1024 * 7 // 8


@pytest.mark.parametrize(
    ("setting", "words"), [("debug_memory_model", "keeps .* bytes instead of"), ("debug_speed", "encode: .* ms")]
)
def test_debugging_logs_what_it_promises(caplog, setting, words):
    ours = compressed(nn.Linear(300, 4), **{setting: True})
    with caplog.at_level(logging.WARNING, logger="actnn"):
        step(ours, torch.randn(8, 300))
    assert any(re.search(words, record.getMessage()) for record in caplog.records)


def test_without_debugging_nothing_is_logged(caplog):
    ours = compressed(small_network())
    with caplog.at_level(logging.DEBUG, logger="actnn"):
        step(ours, images())
    assert caplog.records == []
