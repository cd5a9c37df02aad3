"""What networks can be trained for: a row here, and one module with a ``Goal`` each."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from actnn.workloads.tasks.goal import Goal

CLASSIFICATION = "classification"
TASKS: Mapping[str, str] = {
    CLASSIFICATION: "actnn.workloads.tasks.classification:Classification",
    "segmentation": "actnn.workloads.tasks.segmentation:Segmentation",
    "detection": "actnn.workloads.tasks.detection:Detection",
    "selfsupervised": "actnn.workloads.tasks.selfsupervised:SelfSupervised",
    "selfsupervised-linear": "actnn.workloads.tasks.selfsupervised:LinearProbe",
    "language": "actnn.workloads.tasks.language:LanguageModelling",
    "text": "actnn.workloads.tasks.text:TextClassification",
}


def find(name: str) -> Goal:
    """Return the goal of a task."""
    module, _, kind = TASKS[name].partition(":")
    found: Goal = getattr(import_module(module), kind)()
    return found
