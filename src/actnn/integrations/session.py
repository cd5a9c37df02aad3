"""What trainers ask of a converted model: its figures for their loggers, and what to install."""

from __future__ import annotations

from actnn.errors import UnsupportedError
from actnn.model.wrapper import Wrapper

KEPT_BYTES, BITS = "actnn/kept_bytes", "actnn/bits"
# the extra that brings each package
EXTRAS = {"transformers": "huggingface", "lightning": "lightning", "accelerate": "accelerate", "timm": "timm"}


def missing(package: str) -> UnsupportedError:
    """Return an error that says what to install where a trainer's package cannot be imported."""
    extra = EXTRAS[package]
    return UnsupportedError(
        f"actnn.integrations.{extra} needs the package {package}, which cannot be imported: "
        f"pip install 'actnn[{extra}]'"
    )


def figures(model: Wrapper) -> dict[str, float]:
    """Return what the last training step kept: all bytes that the report counts, and bits an element on average."""
    report = model.report()
    found: dict[str, float] = {KEPT_BYTES: report.kept_bytes}
    if report.average_bits is not None:
        found[BITS] = report.average_bits
    return found
