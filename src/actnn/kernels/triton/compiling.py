"""Compiling kernels without a device: what compilers make of every kernel, for tests and for estimates of speed."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from actnn.kernels.triton.device.kernel import NUMBERS
from actnn.kernels.triton.launching import OPTIONS

TARGETS = {
    "sm75": GPUTarget("cuda", 75, 32),
    "sm80": GPUTarget("cuda", 80, 32),
    "sm90": GPUTarget("cuda", 90, 32),
    "sm100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
ALIGNMENT = 16
# what arrays hold that are not values, and what numbers are not integers
POINTERS = {
    **dict.fromkeys(("code", "widths", "offsets", "planes_out", "planes_in", "ranges"), "*u8"),
    **dict.fromkeys(("saved", "prepared", "coefficients", "partial", "statistics", "mean", "inverse"), "*fp32"),
    **dict.fromkeys(("threshold", "slope", "offset", "of_grad", "of_product", "of_value", "of_noise"), "*fp32"),
    **dict.fromkeys(("mean_out", "variance_out", "low_out", "high_out", "inverse_out", "product_out"), "*fp32"),
    **dict.fromkeys(("constant", "product", "grads", "sums", "gamma", "beta", "weight", "running_mean"), "*fp32"),
    **dict.fromkeys(("running_variance", "share"), "*fp32"),
    "relief": "*fp64",
    "norms": "*fp64",
}
FLOATS = frozenset({"epsilon", "kept", "momentum", "ratio", "total", "factor", "above", "below", "upper"})
# of a fused multiply-add, and of a division that is not rounded correctly
FUSED = re.compile(r"\bfma\.rn\.f(?:32|64)\b|\bv_(?:pk_)?fma(?:c|mk|ak)?_f(?:32|64)")
APPROXIMATE = re.compile(r"\bdiv\.(?:full|approx)\b|\bsqrt\.approx\b|\.ftz\b|\b(?:arcp|afn|fast)\b|!fpmath")
# AMD's compiler makes a division and a root that are rounded correctly of an approximate one and fused operations
DIVISION, ROOT = re.compile(r"\bv_div_fixup_f32"), re.compile(r"\bv_sqrt_f32")
FUSED_IN_DIVISION, FUSED_IN_ROOT = 5, 2
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(@!?U?P\d+\s+)?([A-Z][A-Z0-9_.]*)")


@dataclass(frozen=True)
class Case:
    """A kernel, its constants, and how many elements one program works on; ``absent`` arguments are None.

    ``nbytes`` is what an element is read and written with, 0 for kernels that do not pass over an activation.
    """

    name: str
    kernel: Any
    constants: Mapping[str, Any]
    elements: int
    nbytes: float = 0.0
    dtype: str = "fp32"
    absent: frozenset[str] = frozenset()
    types: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Compiled:
    """What a compiler made of a kernel; ``fused`` and ``approximate`` operations beside exact divisions and roots."""

    registers: int
    spilled: int
    instructions: int
    an_element: float
    fused: int
    approximate: int
    shared: int


def compiled(case: Case, target: str) -> Compiled:
    """Compile a kernel for a device that need not be there."""
    found = build(case, TARGETS[target])
    threads = OPTIONS["num_warps"] * TARGETS[target].warp_size
    read = of_cuda if TARGETS[target].backend == "cuda" else of_hip
    registers, spilled, instructions, text = read(found)
    exact = FUSED_IN_DIVISION * len(DIVISION.findall(text)) + FUSED_IN_ROOT * len(ROOT.findall(text))
    return Compiled(
        registers=registers,
        spilled=spilled,
        instructions=instructions,
        an_element=instructions / max(1.0, case.elements / threads),
        fused=len(FUSED.findall(text)) - exact,
        approximate=len(APPROXIMATE.findall(text)),
        shared=int(found.metadata.shared),
    )


def build(case: Case, target: GPUTarget) -> Any:
    """Return what Triton compiles a kernel to."""
    names = case.kernel.arg_names
    signature, constants = {}, {}
    for place, name in enumerate(names):
        if name in case.constants or name in case.absent:
            signature[name] = "constexpr"
            constants[(place,)] = case.constants.get(name)
        else:
            signature[name] = argument_type(name, case)
    aligned = {
        (place,): [["tt.divisibility", ALIGNMENT]]
        for place, name in enumerate(names)
        if signature[name].startswith("*")
    }
    return triton.compile(ASTSource(case.kernel, signature, constants, aligned), target=target, options=dict(OPTIONS))


def argument_type(name: str, case: Case) -> str:
    """Return the type of an argument by its name."""
    if name in case.types:
        return case.types[name]
    if name in FLOATS:
        return "fp32"
    return "i32" if name in NUMBERS else POINTERS.get(name, f"*{case.dtype}")


def of_cuda(found: Any) -> tuple[int, int, int, str]:
    """Return registers, spilled bytes and instructions of an NVIDIA binary, and its PTX."""
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(found.asm["cubin"])
        file.flush()
        code = output(tools / "nvdisasm", "-c", file.name)
        usage = output(tools / "cuobjdump", "-res-usage", file.name)
    numbers = {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}
    return numbers["REG"], numbers["STACK"] + numbers["LOCAL"], sum(1 for _ in main_part(code)), found.asm["ptx"]


def main_part(code: str) -> Iterator[str]:
    """Yield the instructions up to the end of the kernel; the slow path of divisions lies behind it."""
    for line in code.splitlines():
        match = INSTRUCTION.match(line)
        if match is None or match.group(2) == "NOP":
            continue
        yield match.group(2)
        if match.group(2) == "EXIT" and not match.group(1):
            return


def of_hip(found: Any) -> tuple[int, int, int, str]:
    """Return registers, spilled registers and instructions of an AMD program, its text and what that was made of."""
    text = found.asm["amdgcn"]
    registers = int(re.findall(r"\.vgpr_count:\s+(\d+)", text)[0])
    spilled = int(re.findall(r"\.vgpr_spill_count:\s+(\d+)", text)[0])
    lines = [line for line in text.splitlines() if re.match(r"\s+(v_|s_|ds_|global_|buffer_)", line)]
    return registers, spilled, len(lines), text + found.asm["llir"]


def output(tool: Path, *arguments: str) -> str:
    """Return what a tool prints."""
    return subprocess.run([str(tool), *arguments], capture_output=True, text=True, check=True).stdout
