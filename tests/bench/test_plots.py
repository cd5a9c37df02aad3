"""Pictures and tables of records that were made up."""

from __future__ import annotations

import json

import pytest

from actnn.bench import drawing, plots, tables
from actnn.bench.accuracies import EXACT, Cell
from actnn.errors import ConfigError
from actnn.measuring import machine

COMMON = {"framework": "torch", "model": "resnet50", "size": 224, "bits": 2, "memory_limit": 3 * 10**9}
FACTORS = {"exact": 1, "checkpoint": 2, "L3": 5}


def made_up() -> dict[str, list[dict]]:
    """Return records of each benchmark; the first of each is older than another of the same run."""
    return {
        "speed": [
            COMMON | {"contestant": name, "batch": batch} | speed
            for name, factor in FACTORS.items()
            for batch in (8, 32)
            for speed in [{"fits": batch <= 8 * factor, "images_per_second": 3.5}]
        ],
        "maxbatch": [
            COMMON | {"contestant": "exact", "largest": 1},
            *(COMMON | {"contestant": name, "largest": 20 * factor} for name, factor in FACTORS.items()),
        ],
        "maxmodel": [
            COMMON | {"contestant": name, "batch": 8, "dimension": dimension, "largest": 100 * factor}
            for name, factor in FACTORS.items()
            for dimension in ("depth", "resolution")
        ],
        "memory": [
            COMMON
            | {"contestant": name, "batch": batch, "how": "computed" if batch == 64 else "measured"}
            | {f"{part}_bytes": 2**30 // factor for part in ("activation", "total")}
            for name, factor in FACTORS.items()
            for batch in (32, 64)
        ],
    }


@pytest.fixture
def results(tmp_path):
    """Write the records into a folder."""
    made_on = machine.facts()
    for name, records in made_up().items():
        lines = [json.dumps(record | {"machine": made_on}) for record in records]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_every_benchmark_with_records_is_drawn_as_svg_and_png(results, capsys):
    pytest.importorskip("matplotlib")
    assert plots.main(["--results", str(results)]) == 0
    for name in made_up():
        assert (results / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in (results / f"{name}.svg").read_text()
    assert "convergence" not in capsys.readouterr().out


def test_equal_records_give_equal_pictures(results):
    pytest.importorskip("matplotlib")
    drawn = []
    for _ in range(2):
        plots.main(["--results", str(results), "--only", "maxbatch"])
        drawn.append([(results / f"maxbatch{ending}").read_bytes() for ending in (".svg", ".png")])
    assert drawn[0] == drawn[1]


def test_the_picture_of_the_largest_batch_shows_the_newest_figures(results):
    pytest.importorskip("matplotlib")
    plots.main(["--results", str(results), "--only", "maxbatch"])
    text = (results / "maxbatch.svg").read_text()
    for words in ("ResNet-50", "3 GB", "100  5.0×", "40  2.0×", "checkpoint"):
        assert words in text


def memory_axes(found):
    """Return axes with the memory of one model by batch and contestant, in GiB."""
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    plots.draw_memory(
        axes,
        {
            key: {"activation_bytes": activations * 2**30, "total_bytes": total * 2**30, "how": "measured"}
            for key, (activations, total) in found.items()
        },
    )
    return axes


def test_bars_stand_around_their_batch_whoever_has_no_record():
    pytest.importorskip("matplotlib")
    axes = memory_axes({(2, "exact"): (4, 5), (2, "L3"): (1, 2), (4, "exact"): (8, 9)})
    middles = [bar.get_x() + bar.get_width() / 2 for bar in axes.patches]
    assert sorted({round(middle, 2) for middle in middles}) == [-0.21, 0.21, 1.0]
    assert axes.get_xlim() == (-0.5, 1.5)


def test_both_amounts_of_a_bar_are_written_above_it():
    pytest.importorskip("matplotlib")
    axes = memory_axes({(2, "exact"): (0.25, 1.5)})
    written = {text.get_text(): (text.get_fontweight(), text.xyann[1]) for text in axes.texts}
    assert written["0.25"][0] == "bold"
    assert written["1.50"][0] != "bold"
    assert written["1.50"][1] > written["0.25"][1]


def test_the_picture_of_memory_says_what_its_figures_mean(results):
    pytest.importorskip("matplotlib")
    plots.main(["--results", str(results), "--only", "memory"])
    text = (results / "memory.svg").read_text()
    assert "whole bar, upper figure: all memory; full colour, bold figure: activations; hatched: computed" in text


def test_the_legend_of_speed_tells_whose_line_ends_where(results):
    pytest.importorskip("matplotlib")
    plots.main(["--results", str(results), "--only", "speed"])
    text = (results / "speed.svg").read_text()
    assert "exact, up to 8" in text
    assert "L3, up to" not in text


def test_the_legend_of_convergence_explains_the_band_and_lies_outside(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    drawn = Figure(layout="constrained")
    monkeypatch.setattr(drawing, "save", lambda draw, size, *paths: draw(drawn))
    cells = {(EXACT, 32): {0: 0.9, 1: 0.8}, ("L2", 2): {0: 0.8, 1: 0.7}}
    drawing.plot({key: Cell(found, frozenset()) for key, found in cells.items()}, "a title")
    drawn.draw_without_rendering()
    (legend,), (axes,) = drawn.legends, drawn.axes
    assert "exact, ± one deviation" in [text.get_text() for text in legend.get_texts()]
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())


def test_a_picture_without_records_is_an_error(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(ConfigError, match="holds no record"):
        plots.main(["--results", str(tmp_path), "--only", "speed"])


@pytest.mark.parametrize("folder", ["empty", "missing"])
def test_a_folder_without_any_record_is_an_error(folder, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=f"{folder} holds no record of convergence, speed"):
        plots.main(["--results", str(tmp_path / folder)])


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("speed", "| resnet50, 224, 3 GB | exact | 3.50 | does not fit |"),
        ("maxbatch", "| resnet50, 224, 3 GB | **actnn L3, 2 bits** | 100 | 5.0× |"),
        ("maxmodel", "| batch 8, 3 GB | checkpoint | 200 (2.0×) | 200 (2.0×) |"),
        ("memory", "| resnet50, 224 | 64 | **actnn L3, 2 bits** | 0.20 GiB | 5.0× | 0.20 GiB | 5.0× | computed |"),
    ],
)
def test_every_record_becomes_a_row_of_its_table(name, row, results):
    page = results / "page.md"
    page.write_text(f"<!-- table:{name} -->\n<!-- end -->\n")
    assert tables.main(["--file", str(page), "--results", str(results)]) == 0
    assert row in page.read_text().splitlines()
