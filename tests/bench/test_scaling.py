"""``actnn bench scaling``: steps of one process and of two that share its batch."""

from __future__ import annotations

import json

import pytest

from actnn.bench import scaling, tables
from actnn.bench.expectations import IMAGES, steps_of_an_epoch, traffic

TINY = ["--model", "small_resnet", "--batch", "4", "--size", "32", "--rounds", "1", "--steps", "1", "--threads", "2"]


def test_two_processes_keep_half_each_and_send_what_their_gradients_weigh(capsys, monkeypatch):
    torch = pytest.importorskip("torch")
    if not torch.distributed.is_available():
        pytest.skip("this torch knows no processes")
    assert scaling.main([*TINY, "--contestants", "L3", "--processes", "2"]) == 0
    two = json.loads(capsys.readouterr().out)
    # a process that is alone need be no other than this one
    monkeypatch.setattr(scaling.processes, "call", lambda function, settings, **_: scaling.steps(settings, print))
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert scaling.main([*TINY, "--contestants", "L3", "--processes", "1"]) == 0
    one = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (one["processes"], two["processes"]) == (1, 2)
    assert (one["batch"], two["batch"]) == (4, 4)
    assert two["kept_bytes"] == pytest.approx(one["kept_bytes"] / 2, rel=0.1)
    assert one["reduced_bytes"] == 0
    assert two["reduced_bytes"] > 0
    # a ring of two sends the gradients once; buffers and what both agree on come on top
    assert two["reduced_bytes"] <= two["sent_bytes"] < 1.2 * two["reduced_bytes"]
    heading, rows = tables.scaling([one, two])
    assert [row[2] for row in rows] == ["1", "2"]
    assert len(heading) == len(rows[0])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--batch", "5"], "--batch 5 cannot be shared out evenly to 2 processes"),
        (["--framework", "paddle"], "the processes share out models of torch"),
        (["--contestants", "exact,L5"], "L5 changes how the whole process works"),
    ],
)
def test_bad_arguments_end_with_exit_code_two(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as ended:
        scaling.main(arguments)
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


def test_what_is_computed_follows_from_the_ring_and_the_images():
    assert traffic(1000, 2) == 4000
    assert traffic(1000, 8) == 7000
    assert steps_of_an_epoch(100, 8) == -(-IMAGES // 800)
