"""``tools/torchvision_on_host.py``: an extension loads although libraries that it names are not there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

pytest.importorskip("torch")
SCRIPT = Path(__file__).parents[2] / "tools" / "torchvision_on_host.py"
EXTENSION = """
long absent_function(void);
long versioned_function(void);
extern long absent_variable __asm__("_ZN6absent8variableE");
long sum(void) { return absent_function() + versioned_function() + absent_variable + 5; }
"""
ABSENT = {
    "libabsent.so": """
        long absent_function(void) { return 1; }
        long absent_variable __asm__("_ZN6absent8variableE") = 1;
    """,
    "libversioned.so.1": "long versioned_function(void) { return 1; }",
}


@pytest.fixture
def script():
    found = spec_from_file_location(SCRIPT.stem, SCRIPT)
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


def compiled(path, code, *options):
    command = ["cc", "-x", "c", "-shared", "-fPIC", "-o", str(path), "-", "-x", "none", *options]
    subprocess.run(command, input=code, text=True, check=True)


@pytest.fixture
def extension(tmp_path):
    """Return a library whose own libraries were there when it was built, and are gone."""
    if shutil.which("cc") is None or shutil.which("readelf") is None:
        pytest.skip("there is no C compiler here")
    (tmp_path / "versions").write_text("libversioned.so.1 { *; };")
    for name, code in ABSENT.items():
        versions = [f"-Wl,--version-script={tmp_path / 'versions'}"] if "versioned" in name else []
        compiled(tmp_path / name, code, f"-Wl,-soname,{name}", *versions)
    path = tmp_path / "_C.so"
    compiled(path, EXTENSION, *[str(tmp_path / name) for name in ABSENT])
    for name in ABSENT:
        (tmp_path / name).unlink()
    return path


def test_an_extension_loads_once_something_stands_in_for_its_libraries(script, extension, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "SITE", tmp_path)
    script.build(extension)
    # by its path: Python may have loaded the environment's own as it started
    load = f"runpy.run_path({str(tmp_path / f'{script.NAME}.py')!r})"
    program = f"import ctypes, runpy; {load}; print(ctypes.CDLL({str(extension)!r}).sum())"
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert finished.stdout.strip() == "5", finished.stderr
    assert (tmp_path / f"{script.NAME}.pth").read_text() == f"import {script.NAME}\n"


def test_an_extension_that_has_its_libraries_is_said_to_fail_for_another_reason(script, tmp_path):
    compiled(tmp_path / "_C.so", "int nothing;")
    with pytest.raises(SystemExit, match="built for another torch"):
        script.build(tmp_path / "_C.so")


def test_nothing_is_done_where_torchvision_imports(script, monkeypatch):
    monkeypatch.setattr(script, "imports", lambda: True)
    monkeypatch.setattr(script, "build", lambda extension: pytest.fail("there is nothing to build"))
    assert script.main() == 0


@pytest.mark.parametrize(
    ("symbol", "is_variable"),
    [
        ("cudaGetLastError", False),
        ("_ZN3c104cuda12device_countEv", False),
        ("_ZN3c104cuda20setCurrentCUDAStreamENS0_10CUDAStreamE", False),
        ("_ZN3c104cuda20CUDACachingAllocator9allocatorE", True),
    ],
)
def test_a_symbol_is_defined_as_what_it_is(script, symbol, is_variable):
    assert script.definition(symbol) == (script.VARIABLE if is_variable else script.FUNCTION).format(symbol)
