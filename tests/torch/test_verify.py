"""verify of what torch alone has: gradients in half precision, and sparse ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import actnn

LABELS = torch.arange(16) % 5


def verified(model: nn.Module, x: Tensor, draws: int = 12):
    return actnn.verify(model, (x, LABELS), F.cross_entropy, draws, level="L2")


def test_half_precision_works():
    model = nn.Sequential(nn.Linear(300, 20), nn.ReLU(), nn.Linear(20, 5)).bfloat16()
    found = verified(model, torch.randn(16, 300).bfloat16())
    assert found.total["measured"] > 0
    assert found.warning is None


def test_sparse_gradients_have_the_norm_of_dense_ones():
    sparse = nn.Sequential(nn.Embedding(50, 300, sparse=True), nn.Linear(300, 5))
    dense = nn.Sequential(nn.Embedding(50, 300), nn.Linear(300, 5))
    dense.load_state_dict(sparse.state_dict())
    rows = (verified(model, LABELS, 2).rows for model in (sparse, dense))
    found, expected = ({row["layer"]: row["norm"] for row in each} for each in rows)
    assert found == pytest.approx(expected, rel=1e-5)
    assert found.keys() == {"0", "1"}


def places(found) -> set[str]:
    """Return the first parts of the names that predictions leave out."""
    return {name.rpartition(".")[0] for name in found.unpredicted}


def test_a_language_model_is_verified_by_its_own_batches_and_loss():
    language = pytest.importorskip("actnn.workloads.language")
    pytest.importorskip("transformers")
    workload = language.find("gpt2:layers=2,width=64,heads=2,tokens=32,vocabulary=100,dropout=0")
    model, batch = workload.build(), workload.batch(8)
    found = actnn.verify(model, dict(batch.named), draws=12, level="L3")
    rows = {row["layer"]: row for row in found.rows}
    # functions that modules call with parameters of their own are predicted like layers
    for name in ("transformer.h.0.attn.c_attn", "transformer.h.1.mlp.c_proj"):
        assert 0.4 < rows[name]["measured"] / rows[name]["predicted"] < 2.5
    assert found.total["measured"] == pytest.approx(found.total["predicted"], rel=0.5)
    assert found.warning is None
    assert "transformer.h.0.attn/scaled_dot_product_attention" in places(found)
    assert "transformer.wpe" in found.unpredicted
    assert "Predictions leave out noise at" in str(found)


def test_a_vision_transformer_is_verified_site_by_site():
    pytest.importorskip("timm")
    from actnn.workloads import workload

    name = "timm:vit_tiny_patch16_224:depth=2,img_size=32,patch_size=8"
    images = workload.find(name, height=32, width=32, classes=10)
    batch = images.batch(8)
    found = actnn.verify(images.build(), (batch.given, batch.labels), F.cross_entropy, draws=10, level="L2")
    assert found.total["measured"] == pytest.approx(found.total["predicted"], rel=0.5)
    assert {"blocks.0.attn/scaled_dot_product_attention", "blocks.1.attn/scaled_dot_product_attention"} <= places(found)


def test_what_was_made_of_parameters_is_named_and_not_predicted():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(300, 20)), nn.ReLU(), nn.Linear(20, 5))
    found = verified(model, torch.randn(16, 300), draws=4)
    assert "0/linear" in found.unpredicted


def test_a_model_without_a_loss_of_its_own_is_told_so():
    with pytest.raises(actnn.UnsupportedError, match="Give a loss function"):
        actnn.verify(nn.Linear(3, 3), (torch.randn(4, 3), None))
