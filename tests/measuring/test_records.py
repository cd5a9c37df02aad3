"""Records are lines of a file: appended whole, read whole, and every mistake in the file is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from actnn.errors import ConfigError
from actnn.measuring.records import append, recorded


def test_records_are_appended(tmp_path):
    out = tmp_path / "folder" / "records.jsonl"
    for number in range(2):
        append({"number": number}, out)
    assert [record["number"] for record in recorded(out)] == [0, 1]


def test_a_full_disk_is_said_in_one_line():
    with pytest.raises(ConfigError, match="No space left"):
        append({"number": 1}, Path("/dev/full"))


@pytest.mark.parametrize("line", [b"5", b"[1]", b"null", b"{", b"", b'{"name": "\xff"}', b"\0\0\0\0"])
def test_a_line_that_is_no_record_is_an_error_that_names_it(line, tmp_path):
    out = tmp_path / "records.jsonl"
    out.write_bytes(b'{"number": 1}\n' + line + b"\n")
    with pytest.raises(ConfigError, match=r"line 2 of .*records\.jsonl is not a record \(.*\): remove that line"):
        recorded(out)


def test_a_record_that_was_torn_is_left_out_and_written_over(tmp_path):
    out = tmp_path / "records.jsonl"
    out.write_bytes(b'{"number": 1}\n{"numb')
    assert recorded(out) == [{"number": 1}]
    append({"number": 2}, out)
    assert out.read_bytes() == b'{"number": 1}\n{"number": 2}\n'


def test_records_are_not_read_from_a_device():
    with pytest.raises(ConfigError, match="/dev/zero is not a file"):
        recorded(Path("/dev/zero"))


def test_records_that_cannot_be_read_are_said_in_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be read: .*Is a directory"):
        recorded(tmp_path)


def test_there_are_no_records_where_there_is_no_file(tmp_path):
    (tmp_path / "file").write_text("")
    assert recorded(tmp_path / "none.jsonl") == recorded(tmp_path / "file" / "none.jsonl") == []
