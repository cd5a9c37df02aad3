"""A profile written by hand, of the form in which the command collects it."""

from __future__ import annotations

from typing import Any

from traces import training_step

from actnn.profiling.blocks import pieces
from actnn.profiling.steps import summary
from actnn.profiling.timeline import Timeline


def run(**changed: Any) -> dict[str, Any]:
    """Return one contestant."""
    step = training_step().read()
    measured = {
        "true_peak": 3700,
        "resident": 10_000,
        "needs": [],
        "always_there": {"weights": 10, "gradients": 10, "optimizer": 10},
    }
    kinds = {"model": "Model", "conv": "QConv2d", "relu": "QReLU", "norm": "LayerNorm"}
    return summary(step, Timeline(step, pieces(step))) | measured | {"kinds": kinds} | changed


def row(layer: str, **changed: Any) -> dict[str, Any]:
    """Return a row of a report."""
    values = {"layer": layer, "kind": "QConv2d", "exact_bytes": 4000, "kept_bytes": 350, "readers": [], "bits": 2.0}
    return values | {"elements": 1000, "sign_bits": 0.0, "swapped_bytes": 0} | changed


def profile(model: str = "small", layer: str = "conv", forecasts: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """Return a whole profile; ``layer`` is the name of its first layer."""
    compressed = run(
        rows=[row(layer, readers=["relu"]), row("head.10", kept_bytes=250, bits=3.0), row("head.9", kept_bytes=900)],
        average_bits=2.0,
        left_exact=[["norm", "LayerNorm", "it is a subclass of <b>something</b>"]],
        sensitivity={layer: 12.5, "head.10": 3e-5},
        variance={layer: 0.5, "head.9": 2.0},
        squared_norms={layer: 10.0, "head.9": 10.0},
        forecasts=list(forecasts),
    )
    kinds = compressed["kinds"]
    compressed["kinds"] = {layer: kinds.pop("conv")} | kinds | {"head.9": "QLinear", "head.10": "QLinear"}
    settings = {"model": model, "batch": 8, "input": [3, 32, 32], "classes": 10, "level": "L3", "bits": 2.0}
    machine = {
        "processor": "some",
        "cores": 2,
        "memory_gib": 8,
        "python": "3",
        "versions": {"torch": "2"},
        "date": "today",
    }
    return {"settings": settings, "machine": machine, "exact": run(), "compressed": compressed}
