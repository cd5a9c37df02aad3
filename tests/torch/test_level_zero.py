"""At level L0, what torch alone offers works too."""

from __future__ import annotations

import torch
from torch_layers import compressed, images, small_network


def test_level_zero_gives_a_gradient_of_a_gradient():
    ours, x = compressed(small_network(), level="L0"), images().requires_grad_()
    (gradient,) = torch.autograd.grad(ours(x).square().sum(), x, create_graph=True)
    gradient.square().sum().backward()
