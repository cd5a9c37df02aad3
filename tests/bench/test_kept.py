"""``actnn bench kept``: what autograd keeps of a model, by operation, exact and compressed."""

from __future__ import annotations

import pytest

from actnn.bench import kept, tables
from actnn.errors import ActnnError
from actnn.measuring.records import recorded
from actnn.workloads.training import compressed

torch = pytest.importorskip("torch")
nn = torch.nn
BERT = "bert:layers=1,width=32,tokens=16,vocabulary=64"


def parts_of(model, *inputs):
    """Return the parts that autograd keeps of a forward of a model, and what KeptBytes counts."""
    from actnn.torch.memory import KeptBytes
    from actnn.torch.savers import Savers

    with KeptBytes(model) as counted:
        outputs = model(*inputs).sum()
    with Savers(model) as savers:
        outputs = model(*inputs).sum()
    return savers.parts(outputs), counted.total


def test_parts_are_named_by_the_operation_that_saved_them():
    images = torch.randn(4, 3, 8, 8)
    parts, counted = parts_of(nn.Sequential(nn.Conv2d(3, 5, 3), nn.GELU(), nn.MaxPool2d(2)), images)
    found = {part.operation: part.nbytes for part in parts}
    whole = 4 * 5 * 36 * 4
    assert found == {
        "ConvolutionBackward0": images.nbytes,
        "GeluBackward0": whole,
        # its input and the place of each of its outputs
        "MaxPool2DWithIndicesBackward0": whole + 4 * 5 * 9 * 8,
    }
    assert counted == sum(found.values())
    assert not any(part.is_code for part in parts)


def test_a_block_counts_once_for_the_first_that_saved_it():
    class Twice(nn.Module):
        def forward(self, x):
            y = x.exp()
            return torch.sigmoid(y * y)

    parts, _ = parts_of(Twice(), torch.randn(100, requires_grad=True))
    assert {(part.operation, part.nbytes) for part in parts} == {("ExpBackward0", 400), ("SigmoidBackward0", 400)}


def test_the_weights_of_a_model_do_not_count():
    parts, _ = parts_of(nn.Linear(8, 8), torch.randn(2, 8))
    assert [(part.operation, part.nbytes) for part in parts] == [("AddmmBackward0", 64)]


def test_codes_are_told_from_what_stays_exact():
    model = compressed(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)), "L2", 2)
    parts, counted = parts_of(model, torch.randn(32, 64))
    codes = {part.operation: part.nbytes for part in parts if part.is_code}
    assert "LinearFunctionBackward" in codes
    assert sum(codes.values()) < 2 * 32 * 64 * 4 / 8
    assert counted == sum(part.nbytes for part in parts)


def test_models_are_weighed_at_a_level_recorded_and_printed_as_a_table(in_this_process, tmp_path, capsys):
    pytest.importorskip("transformers")
    out = tmp_path / "kept.jsonl"
    arguments = ["--models", f"{BERT},small_resnet", "--size", "32", "--threads", "1", "--out", str(out)]
    assert kept.main(arguments) == 0
    heading, _, language, images = capsys.readouterr().out.splitlines()
    assert heading.split("  ")[0] == "model, batch, size"
    assert language.startswith(f"{BERT}, 2, 16 tokens  L3, 2 bits")
    assert images.startswith("small_resnet, 2, 32 ")
    records = recorded(out)
    assert [(record["model"], record["contestant"]) for record in records] == [
        (name, contestant) for name in (BERT, "small_resnet") for contestant in ("exact", "L3")
    ]
    assert records[0]["code_bytes"] == 0
    for exact, converted in (records[:2], records[2:]):
        assert exact["kept_bytes"] == converted["exact_bytes"] == sum(count for _, count in exact["exact_parts"])
        assert converted["kept_bytes"] == converted["code_bytes"] + sum(c for _, c in converted["exact_parts"])
        assert converted["kept_ratio"] == pytest.approx(exact["kept_bytes"] / converted["kept_bytes"], abs=1e-3)
    assert records[3]["kept_ratio"] > 10
    _, rows = tables.kept(records + records)
    assert len(rows) == 2


def test_a_model_that_fails_is_named(monkeypatch):
    def fails(*arguments, **options):
        raise ActnnError("no such layer.")

    monkeypatch.setattr(kept.processes, "call", fails)
    with pytest.raises(ActnnError, match=r"^swin_t, 2 images of 224, exact: no such layer\.$"):
        kept.main(["--models", "swin_t"])
