"""What a report says in words, and what it computes of other settings."""

import pytest
from profiles import profile, row, run
from traces import training_step

from actnn.report import advice
from actnn.report.blocks import pieces
from actnn.report.layers import kept_bytes, layers, total_variance
from actnn.report.terminal import lines
from actnn.report.timeline import Timeline


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
    assert "codes cannot lower it much" in advice.recommendation(given)


def test_what_dominates_is_named_with_its_layer():
    said = advice.dominating(profile()["compressed"]["peak"])
    assert said.startswith("The peak lies in the backward: decoded copies 55 %")
    assert "Largest are decoded copies, most of them in conv." in said


def test_much_noise_is_called_much():
    assert "take more bits" in advice.noise(0.9)
    assert "take more bits" not in advice.noise(0.01)


def test_a_batch_fits_in_proportion_to_what_a_step_takes():
    assert advice.fitting({"resident": 1000, "true_peak": 500}, batch=4, memory=3000) == 16
    assert advice.fitting({"resident": 1000, "true_peak": 500}, batch=4, memory=900) == 0
    assert advice.fitting({"resident": 0, "true_peak": 8}, batch=8, memory=12_345) == 12_000


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
