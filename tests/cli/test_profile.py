"""``actnn profile``, called the way a user calls it."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from profiles import profile

import actnn
from actnn import cli
from actnn.cli import profile as cli_profile
from actnn.errors import ActnnError
from actnn.profiling import child, terminal
from actnn.profiling.blocks import CATEGORIES, CODES, DECODED, EXACT

MODELS = """
import sys

from torch import nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint


class Leaving(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad_y):
        sys.exit("enough")


class Leaves(nn.Linear):
    backward_too = False

    def forward(self, x):
        if not self.backward_too:
            sys.exit(3)
        return Leaving.apply(super().forward(x))


def leaves_in_forward():
    return Leaves(32, 5)


def leaves_in_backward():
    # which does not mix with the tables
    print("a model may print")
    model = Leaves(32, 5)
    model.backward_too = True
    return model


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(2, 16, 3), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.second = nn.Sequential(nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.ReLU())

    def forward(self, x):
        x = self.first(x)
        return {"scores": checkpoint(self.second, x, use_reentrant=False), "parts": [x.mean((2, 3))], "count": 3}


def net():
    return Net()


def fails_in_forward():
    return nn.Sequential(nn.Linear(5, 5))


def fails_when_made():
    raise KeyError("no weights")


def learns_nothing():
    return nn.Flatten()


class Rows(nn.LSTM):
    def forward(self, x):
        return super().forward(x.flatten(1, 2))[0][:, -1]


def recurrent():
    return nn.Sequential(Rows(32, 64, batch_first=True), nn.Linear(64, 5))


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(nn.Linear(3, 5).weight.detach().T.clone())

    def forward(self, x):
        return (x.mean((2, 3))[:, :, None] / self.weights.exp()).sum(1)


def without_layers():
    return Weighted()
"""
MEGABYTE = 2**20


def run(*arguments: str, folder=None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "actnn", "profile", *arguments]
    # a relative path would lead nowhere from another directory
    environment = os.environ | {"PYTHONPATH": str(Path(actnn.__file__).parents[1])}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=1200, cwd=folder, env=environment
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a directory with models of the user's own."""
    made = tmp_path_factory.mktemp("own")
    (made / "mymodels.py").write_text(MODELS)
    return made


# a ResNet-18, large enough for blocks to be mapped on their own
RESNET = ["resnet18", "--batch=8", "--size=112"]


def in_a_process(level: str | None) -> dict[str, Any]:
    """Return what one contestant measures, in a process of its own."""
    pytest.importorskip("torch")
    given = cli_profile.parse(RESNET)
    settings = child.Settings(given.model, given.batch, given.input, given.classes, level, 2)
    return cli_profile.measured("this", settings)


@pytest.fixture(scope="module")
def exact():
    """Return what exact training measures."""
    return in_a_process(None)


@pytest.fixture(scope="module", params=["L3", "L5"])
def profiled(request, exact):
    """Return what exact training and a level measure."""
    return {"exact": exact, "compressed": in_a_process(request.param)}


@pytest.fixture
def here(monkeypatch):
    """Let everything be measured in this process; what a process needs, whose memory is not this one's, is made up."""
    pytest.importorskip("torch")
    monkeypatch.setattr(cli_profile, "measured", lambda name, settings: child.measure(asdict(settings), print))
    monkeypatch.setattr(cli_profile, "needed", lambda settings, batch: (100 + batch) * MEGABYTE)


@pytest.mark.slow
@pytest.mark.parametrize("contestant", ["exact", "compressed"])
def test_the_replayed_peak_is_the_resident_one(profiled, contestant):
    found = profiled[contestant]
    if found["true_peak"] is None:
        pytest.skip("this system does not tell the peak of a process")
    # codes on their way to disk may have left before the peak, or not: nobody can tell which the replay should count
    swapped = sum(row["swapped_bytes"] for row in found.get("rows", ()))
    assert abs(found["peak"]["bytes"] - found["true_peak"]) < 4 * MEGABYTE + swapped


@pytest.mark.slow
def test_codes_take_the_place_of_exact_activations(profiled):
    names = list(CATEGORIES)
    most = {
        contestant: dict(zip(names, map(max, zip(*profiled[contestant]["categories"], strict=True)), strict=True))
        for contestant in ("exact", "compressed")
    }
    assert most["exact"][CODES] == most["exact"][DECODED] == 0
    assert most["exact"][EXACT] > 30 * MEGABYTE
    assert most["compressed"][EXACT] < MEGABYTE
    assert most["compressed"][CODES] > MEGABYTE
    assert most["compressed"][DECODED] > MEGABYTE


@pytest.mark.slow
def test_nearly_all_memory_belongs_to_a_layer(profiled):
    for contestant in ("exact", "compressed"):
        shares = profiled[contestant]["peak"]["shares"]
        nameless = sum(share["nbytes"] for share in shares if not share["layer"])
        assert nameless < 0.01 * profiled[contestant]["peak"]["bytes"]


@pytest.mark.slow
def test_what_is_kept_agrees_with_the_accounts_of_the_session(profiled):
    exact, rows = profiled["exact"]["kept"], profiled["compressed"]["rows"]
    # the batch itself, which the first convolution keeps, was there before the step
    images = 8 * 3 * 112 * 112 * 4
    accounted = sum(row["exact_bytes"] for row in rows) - images
    assert sum(exact.values()) == pytest.approx(accounted, rel=0.02)
    assert profiled["compressed"]["sensitivity"].keys() <= {row["layer"] for row in rows}
    assert profiled["compressed"]["variance"]


def test_a_function_of_the_users_own_is_profiled_into_tables_and_a_page(folder, here, monkeypatch, capsys):
    page = folder / "report.html"
    monkeypatch.syspath_prepend(folder)
    arguments = ["profile", "mymodels:net", "--input=2,24,24", "--batch=4", "--peak", "--html", str(page)]
    assert cli.main(arguments) == 0
    printed = capsys.readouterr().out
    for part in ("kept for backward", "fullest moments", "first.1", "The peak lies in the"):
        assert part in printed
    assert "first.1" in page.read_text()


@pytest.mark.parametrize(
    ("model", "advice"),
    [
        ("recurrent", "- Conversion gains next to nothing here, since most of what is kept"),
        (
            "without_layers",
            "- No layer of this model, and no function that it calls, is compressed, so no level would help",
        ),
    ],
)
def test_a_model_of_which_hardly_anything_is_compressed_is_told_so(folder, model, advice, here, monkeypatch, capsys):
    monkeypatch.syspath_prepend(folder)
    assert cli.main(["profile", f"mymodels:{model}", "--size=32"]) == 0
    printed = capsys.readouterr().out
    assert advice in printed
    assert "The peak of a step stays about" in printed
    for wrong in ("Profile at level L3", "Advice:", "keeps too little", "0 % and add noise"):
        assert wrong not in printed


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        ("mymodels:fails_in_forward", "fails on an input of 8×3×32×32: RuntimeError: mat1 and mat2 shapes"),
        ("mymodels:fails_when_made", "KeyError: 'no weights'"),
        ("mymodels:leaves_in_forward", "ended the process with SystemExit(3) in forward (mymodels.py, line "),
        ("mymodels:leaves_in_backward", "ended the process with SystemExit('enough') in backward (mymodels.py, line "),
        ("mymodels:learns_nothing", "has no parameters to train"),
        ("nomodule:net", "cannot be loaded"),
        ("resnet-of-mine", "there is no model 'resnet-of-mine'"),
    ],
)
def test_a_model_that_cannot_be_profiled_is_an_error_of_one_line(folder, model, complaint, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(folder)
    settings = {"model": model, "batch": 8, "input": (3, 32, 32), "classes": 5, "level": None, "bits": None}
    with pytest.raises(ActnnError) as refused:
        child.measure(settings, lambda message: None)
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_a_model_that_ends_its_process_costs_one_line_and_leaves_no_page(folder):
    pytest.importorskip("torch")
    page = folder / "none.html"
    finished = run("mymodels:leaves_in_backward", "--size=32", "--html", str(page), folder=folder)
    assert (finished.returncode, finished.stdout) == (1, "")
    assert finished.stderr.count("\n") == 1
    assert "ended the process with SystemExit('enough') in backward (mymodels.py, line " in finished.stderr
    assert not page.exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "MODEL"),
        (["resnet18", "--level", "L9"], "'L9'"),
        (["resnet18", "--batch", "0"], "at least 1"),
        (["resnet18", "--input", "3,x"], "'3,x' is not a shape such as 3,224,224"),
        (["resnet18", "--memory", "much"], "'much' is not an amount of memory such as 3GB"),
        (["resnet18", "--bits", "0"], "argument --bits: '0' is not a width from 1 to 8 bits"),
        (["resnet18", "--bits", "nan"], "argument --bits: 'nan' is not a width from 1 to 8 bits"),
        (["resnet18", "--html", "x", "--json", "./x"], "--html and --json both name 'x': give each a file of its own"),
    ],
)
def test_bad_arguments_cost_one_line_and_exit_code_2(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as leaving:
        cli.main(["profile", *arguments])
    printed = capsys.readouterr()
    assert leaving.value.code == 2
    assert printed.err.count("\n") == 1
    assert complaint in printed.err


@pytest.mark.parametrize("option", ["--html", "--json"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(option, tmp_path, capsys):
    pytest.importorskip("torch")
    assert cli.main(["profile", "resnet18", option, str(tmp_path / "missing" / "file")]) == 1
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert "No such file or directory" in printed.err


@pytest.mark.parametrize(
    ("arguments", "bits"),
    [([], 2), (["--level=L1"], 4), (["--level=L2"], 4), (["--level=L2", "--bits=3"], 3), (["--level=L0"], None)],
)
def test_the_width_is_the_levels_own_unless_given(arguments, bits):
    assert cli_profile.parse(["resnet18", *arguments]).bits == bits


def test_a_language_model_is_profiled_by_its_configuration(folder, here, capsys):
    pytest.importorskip("transformers")
    out = folder / "bert.json"
    name = "bert:layers=1,width=32,tokens=16,vocabulary=64"
    assert cli.main(["profile", name, "--batch=2", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert (found["settings"]["model"], found["settings"]["input"]) == (name, [16])
    assert any("attention" in layer for layer in found["exact"]["kinds"])
    assert "kept for backward" in capsys.readouterr().out


def test_what_a_process_needs_has_room_for_weights_gradients_and_momentum():
    pytest.importorskip("torch")
    settings = child.Settings("resnet18", 4, (3, 32, 32), 10, None, None)
    found = child.need(asdict(settings), print)["bytes"]
    assert found is None or found > 3 * 4 * 11 * 10**6


def test_the_size_of_images_is_refused_for_a_language_model(capsys):
    assert cli.main(["profile", "gpt2", "--size=32"]) == 1
    assert "gpt2 learns from texts: leave --size and --input out" in capsys.readouterr().err


@pytest.fixture
def at_once(monkeypatch):
    """Let a profile written by hand be what is measured."""
    pytest.importorskip("torch")
    monkeypatch.setattr(cli_profile, "measured", lambda name, settings: profile()[name])
    monkeypatch.setattr(cli_profile, "needed", lambda settings, batch: (100 + batch) * MEGABYTE)


def fill_the_disk(monkeypatch):
    """Let no file be written to the end."""

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)


@pytest.mark.parametrize("option", ["--html", "--json"])
def test_a_full_disk_leaves_the_earlier_report_and_the_tables(option, at_once, tmp_path, monkeypatch, capsys):
    path = tmp_path / "report"
    path.write_text("good")
    fill_the_disk(monkeypatch)
    assert cli.main(["profile", "resnet18", option, str(path)]) == 1
    printed = capsys.readouterr()
    assert printed.err == f"actnn: cannot write {str(path)!r} (No space left on device): choose another file.\n"
    assert "kept for backward" in printed.out
    assert path.read_text() == "good"
    assert [file.name for file in tmp_path.iterdir()] == ["report"]


def test_a_link_to_a_report_stays_one(at_once, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert cli.main(["profile", "resnet18", "--json", str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "file").read_text())["settings"]["model"] == "resnet18"


def test_a_device_is_written_to_as_it_is(at_once):
    assert cli.main(["profile", "resnet18", "--json", os.devnull]) == 0
    assert Path(os.devnull).is_char_device()


def test_reports_are_written_before_anything_is_printed(at_once, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(terminal, "lines", lambda *_: written.extend(file.name for file in tmp_path.iterdir()) or [])
    assert cli.main(["profile", "resnet18", "--html", str(tmp_path / "a"), "--json", str(tmp_path / "b")]) == 0
    assert sorted(written) == ["a", "b"]
