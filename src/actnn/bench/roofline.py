"""``actnn bench roofline``: compile the kernels of accelerators and estimate their speed; nothing is measured.

Instructions and bytes of an element, as the compilers make them, are held against the rates of data sheets. The larger
of the two times is a bound from below on what a kernel takes: latencies, caches and launches are left out.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from actnn.bench.arguments import parser_of
from actnn.console.columns import aligned
from actnn.errors import ConfigError
from actnn.measuring import records

EXAMPLE = "actnn bench roofline --out results/roofline.jsonl --page docs/roofline.md"
# what a page shows: every family once, and the passes of norms
SHOWN = (
    *("encode affine 2", "decode affine 2", "encode two_sided 3", "decode two_sided 3"),
    *("encode companded 2", "decode companded 2", "encode normalized 2", "decode normalized 2"),
    *("encode affine 2 bf16", "decode affine 2 bf16", "statistics", "normalize two_sided_normalized 3"),
    *("gradient sums two_sided 3", "gradient two_sided 3", "gradient of few two_sided_normalized 3"),
    *("row statistics affine 2", "row normalize normalized 2"),
    *("row products normalized 2", "row gradient normalized 2", "encode mask", "apply mask two_sided 3"),
)


@dataclass(frozen=True)
class Device:
    """What a data sheet says: cores, their clock in GHz, instructions of a lane each issues, memory in TB/s."""

    target: str
    cores: int
    clock: float
    lanes: int
    memory: float

    def picoseconds(self, instructions: float, nbytes: float) -> tuple[float, float]:
        """Return the time of an element's instructions and of its bytes."""
        return 1e3 * instructions / (self.cores * self.clock * self.lanes), nbytes / self.memory


DEVICES = {
    "T4": Device("sm75", 40, 1.59, 128, 0.320),
    "A100": Device("sm80", 108, 1.41, 128, 1.555),
    "RTX 4090": Device("sm80", 128, 2.52, 128, 1.008),
    "H100": Device("sm90", 132, 1.755, 128, 3.35),
    "MI300X": Device("gfx942", 304, 2.1, 64, 5.3),
}


def main(argv: Sequence[str]) -> int:
    """Compile, print what was found, and write the records and the page that were asked for."""
    arguments = parse(argv)
    if find_spec("triton") is None:
        raise ConfigError("kernels of accelerators are compiled by Triton: pip install 'actnn[triton]'.")
    found = measured(SHOWN)
    if arguments.out is not None:
        for record in found:
            records.append(record, arguments.out)
    rows = estimates(found)
    print("\n".join(aligned(rows)))
    if arguments.page is not None:
        arguments.page.write_text(page(rows), encoding="utf-8")
    return 0


def parse(argv: Sequence[str]) -> Namespace:
    """Read the arguments."""
    parser = parser_of("roofline", __doc__, EXAMPLE)
    parser.add_argument("--out", type=Path, help="append a record for each kernel and device to this file")
    parser.add_argument("--page", type=Path, help="write the table as a page to this file")
    return parser.parse_args(argv)


def measured(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return what compilers make of kernels, for every kind of device that the table names."""
    from actnn.kernels.triton.cases import all_cases
    from actnn.kernels.triton.compiling import compiled

    cases = {case.name: case for case in all_cases()}
    found = []
    for target in dict.fromkeys(device.target for device in DEVICES.values()):
        for name in names:
            result = compiled(cases[name], target)
            found.append(
                {
                    "benchmark": "roofline",
                    "kernel": name,
                    "target": target,
                    "triton": version("triton"),
                    "instructions_an_element": round(result.an_element, 2),
                    "bytes_an_element": round(cases[name].nbytes, 4),
                    "registers": result.registers,
                    "spilled": result.spilled,
                }
            )
    return found


def estimates(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return a row for each kernel: bytes, then instructions and the larger time in ps on every device."""
    by_kernel = {(each["kernel"], each["target"]): each for each in found}
    rows = [["kernel", "bytes", *DEVICES]]
    for name in dict.fromkeys(each["kernel"] for each in found):
        cells = []
        for device in DEVICES.values():
            record = by_kernel[name, device.target]
            computing, moving = device.picoseconds(record["instructions_an_element"], record["bytes_an_element"])
            bound = "memory" if moving >= computing else "instructions"
            cells.append(f"{record['instructions_an_element']:.0f}: {max(computing, moving):.2f} ({bound})")
        rows.append([name, f"{by_kernel[name, device.target]['bytes_an_element']:.2f}", *cells])
    return rows


def page(rows: Sequence[Sequence[str]]) -> str:
    """Return the page of estimates."""
    header, *body = rows
    sheets = [
        f"| {name} | {device.cores} | {device.clock:g} | {device.lanes} | {device.memory:g} | {device.target} |"
        for name, device in DEVICES.items()
    ]
    table = [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *body)]
    return "\n".join(
        [
            "# What the kernels of accelerators would take",
            "",
            "**Computed, not measured.** No accelerator was ever timed. `actnn bench roofline` compiles kernels,",
            "counts their instructions and bytes for one element, and divides by the rates of data sheets. A cell has",
            "the instructions of an element, the larger of both times in picoseconds, and which one that is. It is a",
            "bound from below: latencies, caches and launches are left out, and one turn of each loop is counted.",
            "",
            *table,
            "",
            "The rates:",
            "",
            "| device | cores | GHz | lanes a clock and core | TB/s | compiled for |",
            "|---|---|---|---|---|---|",
            *sheets,
            "",
        ]
    )
