"""Pictures and tables of records that were made up."""

from __future__ import annotations

import json

import pytest

from actnn.bench import harness, pictures, tables
from actnn.errors import ConfigError

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
    machine = harness.machine()
    for name, records in made_up().items():
        lines = [json.dumps(record | {"machine": machine}) for record in records]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_every_record_is_drawn_as_svg_and_png(results, capsys):
    pytest.importorskip("matplotlib")
    assert pictures.main(["--results", str(results)]) == 0
    for name in made_up():
        assert (results / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in (results / f"{name}.svg").read_text()
    assert "convergence" not in capsys.readouterr().out


def test_equal_records_give_equal_pictures(results):
    pytest.importorskip("matplotlib")
    drawn = []
    for _ in range(2):
        pictures.main(["--results", str(results), "--only", "maxbatch"])
        drawn.append([(results / f"maxbatch{ending}").read_bytes() for ending in (".svg", ".png")])
    assert drawn[0] == drawn[1]


def test_the_picture_of_the_largest_batch_shows_the_newest_figures(results):
    pytest.importorskip("matplotlib")
    pictures.main(["--results", str(results), "--only", "maxbatch"])
    text = (results / "maxbatch.svg").read_text()
    for words in ("ResNet-50", "3 GB", "100  5.0×", "40  2.0×", "checkpoint"):
        assert words in text


def test_a_picture_without_records_is_an_error(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(ConfigError, match="holds no record"):
        pictures.main(["--results", str(tmp_path), "--only", "speed"])


@pytest.mark.parametrize("folder", ["empty", "missing"])
def test_a_folder_without_any_record_is_an_error(folder, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=f"{folder} holds no record of convergence, speed"):
        pictures.main(["--results", str(tmp_path / folder)])


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
