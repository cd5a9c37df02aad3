"""What compilers make of Triton's kernels, without a device: no spill, no fused operation, few instructions.

Few cases in which everything occurs by default; with ACTNN_TRITON_TESTS=all all of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Hashable
from itertools import product
from pathlib import Path

import pytest
from code_cases import INTERPRETED
from covering import covering, traits

from actnn.bench import roofline
from actnn.errors import FormatError
from actnn.format import FAMILIES, GROUP, Layout
from actnn.kernels.triton import compiling
from actnn.kernels.triton.cases import all_cases
from actnn.kernels.triton.compiling import TARGETS, compiled
from actnn.kernels.triton.device import batch_norm, codes, masks, pooling, row_norm, sampling, smooth
from actnn.kernels.triton.launching import MOST_ELEMENTS, form_of, grid

FEW = os.environ.get("ACTNN_TRITON_TESTS", "few") == "few"
CASES = {case.name: case for case in all_cases()}
# words of many bits, or with two sides, along a curve want the most registers
HARDEST = {
    ("encode normalized 8", "sm100"),
    ("encode companded 8", "sm100"),
    ("encode two_sided_normalized 3", "sm75"),
    ("normalize two_sided 3", "sm100"),
    ("normalize two_sided_normalized 3", "sm75"),
}
MOST_REGISTERS = 128
# instructions an element, float32
CEILINGS = {"encode affine 2": 40, "encode two_sided 3": 50, "decode affine 2": 26, "decode two_sided 3": 33}
pytestmark = pytest.mark.skipif(INTERPRETED, reason="an interpreter does not compile")
RECORDS = Path(__file__).parents[2] / "results" / "roofline.jsonl"


def occurring(name: str, target: str) -> set[Hashable]:
    """Return what occurs in a case: its kernel, each of its constants, its types, and where it is compiled for."""
    case = CASES[name]
    constants = {f"{case.kernel.__name__} {constant}": value for constant, value in case.constants.items()}
    return traits(constants | {"kernel": case.kernel.__name__, "dtype": case.dtype, "target": target})


def chosen() -> list[tuple[str, str]]:
    """Return cases and targets to compile for."""
    every = {" @ ".join(case): case for case in product(CASES, TARGETS)}
    few = covering({name: occurring(*case) for name, case in every.items()})
    return [case for name, case in every.items() if not FEW or case in HARDEST or name in few]


@pytest.mark.parametrize(("name", "target"), chosen())
def test_a_kernel_compiles_without_a_spill_or_a_fused_operation(name, target):
    found = compiled(CASES[name], target)
    assert found.spilled == 0
    assert found.registers <= MOST_REGISTERS
    assert found.fused == 0
    assert found.approximate == 0


@pytest.mark.parametrize("name", CEILINGS)
@pytest.mark.parametrize("target", ["sm80", "sm90"])
def test_codes_are_made_and_read_with_few_instructions(name, target):
    assert compiled(CASES[name], target).an_element <= CEILINGS[name]


@pytest.mark.parametrize("name", CEILINGS)
def test_what_is_recorded_is_what_compilers_make(name):
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    newest = {(each["kernel"], each["target"]): each for each in records}
    found = compiled(CASES[name], "sm80")
    assert newest[name, "sm80"]["instructions_an_element"] == pytest.approx(found.an_element, abs=0.1)


def test_every_operation_that_would_be_fused_is_seen(monkeypatch):
    monkeypatch.setitem(compiling.OPTIONS, "enable_fp_fusion", True)
    for target in ("sm80", "gfx942"):
        # it has a division and a root, too
        assert compiled(CASES["prepare"], target).fused > 0


def test_the_page_of_estimates_is_that_of_the_records():
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    assert list(dict.fromkeys(each["kernel"] for each in records)) == list(roofline.SHOWN)
    assert (RECORDS.parents[1] / "docs" / "roofline.md").read_text() == roofline.page(roofline.estimates(records))


def test_a_sample_of_more_elements_than_kernels_count_is_refused():
    form = form_of(Layout(1, 256, FAMILIES["affine"], 2))
    assert grid(form, MOST_ELEMENTS // GROUP, 3)[0] > 0
    with pytest.raises(FormatError, match="at most 2146435072"):
        grid(form, MOST_ELEMENTS // GROUP + 1, 3)


def test_every_kernel_has_a_case():
    kernels = {
        name
        for module in (batch_norm, codes, masks, pooling, row_norm, sampling, smooth)
        for name in vars(module)
        if name.endswith("_kernel")
    }
    assert kernels == {case.kernel.__name__ for case in CASES.values()}
