"""The guide's table of what works together is that of the tests: every row, at the versions that are pinned."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import works_with
from parallel_training import WAYS
from works_with import PASSED, PLACE, ROWS

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide.md"


def rows() -> dict[str, list[str]]:
    """Return the rows of the committed table by name."""
    found = PLACE.search(GUIDE.read_text())
    assert found is not None
    lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found[0].splitlines()[3:-1]]
    return {line[0].strip(): line for line in lines}


def test_the_guide_has_every_row_as_the_tests_found_it():
    assert {name: (line[2], line[3]) for name, line in rows().items()} == {
        name: (row.verdict, row.note) for name, row in ROWS.items()
    }


def test_the_versions_are_those_that_are_pinned():
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert {name: line[1] for name, line in rows().items()} == {
        name: f"{row.package} {pins[row.package]}" for name, row in ROWS.items()
    }


def test_every_row_is_found_out_by_a_test():
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    # those of trainers and of many processes are marked by their tables
    tables = set(WAYS) | {"Lightning", "Hugging Face Trainer", "Accelerate", "timm", "own loop"}
    unmarked = {name for name in ROWS if f'works_with("{name}")' not in sources} - tables
    assert unmarked == set()


def test_a_row_that_was_not_tried_leaves_the_guide_alone(tmp_path):
    with pytest.raises(SystemExit, match="were not tried: FSDP1"):
        works_with.write(tmp_path / "guide.md", {name: PASSED for name in ROWS if name != "FSDP1"})
