"""The command line, called the way a user calls it."""

import errno
import json
import os
import subprocess
import sys

import pytest

import actnn
from actnn import cli
from actnn.cli import doctor
from actnn.console import extras
from actnn.errors import ConfigError
from actnn.kernels import Native


def run(*arguments: str, stdout: int = subprocess.PIPE, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "actnn", *arguments]
    # output that waits for the end is what a command that was started by hand has
    variables = {**os.environ, "PYTHONUNBUFFERED": "", **environment}
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, env=variables, text=True, check=False, timeout=300
    )


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
    assert f"\n  actnn {name}" in printed


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_a_narrow_terminal_does_not_break_the_example_of_a_command(name, capsys, monkeypatch):
    examples = []
    for columns in ("40", "400"):
        monkeypatch.setenv("COLUMNS", columns)
        exit_code(*name.split(), "--help")
        examples.append(capsys.readouterr().out.partition("\nexample")[2])
    assert examples[0] == examples[1] != ""


def test_help_of_the_benchmarks_lists_them(capsys):
    assert exit_code("bench", "--help") == 0
    printed = capsys.readouterr().out
    for name in cli.COMMANDS:
        assert (f"\n  {name.removeprefix('bench ')} " in printed) == name.startswith("bench ")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "no command given"),
        (["train-everything"], "unknown command 'train-everything'"),
        (["bench"], "no command given: expected one of kernels, variance, "),
        (["bench", "everything"], "unknown command 'everything': expected one of kernels, variance, "),
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


def failing_with(error: BaseException):
    """Return a command that raises."""

    def fail(argv):
        raise error

    return fail


def test_an_interruption_gives_one_line_and_exit_code_130(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "main", failing_with(KeyboardInterrupt()))
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr().err == "actnn: interrupted.\n"


def test_an_interruption_while_a_command_is_imported_is_one_line_too(monkeypatch, capsys):
    monkeypatch.setattr(cli, "import_module", failing_with(KeyboardInterrupt()))
    assert cli.main(["train"]) == 130
    assert capsys.readouterr().err == "actnn: interrupted.\n"


def test_nothing_that_takes_long_is_loaded_before_an_interruption_can_be_caught():
    program = "import sys, actnn.cli; print(sorted({'numpy', 'argparse', 'importlib.metadata'} & sys.modules.keys()))"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("problem", "code", "words"),
    [(errno.EPIPE, 141, ""), (errno.ENOSPC, 1, "actnn: the output cannot be written: ")],
)
def test_output_that_fails_within_a_command_ends_it_without_a_traceback(problem, code, words, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "main", failing_with(OSError(problem, os.strerror(problem))))
    monkeypatch.setattr(cli, "discard_output", lambda: None)
    assert cli.main(["doctor"]) == code
    printed = capsys.readouterr().err
    assert printed.startswith(words)
    assert printed.count("\n") == bool(words)


def test_an_unexpected_error_of_the_system_is_not_taken_for_one_of_the_output(monkeypatch):
    monkeypatch.setattr(doctor, "main", failing_with(OSError(errno.EBADF, "a mistake of ours")))
    with pytest.raises(OSError, match="a mistake of ours"):
        cli.main(["doctor"])


def test_a_reader_that_is_gone_ends_a_command_quietly():
    reading, writing = os.pipe()
    os.close(reading)
    finished = run("--help", stdout=writing)
    os.close(writing)
    assert (finished.returncode, finished.stderr) == (141, "")


def test_output_that_can_only_fail_at_the_end_gives_one_line_and_exit_code_1():
    with open("/dev/full", "w") as full:
        finished = run("--help", stdout=full.fileno())
    assert finished.returncode == 1
    assert finished.stderr.startswith("actnn: the output cannot be written: [Errno 28] No space left on device.")
    assert finished.stderr.count("\n") == 1


def test_help_is_shown_on_a_terminal_that_lacks_its_characters():
    finished = run("--help", PYTHONIOENCODING="ascii")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert "command ?" in finished.stdout


def test_doctor_reports_versions_kernels_and_a_passed_self_check():
    finished = run("doctor")
    assert finished.returncode == 0, finished.stderr
    findings = {line[:16].strip(): line[17:] for line in finished.stdout.splitlines()}
    assert findings["actnn"] == actnn.__version__
    assert findings["kernels"].startswith("native: ")
    assert findings["on accelerators"].startswith(("triton: compiles for ", "reference: "))
    assert {"torch", "paddle", "threads", "processor"} <= findings.keys()
    assert findings["self check"].startswith("passed: ")


def test_doctor_returns_1_when_the_self_check_failed(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "framework_state", lambda framework: "not looked at")
    right = Native.decode
    monkeypatch.setattr(Native, "decode", lambda self, *given: right(self, *given) + 1)
    assert cli.main(["doctor"]) == 1
    assert "FAILED: the native backend decodes otherwise than the reference" in capsys.readouterr().out


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
    finished = run("demo", "--epochs", "1", "--limit", "40", "--batch", "8", OMP_NUM_THREADS="1")
    assert finished.returncode == 0, finished.stderr
    for word in ("exact", "2-bit codes", "test accuracy", "activations kept", "peak memory", "time of an epoch"):
        assert word in finished.stdout


def test_the_doctor_tells_programs_what_it_tells_people(capsys):
    assert cli.main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert cli.main(["doctor"]) == 0
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == list(found)
    assert found["self check"].startswith(("passed", "skipped"))
