"""The OpenMP runtime that a wheel brings along: used only where the process has no other."""

from __future__ import annotations

import ctypes

import pytest

from actnn.kernels.native import library


@pytest.fixture
def loads(monkeypatch, tmp_path):
    """Libraries that were opened, in order; the kernels open only after their runtime where ``missing`` is set."""
    found: list[str] = []

    def opened(path: str, mode: int = 0) -> str:
        name = path.rpartition("/")[2]
        if name == "kernels.so" and loads.missing and library.OPENMP not in found:
            raise OSError("libgomp.so.1: cannot open shared object file")
        found.append(name)
        return name

    class Loads:
        missing, names, folder = True, found, tmp_path

    loads = Loads()
    monkeypatch.setattr(ctypes, "CDLL", opened)
    return loads


def test_a_process_without_a_runtime_takes_that_of_the_wheel(loads):
    (loads.folder / library.OPENMP).touch()
    library.opened(loads.folder / "kernels.so")
    assert loads.names == [library.OPENMP, "kernels.so"]


def test_a_process_that_has_one_goes_on_with_it(loads):
    (loads.folder / library.OPENMP).touch()
    loads.missing = False
    library.opened(loads.folder / "kernels.so")
    assert loads.names == ["kernels.so"]


def test_without_any_the_reason_is_the_systems(loads):
    with pytest.raises(OSError, match=r"libgomp\.so\.1"):
        library.opened(loads.folder / "kernels.so")
