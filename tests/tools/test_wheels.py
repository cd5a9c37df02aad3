"""What the builder of wheels does to them, without a build: `make wheels` builds and tries them."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import zipfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = spec_from_file_location("wheels", ROOT / "tools" / "wheels.py")
wheels = module_from_spec(spec)
spec.loader.exec_module(wheels)


def test_a_library_is_added_to_a_wheel_and_to_its_record(tmp_path):
    wheel, library = tmp_path / "some.whl", tmp_path / "libgomp.so.1.0.0"
    library.write_bytes(b"code")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("some.dist-info/RECORD", "some/__init__.py,,\n")
    wheels.add(wheel, "some/lib/libgomp.so.1", library)
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("some/lib/libgomp.so.1") == b"code"
        # everybody may read and load it
        assert archive.getinfo("some/lib/libgomp.so.1").external_attr >> 16 == 0o100755
        record = list(csv.reader(io.StringIO(archive.read("some.dist-info/RECORD").decode())))
    assert [line[0] for line in record] == ["some/__init__.py", "some/lib/libgomp.so.1"]
    assert record[1][2] == "4"


def test_the_first_example_of_the_readme_is_found_and_imports_what_it_uses():
    program = wheels.first_example((ROOT / "README.md").read_text())
    assert program.startswith("import torch\n")
    assert "print(model.report())" in program
    compile(program, "README.md", "exec")


def test_a_readme_without_an_example_is_refused():
    with pytest.raises(SystemExit, match="has no example"):
        wheels.first_example("# Nothing\n")


def told(code: int, **found: str) -> subprocess.CompletedProcess[str]:
    """What the doctor says of an installed wheel."""
    answer = {"python": "3.11.2", "kernels": "native: compiled library", "self check": "passed"} | found
    return subprocess.CompletedProcess([], code, json.dumps(answer), "")


@pytest.mark.parametrize(
    ("name", "code", "kernels"),
    [
        ("manylinux_2_34_aarch64.whl", 1, "native: compiled library"),
        ("manylinux_2_34_aarch64.whl", 0, "reference: there is no library"),
        ("none-any.whl", 0, "native: compiled library"),
    ],
)
def test_a_wheel_whose_check_fails_or_that_runs_other_kernels_is_refused(name, code, kernels):
    wheels.judge(Path("manylinux_2_34_aarch64.whl"), told(0))
    with pytest.raises(SystemExit, match="a self check that passes"):
        wheels.judge(Path(name), told(code, kernels=kernels))


def test_a_wheel_that_does_not_run_is_refused():
    with pytest.raises(SystemExit, match="does not run: cannot open"):
        wheels.judge(Path("manylinux_2_34_aarch64.whl"), subprocess.CompletedProcess([], 126, "", "cannot open it"))
