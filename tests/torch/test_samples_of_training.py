"""Positions of samples as torch's own loader tells them."""

from __future__ import annotations

import torch
from adaptive_networks import plain_network, train
from torch_layers import compressed

import actnn


def test_positions_of_the_data_loader_are_accepted():
    dataset = torch.utils.data.TensorDataset(torch.randn(8, 3, 16, 16))
    model = compressed(plain_network(), 2, level="L3")
    for indices, (x,) in actnn.DataLoader(dataset, batch_size=4, shuffle=True):
        model.set_samples(indices)
        train(model, x)
