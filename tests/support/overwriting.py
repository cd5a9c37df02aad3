"""Steps with and without overwriting, of which every result must be the same."""

from __future__ import annotations

import copy

import torch

import actnn


def step(model, x):
    """Return the output and all gradients of a step."""
    out = model(x)
    out.square().mean().backward()
    return [out.detach().clone(), *(own.grad.clone() for own in model.parameters())]


def compressed(network, overwrite):
    """Return a converted copy of a network."""
    with_setting(overwrite)
    model = actnn.QModule(copy.deepcopy(network), level="L3", bits=2, seed=3)
    with_setting(True)
    return model


def with_setting(overwrite):
    """Set whether models that are converted next overwrite."""
    actnn.config.overwrite = overwrite


def both(network, x, steps=3, run=step):
    """Return the results of some steps, without overwriting and with it, which must be the same."""
    found = []
    for overwrite in (False, True):
        torch.manual_seed(7)
        model = compressed(network, overwrite)
        for _ in range(steps):
            model.zero_grad()
            results = run(model, x)
        found.append(results)
    for plain, ours in zip(*found, strict=True):
        assert torch.equal(plain, ours), "a result differs"
    return found[1]


def images(samples=4, size=12):
    """Return a batch."""
    return torch.randn(samples, 3, size, size, generator=torch.Generator().manual_seed(5))
