"""Bad input that torch's own layers refuse is refused by ours."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_layers import compressed


def test_one_value_a_channel_is_refused_as_by_the_plain_batch_norm():
    layer, x = nn.BatchNorm2d(3), torch.randn(1, 3, 1, 1)
    with pytest.raises(ValueError, match="Expected more than 1 value"):
        layer(x)
    with pytest.raises(ValueError, match=r"one value a channel|more than 1 value"):
        compressed(layer)(x)
