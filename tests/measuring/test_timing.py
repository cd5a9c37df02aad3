"""Times are taken in turns and summed up as medians."""

from __future__ import annotations

from actnn.measuring import timing


def test_contestants_take_turns_and_the_warm_up_does_not_count():
    calls = []
    times = timing.interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2, warm_up=1)
    assert calls == ["a", "b"] * 3
    assert [len(seconds) for seconds in times.values()] == [2, 2]


def test_a_summary_is_the_median_and_the_quartiles():
    found = timing.summary([5.0, 1.0, 2.0, 4.0, 3.0])
    assert found == {"seconds": 3.0, "first_quartile": 2.0, "third_quartile": 4.0}
