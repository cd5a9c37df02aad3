"""What is read from a trace: who took memory, when it was given back, and what it is for."""

import pytest
from traces import Trace, training_step

from actnn.profiling import trace
from actnn.profiling.blocks import (
    ACTIVATION_GRADIENTS,
    CODES,
    DECODED,
    EXACT,
    IN_FLIGHT,
    OTHER,
    PARAMETER_GRADIENTS,
    WORKING,
    WORKSPACES,
    pieces,
)


def purposes(made: Trace) -> dict[int, tuple[str, str]]:
    """Return layer and category of each block, by its address."""
    step = made.read()
    found = zip(step.blocks, pieces(step), strict=True)
    return {block.address: (piece.layer, piece.category) for block, piece in found}


@pytest.mark.parametrize(
    ("address", "layer", "category"),
    [
        (10, "conv", CODES),
        (20, "conv", IN_FLIGHT),
        (30, "conv", WORKSPACES),
        (40, "relu", EXACT),
        (50, "relu", ACTIVATION_GRADIENTS),
        (60, "conv", DECODED),
        (70, "conv", WORKSPACES),
        (80, "conv", PARAMETER_GRADIENTS),
        (90, "conv", WORKING),
    ],
)
def test_every_block_has_a_layer_and_a_purpose(address, layer, category):
    assert purposes(training_step())[address] == (layer, category)


def test_what_is_kept_belongs_to_the_layer_that_keeps_it():
    made = Trace()
    made.annotate(trace.PHASE, "forward", 0, 100)
    made.annotate(trace.LAYER, "conv", 1, 10)
    made.take(2, 10, 100)
    made.annotate(trace.LAYER, "norm", 20, 30)
    made.annotate(trace.SAVED, 10, 21)
    assert purposes(made)[10] == ("norm", EXACT)


def test_a_node_belongs_to_the_layer_whose_operator_was_last_to_carry_its_number():
    made = Trace()
    made.annotate(trace.PHASE, "forward", 0, 50)
    made.annotate(trace.LAYER, "before", 1, 10)
    made.span("aten::detach", 2, 3, sequence=7)
    made.annotate(trace.LAYER, "conv", 20, 30)
    made.span("aten::conv2d", 21, 29, sequence=7)
    made.annotate(trace.PHASE, "backward", 50, 100)
    made.node("ConvolutionBackward0", 60, 70, sequence=7)
    made.take(65, 10, 100)
    assert purposes(made)[10] == ("conv", ACTIVATION_GRADIENTS)


def test_a_gradient_that_is_added_to_another_one_is_no_working_buffer():
    made = Trace()
    made.annotate(trace.PHASE, "backward", 0, 100)
    made.node("ConvolutionBackward0", 10, 30, sequence=1)
    made.take(15, 10, 100)
    # the function ends at 29.5, the node, which adds up results, at 30
    made.give_back(29.7, 10, 100)
    assert purposes(made)[10][1] == ACTIVATION_GRADIENTS


def test_a_forward_that_is_computed_anew_in_backward_counts_for_its_own_layer():
    made = Trace()
    made.annotate(trace.PHASE, "forward", 0, 50)
    made.annotate(trace.LAYER, "block", 1, 20)
    made.span("CheckpointFunction", 2, 19, sequence=3)
    made.annotate(trace.PHASE, "backward", 50, 100)
    made.node("CheckpointFunctionBackward", 60, 90, sequence=3)
    made.annotate(trace.LAYER, "block.conv", 65, 75)
    made.take(70, 10, 100)
    assert purposes(made)[10][0] == "block.conv"


def test_memory_that_another_thread_gave_back_ends_when_its_address_is_taken_again():
    made = Trace()
    made.annotate(trace.PHASE, "forward", 0, 100)
    made.take(10, 10, 100)
    made.take(30, 10, 200)
    first, second = made.read().blocks
    assert (first.end, second.end) == (30, float("inf"))


def test_what_a_store_took_over_ends_in_the_framework_and_counts_outside():
    made = Trace()
    made.annotate(trace.PHASE, "forward", 0, 100)
    made.take(10, 10, 100)
    made.annotate(trace.CODE, 10, 11)
    made.annotate(trace.STORED, 10, 12)
    made.annotate(trace.OUTSIDE, "code|100", 12)
    step = made.read()
    assert [block.end for block in step.blocks] == [12]
    assert step.outside == [(12, 100, trace.CODE)]
    assert step.stored == 100


def test_memory_of_other_devices_is_left_out():
    made = Trace()
    made.take(10, 10, 100)
    made.events[-1]["args"]["Device Type"] = 1
    assert made.read().blocks == []


def test_what_nothing_explains_is_called_other():
    made = Trace()
    made.annotate(trace.PHASE, "optimizer", 0, 100)
    made.take(10, 10, 100)
    assert purposes(made)[10] == ("", OTHER)


def test_layer_names_may_hold_the_separator_of_annotations():
    made = Trace()
    made.annotate(trace.LAYER, "odd|name", 0, 100)
    made.take(10, 10, 100)
    assert purposes(made)[10][0] == "odd|name"
