"""What of a step grows with the batch."""

import pytest

from actnn.cli.profile import needed
from actnn.measuring.search import extrapolated
from actnn.profiling import growth
from actnn.profiling.blocks import CODES, EXACT, OTHER, PARAMETER_GRADIENTS, WORKSPACES, Piece
from actnn.profiling.child import Settings
from actnn.profiling.timeline import STORE

MEGABYTE = 2**20


def run(*needs: tuple[int, int]) -> dict[str, object]:
    return {"needs": [(batch, MEGABYTE * need) for batch, need in needs]}


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
    # 600 MB stay whatever the batch
    assert growth.fitting(run((8, 680), (16, 760)), 1000 * MEGABYTE) == 40
    assert growth.fitting(run((8, 80), (16, 160)), 1000 * MEGABYTE) == 100


def test_a_batch_has_two_figures():
    assert growth.fitting(run((8, 80), (16, 160)), 123_456 * MEGABYTE) == 12_000


def test_nothing_fits_where_the_process_is_larger():
    assert growth.fitting(run((8, 680), (16, 760)), 500 * MEGABYTE) == 0


@pytest.mark.parametrize("needs", [[], [(8, 680)], [(8, 680), (16, 681)]], ids=["nothing", "one", "no growth"])
def test_what_does_not_grow_tells_nothing(needs):
    assert not growth.tells(run(*needs))
    assert growth.fitting(run(*needs), 1000 * MEGABYTE) == 0


def test_a_larger_batch_is_tried_until_needs_are_far_apart():
    asked: list[int] = []

    def need(batch: int) -> int:
        asked.append(batch)
        return (500 + batch // 16) * MEGABYTE

    found = growth.needs_of(need, 8, 10_000 * MEGABYTE)
    assert asked == [8, 16, 128, 1024, 512]
    assert found == [(512, 532 * MEGABYTE), (1024, 564 * MEGABYTE)]


def test_the_last_batch_that_fits_is_the_second():
    found = growth.needs_of(lambda batch: batch * MEGABYTE if batch < 60 else None, 8, 10_000 * MEGABYTE)
    assert found == [(8, 8 * MEGABYTE), (16, 16 * MEGABYTE)]


def test_what_a_process_needs_at_two_batches_tells_what_it_needs_at_a_third():
    """A search for the largest batch that fits would take minutes: this is what advice within 15 % of it rests on."""
    pytest.importorskip("torch")
    settings = Settings("resnet18", 64, (3, 32, 32), 10, "L3", 2.0)
    needs = {batch: needed(settings, batch) for batch in (384, 768, 1536)}
    found = extrapolated((384, needs[384]), (768, needs[768]), needs[1536])
    assert found == pytest.approx(1536, rel=0.15)


def test_a_process_that_is_large_without_any_batch_is_measured_at_larger_ones():
    def need(batch: int) -> int:
        # workspaces that grow no further come with the second batch; what is measured of mobilenet_v2 at 64 pixels
        return int((412 if batch > 8 else 358) * MEGABYTE + 0.7 * batch * MEGABYTE)

    memory = 600 * MEGABYTE
    found = growth.fitting({"needs": growth.needs_of(need, 8, memory)}, memory)
    assert need(found) <= memory
    assert found == pytest.approx((600 - 412) / 0.7, rel=0.05)
