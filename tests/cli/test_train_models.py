"""``actnn train`` with models of the user's that fail: one line says how, and nothing of a run is left."""

from __future__ import annotations

import sys

import pytest

from actnn import cli

TINY = ["--images", "32", "--batch", "16", "--epochs", "1", "--threads", "1"]
CLASSIFIER = """\
from torch import nn
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1024, 10)
    def forward(self, x):
        {forward}
        return self.linear(x.flatten(1))
def model():
    return Classifier()
"""


@pytest.fixture
def trained_on(tmp_path, monkeypatch, capsys):
    """Return a function that trains a model of some source text, and gives the line that this ends in."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_model", raising=False)

    def train(source: str, *more: str) -> str:
        (tmp_path / "own_model.py").write_text(source)
        out = tmp_path / "runs" / "own"
        assert cli.main(["train", *TINY, "--model", "own_model:model", "--out", str(out), *more]) == 1
        assert not out.parent.exists()
        printed = capsys.readouterr()
        assert printed.out == ""
        (line,) = printed.err.splitlines()
        return line

    return train


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("def model(): raise KeyError('depth')", "KeyError: 'depth'"),
        ("def model(:", "cannot be loaded as module:function: SyntaxError: "),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("from torch import nn\nmodel = nn.Flatten", "has no parameters to train"),
        (
            "from torch import nn\ndef model(classes): return nn.Sequential(nn.Flatten(), nn.Linear(1024, classes))"
            ".requires_grad_(False)",
            "has no parameters to train",
        ),
    ],
)
def test_a_model_that_cannot_be_had_or_cannot_learn(source, complaint, trained_on):
    line = trained_on(source)
    assert line.startswith("actnn: the model 'own_model:model' ")
    assert complaint in line


@pytest.mark.parametrize(
    ("forward", "complaint"),
    [
        ("raise KeyError(x.dim())", "does not take images of (1, 32, 32) (channels, height, width): KeyError: 4"),
        ("raise SystemExit", "SystemExit: no message"),
        ("x.no_such_thing", "AttributeError: 'Tensor' object has no attribute 'no_such_thing'"),
        ("if self.training: raise NotImplementedError('a\\nb')", "fails in its first step: NotImplementedError: a"),
        ("if self.training: raise SystemExit", "fails in its first step: SystemExit: no message"),
        ("if self.training: return self.linear(x.flatten(1)).detach()", "fails in its first step: RuntimeError: "),
    ],
)
@pytest.mark.parametrize("more", [[], ["--compare", "exact", "--tensorboard"]], ids=["alone", "beside exact"])
def test_a_model_that_fails_on_images(forward, complaint, more, trained_on):
    assert complaint in trained_on(CLASSIFIER.format(forward=forward), *more)
