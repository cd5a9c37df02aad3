"""Amounts of memory: read as people write them, refused where they are none."""

from __future__ import annotations

import pytest

from actnn.amounts import parse_memory, readable
from actnn.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("400MB", 400_000_000),
        ("400 MB", 400_000_000),
        ("1.5GiB", 3 * 2**29),
        ("1.5 gb", 1_500_000_000),
        ("64KiB", 65536),
        ("123", 123),
        ("123B", 123),
        ("2 TB", 2 * 10**12),
        (4096, 4096),
        (4e8, 400_000_000),
    ],
)
def test_an_amount_is_read_as_people_write_it(given, expected):
    assert parse_memory(given) == expected


@pytest.mark.parametrize(
    "given", ["", "MB", "-1MB", "0", 0, -5, "4 apples", "1e3MB", None, True, [4], float("inf"), float("nan")], ids=repr
)
def test_what_is_no_amount_is_refused(given):
    with pytest.raises(ConfigError, match="expected a number of bytes or an amount"):
        parse_memory(given)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 2**29, "1.5 GiB"), (2**51, "2048.0 TiB")]
)
def test_bytes_are_written_in_the_largest_unit_that_fits(count, text):
    assert readable(count) == text
