"""What a report says in words, and what it computes of other settings."""

import pytest
from profiles import profile, row, run
from traces import training_step

from actnn.profiling import advice
from actnn.profiling.blocks import pieces
from actnn.profiling.layers import balance, holders, kept_bytes, layers, total_variance
from actnn.profiling.peaks import Peaks, peaks_of
from actnn.profiling.terminal import layer_lines, lines, ratio
from actnn.profiling.timeline import Timeline

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
    # of a batch of 8
    needs = [(batch, resident + fixed + batch * growing // 8) for batch in (8, 16)]
    changed = {"needs": needs, "extremes": [(fixed, growing)], "true_peak": fixed + growing}
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
    assert "a batch of about 80 should fit, against not even one image with exact training" in said


def test_memory_that_holds_no_image_is_called_too_little():
    said = advice.sentences(whole(large(), large()), 1000)[-1]
    assert said == "1000 B hold not even one image: a step of this batch needs 110.0 MiB."


def test_no_batch_is_estimated_where_too_little_grows_with_it():
    small = large(growing=MEGABYTE)
    for given in (whole(small, large()), whole(large(), small)):
        said = advice.sentences(given, 1024 * MEGABYTE)[-1]
        assert "cannot be told: what the process needs grows too little with the batch" in said


def test_what_stays_whatever_the_batch_does_not_count_as_growing():
    said = advice.sentences(whole(large(fixed=490 * MEGABYTE), large()), 1124 * MEGABYTE)[-1]
    assert "a batch of about 810 should fit, against a batch of about 420 with exact training" in said


def test_the_exact_level_has_no_batch_of_its_own():
    said = " ".join(advice.sentences(whole(large(), large(), "L0"), 1024 * MEGABYTE))
    assert "fit" not in said


def test_the_peak_of_the_exact_level_is_said_to_stay():
    said = advice.fall(whole(large(), large(growing=9 * MEGABYTE), "L0"))
    assert said == "L0 compresses nothing: the peak of a step stays that of exact training, 10.0 MiB."


def test_a_peak_that_rises_is_not_said_to_fall():
    exact, compressed = large(), large(growing=11 * MEGABYTE)
    exact["kept"] = {"conv": 5 * MEGABYTE}
    exact["rows"] = []
    said = advice.fall(whole(exact, compressed, "swap"))
    assert said == "The peak of a step does not fall, 11.0 MiB against 10.0 MiB with exact training."


def test_a_peak_within_the_noise_of_measurement_is_said_to_stay():
    exact, compressed = large(growing=100 * MEGABYTE), large(growing=99 * MEGABYTE)
    exact["kept"] = {"conv": 5 * MEGABYTE}
    exact["rows"] = []
    assert advice.fall(whole(exact, compressed)) == "The peak of a step stays about 100.0 MiB."


def test_a_small_step_whose_peak_rises_is_said_to_keep_too_little():
    given = profile()
    given["exact"]["true_peak"], given["compressed"]["true_peak"] = 4096, 192 * 1024
    given["compressed"]["peak"] |= {"bytes": 5000}
    said = advice.fall(given)
    # as replayed: pages of the process are no peak of so small a step
    assert "does not fall, 4.9 KiB against 3.6 KiB" in said
    assert "keeps too little" in said


def recurrent(kept: int = 90 * MEGABYTE, peak: int = 100 * MEGABYTE, resident: int = 60 * MEGABYTE):
    """Return the profile of a model nearly all of whose activations belong to an LSTM, partly of untouched memory."""
    given = profile(forecasts=(forecast("L2", 8, peak), forecast("L3", 2, peak - 100)))
    for name in ("exact", "compressed"):
        run = given[name]
        run |= {"kept": {"lstm": kept, "": 10}, "true_peak": resident, "kinds": {"model": "Net", "lstm": "LSTM"}}
        run["peak"] |= {"bytes": peak}
    return given


def test_no_setting_is_advised_where_layers_that_are_not_compressed_keep_nearly_all():
    said = advice.recommendation(recurrent())
    assert said.startswith("Conversion gains next to nothing here")
    assert "not compressed: 90.0 MiB to lstm (LSTM)." in said


def test_a_small_step_of_such_layers_is_given_the_same_reason():
    said = advice.fall(recurrent(kept=MEGABYTE, peak=2 * MEGABYTE, resident=0))
    assert said == "The peak of a step stays about 2.0 MiB: most of what is kept belongs to what L3 does not compress."


def test_layers_of_one_kind_are_counted_together():
    given = recurrent()
    given["compressed"]["kept"] = {"a": 3000, "b": 2000, "c": 1000, "small": 10}
    given["exact"]["kinds"] = {"a": "LSTM", "b": "LSTM", "c": "GRU", "small": "RNN"}
    assert holders(given) == "4.9 KiB to 2 layers of kind LSTM, 1000 B to c (GRU)"


def test_no_level_is_advised_to_a_model_of_which_no_layer_is_compressed():
    given = recurrent() | {"settings": profile()["settings"]}
    given["compressed"] |= {"rows": [], "forecasts": []}
    said = advice.recommendation(given)
    assert said.startswith(
        "No layer of this model, and no function that it calls, is compressed, so no level would help"
    )
    assert "90.0 MiB to lstm (LSTM)" in said


@pytest.mark.parametrize("level", ["L0", "L1", "swap"])
def test_another_level_is_asked_for_where_this_one_leaves_layers_out(level):
    given = whole(large(), large(), level)
    given["compressed"] |= {"rows": [], "forecasts": []}
    assert advice.recommendation(given) == "Profile at level L3 to see what other levels would keep."


def test_the_replayed_peaks_are_compared_where_the_system_saw_less_than_is_kept():
    given = recurrent()
    assert peaks_of(given) == Peaks(100 * MEGABYTE, 100 * MEGABYTE, replayed=True)
    assert "These are peaks of what is allocated; the process grew by 60.0 MiB and 60.0 MiB." in advice.fall(given)


def test_peaks_of_both_runs_come_from_one_source():
    given = whole(large(growing=100 * MEGABYTE), large(growing=50 * MEGABYTE))
    given["exact"]["true_peak"] = 99 * MEGABYTE
    assert peaks_of(given) == Peaks(99 * MEGABYTE, 50 * MEGABYTE, replayed=False)
    given["compressed"]["true_peak"] = 30 * MEGABYTE
    assert peaks_of(given) == Peaks(100 * MEGABYTE, 50 * MEGABYTE, replayed=True)


def test_a_larger_batch_is_advised_only_where_the_peak_does_not_grow_with_it():
    given = whole(large(fixed=90 * MEGABYTE), large())
    given["compressed"]["forecasts"] = [forecast("L3", 2, MEGABYTE)]
    assert advice.recommendation(given).endswith("A larger batch or image would change that.")
    given["exact"]["extremes"] = [(0, 100 * MEGABYTE)]
    assert "larger batch" not in advice.recommendation(given)


def test_codes_of_what_is_in_memory_anyway_are_why_more_is_kept():
    given = profile()
    given["exact"]["kept"] = {"": 100}
    said = advice.saving(given)
    assert "keeps 2.4 KiB for backward, more than the 100 B of exact training: codes stand for " in said
    assert "that are in memory anyway, such as the batch" in said


def test_as_much_kept_is_said_to_be_as_much():
    assert "keeps about as much for backward as exact training, 90.0 MiB" in advice.saving(recurrent())


def test_the_sum_of_layers_and_what_lies_between_are_what_is_kept():
    given = profile()
    found = layers(given)
    rest = balance(given, found)
    listed = sum(layer.exact_bytes for layer in found)
    assert listed + rest.unlisted_exact_bytes - rest.anyway_bytes == kept_bytes(given["exact"])
    assert sum(layer.kept_bytes for layer in found) + rest.unlisted_kept_bytes == kept_bytes(given["compressed"])
    assert sum(layer.peak_bytes for layer in found) + rest.unlisted_peak_bytes == given["compressed"]["peak"]["bytes"]


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


def test_the_terminal_has_no_table_of_no_layers_and_no_ratio_of_nothing():
    assert layer_lines([]) == ["No layer keeps 1.0 KiB or more for backward."]
    assert ratio(0, 0) == "-"
    assert ratio(580, 300_000) == "0.002x"


def test_the_whole_peak_lists_the_fullest_moments_of_both():
    text = "\n".join(lines(profile(), whole_peak=True, memory=None))
    assert text.count("fullest moments") == 2
    assert "ConvolutionFunctionBackward > aten::convolution_backward" in text
