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
