"""The import rules of docs/design.md: which folder may import which, and that private names stay in their module."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(find_spec("actnn").origin).parent
# the public face, which resolves its names on first use; it is there for users, and for what plays the user
FACE = "actnn"

BASE = {"errors", "format", "amounts", "files", "frames"}
PLANNED = BASE | {"settings", "kernels", "planning"}
# What each folder, or module beside the folders, may import, in a function or for types as well.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "format": {"errors"},
    "amounts": {"errors"},
    "files": set(),
    "frames": set(),
    "settings": BASE,
    "kernels": {"errors", "format"},
    "planning": BASE | {"settings", "kernels"},
    "stores": PLANNED,
    "session": PLANNED | {"stores"},
    "operations": PLANNED | {"stores", "session"},
    "model": PLANNED | {"stores", "session", "operations"},
    "torch": PLANNED | {"stores", "session", "operations", "model"},
    "paddle": PLANNED | {"stores", "session", "operations", "model"},
    "integrations": BASE | {"model", "torch"},
    FACE: {"errors", "settings", "model"},
    "console": BASE,
    "measuring": BASE | {"console"},
    "workloads": BASE | {"settings", "kernels", "torch", "paddle", FACE, "console", "measuring"},
    "profiling": BASE | {"settings", "stores", "session", "model", "console", "measuring", "workloads"},
    "bench": BASE | {"settings", "kernels", "model", "torch", "paddle", "console", "measuring", "workloads"},
    "cli": BASE | {"settings", "kernels", FACE, "console", "measuring", "workloads", "profiling", "bench"},
    "__main__": {"cli"},
}
# Of these pairs of folders, only the named modules may be imported.
ONLY = {("planning", "kernels"): {"actnn.kernels.contract"}}
# Pairs of folders that break the rule today; each must be broken, so that whoever mends it takes it out.
KNOWN: set[tuple[str, str]] = set()

# (module, name) of private names of other modules that are used today; each must be used, as above
KNOWN_PRIVATE: set[tuple[str, str]] = set()
# what the standard library and torch document in spite of its underscore
DOCUMENTED = {"_replace", "_asdict", "_fields", "_make", "_version", "_base"}

OWNERS = {
    # methods of others are written for torch alone, and loaded only when one of them takes part
    "torch": ("actnn.torch", "actnn.workloads.peers"),
    "paddle": ("actnn.paddle",),
    "triton": ("actnn.kernels.triton",),
    "ctypes": ("actnn.kernels.native",),
    "lightning": ("actnn.integrations",),
    "accelerate": ("actnn.integrations",),
}
LAZY = {
    (f"actnn.{folder}", framework)
    for folder in ("cli", "bench", "workloads", "measuring", "profiling", "integrations")
    for framework in ("torch", "paddle")
}


class Import(NamedTuple):
    target: str
    deferred: bool


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def parsed(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def imports(module: str) -> list[Import]:
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    found = statements(parsed(module))
    return [Import(target, deferred) for node, deferred in found for target in targets(node, package)]


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
    origin = origin_of(node, package)
    for alias in node.names:
        full = f"{origin}.{alias.name}"
        yield full if full in MODULES else origin


def origin_of(node: ast.ImportFrom, package: str) -> str:
    base = ".".join(package.split(".")[: len(package.split(".")) + 1 - node.level]) if node.level else ""
    return ".".join(part for part in (base, node.module) if part)


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def folder(module: str) -> str:
    """Return the row of the table that a module belongs to."""
    found = FACE if module == FACE else module.split(".")[1]
    if found not in MAY_IMPORT:
        pytest.fail(f"{module} has no place in the architecture: add its folder to MAY_IMPORT and to docs/design.md")
    return found


def arrows() -> set[tuple[str, str]]:
    """Return (module, target) of every import of ours."""
    return {(module, each.target) for module in MODULES for each in imports(module) if within(each.target, "actnn")}


def is_broken(module: str, target: str) -> bool:
    pair = folder(module), folder(target)
    if pair[0] == pair[1]:
        return False
    return pair[1] not in MAY_IMPORT[pair[0]] or target not in ONLY.get(pair, {target})


def cycle_free(graph: dict[str, set[str]]) -> None:
    """Raise CycleError where folders import each other, directly or through others."""
    TopologicalSorter(graph).prepare()


def test_a_folder_imports_only_what_the_table_allows():
    broken = {(module, target) for module, target in arrows() if is_broken(module, target)}
    assert sorted(pair for pair in broken if (folder(pair[0]), folder(pair[1])) not in KNOWN) == []


def test_what_is_known_to_break_the_table_still_does():
    broken = {(folder(module), folder(target)) for module, target in arrows() if is_broken(module, target)}
    assert sorted(KNOWN - broken) == []


def test_no_folder_imports_itself_through_others():
    graph: dict[str, set[str]] = {}
    for module, target in arrows():
        pair = folder(module), folder(target)
        if pair[0] != pair[1] and pair not in KNOWN:
            graph.setdefault(pair[0], set()).add(pair[1])
    cycle_free(graph)


def test_the_table_allows_no_cycle():
    cycle_free(MAY_IMPORT)


@pytest.mark.parametrize(
    ("module", "target", "broken"),
    [
        ("actnn.kernels.reference", "actnn.format", False),
        ("actnn.kernels.reference", "actnn.session.session", True),
        ("actnn.format", "actnn.kernels", True),
        ("actnn.planning.planner", "actnn.kernels.contract", False),
        ("actnn.planning.planner", "actnn.kernels.native", True),
        ("actnn.torch.layers", "actnn.paddle.layers", True),
        ("actnn.session.session", "actnn", True),
        ("actnn.session.session", "actnn.torch.layers", True),
        ("actnn.measuring.runs", "actnn.workloads.models", True),
        ("actnn.workloads.models", "actnn.measuring.processes", False),
        ("actnn.bench.memory", "actnn.cli.demo", True),
        ("actnn.cli.demo", "actnn.bench.memory", False),
        ("actnn.torch.layers", "actnn.bench.memory", True),
    ],
)
def test_the_rule_itself_tells_right_from_wrong(module, target, broken):
    assert is_broken(module, target) is broken


@pytest.mark.parametrize("module", MODULES)
def test_only_its_owner_imports_a_framework(module):
    broken = []
    for target, deferred in imports(module):
        outside = target.partition(".")[0]
        if outside not in OWNERS or any(within(module, owner) for owner in OWNERS[outside]):
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


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in DOCUMENTED


def defined(tree: ast.AST) -> set[str]:
    """Return the private names that a module defines: functions, classes, variables, and attributes of ``self``."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # slots
            found.add(node.value)
    return {name for name in found if is_private(name)}


def is_own(node: ast.AST) -> bool:
    """Tell whether an expression is what a method belongs to."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def borrowed(tree: ast.AST, ours: set[str]) -> set[str]:
    """Return the private names of other modules of ours that a module uses."""
    own, found = defined(tree), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not is_own(node.value):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and (node.level or within(node.module or "", "actnn")):
            found |= {alias.name for alias in node.names}
    return {name for name in found if is_private(name) and name in ours} - own


@cache
def all_borrowed() -> set[tuple[str, str]]:
    ours = set().union(*(defined(parsed(module)) for module in MODULES))
    return {(module, name) for module in MODULES for name in borrowed(parsed(module), ours)}


def test_private_names_are_used_in_their_own_module_only():
    assert sorted(all_borrowed() - KNOWN_PRIVATE) == []


def test_private_names_that_are_known_to_be_used_elsewhere_still_are():
    assert sorted(KNOWN_PRIVATE - all_borrowed()) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from actnn.torch import _secret", {"_secret"}),
        ("from . import _secret", {"_secret"}),
        ("from elsewhere import _secret", set()),
        ("other._secret", {"_secret"}),
        ("other.part._secret = 1", {"_secret"}),
        ("self._secret", set()),
        ("super()._secret", set()),
        ("other._not_ours", set()),
        ("other.__secret__", set()),
        ("def _secret(): pass\nother._secret", set()),
        ("class A:\n    def f(self, other):\n        self._secret = other._secret", set()),
    ],
)
def test_the_use_of_a_private_name_is_seen(source, found):
    assert borrowed(ast.parse(source), {"_secret"}) == found
