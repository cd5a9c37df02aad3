"""The command line, called the way a user calls it."""

import subprocess
import sys

import pytest

import actnn
from actnn import cli
from actnn.cli import doctor, extras
from actnn.errors import ConfigError


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "actnn", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        cli.main(arguments)
    return leaving.value.code


def test_help_lists_every_command(capsys):
    assert exit_code("--help") == 0
    printed = capsys.readouterr().out
    for name, command in cli.COMMANDS.items():
        assert name in printed
        assert command.summary in printed


def test_version_is_that_of_the_package(capsys):
    assert exit_code("--version") == 0
    assert capsys.readouterr().out.strip() == actnn.__version__


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_can_be_imported_and_has_help(name, capsys):
    assert exit_code(*name.split(), "--help") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("usage: ")
    if name.startswith("bench "):
        assert f"example: actnn {name} " in printed


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "no command given"),
        (["train-everything"], "unknown command 'train-everything'"),
        (["bench"], "unknown command 'bench'"),
        (["--verbose"], "--verbose"),
        (["doctor", "now"], "now"),
        (["demo", "--epochs", "none"], "'none' is not a whole number of at least 1"),
        (["demo", "--bits", "9"], "--bits"),
        (["demo", "--limit", "3"], "at least 10"),
    ],
)
def test_bad_input_gives_one_line_and_exit_code_2(arguments, complaint, capsys):
    assert exit_code(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert complaint in printed.err
    assert "--help" in printed.err


def test_an_error_of_actnn_gives_one_line_and_exit_code_1(monkeypatch, capsys):
    def fail(argv):
        raise ConfigError("level 'L9' does not exist: expected L0, L1 or L2.")

    monkeypatch.setattr(doctor, "main", fail)
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().err == "actnn: level 'L9' does not exist: expected L0, L1 or L2.\n"


def test_doctor_reports_versions_kernels_and_a_passed_self_check():
    finished = run("doctor")
    assert finished.returncode == 0, finished.stderr
    findings = {line[:16].strip(): line[17:] for line in finished.stdout.splitlines()}
    assert findings["actnn"] == actnn.__version__
    assert findings["kernels"].startswith("native: ")
    assert {"torch", "paddle", "threads", "processor"} <= findings.keys()
    assert findings["self check"].startswith("passed: ")


def test_doctor_survives_a_framework_that_cannot_be_imported(tmp_path, monkeypatch):
    (tmp_path / "broken_framework.py").write_text("raise ImportError('libmissing.so: no such file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    state = doctor.framework_state("broken_framework")
    assert state == "installed, but cannot be imported: ImportError: libmissing.so: no such file"


def test_doctor_says_how_to_install_a_missing_framework(monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda module: None)
    assert doctor.framework_state("paddle") == "not installed (pip install 'actnn[paddle]')"


def test_doctor_runs_on_the_reference_backend(monkeypatch):
    monkeypatch.setenv("ACTNN_BACKEND", "reference")
    finished = run("doctor")
    assert finished.returncode == 0, finished.stderr
    assert "reference: ACTNN_BACKEND=reference asks for it" in finished.stdout
    assert "skipped" in finished.stdout
    assert finished.stderr == ""


def test_the_demo_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(extras, "find_spec", lambda module: None if module == "rich" else object())
    assert cli.main(["demo"]) == 1
    assert "pip install 'actnn[demo]'" in capsys.readouterr().err


@pytest.mark.slow
def test_the_demo_compares_exact_and_compressed_training():
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    finished = run("demo", "--epochs", "1", "--limit", "128", "--batch", "32")
    assert finished.returncode == 0, finished.stderr
    for word in ("exact", "2-bit codes", "test accuracy", "activations kept", "peak memory", "time of an epoch"):
        assert word in finished.stdout
