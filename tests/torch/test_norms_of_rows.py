"""Norms over rows whose gammas differ: layers behind them read what they wrote."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import actnn

WIDTH = 48


@pytest.mark.parametrize("level", ["L2", "L3"])
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("shape", [(20, 30), (600,)])
def test_a_map_behind_a_norm_reads_its_output_through_gamma_and_beta(norm, level, shape):
    own = norm(WIDTH)
    with torch.no_grad():
        for parameter in own.parameters():
            parameter.uniform_(0.5, 1.5)
    plain, x = nn.Sequential(nn.Linear(WIDTH, WIDTH), own, nn.Linear(WIDTH, 5)), torch.randn(*shape, WIDTH)
    plain(x).square().sum().backward()
    exact = {name: parameter.grad.clone() for name, parameter in plain.named_parameters()}
    ours = actnn.QModule(copy.deepcopy(plain), level=level, bits=8)
    for _ in range(2):
        ours.zero_grad()
        ours(x).square().sum().backward()
    assert ours.report().rows[-1].readers == ("2",)
    for name, parameter in ours.named_parameters():
        assert (parameter.grad - exact[name]).norm() < 0.02 * exact[name].norm(), name
