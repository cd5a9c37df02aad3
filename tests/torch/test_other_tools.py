"""Tools that look for layers by type, after and before a conversion: they match, or the user is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.ao import quantization

import actnn

WIDTH = 64


def network() -> nn.Sequential:
    torch.manual_seed(0)
    head = nn.Flatten(), nn.Linear(8 * 64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 5)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), *head)


def trained(model: nn.Module, steps: int = 3) -> Any:
    for _ in range(steps):
        model(torch.randn(16, 3, 8, 8)).square().mean().backward()
    return model


def prepared(model: nn.Module) -> nn.Module:
    model.train().qconfig = quantization.get_default_qat_qconfig("x86")
    return quantization.prepare_qat(model)


@pytest.mark.works_with("QAT")
@pytest.mark.filterwarnings("ignore")
def test_preparing_a_converted_model_for_quantisation_says_the_order_that_works():
    with pytest.raises(actnn.UnsupportedError, match=r"QModule\(prepare_qat\(model\)\)"):
        prepared(actnn.QModule(network()))


@pytest.mark.works_with("QAT")
@pytest.mark.filterwarnings("ignore")
def test_quantising_a_converted_model_says_the_order_that_works():
    with pytest.raises(actnn.UnsupportedError, match="Quantise first"):
        quantization.quantize_dynamic(actnn.QModule(network()).eval(), {nn.Linear})


@pytest.mark.works_with("QAT")
@pytest.mark.filterwarnings("ignore")
def test_a_model_that_was_prepared_for_quantisation_trains_with_codes():
    ours = trained(actnn.QModule(prepared(network())))
    assert any("conv2d" in row.layer for row in ours.report().rows)
    assert ours.report().kept_bytes < ours.report().exact_bytes


@pytest.mark.works_with("QAT")
@pytest.mark.filterwarnings("ignore")
def test_what_restore_returns_can_be_quantised():
    plain = trained(actnn.QModule(network())).restore().eval()
    found = quantization.quantize_dynamic(plain, {nn.Linear})
    assert "Dynamic" in str(type(found[4])) or "quantized" in type(found[4]).__module__


def test_layers_that_came_after_the_conversion_are_named_in_the_report():
    ours = actnn.QModule(network())
    nn.SyncBatchNorm.convert_sync_batchnorm(ours)
    report = ours.report()
    assert report.later == [("1", "SyncBatchNorm")]
    assert "came after the conversion: 1 SyncBatchNorm (1)" in str(report)
    assert "call restore(), then QModule again" in str(report)
    again = actnn.QModule(ours.restore())
    assert again.report().later == []
    assert type(again[1]).__name__ == "QSyncBatchNorm"


def lora(model: nn.Module) -> nn.Module:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=["4", "6"], r=4))


@pytest.mark.works_with("peft")
def test_adapters_of_peft_match_converted_layers_and_are_served():
    ours = actnn.QModule(network())
    adapted = trained(lora(ours))
    assert type(adapted.base_model.model[4].base_layer).__name__ == "QLinear"
    assert any(row.kind == "linear" for row in ours.report().rows)
    assert {kind for _, kind in ours.report().later} == {"Linear"}


@pytest.mark.works_with("peft")
def test_a_model_that_was_adapted_before_has_codes_of_its_adapters():
    ours = trained(actnn.QModule(lora(network())))
    assert any("lora_A" in row.layer for row in ours.report().rows)
    assert ours.report().later == []
