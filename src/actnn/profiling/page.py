"""A profile as one HTML page that needs nothing but a browser: style, script and data are all within it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from html import escape
from importlib.resources import files
from typing import Any

from actnn.profiling.advice import sentences
from actnn.profiling.blocks import CATEGORIES
from actnn.profiling.layers import balance, kept_bytes, layers, total_variance
from actnn.profiling.peaks import peaks_of

SCRIPTS = ("format.js", "chart.js", "table.js", "main.js")
SHOWN = ("phases", "times", "categories", "layers", "passes", "peak", "true_peak", "resident", "always_there")
PLACE = re.compile(r"\{\{(\w+)\}\}")
# what would end the script element, or a line of it in older browsers
UNSAFE: dict[str, str | int | None] = {character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def html(profile: Mapping[str, Any], memory: int | None) -> str:
    """Return the page."""
    settings = profile["settings"]
    parts = {
        "title": escape(f"{settings['model']} · {settings['level']} · actnn profile"),
        "style": asset("page.css"),
        "script": "\n".join(asset(name) for name in SCRIPTS),
        "data": embedded(data(profile, memory)),
    }
    # in one pass: what was filled in is not looked at again
    return PLACE.sub(lambda place: parts[place[1]], asset("page.html"))


def asset(name: str) -> str:
    """Return a file that lies beside this module."""
    return (files("actnn.profiling") / "assets" / name).read_text(encoding="utf-8")


def embedded(values: Mapping[str, Any]) -> str:
    """Return data as JSON that may stand within a script element."""
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    return text.translate(str.maketrans(UNSAFE))


def data(profile: Mapping[str, Any], memory: int | None) -> dict[str, Any]:
    """Return what the page shows."""
    contestants = {name: {key: profile[name][key] for key in SHOWN} for name in ("exact", "compressed")}
    peaks, table = peaks_of(profile), layers(profile)
    for name, shown in contestants.items():
        shown["kept_bytes"] = kept_bytes(profile[name])
        shown["peak_bytes"] = getattr(peaks, name)
    return {
        "settings": profile["settings"],
        "machine": profile["machine"],
        "categories": [{"name": name, "meaning": meaning} for name, meaning in CATEGORIES.items()],
        "contestants": contestants,
        "replayed": peaks.replayed,
        "table": [asdict(layer) for layer in table],
        "balance": asdict(balance(profile, table)),
        "average_bits": profile["compressed"]["average_bits"],
        "variance": total_variance(profile["compressed"]),
        "forecasts": profile["compressed"].get("forecasts", []),
        "sentences": sentences(profile, memory),
    }
