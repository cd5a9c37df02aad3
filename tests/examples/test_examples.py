"""Every example runs, stays short, and is listed where readers look."""

from __future__ import annotations

import runpy
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
MOST_LINES = 120

# what a reader is to learn from each
SHOWN = {
    "quick_start": ("QConv2d", "also read by", "times less memory", "the plain model again: Sequential of Conv2d"),
    "manual_layers": ("blocks.0.first_norm", "left exact", "the stem keeps 8 bits"),
    "per_sample_gradients": ("samples unknown: 0.", "samples known:   0."),
    "mixed_precision": ("float32", "bfloat16", "actnn L3"),
    "memory_budget": ("bytes kept of 2000000", "gone on bit for bit: True", "too small a budget: memory="),
    "train_vit": ("blocks.0.attn/scaled_dot_product_attention.query", "exact: ", "actnn L3: ", "times less memory"),
    "finetune_transformer": ("loss", "where exact training would keep", "times less memory"),
    "paddle_quick_start": ("QConv2D", "also read by", "times less memory"),
    "paddle_transformer": ("encoder.self_attn/scaled_dot_product_attention.query", "gated/silu", "times less memory"),
}
# not an example by itself
SHARED = {"digits"}
# where models come from that are not this repository's
NEEDED = {"train_vit": "timm", "finetune_transformer": "transformers"}


@pytest.fixture
def run(monkeypatch, capsys):
    """Return what runs an example, as a program would, and returns what it prints.

    All but the first share this process: one of its own takes seconds to import a framework.
    """

    def printed(name: str) -> str:
        command = [str(EXAMPLES / f"{name}.py"), "--smoke"]
        if name == "quick_start":
            options = ["-W", "error::UserWarning:__main__"]
            finished = subprocess.run([sys.executable, *options, *command], capture_output=True, text=True, timeout=300)
            assert finished.returncode == 0, finished.stderr
            return finished.stdout
        monkeypatch.setattr(sys, "argv", command)
        monkeypatch.syspath_prepend(EXAMPLES)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", category=UserWarning, module="__main__")
            runpy.run_path(command[0], run_name="__main__")
        return capsys.readouterr().out

    return printed


@pytest.mark.parametrize("name", [name for name in SHOWN if not name.startswith("paddle")])
def test_an_example_runs_and_shows_what_it_is_for(name, run):
    if name in NEEDED and find_spec(NEEDED[name]) is None:
        pytest.skip(f"{NEEDED[name]} is not installed")
    printed = run(name)
    for words in SHOWN[name]:
        assert words in printed


@pytest.mark.skipif(find_spec("actnn.paddle") is None, reason="this version has no front end for PaddlePaddle")
@pytest.mark.parametrize("name", [name for name in SHOWN if name.startswith("paddle")])
def test_an_example_for_paddle_runs_and_shows_what_it_is_for(name, run):
    pytest.importorskip("paddle")
    printed = run(name)
    for words in SHOWN[name]:
        assert words in printed


def test_every_example_is_tested_and_listed():
    found = {path.stem for path in EXAMPLES.glob("*.py")} - SHARED
    assert found == set(SHOWN)
    listed = (EXAMPLES / "README.md").read_text()
    assert {name for name in found if f"[{name}.py]({name}.py)" in listed} == found


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_is_short(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < MOST_LINES
