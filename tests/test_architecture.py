"""The import rules of docs/design.md, read off the installed package."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(find_spec("actnn").origin).parent

# Lowest first. A module may import from its own part and from earlier rows, never from later rows or another part.
LAYERS = (
    [{"actnn.errors"}],
    [{"actnn.format"}, {"actnn.amounts"}],
    [{"actnn.settings"}, {"actnn.kernels"}, {"actnn.console"}],
    [{"actnn.planning", "actnn.session", "actnn.stores", "actnn.operations", "actnn.model"}],
    [{"actnn.torch"}, {"actnn.paddle"}],
    [{"actnn.workloads", "actnn.measuring", "actnn.profiling", "actnn.cli", "actnn.bench"}],
)
# The public face and the entry point sit above everything; the face resolves its names on first use.
FACES = ("actnn", "actnn.__main__")

OWNERS = {
    "torch": "actnn.torch",
    "paddle": "actnn.paddle",
    "triton": "actnn.kernels.triton",
    "ctypes": "actnn.kernels.native",
}
LAZY = {
    (folder, framework)
    for folder in ("actnn.cli", "actnn.bench", "actnn.workloads", "actnn.measuring", "actnn.profiling")
    for framework in ("torch", "paddle")
}


class Import(NamedTuple):
    target: str
    deferred: bool


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(module: str) -> list[Import]:
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [Import(target, deferred) for node, deferred in statements(tree) for target in targets(node, package)]


def statements(node: ast.AST, deferred: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Yield every import statement and whether importing the module leaves it alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, deferred
        yield from statements(child, deferred or defers(child))


def defers(node: ast.AST) -> bool:
    """Tell whether what a node holds runs only when a function is called, or only for a type checker."""
    for_types = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return for_types or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def targets(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the modules that a statement names: ``from a import b`` is a.b where that is a module, else a."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = ".".join(package.split(".")[: len(package.split(".")) + 1 - node.level]) if node.level else ""
    origin = ".".join(part for part in (base, node.module) if part)
    for alias in node.names:
        full = f"{origin}.{alias.name}"
        yield full if full in MODULES else origin


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def place(module: str) -> tuple[int, set[str]]:
    """Return a module's rank and its part of LAYERS, found by the most specific name."""
    parts = [(rank, name, part) for rank, row in enumerate(LAYERS) for part in row for name in part]
    found = [(rank, name, part) for rank, name, part in parts if within(module, name)]
    if not found:
        pytest.fail(f"{module} has no place in the architecture: add it to LAYERS and to docs/design.md")
    rank, _, part = max(found, key=lambda entry: len(entry[1]))
    return rank, part


def broken_direction(module: str, target: str) -> bool:
    rank, part = place(module)
    if target in FACES:
        # the face is there for users; only what plays the user may go through it
        return "actnn.cli" not in part
    target_rank, target_part = place(target)
    return target_rank > rank or (target_rank == rank and target_part != part)


@pytest.mark.parametrize("module", [name for name in MODULES if name not in FACES])
def test_imports_point_one_way(module):
    ours = {target for target, _ in imports(module) if within(target, "actnn")}
    assert [target for target in sorted(ours) if broken_direction(module, target)] == []


@pytest.mark.parametrize("module", MODULES)
def test_only_its_owner_imports_a_framework(module):
    broken = []
    for target, deferred in imports(module):
        outside = target.partition(".")[0]
        if outside not in OWNERS or within(module, OWNERS[outside]):
            continue
        lazy = any(outside == allowed and within(module, layer) for layer, allowed in LAZY)
        if not (lazy and deferred):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("statement", ["import actnn", "import actnn.cli", "import actnn.kernels, actnn.model.verify"])
def test_importing_the_framework_free_part_loads_no_framework(statement):
    program = f"{statement}; import sys; print(sorted({{'torch', 'paddle', 'triton'}} & sys.modules.keys()))"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("module", "target", "broken"),
    [
        ("actnn.kernels.reference", "actnn.format", False),
        ("actnn.kernels.reference", "actnn.session.session", True),
        ("actnn.format", "actnn.kernels", True),
        ("actnn.torch.layers", "actnn.paddle.layers", True),
        ("actnn.session.session", "actnn", True),
        ("actnn.session.session", "actnn.torch.layers", True),
        ("actnn.cli.doctor", "actnn.kernels", False),
        ("actnn.cli.demo", "actnn.bench.memory", False),
        ("actnn.torch.layers", "actnn.bench.memory", True),
    ],
)
def test_the_rule_itself_tells_right_from_wrong(module, target, broken):
    assert broken_direction(module, target) is broken
