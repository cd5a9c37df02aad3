"""What the builder of wheels does to them, without a build: `make wheels` builds and tries them."""

from __future__ import annotations

import csv
import io
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
