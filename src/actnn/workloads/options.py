"""Options inside the name of a model: ``gpt2:layers=4,width=256``; and names in lists, whose commas they share."""

from __future__ import annotations

import ast
from typing import Any

from actnn.errors import ConfigError


def names(text: str) -> list[str]:
    """Read comma-separated names of models, each once; ``option=value`` belongs to the name before it."""
    found: list[str] = []
    for part in text.split(","):
        if found and "=" in part and ":" not in part:
            found[-1] += f",{part}"
        else:
            found.append(part)
    return list(dict.fromkeys(found))


def parsed(name: str, text: str) -> dict[str, Any]:
    """Return the options of a name; a value is a literal of Python, or else a word."""
    found = {}
    for part in text.split(",") if text else ():
        option, equals, value = part.partition("=")
        if not option.isidentifier() or not equals:
            raise ConfigError(f"the model {name!r} has an option {part!r}: expected option=value, separated by commas.")
        found[option] = literal(value)
    return found


def literal(text: str) -> Any:
    """Return the value that some text is in Python, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
