"""What compilers make of Triton's kernels, without a device: no spill, no fused operation, few instructions.

A share of all cases by default; with ACTNN_TRITON_SHARE=1 all of them.
"""

from __future__ import annotations

import json
import os
from itertools import product
from pathlib import Path
from zlib import crc32

import pytest
from code_cases import INTERPRETED

from actnn.kernels.triton.cases import all_cases
from actnn.kernels.triton.compiling import TARGETS, compiled
from actnn.kernels.triton.device import batch_norm, codes, masks, pooling, row_norm, sampling, smooth

SHARE = int(os.environ.get("ACTNN_TRITON_SHARE", "12"))
CASES = {case.name: case for case in all_cases()}
# words of many bits, or with two sides, along a curve want the most registers
HARDEST = {
    ("encode normalized 8", "sm100"),
    ("encode companded 8", "sm100"),
    ("encode two_sided_normalized 3", "sm75"),
    ("normalize channels last two_sided 3", "sm100"),
}
CHOSEN = [case for case in product(CASES, TARGETS) if case in HARDEST or crc32(" ".join(case).encode()) % SHARE == 0]
MOST_REGISTERS = 128
# a compiler may put one pair of registers by where it calls the slow path of a division, though it has others left:
# that comes and goes with anything in a kernel, and is no want of registers
PAIR, PLENTY = 8, 96
# instructions an element, float32
CEILINGS = {"encode affine 2": 40, "encode two_sided 3": 50, "decode affine 2": 26, "decode two_sided 3": 33}
pytestmark = pytest.mark.skipif(INTERPRETED, reason="an interpreter does not compile")
RECORDS = Path(__file__).parents[2] / "results" / "roofline.jsonl"


@pytest.mark.parametrize(("name", "target"), CHOSEN)
def test_a_kernel_compiles_without_a_spill_or_a_fused_operation(name, target):
    found = compiled(CASES[name], target)
    assert found.spilled == 0 or (found.spilled <= PAIR and found.registers <= PLENTY)
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


def test_every_kernel_has_a_case():
    kernels = {
        name
        for module in (batch_norm, codes, masks, pooling, row_norm, sampling, smooth)
        for name in vars(module)
        if name.endswith("_kernel")
    }
    assert kernels == {case.kernel.__name__ for case in CASES.values()}
