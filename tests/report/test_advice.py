"""What a report says in words, and what it computes of other settings."""

import pytest
from profiles import profile, row, run
from traces import training_step

from actnn.report import advice
from actnn.report.blocks import pieces
from actnn.report.layers import kept_bytes, layers, total_variance
from actnn.report.terminal import lines
from actnn.report.timeline import Timeline

MEGABYTE = 2**20


def forecast(level: str, bits: int, peak: int) -> dict[str, object]:
    return {"level": level, "bits": bits, "kept_bytes": 100, "peak_bytes": peak}


@pytest.mark.parametrize(
    ("changed", "bits", "expected"),
    [
        ({}, 2, 350),
        ({}, 4, 350 + 250),
        ({"bits": 3.0, "sign_bits": 1.0}, 2, 350),
        ({"bits": 3.0, "sign_bits": 1.0}, 4, 350 + 250),
        # no plane to spare for the sides: two codes of 8 bits
        ({"bits": 3.0, "sign_bits": 1.0}, 8, 350 + 1625),
        ({"elements": 0, "bits": None}, 8, 350),
    ],
)
def test_a_row_scales_to_another_width_by_its_planes_alone(changed, bits, expected):
    assert advice.kept_at(row("conv", **changed), bits) == expected


def test_forecasts_count_what_uncompressed_layers_keep():
    step = training_step().read()
    own = run(rows=[row("conv", kept_bytes=100, elements=0, bits=None)])
    found = advice.forecasts(Timeline(step, pieces(step)), own)
    assert {(each.kept_bytes, each.peak_bytes) for each in found} == {(1100, 3664)}


def test_the_advice_is_the_least_noise_whose_peak_is_close_to_the_least():
    given = profile(forecasts=(forecast("L2", 8, 3000), forecast("L2", 4, 1100), forecast("L3", 2, 1000)))
    given["exact"]["kept"] = {"conv": 3500}
    assert "Advice: L2 at 4 bits" in advice.recommendation(given)
    assert "fewer bits would lower the peak by 9 %" in advice.recommendation(given)


def test_swapping_is_advised_only_where_it_lowers_the_peak():
    given = profile(forecasts=(forecast("L3", 2, 1000), forecast("L4", 2, 990)))
    given["exact"]["kept"] = {"conv": 3500}
    assert "L4" not in advice.recommendation(given)
    given["compressed"]["forecasts"][1]["peak_bytes"] = 500
    assert "L4 keeps codes on disk: about 500 B" in advice.recommendation(given)


def test_no_level_is_advised_where_activations_are_not_what_fills_memory():
    given = profile(forecasts=(forecast("L3", 2, 1000),))
    given["exact"]["kept"] = {"conv": 10}
    assert "without all of them it would still be about 3.6 KiB" in advice.recommendation(given)


def test_what_dominates_is_named_with_its_layer():
    said = advice.dominating(profile()["compressed"]["peak"])
    assert said.startswith("The peak lies in the backward: decoded copies 55 %")
    assert "Largest are decoded copies, most of them in conv." in said


def test_much_noise_is_called_much():
    assert "take more bits" in advice.noise(0.9)
    assert "take more bits" not in advice.noise(0.01)


def large(resident: int = 100 * MEGABYTE, fixed: int = 0, growing: int = 10 * MEGABYTE) -> dict[str, object]:
    """Return what is needed of a contestant of which enough grows with the batch."""
    changed = {"resident": resident, "extremes": [(fixed, growing)], "true_peak": fixed + growing}
    given = profile()["compressed"] | changed
    return given | {"peak": given["peak"] | {"bytes": fixed + growing}}


def whole(exact: dict[str, object], compressed: dict[str, object], level: str = "L3") -> dict[str, object]:
    given = profile() | {"exact": exact, "compressed": compressed}
    return given | {"settings": given["settings"] | {"level": level}}


def test_the_batch_that_fits_is_said_for_both():
    said = advice.sentences(whole(large(growing=40 * MEGABYTE), large()), 1124 * MEGABYTE)[-1]
    assert said.startswith(
        "In 1.1 GiB a batch of about 810 should fit, against a batch of about 200 with exact training"
    )


def test_exact_training_of_which_nothing_fits_is_called_that():
    said = advice.sentences(whole(large(fixed=400 * MEGABYTE, growing=200 * MEGABYTE), large()), 200 * MEGABYTE)[-1]
    assert "a batch of about 79 should fit, against not even one image with exact training" in said


def test_memory_that_holds_no_image_is_called_too_little():
    said = advice.sentences(whole(large(), large()), 1000)[-1]
    assert said == "1000 B hold not even one image: the process has 100.0 MiB before the step begins."


@pytest.mark.parametrize(
    "small",
    [
        large(growing=MEGABYTE),
        # 98 % of it stays whatever the batch
        large(fixed=490 * MEGABYTE),
    ],
)
def test_no_batch_is_estimated_where_too_little_grows_with_it(small):
    for given in (whole(small, large()), whole(large(), small)):
        said = advice.sentences(given, 1024 * MEGABYTE)[-1]
        assert "cannot be told: too little of this step grows with the batch" in said


def test_the_exact_level_has_no_batch_of_its_own():
    said = " ".join(advice.sentences(whole(large(), large(), "L0"), 1024 * MEGABYTE))
    assert "fit" not in said


def test_the_peak_of_the_exact_level_is_said_to_stay():
    said = advice.fall(large(), large(growing=9 * MEGABYTE), "L0")
    assert said == "L0 compresses nothing: the peak of a step stays that of exact training, 10.0 MiB."


def test_a_peak_that_rises_is_not_said_to_fall():
    exact, compressed = large(), large(growing=11 * MEGABYTE)
    exact["kept"] = {"conv": 5 * MEGABYTE}
    exact["rows"] = []
    said = advice.fall(exact, compressed, "swap")
    assert said == "The peak of a step does not fall, 11.0 MiB against 10.0 MiB with exact training."


def test_a_small_step_whose_peak_rises_is_said_to_keep_too_little():
    exact, compressed = run(true_peak=4096), run(true_peak=192 * 1024)
    compressed["peak"] = compressed["peak"] | {"bytes": 5000}
    said = advice.fall(exact, compressed, "L3")
    # as replayed: pages of the process are no peak of so small a step
    assert "does not fall, 4.9 KiB against 3.6 KiB" in said
    assert "keeps too little" in said


def test_layers_tell_whose_code_they_read_and_why_they_are_exact():
    found = {layer.name: layer for layer in layers(profile())}
    assert found["conv"].readers == ("relu",)
    assert found["relu"].reads == ("conv",)
    assert found["relu"].kept_bytes == 0
    assert "subclass" in found["norm"].left_exact
    assert found["conv"].variance == pytest.approx(0.05)
    assert "model" not in found


def test_kept_bytes_count_each_layer_once():
    compressed = profile()["compressed"]
    # rows of 350, 250 and 900, and 1000 of a layer without a row
    assert kept_bytes(compressed) == 350 + 250 + 900 + 1000
    assert total_variance(compressed) == pytest.approx(0.125)


def test_the_terminal_shows_totals_the_peak_and_layers():
    text = "\n".join(lines(profile(), whole_peak=False, memory=None))
    for part in ("kept for backward", "decoded copies", "layer", "sensitivity", "also read by"):
        assert part in text
    assert "fullest moments" not in text


def test_the_whole_peak_lists_the_fullest_moments_of_both():
    text = "\n".join(lines(profile(), whole_peak=True, memory=None))
    assert text.count("fullest moments") == 2
    assert "ConvolutionFunctionBackward > aten::convolution_backward" in text
