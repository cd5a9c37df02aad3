"""Tables: those of the pages are made from the committed records."""

from __future__ import annotations

from pathlib import Path

import pytest

from actnn.bench import tables
from actnn.errors import ConfigError

ROOT = Path(__file__).parents[2]


def test_a_table_names_all_machines_and_commits_of_its_records():
    machine = {"processor": "one", "cores": 2, "memory_gib": 8, "python": "3", "versions": {}, "date": "today"}
    records = [{"machine": machine | more} for more in ({"commit": "a"}, {"commit": "b"}, {"commit": "a"})]
    records.append({"machine": machine | {"processor": "two", "commit": "c"}})
    first, second = tables.made_on(records).split("\n\n")
    assert first.endswith("commit a, today and b, today.")
    assert second.startswith("two, ")


@pytest.mark.parametrize("page", ["README.md", "docs/results.md", "docs/beside.md", "docs/scaling.md"])
def test_the_tables_of_a_page_are_those_of_the_committed_records(page):
    arguments = ["--file", str(ROOT / page), "--results", str(ROOT / "results"), "--check"]
    assert tables.main(arguments) == 0, "run `make results`"


def test_a_table_without_records_is_an_error(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- table:step -->\n<!-- end -->\n")
    with pytest.raises(ConfigError, match="does not exist"):
        tables.main(["--file", str(page), "--results", str(tmp_path)])


def test_a_step_that_exact_training_took_no_part_in_has_no_ratios():
    record = {"contestant": "L3", "model": "resnet50", "batch": 8, "size": 224, "bits": 2}
    record |= {"step_default": {"seconds": 1.5}, "kept_bytes": 4 * 10**7, "peak_bytes": 2 * 10**5}
    _, (row,) = tables.step([record])
    assert row[2:] == ["1.50 s", "–", "40 MB", "–", "–", "0.2 MB, –"]


def test_an_unknown_table_is_an_error(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- table:nothing -->\n<!-- end -->\n")
    with pytest.raises(ConfigError, match="no table"):
        tables.main(["--file", str(page), "--results", str(tmp_path)])
