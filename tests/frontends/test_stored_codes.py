"""Codes are what they always were, even ones and those along curves: bytes that are known by their hashes."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from frameworks import Framework, Model, input_of
from layer_cases import Case
from parity_cases import SHARED, chain, codes_and_gradients, unit, whole_images

STORED: dict[str, list[str]] = json.loads((Path(__file__).parents[1] / "fixtures" / "codes.json").read_text())
NETWORKS = {network.__name__: network for network in (chain, unit)}
WIDTHS_OF_LAYERS, WIDTHS_OF_NETWORKS, CURVED_WIDTHS = (2, 8), (1, 2, 4, 8), (2, 4)


def name_of(case: Case, bits: int) -> str:
    """Return the name under which the codes of a layer are stored."""
    return f"{case}, {case.arguments}, {bits} bits"


def check_stored(framework: Framework, model: Model, x: np.ndarray, name: str) -> None:
    """Raise unless a model makes the codes that are stored under a name."""
    codes, _ = codes_and_gradients(framework, model, x)
    assert [sha256(code).hexdigest()[:16] for code in codes] == STORED[name]


@pytest.mark.parametrize("bits", WIDTHS_OF_LAYERS)
@pytest.mark.parametrize("case", SHARED, ids=str)
def test_a_layer_makes_the_stored_codes(framework, case: Case, bits: int):
    model = framework.compressed(framework.plain_layer(case), bits, seed=11, companding=False)
    check_stored(framework, model, input_of(case), name_of(case, bits))


@pytest.mark.parametrize("bits", WIDTHS_OF_NETWORKS)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_makes_the_stored_codes(framework, network: str, bits: int):
    model = framework.compressed(NETWORKS[network](framework), bits, seed=5, companding=False)
    check_stored(framework, model, whole_images(), f"{network}, {bits} bits")


@pytest.mark.parametrize("bits", CURVED_WIDTHS)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_makes_the_stored_codes_along_curves(framework, network: str, bits: int):
    model = framework.compressed(NETWORKS[network](framework), bits, seed=5)
    check_stored(framework, model, whole_images(), f"{network}, {bits} bits, curved")


def test_all_that_is_stored_is_checked():
    checked = {name_of(case, bits) for case in SHARED for bits in WIDTHS_OF_LAYERS}
    checked |= {f"{network}, {bits} bits" for network in NETWORKS for bits in WIDTHS_OF_NETWORKS}
    checked |= {f"{network}, {bits} bits, curved" for network in NETWORKS for bits in CURVED_WIDTHS}
    assert checked == STORED.keys()
