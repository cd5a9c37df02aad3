"""The trial of a class that goes by its name: what it may raise, and what the report says of it."""

from __future__ import annotations

import pytest

from actnn.model.door import disagreement


def test_a_class_that_agrees_has_no_reason_to_be_left():
    assert disagreement("RMSNorm", lambda: True) is None


def test_a_class_that_computes_something_else_is_told():
    assert "named like RMSNorm, but on a few rows of numbers it computed something else" in disagreement(
        "RMSNorm", lambda: False
    )


def test_what_its_code_raises_is_told_in_one_line():
    def trial() -> bool:
        raise ValueError("four axes are needed\nand more")

    reason = disagreement("GELU", trial)
    assert "raised ValueError: four axes are needed;" in reason


@pytest.mark.parametrize("problem", [KeyboardInterrupt, MemoryError, ImportError])
def test_what_has_nothing_to_do_with_the_rows_goes_on(problem: type[BaseException]):
    def trial() -> bool:
        raise problem

    with pytest.raises(problem):
        disagreement("GELU", trial)
