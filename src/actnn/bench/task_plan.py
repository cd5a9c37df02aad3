"""What ``actnn bench tasks`` trains: a file of TOML with a table for each task, in words of ``actnn train``.

[pets]
task = "segmentation"
data = "masks:pets"
model = "fpn"
epochs = 4
batch = 16
rate = 0.05
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from actnn.errors import ConfigError
from actnn.workloads.runs.settings import Settings
from actnn.workloads.tasks import TASKS

NEEDED = ("task", "data", "model", "epochs", "batch", "rate")
# what a task may leave out
DEFAULTS: dict[str, Any] = {
    "data_dir": None,
    "size": None,
    "images": None,
    "augment": False,
    "samples": True,
    "warm_up": 0.1,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "label_smoothing": 0.0,
    "amp": None,
    "channels_last": False,
    **{field.name: field.default for field in fields(Settings) if field.default is not MISSING},
}
# what contestants and seeds decide
DECIDED: dict[str, Any] = {"level": "L0", "bits": None, "memory": None, "compare": None, "seed": 0}
# another type than that of the default, or none at all
TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("task", "data", "model", "data_dir", "amp", "parallel"), str),
    **dict.fromkeys(("epochs", "batch", "size", "images"), int),
    **dict.fromkeys(("rate", "warm_up", "momentum", "weight_decay", "label_smoothing"), (int, float)),
}

Plan = Mapping[str, Mapping[str, Any]]


def read(path: Path) -> Plan:
    """Return the tasks of a file by name, each with all of its settings."""
    try:
        found = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ConfigError(f"the plan {path} cannot be read: {problem}.") from problem
    if not found:
        raise ConfigError(f"the plan {path} is empty: expected a table for each task, such as [pets].")
    return {name: checked(name, table, path) for name, table in found.items()}


def checked(name: str, table: Any, path: Path) -> dict[str, Any]:
    """Return the settings of one task."""
    if not isinstance(table, dict):
        raise ConfigError(f"{name!r} in {path} stands in no table: expected one for each task, such as [pets].")
    missing = [key for key in NEEDED if key not in table]
    strange = sorted(table.keys() - NEEDED - DEFAULTS.keys())
    if missing or strange:
        known = ", ".join((*NEEDED, *DEFAULTS))
        said = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(strange)}"
        raise ConfigError(f"the task {name!r} in {path} {said}: expected {known}.")
    for key, value in table.items():
        kind = TYPES.get(key, type(DEFAULTS.get(key)))
        if not isinstance(value, kind):
            raise ConfigError(f"the task {name!r} in {path} has {key} = {value!r}: expected another type, {kind}.")
    if table["task"] not in TASKS:
        raise ConfigError(f"the task {name!r} in {path} is {table['task']!r}: expected one of {', '.join(TASKS)}.")
    if min(table["epochs"], table["batch"]) < 1 or table["rate"] <= 0:
        raise ConfigError(f"the task {name!r} in {path} has epochs, batch or rate that are not above 0.")
    return DEFAULTS | table


def settings_of(task: Mapping[str, Any], seed: int) -> Settings:
    """Return the settings of a training; who trains is no part of them here."""
    return Settings(**{**DECIDED, **task, "seed": seed})
