"""Graphs as users write them: one set of layers, wired in many ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from frameworks import Array, Framework, Model, numbers
from steps import close

Wire = Callable[[Model, Any], Any]
FEATURES = 6


def graph(framework: Framework, wire: Wire) -> Model:
    """Return a few layers that a function wires."""
    layer = framework.layer
    parts = {
        "first": layer("Conv2d", 3, FEATURES, 3, padding=1),
        "norm": layer("BatchNorm2d", FEATURES),
        "pool": layer("MaxPool2d", 2),
        "second": layer("Conv2d", FEATURES, FEATURES, 3, padding=1),
        "third": layer("Conv2d", FEATURES, 4, 1),
        "functional_relu": framework.relu,
        "concatenated": framework.concatenated,
    }
    kinds = {"relu": ("ReLU",), "clip": ("ReLU6",), "leaky": ("LeakyReLU", 0.1), "drop": ("Dropout", 0.3)}
    for name, kind in kinds.items():
        parts |= {name: layer(*kind), f"{name}_": layer(*kind, inplace=True)}
    network = framework.initialised(framework.wired(wire, **parts), 1)
    for number, parameter in enumerate((network.norm.weight, network.norm.bias)):
        framework.assign(parameter, numbers((FEATURES,), 30 + number))
    return network


def batch() -> Array:
    """Return inputs for these graphs."""
    return numbers((8, 3, 12, 10), 2)


def norm(net: Model, x):
    return net.norm(net.first(x))


WIRES: dict[str, Wire] = {
    "norm alone": norm,
    "norm, relu": lambda net, x: net.relu(norm(net, x)),
    "norm, relu in place": lambda net, x: net.relu_(norm(net, x)),
    "norm, relu, conv": lambda net, x: net.second(net.relu(norm(net, x))),
    "norm, relu in place, conv": lambda net, x: net.second(net.relu_(norm(net, x))),
    "norm, conv": lambda net, x: net.second(norm(net, x)),
    "norm, relu twice": lambda net, x: net.second(net.relu(net.relu(norm(net, x)))),
    "norm, relu6": lambda net, x: net.second(net.clip(norm(net, x))),
    "norm, relu6 in place": lambda net, x: net.second(net.clip_(norm(net, x))),
    "norm, leaky relu": lambda net, x: net.second(net.leaky(norm(net, x))),
    "norm, leaky relu in place": lambda net, x: net.second(net.leaky_(norm(net, x))),
    "norm, functional relu": lambda net, x: net.second(net.functional_relu(norm(net, x))),
    "norm, dropout in place": lambda net, x: net.second(net.drop_(norm(net, x))),
    "norm, relu, pool, conv": lambda net, x: net.second(net.pool(net.relu(norm(net, x)))),
    "norm, relu in place, pool": lambda net, x: net.pool(net.relu_(norm(net, x))),
    "relu, norm": lambda net, x: net.norm(net.relu(net.first(x))),
    "relu in place, norm": lambda net, x: net.norm(net.relu_(net.first(x))),
    "relu, two convs": lambda net, x: (lambda h: net.third(h) + net.third(net.second(h)))(net.relu(net.first(x))),
    "norm, norm": lambda net, x: net.norm(norm(net, x)),
    "norm, relu, norm, relu": lambda net, x: net.relu(net.norm(net.relu(norm(net, x)))),
    "norm, relu in place, norm, relu in place": lambda net, x: net.relu_(net.norm(net.relu_(norm(net, x)))),
}


def conv_reads_before_relu_overwrites(net: Model, x):
    h = norm(net, x)
    before = net.third(h)
    return before + net.third(net.relu(h))


def addition_before_relu(net: Model, x):
    h = norm(net, x)
    h += net.first(x)
    return net.second(net.relu_(h))


def addition_after_relu(net: Model, x):
    h = net.relu_(norm(net, x))
    h = h + net.first(x)
    return net.second(h) + net.second(net.relu(h))


def part_of_a_norm(net: Model, x):
    h = norm(net, x)
    return net.second(net.relu(h[:, :, 1:, :-1]))


def halves_of_a_norm(net: Model, x):
    h = norm(net, x)
    return net.second(net.concatenated([net.relu(h[:4]), h[4:]], 0))


def relu_and_norm_both_read(net: Model, x):
    h = norm(net, x)
    return net.second(net.relu(h)) + net.second(h) + h


def detached_branch(net: Model, x):
    h = net.relu(norm(net, x))
    return net.second(h) + net.second(h.detach())


def one_tensor_in_two_norms(net: Model, x):
    h = net.first(x)
    return net.relu(net.norm(h)) + net.norm(h)


def unused_branch(net: Model, x):
    h = net.relu(norm(net, x))
    net.third(h)
    return net.second(h)


WIRES |= {
    wire.__name__.replace("_", " "): wire
    for wire in (
        conv_reads_before_relu_overwrites,
        addition_before_relu,
        addition_after_relu,
        part_of_a_norm,
        halves_of_a_norm,
        relu_and_norm_both_read,
        detached_branch,
        one_tensor_in_two_norms,
        unused_branch,
    )
}


def check_steps(
    framework: Framework,
    network: Model,
    x: Any,
    steps: int = 2,
    prepare: Callable[[Model, int], object] = lambda model, number: None,
) -> None:
    """Raise unless output, gradients and statistics of several steps are near those of the plain network."""
    ours = framework.compressed(network)
    for number in range(steps):
        for model in (ours, network):
            prepare(model, number)
        found, expected = (framework.step(model, x + 0.1 * number) for model in (ours, network))
        close(found.output, expected.output, 1e-4, f"output of step {number}")
        assert found.gradients.keys() == expected.gradients.keys()
        for name, gradient in expected.gradients.items():
            # the gradient of a bias before BatchNorm is nothing but rounding
            if np.linalg.norm(gradient) > 1e-3:
                close(found.gradients[name], gradient, 0.03, f"{name} in step {number}")
        for name, buffer in expected.buffers.items():
            close(found.buffers[name], buffer, 1e-4, f"{name} in step {number}")


def check_with_frozen_first_layers(framework: Framework, network: Model) -> None:
    """Raise unless the rest has the plain gradients where neither the first layer nor the batch wants any."""
    framework.freeze(network.first)
    ours = framework.compressed(network)
    for model in (ours, network, ours, network):
        framework.clear(model)
        framework.seed(3)
        model(framework.tensor(batch())).square().sum().backward()
    found, expected = framework.gradients(ours), framework.gradients(network)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        close(found[name], gradient, 0.02, name)
