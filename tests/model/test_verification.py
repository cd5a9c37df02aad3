"""The statistics behind verify, on made-up gradients: what is measured is right, and the test of bias calibrated."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from z_tests import chi_square_bound, normal_bound

from actnn.errors import UnsupportedError
from actnn.model.verification import BIAS_ALARM, BUCKETS, Comparison, LayerStatistics, Moments, Sketch, percent

KEYS = ["layer", "norm", "bias_z", "measured", "predicted", "sampling"]


def noise(repeats: int, draws: int, size: int, seed: int = 0) -> np.ndarray:
    """Return vectors (repeats, draws, size) of correlated elements of mean zero."""
    generator = np.random.default_rng(seed)
    mixing = generator.standard_normal((size, size)) / size**0.5
    return generator.uniform(-1, 1, (repeats, draws, size)) @ mixing


def scores(deviations: np.ndarray) -> np.ndarray:
    """Return the test of bias of each repeat."""
    found = []
    for seed, draws in enumerate(deviations):
        layer = LayerStatistics(np.zeros(draws.shape[1]), seed)
        for draw in draws:
            layer.add_draw(draw)
        found.append(layer.bias().z)
    return np.array(found)


def compared(scale: float = 0.1, bias: float = 0.0, draws: int = 32, parts: int = 8, spread: float = 1.0):
    """Return the verification of two layers, whose noise, bias and spread between parts are given."""
    generator = np.random.default_rng(3)
    exact = {"stem.conv": np.ones(30), "head": np.full(50, 2.0)}
    comparison = Comparison(exact)
    for _ in range(parts):
        comparison.add_part(
            {name: each + spread * generator.standard_normal(each.size) for name, each in exact.items()}
        )
    for _ in range(draws):
        comparison.add_draw(
            {name: each + bias + scale * generator.standard_normal(each.size) for name, each in exact.items()}
        )
    return comparison.result({"head": 0.25}, share=1 / parts if parts else 0.0)


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_the_variance_of_a_stream_is_that_of_numpy(offset):
    vectors = noise(1, 20, 70)[0] + offset
    moments = Moments(70)
    for vector in vectors:
        moments.add(vector)
    assert moments.variance == pytest.approx(vectors.var(0, ddof=1).sum(), rel=1e-9)


def test_equal_vectors_have_no_variance_at_all():
    moments = Moments(70)
    for _ in range(10):
        moments.add(np.full(70, 0.1))
    assert moments.variance == 0.0


def test_a_short_vector_is_its_own_sketch():
    vector = np.random.default_rng(0).standard_normal(BUCKETS)
    assert np.array_equal(Sketch(BUCKETS, seed=0)(vector), vector)


def test_a_long_vector_has_a_sketch_of_fixed_length():
    assert len(Sketch(10 * BUCKETS, seed=0)(np.ones(10 * BUCKETS))) == BUCKETS


def test_sketches_keep_inner_products_on_average():
    generator, size, repeats = np.random.default_rng(1), 20_000, 200
    x = generator.standard_normal(size)
    y = 0.02 * x + generator.standard_normal(size)
    sketches = [Sketch(size, seed) for seed in range(repeats)]
    products = np.array([sketch(x) @ sketch(y) for sketch in sketches])
    error = products.std(ddof=1) / repeats**0.5
    assert abs(products.mean() - x @ y) < normal_bound(1, repeats) * error
    assert products.std() < 1.2 * np.linalg.norm(x) * np.linalg.norm(y) / BUCKETS**0.5


@pytest.mark.parametrize(
    ("repeats", "draws", "size"), [(1000, 32, 50), (1000, 8, 50), (1000, 32, 4), (60, 16, 3 * BUCKETS)]
)
def test_without_bias_the_score_has_mean_zero_and_variance_one(repeats, draws, size):
    generator = np.random.default_rng(2)
    correlated = noise(repeats, draws, size) if size <= BUCKETS else None
    found = scores(generator.standard_normal((repeats, draws, size)) if correlated is None else correlated)
    assert abs(found.mean()) < normal_bound(1) / repeats**0.5
    assert found.var() < chi_square_bound(repeats) / repeats
    assert np.mean(found > BIAS_ALARM) <= 0.002


def test_equal_elements_do_not_look_like_a_bias():
    # tests element by element would count the same chance a thousand times
    common = np.random.default_rng(4).standard_normal((1000, 32, 1)) @ np.ones((1, 100))
    found = scores(common)
    assert abs(found.mean()) < normal_bound(1) / 1000**0.5
    assert found.var() < 1.5


@pytest.mark.parametrize("size", [50, 3 * BUCKETS])
def test_a_bias_of_a_fraction_of_the_noise_is_found(size):
    deviations = np.random.default_rng(5).standard_normal((5, 32, size)) + 0.5
    assert scores(deviations).min() > BIAS_ALARM


def test_a_bias_without_noise_has_the_largest_score():
    assert scores(np.ones((1, 32, 10)))[0] == pytest.approx((32 * 31 / 2) ** 0.5)


def test_a_deviation_as_large_as_rounding_is_no_bias():
    exact = np.ones(10)
    layer = LayerStatistics(exact, seed=0)
    layer.add_rounded(exact * (1 + 1e-7))
    for _ in range(32):
        layer.add_draw(exact * (1 - 2e-7))
    assert layer.bias().z == 0.0


def test_a_bias_far_above_rounding_is_found():
    exact = np.ones(10)
    layer = LayerStatistics(exact, seed=0)
    layer.add_rounded(exact * (1 + 1e-7))
    for _ in range(32):
        layer.add_draw(exact * (1 - 1e-5))
    assert layer.bias().z > BIAS_ALARM


def test_rows_have_the_layers_in_order_and_all_keys():
    found = compared()
    assert [row["layer"] for row in found.rows] == ["stem.conv", "head"]
    assert [list(row) for row in (*found.rows, found.total)] == [KEYS] * 3


def test_rows_hold_what_was_put_in():
    head = compared(scale=0.1, spread=1.0).rows[1]
    assert head["norm"] == pytest.approx(200**0.5)
    assert head["measured"] == pytest.approx(50 * 0.1**2, rel=0.2)
    assert head["predicted"] == 0.25
    assert head["sampling"] == pytest.approx(50 / 8, rel=0.4)


def test_a_layer_without_prediction_has_zero():
    assert compared().rows[0]["predicted"] == 0.0


def test_totals_are_sums_of_variances_and_squared_norms():
    found = compared()
    for key in ("measured", "predicted", "sampling"):
        assert found.total[key] == pytest.approx(sum(row[key] for row in found.rows))
    assert found.total["norm"] ** 2 == pytest.approx(sum(row["norm"] ** 2 for row in found.rows))


def test_without_parts_there_is_no_sampling_variance():
    found = compared(parts=0)
    assert found.total["sampling"] is None
    assert "at least 4 different samples" in found.conclusion


def test_the_table_has_a_line_for_each_layer_and_the_total():
    lines = str(compared()).splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("stem", "head", "total"))] == [
        "stem.conv",
        "head",
        "total",
    ]


def test_the_table_ends_in_the_conclusion():
    found = compared()
    assert str(found).splitlines()[-1] == found.conclusion


@pytest.mark.parametrize(
    ("scale", "text"),
    [
        (0.0, "no noise to this gradient: safe"),
        (1e-4, "less than 0.01 % to the variance of a batch: safe"),
        (0.05, "% to the variance of a batch: safe"),
        (0.2, "watch the loss, or use more bits"),
        (1.0, "times the variance of a batch, the largest part at 'head': use more bits"),
    ],
)
def test_the_conclusion_weighs_the_noise_against_the_sampling_noise(scale, text):
    assert text in compared(scale=scale).conclusion


def test_the_conclusion_names_a_noisy_layer_of_a_gradient_that_is_safe_as_a_whole():
    generator, exact = np.random.default_rng(6), {"small": np.ones(10), "large": np.ones(1000)}
    comparison = Comparison(exact)
    for _ in range(8):
        comparison.add_part({name: each + generator.standard_normal(each.size) for name, each in exact.items()})
        comparison.add_draw({"small": exact["small"] + generator.standard_normal(10), "large": exact["large"]})
    text = comparison.result({}, share=1 / 8).conclusion
    assert "more than its own to 1 of 2 layers, such as 'small'" in text
    assert "safe" not in text


def test_without_bias_there_is_no_warning():
    assert compared().warning is None


def test_a_bias_is_warned_of_and_nothing_is_called_safe():
    found = compared(scale=0.01, bias=0.02)
    assert "off at 2 of 2 layers" in found.warning
    assert "by about 1 % of its norm" in found.warning
    assert str(found).splitlines()[-1] == found.warning
    assert "safe" not in str(found)


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1e-6, "less than 0.01 %"), (0.0004, "0.04 %"), (0.04, "4 %"), (0.0994, "9.9 %"), (0.996, "100 %")],
)
def test_ratios_read_well(ratio, text):
    assert percent(ratio) == text


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_an_exact_gradient_that_is_not_finite_is_refused(broken):
    with pytest.raises(UnsupportedError, match="exact gradient is not finite at 'b'"):
        Comparison({"a": np.ones(3), "b": np.array([broken])})


def test_a_gradient_from_codes_that_is_not_finite_is_refused():
    comparison = Comparison({"a": np.ones(3)})
    with pytest.raises(UnsupportedError, match="from codes is not finite at 'a'"):
        comparison.add_draw({"a": np.full(3, np.nan)})


@pytest.mark.parametrize("scale", [0.1, 0.0])
def test_the_plot_is_written(tmp_path, scale):
    pytest.importorskip("matplotlib")
    compared(scale=scale, spread=10 * scale).plot(tmp_path / "variance.png")
    assert (tmp_path / "variance.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_plot_tells_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'actnn\[plots\]'"):
        compared().plot(tmp_path / "variance.png")
