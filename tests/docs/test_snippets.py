"""Every snippet of README and guide runs, in the order and with the names that its reader has."""

from __future__ import annotations

import shlex
import textwrap
import tomllib
from importlib.util import find_spec

import pytest
from snippets import FORMULA, KINDS, SETTINGS, SHELL, Kind, snippets

from actnn import cli

ALL = {(snippet.page, snippet.first): snippet for snippet in snippets()}
PROGRAMS = {place: kind for place, kind in KINDS.items() if isinstance(kind, Kind)}


def test_it_is_known_of_every_snippet_what_it_is():
    assert len(ALL) == len(snippets()), "two snippets of a page begin alike: their names could be mixed up"
    assert set(ALL) == set(KINDS)


@pytest.mark.parametrize(("place", "kind"), PROGRAMS.items(), ids=[f"{page} {first}" for page, first in PROGRAMS])
def test_a_snippet_runs(place, kind, tmp_path, monkeypatch):
    if find_spec(kind.package) is None:
        pytest.skip(f"{kind.package} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    snippet = ALL[place]
    names = kind.names()
    # lines of a page, so that an error names them
    program = "\n" * (snippet.line - 1) + snippet.program
    exec(compile(program, snippet.page, "exec"), names)


@pytest.mark.parametrize("place", [place for place, kind in KINDS.items() if kind == SHELL])
def test_a_command_that_is_shown_is_there(place):
    for line in ALL[place].text.splitlines():
        words = shlex.split(line, comments=True)
        if "actnn" in words and words[0] != "pip":
            assert cli.called(words[words.index("actnn") + 1 :]) is not None


def test_what_is_no_program_is_none():
    for place, kind in KINDS.items():
        if kind == FORMULA:
            with pytest.raises(SyntaxError):
                compile(ALL[place].program, "formula", "exec")


@pytest.mark.parametrize("place", [place for place, kind in KINDS.items() if kind == SETTINGS])
def test_a_file_of_settings_that_is_shown_can_be_read(place):
    assert tomllib.loads(textwrap.dedent(ALL[place].text))
