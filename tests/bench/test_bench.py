"""The benchmarks: they run, print what they promise, and the README's tables are those of the committed records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actnn.bench import kernels, step, tables, variance
from actnn.errors import ConfigError
from actnn.measuring import timing

ROOT = Path(__file__).parents[2]


def lines(capsys) -> list[dict]:
    """Return what a benchmark printed."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_contestants_take_turns_and_the_warm_up_does_not_count():
    calls = []
    times = timing.interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2, warm_up=1)
    assert calls == ["a", "b"] * 3
    assert [len(seconds) for seconds in times.values()] == [2, 2]


def test_a_summary_is_the_median_and_the_quartiles():
    found = timing.summary([5.0, 1.0, 2.0, 4.0, 3.0])
    assert found == {"seconds": 3.0, "first_quartile": 2.0, "third_quartile": 4.0}


def test_records_are_appended(tmp_path):
    out = tmp_path / "folder" / "records.jsonl"
    for number in range(2):
        timing.append({"number": number}, out)
    assert [record["number"] for record in timing.records(out)] == [0, 1]


def test_a_full_disk_is_said_in_one_line():
    with pytest.raises(ConfigError, match="No space left"):
        timing.append({"number": 1}, Path("/dev/full"))


@pytest.mark.parametrize("line", [b"5", b"[1]", b"null", b"{", b"", b'{"name": "\xff"}', b"\0\0\0\0"])
def test_a_line_that_is_no_record_is_an_error_that_names_it(line, tmp_path):
    out = tmp_path / "records.jsonl"
    out.write_bytes(b'{"number": 1}\n' + line + b"\n")
    with pytest.raises(ConfigError, match=r"line 2 of .*records\.jsonl is not a record \(.*\): remove that line"):
        timing.records(out)


def test_a_record_that_was_torn_is_left_out_and_written_over(tmp_path):
    out = tmp_path / "records.jsonl"
    out.write_bytes(b'{"number": 1}\n{"numb')
    assert timing.records(out) == [{"number": 1}]
    timing.append({"number": 2}, out)
    assert out.read_bytes() == b'{"number": 1}\n{"number": 2}\n'


def test_records_are_not_read_from_a_device():
    with pytest.raises(ConfigError, match="/dev/zero is not a file"):
        timing.records(Path("/dev/zero"))


def test_a_table_names_all_machines_and_commits_of_its_records():
    machine = {"processor": "one", "cores": 2, "memory_gib": 8, "python": "3", "versions": {}, "date": "today"}
    records = [{"machine": machine | more} for more in ({"commit": "a"}, {"commit": "b"}, {"commit": "a"})]
    records.append({"machine": machine | {"processor": "two", "commit": "c"}})
    first, second = tables.made_on(records).split("\n\n")
    assert first.endswith("commit a, today and b, today.")
    assert second.startswith("two, ")


def test_records_that_cannot_be_read_are_said_in_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be read: .*Is a directory"):
        timing.records(tmp_path)


def test_there_are_no_records_where_there_is_no_file(tmp_path):
    (tmp_path / "file").write_text("")
    assert timing.records(tmp_path / "none.jsonl") == timing.records(tmp_path / "file" / "none.jsonl") == []


@pytest.mark.parametrize("megabytes", ["999999999", str(timing.memory_bytes() // 2**20)])
def test_more_than_the_machine_can_hold_is_said_before_the_kernels_are_measured(megabytes):
    with pytest.raises(ConfigError, match=f"--megabytes {megabytes} is too much .* give at most "):
        kernels.main(["--megabytes", megabytes])


def test_the_kernels_are_measured_against_memcpy_and_memset(capsys):
    assert kernels.main(["--megabytes", "1", "--rounds", "2", "--threads", "2"]) == 0
    (record,) = lines(capsys)
    for comparison in ("encode_to_memcpy", "decode_to_memset", "decode_to_memset_whole"):
        assert record[comparison] > 0
    assert record["machine"]["cores"] >= 1


def test_the_variance_of_all_schemes_is_measured_and_predicted_on_real_images(capsys):
    pytest.importorskip("sklearn")
    settings = ["--data", "digits", "--images", "48", "--batch", "16", "--steps", "12", "--draws", "6", "--size", "16"]
    assert variance.main(settings) == 0
    found = {record["scheme"]: record for record in lines(capsys)}
    assert found.keys() == {*variance.SCHEMES, variance.SAMPLES}
    assert found["L2"]["variance"] < found["original"]["variance"]
    assert found["L2"]["kept_ratio"] > found["original"]["kept_ratio"]
    for scheme in ("L3", variance.SAMPLES):
        # few draws on a few steps of training, which differ between processors
        assert found[scheme]["ratio_to_l2"] < 0.98
        assert found[scheme]["kept_ratio"] == pytest.approx(found["L2"]["kept_ratio"], rel=0.02)
        assert found[scheme]["average_bits"] == pytest.approx(2, rel=0.01)
    for record in found.values():
        # so few and small images leave much noise to be handed further down than is predicted
        assert 1 / 3 < record["predicted"] / record["variance"] < 2
        assert record["rank_correlation"] > 0.8


def test_a_step_is_timed_and_weighed_against_exact_training(capsys, tmp_path):
    size = ["--model", "resnet18", "--batch", "2", "--size", "32", "--rounds", "1", "--threads", "1"]
    arguments = [*size, "--contestants", "exact,L3", "--bits", "2", "--out", str(tmp_path / "step.jsonl")]
    assert step.main(arguments) == 0
    records = {record["contestant"]: record for record in lines(capsys)}
    assert set(records) == {"exact", "L3"}
    assert records["exact"]["kept_ratio"] == records["exact"]["time_ratio_default"] == 1
    assert records["L3"]["kept_ratio"] > 10
    assert records["L3"]["step_default"]["seconds"] > 0


def test_a_step_of_paddle_is_timed_and_weighed_too(capsys):
    pytest.importorskip("paddle")
    pytest.importorskip("actnn.paddle")
    arguments = ["--framework", "paddle", "--model", "resnet18", "--batch", "2", "--size", "32", "--rounds", "1"]
    assert step.main([*arguments, "--threads", "1", "--contestants", "exact,L3,swap"]) == 0
    exact, compressed, swapped = lines(capsys)
    assert compressed["kept_ratio"] > 8
    assert swapped["kept_bytes"] < compressed["kept_bytes"]
    assert compressed["own_bytes"] == exact["own_bytes"]


@pytest.mark.parametrize("bad", [["--contestants", "nobody"], ["--allocators", "mine"], ["--batch", "0"]])
def test_bad_arguments_end_with_exit_code_two(bad, capsys):
    with pytest.raises(SystemExit) as ended:
        step.main(bad)
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_level_that_changes_its_process_is_not_timed_beside_others():
    with pytest.raises(ConfigError, match=r"L3\.1 and L5 changes how the whole process allocates.*bench speed"):
        step.main(["--contestants", "exact,L3.1,L5"])


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_the_tables_of_a_page_are_those_of_the_committed_records(page):
    arguments = ["--file", str(ROOT / page), "--results", str(ROOT / "results"), "--check"]
    assert tables.main(arguments) == 0, "run `make results`"


def test_a_table_without_records_is_an_error(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- table:step -->\n<!-- end -->\n")
    with pytest.raises(ConfigError, match="does not exist"):
        tables.main(["--file", str(page), "--results", str(tmp_path)])


def test_a_step_that_exact_training_took_no_part_in_has_no_ratios():
    record = {"contestant": "L3", "model": "resnet50", "batch": 8, "size": 224, "bits": 2}
    record |= {"step_default": {"seconds": 1.5}, "kept_bytes": 4 * 10**7, "peak_bytes": 2 * 10**5}
    _, (row,) = tables.step([record])
    assert row[2:] == ["1.50 s", "–", "40 MB", "–", "–", "0.2 MB, –"]


def test_an_unknown_table_is_an_error(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- table:nothing -->\n<!-- end -->\n")
    with pytest.raises(ConfigError, match="no table"):
        tables.main(["--file", str(page), "--results", str(tmp_path)])
