"""Memory over a step, replayed."""

import pytest
from traces import Trace, training_step

from actnn.profiling import trace
from actnn.profiling.blocks import CODES, DECODED, EXACT, Piece, pieces
from actnn.profiling.steps import summary
from actnn.profiling.timeline import STORE, Timeline


def timeline(made: Trace | None = None) -> Timeline:
    step = (made or training_step()).read()
    return Timeline(step, pieces(step))


def test_the_peak_is_the_most_that_is_held_at_one_time():
    found = timeline()
    # code, gradient, decoded copy, workspace and gradient of the weight
    assert found.peak_bytes == 100 + 1000 + 2000 + 500 + 64
    assert found.peak_time == 157


def test_the_peak_consists_of_everything_held_then_largest_first():
    shares = timeline().at_peak()
    assert [(share.layer, share.category, share.nbytes) for share in shares[:1]] == [("conv", DECODED, 2000)]
    assert [share.nbytes for share in shares] == sorted((share.nbytes for share in shares), reverse=True)
    assert sum(share.nbytes for share in shares) == timeline().peak_bytes


@pytest.mark.parametrize("points", [1, 3, 10, 600])
def test_samples_of_any_number_hold_the_peak(points):
    samples = timeline().sampled(points)
    assert len(samples) == points
    assert max(sum(held.values()) for _, held in samples) == timeline().peak_bytes
    assert [time for time, _ in samples] == sorted(time for time, _ in samples)


def test_curves_of_layers_and_of_categories_add_up_to_the_same():
    step = training_step().read()
    found = summary(step, Timeline(step, pieces(step)))
    for index, held in enumerate(found["categories"]):
        of_layers = 0
        for changes in found["layers"].values():
            before = [nbytes for position, nbytes in changes if position <= index]
            of_layers += before[-1] if before else 0
        assert of_layers == sum(held)


def test_what_is_kept_is_what_is_there_when_backward_begins():
    step = training_step().read()
    assert summary(step, Timeline(step, pieces(step)))["kept"] == {"conv": 100, "relu": 1000}


def test_what_a_store_holds_counts_from_sample_to_sample():
    made = Trace()
    made.annotate(trace.PHASE, "forward", 0, 100)
    made.annotate(trace.OUTSIDE, "code|500", 10)
    made.annotate(trace.OUTSIDE, "saved|200", 20)
    found = timeline(made)
    assert found.held_at(15) == [Piece(10, 20, 500, STORE, CODES, "store")]
    assert [(piece.nbytes, piece.category) for piece in found.held_at(50)] == [(200, EXACT)]
    assert found.peak_bytes == 500


def test_a_forecast_scales_codes_alone_wherever_the_peak_then_lies():
    found = timeline()
    assert found.peak_with(1.0) == found.peak_bytes
    assert found.peak_with(3.0) == found.peak_bytes + 200
    assert found.peak_with(1.0, most=40) == found.peak_bytes - 60


def test_the_fullest_moments_come_first_one_for_each_run_of_a_layer():
    step = training_step().read()
    moments = Timeline(step, pieces(step)).highest([each for each in step.passes if each[0] != trace.ROOT], 9)
    found = [(moment.layer, moment.phase, moment.nbytes) for moment in moments]
    assert found == [
        ("conv", "backward", 3664),
        ("relu", "forward", 2100),
        ("relu", "backward", 2100),
        ("conv", "forward", 1400),
    ]
    assert moments[1].categories[EXACT] == 1000


def test_a_step_that_takes_no_memory_has_a_peak_of_nothing():
    made = Trace()
    made.annotate(trace.PHASE, "forward", 0, 100)
    assert timeline(made).peak_bytes == 0
    assert timeline(made).at_peak() == []
