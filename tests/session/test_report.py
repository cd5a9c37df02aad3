"""The report's numbers and its table; what layers put into it is tested with the layers."""

from __future__ import annotations

import pytest

from actnn.session.report import Report, Row, readable


def row(layer: str, exact: int, kept: int, readers: tuple[str, ...] = ()) -> Row:
    return Row(layer=layer, kind="QConv2d", exact_bytes=exact, kept_bytes=kept, readers=readers)


TWO = Report([row("conv1", 4096, 512), row("conv2", 1000, 488)], ["conv3"], [("bn", "BatchNorm2d", "no wish for it")])
NOTHING = Report([], [], [])


def test_bytes_are_the_sums_of_the_rows():
    assert (TWO.exact_bytes, TWO.kept_bytes) == (5096, 1000)


def test_the_ratio_is_exact_over_kept():
    assert TWO.ratio == 5.096


def test_the_ratio_of_nothing_is_one():
    assert NOTHING.ratio == 1.0


def test_the_table_has_a_line_for_each_layer_and_the_total():
    lines = str(TWO).splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("conv", "total"))] == ["conv1", "conv2", "total"]


def test_the_table_gives_sizes_for_people():
    assert "4.0 KiB" in str(TWO)


def test_the_table_tells_what_was_left_exact_and_why():
    assert "bn (BatchNorm2d): no wish for it" in str(TWO)


def test_the_table_names_the_layers_that_kept_nothing():
    assert "conv3" in str(TWO)


def test_an_empty_report_tells_what_to_do():
    assert "run a training step" in str(NOTHING)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (3 * 2**30, "3.0 GiB")]
)
def test_sizes_read_well(count, text):
    assert readable(count) == text
