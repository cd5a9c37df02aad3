"""The notebook runs from top to bottom, and what it shows is HTML that is well formed."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "report.ipynb"


def shown(source: str, names: dict[str, Any]) -> Any:
    """Run a cell, and return the value of its last line as a notebook does; None where that is no expression."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), str(NOTEBOOK), "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)


def test_every_cell_runs_and_shows_a_report_and_a_verification():
    pytest.importorskip("torch")
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    names: dict[str, Any] = {}
    values = [shown("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]
    pages = [value._repr_html_() for value in values if hasattr(value, "_repr_html_")]
    assert len(pages) == 2
    for page in pages:
        ElementTree.fromstring(f"<div>{page}</div>")
    assert "autograd keeps" in pages[0]
    assert "<table>" in pages[0]
    assert "<table>" in pages[1]
    assert repr(values[-1]) == str(values[-1])
