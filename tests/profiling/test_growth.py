"""What of a step grows with the batch."""

import pytest

from actnn.profiling import growth
from actnn.profiling.blocks import CODES, EXACT, OTHER, PARAMETER_GRADIENTS, WORKSPACES, Piece
from actnn.profiling.timeline import STORE
from actnn.stores.store import BUFFER_BYTES

SETTINGS = {"batch": 4, "input": [1, 1, 1]}


def run(*extremes: tuple[int, int], resident: int = 1000, stored: int = 0) -> dict[str, object]:
    return {"extremes": extremes, "resident": resident, "stored": stored}


@pytest.mark.parametrize(
    ("piece", "part"),
    [
        (Piece(0, 9, 300, "conv", EXACT), growth.GROWING),
        (Piece(0, 9, 300, "conv", CODES), growth.GROWING),
        (Piece(0, 9, 300, "conv", WORKSPACES), growth.GROWING),
        (Piece(0, 9, 64, "conv", WORKSPACES), growth.FIXED),
        # as large as the weights of another layer
        (Piece(0, 9, 64, "head", WORKSPACES), growth.GROWING),
        (Piece(0, 9, 300, "conv", PARAMETER_GRADIENTS), growth.FIXED),
        (Piece(0, 9, 300, "", OTHER), growth.FIXED),
        (Piece(0, 9, 300, STORE, CODES), growth.FIXED),
    ],
)
def test_what_has_the_size_of_weights_or_is_of_a_store_does_not_grow(piece, part):
    first, _ = growth.divided([piece, Piece(10, 11, 64, "conv", PARAMETER_GRADIENTS)])
    assert first.category == part


def test_moments_with_less_of_both_than_another_are_left_out():
    def moment(time, fixed, growing):
        return [Piece(time, time + 1, fixed, "", OTHER), Piece(time, time + 1, growing, "conv", EXACT)]

    found = growth.extremes([*moment(0, 10, 500), *moment(2, 9, 400), *moment(4, 90, 50), *moment(6, 90, 40)])
    assert found == [(90, 50), (10, 500)]


def test_a_step_without_blocks_has_no_extremes():
    assert growth.extremes([]) == []


def test_only_what_grows_is_scaled():
    # 16 bytes are the batch itself
    assert growth.fitting(run((500, 84)), SETTINGS, 1000 - 16 + 500 + 1000) == 40
    assert growth.fitting(run((0, 84)), SETTINGS, 1000 - 16 + 500 + 1000) == 60


def test_the_moment_that_is_full_first_decides():
    assert growth.fitting(run((500, 84), (0, 184)), SETTINGS, 1000 - 16 + 1500) == 30


def test_a_batch_has_two_figures():
    assert growth.fitting(run((0, 84), resident=16), SETTINGS, 123_456) == 4900


def test_nothing_fits_where_the_process_is_larger():
    assert growth.fitting(run((0, 84)), SETTINGS, 900) == 0
    assert growth.fitting(run((500, 84)), SETTINGS, 1400) == 0
    assert growth.fitting(run(), SETTINGS, 10_000) == 0


def test_buffers_of_a_store_have_their_place():
    memory = 1000 - 16 + 1000 + 2 * BUFFER_BYTES
    assert growth.fitting(run((0, 84), stored=1), SETTINGS, memory) == 40
