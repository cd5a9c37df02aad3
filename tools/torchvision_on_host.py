"""Let a torchvision that was built for CUDA import beside a torch that was built without it.

Its extension names libraries of CUDA that such a torch does not bring, and torchvision does not import without its
extension. This builds small libraries of those names, in which every function that the extension misses does nothing,
and has the environment load them whenever Python starts. What runs on the host never calls those functions.

    python tools/torchvision_on_host.py

works on the environment of the Python that runs it, and does nothing where torchvision imports already.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

SITE = Path(sysconfig.get_paths()["purelib"])
NAME = "torchvision_stand_ins"
LOADER = f'''"""Load what stands in for the libraries of CUDA that torchvision's extension names."""

import ctypes
import pathlib

for library in sorted(pathlib.Path(__file__).with_name("{NAME}_libraries").iterdir()):
    ctypes.CDLL(str(library))
'''
# as large as any variable that the extension may name
FUNCTION, VARIABLE = "void *{}(void) {{ return 0; }}", "char {}[256];"


def main() -> int:
    """Build what is missing; return 0 once torchvision imports."""
    if imports():
        return 0
    found = find_spec("torchvision")
    if found is None or found.origin is None:
        return complain("torchvision is not installed")
    extension = Path(found.origin).with_name("_C.so")
    if not extension.exists():
        return complain(f"torchvision does not import, and not for want of libraries: there is no {extension}")
    build(extension)
    return 0 if imports() else complain("torchvision does not import even with what stands in for CUDA's libraries")


def imports() -> bool:
    """Tell whether torchvision imports in a fresh process, with its extension."""
    program = "from torchvision.extension import _assert_has_ops; _assert_has_ops()"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0


def complain(problem: str) -> int:
    """Say what is wrong and return 1."""
    print(f"torchvision_on_host: {problem}.", file=sys.stderr)
    return 1


def build(extension: Path) -> None:
    """Build a library for each that the extension names in vain, and have Python load them when it starts."""
    known, missing = loaded(re.findall(r"NEEDED.*\[(.+)\]", output("readelf", "--dynamic", str(extension))))
    if not missing:
        raise SystemExit(f"torchvision_on_host: {extension} has all its libraries: it was built for another torch.")
    expected = undefined(extension)
    wanted = [symbol for symbol in expected if not any(defines(library, symbol) for library in known)]
    libraries = SITE / f"{NAME}_libraries"
    libraries.mkdir(exist_ok=True)
    # One of them defines everything, since the loader looks into all that the extension names; but not one of those
    # whose symbols have versions, where it would accept none without.
    place = min(missing, key=lambda name: name in expected.values())
    for name in missing:
        compile_library(libraries / name, "\n".join(map(definition, wanted)) if name == place else "")
    (SITE / f"{NAME}.py").write_text(LOADER)
    (SITE / f"{NAME}.pth").write_text(f"import {NAME}\n")


def loaded(names: Iterable[str]) -> tuple[list[ctypes.CDLL], list[str]]:
    """Return those libraries that torch or the system has, and the names of the others."""
    import torch

    folder = Path(torch.__file__).parent / "lib"
    known, missing = [], []
    for name in names:
        try:
            known.append(ctypes.CDLL(str(folder / name) if (folder / name).exists() else name))
        except OSError:
            missing.append(name)
    return known, missing


def undefined(extension: Path) -> dict[str, str]:
    """Return the symbols that a library expects of others, with their versions; it can do without weak ones."""
    lines = output("nm", "--dynamic", "--undefined-only", str(extension)).splitlines()
    symbols = [symbol.partition("@") for kind, symbol in map(str.split, lines) if kind == "U"]
    return {name: version for name, _, version in symbols}


def defines(library: ctypes.CDLL, symbol: str) -> bool:
    """Tell whether a library, or one that it needs, defines a symbol."""
    try:
        return bool(library[symbol])
    except AttributeError:
        return False


def definition(symbol: str) -> str:
    """Return a function in C that does nothing, or a variable where the symbol is that of one in C++."""
    # a function's name in C++ tells its parameters
    is_variable = symbol.startswith("_Z") and "(" not in output("c++filt", symbol)
    return (VARIABLE if is_variable else FUNCTION).format(symbol)


def compile_library(path: Path, code: str) -> None:
    """Compile a library that bears the name of its file."""
    command = [os.environ.get("CC", "cc"), "-x", "c", "-shared", "-fPIC", f"-Wl,-soname,{path.name}"]
    subprocess.run([*command, "-o", str(path), "-"], input=code, text=True, check=True)


def output(*command: str) -> str:
    """Return what a program prints."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
