"""The guide's table of what works together: its rows, each found out by the tests that are marked with its name.

``make works-with`` runs those tests and writes the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

PASSED, FAILED = "passed", "failed"
PLACE = re.compile(r"(<!-- works with -->\n).*?(<!-- end -->)", re.DOTALL)
HEADING = ["with", "version", "verdict", "how"]


class Row(NamedTuple):
    """A combination: the package whose version counts, the verdict where its tests pass, and how it is used."""

    package: str
    verdict: str
    note: str


ROWS = {
    "DDP": Row(
        "torch", "works", "`DistributedDataParallel(actnn.QModule(model))`; [`join_statistics`](#many-processes)"
    ),
    "FSDP1": Row("torch", "works", "`FullyShardedDataParallel(actnn.QModule(model), use_orig_params=True)`"),
    "FSDP2": Row("torch", "works", "`fully_shard(actnn.QModule(model))`, its parts before it"),
    "tensor parallel": Row(
        "torch", "works", "linear layers by `ColwiseParallel` and `RowwiseParallel`, and attention between them"
    ),
    "Lightning": Row("lightning", "works, resumes bit for bit", "`ActnnCallback` of `actnn.integrations.lightning`"),
    "Hugging Face Trainer": Row(
        "transformers", "works, resumes bit for bit", "`compress` of `actnn.integrations.huggingface`"
    ),
    "Accelerate": Row("accelerate", "works, resumes bit for bit", "`compress` of `actnn.integrations.accelerate`"),
    "timm": Row("timm", "works, resumes bit for bit", "`SessionScaler` of `actnn.integrations.timm`"),
    "own loop": Row("torch", "works, resumes bit for bit", "`actnn.save` and `actnn.load`"),
    "peft": Row(
        "peft",
        "works, peft first",
        "`actnn.QModule(get_peft_model(model, config))`: adapters keep codes too; after `QModule` they match converted "
        "layers, stay exact themselves, and the report names them",
    ),
    "torch.compile": Row(
        "torch",
        "runs uncompiled, and says so",
        "`actnn.compile(model)` compiles; `torch.compile(actnn.QModule(model))` warns once, a model compiled before is "
        "refused",
    ),
    "checkpoint, reentrant": Row("torch", "works", "`checkpoint(block, x, use_reentrant=True)`"),
    "checkpoint, non-reentrant": Row("torch", "works", "`checkpoint(block, x, use_reentrant=False)`"),
    "checkpoint, sequential": Row("torch", "works", "`checkpoint_sequential(model, segments, x)`"),
    "checkpoint, selective": Row("torch", "works", "`create_selective_checkpoint_contexts` as `context_fn`"),
    "autocast, bfloat16": Row("torch", "works", "`torch.autocast` around the forward"),
    "autocast, float16": Row("torch", "works", "`torch.autocast` and a `GradScaler`"),
    "torch.export": Row("torch", "works in evaluation", "what is exported is the plain model"),
    "torch.jit.trace": Row("torch", "works in evaluation", "what is traced is the plain model"),
    "torch.fx": Row("torch", "works in evaluation", "what is recorded is the plain model"),
    "ONNX": Row("onnx", "works in evaluation", "`torch.onnx.export`, by its exporter and by its tracer"),
    "torch.func": Row("torch", "works", "gradients are exact, nothing is coded"),
    "EMA": Row("torch", "works", "`AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn())`"),
    "SWA": Row("torch", "works", "`AveragedModel`, `SWALR` and `update_bn`"),
    "SAM": Row("torch", "works", "two backwards a step"),
    "GAN": Row("torch", "works", "both networks converted, each by itself"),
    "weight_norm": Row("torch", "works", "`parametrizations.weight_norm` before or after `QModule`; `restore()` works"),
    "prune": Row("torch", "works", "`torch.nn.utils.prune` before or after `QModule`"),
    "QAT": Row(
        "torch",
        "works, prepare first",
        "`actnn.QModule(prepare_qat(model))`; the other order is refused; quantise what `restore()` returns",
    ),
}


def installed(package: str) -> str:
    """Return the version of a package, without what a build adds to it."""
    return version(package).partition("+")[0]


def table(verdicts: Mapping[str, str]) -> str:
    """Return the table as Markdown, with the verdict on each row."""
    lines = [HEADING, ["---"] * len(HEADING)]
    for name, row in ROWS.items():
        verdict = row.verdict if verdicts[name] == PASSED else "**fails**"
        lines.append([name, f"{row.package} {installed(row.package)}", verdict, row.note])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write(path: Path, verdicts: Mapping[str, str]) -> None:
    """Put the table into a file, between its marks; raise where a row was not tried."""
    if missing := ", ".join(name for name in ROWS if name not in verdicts):
        raise SystemExit(f"{path} stays as it is, for these were not tried: {missing}")
    text = path.read_text()
    path.write_text(PLACE.sub(lambda place: f"{place[1]}{table(verdicts)}{place[2]}", text))
