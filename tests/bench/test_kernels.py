"""``actnn bench kernels``: speeds against memcpy and memset."""

from __future__ import annotations

import json

import pytest

from actnn import cli
from actnn.bench import kernels
from actnn.errors import ConfigError
from actnn.kernels import Native
from actnn.measuring import timing
from actnn.measuring.memory import machine_total


@pytest.mark.parametrize("megabytes", ["999999999", str(machine_total() // 2**20)])
def test_more_than_the_machine_can_hold_is_said_before_the_kernels_are_measured(megabytes):
    with pytest.raises(ConfigError, match=f"--megabytes {megabytes} is too much .* give at most "):
        kernels.main(["--megabytes", megabytes])


def test_the_kernels_are_measured_against_memcpy_and_memset(capsys):
    assert kernels.main(["--megabytes", "1", "--rounds", "2", "--threads", "2"]) == 0
    record = json.loads(capsys.readouterr().out)
    for comparison in ("encode_to_memcpy", "decode_to_memset", "decode_to_memset_whole"):
        assert record[comparison] > 0
    assert record["machine"]["cores"] >= 1


@pytest.mark.parametrize(
    ("method", "line"),
    [
        ("encode", "the native backend encodes otherwise than the reference defines, 1 of "),
        ("decode", "the native backend decodes otherwise than the reference defines, 1 of 262144 values differ"),
    ],
)
def test_kernels_that_disagree_with_the_reference_are_not_timed(method, line, monkeypatch, capsys, tmp_path):
    right = getattr(Native, method)

    def wrong(self, *given):
        made = right(self, *given)
        made.flat[-1] += 1
        return made

    def timed(*given, **options):
        pytest.fail("kernels that do something else were timed")

    monkeypatch.setattr(Native, method, wrong)
    monkeypatch.setattr(timing, "interleaved", timed)
    out = tmp_path / "kernels.jsonl"
    assert cli.main(["bench", "kernels", "--megabytes", "1", "--threads", "2", "--out", str(out)]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(f"actnn: {line}")
    assert (printed.err.count("\n"), printed.out, out.read_text()) == (1, "", "")


def test_only_some_of_many_values_are_compared_with_the_reference(monkeypatch):
    compared = []
    monkeypatch.setattr(kernels, "MOST_CHECKED", 512)
    monkeypatch.setattr(kernels, "check_agreement", lambda native, arrays, values, layout, key: compared.append(values))
    kernels.main(["--megabytes", "1", "--rounds", "1"])
    assert [values.shape for values in compared] == [(1, 512)]
