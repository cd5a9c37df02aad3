"""Graphs of every wiring have the plain gradients: whoever shares a code, is frozen, or changes from step to step."""

from __future__ import annotations

import pytest
from frameworks import Framework, Model
from wirings import WIRES, batch, check_steps, check_with_frozen_first_layers, graph

STEPS = 4
wires = pytest.mark.parametrize("wire", WIRES)


@wires
def test_a_graph_has_the_plain_gradients(framework: Framework, wire: str):
    check_steps(framework, graph(framework, WIRES[wire]), batch(), STEPS)


@wires
def test_a_graph_with_a_frozen_norm_has_the_plain_gradients(framework: Framework, wire: str):
    network = graph(framework, WIRES[wire])
    framework.freeze(network.norm)
    check_steps(framework, network, batch())


@wires
def test_a_graph_with_a_norm_in_evaluation_has_the_plain_gradients(framework: Framework, wire: str):
    network = graph(framework, WIRES[wire])
    framework.evaluating(network.norm)
    check_steps(framework, network, batch())


@wires
def test_a_graph_whose_first_layers_are_frozen_has_the_plain_gradients(framework: Framework, wire: str):
    check_with_frozen_first_layers(framework, graph(framework, WIRES[wire]))


@wires
def test_a_frozen_graph_passes_the_plain_gradient(framework: Framework, wire: str):
    check_steps(framework, framework.freeze(graph(framework, WIRES[wire])), batch())


TURNS = [
    ["norm, relu", "norm, conv"],
    ["norm, relu in place, conv", "norm, conv"],
    ["norm, relu, conv", "norm, relu in place, conv", "norm alone"],
    ["norm, leaky relu", "norm, relu", "norm, dropout in place"],
]


@pytest.mark.parametrize("turns", TURNS, ids=" | ".join)
def test_a_graph_that_changes_from_step_to_step_has_the_plain_gradients(framework: Framework, turns: list[str]):
    def turn(model: Model, number: int) -> None:
        model.turn = number

    network = graph(framework, lambda net, x: WIRES[turns[net.turn % len(turns)]](net, x))
    check_steps(framework, network, batch(), 6, turn)
