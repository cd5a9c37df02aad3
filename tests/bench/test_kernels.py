"""``actnn bench kernels``: speeds against memcpy and memset."""

from __future__ import annotations

import json

import pytest

from actnn.bench import kernels
from actnn.errors import ConfigError
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
